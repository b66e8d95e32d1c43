//! Elementwise functions and normalizations between the matrix products.

use std::ops::Add;

use crate::folder::ActivationFunction;

/// Number of partial sums of a row that are computed in parallel.
const PARTS: usize = 16;

/// Adds `bias` to every row of `numbers`.
pub(crate) fn add_bias(numbers: &mut [f32], bias: &[f32]) {
    for row in numbers.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(number, bias)| *number += bias);
    }
}

/// Adds `bias` to every row of `numbers`, and applies the activation function `by` to every sum.
pub(crate) fn activate(numbers: &mut [f32], bias: &[f32], by: ActivationFunction) {
    for row in numbers.chunks_exact_mut(bias.len()) {
        let numbers = row.iter_mut().zip(bias);
        match by {
            ActivationFunction::Gelu => {
                numbers.for_each(|(number, bias)| *number = gelu(*number + bias));
            }
            ActivationFunction::GeluTanh => {
                numbers.for_each(|(number, bias)| *number = gelu_tanh(*number + bias));
            }
            ActivationFunction::Relu => {
                numbers.for_each(|(number, bias)| *number = (*number + bias).max(0.0));
            }
        }
    }
}

/// Applies softmax to every row of `numbers`, after multiplying by `scale`.
pub(crate) fn softmax(numbers: &mut [f32], columns: usize, scale: f32) {
    for row in numbers.chunks_exact_mut(columns) {
        let most = largest(row);
        row.iter_mut().for_each(|number| *number = exp((*number - most) * scale));
        let share = 1.0 / sum(row);
        row.iter_mut().for_each(|number| *number *= share);
    }
}

/// Layer normalization of a network, with learned weight and bias.
#[derive(Debug)]
pub(crate) struct LayerNorm {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
    pub(crate) epsilon: f32,
}

impl LayerNorm {
    /// Adds `bias` and `numbers` to `sums`, then normalizes every row.
    pub(crate) fn add_and_normalize(&self, sums: &mut [f32], numbers: &[f32], bias: &[f32]) {
        let columns = bias.len();
        #[allow(clippy::cast_precision_loss, reason = "a row has some thousand numbers")]
        let count = columns as f32;
        let rows = sums.chunks_exact_mut(columns).zip(numbers.chunks_exact(columns));
        for (sums, numbers) in rows {
            let added = sums.iter_mut().zip(numbers).zip(bias);
            added.for_each(|((sum, number), bias)| *sum += number + bias);
            let mean = sum(sums) / count;
            sums.iter_mut().for_each(|number| *number -= mean);
            let squares = fold(sums, 0.0, |sum, number| sum + number * number, Add::add);
            let shrink = 1.0 / (squares / count + self.epsilon).sqrt();
            let all = sums.iter_mut().zip(&self.weight).zip(&self.bias);
            all.for_each(|((number, weight), bias)| *number = *number * shrink * weight + bias);
        }
    }
}

/// Reduces `numbers` to one value, in several parts that the processor computes in parallel. The
/// function `add` adds a number to a part, and `join` combines two parts.
fn fold(
    numbers: &[f32],
    begin: f32,
    add: impl Fn(f32, f32) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut parts = [begin; PARTS];
    let (chunks, rest) = numbers.as_chunks::<PARTS>();
    for chunk in chunks {
        for at in 0..PARTS {
            parts[at] = add(parts[at], chunk[at]);
        }
    }
    for (part, number) in parts.iter_mut().zip(rest) {
        *part = add(*part, *number);
    }
    parts.into_iter().fold(begin, join)
}

fn sum(numbers: &[f32]) -> f32 {
    fold(numbers, 0.0, Add::add, Add::add)
}

fn largest(numbers: &[f32]) -> f32 {
    // `f32::max` handles NaN, which takes several times as long.
    let more = |a, b| if b > a { b } else { a };
    fold(numbers, f32::MIN, more, more)
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

fn gelu_tanh(x: f32) -> f32 {
    // 0.5 (1 + tanh y) equals 1 / (1 + e^-2y). The constant is sqrt(2/pi).
    let y = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    x / (1.0 + exp(-2.0 * y))
}

/// Computes the error function erf(x) as a quotient of two polynomials. The result is exact to a
/// few units in the last place.
fn erf(x: f32) -> f32 {
    let x = x.clamp(-4.0, 4.0);
    let x2 = x * x;
    let above = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_5e-5,
        -7.349_906_5e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    let below = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_474e-2];
    x * polynomial(x2, &above) / polynomial(x2, &below)
}

/// Computes e to the power of `x`, clamped to the range of `f32`.
fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    // Adding and subtracting 1.5 * 2^23 rounds to an integer.
    let whole = (x * std::f32::consts::LOG2_E + 12_582_912.0) - 12_582_912.0;
    let rest = x - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let terms = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let power = polynomial(rest, &terms) * rest * rest + rest + 1.0;
    #[allow(clippy::cast_possible_truncation, reason = "whole is between -126 and 127")]
    let exponent = (whole as i32 + 127) << 23;
    power * f32::from_bits(exponent.cast_unsigned())
}

fn polynomial(x: f32, terms: &[f32]) -> f32 {
    terms.iter().fold(0.0, |sum, term| sum * x + term)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the error function by its series, which is exact enough for the tests.
    fn erf_slowly(x: f64) -> f64 {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn activations_match_their_definitions() {
        for step in -4_000..4_000_i16 {
            let x = f32::from(step) / 1_000.0;
            let exact = erf_slowly(f64::from(x));
            assert!((f64::from(erf(x)) - exact).abs() < 5e-7, "erf {x}: {} {exact}", erf(x));
            let by_tanh = 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh());
            assert!((gelu_tanh(x) - by_tanh).abs() < 1e-5, "gelu {x}");
            let x = f32::from(step) / 50.0;
            let ratio = exp(x) / x.exp();
            assert!((ratio - 1.0).abs() < 1e-5, "exp {x}: {ratio}");
        }
        assert_eq!((erf(50.0), erf(-50.0)), (erf(4.0), erf(-4.0)));
        assert!(exp(-1e9) < 1e-37 && exp(-1e9) >= 0.0);
    }

    #[test]
    fn a_softmax_sums_to_one_for_large_numbers() {
        for columns in [1, 15, 16, 17, 40] {
            let mut row: Vec<f32> = (0..columns).map(|at: u16| f32::from(at) * 30.0).collect();
            softmax(&mut row, usize::from(columns), 0.5);
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{row:?}");
            assert!(row.windows(2).all(|pair| pair[0] <= pair[1]), "{row:?}");
        }
    }

    #[test]
    fn a_norm_gives_rows_its_mean_and_spread() {
        let columns: u16 = 50;
        let norm = LayerNorm { weight: vec![2.0; 50], bias: vec![3.0; 50], epsilon: 0.0 };
        let mut sums: Vec<f32> = (0..columns).map(|at| f32::from(at) * 100.0).collect();
        norm.add_and_normalize(&mut sums, &[5.0; 50], &[1.0; 50]);
        let mean = sum(&sums) / f32::from(columns);
        let spread = sums.iter().map(|it| (it - mean).powi(2)).sum::<f32>() / f32::from(columns);
        assert!((mean - 3.0).abs() < 1e-4 && (spread - 4.0).abs() < 1e-3, "{mean} {spread}");
    }
}
