//! Trains the network of the reranker on the candidates that search finds in a package for its
//! questions.

use std::collections::HashMap;
use std::fmt;

use toolgate_chunks::ChunkKind;
use toolgate_chunks::words::words;
use toolgate_search::embedder::embedding_text;
use toolgate_search::rank::{
    ChunkCandidate, FIELDS, IndexStatistics, WeightedQuery, bm25f, features,
};
use toolgate_search::static_model::StaticEmbeddingModel;
use toolgate_search::vectors::{VectorPrecision, VectorStore, VectorsError};
use toolgate_search::{ChunkHash, ChunkSummary};

use super::network::{self, QuestionCandidateList};
use crate::set::{EvalPackage, PackageFunction, PackageSplit, load};
use crate::vectors::CachedModelVectors;

/// Number of candidates that words find, and that vectors find in addition.
const CANDIDATES_EACH: usize = 100;
/// Overlap of a question with the name of its function below which the overlap counts as low, from
/// 0 to 1.
const OVERLAP_LOW: f32 = 0.34;

/// Sums of the reciprocal ranks of right answers: over all questions, and over those with low
/// overlap.
#[derive(Default, Clone)]
pub(super) struct ReciprocalRankSum {
    all: f64,
    count: f64,
    low: f64,
    low_count: f64,
}

impl ReciprocalRankSum {
    /// Adds a question whose right answer has `above` candidates before it. Only the first ten
    /// ranks add more than 0.
    pub(super) fn add(&mut self, above: usize, overlap: f32) {
        #[allow(clippy::cast_precision_loss)]
        let reciprocal = if above < 10 { 1.0 / (above as f64 + 1.0) } else { 0.0 };
        self.all += reciprocal;
        self.count += 1.0;
        if overlap < OVERLAP_LOW {
            self.low += reciprocal;
            self.low_count += 1.0;
        }
    }

    pub(super) fn mrr(&self) -> f64 {
        self.all / self.count.max(1.0)
    }
}

impl fmt::Display for ReciprocalRankSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = self.low / self.low_count.max(1.0);
        write!(
            f,
            "MRR@10 {:.4} (n {}), low {low:.4} (n {})",
            self.mrr(),
            self.count,
            self.low_count
        )
    }
}

/// Returns the number of candidates that come before the candidate `right`, by their scores.
pub(super) fn count_above(scores: &[f32], right: usize) -> usize {
    let own = scores[right];
    scores
        .iter()
        .enumerate()
        .filter(|(index, score)| **score > own || (**score == own && *index < right))
        .count()
}

/// Returns a text about how well the word vectors `model` rank without other signals.
pub(super) fn evaluate_alone(
    packages: &[EvalPackage],
    model: &StaticEmbeddingModel,
) -> anyhow::Result<String> {
    let mut tally = ReciprocalRankSum::default();
    for package in packages {
        let statics = StaticVectors::new(package, model)?;
        for query in package.queries.iter().take(80) {
            let scores = statics.cosines(model.embed_query(&query.text).as_deref())?;
            tally.add(count_above(&scores, query.unit), query.overlap);
        }
    }
    Ok(tally.to_string())
}

/// Static vectors of a package's functions, rounded as in a search index.
struct StaticVectors {
    store: VectorStore,
    units: usize,
}

impl StaticVectors {
    fn new(package: &EvalPackage, model: &StaticEmbeddingModel) -> Result<Self, VectorsError> {
        let store = VectorStore::in_memory(&model.space(), VectorPrecision::Coarse)?;
        let vectors = package.units.iter().map(|it| model.embed_chunk(&texts(it)));
        let entries = (0..).map(ChunkHash).zip(vectors);
        let entries: Vec<_> = entries.filter_map(|(index, it)| Some((index, it?))).collect();
        store.append(&entries)?;
        Ok(Self { store, units: package.units.len() })
    }

