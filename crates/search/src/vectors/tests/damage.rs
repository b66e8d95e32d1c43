//! Tests that a vector store survives damaged, missing and foreign files.

use std::fs;

use super::*;

fn filled(folder: &Path, count: u64) -> VectorStore {
    let (store, messages) = VectorStore::open(folder, &space(16), VectorPrecision::Fine).unwrap();
    assert_eq!(messages, Vec::<String>::new());
    store.append(&vectors(0..count, 16)).unwrap();
    store
}

fn the_file(folder: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    file.clone()
}

#[test]
fn a_truncated_block_is_reported_and_recreated() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(folder.path(), 3));
    let file = the_file(folder.path());
    let whole = fs::read(&file).unwrap();
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let (store, messages) =
            VectorStore::open(folder.path(), &space(16), VectorPrecision::Fine).unwrap();
        assert_eq!(messages.len(), 1, "cut at {length}");
        assert!(messages[0].contains(file.to_str().unwrap()), "{}", messages[0]);
        assert!(store.snapshot().is_empty());
    }
    // The next writer removes it and continues.
    let (store, _) = VectorStore::open(folder.path(), &space(16), VectorPrecision::Fine).unwrap();
    store.append(&vectors(0..3, 16)).unwrap();
    let (store, messages) =
        VectorStore::open(folder.path(), &space(16), VectorPrecision::Fine).unwrap();
    assert_eq!((messages.len(), store.snapshot().len()), (0, 3));
    assert_eq!(fs::read(the_file(folder.path())).unwrap(), whole);
}

#[test]
fn every_changed_byte_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(folder.path(), 3));
    let file = the_file(folder.path());
    let whole = fs::read(&file).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        fs::write(&file, &changed).unwrap();
        let (store, messages) =
            VectorStore::open(folder.path(), &space(16), VectorPrecision::Fine).unwrap();
        let now = store.snapshot();
        let read = (0..3).filter(|slot| now.vector(*slot).is_some()).count();
        // Damage in the header shows when the file is opened, in a row when the row is read.
        assert_eq!(
            (messages.len(), read),
            if now.is_empty() { (1, 0) } else { (0, 2) },
            "byte {at}"
        );
        assert_eq!(store.refresh().unwrap().len(), usize::from(!now.is_empty()));
        assert!(store.snapshot().is_empty());
    }
}

#[test]
fn a_file_truncated_while_open_is_reported_and_its_vectors_are_accepted_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(folder.path(), 50);
    let now = store.snapshot();
    fs::OpenOptions::new().write(true).open(the_file(folder.path())).unwrap().set_len(100).unwrap();
    let query = now.prepare_query(&noise(1, 16)).unwrap();
    assert_eq!(now.nearest(&query, &VectorSlotSet::full(50), 10, &|| true).unwrap(), []);
    assert_eq!(now.cosine(&query, 7), None);
    let messages = store.refresh().unwrap();
    assert!(messages[0].ends_with("a row's checksum is wrong"), "{messages:?}");
    store.append(&vectors(0..50, 16)).unwrap();
    let now = store.snapshot();
    assert_eq!(now.nearest(&query, &VectorSlotSet::full(50), 10, &|| true).unwrap().len(), 10);
}

#[test]
fn vectors_of_another_model_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(folder.path(), 3));
    for other in [
        VectorSpace { model: "toy-2".to_owned(), dimensions: 16 },
        VectorSpace { model: "toy-1".to_owned(), dimensions: 8 },
    ] {
        let (store, messages) =
            VectorStore::open(folder.path(), &other, VectorPrecision::Fine).unwrap();
        assert!(messages[0].contains("belongs to another model"), "{messages:?}");
        assert!(store.snapshot().is_empty());
    }
}

#[test]
fn vectors_of_another_version_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(folder.path(), 3));
    let file = the_file(folder.path());
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] = 9;
    fs::write(&file, bytes).unwrap();
    let (_, messages) =
        VectorStore::open(folder.path(), &space(16), VectorPrecision::Fine).unwrap();
    assert!(messages[0].ends_with("it has version 9, not 2"), "{messages:?}");
}

#[test]
fn a_merge_that_stops_before_deleting_the_old_blocks_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(folder.path(), 4);
    let old = the_file(folder.path());
    let bytes = fs::read(&old).unwrap();
    store.append(&vectors(4..8, 16)).unwrap();
    // As if the process had ended after the rename.
    fs::write(&old, &bytes).unwrap();
    fs::write(folder.path().join("new.tmp"), b"half").unwrap();
    let (again, messages) =
        VectorStore::open(folder.path(), &space(16), VectorPrecision::Fine).unwrap();
    assert_eq!((messages.len(), again.snapshot().len()), (0, 8));
    // If the merged block is damaged, the old ones still exist.
    let taken_over: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().path()).collect();
    let new =
        taken_over.iter().find(|it| **it != old && it.extension().unwrap() == "vectors").unwrap();
    fs::write(new, b"").unwrap();
    let (again, messages) =
        VectorStore::open(folder.path(), &space(16), VectorPrecision::Fine).unwrap();
    assert_eq!((messages.len(), again.snapshot().len()), (1, 4));
}
