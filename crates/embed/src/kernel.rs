//! Innermost loop of a matrix product, which uses the widest instructions of the processor.

/// Number of rows of the left matrix that are multiplied at once. Their sums fit into registers.
pub(crate) const ROWS: usize = 6;
/// Number of columns of the right matrix that are multiplied at once. They fill two AVX2 registers.
pub(crate) const COLUMNS: usize = 16;

/// One number from each of [`ROWS`] rows, all in the same column.
pub(crate) type MatrixColumnSlice = [f32; ROWS];

/// One number from each of [`COLUMNS`] columns, all in the same row. Aligned so that no load
/// crosses a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct MatrixRowSlice(pub(crate) [f32; COLUMNS]);

/// Product of [`ROWS`] rows of one matrix and [`COLUMNS`] columns of another.
pub(crate) type MatrixProductTile = [MatrixRowSlice; ROWS];

/// Function that multiplies the rows in `slices` by the columns in `lanes`.
pub(crate) type MatrixTileMultiplier =
    fn(slices: &[MatrixColumnSlice], lanes: &[MatrixRowSlice]) -> MatrixProductTile;

/// Returns the function that multiplies fastest on this processor.
pub(crate) fn products() -> MatrixTileMultiplier {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return x86::products;
    }
    portable_products
}

/// Multiplies the rows in `slices` by the columns in `lanes`, on any processor.
pub(crate) fn portable_products(
    slices: &[MatrixColumnSlice],
    lanes: &[MatrixRowSlice],
) -> MatrixProductTile {
    let mut tile = [MatrixRowSlice([0.0; COLUMNS]); ROWS];
    for (slice, lane) in slices.iter().zip(lanes) {
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                tile[row].0[column] += slice[row] * lane.0[column];
            }
        }
    }
    tile
}

/// The multiplication for AVX2. It is written with intrinsics, because compilers do not keep the
/// sums in registers, which is six times slower.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, _mm256_fmadd_ps, _mm256_load_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_store_ps,
    };

    use super::{COLUMNS, MatrixColumnSlice, MatrixProductTile, MatrixRowSlice, ROWS};

    /// Multiplies the rows in `slices` by the columns in `lanes`, with AVX2 and FMA, which the
    /// processor must have.
    #[allow(unsafe_code, reason = "whoever hands this out has asked the processor")]
    pub(super) fn products(
        slices: &[MatrixColumnSlice],
        lanes: &[MatrixRowSlice],
    ) -> MatrixProductTile {
        unsafe { avx2_products(slices, lanes) }
    }

    #[target_feature(enable = "avx2,fma")]
    #[allow(clippy::needless_range_loop, reason = "iterators keep the sums out of registers")]
    fn avx2_products(slices: &[MatrixColumnSlice], lanes: &[MatrixRowSlice]) -> MatrixProductTile {
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        for (slice, lane) in slices.iter().zip(lanes) {
            let low = load(lane, 0);
            let high = load(lane, COLUMNS / 2);
            for row in 0..ROWS {
                let left = _mm256_set1_ps(slice[row]);
                sums[row][0] = _mm256_fmadd_ps(left, low, sums[row][0]);
                sums[row][1] = _mm256_fmadd_ps(left, high, sums[row][1]);
            }
        }
        let mut tile = [MatrixRowSlice([0.0; COLUMNS]); ROWS];
        for row in 0..ROWS {
            store(sums[row][0], &mut tile[row], 0);
            store(sums[row][1], &mut tile[row], COLUMNS / 2);
        }
        tile
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    #[allow(unsafe_code, reason = "half a lane is a register, and aligned as one")]
    fn load(lane: &MatrixRowSlice, at: usize) -> __m256 {
        let half = &lane.0[at..at + COLUMNS / 2];
        unsafe { _mm256_load_ps(half.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    #[allow(unsafe_code, reason = "half a lane is a register, and aligned as one")]
    fn store(sums: __m256, lane: &mut MatrixRowSlice, at: usize) {
        let half = &mut lane.0[at..at + COLUMNS / 2];
        unsafe { _mm256_store_ps(half.as_mut_ptr(), sums) };
    }
}
