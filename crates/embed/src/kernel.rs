//! The innermost loop of a product, with the widest instructions that this processor has.

/// How many rows of the left matrix are multiplied at once: as many as registers can sum up.
pub(crate) const ROWS: usize = 6;
/// How many columns of the right matrix are multiplied at once: two registers of AVX2.
pub(crate) const COLUMNS: usize = 16;

/// The numbers of a few rows in one column.
pub(crate) type Slice = [f32; ROWS];

/// The numbers of a few columns in one row; no load of it crosses a line of the cache.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Lane(pub(crate) [f32; COLUMNS]);

/// The products of a few rows with a few columns.
pub(crate) type Tile = [Lane; ROWS];

/// Makes a tile of the rows in `slices` and the columns in `lanes`.
pub(crate) type Products = fn(slices: &[Slice], lanes: &[Lane]) -> Tile;

/// The fastest way that this processor has.
pub(crate) fn products() -> Products {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return x86::products;
    }
    anywhere
}

/// The same on any processor.
pub(crate) fn anywhere(slices: &[Slice], lanes: &[Lane]) -> Tile {
    let mut tile = [Lane([0.0; COLUMNS]); ROWS];
    for (slice, lane) in slices.iter().zip(lanes) {
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                tile[row].0[column] += slice[row] * lane.0[column];
            }
        }
    }
    tile
}

/// What no compiler keeps in registers by itself: without this it is six times as slow.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, _mm256_fmadd_ps, _mm256_load_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_store_ps,
    };

    use super::{COLUMNS, Lane, ROWS, Slice, Tile};

    /// Must only be called where the processor has AVX2 and FMA.
    #[allow(unsafe_code, reason = "whoever hands this out has asked the processor")]
    pub(super) fn products(slices: &[Slice], lanes: &[Lane]) -> Tile {
        unsafe { wide(slices, lanes) }
    }

    #[target_feature(enable = "avx2,fma")]
    #[allow(clippy::needless_range_loop, reason = "iterators keep the sums out of registers")]
    fn wide(slices: &[Slice], lanes: &[Lane]) -> Tile {
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        for (slice, lane) in slices.iter().zip(lanes) {
            let (low, high) = (load(lane, 0), load(lane, COLUMNS / 2));
            for row in 0..ROWS {
                let left = _mm256_set1_ps(slice[row]);
                sums[row][0] = _mm256_fmadd_ps(left, low, sums[row][0]);
                sums[row][1] = _mm256_fmadd_ps(left, high, sums[row][1]);
            }
        }
        let mut tile = [Lane([0.0; COLUMNS]); ROWS];
        for row in 0..ROWS {
            store(sums[row][0], &mut tile[row], 0);
            store(sums[row][1], &mut tile[row], COLUMNS / 2);
        }
        tile
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    #[allow(unsafe_code, reason = "half a lane is a register, and aligned as one")]
    fn load(lane: &Lane, at: usize) -> __m256 {
        let half = &lane.0[at..at + COLUMNS / 2];
        unsafe { _mm256_load_ps(half.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    #[allow(unsafe_code, reason = "half a lane is a register, and aligned as one")]
    fn store(sums: __m256, lane: &mut Lane, at: usize) {
        let half = &mut lane.0[at..at + COLUMNS / 2];
        unsafe { _mm256_store_ps(half.as_mut_ptr(), sums) };
    }
}
