//! What search learns beforehand: vectors of words, and how to weigh what a closer look sees.

mod candidates;
mod network;
pub(crate) mod random;
mod table;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

use anyhow::Context;
use toolgate_chunks::words::{concepts, words};
use toolgate_search::static_model::StaticModel;

use crate::set::{Package, Split, Unit, load};
use table::{D, PARTS, Pair, Table, Words, weighed};

/// Where the vectors of words are kept.
const TABLE: &str = "crates/search/src/static_model.bin";

/// How many words are learned at most.
const WORDS_MAX: usize = 28_000;
/// A word that stands in fewer functions is not learned.
const UNITS_MIN: u32 = 4;

struct Vocabulary {
    at: HashMap<String, u32>,
    words: Vec<String>,
    rarity: Vec<f32>,
}

/// Learns the vectors of words from the `train` packages, and says how well they do alone.
pub fn words_table(epochs: usize, names: f32) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut packages = load(Split::Train)?;
    let tune = load(Split::Tune)?;
    let vocabulary = vocabulary(&packages);
    eprintln!(
        "{} packages, {} words, {:?}",
        packages.len(),
        vocabulary.words.len(),
        began.elapsed()
    );
    let pairs = pairs(&mut packages, &vocabulary, names);
    eprintln!("{} pairs, {:?}", pairs.len(), began.elapsed());
    let mut table = Table::start(&vocabulary.rarity, 7);
    let held: Vec<Held> = tune.iter().map(|it| hold(it, &vocabulary)).collect();
    eprintln!("before: {}", report(&held, &table));
    let settings = table::Settings {
        epochs,
        batch: 512,
        together: 64,
        rate: 0.004,
        scale: 20.0,
        dropout: 0.1,
        decay: 0.0,
        seed: 11,
    };
    table::learn(&mut table, &pairs, &settings, |epoch, loss, table| {
        eprintln!(
            "epoch {epoch}: loss {loss:.3}, {}, gains {:?}, {:?}",
            report(&held, table),
            table.gains,
            began.elapsed()
        );
    });
    let rows: Vec<_> = vocabulary
        .words
        .iter()
        .enumerate()
        .map(|(at, word)| {
            let rows = at * D..(at + 1) * D;
            (word.clone(), table.asked[rows.clone()].to_vec(), table.found[rows].to_vec())
        })
        .collect();
    let [name, within, path, head, body] = table.gains;
    let bytes = StaticModel::encode([name, within, path, head, 1.0, body], &rows);
    let model = StaticModel::parse(Cow::Owned(bytes.clone())).context("the table is invalid")?;
    let alone = candidates::alone(&tune, &model)?;
    eprintln!("{} bytes; as they are kept: {alone}", bytes.len());
    std::fs::write(TABLE, bytes)?;
    Ok(())
}

/// Says how well the vectors of words in the file `table` do alone.
pub fn table_alone(table: &str) -> anyhow::Result<()> {
    let table =
        StaticModel::parse(Cow::Owned(std::fs::read(table)?)).context("this is not a table")?;
    println!("{}", candidates::alone(&load(Split::Tune)?, &table)?);
    Ok(())
}

pub use candidates::{learn_networks, tune_bm25f};

/// All words that stand in enough functions, the most frequent first.
fn vocabulary(packages: &[Package]) -> Vocabulary {
    let mut holding: HashMap<String, u32> = HashMap::new();
    let mut units = 0.0_f32;
    for unit in packages.iter().flat_map(|it| &it.units) {
        units += 1.0;
        let mut seen = HashSet::new();
        for text in texts(unit) {
            words(text, |word| {
                if seen.insert(word.to_owned()) {
                    *holding.entry(word.to_owned()).or_default() += 1;
                }
            });
        }
    }
    for query in packages.iter().flat_map(|it| &it.pairs) {
        for concept in concepts(&query.text) {
            *holding.entry(concept.word).or_default() += 1;
        }
    }
    let says = |word: &str| word.len() <= 24 && !word.bytes().all(|it| it.is_ascii_digit());
    let mut all: Vec<(String, u32)> =
        holding.into_iter().filter(|it| it.1 >= UNITS_MIN && says(&it.0)).collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    all.truncate(WORDS_MAX);
    #[allow(clippy::cast_precision_loss)]
    let rarity = all.iter().map(|it| (1.0 + units / it.1 as f32).ln() / 6.0).collect();
    let words: Vec<String> = all.into_iter().map(|it| it.0).collect();
    let at = words.iter().zip(0..).map(|(word, at)| (word.clone(), at)).collect();
    Vocabulary { at, words, rarity }
}

