//! Tests that verification detects every edit of an audit log by someone without the key.

use std::fs;

use proptest::prelude::*;

use super::*;

/// An edit of an audit log by someone who does not have the key.
#[derive(Debug, Clone)]
enum AuditLogEdit {
    Bit { file: usize, at: usize, bit: u8 },
    Insert { file: usize, at: usize, byte: u8 },
    Remove { file: usize, at: usize, length: usize },
    Cut { file: usize, at: usize },
    Double { file: usize, line: usize },
    Swap { file: usize, line: usize, other: usize },
    Drop { file: usize, line: usize },
    Forget { file: usize },
    Exchange { file: usize, other: usize },
    Head { at: usize, bit: u8 },
    NoHead,
}

fn edits() -> impl Strategy<Value = AuditLogEdit> {
    let file = 0..5_usize;
    let at = any::<usize>();
    let bit = 0..8_u8;
    prop_oneof![
        4 => (file.clone(), at, bit.clone()).prop_map(|(file, at, bit)| AuditLogEdit::Bit { file, at, bit }),
        2 => (file.clone(), at, any::<u8>()).prop_map(|(file, at, byte)| AuditLogEdit::Insert { file, at, byte }),
        2 => (file.clone(), at, 1..2000_usize)
            .prop_map(|(file, at, length)| AuditLogEdit::Remove { file, at, length }),
        1 => (file.clone(), at).prop_map(|(file, at)| AuditLogEdit::Cut { file, at }),
        1 => (file.clone(), at).prop_map(|(file, line)| AuditLogEdit::Double { file, line }),
        1 => (file.clone(), at, at).prop_map(|(file, line, other)| AuditLogEdit::Swap { file, line, other }),
        1 => (file.clone(), at).prop_map(|(file, line)| AuditLogEdit::Drop { file, line }),
        1 => file.clone().prop_map(|file| AuditLogEdit::Forget { file }),
        1 => (file.clone(), file).prop_map(|(file, other)| AuditLogEdit::Exchange { file, other }),
        1 => (at, bit).prop_map(|(at, bit)| AuditLogEdit::Head { at, bit }),
        1 => Just(AuditLogEdit::NoHead),
    ]
}

/// Audit log of several files in a temporary folder, for tests.
struct TestAuditLog {
    folder: tempfile::TempDir,
    path: PathBuf,
    key: AuditKey,
}

impl TestAuditLog {
    fn with_lines(lines: usize, pad: usize, bytes_max: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        let key = AuditKey::from_secret(&[7; 32]);
        let mut chain = ChainedAuditLog::open(&path, key.clone(), 20, bytes_max).expect("a file");
        let bodies: Vec<_> = (0..lines)
            .map(|number| {
                format!("{{\"n\":{number},\"pad\":\"{}\"}}", "x".repeat(number % (pad + 1)))
            })
            .collect();
        for bodies in bodies.chunks(3) {
            let bodies: Vec<_> = bodies.iter().map(String::as_bytes).collect();
            chain.open_append(&bodies).expect("it is written");
        }
        Self { folder, path, key }
    }

    fn files(&self) -> Vec<PathBuf> {
        let all =
            (1..20).rev().map(|number| rotated_path(&self.path, number)).chain([self.path.clone()]);
        all.filter(|path| path.exists()).collect()
    }

    fn state(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let head = file::head_path(&self.path);
        let files = self.files().into_iter().chain([head]);
        files.filter_map(|path| Some((path.clone(), fs::read(&path).ok()?))).collect()
    }

    fn verify(&self) -> Result<VerifiedAuditLog, AuditLogDefect> {
        verify(&self.path, &self.key).expect("it is read")
    }

    fn edit(&self, edit: &AuditLogEdit) {
        let files = self.files();
        let change = |file: usize, change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
            let path = &files[file % files.len()];
            fs::write(path, change(fs::read(path).expect("there"))).expect("written");
        };
        let by_line = |file: usize, edit: &dyn Fn(&mut Vec<Vec<u8>>)| {
            change(file, &|text| {
                let mut lines: Vec<_> =
                    text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                edit(&mut lines);
                lines.concat()
            });
        };
        let head = file::head_path(&self.path);
        match *edit {
            AuditLogEdit::Bit { file, at, bit } => change(file, &|mut text| {
                let at = at % text.len();
                text[at] ^= 1 << bit;
                text
            }),
            AuditLogEdit::Insert { file, at, byte } => change(file, &|mut text| {
                text.insert(at % (text.len() + 1), byte);
                text
            }),
            AuditLogEdit::Remove { file, at, length } => change(file, &|mut text| {
                let at = at % text.len();
                text.drain(at..(at + length).min(text.len()));
                text
            }),
            AuditLogEdit::Cut { file, at } => change(file, &|mut text| {
                text.truncate(at % text.len());
                text
            }),
            AuditLogEdit::Double { file, line } => by_line(file, &|lines| {
                let line = line % lines.len();
                lines.insert(line, lines[line].clone());
            }),
            AuditLogEdit::Swap { file, line, other } => by_line(file, &|lines| {
                let line = line % lines.len();
                let other = other % lines.len();
                lines.swap(line, other);
            }),
            AuditLogEdit::Drop { file, line } => by_line(file, &|lines| {
                lines.remove(line % lines.len());
            }),
            AuditLogEdit::Forget { file } => {
                fs::remove_file(&files[file % files.len()]).expect("there");
            }
            AuditLogEdit::Exchange { file, other } => {
                let one = &files[file % files.len()];
                let other = &files[other % files.len()];
                let ours = fs::read(one).expect("there");
                let theirs = fs::read(other).expect("there");
                fs::write(one, theirs).expect("written");
                fs::write(other, ours).expect("written");
            }
            AuditLogEdit::Head { at, bit } => {
                let mut text = fs::read(&head).expect("there");
                let at = at % text.len();
                text[at] ^= 1 << bit;
                fs::write(&head, text).expect("written");
            }
            AuditLogEdit::NoHead => fs::remove_file(&head).expect("there"),
        }
    }
}

