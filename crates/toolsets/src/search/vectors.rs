//! Vectors without a model: weighed terms, each thrown onto a few of 256 axes by its hash.

use super::words::{Term, mix};

/// What the vectors are made by.
pub(super) const MODEL: &str = "hashed-256";
/// How many numbers a vector has.
pub(super) const DIMENSIONS: usize = 256;
/// How many axes a term lies on.
const AXES: u64 = 8;

/// A vector in the making.
pub(super) struct Vector([f32; DIMENSIONS]);

impl Vector {
    /// The vector, of length 1, of what has the `terms`, each with its weight.
    pub(super) fn of(terms: impl Iterator<Item = (Term, f32)>) -> Self {
        let mut sum = [0.0; DIMENSIONS];
        for (term, weight) in terms {
            for axis in 0..AXES {
                let random = mix(term.0 ^ (axis + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                #[allow(clippy::cast_possible_truncation, reason = "it is below 256")]
                let at = (random % DIMENSIONS as u64) as usize;
                sum[at] += if random >> 63 == 0 { weight } else { -weight };
            }
        }
        Self(sum).normalised()
    }

    /// The direction of what a caller gave, or what is wrong with it.
    pub(super) fn given(numbers: &[f64]) -> Result<Self, String> {
        if numbers.len() != DIMENSIONS {
            let len = numbers.len();
            return Err(format!("it has {len} numbers; vectors of {MODEL} have {DIMENSIONS}"));
        }
        if let Some(at) = numbers.iter().position(|it| !it.is_finite()) {
            return Err(format!("its number {at} is not finite"));
        }
        let largest = numbers.iter().fold(0.0_f64, |most, it| most.max(it.abs()));
        if largest == 0.0 {
            return Err("all of its numbers are 0, which is no direction".to_owned());
        }
        let mut vector = [0.0; DIMENSIONS];
        for (into, number) in vector.iter_mut().zip(numbers) {
            // First scaled: the largest numbers there are have squares too.
            #[allow(clippy::cast_possible_truncation, reason = "it is at most 1")]
            let scaled = (number / largest) as f32;
            *into = scaled;
        }
        Ok(Self(vector).normalised())
    }

    /// How alike both are in direction: 1 for the same, 0 for nothing in common.
    pub(super) fn cosine(&self, other: &Self) -> f32 {
        self.0.iter().zip(&other.0).map(|(a, b)| a * b).sum()
    }

    pub(super) fn numbers(&self) -> &[f32] {
        &self.0
    }

    fn normalised(mut self) -> Self {
        let length = self.0.iter().map(|it| it * it).sum::<f32>().sqrt();
        if length > 0.0 {
            self.0.iter_mut().for_each(|it| *it /= length);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::distinct;
    use super::*;

    fn vector(text: &str) -> Vector {
        Vector::of(distinct(text).into_iter().map(|term| (term, 1.0)))
    }

    #[test]
    fn texts_with_words_in_common_point_the_same_way() {
        let (a, b) = (vector("open the session store"), vector("close the session store"));
        let c = vector("draw a green triangle");
        assert!((a.cosine(&a) - 1.0).abs() < 1e-5);
        assert!(a.cosine(&b) > 0.5 && a.cosine(&c) < 0.3, "{} {}", a.cosine(&b), a.cosine(&c));
    }

    #[test]
    fn numbers_of_any_size_have_a_direction_and_zero_has_none() {
        let huge: Vec<f64> =
            (0..DIMENSIONS).map(|at| if at % 2 == 0 { 1e300 } else { -1e300 }).collect();
        assert!(
            (Vector::given(&huge).unwrap().cosine(&Vector::given(&huge).unwrap()) - 1.0).abs()
                < 1e-5
        );
        let mut wrong = vec![0.0; DIMENSIONS];
        assert!(Vector::given(&wrong).is_err());
        for bad in [f64::NAN, f64::INFINITY] {
            wrong[3] = bad;
            assert!(Vector::given(&wrong).is_err());
        }
        assert!(Vector::given(&[1.0]).is_err());
    }
}
