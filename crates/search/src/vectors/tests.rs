//! Tests of the vector store.

mod damage;
mod search;
mod several;

use proptest::prelude::*;

use super::*;

fn space(dimensions: usize) -> VectorSpace {
    VectorSpace { model: "toy-1".to_owned(), dimensions }
}

/// Returns pseudorandom numbers from -1 to 1, which depend on `seed` only.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut bytes = vec![0; count * 4];
    let key = *blake3::hash(&seed.to_le_bytes()).as_bytes();
    blake3::Hasher::new_keyed(&key).finalize_xof().fill(&mut bytes);
    let numbers = bytes.as_chunks::<4>().0.iter();
    numbers.map(|it| i32::from_le_bytes(*it) as f32 / i32::MAX as f32).collect()
}

fn hash(number: u64) -> ChunkHash {
    let hash = *blake3::hash(&number.to_le_bytes()).as_bytes();
    ChunkHash(u64::from_le_bytes(std::array::from_fn(|at| hash[at])))
}

/// Returns the test vectors numbered by `range`. They form groups with similar directions, like
/// vectors of texts.
fn vectors(range: std::ops::Range<u64>, dimensions: usize) -> Vec<(ChunkHash, Vec<f32>)> {
    let of = |number: u64| {
        let topic = noise(number % 97, dimensions);
        let own = noise(number + 1_000, dimensions);
        let vector = topic.iter().zip(&own).map(|(topic, own)| topic + own).collect();
        (hash(number), vector)
    };
    range.map(of).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}

fn refused(vector: Vec<f32>) -> String {
    let store = VectorStore::in_memory(&space(4), VectorPrecision::Fine).unwrap();
    let error = store.snapshot().prepare_query(&vector).unwrap_err();
    let VectorsError::Refused(why) = store.append(&[(hash(1), vector)]).unwrap_err() else {
        panic!("not refused");
    };
    assert_eq!(error.to_string(), why);
    assert!(store.snapshot().is_empty());
    why
}

#[test]
fn an_invalid_vector_is_refused_with_a_reason() {
    assert_eq!(refused(vec![1.0; 3]), "the vector has 3 numbers; vectors of `toy-1` have 4");
    assert_eq!(
        refused(vec![1.0, f32::NAN, 0.0, 0.0]),
        "number 1 of the vector is NaN; all numbers of a vector must be finite"
    );
    assert_eq!(
        refused(vec![0.0, 0.0, f32::NEG_INFINITY, 0.0]),
        "number 2 of the vector is -inf; all numbers of a vector must be finite"
    );
    assert_eq!(refused(vec![0.0; 4]), "all numbers of the vector are 0, so it has no direction");
    let why = VectorStore::in_memory(&space(0), VectorPrecision::Fine).unwrap_err().to_string();
    assert_eq!(why, "vectors of `toy-1` have 0 numbers; 1 to 65535 are supported");
}

#[test]
fn a_batch_with_a_bad_vector_leaves_nothing_behind() {
    let store = VectorStore::in_memory(&space(4), VectorPrecision::Fine).unwrap();
    let batch = [(hash(1), vec![1.0; 4]), (hash(2), vec![f32::NAN; 4])];
    store.append(&batch).unwrap_err();
    assert!(store.snapshot().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_stored_vector_keeps_its_direction(seed: u64, dimensions in 1_usize..500, size in -30..30) {
        let scale = 10_f32.powi(size);
        let vector: Vec<f32> = noise(seed, dimensions).iter().map(|it| it * scale).collect();
        prop_assume!(vector.iter().any(|it| *it != 0.0));
        let store = VectorStore::in_memory(&space(dimensions), VectorPrecision::Fine).unwrap();
        store.append(&[(hash(1), vector)]).unwrap();
        let now = store.snapshot();
        let slot = now.slot_of(hash(1)).unwrap();
        let stored = now.vector(slot).unwrap();
        // The largest error is half a quantization step, before normalization.
        let length = |of: &[f32]| of.iter().map(|it| it * it).sum::<f32>().sqrt();
        let sum = |of: &[f32]| of.iter().map(|it| it.abs()).sum::<f32>() / length(of);
        let was = noise(seed, dimensions);
        let half = 0.51 * was.iter().fold(0.0_f32, |most, it| most.max(it.abs())) / 127.0 / length(&was);
        let longer = half * sum(&was);
        for (stored, was) in stored.iter().zip(was.iter().map(|it| it / length(&was))) {
            prop_assert!((stored - was).abs() <= half + longer * was.abs() + 1e-6, "{} was {}", stored, was);
        }
        prop_assert!((length(&stored) - 1.0).abs() < 1e-4);
        // The error of a cosine is at most that error times the sum of the other vector.
        let other = noise(seed ^ 1, dimensions);
        prop_assume!(other.iter().any(|it| *it != 0.0));
        let found = now.cosine(&now.prepare_query(&other).unwrap(), slot).unwrap();
        prop_assert!((found - cosine(&other, &was)).abs() <= half * sum(&other) + longer + 1e-4);
    }

    #[test]
    fn a_coarsely_stored_vector_keeps_roughly_its_direction(seed: u64, dimensions in 64_usize..500) {
        let vector = noise(seed, dimensions);
        let store = VectorStore::in_memory(&space(dimensions), VectorPrecision::Coarse).unwrap();
        store.append(&[(hash(1), vector.clone())]).unwrap();
        let now = store.snapshot();
        let slot = now.slot_of(hash(1)).unwrap();
        let stored = now.vector(slot).unwrap();
        prop_assert!((stored.iter().map(|it| it * it).sum::<f32>() - 1.0).abs() < 1e-4);
        prop_assert!(cosine(&stored, &vector) > 0.93, "{}", cosine(&stored, &vector));
        // The result is the cosine to the stored vector, except for the quantization of the query.
        let other = noise(seed ^ 1, dimensions);
        let found = now.cosine(&now.prepare_query(&other).unwrap(), slot).unwrap();
        prop_assert!((found - cosine(&other, &stored)).abs() < 0.02, "{}", found);
    }
}