proptest! {
    #[test]
    fn any_single_edit_of_a_log_is_detected(edit in edits()) {
        let log = TestAuditLog::with_lines(200, 120, 8_000);
        let before = log.state();
        log.edit(&edit);
        let changed = log.state() != before;
        match log.verify() {
            Err(_) => prop_assert!(changed),
            // Bytes after the last line are no record, and are reported.
            Ok(whole) => prop_assert!(!changed || whole.torn_bytes > 0, "{:?}", edit),
        }
    }
}

proptest! {
    #[test]
    fn an_unedited_log_is_never_reported_as_broken(
        lines in 0..60_usize, pad in 0..300_usize, bytes_max in 1..9_000_u64,
    ) {
        let log = TestAuditLog::with_lines(lines, pad, bytes_max);
        let whole = log.verify().expect("whole");
        prop_assert_eq!(whole.last_seq, lines as u64);
        // No more files than should be kept, and removed ones do not count as missing.
        prop_assert!(log.files().len() <= 21);
    }
}

#[test]
fn each_edit_is_reported_with_its_line() {
    let broken_by = |edit: AuditLogEdit| {
        let log = TestAuditLog::with_lines(10, 0, u64::MAX);
        log.edit(&edit);
        let broken = log.verify().expect_err("broken");
        (broken.line, broken.seq, broken.why)
    };
    let line = |n: usize| n - 1;
    let at = |(at, seq, why): (u64, u64, String), expected: (u64, u64, &str)| {
        assert_eq!((at, seq), (expected.0, expected.1), "{why}");
        assert!(why.contains(expected.2), "{why}");
    };
    at(
        broken_by(AuditLogEdit::Drop { file: 0, line: line(4) }),
        (4, 4, "1 line before line 5 is missing"),
    );
    at(broken_by(AuditLogEdit::Double { file: 0, line: line(4) }), (5, 5, "line 4 is duplicated"));
    at(
        broken_by(AuditLogEdit::Swap { file: 0, line: line(4), other: line(6) }),
        (4, 4, "2 lines before"),
    );
    at(
        broken_by(AuditLogEdit::Drop { file: 0, line: line(10) }),
        (10, 10, "the last 1 line is missing, up to 10"),
    );
    at(broken_by(AuditLogEdit::Bit { file: 0, at: 5, bit: 0 }), (1, 1, "was changed"));
    at(broken_by(AuditLogEdit::NoHead), (1, 0, "is missing"));
}

#[test]
fn a_torn_record_is_reported_and_later_edits_of_it_are_detected() {
    let log = TestAuditLog::with_lines(5, 0, u64::MAX);
    let mut text = fs::read(&log.path).expect("there");
    text.extend_from_slice(b"{\"n\":5,\"pa");
    fs::write(&log.path, &text).expect("written");
    assert_eq!(log.verify().expect("whole").torn_bytes, 10);

    let mut chain =
        ChainedAuditLog::open(&log.path, log.key.clone(), 20, u64::MAX).expect("a file");
    chain.open_append(&[b"{\"n\":6}"]).expect("written");
    let whole = log.verify().expect("whole");
    assert_eq!((whole.last_seq, whole.torn_bytes), (7, 0));
    let text = fs::read_to_string(&log.path).expect("there");
    assert!(text.contains("\"log\":\"recovered\",\"torn_bytes\":10"), "{text}");

    fs::write(&log.path, text.replace("{\"n\":5,\"pa", "{\"n\":5,\"pb")).expect("written");
    let broken = log.verify().expect_err("broken");
    assert_eq!((broken.line, broken.seq), (6, 6), "{broken}");
}

