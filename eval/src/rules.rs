//! Measures each rule of the ranking by leaving the rule out, and by changing its weight.

use std::collections::HashMap;
use std::fmt::Write as _;

use toolgate_search::rank::RankingRules;

use crate::lookup::{file_name_queries, symbol_name_queries};
use crate::measure::{EvalQuestion, EvaluatedSearchMethod, table};
use crate::ours::IndexedPackage;
use crate::set::{EvalPackage, PackageSplit, load};

/// Name for tables, and a variant of the ranking rules.
type RankingRuleVariant = (String, RankingRules);

/// Names of the tasks on which each variant is measured.
const TASKS: [&str; 4] = [
    "docstring → function",
    "docstring → file",
    "name of a function → function",
    "name of a file → file",
];

/// Measures all tasks over the packages of `split`: with the rules of the search tools, and with
/// each rule left out or changed. Returns the tables.
pub fn run(split: PackageSplit, queries: usize) -> anyhow::Result<String> {
    let packages = load(split)?;
    let variants = variants();
    let mut tracks: Vec<(Vec<EvalQuestion>, Vec<EvaluatedSearchMethod>)> = TASKS
        .iter()
        .map(|_| {
            (
                Vec::new(),
                variants.iter().map(|(name, _)| EvaluatedSearchMethod::new(name)).collect(),
            )
        })
        .collect();
    for (index, package) in packages.iter().enumerate() {
        let ours = IndexedPackage::new(package, None)?;
        for (task, text, overlap, unit) in task_queries(package, queries) {
            let (questions, methods) = &mut tracks[task];
            questions.push(EvalQuestion { package: index, lang: package.lang, overlap });
            let (weighed, found) = ours.find(&text)?;
            for (method, (_, rules)) in methods.iter_mut().zip(&variants) {
                method.ranks.push(match task {
                    0 | 2 => ours.unit_rank(rules, &weighed, &found, unit),
                    _ => ours.file_rank(rules, &weighed, &found, &package.units[unit].path),
                });
            }
        }
        eprintln!("{}", package.name);
    }
    let mut page = format!("## Rules of the ranking ({})\n\n", split.name());
    for (title, (questions, methods)) in TASKS.iter().zip(&tracks) {
        writeln!(page, "### {title}\n\n{}", table(methods, questions))?;
    }
    Ok(page)
}

/// Returns the queries of all tasks: index of the task, text, overlap with the name of the
/// function, and index of the function that answers the query.
fn task_queries(package: &EvalPackage, queries: usize) -> Vec<(usize, String, f32, usize)> {
    let mut all = Vec::new();
    for it in package.queries.iter().take(queries) {
        all.extend([0, 1].map(|task| (task, it.text.clone(), it.overlap, it.unit)));
    }
    let names = symbol_name_queries(package).into_iter().take(queries);
    all.extend(names.map(|(text, unit)| (2, text, 1.0, unit)));
    let files = file_name_queries(package).into_iter().take(queries);
    all.extend(files.map(|(text, unit)| (3, text, 1.0, unit)));
    all
}

/// Function that returns a reference to one weight of the ranking rules.
type RankingWeightSelector = fn(&mut RankingRules) -> &mut f32;

/// Returns the rules of the search tools first, and then variants that each differ in one weight.
fn variants() -> Vec<RankingRuleVariant> {
    let tools = RankingRules::TOOLS;
    let mut all: Vec<RankingRuleVariant> = vec![
        ("all rules".to_owned(), tools),
        ("without exact matches first".to_owned(), RankingRules { exact_first: false, ..tools }),
    ];
    let weights: [(&str, RankingWeightSelector, &[f32]); 6] = [
        ("bonus of a mentioned path", |it| &mut it.mentioned_path_bonus, &[0.0, 1.0, 3.0]),
        ("bonus of a mentioned name", |it| &mut it.mentioned_name_bonus, &[0.0, 0.25, 1.0]),
        ("bonus of the owner", |it| &mut it.owner_bonus, &[0.0, 0.25, 1.0, 2.0]),
        ("penalty of tests", |it| &mut it.test_penalty, &[0.0, 2.0, 3.0]),
        ("penalty in one file", |it| &mut it.same_file_penalty, &[0.0, 0.3]),
        ("weight of further chunks", |it| &mut it.more_chunks_weight, &[0.0, 0.15, 0.5]),
    ];
    for (name, weight, values) in weights {
        for value in values {
            let mut rules = tools;
            *weight(&mut rules) = *value;
            all.push((format!("{name}: {value}"), rules));
        }
    }
    all
}

/// Returns each name that occurs exactly once in `names`, with its position there.
pub(crate) fn unique_names<'n>(
    names: impl Iterator<Item = &'n str> + Clone,
) -> Vec<(&'n str, usize)> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for name in names.clone() {
        *counts.entry(name).or_default() += 1;
    }
    names.zip(0..).filter(|(name, _)| counts[name] == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_differs_from_the_rules_of_the_tools() {
        let variants = variants();
        assert_eq!(variants[0].1, RankingRules::TOOLS);
        assert!(variants[1..].iter().all(|(_, rules)| *rules != RankingRules::TOOLS));
    }

    #[test]
    fn only_names_that_occur_once_are_unique() {
        assert_eq!(unique_names(["a", "b", "a", "c"].into_iter()), [("b", 1), ("c", 3)]);
    }
}
