//! Two more ways people ask: for a symbol by its name, and with two or three words.

use std::collections::HashMap;

use crate::baselines::bm25::{Bm25, Words};
use crate::baselines::place;
use crate::measure::{Asked, Way, table};
use crate::ours::{Ours, Parts};
use crate::set::questions::identifier_parts;
use crate::set::{Lang, Package, Query};

/// How many symbols of one package are looked for.
const SYMBOLS: usize = 20;

/// What takes part when the tools search with nothing downloaded.
const TOOLS: Parts = Parts { words: true, statics: true, model: false, rerank: true };

const BASELINE: &str = "BM25 with symbol and path";

/// How a symbol is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// As it is.
    Exact,
    /// Its words, with blanks between.
    Split,
    /// With two letters in each other's place.
    Misspelt,
    /// With what it stands in before it.
    Qualified,
}

const SPELLINGS: [(Spelling, &str); 4] = [
    (Spelling::Exact, "a symbol by its name"),
    (Spelling::Split, "by the words of its name"),
    (Spelling::Misspelt, "misspelt: two letters swapped"),
    (Spelling::Qualified, "with its type before it"),
];

/// The tables of all of them over `packages`, as Markdown.
pub fn tables(packages: &[Package], queries: usize) -> anyhow::Result<String> {
    let mut tracks: Vec<(&str, Vec<Asked>, Vec<Way>)> = SPELLINGS
        .iter()
        .map(|(_, title)| (*title, Vec::new(), Vec::new()))
        .chain([("two or three rare words of each question", Vec::new(), Vec::new())])
        .collect();
    for (at, package) in packages.iter().enumerate() {
        let baseline = Bm25::new(package, Words::Symbols);
        let ours = Ours::new(package, None)?;
        let asked_by = |overlap| Asked { package: at, lang: package.lang, overlap };
        let many = SYMBOLS.min(queries);
        for ((spelling, _), (_, asked, ways)) in SPELLINGS.iter().zip(&mut tracks) {
            for (text, unit) in symbols(package, *spelling).into_iter().take(many) {
                asked.push(asked_by(1.0));
                let scores = baseline.scores(&[&text]);
                add(ways, BASELINE, place(&scores[0], unit));
                add(ways, "ours", ours.places(&text, None, unit, &[TOOLS])?[0]);
                add(ways, "ours: names", ours.named(&text, unit)?);
            }
        }
        let (_, asked, ways) = &mut tracks[SPELLINGS.len()];
        let rarities = rarities(package);
        for query in package.queries.iter().take(many) {
            let text = keywords(query, &rarities);
            asked.push(asked_by(query.overlap));
            let scores = baseline.scores(&[&text]);
            add(ways, BASELINE, place(&scores[0], query.unit));
            add(ways, "ours", ours.places(&text, None, query.unit, &[TOOLS])?[0]);
        }
    }
    let shown = tracks
        .iter()
        .map(|(title, asked, ways)| format!("### Query: {title}\n\n{}", table(ways, asked)));
    Ok(format!("## Other kinds of queries\n\n{}", shown.collect::<Vec<_>>().join("\n")))
}

fn add(ways: &mut Vec<Way>, name: &str, place: Option<usize>) {
    match ways.iter_mut().find(|it| it.name == name) {
        Some(way) => way.places.push(place),
        None => ways.push(Way { name: name.to_owned(), places: vec![place] }),
    }
}

/// What is asked, and the only function meant; of functions that have a question, as they come.
fn symbols(package: &Package, spelling: Spelling) -> Vec<(String, usize)> {
    let said = |at: usize| {
        let unit = &package.units[at];
        let name = unit.name.as_str();
        let parts = identifier_parts(name);
        match spelling {
            Spelling::Exact => Some(name.to_owned()),
            Spelling::Split => (parts.len() > 1).then(|| parts.join(" ")),
            Spelling::Misspelt => swapped(name),
            Spelling::Qualified => {
                let within = unit.within.split(' ').next().filter(|it| !it.is_empty())?;
                let between = match package.lang {
                    Lang::Rust => "::",
                    Lang::Python => ".",
                };
                Some(format!("{within}{between}{name}"))
            }
        }
    };
    let mut counts: HashMap<String, usize> = HashMap::new();
    for at in 0..package.units.len() {
        if let Some(said) = said(at) {
            *counts.entry(said.to_lowercase()).or_default() += 1;
        }
    }
    let alone = |it: &String| counts.get(&it.to_lowercase()) == Some(&1);
    let each = package.queries.iter().filter_map(|it| Some((said(it.unit)?, it.unit)));
    each.filter(|(text, _)| alone(text)).collect()
}

/// The name with the two letters in its middle in each other's place; `None` of a short one.
fn swapped(name: &str) -> Option<String> {
    let mut letters: Vec<char> = name.chars().collect();
    let fits = |at: &usize| {
        let one = letters[*at];
        let other = letters[*at + 1];
        one != other && one.is_ascii_lowercase() && other.is_ascii_lowercase()
    };
    let middle = letters.len() / 2;
    let at = (letters.len() >= 6).then(|| (middle..letters.len() - 1).find(fits))??;
    letters.swap(at, at + 1);
    Some(letters.into_iter().collect())
}

/// In how many functions of `package` each word stands.
fn rarities(package: &Package) -> HashMap<String, usize> {
    let mut holding: HashMap<String, usize> = HashMap::new();
    for unit in &package.units {
        let mut words = words_of(&unit.body);
        words.sort_unstable();
        words.dedup();
        for word in words {
            *holding.entry(word).or_default() += 1;
        }
    }
    holding
}

/// The three rarest words of a question that stand in any function, in its order.
fn keywords(query: &Query, holding: &HashMap<String, usize>) -> String {
    let words = words_of(&query.text);
    let mut known: Vec<&String> =
        words.iter().filter(|it| it.len() > 2 && holding.contains_key(*it)).collect();
    known.sort_by_key(|it| holding[*it]);
    known.dedup();
    known.truncate(3);
    let kept: Vec<&str> =
        words.iter().filter(|it| known.contains(it)).map(String::as_str).collect();
    if kept.is_empty() { query.text.clone() } else { kept.join(" ") }
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
        assert_eq!(swapped("parse_header").as_deref(), Some("parse_ehader"));
        assert_eq!(swapped("parse"), None);
    }

    #[test]
    fn keywords_are_the_rarest_words_in_their_order() {
        let holding = [("cache", 2), ("the", 90), ("value", 40), ("evict", 1), ("oldest", 3)];
        let holding = holding.map(|(word, many)| (word.to_owned(), many)).into();
        let query =
            Query { text: "Evict the oldest value of a cache".to_owned(), unit: 0, overlap: 0.0 };
        assert_eq!(keywords(&query, &holding), "evict oldest cache");
    }
}
