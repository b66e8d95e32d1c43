//! Tests with several processes on one index: one writes, the others read, and any may be killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::*;

const FOLDER: &str = "TOOLGATE_TEST_INDEX";
const FILES: usize = 25;
/// Number of chunks in the test's index: two for each file. Both contain the version number of the
/// file.
const CHUNKS: usize = 2 * FILES;

/// Child process that is killed when this value is dropped.
struct KilledTestProcess(Child);

impl Drop for KilledTestProcess {
    fn drop(&mut self) {
        // Killed with SIGKILL.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts this test program again, for the test `name` only. Returns the process and the lines that
/// it prints.
fn start(name: &str, folder: &Path) -> (KilledTestProcess, Receiver<String>) {
    let name = format!("index::tests::processes::{name}");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = lines(child.stdout.take().unwrap());
    (KilledTestProcess(child), lines)
}

fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // The test program itself writes lines before ours.
            if let Some((_, reported)) = line.rsplit_once("> ")
                && sender.send(reported.to_owned()).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn report(reported: &str) {
    println!("> {reported}");
    std::io::stdout().flush().unwrap();
}

fn put_all(writer: &mut SearchIndexWriter, version: u64) {
    for at in 0..FILES {
        let text = format!("version {version}\n\nfile of {version}");
        TestDocument::new(&format!("f{at}.txt"), &text, &[]).put(writer, &version.to_le_bytes());
    }
}

fn version(snapshot: &IndexSnapshot) -> Option<u64> {
    let documents = snapshot.documents().unwrap();
    let version = |it: &super::super::IndexedDocumentVersion| {
        u64::from_le_bytes(it.fingerprint[..].try_into().unwrap())
    };
    let versions: Vec<u64> = documents.values().map(version).collect();
    assert!(versions.is_empty() || versions.len() == FILES, "{} files", versions.len());
    assert!(versions.windows(2).all(|pair| pair[0] == pair[1]), "{versions:?}");
    versions.first().copied()
}

#[test]
#[ignore = "run by other tests as a separate process"]
fn process_that_writes_versions() {
    let folder = std::env::var_os(FOLDER).unwrap();
    let (index, begun) = SearchIndex::open(IndexLocation::Folder(folder.as_ref()), None).unwrap();
    let mut writer = index.writer().unwrap().expect("the previous writer is dead");
    report(&format!("begun {begun:?}"));
    let mut next = version(&index.snapshot().unwrap()).unwrap_or_default() + 1;
    loop {
        put_all(&mut writer, next);
        writer.commit().unwrap();
        report(&next.to_string());
        next += 1;
    }
}

#[test]
#[ignore = "run by other tests as a separate process"]
fn process_that_reads_versions() {
    let folder = std::env::var_os(FOLDER).unwrap();
    let (index, begun) = SearchIndex::open(IndexLocation::Folder(folder.as_ref()), None).unwrap();
    assert!(index.writer().unwrap().is_none(), "another process writes");
    report(&format!("begun {begun:?}"));
    let mut last = None;
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        let now = index.snapshot().unwrap();
        let read = version(&now);
        if read != last {
            let found = read.map_or(0, |it| find(&now, &it.to_string()).len());
            report(&format!("{} {found}", read.unwrap_or_default()));
            last = read;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_writer_leaves_its_last_commit() {
    let folder = tempfile::tempdir().unwrap();
    drop(SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap());
    let mut seed = u64::from(std::process::id());
    let mut last = 0;
    for round in 0..10 {
        let (writer, lines) = start("process_that_writes_versions", folder.path());
        let wait = Duration::from_secs(30);
        assert_eq!(lines.recv_timeout(wait).unwrap(), "begun Existing", "round {round}");
        let mut reported: u64 = lines.recv_timeout(wait).unwrap().parse().unwrap();
        assert_eq!(reported, last + 1, "round {round} continues after the last commit");
        // The kill may hit any step of the next commits.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let until = Instant::now() + Duration::from_micros(seed >> 33 & 0x3_ffff);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if let Ok(line) = lines.recv_timeout(left) {
                reported = line.parse().unwrap();
            }
        }
        drop(writer);
        reported = lines.iter().last().map_or(reported, |it| it.parse().unwrap());
        let (index, begun) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
        assert_eq!(begun, IndexOpenOutcome::Existing, "round {round}");
        let now = index.snapshot().unwrap();
        last = version(&now).unwrap();
        assert!(
            last == reported || last == reported + 1,
            "round {round}: {reported} was reported, {last} is in the index"
        );
        assert_eq!(find(&now, &last.to_string()).len(), CHUNKS, "round {round}");
    }
    // The next writer removes the leftovers of the killed ones.
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    put_all(&mut writer, last + 1);
    writer.commit().unwrap();
    writer.finish().unwrap();
    let files = std::fs::read_dir(folder.path().join("words")).unwrap().count();
    let segments = index.snapshot().unwrap().inner.segments.len();
    assert!(files <= 8 * segments + 8, "{files} files of {segments} segments");
}

#[test]
fn a_reader_sees_the_commits_of_a_writer_and_takes_over_after_its_death() {
    let folder = tempfile::tempdir().unwrap();
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    put_all(&mut writer, 1);
    writer.commit().unwrap();
    let (reader, lines) = start("process_that_reads_versions", folder.path());
    let wait = Duration::from_secs(30);
    assert_eq!(lines.recv_timeout(wait).unwrap(), "begun Existing");
    assert_eq!(lines.recv_timeout(wait).unwrap(), format!("1 {CHUNKS}"));
    for next in 2..12 {
        put_all(&mut writer, next);
        writer.commit().unwrap();
        // The reader may have skipped earlier versions.
        while lines.recv_timeout(wait).unwrap() != format!("{next} {CHUNKS}") {}
    }
    drop(reader);
    assert_eq!(version(&index.snapshot().unwrap()), Some(11), "a reader's death changes nothing");
    drop(writer);
    let (other, lines) = start("process_that_writes_versions", folder.path());
    assert_eq!(lines.recv_timeout(wait).unwrap(), "begun Existing");
    lines.recv_timeout(wait).unwrap();
    assert!(index.writer().unwrap().is_none(), "the other process writes");
    drop(other);
    assert!(index.writer().unwrap().is_some(), "the other process is dead");
    assert!(version(&index.snapshot().unwrap()).unwrap() >= 12);
}
