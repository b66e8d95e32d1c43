//! Trains the built-in models of search: word vectors, and the network of the reranker.

mod candidates;
mod network;
pub(crate) mod random;
mod table;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

use anyhow::Context;
use toolgate_chunks::words::{concepts, words};
use toolgate_search::static_model::StaticEmbeddingModel;

use crate::set::{EvalPackage, PackageFunction, PackageSplit, load};
use table::{D, PARTS, TrainedWordTable, TrainingPair, WeightedWordIds, weigh};

/// Path of the file of word vectors in the checkout.
const TABLE: &str = "crates/search/src/static_model.bin";

/// Largest number of words in the table of word vectors.
const WORDS_MAX: usize = 28_000;
/// Minimum number of functions that contain a word. Rarer words are left out of the table.
const UNITS_MIN: u32 = 4;

/// Words of the table of word vectors, their numbers and their rarity.
struct WordTableVocabulary {
    numbers: HashMap<String, u32>,
    words: Vec<String>,
    rarity: Vec<f32>,
}

/// Trains the word vectors on the packages of the split `train`, writes them, and prints how well
/// they rank alone.
pub fn train_word_table(epochs: usize, names: f32) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut packages = load(PackageSplit::Train)?;
    let tune = load(PackageSplit::Tune)?;
    let vocabulary = build_vocabulary(&packages);
    eprintln!(
        "{} packages, {} words, {:?}",
        packages.len(),
        vocabulary.words.len(),
        started.elapsed()
    );
    let pairs = build_pairs(&mut packages, &vocabulary, names);
    eprintln!("{} pairs, {:?}", pairs.len(), started.elapsed());
    let mut table = TrainedWordTable::start(&vocabulary.rarity, 7);
    let held_out_packages: Vec<HeldOutPackage> =
        tune.iter().map(|it| prepare_held_out(it, &vocabulary)).collect();
    eprintln!("before: {}", describe_quality(&held_out_packages, &table));
    let settings = table::TableTrainingSettings {
        epochs,
        batch: 512,
        group_size: 64,
        rate: 0.004,
        scale: 20.0,
        dropout: 0.1,
        decay: 0.0,
        seed: 11,
    };
    table::train(&mut table, &pairs, &settings, |epoch, loss, table| {
        eprintln!(
            "epoch {epoch}: loss {loss:.3}, {}, gains {:?}, {:?}",
            describe_quality(&held_out_packages, table),
            table.gains,
            started.elapsed()
        );
    });
    let rows: Vec<_> = vocabulary
        .words
        .iter()
        .enumerate()
        .map(|(index, word)| {
            let rows = index * D..(index + 1) * D;
            (word.clone(), table.query_rows[rows.clone()].to_vec(), table.code_rows[rows].to_vec())
        })
        .collect();
    let [name, within, path, head, body] = table.gains;
    let bytes = StaticEmbeddingModel::encode([name, within, path, head, 1.0, body], &rows);
    let model =
        StaticEmbeddingModel::parse(Cow::Owned(bytes.clone())).context("the table is invalid")?;
    let quality = candidates::evaluate_alone(&tune, &model)?;
    eprintln!("{} bytes; encoded: {quality}", bytes.len());
    std::fs::write(TABLE, bytes)?;
    Ok(())
}

/// Measures how well the word vectors in the file `table` rank alone, and prints the result.
pub fn print_table_quality(table: &str) -> anyhow::Result<()> {
    let table = StaticEmbeddingModel::parse(Cow::Owned(std::fs::read(table)?))
        .context("this is not a table")?;
    println!("{}", candidates::evaluate_alone(&load(PackageSplit::Tune)?, &table)?);
    Ok(())
}

pub use candidates::{print_bm25f_quality, train_networks};

