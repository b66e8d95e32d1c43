//! Inner loops of the vector search, compiled for the current processor.
//!
//! The loops are plain Rust. They are fast because the compiler may use AVX2 and `popcnt`, which
//! the x86-64 baseline lacks.
#![allow(unsafe_code, reason = "calls code for AVX2 after a check of the processor")]

/// Returns the dot product of a query and a stored vector, which fits an `i32` for every
/// `QuantizedQueryVector`.
pub(super) fn dot(query: &[i16], row: &[u8]) -> i32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the check above found AVX2.
        return unsafe { x86::dot(query, row) };
    }
    dot_plain(query, row)
}

/// Writes to `out` the number of sign bits in which the vector `query` differs from each of
/// `codes`.
pub(super) fn distances(query: &[u64], codes: &[u8], out: &mut Vec<u16>) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("popcnt") {
        // SAFETY: the check above found `popcnt`.
        return unsafe { x86::distances(query, codes, out) };
    }
    distances_plain(query, codes, out);
}

/// Returns the sum of the query vector's numbers whose sign bit in the stored vector's `code` is
/// set. A larger sum means a nearer vector. `planes` contains the numbers bit by bit, and the level
/// `zero` represents 0.
pub(super) fn agreement(planes: &[u64], zero: i64, code: &[u8]) -> i64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("popcnt") {
        // SAFETY: the check above found `popcnt`.
        return unsafe { x86::agreement(planes, zero, code) };
    }
    agreement_plain(planes, zero, code)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #[target_feature(enable = "avx2")]
    pub(super) fn dot(query: &[i16], row: &[u8]) -> i32 {
        super::dot_plain(query, row)
    }

    #[target_feature(enable = "popcnt")]
    pub(super) fn distances(query: &[u64], codes: &[u8], out: &mut Vec<u16>) {
        super::distances_plain(query, codes, out);
    }

    #[target_feature(enable = "popcnt")]
    pub(super) fn agreement(planes: &[u64], zero: i64, code: &[u8]) -> i64 {
        super::agreement_plain(planes, zero, code)
    }
}

#[inline(always)]
fn dot_plain(query: &[i16], row: &[u8]) -> i32 {
    let products = query.iter().zip(row).map(|(q, r)| i32::from(*q) * i32::from(r.cast_signed()));
    products.sum()
}

#[inline(always)]
fn distances_plain(query: &[u64], codes: &[u8], out: &mut Vec<u16>) {
    out.clear();
    // With a known length, the compiler unrolls the loop. Models have these lengths.
    match query.len() {
        4 => distances_fixed::<4>(query, codes, out),
        6 => distances_fixed::<6>(query, codes, out),
        8 => distances_fixed::<8>(query, codes, out),
        12 => distances_fixed::<12>(query, codes, out),
        16 => distances_fixed::<16>(query, codes, out),
        24 => distances_fixed::<24>(query, codes, out),
        words => out.extend(codes.chunks_exact(words * 8).map(|code| distance(query, code))),
    }
}

#[inline(always)]
fn distances_fixed<const WORDS: usize>(query: &[u64], codes: &[u8], out: &mut Vec<u16>) {
    let Ok(query) = <&[u64; WORDS]>::try_from(query) else { return };
    out.extend(codes.chunks_exact(WORDS * 8).map(|code| distance(query, code)));
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "no space has more than 65,535 dimensions")]
fn distance(query: &[u64], code: &[u8]) -> u16 {
    let (words, _) = code.as_chunks::<8>();
    let differing = query.iter().zip(words).map(|(q, c)| (q ^ u64::from_le_bytes(*c)).count_ones());
    differing.sum::<u32>() as u16
}

#[inline(always)]
fn agreement_plain(planes: &[u64], zero: i64, code: &[u8]) -> i64 {
    let (words, _) = code.as_chunks::<8>();
    let planes = planes.chunks_exact(words.len()).enumerate();
    let sums = planes.map(|(place, plane)| {
        let both = plane.iter().zip(words).map(|(p, c)| (p & u64::from_le_bytes(*c)).count_ones());
        i64::from(both.sum::<u32>()) << place
    });
    let set = words.iter().map(|word| i64::from(u64::from_le_bytes(*word).count_ones()));
    sums.sum::<i64>() - zero * set.sum::<i64>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_fast_loops_equal_the_plain_ones(
            query in prop::collection::vec(-2047_i16..=2047, 1..700),
            words in 1_usize..30,
            seed: u64,
        ) {
            let noise = |count: usize| -> Vec<u8> {
                let key = *blake3::hash(&seed.to_le_bytes()).as_bytes();
                let mut bytes = vec![0; count];
                blake3::Hasher::new_keyed(&key).finalize_xof().fill(&mut bytes);
                bytes
            };
            let row = noise(query.len());
            prop_assert_eq!(dot(&query, &row), dot_plain(&query, &row));

            let codes = noise(words * 8 * 20);
            let query: Vec<u64> = (0..words as u64).map(|at| at.wrapping_mul(seed)).collect();
            let mut fast = Vec::new();
            let mut plain = Vec::new();
            distances(&query, &codes, &mut fast);
            for code in codes.chunks(words * 8) {
                let differing = code.iter().zip(query.iter().flat_map(|it| it.to_le_bytes()));
                plain.push(differing.map(|(a, b)| (a ^ b).count_ones()).sum::<u32>());
            }
            prop_assert!(fast.iter().map(|it| u32::from(*it)).eq(plain));

            // Three planes: each number has three bits.
            let planes: Vec<u64> = (1..=3).flat_map(|it| query.iter().map(move |q| q.rotate_left(it))).collect();
            for code in codes.chunks(words * 8) {
                let set = |at: &usize| code[at / 8] >> (at % 8) & 1 == 1;
                let bit = |plane: usize, at: usize| planes[plane * words + at / 64] >> (at % 64) & 1;
                let number = |at: usize| bit(0, at) + 2 * bit(1, at) + 4 * bit(2, at);
                let sum: i64 = (0..words * 64).filter(set).map(|at| number(at) as i64 - 3).sum();
                prop_assert_eq!(agreement(&planes, 3, code), sum);
            }
        }
    }
}
