//! Measures the speed and recall of vector search: toolgate's, that of usearch, and brute force.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use toolgate_search::vectors::{
    QuantizedQueryVector, VectorPrecision, VectorSlotSet, VectorSnapshot, VectorStore,
};
use toolgate_search::{ChunkHash, VectorSpace};

use crate::child::PipedProcess;
use crate::row::{BenchResultRow, PerformanceGoal};
use crate::{BenchRunOptions, median, text};

const DIMENSIONS: usize = 384;
const COUNT: usize = 100_000;
const QUERIES: usize = 200;
const K: usize = 10;
/// Number of topics around which the synthetic vectors lie. A search finds synthetic vectors more
/// easily than vectors of texts, whose recall `docs/design/vectors.md` reports.
const TOPICS: usize = 200;
/// Number of random directions whose sums are the topics and the vectors.
const DIRECTIONS: usize = 64;

/// Measures how long vector searches take, and how many of the nearest vectors they find.
pub(crate) fn measure(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    eprintln!("measuring: the nearest of 100,000 vectors");
    let folder = tempfile::tempdir()?;
    let (vectors, queries) = synthesize();
    let mut usearch = UsearchProcess::start(folder.path(), &vectors, &queries)?;
    let store = create_store(folder.path(), &vectors)?;
    let snapshot = store.snapshot();
    let live = VectorSlotSet::full(snapshot.len());
    let prepared = queries
        .chunks_exact(DIMENSIONS)
        .map(|vector| snapshot.prepare_query(vector))
        .collect::<Result<Vec<_>, _>>()?;

    let truth: Vec<_> = queries
        .chunks_exact(DIMENSIONS)
        .map(|vector| nearest_by_brute_force(&vectors, vector))
        .collect();
    let ours = prepared
        .iter()
        .map(|query| find(&snapshot, &live, query))
        .collect::<Result<Vec<_>, _>>()?;
    let theirs = usearch.found()?;
    let recall = |found: &[Vec<u32>]| {
        let hits = found.iter().zip(&truth);
        let hits =
            hits.map(|(found, truth)| found.iter().filter(|number| truth.contains(number)).count());
        hits.sum::<usize>() as f64 / (K * QUERIES) as f64
    };

    let mut our_rates = Vec::new();
    let mut usearch_rates = Vec::new();
    let mut brute_rates = Vec::new();
    for _ in 0..run.rounds {
        usearch_rates.push(QUERIES as f64 / usearch.search()?);
        let started = Instant::now();
        for query in &prepared {
            ensure!(find(&snapshot, &live, query)?.len() == K, "too few were found");
        }
        our_rates.push(QUERIES as f64 / started.elapsed().as_secs_f64());
        let sample = QUERIES / 10;
        let started = Instant::now();
        for query in queries.chunks_exact(DIMENSIONS).take(sample) {
            ensure!(nearest_by_brute_force(&vectors, query).len() == K, "too few were found");
        }
        brute_rates.push(sample as f64 / started.elapsed().as_secs_f64());
    }
    let rate = median(our_rates);
    let recalled = BenchResultRow::new(
        "10 nearest of 100,000 vectors with 384 dimensions: recall (floor: usearch)",
        " %",
        100.0 * recall(&ours),
    );
    Ok(vec![
        recalled.with_floor(100.0 * recall(&theirs)).with_target(PerformanceGoal::AtLeast(95.0)),
        BenchResultRow::new(
            "10 nearest of 100,000 vectors with 384 dimensions, one thread (floor: usearch)",
            "/s",
            rate,
        )
        .with_floor(median(usearch_rates))
        .with_target(PerformanceGoal::RatioAtLeast(0.8)),
        BenchResultRow::new(
            "10 nearest of 100,000 vectors with 384 dimensions, one thread (floor: brute force, f32)",
            "/s",
            rate,
        )
        .with_floor(median(brute_rates)),
    ])
}

/// Returns the vectors to search and the vectors of the queries, each list concatenated. Every run
/// gets the same vectors.
fn synthesize() -> (Vec<f32>, Vec<f32>) {
    let mut random = XorshiftRng(0x9E37_79B9_7F4A_7C15);
    let directions: Vec<f32> = (0..DIRECTIONS * DIMENSIONS).map(|_| random.number()).collect();
    let topics: Vec<f32> = (0..TOPICS * DIRECTIONS).map(|_| random.number()).collect();
    let mut next_vector = || {
        let topic = random.bits() as usize % TOPICS * DIRECTIONS;
        let mut vector: Vec<f32> = (0..DIMENSIONS).map(|_| random.number()).collect();
        for (index, direction) in directions.chunks_exact(DIMENSIONS).enumerate() {
            let weight = topics[topic + index] + 0.7 * random.number();
            vector
                .iter_mut()
                .zip(direction)
                .for_each(|(component, direction)| *component += weight * direction);
        }
        let length = vector.iter().map(|component| component * component).sum::<f32>().sqrt();
        vector.iter_mut().for_each(|component| *component /= length);
        vector
    };
    let vectors = (0..COUNT).flat_map(|_| next_vector()).collect();
    (vectors, (0..QUERIES).flat_map(|_| next_vector()).collect())
}

