//! What becomes of files that are not what was written.

use std::fs;

use super::*;

fn filled(folder: &Path, count: u64) -> VectorStore {
    let (store, told) = VectorStore::open(folder, &space(16), Precision::Fine).unwrap();
    assert_eq!(told, Vec::<String>::new());
    store.append(&vectors(0..count, 16)).unwrap();
    store
}

fn the_file(folder: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    file.clone()
}

#[test]
fn a_block_cut_anywhere_is_told_and_made_again() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(folder.path(), 3));
    let file = the_file(folder.path());
    let whole = fs::read(&file).unwrap();
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let (store, told) = VectorStore::open(folder.path(), &space(16), Precision::Fine).unwrap();
        assert_eq!(told.len(), 1, "cut at {length}");
        assert!(told[0].contains(file.to_str().unwrap()), "{}", told[0]);
        assert!(store.snapshot().is_empty());
    }
    // Whoever writes next removes it and goes on.
    let (store, _) = VectorStore::open(folder.path(), &space(16), Precision::Fine).unwrap();
    store.append(&vectors(0..3, 16)).unwrap();
    let (store, told) = VectorStore::open(folder.path(), &space(16), Precision::Fine).unwrap();
    assert_eq!((told.len(), store.snapshot().len()), (0, 3));
    assert_eq!(fs::read(the_file(folder.path())).unwrap(), whole);
}

#[test]
fn no_changed_byte_goes_unnoticed() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(folder.path(), 3));
    let file = the_file(folder.path());
    let whole = fs::read(&file).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        fs::write(&file, &changed).unwrap();
        let (store, told) = VectorStore::open(folder.path(), &space(16), Precision::Fine).unwrap();
        let now = store.snapshot();
        let read = (0..3).filter(|slot| now.vector(*slot).is_some()).count();
        // In what is held it shows when the file is opened, in a row when that is read.
        assert_eq!((told.len(), read), if now.is_empty() { (1, 0) } else { (0, 2) }, "byte {at}");
        assert_eq!(store.refresh().unwrap().len(), usize::from(!now.is_empty()));
        assert!(store.snapshot().is_empty());
    }
}

#[test]
fn a_file_cut_while_it_is_read_is_told_and_its_vectors_are_taken_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(folder.path(), 50);
    let now = store.snapshot();
    fs::OpenOptions::new().write(true).open(the_file(folder.path())).unwrap().set_len(100).unwrap();
    let query = now.prepare_query(&noise(1, 16)).unwrap();
    assert_eq!(now.nearest(&query, &SlotSet::full(50), 10, &|| true).unwrap(), []);
    assert_eq!(now.cosine(&query, 7), None);
    let told = store.refresh().unwrap();
    assert!(told[0].ends_with("a row's checksum is wrong"), "{told:?}");
    store.append(&vectors(0..50, 16)).unwrap();
    let now = store.snapshot();
    assert_eq!(now.nearest(&query, &SlotSet::full(50), 10, &|| true).unwrap().len(), 10);
}

#[test]
fn vectors_of_another_model_are_of_no_use() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(folder.path(), 3));
    for other in [
        VectorSpace { model: "toy-2".to_owned(), dimensions: 16 },
        VectorSpace { model: "toy-1".to_owned(), dimensions: 8 },
    ] {
        let (store, told) = VectorStore::open(folder.path(), &other, Precision::Fine).unwrap();
        assert!(told[0].contains("of another model"), "{told:?}");
        assert!(store.snapshot().is_empty());
    }
}

#[test]
fn vectors_of_another_version_are_of_no_use() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(folder.path(), 3));
    let file = the_file(folder.path());
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] = 9;
    fs::write(&file, bytes).unwrap();
    let (_, told) = VectorStore::open(folder.path(), &space(16), Precision::Fine).unwrap();
    assert!(told[0].ends_with("it is of version 9, not 2"), "{told:?}");
}

#[test]
fn a_merge_cut_off_before_the_old_blocks_went_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(folder.path(), 4);
    let old = the_file(folder.path());
    let bytes = fs::read(&old).unwrap();
    store.append(&vectors(4..8, 16)).unwrap();
    // As if the process had ended after the rename.
    fs::write(&old, &bytes).unwrap();
    fs::write(folder.path().join("new.tmp"), b"half").unwrap();
    let (again, told) = VectorStore::open(folder.path(), &space(16), Precision::Fine).unwrap();
    assert_eq!((told.len(), again.snapshot().len()), (0, 8));
    // If what took it over is damaged, the old one is there still.
    let taken_over: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().path()).collect();
    let new =
        taken_over.iter().find(|it| **it != old && it.extension().unwrap() == "vectors").unwrap();
    fs::write(new, b"").unwrap();
    let (again, told) = VectorStore::open(folder.path(), &space(16), Precision::Fine).unwrap();
    assert_eq!((told.len(), again.snapshot().len()), (1, 4));
}
