//! Measures other kinds of queries: the name of a symbol or a file, and two or three words.

use std::collections::HashMap;

use toolgate_search::rank::RankingRules;

use crate::baselines::bm25::{FunctionBm25Index, WordSplitting};
use crate::baselines::rank_of;
use crate::measure::{EvalQuestion, EvaluatedSearchMethod, QualityMetric, table};
use crate::ours::{EnabledSearchStages, IndexedPackage};
use crate::rules::unique_names;
use crate::run::EvalRunSettings;
use crate::set::questions::identifier_parts;
use crate::set::{EvalPackage, EvalQuery, PackageLanguage};
use crate::summary::{ComparedMethods, SummaryTable};

/// Number of symbols of one package that are searched by name.
const SYMBOLS: usize = 20;
/// Number of files of one package that are searched by name.
const FILES: usize = 40;

/// Stages of search that the search tools use without a downloaded model.
const TOOLS: EnabledSearchStages =
    EnabledSearchStages { words: true, statics: true, model: false, rerank: true };

const BASELINE: &str = "BM25 with symbol and path";

/// Way in which a query spells the name of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SymbolSpelling {
    /// Name of the symbol without a change.
    Exact,
    /// Words of the name, separated by spaces instead of underscores or capitals.
    Split,
    /// Name in which two letters are swapped.
    Misspelt,
    /// Name preceded by the name of its type or module.
    Qualified,
}

const SPELLINGS: [(SymbolSpelling, &str); 4] = [
    (SymbolSpelling::Exact, "a symbol by its name"),
    (SymbolSpelling::Split, "by the words of its name"),
    (SymbolSpelling::Misspelt, "misspelt: two letters swapped"),
    (SymbolSpelling::Qualified, "with its type before it"),
];

/// Kinds of queries that the summary shows: index of the kind, title and metric.
const SUMMARIZED: [(usize, &str, QualityMetric); 2] = [
    (0, "exact name of a symbol to its function", QualityMetric::Ndcg),
    (SPELLINGS.len() + 1, "unique name of a file to the file", QualityMetric::FirstRank),
];

/// Measures all kinds of queries over `packages`, and returns their tables as Markdown. Adds the
/// figures of exact symbol and file names to `summary`.
pub fn tables(
    packages: &[EvalPackage],
    settings: EvalRunSettings,
    summary: &mut SummaryTable,
) -> anyhow::Result<String> {
    let EvalRunSettings { queries, split, .. } = settings;
    let mut tracks: Vec<(&str, Vec<EvalQuestion>, Vec<EvaluatedSearchMethod>)> = SPELLINGS
        .iter()
        .map(|(_, title)| (*title, Vec::new(), Vec::new()))
        .chain([("two or three rare words of each question", Vec::new(), Vec::new())])
        .chain([("a file by its name", Vec::new(), Vec::new())])
        .collect();
    for (index, package) in packages.iter().enumerate() {
        let baseline = FunctionBm25Index::new(package, WordSplitting::Symbols);
        let ours = IndexedPackage::new(package, None)?;
        let question = |overlap| EvalQuestion { package: index, lang: package.lang, overlap };
        let count = SYMBOLS.min(queries);
        for ((spelling, _), (_, questions, methods)) in SPELLINGS.iter().zip(&mut tracks) {
            for (text, unit) in symbol_queries(package, *spelling).into_iter().take(count) {
                questions.push(question(1.0));
                let scores = baseline.scores(&[&text]);
                add(methods, BASELINE, rank_of(&scores[0], unit));
                add(methods, "ours", ours.ranks(&text, None, unit, &[TOOLS])?[0]);
                add(methods, "ours: names", ours.rank_by_name(&text, unit)?);
            }
        }
        let (_, questions, methods) = &mut tracks[SPELLINGS.len() + 1];
        for (text, unit) in file_name_queries(package).into_iter().take(FILES.min(queries)) {
            questions.push(question(1.0));
            let path = package.units[unit].path.as_str();
            add(methods, BASELINE, file_rank_of(package, &baseline.scores(&[&text])[0], path));
            let (weighed, found) = ours.find(&text)?;
            add(methods, "ours", ours.file_rank(&RankingRules::TOOLS, &weighed, &found, path));
        }
        let (_, questions, methods) = &mut tracks[SPELLINGS.len()];
        let rarities = rarities(package);
        for query in package.queries.iter().take(count) {
            let text = keywords(query, &rarities);
            questions.push(question(query.overlap));
            let scores = baseline.scores(&[&text]);
            add(methods, BASELINE, rank_of(&scores[0], query.unit));
            add(methods, "ours", ours.ranks(&text, None, query.unit, &[TOOLS])?[0]);
        }
    }
    for (index, task, metric) in SUMMARIZED {
        let (_, questions, methods) = &tracks[index];
        summarize(task, metric, questions, methods, summary);
    }
    let shown = tracks.iter().map(|(title, questions, methods)| {
        format!("### Query: {title}\n\n{}", table(methods, questions))
    });
    let shown = shown.collect::<Vec<_>>().join("\n");
    Ok(format!("## Other kinds of queries ({})\n\n{shown}", split.name()))
}

