//! The functions of a package as candidates for its questions, each looked at.

use std::collections::HashMap;
use std::fmt;

use toolgate_chunks::ChunkKind;
use toolgate_chunks::words::words;
use toolgate_search::embedder::embedding_text;
use toolgate_search::rank::{Candidate, FIELDS, IndexStatistics, WeighedQuestion, bm25f, features};
use toolgate_search::static_model::StaticModel;
use toolgate_search::vectors::{Precision, VectorStore, VectorsError};
use toolgate_search::{ChunkHash, ChunkSummary};

use super::network::{self, List};
use crate::set::{Package, Split, Unit, load};
use crate::vectors::Vectors;

/// How many candidates each way finds.
const EACH: usize = 100;
/// What shares less of its words with the name of its function has little in common with it.
const LOW: f32 = 0.34;

/// Reciprocal ranks, added up.
#[derive(Default, Clone)]
pub(super) struct Tally {
    all: f64,
    count: f64,
    low: f64,
    low_count: f64,
}

impl Tally {
    pub(super) fn add(&mut self, place: usize, overlap: f32) {
        #[allow(clippy::cast_precision_loss)]
        let worth = if place < 10 { 1.0 / (place as f64 + 1.0) } else { 0.0 };
        self.all += worth;
        self.count += 1.0;
        if overlap < LOW {
            self.low += worth;
            self.low_count += 1.0;
        }
    }

    pub(super) fn mrr(&self) -> f64 {
        self.all / self.count.max(1.0)
    }
}

impl fmt::Display for Tally {
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

/// How many stand before the right one.
pub(super) fn place(scores: &[f32], right: usize) -> usize {
    let own = scores[right];
    scores.iter().enumerate().filter(|(at, it)| **it > own || (**it == own && *at < right)).count()
}

/// How well the vectors of words do alone.
pub(super) fn alone(packages: &[Package], model: &StaticModel) -> anyhow::Result<String> {
    let mut tally = Tally::default();
    for package in packages {
        let statics = Statics::of(package, model)?;
        for query in package.queries.iter().take(80) {
            let scores = statics.near(model.embed_query(&query.text).as_deref())?;
            tally.add(place(&scores, query.unit), query.overlap);
        }
    }
    Ok(tally.to_string())
}

/// The vectors of a package's functions by words, as an index keeps them.
struct Statics {
    kept: VectorStore,
    units: usize,
}

impl Statics {
    fn of(package: &Package, model: &StaticModel) -> Result<Self, VectorsError> {
        let kept = VectorStore::in_memory(&model.space(), Precision::Coarse)?;
        let vectors = package.units.iter().map(|it| model.embed_chunk(&texts(it)));
        let known = (0..).map(ChunkHash).zip(vectors);
        let known: Vec<_> = known.filter_map(|(at, it)| Some((at, it?))).collect();
        kept.append(&known)?;
        Ok(Self { kept, units: package.units.len() })
    }