/// Random number generator (xorshift) with the same numbers on every machine.
struct XorshiftRng(u64);

impl XorshiftRng {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns an approximately normally distributed random number: the sum of four uniform
    /// numbers.
    fn number(&mut self) -> f32 {
        let bits = self.bits();
        let parts = (0..4).map(|index| (bits >> (16 * index) & 0xFFFF) as f32 / 65_535.0 - 0.5);
        parts.sum()
    }
}

/// Creates toolgate's vector store on disk. The hash of each vector is its number with the bits
/// reversed.
fn create_store(folder: &Path, vectors: &[f32]) -> anyhow::Result<VectorStore> {
    let space = VectorSpace { model: "made".to_owned(), dimensions: DIMENSIONS };
    let (store, _) = VectorStore::open(&folder.join("ours"), &space, VectorPrecision::Fine)?;
    let numbered: Vec<_> = (0_u64..).zip(vectors.chunks_exact(DIMENSIONS)).collect();
    for part in numbered.chunks(5_000) {
        // Hashes are evenly distributed, and so are reversed numbers.
        let part = part.iter().map(|(number, it)| (ChunkHash(number.reverse_bits()), it.to_vec()));
        store.append(&part.collect::<Vec<_>>())?;
    }
    Ok(store)
}

/// Returns the numbers of the vectors nearest to `query` by toolgate's vector store.
fn find(
    snapshot: &VectorSnapshot,
    live: &VectorSlotSet,
    query: &QuantizedQueryVector,
) -> anyhow::Result<Vec<u32>> {
    let found = snapshot.nearest(query, live, K, &|| true)?;
    let numbers = found.into_iter().filter_map(|(slot, _)| snapshot.hash_at(slot));
    Ok(numbers.map(|hash| hash.0.reverse_bits() as u32).collect())
}

/// Returns the numbers of the vectors nearest to `query`, by comparing the query with each vector.
fn nearest_by_brute_force(vectors: &[f32], query: &[f32]) -> BTreeSet<u32> {
    let mut all: Vec<(f32, u32)> =
        vectors.chunks_exact(DIMENSIONS).map(|it| dot(it, query)).zip(0..).collect();
    all.select_nth_unstable_by(K, |(a, _), (b, _)| b.total_cmp(a));
    all.into_iter().take(K).map(|(_, number)| number).collect()
}

/// Returns the dot product of `a` and `b`. Adds up sixteen sums, so that the compiler can vectorize
/// the loop.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    for (a, b) in a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0) {
        for lane in 0..16 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}

/// Separate process that searches vectors with the library usearch.
struct UsearchProcess {
    child: PipedProcess,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    answers: PathBuf,
}

impl UsearchProcess {
    fn start(folder: &Path, vectors: &[f32], queries: &[f32]) -> anyhow::Result<Self> {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no checkout")?;
        let python = checkout.join(".tools/peers/bin/python");
        ensure!(python.exists(), "usearch is not installed; run `cargo xtask bench`");
        let files = ["vectors", "queries", "answers"].map(|name| folder.join(name));
        for (file, numbers) in files.iter().zip([vectors, queries]) {
            std::fs::write(
                file,
                numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>(),
            )?;
        }
        let script = text(&checkout.join("bench/peers/usearch_floor.py"));
        let [vectors, queries, answers] = &files.clone().map(|file| text(&file));
        let dimensions = DIMENSIONS.to_string();
        let k = K.to_string();
        let args = [&script, vectors, queries, &dimensions, &k, answers].map(String::as_str);
        let mut child = PipedProcess::stdio(&python, &args)?;
        let output = child.output.take().context("no output")?;
        let [_, _, answers] = files;
        let mut started = Self { child, lines: BufReader::new(output).lines(), answers };
        started.read_line()?;
        Ok(started)
    }

    fn read_line(&mut self) -> anyhow::Result<String> {
        Ok(self.lines.next().context("usearch ended")??)
    }

    fn found(&self) -> anyhow::Result<Vec<Vec<u32>>> {
        let bytes = std::fs::read(&self.answers)?;
        let numbers: Vec<u32> =
            bytes.as_chunks::<4>().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
        Ok(numbers.chunks_exact(K).map(<[u32]>::to_vec).collect())
    }

    /// Runs all queries once in the usearch process and returns the time in seconds.
    fn search(&mut self) -> anyhow::Result<f64> {
        self.child.input.as_mut().context("no input")?.write_all(b"again\n")?;
        Ok(self.read_line()?.parse()?)
    }
}
