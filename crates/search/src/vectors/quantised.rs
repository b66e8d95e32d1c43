//! A vector made small: its signs as a code, a bit a number; and a row of what else is kept of it.

use super::{Precision, VectorsError, kernels};
use crate::Space;

/// More than any model has; distances between codes fit 16 bits.
pub(super) const DIMENSIONS_MAX: usize = 65_535;
/// What stands before the numbers of a row: their scale and their checksum.
pub(super) const ROW_HEAD: usize = 8;

/// A vector as it is looked for: of length 1, its numbers in steps fine enough not to matter.
#[derive(Debug, Clone)]
pub struct Query {
    numbers: Vec<i16>,
    step: f32,
    pub(super) code: Vec<u64>,
    /// The numbers again, coarse and from 0, a bit of all of them after the other.
    pub(super) planes: Vec<u64>,
    /// What stands for 0 in them.
    pub(super) zero: i64,
    /// What 1 stands for in them.
    coarse: f32,
    /// The sum of them all.
    sum: i64,
}

/// In how many bits a number of a query is weighed against signs.
const PLANES: u32 = 6;
/// How many steps from the least to the largest.
const LEVELS: f32 = ((1 << PLANES) - 1) as f32;

impl Query {
    pub(super) fn of(vector: &[f32], space: &Space) -> Result<Self, VectorsError> {
        let vector = normal(vector, space)?;
        // As large as the sum of all products with bytes still fits an `i32`.
        let most = (i32::MAX / 128 / i32::try_from(vector.len()).unwrap_or(i32::MAX)).min(32_767);
        let step = largest(&vector) / most as f32;
        let numbers = vector.iter().map(|it| rounded(it / step)).collect();
        let mut code = Vec::new();
        code_of(&vector, |word| code.push(word));
        let least = vector.iter().copied().fold(f32::INFINITY, f32::min);
        let most = vector.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // Numbers that are all alike differ by less than what they are told from 0 by.
        let coarse = ((most - least) / LEVELS).max(largest(&vector) / f32::from(i16::MAX));
        let levels: Vec<i16> = vector.iter().map(|it| rounded((it - least) / coarse)).collect();
        let zero = i64::from(rounded(-least / coarse));
        let sum = levels.iter().map(|it| i64::from(*it) - zero).sum();
        let mut planes = Vec::new();
        for place in 0..PLANES {
            words_of(levels.iter().map(|it| it >> place & 1 == 1), |word| planes.push(word));
        }
        Ok(Self { numbers, step, code, planes, zero, coarse, sum })
    }

    /// The cosine to what `row` holds.
    #[allow(clippy::cast_precision_loss, reason = "the rounding before was coarser")]
    pub(super) fn cosine(&self, row: Row<'_>) -> f32 {
        match row.numbers {
            Numbers::Bytes(bytes) => {
                kernels::dot(&self.numbers, bytes) as f32 * self.step * row.step
            }
            Numbers::Levels { signs, large } => {
                let sum = |bits: &[u8]| kernels::agreement(&self.planes, self.zero, bits);
                let both: Vec<u8> = signs.iter().zip(large).map(|(a, b)| a & b).collect();
                // Of numbers that are -1 or 1, and of those that are large twice that again.
                let small = 2 * sum(signs) - self.sum;
                let large = 2 * sum(&both) - sum(large);
                (small + 2 * large) as f32 * self.coarse * row.step
            }
        }
    }
}

/// A vector as it is kept: its numbers times one step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'b> {
    step: f32,
    numbers: Numbers<'b>,
}

#[derive(Debug, Clone, Copy)]
enum Numbers<'b> {
    /// A byte each.
    Bytes(&'b [u8]),
    /// -3, -1, 1 or 3 each: a bit says whether it is above 0, and one whether it is large.
    Levels { signs: &'b [u8], large: &'b [u8] },
}

impl<'b> Row<'b> {
    /// How many bytes a row of so many `dimensions` has.
    pub(super) fn bytes(dimensions: usize, precision: Precision) -> usize {
        match precision {
            Precision::Fine => ROW_HEAD + dimensions,
            Precision::Coarse => ROW_HEAD + code_bytes(dimensions),
        }
    }

    /// Whether `bytes` are what was written.
    pub(super) fn is_whole(bytes: &[u8]) -> bool {
        let parts = bytes.split_first_chunk::<4>();
        parts.is_some_and(|(sum, rest)| crc32fast::hash(rest) == u32::from_le_bytes(*sum))
    }

    /// What stands in `bytes`, which have the `code`.
    pub(super) fn of(bytes: &'b [u8], code: &'b [u8], precision: Precision) -> Option<Self> {
        let (_, rest) = bytes.split_first_chunk::<4>()?;
        let (step, rest) = rest.split_first_chunk::<4>()?;
        let numbers = match precision {
            Precision::Fine => Numbers::Bytes(rest),
            Precision::Coarse => Numbers::Levels { signs: code, large: rest },
        };
        Some(Self { step: f32::from_le_bytes(*step), numbers })
    }

    /// The vector of so many `dimensions`, as near as it was kept.
    pub(super) fn vector(self, dimensions: usize) -> Vec<f32> {
        let number = |at: usize| match self.numbers {
            Numbers::Bytes(bytes) => f32::from(bytes[at].cast_signed()),
            Numbers::Levels { signs, large } => {
                let is = |bits: &[u8]| bits[at / 8] >> (at % 8) & 1 == 1;
                let size = if is(large) { 3.0 } else { 1.0 };
                if is(signs) { size } else { -size }
            }
        };
        (0..dimensions).map(|at| number(at) * self.step).collect()
    }
}

