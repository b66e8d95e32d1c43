//! What is asked of the vectors.

mod damage;
mod search;
mod several;

use proptest::prelude::*;

use super::*;

fn space(dimensions: usize) -> VectorSpace {
    VectorSpace { model: "toy-1".to_owned(), dimensions }
}

/// Numbers from -1 to 1 that look random, the same for the same `seed`.
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

/// The vectors numbered in `range`, each about some direction that others have too, as texts are.
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
    let store = VectorStore::in_memory(&space(4), Precision::Fine).unwrap();
    let asked = store.snapshot().prepare_query(&vector).unwrap_err();
    let VectorsError::Refused(why) = store.append(&[(hash(1), vector)]).unwrap_err() else {
        panic!("not refused");
    };
    assert_eq!(asked.to_string(), why);
    assert!(store.snapshot().is_empty());
    why
}

#[test]
fn what_is_no_vector_of_the_space_is_refused_with_a_sentence() {
    assert_eq!(refused(vec![1.0; 3]), "the vector has 3 numbers; vectors of `toy-1` have 4");
    assert_eq!(
        refused(vec![1.0, f32::NAN, 0.0, 0.0]),
        "number 1 of the vector is NaN; a vector has finite numbers only"
    );
    assert_eq!(
        refused(vec![0.0, 0.0, f32::NEG_INFINITY, 0.0]),
        "number 2 of the vector is -inf; a vector has finite numbers only"
    );
    assert_eq!(
        refused(vec![0.0; 4]),
        "every number of the vector is 0; such a vector points nowhere"
    );
    let why = VectorStore::in_memory(&space(0), Precision::Fine).unwrap_err().to_string();
    assert_eq!(why, "vectors of `toy-1` have 0 numbers; from 1 to 65535 can be kept");
}

#[test]
fn a_batch_with_a_bad_vector_leaves_nothing_behind() {
    let store = VectorStore::in_memory(&space(4), Precision::Fine).unwrap();
    let batch = [(hash(1), vec![1.0; 4]), (hash(2), vec![f32::NAN; 4])];
    store.append(&batch).unwrap_err();
    assert!(store.snapshot().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_kept_vector_points_where_it_pointed(seed: u64, dimensions in 1_usize..500, size in -30..30) {
        let scale = 10_f32.powi(size);
        let vector: Vec<f32> = noise(seed, dimensions).iter().map(|it| it * scale).collect();
        prop_assume!(vector.iter().any(|it| *it != 0.0));
        let store = VectorStore::in_memory(&space(dimensions), Precision::Fine).unwrap();
        store.append(&[(hash(1), vector)]).unwrap();
        let now = store.snapshot();
        let slot = now.slot_of(hash(1)).unwrap();
        let kept = now.vector(slot).unwrap();
        // Half a step of a byte is the most a number is off by, before all are made length 1.
        let length = |of: &[f32]| of.iter().map(|it| it * it).sum::<f32>().sqrt();
        let sum = |of: &[f32]| of.iter().map(|it| it.abs()).sum::<f32>() / length(of);
        let was = noise(seed, dimensions);
        let half = 0.51 * was.iter().fold(0.0_f32, |most, it| most.max(it.abs())) / 127.0 / length(&was);
        let longer = half * sum(&was);
        for (kept, was) in kept.iter().zip(was.iter().map(|it| it / length(&was))) {
            prop_assert!((kept - was).abs() <= half + longer * was.abs() + 1e-6, "{} was {}", kept, was);
        }
        prop_assert!((length(&kept) - 1.0).abs() < 1e-4);
        // And so a cosine, by at most that times the sum of the other's numbers.
        let other = noise(seed ^ 1, dimensions);
        prop_assume!(other.iter().any(|it| *it != 0.0));
        let told = now.cosine(&now.prepare_query(&other).unwrap(), slot).unwrap();
        prop_assert!((told - cosine(&other, &was)).abs() <= half * sum(&other) + longer + 1e-4);
    }

    #[test]
    fn a_coarsely_kept_vector_points_about_where_it_pointed(seed: u64, dimensions in 64_usize..500) {
        let vector = noise(seed, dimensions);
        let store = VectorStore::in_memory(&space(dimensions), Precision::Coarse).unwrap();
        store.append(&[(hash(1), vector.clone())]).unwrap();
        let now = store.snapshot();
        let slot = now.slot_of(hash(1)).unwrap();
        let kept = now.vector(slot).unwrap();
        prop_assert!((kept.iter().map(|it| it * it).sum::<f32>() - 1.0).abs() < 1e-4);
        prop_assert!(cosine(&kept, &vector) > 0.93, "{}", cosine(&kept, &vector));
        // What is told is the cosine to what is kept, but for the steps a query is told in.
        let other = noise(seed ^ 1, dimensions);
        let told = now.cosine(&now.prepare_query(&other).unwrap(), slot).unwrap();
        prop_assert!((told - cosine(&other, &kept)).abs() < 0.02, "{}", told);
    }
}
