//! Trains a vector for each word on functions and the sentences that describe them.
//!
//! Words of questions and words of code get similar vectors if people use one for the other. Each
//! word has one vector for questions and one for code, which are equal before the training. The
//! vector of a text is the sum of the vectors of its words, normalized to length 1. A batch
//! contains functions of few packages, so that wrong answers are plausible.

use std::collections::HashMap;

use super::random::SplitMix64;

/// Number of dimensions of each word vector.
pub(super) const D: usize = 256;
/// Number of parts of a function that are trained on: name, containing items, path, head, body.
pub(super) const PARTS: usize = 5;

/// Numbers of words, each with the weight of the word.
pub(super) type WeightedWordIds = Vec<(u32, f32)>;

/// Sentence and the function that it describes, with their words as numbers.
pub(super) struct TrainingPair {
    pub(super) package: u32,
    pub(super) query: WeightedWordIds,
    pub(super) parts: [WeightedWordIds; PARTS],
}

/// Table of word vectors during and after the training.
#[derive(Clone)]
pub(super) struct TrainedWordTable {
    /// Vectors of words in questions, one row for each word.
    pub(super) query_rows: Vec<f32>,
    /// Vectors of words in code, one row for each word.
    pub(super) code_rows: Vec<f32>,
    /// Weight of each part of a function, such as its name or its body.
    pub(super) gains: [f32; PARTS],
}

/// Settings for the training of word vectors.
pub(super) struct TableTrainingSettings {
    pub(super) epochs: usize,
    pub(super) batch: usize,
    /// Number of functions of one package that a batch contains.
    pub(super) group_size: usize,
    pub(super) rate: f32,
    pub(super) scale: f32,
    /// Share of the words that are left out at random in each batch, from 0 to 1.
    pub(super) dropout: f32,
    pub(super) decay: f32,
    pub(super) seed: u64,
}

/// Returns a weight for each word by the logarithm of its count. All weights are normalized to
/// length 1.
pub(super) fn weigh(counts: HashMap<u32, u32>) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> =
        counts.into_iter().map(|(word, count)| (word, 1.0 + (count as f32).ln())).collect();
    all.sort_unstable_by_key(|it| it.0);
    let length = all.iter().map(|it| it.1 * it.1).sum::<f32>().sqrt().max(1e-6);
    for it in &mut all {
        it.1 /= length;
    }
    all
}

impl TrainedWordTable {
    /// Returns the table before the training: a random direction for each word. Vectors of rarer
    /// words are longer.
    pub(super) fn start(rarity: &[f32], seed: u64) -> Self {
        let mut random = SplitMix64(seed);
        let mut rows = Vec::with_capacity(rarity.len() * D);
        for rare in rarity {
            let row: Vec<f32> = (0..D).map(|_| random.normal()).collect();
            let length = row.iter().map(|it| it * it).sum::<f32>().sqrt();
            rows.extend(row.iter().map(|it| it / length * rare));
        }
        Self { code_rows: rows.clone(), query_rows: rows, gains: [1.5, 0.4, 0.3, 0.6, 0.8] }
    }

    pub(super) fn query(&self, words: &[(u32, f32)]) -> Vec<f32> {
        let mut sum = vec![0.0; D];
        add(&mut sum, &self.query_rows, words, 1.0);
        sum
    }

    pub(super) fn unit(&self, parts: &[WeightedWordIds; PARTS]) -> Vec<f32> {
        let mut sum = vec![0.0; D];
        for (part, gain) in parts.iter().zip(self.gains) {
            add(&mut sum, &self.code_rows, part, gain);
        }
        sum
    }
}

fn row(table: &[f32], at: u32) -> &[f32] {
    &table[at as usize * D..(at as usize + 1) * D]
}

fn add(sum: &mut [f32], table: &[f32], words: &[(u32, f32)], gain: f32) {
    for &(word, weight) in words {
        let weight = weight * gain;
        for (into, from) in sum.iter_mut().zip(row(table, word)) {
            *into += weight * from;
        }
    }
}

/// Scales `vector` to length 1, and returns its previous length.
pub(super) fn normalize(vector: &mut [f32]) -> f32 {
    let length = dot(vector, vector).sqrt().max(1e-6);
    for it in vector {
        *it /= length;
    }
    length
}

/// Returns the dot product of `a` and `b`. Adds up sixteen sums, so that the compiler can vectorize
/// the loop.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (a, b) in a.chunks_exact(16).zip(b.chunks_exact(16)) {
        for lane in 0..16 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    lanes.iter().sum()
}