/// Returns the words that occur in at least [`UNITS_MIN`] functions, the most frequent first.
fn build_vocabulary(packages: &[EvalPackage]) -> WordTableVocabulary {
    let mut containing: HashMap<String, u32> = HashMap::new();
    let mut units = 0.0_f32;
    for unit in packages.iter().flat_map(|it| &it.units) {
        units += 1.0;
        let mut seen = HashSet::new();
        for text in texts(unit) {
            words(text, |word| {
                if seen.insert(word.to_owned()) {
                    *containing.entry(word.to_owned()).or_default() += 1;
                }
            });
        }
    }
    for query in packages.iter().flat_map(|it| &it.pairs) {
        for concept in concepts(&query.text) {
            *containing.entry(concept.word).or_default() += 1;
        }
    }
    let is_eligible = |word: &str| word.len() <= 24 && !word.bytes().all(|it| it.is_ascii_digit());
    let mut all: Vec<(String, u32)> =
        containing.into_iter().filter(|it| it.1 >= UNITS_MIN && is_eligible(&it.0)).collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    all.truncate(WORDS_MAX);
    #[allow(clippy::cast_precision_loss)]
    let rarity = all.iter().map(|it| (1.0 + units / it.1 as f32).ln() / 6.0).collect();
    let words: Vec<String> = all.into_iter().map(|it| it.0).collect();
    let numbers = words.iter().zip(0..).map(|(word, number)| (word.clone(), number)).collect();
    WordTableVocabulary { numbers, words, rarity }
}

/// Returns the parts of a function on which word vectors are trained.
fn texts(unit: &PackageFunction) -> [&str; PARTS] {
    [&unit.name, &unit.within, &unit.path, &unit.head, &unit.body]
}

impl WordTableVocabulary {
    fn query(&self, text: &str) -> Vec<(u32, f32)> {
        let mut counts = HashMap::new();
        for concept in concepts(text) {
            if let Some(number) = self.numbers.get(&concept.word) {
                *counts.entry(*number).or_insert(0) += 1;
            }
        }
        weigh(counts)
    }

    fn text(&self, text: &str) -> Vec<(u32, f32)> {
        let mut counts: HashMap<u32, u32> = HashMap::new();
        words(text, |word| {
            if let Some(number) = self.numbers.get(word)
                && (counts.len() < 512 || counts.contains_key(number))
            {
                *counts.entry(*number).or_insert(0) += 1;
            }
        });
        weigh(counts)
    }

    fn parts(&self, unit: &PackageFunction) -> [Vec<(u32, f32)>; PARTS] {
        texts(unit).map(|text| self.text(text))
    }
}

/// Returns the training pairs: each sentence with its function, and the names of random functions
/// with the rest of these functions. `names` is the number of pairs by name per pair by sentence.
fn build_pairs(
    packages: &mut Vec<EvalPackage>,
    vocabulary: &WordTableVocabulary,
    names: f32,
) -> Vec<TrainingPair> {
    let mut random = random::SplitMix64(3);
    let mut pairs = Vec::new();
    for (index, package) in packages.drain(..).enumerate() {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        for query in &package.pairs {
            let parts = vocabulary.parts(&package.units[query.unit]);
            let query = vocabulary.query(&query.text);
            if query.len() >= 2 {
                pairs.push(TrainingPair { package: number, query, parts });
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
            // The head contains the name, too.
            parts[3].retain(|it| query.iter().all(|name_word| name_word.0 != it.0));
            pairs.push(TrainingPair { package: number + 1_000_000, query, parts });
        }
    }
    pairs
}

/// Package that is left out of the training, to measure the quality of the vectors.
struct HeldOutPackage {
    units: Vec<[WeightedWordIds; PARTS]>,
    queries: Vec<(WeightedWordIds, usize, f32)>,
}

/// Returns the functions and questions of a package, with their words as numbers.
fn prepare_held_out(package: &EvalPackage, vocabulary: &WordTableVocabulary) -> HeldOutPackage {
    HeldOutPackage {
        units: package.units.iter().map(|it| vocabulary.parts(it)).collect(),
        queries: package
            .queries
            .iter()
            .take(80)
            .map(|it| (vocabulary.query(&it.text), it.unit, it.overlap))
            .collect(),
    }
}

/// Returns a text with MRR@10 over all questions, and over those with low overlap with the
/// function's name.
fn describe_quality(packages: &[HeldOutPackage], table: &TrainedWordTable) -> String {
    let mut tally = candidates::ReciprocalRankSum::default();
    for package in packages {
        let units: Vec<Vec<f32>> = package
            .units
            .iter()
            .map(|parts| {
                let mut unit = table.unit(parts);
                table::normalize(&mut unit);
                unit
            })
            .collect();
        for (query, right, overlap) in &package.queries {
            let query = table.query(query);
            let scores: Vec<f32> = units.iter().map(|unit| table::dot(unit, &query)).collect();
            tally.add(candidates::count_above(&scores, *right), *overlap);
        }
    }
    tally.to_string()
}
