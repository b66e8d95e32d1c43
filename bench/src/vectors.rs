//! How fast and how truly the nearest of many vectors are found: ours, usearch, brute force.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use toolgate_search::vectors::{Precision, SlotSet, VectorQuery, VectorSnapshot, VectorStore};
use toolgate_search::{ChunkHash, VectorSpace};

use crate::child::Child;
use crate::row::{Asked, Row};
use crate::{Run, median, text};

const DIMENSIONS: usize = 384;
const COUNT: usize = 100_000;
const QUERIES: usize = 200;
const K: usize = 10;
/// The vectors are made, not of texts: about so many topics, in a space of so many directions. They
/// are easier than those of texts, on which recall is measured in `docs/design/vectors.md`.
const TOPICS: usize = 200;
const DIRECTIONS: usize = 64;

pub(crate) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    eprintln!("measuring: the nearest of 100,000 vectors");
    let folder = tempfile::tempdir()?;
    let (vectors, queries) = made();
    let mut usearch = Usearch::start(folder.path(), &vectors, &queries)?;
    let store = filled(folder.path(), &vectors)?;
    let now = store.snapshot();
    let live = SlotSet::full(now.len());
    let asked = queries
        .chunks_exact(DIMENSIONS)
        .map(|it| now.prepare_query(it))
        .collect::<Result<Vec<_>, _>>()?;

    let truth: Vec<_> = queries.chunks_exact(DIMENSIONS).map(|it| by_hand(&vectors, it)).collect();
    let ours =
        asked.iter().map(|query| found(&now, &live, query)).collect::<Result<Vec<_>, _>>()?;
    let theirs = usearch.found()?;
    let recall = |found: &[Vec<u32>]| {
        let hits = found.iter().zip(&truth);
        let hits = hits.map(|(found, truth)| found.iter().filter(|it| truth.contains(it)).count());
        hits.sum::<usize>() as f64 / (K * QUERIES) as f64
    };

    let mut our_rates = Vec::new();
    let mut usearch_rates = Vec::new();
    let mut brute_rates = Vec::new();
    for _ in 0..run.rounds {
        usearch_rates.push(QUERIES as f64 / usearch.search()?);
        let begun = Instant::now();
        for query in &asked {
            ensure!(found(&now, &live, query)?.len() == K, "too few were found");
        }
        our_rates.push(QUERIES as f64 / begun.elapsed().as_secs_f64());
        let few = QUERIES / 10;
        let begun = Instant::now();
        for query in queries.chunks_exact(DIMENSIONS).take(few) {
            ensure!(by_hand(&vectors, query).len() == K, "too few were found");
        }
        brute_rates.push(few as f64 / begun.elapsed().as_secs_f64());
    }
    let rate = median(our_rates);
    let recalled = Row::new(
        "10 nearest of 100,000 vectors of 384: recall (floor: usearch)",
        " %",
        100.0 * recall(&ours),
    );
    Ok(vec![
        recalled.floor(100.0 * recall(&theirs)).asked(Asked::Least(95.0)),
        Row::new("10 nearest of 100,000 vectors of 384, one thread (floor: usearch)", "/s", rate)
            .floor(median(usearch_rates)),
        Row::new(
            "10 nearest of 100,000 vectors of 384, one thread (floor: brute force, f32)",
            "/s",
            rate,
        )
        .floor(median(brute_rates)),
    ])
}

/// Vectors to be found and vectors to find them by, one after the other; always the same.
fn made() -> (Vec<f32>, Vec<f32>) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let directions: Vec<f32> = (0..DIRECTIONS * DIMENSIONS).map(|_| random.number()).collect();
    let topics: Vec<f32> = (0..TOPICS * DIRECTIONS).map(|_| random.number()).collect();
    let mut one = || {
        let topic = random.bits() as usize % TOPICS * DIRECTIONS;
        let mut vector: Vec<f32> = (0..DIMENSIONS).map(|_| random.number()).collect();
        for (at, direction) in directions.chunks_exact(DIMENSIONS).enumerate() {
            let much = topics[topic + at] + 0.7 * random.number();
            vector.iter_mut().zip(direction).for_each(|(it, direction)| *it += much * direction);
        }
        let length = vector.iter().map(|it| it * it).sum::<f32>().sqrt();
        vector.iter_mut().for_each(|it| *it /= length);
        vector
    };
    let vectors = (0..COUNT).flat_map(|_| one()).collect();
    (vectors, (0..QUERIES).flat_map(|_| one()).collect())
}

