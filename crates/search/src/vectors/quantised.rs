//! Quantizes vectors: a code of sign bits, and a row of scaled numbers.

use super::{VectorPrecision, VectorsError, kernels};
use crate::VectorSpace;

/// Maximum number of dimensions of a vector. The number of differing sign bits must fit into 16
/// bits.
pub(super) const DIMENSIONS_MAX: usize = 65_535;
/// Number of bytes before the numbers of a stored vector: checksum and step.
pub(super) const ROW_HEAD_BYTES: usize = 8;

/// A query vector of length 1, quantized in small steps that do not change the results noticeably.
#[derive(Debug, Clone)]
pub struct QuantizedQueryVector {
    numbers: Vec<i16>,
    step: f32,
    pub(super) code: Vec<u64>,
    /// Numbers of the query vector at coarse precision as bit planes: all lowest bits first, then
    /// the next bits, and so on.
    pub(super) planes: Vec<u64>,
    /// Quantized level that represents the number 0 in the bit planes.
    pub(super) zero_level: i64,
    /// Difference between the numbers of two neighbouring levels in the bit planes.
    level_step: f32,
    /// Sum of the quantized levels of all numbers of the query vector.
    level_sum: i64,
}

/// Number of bit planes of a query vector. It determines the precision of comparing a query with
/// the signs of stored vectors.
const PLANES: u32 = 6;
/// Number of steps between the lowest and the highest value of a quantised number.
const LEVELS: f32 = ((1 << PLANES) - 1) as f32;

impl QuantizedQueryVector {
    pub(super) fn new(vector: &[f32], space: &VectorSpace) -> Result<Self, VectorsError> {
        let vector = normalize(vector, space)?;
        // The largest scale for which the sum of all products with bytes fits an `i32`.
        let most = (i32::MAX / 128 / i32::try_from(vector.len()).unwrap_or(i32::MAX)).min(32_767);
        let step = largest_magnitude(&vector) / most as f32;
        let numbers = vector.iter().map(|it| round_to_i16(it / step)).collect();
        let mut code = Vec::new();
        sign_code(&vector, |word| code.push(word));
        let least = vector.iter().copied().fold(f32::INFINITY, f32::min);
        let most = vector.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // For nearly equal numbers, the step is bounded by the distance of 0.
        let coarse =
            ((most - least) / LEVELS).max(largest_magnitude(&vector) / f32::from(i16::MAX));
        let levels: Vec<i16> =
            vector.iter().map(|it| round_to_i16((it - least) / coarse)).collect();
        let zero = i64::from(round_to_i16(-least / coarse));
        let sum = levels.iter().map(|it| i64::from(*it) - zero).sum();
        let mut planes = Vec::new();
        for place in 0..PLANES {
            pack_bits(levels.iter().map(|it| it >> place & 1 == 1), |word| planes.push(word));
        }
        Ok(Self {
            numbers,
            step,
            code,
            planes,
            zero_level: zero,
            level_step: coarse,
            level_sum: sum,
        })
    }

    /// Returns the cosine of the query and the stored vector `row`.
    #[allow(clippy::cast_precision_loss, reason = "the rounding before was coarser")]
    pub(super) fn cosine(&self, row: QuantizedVectorRow<'_>) -> f32 {
        match row.numbers {
            QuantizedRowNumbers::Bytes(bytes) => {
                kernels::dot(&self.numbers, bytes) as f32 * self.step * row.step
            }
            QuantizedRowNumbers::Levels { signs, large } => {
                let sum = |bits: &[u8]| kernels::agreement(&self.planes, self.zero_level, bits);
                let both: Vec<u8> = signs.iter().zip(large).map(|(a, b)| a & b).collect();
                // Each number is -1 or 1; a large one is three times as much.
                let small = 2 * sum(signs) - self.level_sum;
                let large = 2 * sum(&both) - sum(large);
                (small + 2 * large) as f32 * self.level_step * row.step
            }
        }
    }
}

/// A stored vector: numbers that are multiples of one step.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuantizedVectorRow<'b> {
    step: f32,
    numbers: QuantizedRowNumbers<'b>,
}