/// State of the optimizer Adam, which updates only the rows that a batch uses.
struct AdamOptimizer {
    first: Vec<f32>,
    second: Vec<f32>,
    gradient: Vec<f32>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
}

impl AdamOptimizer {
    fn new(rows: usize) -> Self {
        let zeros = || vec![0.0; rows * D];
        Self {
            first: zeros(),
            second: zeros(),
            gradient: zeros(),
            touched: Vec::new(),
            is_touched: vec![false; rows],
        }
    }

    fn add(&mut self, word: u32, weight: f32, gradient: &[f32]) {
        let at = word as usize;
        if !self.is_touched[at] {
            self.is_touched[at] = true;
            self.touched.push(word);
        }
        for (into, from) in self.gradient[at * D..(at + 1) * D].iter_mut().zip(gradient) {
            *into += weight * from;
        }
    }

    fn step(&mut self, table: &mut [f32], rate: f32, decay: f32) {
        for word in self.touched.drain(..) {
            let at = word as usize;
            self.is_touched[at] = false;
            let rows = at * D..(at + 1) * D;
            let first = &mut self.first[rows.clone()];
            let second = &mut self.second[rows.clone()];
            let gradient = &mut self.gradient[rows.clone()];
            let values = &mut table[rows];
            for lane in 0..D {
                let slope = gradient[lane];
                gradient[lane] = 0.0;
                first[lane] = 0.9 * first[lane] + 0.1 * slope;
                second[lane] = 0.98 * second[lane] + 0.02 * slope * slope;
                let step = first[lane] / (second[lane].sqrt() + 1e-8);
                values[lane] -= rate * (step + decay * values[lane]);
            }
        }
    }
}

/// Trains `table` on `pairs`, and calls `on_epoch` with the epoch, its loss and the table after
/// every epoch.
pub(super) fn train(
    table: &mut TrainedWordTable,
    pairs: &[TrainingPair],
    settings: &TableTrainingSettings,
    mut on_epoch: impl FnMut(usize, f32, &TrainedWordTable),
) {
    let mut random = SplitMix64(settings.seed);
    let words = table.query_rows.len() / D;
    let mut query_adam = AdamOptimizer::new(words);
    let mut code_adam = AdamOptimizer::new(words);
    let mut gains = [(0.0_f32, 0.0_f32); PARTS];
    let rounds = settings.epochs * pairs.len().div_ceil(settings.batch);
    let mut round = 0;
    for epoch in 0..settings.epochs {
        let mut total = 0.0;
        let batches = batches(pairs, settings, &mut random);
        let count = batches.len();
        for batch in batches {
            #[allow(clippy::cast_precision_loss)]
            let remaining = 1.0 - round as f32 / rounds as f32;
            let warm_up = (round as f32 / 100.0).min(1.0);
            let rate = settings.rate * warm_up * remaining.max(0.02);
            round += 1;
            total += step(
                table,
                pairs,
                &batch,
                settings,
                rate,
                &mut random,
                &mut query_adam,
                &mut code_adam,
                &mut gains,
            );
        }
        on_epoch(epoch, total / count.max(1) as f32, table);
    }
}