/// Adds the figures of toolgate's search and of the baseline, which are both in `methods`, to
/// `summary`.
fn summarize(
    task: &str,
    metric: QualityMetric,
    questions: &[EvalQuestion],
    methods: &[EvaluatedSearchMethod],
    summary: &mut SummaryTable,
) {
    let find = |name: &str| methods.iter().find(|it| it.name == name);
    if let (Some(ours), Some(baseline)) = (find("ours"), find(BASELINE)) {
        summary.add(task, metric, ComparedMethods { ours, baseline }, questions, |_| true);
    }
}

/// Returns each file name that is unique in `package`, with the index of a function in that file.
/// The order is random, and the same in every run.
pub(crate) fn file_name_queries(package: &EvalPackage) -> Vec<(String, usize)> {
    let mut paths: Vec<(&str, usize)> = Vec::new();
    for (unit, index) in package.units.iter().zip(0..) {
        if paths.last().is_none_or(|(path, _)| *path != unit.path) {
            paths.push((&unit.path, index));
        }
    }
    let names = paths.iter().map(|&(path, _)| path.rsplit('/').next().unwrap_or(path));
    let mut queries: Vec<(String, usize)> = unique_names(names)
        .into_iter()
        .map(|(name, place)| (name.to_owned(), paths[place].1))
        .collect();
    queries.sort_by_cached_key(|(name, _)| *blake3::hash(name.as_bytes()).as_bytes());
    queries
}

/// Returns the name and index of each function of `package` that has a question and a unique name.
pub(crate) fn symbol_name_queries(package: &EvalPackage) -> Vec<(String, usize)> {
    symbol_queries(package, SymbolSpelling::Exact)
}

/// Returns the rank of the file at `path`, if each file has the best score of its functions.
fn file_rank_of(package: &EvalPackage, scores: &[f32], path: &str) -> Option<usize> {
    let mut files: HashMap<&str, f32> = HashMap::new();
    for (unit, score) in package.units.iter().zip(scores) {
        let best = files.entry(&unit.path).or_default();
        *best = best.max(*score);
    }
    let mut scores: Vec<(&str, f32)> = files.into_iter().collect();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let own = scores.iter().position(|(it, score)| *it == path && *score > 0.0)?;
    let scores: Vec<f32> = scores.into_iter().map(|(_, score)| score).collect();
    rank_of(&scores, own)
}

fn add(methods: &mut Vec<EvaluatedSearchMethod>, name: &str, rank: Option<usize>) {
    match methods.iter_mut().find(|it| it.name == name) {
        Some(method) => method.ranks.push(rank),
        None => methods.push(EvaluatedSearchMethod { name: name.to_owned(), ranks: vec![rank] }),
    }
}