fn texts(unit: &Unit) -> [&str; PARTS] {
    [&unit.name, &unit.within, &unit.path, &unit.head, &unit.body]
}

impl Vocabulary {
    fn query(&self, text: &str) -> Vec<(u32, f32)> {
        let mut counts = HashMap::new();
        for concept in concepts(text) {
            if let Some(at) = self.at.get(&concept.word) {
                *counts.entry(*at).or_insert(0) += 1;
            }
        }
        weighed(counts)
    }

    fn text(&self, text: &str) -> Vec<(u32, f32)> {
        let mut counts: HashMap<u32, u32> = HashMap::new();
        words(text, |word| {
            if let Some(at) = self.at.get(word)
                && (counts.len() < 512 || counts.contains_key(at))
            {
                *counts.entry(*at).or_insert(0) += 1;
            }
        });
        weighed(counts)
    }

    fn parts(&self, unit: &Unit) -> [Vec<(u32, f32)>; PARTS] {
        texts(unit).map(|text| self.text(text))
    }
}

/// What is learned from: each sentence with its function; and for `names` as many functions again
/// their names alone with the rest of them.
fn pairs(packages: &mut Vec<Package>, vocabulary: &Vocabulary, names: f32) -> Vec<Pair> {
    let mut random = random::Random(3);
    let mut pairs = Vec::new();
    for (at, package) in packages.drain(..).enumerate() {
        let number = u32::try_from(at).unwrap_or(u32::MAX);
        for query in &package.pairs {
            let parts = vocabulary.parts(&package.units[query.unit]);
            let query = vocabulary.query(&query.text);
            if query.len() >= 2 {
                pairs.push(Pair { package: number, query, parts });
            }
        }
        #[allow(clippy::cast_precision_loss)]
        let share = names * package.pairs.len() as f32 / package.units.len().max(1) as f32;
        for unit in &package.units {
            let query = vocabulary.query(&unit.name);
            if query.len() < 2 || random.unit() > share {
                continue;
            }
            let mut parts = vocabulary.parts(unit);
            parts[0].clear();
            // The head says the name again.
            parts[3].retain(|it| query.iter().all(|asked| asked.0 != it.0));
            pairs.push(Pair { package: number + 1_000_000, query, parts });
        }
    }
    pairs
}

/// A package that nothing is learned from.
struct Held {
    units: Vec<[Words; PARTS]>,
    queries: Vec<(Words, usize, f32)>,
}

fn hold(package: &Package, vocabulary: &Vocabulary) -> Held {
    Held {
        units: package.units.iter().map(|it| vocabulary.parts(it)).collect(),
        queries: package
            .queries
            .iter()
            .take(80)
            .map(|it| (vocabulary.query(&it.text), it.unit, it.overlap))
            .collect(),
    }
}

/// MRR@10 over all questions, and over those that share little with the name.
fn report(held: &[Held], table: &Table) -> String {
    let mut tally = candidates::Tally::default();
    for package in held {
        let units: Vec<Vec<f32>> = package
            .units
            .iter()
            .map(|parts| {
                let mut unit = table.unit(parts);
                table::normalise(&mut unit);
                unit
            })
            .collect();
        for (query, right, overlap) in &package.queries {
            let query = table.query(query);
            let scores: Vec<f32> = units.iter().map(|unit| table::dot(unit, &query)).collect();
            tally.add(candidates::place(&scores, *right), *overlap);
        }
    }
    tally.to_string()
}