    /// Returns the cosine of each function with the vector `query`, or zeros without a query.
    fn cosines(&self, query: Option<&[f32]>) -> Result<Vec<f32>, VectorsError> {
        let snapshot = self.store.snapshot();
        let Some(query) = query.map(|it| snapshot.prepare_query(it)).transpose()? else {
            return Ok(vec![0.0; self.units]);
        };
        let cosine = |index| {
            snapshot.slot_of(ChunkHash(index)).and_then(|slot| snapshot.cosine(&query, slot))
        };
        Ok((0..self.units as u64).map(|index| cosine(index).unwrap_or_default()).collect())
    }
}

/// Returns the texts of the index fields of a function.
fn texts(unit: &PackageFunction) -> [&str; FIELDS] {
    [&unit.name, &unit.within, &unit.path, &unit.head, "", &unit.body]
}

/// Package whose words are counted as in a search index.
struct WordCountedPackage {
    /// Functions that contain a word, each with the number of occurrences in each field, by word.
    occurrences: HashMap<String, Vec<(u32, [u16; FIELDS])>>,
    lengths: Vec<[u32; FIELDS]>,
    averages: IndexStatistics,
    statics: StaticVectors,
    summaries: Vec<ChunkSummary>,
}

impl WordCountedPackage {
    #[allow(clippy::cast_precision_loss)]
    fn new(package: &EvalPackage, model: &StaticEmbeddingModel) -> Result<Self, VectorsError> {
        let mut occurrences: HashMap<String, Vec<(u32, [u16; FIELDS])>> = HashMap::new();
        let mut all_lengths = Vec::new();
        let mut averages =
            IndexStatistics { chunks: package.units.len() as u64, lengths: [0.0; FIELDS] };
        for (at, unit) in package.units.iter().enumerate() {
            let mut counts: HashMap<String, [u16; FIELDS]> = HashMap::new();
            let mut lengths = [0; FIELDS];
            for (field, text) in texts(unit).into_iter().enumerate() {
                words(text, |word| {
                    lengths[field] += 1;
                    counts.entry(word.to_owned()).or_default()[field] += 1;
                });
                averages.lengths[field] += lengths[field] as f32 / package.units.len() as f32;
            }
            all_lengths.push(lengths);
            for (word, counts) in counts {
                occurrences.entry(word).or_default().push((u32::try_from(at).unwrap_or(0), counts));
            }
        }
        Ok(Self {
            occurrences,
            lengths: all_lengths,
            averages,
            statics: StaticVectors::new(package, model)?,
            summaries: package.units.iter().map(summary_of).collect(),
        })
    }

    fn question(&self, text: &str) -> WeightedQuery {
        WeightedQuery::new(text, self.averages.chunks, |word| {
            self.occurrences.get(word).map_or(0, |it| it.len() as u64)
        })
    }

    /// Returns the functions that contain words of `question`, each with the counts of each word by
    /// field.
    fn counts(&self, question: &WeightedQuery) -> HashMap<u32, Vec<[u16; FIELDS]>> {
        let mut found: HashMap<u32, Vec<[u16; FIELDS]>> = HashMap::new();
        let concepts = question.concepts.len();
        for (at, concept) in question.concepts.iter().enumerate() {
            for (unit, counts) in self.occurrences.get(&concept.word).into_iter().flatten() {
                found.entry(*unit).or_insert_with(|| vec![[0; FIELDS]; concepts])[at] = *counts;
            }
        }
        found
    }