#[test]
fn lines_that_a_killed_server_wrote_after_its_last_head_are_continued() {
    let log = TestAuditLog::with_lines(5, 0, u64::MAX);
    let head = file::head_path(&log.path);
    let old = fs::read(&head).expect("there");
    let open = || ChainedAuditLog::open(&log.path, log.key.clone(), 20, u64::MAX).expect("a file");
    open().open_append(&[b"{\"n\":5}", b"{\"n\":6}"]).expect("written");
    fs::write(&head, old).expect("written");
    assert_eq!(log.verify().expect("whole").last_seq, 7);
    open().open_append(&[b"{\"n\":7}"]).expect("written");
    assert_eq!(log.verify().expect("whole").last_seq, 8);
}

#[test]
fn a_removed_tail_is_detected_even_after_servers_wrote_on() {
    let log = TestAuditLog::with_lines(5, 0, u64::MAX);
    log.edit(&AuditLogEdit::Drop { file: 0, line: 4 });
    let mut chain =
        ChainedAuditLog::open(&log.path, log.key.clone(), 20, u64::MAX).expect("a file");
    chain.open_append(&[b"{\"n\":5}"]).expect("written");
    let broken = log.verify().expect_err("broken");
    assert_eq!((broken.line, broken.seq), (5, 5), "{broken}");
}

#[test]
fn a_removed_or_foreign_head_is_detected_even_after_servers_wrote_on() {
    for other_key in [false, true] {
        let log = TestAuditLog::with_lines(5, 0, u64::MAX);
        let head = file::head_path(&log.path);
        let open =
            |key: AuditKey| ChainedAuditLog::open(&log.path, key, 20, u64::MAX).expect("a file");
        if other_key {
            drop(open(AuditKey::from_secret(&[8; 32])));
        } else {
            fs::remove_file(&head).expect("there");
        }
        open(log.key.clone()).open_append(&[b"{\"n\":5}"]).expect("written");
        let broken = log.verify().expect_err("broken");
        assert!(broken.why.contains("the lines before this one are not verified"), "{broken}");
    }
}

#[test]
fn an_unchained_log_is_moved_aside() {
    let log = TestAuditLog::with_lines(0, 0, u64::MAX);
    let head = file::head_path(&log.path);
    fs::remove_file(&head).expect("there");
    fs::write(&log.path, "{\"outcome\":\"ok\"}\n").expect("written");
    let mut chain =
        ChainedAuditLog::open(&log.path, log.key.clone(), 20, u64::MAX).expect("a file");
    chain.open_append(&[b"{\"n\":0}"]).expect("written");
    let whole = log.verify().expect("whole");
    assert_eq!((whole.first_seq, whole.last_seq), (1, 2));
    assert_eq!(whole.unchecked, [rotated_path(&log.path, 1)]);
}

#[test]
fn only_files_that_should_be_kept_count_as_missing() {
    let log = TestAuditLog::with_lines(0, 0, u64::MAX);
    for keep in [1, 3] {
        let mut chain =
            ChainedAuditLog::open(&log.path, log.key.clone(), keep, 400).expect("a file");
        for _ in 0..40 {
            chain.open_append(&[b"{\"n\":0}"]).expect("written");
        }
        let whole = log.verify().expect("whole");
        assert!(whole.first_seq > 20 && whole.unchecked.is_empty(), "{whole:?}");
    }
    fs::remove_file(rotated_path(&log.path, 3)).expect("there");
    assert!(log.verify().expect_err("broken").why.contains("the oldest file is missing"));
}

#[test]
fn a_head_that_is_removed_while_a_server_runs_is_written_again() {
    let log = TestAuditLog::with_lines(0, 0, u64::MAX);
    let mut chain =
        ChainedAuditLog::open(&log.path, log.key.clone(), 20, u64::MAX).expect("a file");
    chain.open_append(&[b"{\"n\":0}"]).expect("written");
    log.edit(&AuditLogEdit::NoHead);
    chain.open_append(&[b"{\"n\":1}"]).expect("written");
    assert_eq!(log.verify().expect("whole").last_seq, 2);
    assert!(log.folder.path().exists());
}

#[test]
fn a_log_with_several_writers_is_rotated_and_stays_whole() {
    const WRITERS: usize = 8;
    const EACH: usize = 250;
    let log = TestAuditLog::with_lines(0, 0, 1 << 16);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mut chain =
                ChainedAuditLog::open(&log.path, log.key.clone(), 20, 1 << 16).expect("a file");
            scope.spawn(move || {
                for number in 0..EACH {
                    let body = format!("{{\"n\":\"{writer}-{number}\",\"pad\":\"{:0200}\"}}", 0);
                    chain.open_append(&[body.as_bytes()]).expect("it is written");
                }
            });
        }
    });
    let whole = log.verify().expect("it is whole");
    assert_eq!((whole.first_seq, whole.last_seq), (1, (WRITERS * EACH) as u64));
    let files = log.files();
    assert!((5..20).contains(&files.len()), "{files:?}");
    let text = files.iter().map(|file| fs::read_to_string(file).expect("there"));
    let text = text.collect::<String>();
    for writer in 0..WRITERS {
        for number in 0..EACH {
            assert_eq!(text.matches(&format!("\"{writer}-{number}\"")).count(), 1);
        }
    }
}