/// Numbers of a stored vector, encoded in the precision of the vector.
#[derive(Debug, Clone, Copy)]
enum QuantizedRowNumbers<'b> {
    /// Numbers of a vector, one byte each.
    Bytes(&'b [u8]),
    /// Numbers of a vector that are -3, -1, 1 or 3: one bit for the sign, one for large numbers.
    Levels { signs: &'b [u8], large: &'b [u8] },
}

impl<'b> QuantizedVectorRow<'b> {
    /// Returns the size of a stored vector with `dimensions` numbers, in bytes.
    pub(super) fn byte_len(dimensions: usize, precision: VectorPrecision) -> usize {
        match precision {
            VectorPrecision::Fine => ROW_HEAD_BYTES + dimensions,
            VectorPrecision::Coarse => ROW_HEAD_BYTES + code_bytes(dimensions),
        }
    }

    /// Returns true if the checksum of a stored vector's `bytes` is correct.
    pub(super) fn is_whole(bytes: &[u8]) -> bool {
        let parts = bytes.split_first_chunk::<4>();
        parts.is_some_and(|(sum, rest)| crc32fast::hash(rest) == u32::from_le_bytes(*sum))
    }

    /// Parses `bytes` as a stored vector whose sign bits are in `code`. `None` if `bytes` is too
    /// short.
    pub(super) fn parse(
        bytes: &'b [u8],
        code: &'b [u8],
        precision: VectorPrecision,
    ) -> Option<Self> {
        let (_, rest) = bytes.split_first_chunk::<4>()?;
        let (step, rest) = rest.split_first_chunk::<4>()?;
        let numbers = match precision {
            VectorPrecision::Fine => QuantizedRowNumbers::Bytes(rest),
            VectorPrecision::Coarse => QuantizedRowNumbers::Levels { signs: code, large: rest },
        };
        Some(Self { step: f32::from_le_bytes(*step), numbers })
    }

    /// Returns the vector with `dimensions` numbers, with the precision that was stored.
    pub(super) fn to_vector(self, dimensions: usize) -> Vec<f32> {
        let number = |at: usize| match self.numbers {
            QuantizedRowNumbers::Bytes(bytes) => f32::from(bytes[at].cast_signed()),
            QuantizedRowNumbers::Levels { signs, large } => {
                let is = |bits: &[u8]| bits[at / 8] >> (at % 8) & 1 == 1;
                let size = if is(large) { 3.0 } else { 1.0 };
                if is(signs) { size } else { -size }
            }
        };
        (0..dimensions).map(|at| number(at) * self.step).collect()
    }
}

/// Appends `vector` in stored form to `row`, and its sign bits to `code`.
///
/// # Errors
///
/// Fails if the vector has the wrong length, a number that is not finite, or only zeros.
pub(super) fn quantise(
    vector: &[f32],
    space: &VectorSpace,
    precision: VectorPrecision,
    row: &mut Vec<u8>,
    code: &mut Vec<u8>,
) -> Result<(), VectorsError> {
    let vector = normalize(vector, space)?;
    let mut bytes = Vec::new();
    let mut squares = 0.0;
    match precision {
        VectorPrecision::Fine => {
            let step = largest_magnitude(&vector) / 127.0;
            bytes.extend(vector.iter().map(|it| round_to_byte(it / step)));
            squares += bytes.iter().map(|it| f32::from(it.cast_signed()).powi(2)).sum::<f32>();
        }
        VectorPrecision::Coarse => {
            // Numbers above the root mean square are large. With this bound, four levels lose least
            // of normally distributed numbers.
            let bound = (vector.len() as f32).sqrt().recip();
            let large = |it: &f32| it.abs() > bound;
            pack_bits(vector.iter().map(large), |word| bytes.extend(word.to_le_bytes()));
            squares += vector.iter().map(|it| if large(it) { 9.0 } else { 1.0 }).sum::<f32>();
        }
    }
    // The step that gives the stored vector length 1.
    let step = squares.sqrt().recip();
    let begin = row.len();
    row.extend([0; 4]);
    row.extend(step.to_le_bytes());
    row.extend(bytes);
    let checksum = crc32fast::hash(&row[begin + 4..]);
    row[begin..begin + 4].copy_from_slice(&checksum.to_le_bytes());
    sign_code(&vector, |word| code.extend(word.to_le_bytes()));
    Ok(())
}