    /// Returns the candidates that the search index would find: the best functions by words, and
    /// the best by vectors.
    fn candidates(
        &self,
        question: &WeightedQuery,
        cosines: &[f32],
        model: Option<&[f32]>,
    ) -> Vec<ChunkCandidate> {
        let counts = self.counts(question);
        let lexical: Vec<(f32, u32)> = counts
            .iter()
            .map(|(index, counts)| {
                (
                    bm25f::score(question, &self.averages, counts, &self.lengths[*index as usize]),
                    *index,
                )
            })
            .collect();
        let by_cosine = cosines.iter().copied().zip(0_u32..).collect();
        let by_model_cosine = model.map(|it| it.iter().copied().zip(0_u32..).collect());
        let mut chosen: Vec<u32> = best(lexical);
        chosen.extend(best(by_cosine));
        chosen.extend(by_model_cosine.map(best).unwrap_or_default());
        chosen.sort_unstable();
        chosen.dedup();
        let no_counts = vec![[0; FIELDS]; question.concepts.len()];
        chosen
            .into_iter()
            .map(|index| ChunkCandidate {
                key: u64::from(index),
                counts: counts.get(&index).unwrap_or(&no_counts).clone(),
                lengths: self.lengths[index as usize],
                static_cosine: cosines[index as usize],
                model_cosine: model.map(|it| it[index as usize]),
                summary: self.summaries[index as usize].clone(),
            })
            .collect()
    }
}

/// Returns the [`CANDIDATES_EACH`] functions with the highest scores.
fn best(mut all: Vec<(f32, u32)>) -> Vec<u32> {
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.truncate(CANDIDATES_EACH);
    all.into_iter().map(|it| it.1).collect()
}

/// Returns the summary of a function that the search index would store.
fn summary_of(unit: &PackageFunction) -> ChunkSummary {
    ChunkSummary {
        path: unit.path.clone(),
        first: 1,
        last: 1,
        kind: ChunkKind::Function,
        names: vec![unit.name.clone()],
        within: vec![unit.within.clone()],
        head: unit.head.clone(),
        lang: None,
        tags: Vec::new(),
        etag: String::new(),
        commit: None,
    }
}

/// Measures how well BM25F ranks with its current weights, and prints the result.
pub fn print_bm25f_quality() -> anyhow::Result<()> {
    let mut tally = ReciprocalRankSum::default();
    for package in load(PackageSplit::Tune)? {
        let counted = WordCountedPackage::new(&package, StaticEmbeddingModel::built_in())?;
        for query in package.queries.iter().take(80) {
            let question = counted.question(&query.text);
            let mut scores = vec![0.0; package.units.len()];
            for (index, counts) in counted.counts(&question) {
                let index = index as usize;
                scores[index] =
                    bm25f::score(&question, &counted.averages, &counts, &counted.lengths[index]);
            }
            tally.add(count_above(&scores, query.unit), query.overlap);
        }
    }
    println!("BM25F: {tally}");
    Ok(())
}

/// Path of the folder with the ranking networks in the checkout.
const NETWORKS: &str = "crates/search/src/rank";

/// Candidates of one question, its overlap with the function's name, and whether the right answer
/// is among the candidates.
struct QuestionCandidates {
    list: QuestionCandidateList,
    overlap: f32,
    found: bool,
}

