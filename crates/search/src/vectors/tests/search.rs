//! Tests that a search finds the nearest vectors.

use std::cell::Cell;

use super::*;

/// Returns the slots of the `k` vectors with the largest cosines, found by comparing `query` with
/// each stored vector.
fn by_hand(now: &VectorSnapshot, query: &[f32], live: &VectorSlotSet, k: usize) -> Vec<u32> {
    let mut all: Vec<(u32, f32)> =
        live.iter().map(|slot| (slot, cosine(query, &now.vector(slot).unwrap()))).collect();
    all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    all.truncate(k);
    all.into_iter().map(|(slot, _)| slot).collect()
}

fn shared(found: &[(u32, f32)], wanted: &[u32]) -> usize {
    found.iter().filter(|(slot, _)| wanted.contains(slot)).count()
}

#[test]
fn among_few_vectors_exactly_the_nearest_are_found() {
    let store = VectorStore::in_memory(&space(64), VectorPrecision::Fine).unwrap();
    vectors(0..2_000, 64).chunks(300).for_each(|part| store.append(part).unwrap());
    let now = store.snapshot();
    let live = VectorSlotSet::full(now.len());
    for seed in 0..20 {
        let query = noise(seed + 9_000, 64);
        let found = now.nearest(&now.prepare_query(&query).unwrap(), &live, 10, &|| true).unwrap();
        assert!(found.is_sorted_by(|(_, a), (_, b)| a >= b));
        let wanted = by_hand(&now, &query, &live, 10);
        // Vectors with equal scores may change places.
        for ((slot, score), wanted) in found.iter().zip(&wanted) {
            let exact = |slot: u32| cosine(&query, &now.vector(slot).unwrap());
            assert!((exact(*slot) - exact(*wanted)).abs() < 1e-4);
            assert!((exact(*slot) - score).abs() < 1e-4);
        }
        assert_eq!(found.len(), wanted.len());
    }
}

#[test]
fn among_many_vectors_most_of_the_nearest_and_no_dead_ones_are_found() {
    let store = VectorStore::in_memory(&space(256), VectorPrecision::Fine).unwrap();
    vectors(0..12_000, 256).chunks(3_000).for_each(|part| store.append(part).unwrap());
    let now = store.snapshot();
    let every_third: VectorSlotSet = (0..12_000).step_by(3).collect();
    for live in [VectorSlotSet::full(now.len()), every_third] {
        let mut found_of_all = 0;
        for number in 0..30 {
            // Near to one vector, as a query is to its answer.
            let (_, near) = &vectors(number * 131..number * 131 + 1, 256)[0];
            let off = noise(number + 5_000, 256);
            let query: Vec<f32> = near.iter().zip(&off).map(|(a, b)| a + b).collect();
            let found =
                now.nearest(&now.prepare_query(&query).unwrap(), &live, 10, &|| true).unwrap();
            assert_eq!(found.len(), 10);
            assert!(found.iter().all(|(slot, _)| live.contains(*slot)));
            found_of_all += shared(&found, &by_hand(&now, &query, &live, 10));
        }
        assert!(found_of_all >= 285, "{found_of_all} of 300");
    }
}

#[test]
fn zero_or_more_results_than_vectors_can_be_requested() {
    let store = VectorStore::in_memory(&space(8), VectorPrecision::Fine).unwrap();
    let now = store.snapshot();
    let query = now.prepare_query(&[1.0; 8]).unwrap();
    assert_eq!(now.nearest(&query, &VectorSlotSet::full(5), 10, &|| true).unwrap(), []);
    store.append(&vectors(0..3, 8)).unwrap();
    let now = store.snapshot();
    assert_eq!(now.nearest(&query, &VectorSlotSet::full(3), 0, &|| true).unwrap(), []);
    assert_eq!(now.nearest(&query, &VectorSlotSet::empty(3), 10, &|| true).unwrap(), []);
    assert_eq!(
        now.nearest(&query, &VectorSlotSet::full(1_000), usize::MAX / 16, &|| true).unwrap().len(),
        3
    );
    assert_eq!(now.cosine(&query, 3), None);
    assert_eq!(now.vector(u32::MAX), None);
}

#[test]
fn a_cancelled_search_ends() {
    // Few vectors are compared fully, many by their codes.
    for (count, turns) in [(5_000, 1), (10_000, 2)] {
        let store = VectorStore::in_memory(&space(128), VectorPrecision::Fine).unwrap();
        store.append(&vectors(0..count, 128)).unwrap();
        let now = store.snapshot();
        let query = now.prepare_query(&[1.0; 128]).unwrap();
        let checks = Cell::new(0);
        let wanted = || checks.replace(checks.get() + 1) < turns;
        let ended = now.nearest(&query, &VectorSlotSet::full(now.len()), 10, &wanted);
        assert!(matches!(ended, Err(VectorsError::Canceled)));
        assert_eq!(checks.get(), turns + 1);
    }
}