/// Splits all pairs into batches. Each batch consists of groups of pairs from one package each.
fn batches(
    pairs: &[TrainingPair],
    settings: &TableTrainingSettings,
    random: &mut SplitMix64,
) -> Vec<Vec<usize>> {
    let mut packages: HashMap<u32, Vec<usize>> = HashMap::new();
    for (index, pair) in pairs.iter().enumerate() {
        packages.entry(pair.package).or_default().push(index);
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut names: Vec<u32> = packages.keys().copied().collect();
    names.sort_unstable();
    for name in names {
        let mut all = packages.remove(&name).unwrap_or_default();
        random.shuffle(&mut all);
        groups.extend(all.chunks(settings.group_size).map(<[usize]>::to_vec));
    }
    random.shuffle(&mut groups);
    let mut batches = vec![Vec::new()];
    for group in groups {
        if batches.last().is_some_and(|last| last.len() + group.len() > settings.batch) {
            batches.push(Vec::new());
        }
        if let Some(last) = batches.last_mut() {
            last.extend(group);
        }
    }
    batches
}

/// Trains on one batch of pairs and returns the loss before the update.
#[allow(clippy::too_many_arguments)]
fn step(
    table: &mut TrainedWordTable,
    pairs: &[TrainingPair],
    batch: &[usize],
    settings: &TableTrainingSettings,
    rate: f32,
    random: &mut SplitMix64,
    query_adam: &mut AdamOptimizer,
    code_adam: &mut AdamOptimizer,
    moments: &mut [(f32, f32); PARTS],
) -> f32 {
    let n = batch.len();
    let mut queries = Vec::with_capacity(n);
    let mut units = Vec::with_capacity(n);
    let drop = |words: &[(u32, f32)], random: &mut SplitMix64| -> Vec<(u32, f32)> {
        words.iter().filter(|_| random.unit() >= settings.dropout).copied().collect()
    };
    let samples: Vec<(WeightedWordIds, [WeightedWordIds; PARTS])> = batch
        .iter()
        .map(|&at| {
            let pair = &pairs[at];
            (drop(&pair.query, random), std::array::from_fn(|p| drop(&pair.parts[p], random)))
        })
        .collect();
    // The normalized vectors, each with its length before.
    for (words, parts) in &samples {
        let mut query = table.query(words);
        let length = normalize(&mut query);
        queries.push((query, length));
        let mut unit = table.unit(parts);
        let length = normalize(&mut unit);
        units.push((unit, length));
    }
    // Softmax over the functions of a question, and over the questions of a function.
    let mut scores = vec![0.0_f32; n * n];
    for (i, (query, _)) in queries.iter().enumerate() {
        for (j, (unit, _)) in units.iter().enumerate() {
            scores[i * n + j] = settings.scale * dot(query, unit);
        }
    }
    let mut slopes = vec![0.0_f32; n * n];
    let mut loss = 0.0;
    for i in 0..n {
        let row = &scores[i * n..(i + 1) * n];
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = row.iter().map(|it| (it - max).exp()).sum();
        loss += sum.ln() + max - row[i];
        for j in 0..n {
            slopes[i * n + j] += (row[j] - max).exp() / sum;
        }
        slopes[i * n + i] -= 1.0;
    }
    for j in 0..n {
        let max = (0..n).map(|i| scores[i * n + j]).fold(f32::MIN, f32::max);
        let sum: f32 = (0..n).map(|i| (scores[i * n + j] - max).exp()).sum();
        for i in 0..n {
            slopes[i * n + j] += 0.3 * (scores[i * n + j] - max).exp() / sum;
        }
        slopes[j * n + j] -= 0.3;
    }
    let mut to_query = vec![vec![0.0_f32; D]; n];
    let mut to_unit = vec![vec![0.0_f32; D]; n];
    for i in 0..n {
        for j in 0..n {
            let slope = slopes[i * n + j] * settings.scale / n as f32;
            if slope.abs() < 1e-7 {
                continue;
            }
            for (into, from) in to_query[i].iter_mut().zip(&units[j].0) {
                *into += slope * from;
            }
            for (into, from) in to_unit[j].iter_mut().zip(&queries[i].0) {
                *into += slope * from;
            }
        }
    }
    let mut gain_slopes = [0.0_f32; PARTS];
    for (i, (words, parts)) in samples.iter().enumerate() {
        let query = slope_before_normalization(&to_query[i], &queries[i]);
        for &(word, weight) in words {
            query_adam.add(word, weight, &query);
        }
        let unit = slope_before_normalization(&to_unit[i], &units[i]);
        for (part, words) in parts.iter().enumerate() {
            let mut sum = vec![0.0; D];
            add(&mut sum, &table.code_rows, words, 1.0);
            gain_slopes[part] += dot(&sum, &unit);
            for &(word, weight) in words {
                code_adam.add(word, weight * table.gains[part], &unit);
            }
        }
    }
    query_adam.step(&mut table.query_rows, rate, settings.decay);
    code_adam.step(&mut table.code_rows, rate, settings.decay);
    for part in 0..PARTS {
        let slope = gain_slopes[part];
        let (first, second) = &mut moments[part];
        *first = 0.9 * *first + 0.1 * slope;
        *second = 0.98 * *second + 0.02 * slope * slope;
        table.gains[part] -= rate * *first / (second.sqrt() + 1e-8);
    }
    loss / n as f32
}

/// Converts a gradient by a normalized vector into the gradient by the vector before normalization.
fn slope_before_normalization(slope: &[f32], (vector, length): &(Vec<f32>, f32)) -> Vec<f32> {
    let along = dot(slope, vector);
    slope.iter().zip(vector).map(|(slope, it)| (slope - along * it) / length).collect()
}
