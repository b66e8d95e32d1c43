//! Tests of writing to an index: large documents, failed commits, and the documents that readers
//! see.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

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

/// A change of one of a few documents, and whether a commit follows.
#[derive(Debug, Clone)]
struct TestChange {
    document: u8,
    /// Number of words of the new text. `None` if the document is removed.
    word_count: Option<usize>,
    is_committed: bool,
}

fn test_change() -> impl Strategy<Value = TestChange> {
    // More than some ten thousand words are too many for a small commit.
    let word_count = prop_oneof![4 => 1..20_usize, 1 => 60_000..70_000_usize];
    let word_count = prop::option::weighted(0.8, word_count);
    (0..5_u8, word_count, any::<bool>()).prop_map(|(document, word_count, is_committed)| {
        TestChange { document, word_count, is_committed }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn an_index_has_the_last_version_of_each_document_after_any_changes(
        changes in prop::collection::vec(test_change(), 1..15),
    ) {
        let (index, _) = SearchIndex::open(IndexLocation::Memory, None).unwrap();
        let mut writer = index.writer().unwrap().unwrap();
        let mut expected = BTreeMap::new();
        for (letter, change) in ('a'..='z').zip(changes) {
            let path = format!("{}.txt", change.document);
            let word = format!("version{letter}");
            match change.word_count {
                Some(count) => {
                    let text = format!("{word}{}", " more".repeat(count));
                    TestDocument::new(&path, &text, &[]).put(&mut writer, word.as_bytes());
                    expected.insert(path, word);
                }
                None => {
                    writer.remove(&path).unwrap();
                    expected.remove(&path);
                }
            }
            if change.is_committed {
                writer.commit().unwrap();
            }
        }
        writer.finish().unwrap();
        let now = index.snapshot().unwrap();
        let documents = now.documents().unwrap().into_iter();
        let documents: BTreeMap<String, String> = documents
            .map(|(path, version)| (path, String::from_utf8(version.fingerprint).unwrap()))
            .collect();
        prop_assert_eq!(&documents, &expected);
        prop_assert_eq!(now.counts().chunks, expected.len() as u64);
        for (path, word) in &expected {
            let found = find(&now, word);
            prop_assert_eq!(paths(&found), [path.as_str()]);
        }
    }
}

#[test]
fn a_document_is_found_if_it_was_deleted_from_the_empty_index_before() {
    // Many deletions are too large for a small commit.
    for deletion_count in [1, 40_000] {
        let (index, _) = SearchIndex::open(IndexLocation::Memory, None).unwrap();
        let mut writer = index.writer().unwrap().unwrap();
        for number in 0..deletion_count {
            writer.remove(&format!("{number}.txt")).unwrap();
        }
        writer.commit().unwrap();
        assert!(writer.is_idle());
        TestDocument::new("0.txt", "alpha", &[]).put(&mut writer, b"1");
        writer.commit().unwrap();
        assert_eq!(paths(&find(&index.snapshot().unwrap(), "alpha")), ["0.txt"]);
        writer.remove("0.txt").unwrap();
        writer.commit().unwrap();
        assert!(writer.is_idle());
        TestDocument::new("0.txt", "beta", &[]).put(&mut writer, b"2");
        writer.commit().unwrap();
        assert_eq!(paths(&find(&index.snapshot().unwrap(), "beta")), ["0.txt"]);
    }
}

#[test]
fn files_of_merged_segments_are_deleted_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    for start in 0..3 {
        let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
        let mut writer = index.writer().unwrap().unwrap();
        for number in 0..10 {
            let path = format!("{number}.txt");
            TestDocument::new(&path, &format!("start{start}"), &[]).put(&mut writer, b"1");
            writer.commit().unwrap();
        }
        writer.finish().unwrap();
        let now = index.snapshot().unwrap();
        assert_eq!(find(&now, &format!("start{start}")).len(), 10);
        let metas = index.inner.words.load_metas().unwrap();
        let words = IndexDirectory::open_or_create(&folder.path().join("words")).unwrap();
        let names = words.segment_file_names().unwrap();
        let is_living = |name: &_| metas.list_segment_files().contains(name);
        assert!(!names.is_empty() && names.iter().all(is_living), "{names:?}");
    }
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