/// Returns the size of the sign bits (code) of a vector with `dimensions` numbers, in bytes.
pub(super) fn code_bytes(dimensions: usize) -> usize {
    dimensions.div_ceil(64) * 8
}

/// Scales `vector` to length 1. Fails if the vector has another number of dimensions than `space`,
/// a number that is not finite, or only zeros.
fn normalize(vector: &[f32], space: &VectorSpace) -> Result<Vec<f32>, VectorsError> {
    let wanted = space.dimensions;
    if vector.len() != wanted {
        let has = vector.len();
        let model = &space.model;
        return Err(VectorsError::Refused(format!(
            "the vector has {has} numbers; vectors of `{model}` have {wanted}"
        )));
    }
    if let Some(at) = vector.iter().position(|it| !it.is_finite()) {
        let what = vector[at];
        return Err(VectorsError::Refused(format!(
            "number {at} of the vector is {what}; all numbers of a vector must be finite"
        )));
    }
    // Division by the largest number keeps the squares within the range of `f32`.
    let largest = largest_magnitude(vector);
    if largest == 0.0 {
        let all = "all numbers of the vector are 0, so it has no direction";
        return Err(VectorsError::Refused(all.to_owned()));
    }
    let scaled: Vec<f32> = vector.iter().map(|it| it / largest).collect();
    let length = scaled.iter().map(|it| it * it).sum::<f32>().sqrt();
    Ok(scaled.iter().map(|it| it / length).collect())
}

fn largest_magnitude(vector: &[f32]) -> f32 {
    vector.iter().fold(0.0, |most, it| it.abs().max(most))
}

/// Passes the signs of the numbers in `vector` to `put` in words of 64 bits, one bit for each
/// number.
fn sign_code(vector: &[f32], put: impl FnMut(u64)) {
    pack_bits(vector.iter().map(|it| *it > 0.0), put);
}

/// Passes `bits` to `put` in words of 64 bits. The last word is padded with zeros.
fn pack_bits(bits: impl Iterator<Item = bool>, mut put: impl FnMut(u64)) {
    let mut bits = bits.peekable();
    while bits.peek().is_some() {
        put(bits.by_ref().take(64).enumerate().map(|(at, bit)| u64::from(bit) << at).sum());
    }
}

#[allow(clippy::cast_possible_truncation, reason = "within ±32,767 by the step it is divided by")]
fn round_to_i16(number: f32) -> i16 {
    number.round() as i16
}

#[allow(clippy::cast_possible_truncation, reason = "within ±127 by the step it is divided by")]
fn round_to_byte(number: f32) -> u8 {
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
        fn a_query_with_nearly_equal_numbers_is_compared_precisely(
            seed: u64, dimensions in 64_usize..500, unlike in -8..0, lean in -3..3, sign: bool,
        ) {
            let space = VectorSpace { model: "toy".to_owned(), dimensions };
            let about = if sign { 1.0 } else { -1.0 };
            let spread = 10_f32.powi(unlike);
            let query: Vec<f32> =
                noise(seed, dimensions).iter().map(|it| about + it * spread).collect();
            let lean = lean as f32 / 2.0;
            let was: Vec<f32> = noise(seed ^ 1, dimensions).iter().map(|it| it + lean).collect();
            let mut bytes = Vec::new();
            let mut code = Vec::new();
            quantise(&was, &space, VectorPrecision::Coarse, &mut bytes, &mut code).unwrap();
            let row = QuantizedVectorRow::parse(&bytes, &code, VectorPrecision::Coarse).unwrap();
            let stored = row.to_vector(dimensions);
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let exact = dot(&query, &stored) / (dot(&query, &query) * dot(&stored, &stored)).sqrt();
            let approximate = QuantizedQueryVector::new(&query, &space).unwrap().cosine(row);
            prop_assert!((approximate - exact).abs() < 0.02, "{} is {}", approximate, exact);
        }
    }
}
