//! Tests of writing to an index: large documents, failed commits, and the documents that readers
//! see.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use super::super::directory::IndexDirectory;
use super::*;

#[test]
fn a_document_larger_than_the_queue_is_indexed() {
    let (index, _) = SearchIndex::open(IndexLocation::Memory, None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    // Each chunk carries the whole path.
    let path = format!("{}.rs", "-".repeat(15_000));
    let text: String = (0..300).map(|at| format!("alpha{at}\n\n")).collect();
    TestDocument::new(&path, &text, &[]).put(&mut writer, b"1");
    TestDocument::new("small.rs", "beta", &[]).put(&mut writer, b"1");
    writer.commit().unwrap();
    let now = index.snapshot().unwrap();
    let counts = now.counts();
    assert_eq!((counts.documents, counts.chunks, find(&now, "beta").len()), (2, 301, 1));
}

#[test]
fn two_headers_written_within_one_clock_tick_are_distinguished() {
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
fn a_failed_commit_keeps_the_previous_one_and_the_next_continues() {
    let folder = tempfile::tempdir().unwrap();
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    TestDocument::new("a.rs", "alpha", &[]).put(&mut writer, b"1");
    writer.commit().unwrap();
    // Like a full disk: the first write fails.
    let full = folder.path().join("words/meta.json.new");
    fs::create_dir(&full).unwrap();
    TestDocument::new("b.rs", "beta", &[]).put(&mut writer, b"1");
    let err = writer.commit().unwrap_err();
    assert!(matches!(err, IndexError::Failed(_)), "{err}");
    assert!(!err.to_string().contains(folder.path().to_str().unwrap()), "{err}");
    drop(writer);
    fs::remove_dir(&full).unwrap();
    let now = index.snapshot().unwrap();
    assert_eq!((find(&now, "alpha").len(), find(&now, "beta").len()), (1, 0));
    let mut writer = index.writer().unwrap().unwrap();
    TestDocument::new("c.rs", "gamma", &[]).put(&mut writer, b"1");
    writer.commit().unwrap();
    let now = index.snapshot().unwrap();
    assert_eq!((find(&now, "beta").len(), find(&now, "gamma").len()), (0, 1));
}

#[test]
fn removing_a_deleted_index_starts_a_new_one() {
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
fn the_writer_reports_completeness_and_the_age_of_its_heartbeat() {
    let folder = tempfile::tempdir().unwrap();
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    assert!(!index.leader().unwrap().complete);
    let writer = index.writer().unwrap().unwrap();
    writer.publish_status(true).unwrap();
    let status_file = File::options().write(true).open(folder.path().join("leader.json")).unwrap();
    status_file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    let leader = index.leader().unwrap();
    assert_eq!((leader.complete, leader.process_id), (true, Some(std::process::id())));
    assert!(leader.silent_for > Duration::from_secs(50), "{leader:?}");
    writer.heartbeat().unwrap().beat();
    assert!(index.leader().unwrap().silent_for < Duration::from_secs(50));
    writer.publish_status(false).unwrap();
    assert!(!index.leader().unwrap().complete);
}