/// Writes `vector` as a row into `row` and as a code into `code`.
pub(super) fn quantise(
    vector: &[f32],
    space: &Space,
    precision: Precision,
    row: &mut Vec<u8>,
    code: &mut Vec<u8>,
) -> Result<(), VectorsError> {
    let vector = normal(vector, space)?;
    let (mut bytes, mut squares) = (Vec::new(), 0.0);
    match precision {
        Precision::Fine => {
            let step = largest(&vector) / 127.0;
            bytes.extend(vector.iter().map(|it| byte(it / step)));
            squares += bytes.iter().map(|it| f32::from(it.cast_signed()).powi(2)).sum::<f32>();
        }
        Precision::Coarse => {
            // What is above the root of the mean of the squares: there four levels lose least of
            // numbers that are spread as a bell is.
            let bound = (vector.len() as f32).sqrt().recip();
            let large = |it: &f32| it.abs() > bound;
            words_of(vector.iter().map(large), |word| bytes.extend(word.to_le_bytes()));
            squares += vector.iter().map(|it| if large(it) { 9.0 } else { 1.0 }).sum::<f32>();
        }
    }
    // Of the step that makes what is kept as long as what was: 1.
    let step = squares.sqrt().recip();
    let begin = row.len();
    row.extend([0; 4]);
    row.extend(step.to_le_bytes());
    row.extend(bytes);
    let checksum = crc32fast::hash(&row[begin + 4..]);
    row[begin..begin + 4].copy_from_slice(&checksum.to_le_bytes());
    code_of(&vector, |word| code.extend(word.to_le_bytes()));
    Ok(())
}

/// How many bytes a code of `dimensions` has.
pub(super) fn code_bytes(dimensions: usize) -> usize {
    dimensions.div_ceil(64) * 8
}

/// `vector` made length 1, if it is one of `space`.
fn normal(vector: &[f32], space: &Space) -> Result<Vec<f32>, VectorsError> {
    let wanted = space.dimensions;
    if vector.len() != wanted {
        let (has, model) = (vector.len(), &space.model);
        return Err(VectorsError::Refused(format!(
            "the vector has {has} numbers; vectors of `{model}` have {wanted}"
        )));
    }
    if let Some(at) = vector.iter().position(|it| !it.is_finite()) {
        let what = vector[at];
        return Err(VectorsError::Refused(format!(
            "number {at} of the vector is {what}; a vector has finite numbers only"
        )));
    }
    // By the largest first, so that no square is beyond what an `f32` can say.
    let largest = largest(vector);
    if largest == 0.0 {
        let all = "every number of the vector is 0; such a vector points nowhere";
        return Err(VectorsError::Refused(all.to_owned()));
    }
    let scaled: Vec<f32> = vector.iter().map(|it| it / largest).collect();
    let length = scaled.iter().map(|it| it * it).sum::<f32>().sqrt();
    Ok(scaled.iter().map(|it| it / length).collect())
}

fn largest(vector: &[f32]) -> f32 {
    vector.iter().fold(0.0, |most, it| it.abs().max(most))
}

/// The signs of `vector`, a bit each, in words.
fn code_of(vector: &[f32], put: impl FnMut(u64)) {
    words_of(vector.iter().map(|it| *it > 0.0), put);
}

/// `bits` in words, the last filled up with zeros.
fn words_of(bits: impl Iterator<Item = bool>, mut put: impl FnMut(u64)) {
    let mut bits = bits.peekable();
    while bits.peek().is_some() {
        put(bits.by_ref().take(64).enumerate().map(|(at, bit)| u64::from(bit) << at).sum());
    }
}

#[allow(clippy::cast_possible_truncation, reason = "within ±32,767 by the step it is divided by")]
fn rounded(number: f32) -> i16 {
    number.round() as i16
}

#[allow(clippy::cast_possible_truncation, reason = "within ±127 by the step it is divided by")]
fn byte(number: f32) -> u8 {
    (number.round() as i8).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noise(seed: u64, count: usize) -> Vec<f32> {
        let key = *blake3::hash(&seed.to_le_bytes()).as_bytes();
        let mut bytes = vec![0; count];
        blake3::Hasher::new_keyed(&key).finalize_xof().fill(&mut bytes);
        bytes.into_iter().map(|byte| f32::from(byte) / 127.5 - 1.0).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn a_query_whose_numbers_are_nearly_alike_is_told_as_others_are(
            seed: u64, dimensions in 64_usize..500, unlike in -8..0, lean in -3..3, sign: bool,
        ) {
            let space = Space { model: "toy".to_owned(), dimensions };
            let about = if sign { 1.0 } else { -1.0 };
            let spread = 10_f32.powi(unlike);
            let asked: Vec<f32> =
                noise(seed, dimensions).iter().map(|it| about + it * spread).collect();
            let lean = lean as f32 / 2.0;
            let was: Vec<f32> = noise(seed ^ 1, dimensions).iter().map(|it| it + lean).collect();
            let (mut bytes, mut code) = (Vec::new(), Vec::new());
            quantise(&was, &space, Precision::Coarse, &mut bytes, &mut code).unwrap();
            let row = Row::of(&bytes, &code, Precision::Coarse).unwrap();
            let kept = row.vector(dimensions);
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let exact = dot(&asked, &kept) / (dot(&asked, &asked) * dot(&kept, &kept)).sqrt();
            let told = Query::of(&asked, &space).unwrap().cosine(row);
            prop_assert!((told - exact).abs() < 0.02, "{} is {}", told, exact);
        }
    }
}
