//! Matrix products, computed in blocks so that the operands stay in the processor's caches.

use crate::kernel::{COLUMNS, MatrixColumnSlice, MatrixRowSlice, ROWS, products};

/// Maximum number of rows of the right matrix that are multiplied in one pass. A panel of this
/// depth stays in the cache while the rows of the left matrix change.
const DEPTH_MAX: usize = 384;
/// Number of rows of the left matrix that are multiplied with all columns before the next rows
/// follow. A block of this size and depth fills a third of the L2 cache.
const BLOCK_ROWS: usize = 16 * ROWS;

/// Right operand of a matrix product. Its columns are packed in panels of sixteen.
#[derive(Debug, Default)]
pub(crate) struct PackedMatrix {
    /// Number of elements in each column.
    depth: usize,
    columns: usize,
    /// Panels of `depth` rows each. The last panel is padded with zeros.
    lanes: Vec<MatrixRowSlice>,
}

impl PackedMatrix {
    /// Packs a matrix with `columns` columns. In `rows`, each column is stored as `depth`
    /// successive numbers, and a column starts every `stride` numbers.
    pub(crate) fn fill_from_columns(
        &mut self,
        rows: &[f32],
        stride: usize,
        depth: usize,
        columns: usize,
    ) {
        self.reset(depth, columns);
        for column in 0..columns {
            let numbers = &rows[column * stride..][..depth];
            let panel = &mut self.lanes[column / COLUMNS * depth..][..depth];
            for (lane, number) in panel.iter_mut().zip(numbers) {
                lane.0[column % COLUMNS] = *number;
            }
        }
    }

    /// Packs a matrix with `depth` rows of `columns` numbers. In `rows`, a row starts every
    /// `stride` numbers.
    pub(crate) fn fill_from_rows(
        &mut self,
        rows: &[f32],
        stride: usize,
        depth: usize,
        columns: usize,
    ) {
        self.reset(depth, columns);
        for at in 0..depth {
            for (panel, numbers) in rows[at * stride..][..columns].chunks(COLUMNS).enumerate() {
                self.lanes[panel * depth + at].0[..numbers.len()].copy_from_slice(numbers);
            }
        }
    }

    fn reset(&mut self, depth: usize, columns: usize) {
        (self.depth, self.columns) = (depth, columns);
        self.lanes.clear();
        self.lanes.resize(depth * columns.div_ceil(COLUMNS), MatrixRowSlice([0.0; COLUMNS]));
    }
}

/// Left operand of a matrix product. A row starts every `stride` numbers.
#[derive(Clone, Copy)]
pub(crate) struct MatrixRows<'m> {
    pub(crate) numbers: &'m [f32],
    pub(crate) stride: usize,
    pub(crate) rows: usize,
}

/// Multiplies `left` by `right`, and writes the product to `out`, where a row starts every `stride`
/// numbers. The vector `slices` is a scratch buffer.
pub(crate) fn multiply(
    left: MatrixRows<'_>,
    right: &PackedMatrix,
    out: &mut [f32],
    stride: usize,
    slices: &mut Vec<MatrixColumnSlice>,
) {
    let products = products();
    let depth = right.depth;
    for first in (0..left.rows).step_by(BLOCK_ROWS) {
        let rows = BLOCK_ROWS.min(left.rows - first);
        for begin in (0..depth).step_by(DEPTH_MAX) {
            let length = DEPTH_MAX.min(depth - begin);
            pack_rows(left, first, rows, begin, length, slices);
            for (panel, lanes) in right.lanes.chunks_exact(depth).enumerate() {
                let lanes = &lanes[begin..][..length];
                let column = panel * COLUMNS;
                let width = COLUMNS.min(right.columns - column);
                for (few, slices) in slices.chunks_exact(length).enumerate() {
                    let tile = products(slices, lanes);
                    let row = few * ROWS;
                    for (row, sums) in (first + row..first + rows).zip(&tile) {
                        let out = &mut out[row * stride + column..][..width];
                        write_sums(out, sums, begin > 0);
                    }
                }
            }
        }
    }
}