/// Trains the network of the reranker on the packages of the split `tune`. Cross-validation in four
/// parts chooses the best of three sizes. If `model` is set, trains the network for model vectors,
/// on the smallest packages that have at most `model` functions together.
pub fn train_networks(per_package: usize, model: Option<usize>) -> anyhow::Result<()> {
    let mut packages = load(PackageSplit::Tune)?;
    if let Some(units) = model {
        packages.sort_by_key(|it| it.units.len());
        let mut remaining = units;
        packages.retain(|it| {
            let fits = it.units.len() <= remaining && it.queries.len() >= 20;
            remaining -= if fits { it.units.len() } else { 0 };
            fits
        });
    }
    let mut vectors = model.map(|_| CachedModelVectors::open(TOKENS)).transpose()?;
    let mut lists: Vec<Vec<QuestionCandidates>> = Vec::new();
    for package in &packages {
        lists.push(collect_candidates(package, per_package, vectors.as_mut())?);
    }
    let found = lists.iter().flatten().filter(|it| it.found).count();
    let all = lists.iter().flatten().count();
    eprintln!(
        "{} packages, {all} questions, the right answer is among the candidates for {found}",
        packages.len()
    );
    let mut best = (0.0, 0);
    for hidden in [0, 16, 32] {
        let mut tally = ReciprocalRankSum::default();
        for fold in 0..4 {
            let training = lists.iter().enumerate().filter(|(index, _)| index % 4 != fold);
            let training = training.flat_map(|(_, it)| it).filter(|it| it.found).map(|it| &it.list);
            let training: Vec<&QuestionCandidateList> = training.collect();
            let network = network::train(&training, features::FEATURES, &settings(hidden));
            let test = lists.iter().enumerate().filter(|(index, _)| index % 4 == fold);
            for QuestionCandidates { list, overlap, found } in test.flat_map(|(_, it)| it) {
                let scores: Vec<f32> = list.features.iter().map(|it| network.score(it)).collect();
                tally.add(if *found { count_above(&scores, list.right) } else { 99 }, *overlap);
            }
        }
        println!("network of {hidden}: {tally}");
        if tally.mrr() > best.0 {
            best = (tally.mrr(), hidden);
        }
    }
    let all: Vec<&QuestionCandidateList> =
        lists.iter().flatten().filter(|it| it.found).map(|it| &it.list).collect();
    let network = network::train(&all, features::FEATURES, &settings(best.1));
    println!("calibration {:?}", network.calibration);
    let name = if model.is_some() { "model.net" } else { "words.net" };
    std::fs::write(format!("{NETWORKS}/{name}"), network.to_bytes())?;
    Ok(())
}

/// Number of tokens of a text that the sentence model reads.
const TOKENS: usize = 128;

/// Returns the candidates for each of the first `per_package` questions of a package.
fn collect_candidates(
    package: &EvalPackage,
    per_package: usize,
    vectors: Option<&mut CachedModelVectors>,
) -> anyhow::Result<Vec<QuestionCandidates>> {
    let table = StaticEmbeddingModel::built_in();
    let counted = WordCountedPackage::new(package, table)?;
    let queries = &package.queries[..per_package.min(package.queries.len())];
    let model_vectors = match vectors {
        Some(vectors) => {
            let unit_texts: Vec<String> =
                package.units.iter().map(|it| embedding_text(&texts(it))).collect();
            let units = vectors.embed(&unit_texts)?;
            let question_texts: Vec<&str> = queries.iter().map(|it| it.text.as_str()).collect();
            Some((units, vectors.embed(&question_texts)?))
        }
        None => None,
    };
    let mut all = Vec::new();
    for (index, query) in queries.iter().enumerate() {
        let question = counted.question(&query.text);
        let cosines = counted.statics.cosines(table.embed_query(&query.text).as_deref())?;
        let model: Option<Vec<f32>> = model_vectors.as_ref().map(|(units, question_vectors)| {
            let dot = |unit: &Vec<f32>| {
                unit.iter().zip(&question_vectors[index]).map(|(a, b)| a * b).sum()
            };
            units.iter().map(dot).collect()
        });
        let candidates = counted.candidates(&question, &cosines, model.as_deref());
        let extracted =
            features::extract_features(table, &question, &counted.averages, &candidates);
        let right = candidates.iter().position(|it| it.key == query.unit as u64);
        let features = extracted.iter().map(|it| it.to_vec()).collect();
        let list =
            QuestionCandidateList { features, right: right.unwrap_or(usize::MAX), weight: 1.0 };
        all.push(QuestionCandidates { list, overlap: query.overlap, found: right.is_some() });
    }
    Ok(all)
}

/// Returns the training settings of a network with `hidden` neurons in its hidden layer.
fn settings(hidden: usize) -> network::NetworkTrainingSettings {
    network::NetworkTrainingSettings { hidden, epochs: 12, rate: 0.003, decay: 0.001, seed: 5 }
}
