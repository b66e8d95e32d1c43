//! What is written: however large, whole or not at all, and seen by whoever reads.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use super::super::directory::IndexDirectory;
use super::*;

#[test]
fn a_document_larger_than_all_that_may_wait_is_taken_in() {
    let (index, _) = SearchIndex::open(IndexLocation::Memory, None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    // Each chunk carries the whole path.
    let path = format!("{}.rs", "-".repeat(15_000));
    let text: String = (0..300).map(|at| format!("alpha{at}\n\n")).collect();
    Doc::new(&path, &text, &[]).put(&mut writer, b"1");
    Doc::new("small.rs", "beta", &[]).put(&mut writer, b"1");
    writer.commit().unwrap();
    let now = index.snapshot().unwrap();
    let counts = now.counts();
    assert_eq!((counts.documents, counts.chunks, find(&now, "beta").len()), (2, 301, 1));
}

#[test]
fn two_heads_written_within_one_tick_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let head = folder.path().join("meta.json");
    let words = IndexDirectory::open_or_create(folder.path()).unwrap();
    let tick = SystemTime::now();
    let mut stamps = Vec::new();
    for text in ["one", "three"] {
        fs::write(&head, text).unwrap();
        File::options().write(true).open(&head).unwrap().set_modified(tick).unwrap();
        stamps.push(words.commit_stamp().unwrap());
    }
    assert_ne!(stamps[0], stamps[1]);
}

#[test]
fn a_commit_that_fails_leaves_the_one_before_and_the_next_goes_on_from_there() {
    let folder = tempfile::tempdir().unwrap();
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    Doc::new("a.rs", "alpha", &[]).put(&mut writer, b"1");
    writer.commit().unwrap();
    // As on a full disk: what is to be written first cannot be.
    let full = folder.path().join("words/meta.json.new");
    fs::create_dir(&full).unwrap();
    Doc::new("b.rs", "beta", &[]).put(&mut writer, b"1");
    let err = writer.commit().unwrap_err();
    assert!(matches!(err, IndexError::Failed(_)), "{err}");
    assert!(!err.to_string().contains(folder.path().to_str().unwrap()), "{err}");
    drop(writer);
    fs::remove_dir(&full).unwrap();
    let now = index.snapshot().unwrap();
    assert_eq!((find(&now, "alpha").len(), find(&now, "beta").len()), (1, 0));
    let mut writer = index.writer().unwrap().unwrap();
    Doc::new("c.rs", "gamma", &[]).put(&mut writer, b"1");
    writer.commit().unwrap();
    let now = index.snapshot().unwrap();
    assert_eq!((find(&now, "beta").len(), find(&now, "gamma").len()), (0, 1));
}

#[test]
fn what_is_removed_though_it_is_gone_already_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("index");
    drop(SearchIndex::open(IndexLocation::Folder(&place), None).unwrap());
    fs::remove_dir_all(&place).unwrap();
    SearchIndex::remove(IndexLocation::Folder(&place)).unwrap();
    assert_eq!(
        SearchIndex::open(IndexLocation::Folder(&place), None).unwrap().1,
        IndexOpenOutcome::Created
    );
}

#[test]
fn whoever_writes_tells_whether_all_is_in_it_and_for_how_long_it_was_silent() {
    let folder = tempfile::tempdir().unwrap();
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    assert!(!index.leader().unwrap().complete);
    let writer = index.writer().unwrap().unwrap();
    writer.publish_status(true).unwrap();
    let told = File::options().write(true).open(folder.path().join("leader.json")).unwrap();
    told.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    let leader = index.leader().unwrap();
    assert_eq!((leader.complete, leader.process_id), (true, Some(std::process::id())));
    assert!(leader.silent_for > Duration::from_secs(50), "{leader:?}");
    writer.heartbeat().unwrap().beat();
    assert!(index.leader().unwrap().silent_for < Duration::from_secs(50));
    writer.publish_status(false).unwrap();
    assert!(!index.leader().unwrap().complete);
}