/// Returns a query for each function that has a question, with the index of the function. Leaves
/// out queries that match several functions.
fn symbol_queries(package: &EvalPackage, spelling: SymbolSpelling) -> Vec<(String, usize)> {
    let query_text = |index: usize| {
        let unit = &package.units[index];
        let name = unit.name.as_str();
        let parts = identifier_parts(name);
        match spelling {
            SymbolSpelling::Exact => Some(name.to_owned()),
            SymbolSpelling::Split => (parts.len() > 1).then(|| parts.join(" ")),
            SymbolSpelling::Misspelt => swap_letters(name),
            SymbolSpelling::Qualified => {
                let within = unit.within.split(' ').next().filter(|it| !it.is_empty())?;
                let separator = match package.lang {
                    PackageLanguage::Rust | PackageLanguage::Ruby => "::",
                    PackageLanguage::Python | PackageLanguage::JavaScript | PackageLanguage::Go => {
                        "."
                    }
                };
                Some(format!("{within}{separator}{name}"))
            }
        }
    };
    let mut counts: HashMap<String, usize> = HashMap::new();
    for index in 0..package.units.len() {
        if let Some(text) = query_text(index) {
            *counts.entry(text.to_lowercase()).or_default() += 1;
        }
    }
    let is_unique = |it: &String| counts.get(&it.to_lowercase()) == Some(&1);
    let queries = package.queries.iter().filter_map(|it| Some((query_text(it.unit)?, it.unit)));
    queries.filter(|(text, _)| is_unique(text)).collect()
}

/// Swaps two different lower-case letters in the second half of `name`. Returns `None` if that is
/// not possible or `name` has fewer than six letters.
fn swap_letters(name: &str) -> Option<String> {
    let mut letters: Vec<char> = name.chars().collect();
    let can_swap = |index: &usize| {
        let one = letters[*index];
        let other = letters[*index + 1];
        one != other && one.is_ascii_lowercase() && other.is_ascii_lowercase()
    };
    let middle = letters.len() / 2;
    let index = (letters.len() >= 6).then(|| (middle..letters.len() - 1).find(can_swap))??;
    letters.swap(index, index + 1);
    Some(letters.into_iter().collect())
}

/// Returns the number of functions of `package` that contain each word, by word.
fn rarities(package: &EvalPackage) -> HashMap<String, usize> {
    let mut containing: HashMap<String, usize> = HashMap::new();
    for unit in &package.units {
        let mut words = words_of(&unit.body);
        words.sort_unstable();
        words.dedup();
        for word in words {
            *containing.entry(word).or_default() += 1;
        }
    }
    containing
}

/// Returns up to three words of the query that the fewest functions contain, in the order of the
/// query.
fn keywords(query: &EvalQuery, containing: &HashMap<String, usize>) -> String {
    let words = words_of(&query.text);
    let mut rarest: Vec<&String> =
        words.iter().filter(|it| it.len() > 2 && containing.contains_key(*it)).collect();
    rarest.sort_by_key(|it| containing[*it]);
    rarest.dedup();
    rarest.truncate(3);
    let chosen: Vec<&str> =
        words.iter().filter(|it| rarest.contains(it)).map(String::as_str).collect();
    if chosen.is_empty() { query.text.clone() } else { chosen.join(" ") }
}

fn words_of(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    parts.flat_map(identifier_parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_has_the_same_letters() {
        assert_eq!(swap_letters("parse_header").as_deref(), Some("parse_ehader"));
        assert_eq!(swap_letters("parse"), None);
    }

    #[test]
    fn keywords_are_the_rarest_words_in_their_order() {
        let holding = [("cache", 2), ("the", 90), ("value", 40), ("evict", 1), ("oldest", 3)];
        let holding = holding.map(|(word, many)| (word.to_owned(), many)).into();
        let query = EvalQuery {
            text: "Evict the oldest value of a cache".to_owned(),
            unit: 0,
            overlap: 0.0,
        };
        assert_eq!(keywords(&query, &holding), "evict oldest cache");
    }
}
