//! Tests a vector store with many appends, merges and readers.

use std::collections::BTreeMap;
use std::fs;

use super::*;

/// Returns all vectors of `store` by hash, and checks that each can be found by its hash.
fn all(store: &VectorStore) -> BTreeMap<ChunkHash, Vec<f32>> {
    let now = store.snapshot();
    let slots = 0..u32::try_from(now.len()).unwrap();
    let each = slots.map(|slot| {
        let hash = now.hash_at(slot).unwrap();
        assert_eq!(now.slot_of(hash), Some(slot));
        (hash, now.vector(slot).unwrap())
    });
    each.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn merges_keep_all_wanted_vectors(
        sizes in prop::collection::vec(1_u64..40, 1..40),
        forgotten in 0_u64..5,
        on_disk: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let store = if on_disk {
            VectorStore::open(folder.path(), &space(8), VectorPrecision::Fine).unwrap().0
        } else {
            VectorStore::in_memory(&space(8), VectorPrecision::Fine).unwrap()
        };
        let mut wanted = BTreeMap::new();
        let mut number = 0;
        for size in sizes {
            // Half of each batch exists already.
            let batch = vectors(number - number.min(size / 2)..number + size, 8);
            store.append(&batch).unwrap();
            wanted.extend(batch);
            number += size;
        }
        let kept = all(&store);
        prop_assert!(kept.keys().eq(wanted.keys()));
        for (hash, vector) in &wanted {
            prop_assert!(cosine(vector, &kept[hash]) > 0.999);
        }
        prop_assert!(store.snapshot().blocks().len() <= 8);

        let stays = |hash: ChunkHash| hash.0 % 5 != forgotten;
        let gone = store.retain(&stays).unwrap();
        let left: BTreeMap<_, _> = kept.into_iter().filter(|(hash, _)| stays(*hash)).collect();
        prop_assert_eq!(gone, wanted.len() - left.len());
        prop_assert_eq!(&all(&store), &left);
        prop_assert!(store.snapshot().blocks().len() <= 1);
        if on_disk {
            let (again, messages) = VectorStore::open(folder.path(), &space(8), VectorPrecision::Fine).unwrap();
            prop_assert_eq!(messages, Vec::<String>::new());
            prop_assert_eq!(&all(&again), &left);
        }
    }
}

#[test]
fn a_reader_sees_appended_vectors_after_a_refresh_and_keeps_its_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, _) = VectorStore::open(folder.path(), &space(8), VectorPrecision::Fine).unwrap();
    let (reader, _) = VectorStore::open(folder.path(), &space(8), VectorPrecision::Fine).unwrap();
    writer.append(&vectors(0..10, 8)).unwrap();
    assert!(reader.snapshot().is_empty());
    assert_eq!(reader.refresh().unwrap(), Vec::<String>::new());
    let before = reader.snapshot();
    assert_eq!(before.len(), 10);
    writer.append(&vectors(10..20, 8)).unwrap();
    writer.retain(&|it| it == hash(15)).unwrap();
    // The files are deleted, but open snapshots still read them.
    assert_eq!((0..10).filter(|slot| before.vector(*slot).is_some()).count(), 10);
    assert_eq!(reader.refresh().unwrap(), Vec::<String>::new());
    assert_eq!(all(&reader).into_keys().collect::<Vec<_>>(), [hash(15)]);
    writer.retain(&|_| false).unwrap();
    reader.refresh().unwrap();
    assert!(reader.snapshot().is_empty());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_writer_does_not_disturb_readers() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, _) = VectorStore::open(folder.path(), &space(8), VectorPrecision::Fine).unwrap();
    writer.append(&vectors(0..5, 8)).unwrap();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for number in 1..40 {
                writer.append(&vectors(number * 5..number * 5 + 5, 8)).unwrap();
                if number % 10 == 0 {
                    writer.retain(&|_| true).unwrap();
                }
            }
        });
        let (reader, _) =
            VectorStore::open(folder.path(), &space(8), VectorPrecision::Fine).unwrap();
        while !writing.is_finished() {
            assert_eq!(reader.refresh().unwrap(), Vec::<String>::new());
            let now = reader.snapshot();
            let query = now.prepare_query(&[1.0; 8]).unwrap();
            let found = now.nearest(&query, &VectorSlotSet::full(now.len()), 3, &|| true).unwrap();
            assert_eq!(found.len(), now.len().min(3));
        }
        reader.refresh().unwrap();
        assert_eq!(reader.snapshot().len(), 200);
    });
}

#[test]
fn appending_single_vectors_leaves_few_blocks() {
    let store = VectorStore::in_memory(&space(8), VectorPrecision::Fine).unwrap();
    let mut most = 0;
    for number in 0..2_000 {
        store.append(&vectors(number..number + 1, 8)).unwrap();
        most = most.max(store.snapshot().blocks().len());
    }
    assert!(most <= 11, "{most} blocks");
    assert_eq!(all(&store).len(), 2_000);
}