/// Writes `sums`, a part of a row of the product, to `out`. If `go_on` is set, adds `sums` to the
/// numbers in `out` instead.
fn write_sums(out: &mut [f32], sums: &MatrixRowSlice, go_on: bool) {
    // With a known length, this compiles to two stores.
    if let Ok(out) = <&mut [f32; COLUMNS]>::try_from(&mut *out) {
        if go_on {
            out.iter_mut().zip(&sums.0).for_each(|(out, sum)| *out += sum);
        } else {
            *out = sums.0;
        }
        return;
    }
    let numbers = out.iter_mut().zip(&sums.0);
    numbers.for_each(|(out, sum)| *out = if go_on { *out + sum } else { *sum });
}

/// Packs `length` numbers of each of `rows` rows of `left` into `slices`, starting at row `first`
/// and column `begin`. Pads incomplete slices with zeros.
fn pack_rows(
    left: MatrixRows<'_>,
    first: usize,
    rows: usize,
    begin: usize,
    length: usize,
    slices: &mut Vec<MatrixColumnSlice>,
) {
    slices.clear();
    slices.resize(rows.div_ceil(ROWS) * length, [0.0; ROWS]);
    for row in 0..rows {
        let numbers = &left.numbers[(first + row) * left.stride + begin..][..length];
        let slices = &mut slices[row / ROWS * length..][..length];
        for (slice, number) in slices.iter_mut().zip(numbers) {
            slice[row % ROWS] = *number;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::portable_products;

    /// Computes the matrix product by its definition, to check the fast one.
    fn slowly(left: &[f32], right: &[f32], depth: usize, columns: usize) -> Vec<f64> {
        let rows = left.chunks_exact(depth);
        let product = rows.flat_map(|row| {
            right[..depth * columns].chunks_exact(depth).map(|column| {
                row.iter().zip(column).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            })
        });
        product.collect()
    }

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            f32::from(u16::try_from(state >> 48).unwrap()) / 65_536.0 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_product_matches_its_definition(
            rows in 1..220_usize, depth in 1..900_usize, columns in 1..70_usize, seed: u64,
        ) {
            let left = numbers(rows * depth, seed);
            let right = numbers(columns * depth, !seed);
            let mut packed = PackedMatrix::default();
            packed.fill_from_columns(&right, depth, depth, columns);
            let stride = columns + 3;
            let mut out = vec![7.0; rows * stride];
            let left_of = MatrixRows { numbers: &left, stride: depth, rows };
            multiply(left_of, &packed, &mut out, stride, &mut Vec::new());
            let expected = slowly(&left, &right, depth, columns);
            for (row, expected) in out.chunks_exact(stride).zip(expected.chunks_exact(columns)) {
                for (number, expected) in row.iter().zip(expected) {
                    prop_assert!((f64::from(*number) - expected).abs() < 1e-3);
                }
                prop_assert_eq!(&row[columns..], &[7.0; 3]);
            }
        }

        #[test]
        fn columns_and_rows_pack_equally(depth in 1..40_usize, columns in 1..40_usize, seed: u64) {
            let rows = numbers(depth * columns, seed);
            let turned: Vec<_> =
                (0..columns).flat_map(|at| rows.iter().skip(at).step_by(columns).copied()).collect();
            let mut a = PackedMatrix::default();
            let mut b = PackedMatrix::default();
            a.fill_from_rows(&rows, columns, depth, columns);
            b.fill_from_columns(&turned, depth, depth, columns);
            let lanes = |it: &PackedMatrix| it.lanes.iter().flat_map(|lane| lane.0).collect::<Vec<_>>();
            prop_assert_eq!(lanes(&a), lanes(&b));
        }

        #[test]
        fn all_kernels_compute_the_same_tiles(length in 0..500_usize, seed: u64) {
            let all = numbers(length * (ROWS + COLUMNS), seed);
            let (left, right) = all.split_at(length * ROWS);
            let (slices, _) = left.as_chunks::<ROWS>();
            let lanes: Vec<_> = right.as_chunks::<COLUMNS>().0.iter().map(|it| MatrixRowSlice(*it)).collect();
            let tiles = products()(slices, &lanes).into_iter().zip(portable_products(slices, &lanes));
            for (MatrixRowSlice(here), MatrixRowSlice(anywhere)) in tiles {
                for (a, b) in here.into_iter().zip(anywhere) {
                    prop_assert!((a - b).abs() < 1e-3, "{} {}", a, b);
                }
            }
        }
    }
}