    /// Of each function how near it is to `query`.
    fn near(&self, query: Option<&[f32]>) -> Result<Vec<f32>, VectorsError> {
        let now = self.kept.snapshot();
        let Some(query) = query.map(|it| now.prepare_query(it)).transpose()? else {
            return Ok(vec![0.0; self.units]);
        };
        let cosine = |at| now.slot_of(ChunkHash(at)).and_then(|slot| now.cosine(&query, slot));
        Ok((0..self.units as u64).map(|at| cosine(at).unwrap_or_default()).collect())
    }
}

fn texts(unit: &Unit) -> [&str; FIELDS] {
    [&unit.name, &unit.within, &unit.path, &unit.head, "", &unit.body]
}

/// A package whose words are counted.
struct Counted {
    /// Of each word in which units it stands, how often in each field.
    holding: HashMap<String, Vec<(u32, [u16; FIELDS])>>,
    lengths: Vec<[u32; FIELDS]>,
    averages: IndexStatistics,
    statics: Statics,
    shown: Vec<ChunkSummary>,
}

impl Counted {
    #[allow(clippy::cast_precision_loss)]
    fn of(package: &Package, model: &StaticModel) -> Result<Self, VectorsError> {
        let mut holding: HashMap<String, Vec<(u32, [u16; FIELDS])>> = HashMap::new();
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
                holding.entry(word).or_default().push((u32::try_from(at).unwrap_or(0), counts));
            }
        }
        Ok(Self {
            holding,
            lengths: all_lengths,
            averages,
            statics: Statics::of(package, model)?,
            shown: package.units.iter().map(shown).collect(),
        })
    }

    fn question(&self, text: &str) -> WeighedQuestion {
        WeighedQuestion::new(text, self.averages.chunks, |word| {
            self.holding.get(word).map_or(0, |it| it.len() as u64)
        })
    }

    /// What each unit has of the question's words.
    fn counts(&self, question: &WeighedQuestion) -> HashMap<u32, Vec<[u16; FIELDS]>> {
        let mut found: HashMap<u32, Vec<[u16; FIELDS]>> = HashMap::new();
        let concepts = question.concepts.len();
        for (at, concept) in question.concepts.iter().enumerate() {
            for (unit, counts) in self.holding.get(&concept.word).into_iter().flatten() {
                found.entry(*unit).or_insert_with(|| vec![[0; FIELDS]; concepts])[at] = *counts;
            }
        }
        found
    }

    /// As the index finds them: the best by words, and the best by vectors.
    fn candidates(
        &self,
        question: &WeighedQuestion,
        near: &[f32],
        model: Option<&[f32]>,
    ) -> Vec<Candidate> {
        let counts = self.counts(question);
        let lexical: Vec<(f32, u32)> = counts
            .iter()
            .map(|(at, counts)| {
                (bm25f::score(question, &self.averages, counts, &self.lengths[*at as usize]), *at)
            })
            .collect();
        let by_near = near.iter().copied().zip(0_u32..).collect();
        let by_model = model.map(|it| it.iter().copied().zip(0_u32..).collect());
        let mut taken: Vec<u32> = best(lexical);
        taken.extend(best(by_near));
        taken.extend(by_model.map(best).unwrap_or_default());
        taken.sort_unstable();
        taken.dedup();
        let none = vec![[0; FIELDS]; question.concepts.len()];
        taken
            .into_iter()
            .map(|at| Candidate {
                key: u64::from(at),
                counts: counts.get(&at).unwrap_or(&none).clone(),
                lengths: self.lengths[at as usize],
                static_cosine: near[at as usize],
                model_cosine: model.map(|it| it[at as usize]),
                summary: self.shown[at as usize].clone(),
            })
            .collect()
    }
}

fn best(mut all: Vec<(f32, u32)>) -> Vec<u32> {
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.truncate(EACH);
    all.into_iter().map(|it| it.1).collect()
}