/// Xorshift: numbers that are the same wherever this runs.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// About normally distributed: a sum of four.
    fn number(&mut self) -> f32 {
        let bits = self.bits();
        let parts = (0..4).map(|at| (bits >> (16 * at) & 0xFFFF) as f32 / 65_535.0 - 0.5);
        parts.sum()
    }
}

/// Ours, on disk, each vector known by its number.
fn filled(folder: &Path, vectors: &[f32]) -> anyhow::Result<VectorStore> {
    let space = VectorSpace { model: "made".to_owned(), dimensions: DIMENSIONS };
    let (store, _) = VectorStore::open(&folder.join("ours"), &space, Precision::Fine)?;
    let numbered: Vec<_> = (0_u64..).zip(vectors.chunks_exact(DIMENSIONS)).collect();
    for part in numbered.chunks(5_000) {
        // Hashes lie anywhere; turned about, numbers do too.
        let part = part.iter().map(|(number, it)| (ChunkHash(number.reverse_bits()), it.to_vec()));
        store.append(&part.collect::<Vec<_>>())?;
    }
    Ok(store)
}

fn found(now: &VectorSnapshot, live: &SlotSet, query: &VectorQuery) -> anyhow::Result<Vec<u32>> {
    let found = now.nearest(query, live, K, &|| true)?;
    let numbers = found.into_iter().filter_map(|(slot, _)| now.hash_at(slot));
    Ok(numbers.map(|hash| hash.0.reverse_bits() as u32).collect())
}

/// The nearest by comparing with each.
fn by_hand(vectors: &[f32], query: &[f32]) -> BTreeSet<u32> {
    let mut all: Vec<(f32, u32)> =
        vectors.chunks_exact(DIMENSIONS).map(|it| dot(it, query)).zip(0..).collect();
    all.select_nth_unstable_by(K, |(a, _), (b, _)| b.total_cmp(a));
    all.into_iter().take(K).map(|(_, number)| number).collect()
}

/// In sixteen sums, so that the compiler may do them at once.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    for (a, b) in a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0) {
        for at in 0..16 {
            sums[at] += a[at] * b[at];
        }
    }
    sums.iter().sum()
}

/// A process that searches with usearch.
struct Usearch {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    answers: PathBuf,
}

impl Usearch {
    fn start(folder: &Path, vectors: &[f32], queries: &[f32]) -> anyhow::Result<Self> {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no checkout")?;
        let python = checkout.join(".tools/peers/bin/python");
        ensure!(python.exists(), "usearch is not installed; run `cargo xtask bench`");
        let files = ["vectors", "queries", "answers"].map(|name| folder.join(name));
        for (file, numbers) in files.iter().zip([vectors, queries]) {
            std::fs::write(
                file,
                numbers.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>(),
            )?;
        }
        let script = text(&checkout.join("bench/peers/usearch_floor.py"));
        let [vectors, queries, answers] = &files.clone().map(|file| text(&file));
        let dimensions = DIMENSIONS.to_string();
        let k = K.to_string();
        let words = [&script, vectors, queries, &dimensions, &k, answers].map(String::as_str);
        let mut child = Child::stdio(&python, &words)?;
        let output = child.output.take().context("no output")?;
        let [_, _, answers] = files;
        let mut started = Self { child, lines: BufReader::new(output).lines(), answers };
        started.line()?;
        Ok(started)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        Ok(self.lines.next().context("usearch ended")??)
    }

    fn found(&self) -> anyhow::Result<Vec<Vec<u32>>> {
        let bytes = std::fs::read(&self.answers)?;
        let numbers: Vec<u32> =
            bytes.as_chunks::<4>().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
        Ok(numbers.chunks_exact(K).map(<[u32]>::to_vec).collect())
    }

    /// How long all queries take.
    fn search(&mut self) -> anyhow::Result<f64> {
        self.child.input.as_mut().context("no input")?.write_all(b"again\n")?;
        Ok(self.line()?.parse()?)
    }
}
