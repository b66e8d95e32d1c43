//! Tests of damaged index files: the index detects, reports and repairs the damage, without a panic
//! or a wrong result.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

fn fill(folder: &Path) {
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder), None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    for at in 0..60 {
        let text =
            format!("alpha word{at}\nbody of it\n\nbeta other{at}\n{}", "filler ".repeat(at));
        TestDocument::new(&format!("src/{at}.rs"), &text, &["rust"]).put(&mut writer, b"1");
        if at % 20 == 19 {
            writer.commit().unwrap();
        }
    }
    writer.remove("src/3.rs").unwrap();
    writer.commit().unwrap();
    writer.finish().unwrap();
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Changes each file of an index with `break_it`, and opens the index again. Checks that the index
/// has either all documents or none, and can be used.
fn check(break_it: impl Fn(&[u8]) -> Option<Vec<u8>>, what: &str) {
    let whole = tempfile::tempdir().unwrap();
    fill(whole.path());
    let all = files(whole.path());
    let mut rebuilt = 0;
    for file in &all {
        let folder = tempfile::tempdir().unwrap();
        copy(whole.path(), folder.path());
        let file = folder.path().join(file.strip_prefix(whole.path()).unwrap());
        match break_it(&fs::read(&file).unwrap()) {
            Some(bytes) => fs::write(&file, bytes).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let (index, begun) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
        let now = index.snapshot().unwrap();
        let found = find(&now, "alpha");
        let label = format!("{what}: {} {begun:?}", file.display());
        match &begun {
            IndexOpenOutcome::Existing => assert_eq!(found.len(), 59, "{label}"),
            IndexOpenOutcome::Rebuilt(why) => {
                rebuilt += 1;
                assert!(found.is_empty() && !why.is_empty(), "{label}");
            }
            IndexOpenOutcome::Created => assert!(file.ends_with("index.json"), "{label}"),
        }
        let mut writer = index.writer().unwrap().unwrap();
        TestDocument::new("new.rs", "gamma", &[]).put(&mut writer, b"1");
        writer.commit().unwrap();
        assert_eq!(find(&index.snapshot().unwrap(), "gamma").len(), 1, "{label}");
    }
    // Damaged lock files and file lists are harmless.
    assert!(rebuilt >= all.len() - 8, "{what}: {rebuilt} of {} were detected", all.len());
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

#[test]
fn a_truncated_file_is_detected() {
    check(|bytes| Some(bytes[..bytes.len() / 2].to_owned()), "cut in half");
    check(|bytes| Some(bytes[..bytes.len().saturating_sub(1)].to_owned()), "cut by a byte");
}

#[test]
fn an_empty_or_missing_file_is_detected() {
    check(|_| Some(Vec::new()), "emptied");
    check(|_| None, "gone");
}

#[test]
fn a_changed_byte_is_detected() {
    let flip = |bytes: &[u8]| {
        let mut bytes = bytes.to_owned();
        let at = bytes.len() / 3;
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 0x55;
        }
        Some(bytes)
    };
    check(flip, "flipped");
}

#[test]
fn a_random_file_is_detected() {
    let noise = |bytes: &[u8]| {
        let hash = blake3::hash(bytes);
        Some(hash.as_bytes().iter().copied().cycle().take(bytes.len()).collect())
    };
    check(noise, "noise");
}

#[test]
fn an_index_of_another_version_is_rebuilt_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let header = folder.path().join("index.json");
    let ours = fs::read_to_string(&header).unwrap();
    for (from, to) in [("\"format\":4", "\"format\":99"), ("\"words\":\"", "\"words\":\"x")] {
        assert!(ours.contains(from));
        fs::write(&header, ours.replace(from, to)).unwrap();
        let (_, begun) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
        let IndexOpenOutcome::Rebuilt(why) = begun else { panic!("{begun:?}") };
        assert!(why.contains("format 99") || why.contains("another version"), "{why}");
        assert_eq!(fs::read_to_string(&header).unwrap(), ours);
        fill(folder.path());
    }
}

#[test]
fn an_index_of_another_version_in_use_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    let writer = index.writer().unwrap().unwrap();
    fs::write(folder.path().join("index.json"), "{}").unwrap();
    let Err(err) = SearchIndex::open(IndexLocation::Folder(folder.path()), None) else { panic!() };
    assert!(matches!(err, IndexError::Busy(_)), "{err}");
    drop(writer);
    let (_, begun) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    assert!(matches!(begun, IndexOpenOutcome::Rebuilt(_)));
}

#[test]
fn files_truncated_under_an_open_index_are_damage_without_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    // Large enough that files are mapped and not loaded.
    for at in 0..4_000 {
        let words: Vec<String> =
            (0..30).map(|it| format!("w{}x", (at * 7 + it * 31) % 5_000)).collect();
        TestDocument::new(&format!("src/{at}.rs"), &format!("alpha{at} {}", words.join(" ")), &[])
            .put(&mut writer, b"1");
    }
    writer.commit().unwrap();
    writer.finish().unwrap();
    drop(writer);
    let now = index.snapshot().unwrap();
    for file in files(&folder.path().join("words")) {
        let opened = fs::OpenOptions::new().write(true).open(file).unwrap();
        opened.set_len(100).unwrap();
    }
    let mut damaged = 0;
    for query in ["alpha7", "w7x", "w31x w38x", "src rs"] {
        let question = match now.weigh_question(query) {
            Ok(question) => question,
            Err(err) => {
                damaged += u32::from(matches!(err, IndexError::Damaged(_)));
                continue;
            }
        };
        let filter = DocumentFilter::default();
        let sought = CandidateSearchQuery {
            static_vector: None,
            model_vector: None,
            filter: &filter,
            limit: 50,
        };
        match now.candidates(Some(&question), &sought, &|| true) {
            Ok(_) => {}
            Err(IndexError::Damaged(_)) => damaged += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(damaged > 0, "no truncated file was read");
    match now.documents() {
        // Small files are in memory and not read again.
        Ok(documents) => assert_eq!(documents.len(), 4_000),
        Err(err) => assert!(matches!(err, IndexError::Damaged(_)), "{err}"),
    }
    drop((now, index));
    SearchIndex::remove(IndexLocation::Folder(folder.path())).unwrap();
    let (_, begun) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    assert_eq!(begun, IndexOpenOutcome::Created);
}