fn shown(unit: &Unit) -> ChunkSummary {
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

/// Says how well BM25F does with the weights as they are.
pub fn tune_bm25f() -> anyhow::Result<()> {
    let mut tally = Tally::default();
    for package in load(Split::Tune)? {
        let counted = Counted::of(&package, StaticModel::built_in())?;
        for query in package.queries.iter().take(80) {
            let question = counted.question(&query.text);
            let mut scores = vec![0.0; package.units.len()];
            for (at, counts) in counted.counts(&question) {
                let at = at as usize;
                scores[at] =
                    bm25f::score(&question, &counted.averages, &counts, &counted.lengths[at]);
            }
            tally.add(place(&scores, query.unit), query.overlap);
        }
    }
    println!("BM25F: {tally}");
    Ok(())
}

/// Where the networks are kept.
const NETWORKS: &str = "crates/search/src/rank";

/// The candidates of one question, what it shares with the name, and whether the right one is there.
struct Looked {
    list: List,
    overlap: f32,
    found: bool,
}

/// Learns the network of the closer look on the `tune` packages; of four parts each says how well
/// what the others taught holds for it, and of three sizes of network the best is kept. With a `model`, on the smaller packages alone, as many as
/// have so many functions together.
pub fn learn_networks(per_package: usize, model: Option<usize>) -> anyhow::Result<()> {
    let mut packages = load(Split::Tune)?;
    if let Some(units) = model {
        packages.sort_by_key(|it| it.units.len());
        let mut left = units;
        packages.retain(|it| {
            let fits = it.units.len() <= left && it.queries.len() >= 20;
            left -= if fits { it.units.len() } else { 0 };
            fits
        });
    }
    let mut vectors = model.map(|_| Vectors::open(TOKENS)).transpose()?;
    let mut lists: Vec<Vec<Looked>> = Vec::new();
    for package in &packages {
        lists.push(looked(package, per_package, vectors.as_mut())?);
    }
    let found = lists.iter().flatten().filter(|it| it.found).count();
    let all = lists.iter().flatten().count();
    eprintln!(
        "{} packages, {all} questions, the right answer is among the candidates for {found}",
        packages.len()
    );
    let mut best = (0.0, 0);
    for hidden in [0, 16, 32] {
        let mut tally = Tally::default();
        for fold in 0..4 {
            let learned = lists.iter().enumerate().filter(|(at, _)| at % 4 != fold);
            let learned = learned.flat_map(|(_, it)| it).filter(|it| it.found).map(|it| &it.list);
            let learned: Vec<&List> = learned.collect();
            let network = network::learn(&learned, features::FEATURES, &settings(hidden));
            let held = lists.iter().enumerate().filter(|(at, _)| at % 4 == fold);
            for Looked { list, overlap, found } in held.flat_map(|(_, it)| it) {
                let scores: Vec<f32> = list.features.iter().map(|it| network.score(it)).collect();
                tally.add(if *found { place(&scores, list.right) } else { 99 }, *overlap);
            }
        }
        println!("network of {hidden}: {tally}");
        if tally.mrr() > best.0 {
            best = (tally.mrr(), hidden);
        }
    }
    let all: Vec<&List> = lists.iter().flatten().filter(|it| it.found).map(|it| &it.list).collect();
    let network = network::learn(&all, features::FEATURES, &settings(best.1));
    println!("likely {:?}", network.calibration);
    let name = if model.is_some() { "model.net" } else { "words.net" };
    std::fs::write(format!("{NETWORKS}/{name}"), network.to_bytes())?;
    Ok(())
}

/// How many tokens of a text the model reads.
const TOKENS: usize = 128;

fn looked(
    package: &Package,
    per_package: usize,
    vectors: Option<&mut Vectors>,
) -> anyhow::Result<Vec<Looked>> {
    let table = StaticModel::built_in();
    let counted = Counted::of(package, table)?;
    let queries = &package.queries[..per_package.min(package.queries.len())];
    let by_model = match vectors {
        Some(vectors) => {
            let told: Vec<String> =
                package.units.iter().map(|it| embedding_text(&texts(it))).collect();
            let units = vectors.of(&told)?;
            let asked: Vec<&str> = queries.iter().map(|it| it.text.as_str()).collect();
            Some((units, vectors.of(&asked)?))
        }
        None => None,
    };
    let mut all = Vec::new();
    for (at, query) in queries.iter().enumerate() {
        let question = counted.question(&query.text);
        let near = counted.statics.near(table.embed_query(&query.text).as_deref())?;
        let model: Option<Vec<f32>> = by_model.as_ref().map(|(units, asked)| {
            let dot = |unit: &Vec<f32>| unit.iter().zip(&asked[at]).map(|(a, b)| a * b).sum();
            units.iter().map(dot).collect()
        });
        let candidates = counted.candidates(&question, &near, model.as_deref());
        let seen = features::extract_features(table, &question, &counted.averages, &candidates);
        let right = candidates.iter().position(|it| it.key == query.unit as u64);
        let features = seen.iter().map(|it| it.to_vec()).collect();
        let list = List { features, right: right.unwrap_or(usize::MAX), weight: 1.0 };
        all.push(Looked { list, overlap: query.overlap, found: right.is_some() });
    }
    Ok(all)
}

fn settings(hidden: usize) -> network::Settings {
    network::Settings { hidden, epochs: 12, rate: 0.003, decay: 0.001, seed: 5 }
}
