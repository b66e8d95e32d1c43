//! Tests that jobs in SQLite are not lost, duplicated or owned twice, and that the job store
//! recovers from failures.

mod older_files;
mod speed;
mod damaged_files;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;
use toolgate_contract::JobState;

use super::*;
use crate::jobs::store_tests::{TestStoreLocation, at, end, id, job, job_store_tests, printed};

/// Name of the environment variable that tells the second process of a test where the job store is.
const OTHER: &str = "TOOLGATE_TEST_STORE";

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn open(folder: &TempDir) -> SqliteStore {
    SqliteStore::open(folder.path(), 1).expect("a store")
}

job_store_tests!(folder());

impl TestStoreLocation for TempDir {
    const MODEL_RUNS: u32 = 40;

    fn open(&self) -> BoxFuture<'_, Box<dyn JobStore>> {
        Box::pin(async { Box::new(open(self)) as Box<dyn JobStore> })
    }

    fn another(&self) -> Self {
        folder()
    }
}

/// Runs the test `name` of this file in a second process, which the command `starter` starts.
fn other(name: &str, starter: &[&str], folder: &Path) -> Child {
    let test = format!("{}::{name}", module_path!().split_once("::").expect("a crate").1);
    let this = std::env::current_exe().expect("a program");
    let mut all = starter.iter().map(PathBuf::from).chain([this]);
    let mut command = Command::new(all.next().expect("one"));
    command.args(all).args(["--exact", &test, "--nocapture"]).env(OTHER, folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts")
}

/// Returns the number of transactions in the database's journal.
fn commits(folder: &TempDir) -> usize {
    let journal = std::fs::read(folder.path().join("jobs.db-wal")).expect("a journal");
    let number =
        |from: usize| u32::from_be_bytes(journal[from..from + 4].try_into().expect("four bytes"));
    let frame = 24 + usize::try_from(number(8)).expect("a page size");
    let frames = (32..journal.len()).step_by(frame).filter(|from| from + frame <= journal.len());
    // Frames of an earlier journal have another salt, and only a commit has the file's length.
    frames.filter(|from| number(from + 8) == number(16) && number(from + 4) != 0).count()
}

impl SqliteStore {
    /// Adopts all jobs of dead servers. Skips the step that ends leftover programs of these
    /// servers.
    async fn adopt_all(&self) -> Result<TakenOverJobs, JobStoreError> {
        let mut adopted = self.adopt(Arc::new(|_| true)).await?;
        std::mem::replace(&mut adopted.forget_servers, Box::new(|| ()))();
        Ok(adopted)
    }
}

#[tokio::test]
async fn acknowledged_jobs_survive_a_killed_server() {
    if let Some(folder) = std::env::var_os(OTHER) {
        let store = SqliteStore::open(Path::new(&folder), 77).expect("a store");
        for number in 1..=20 {
            store.accept(job(number)).await.expect("it is accepted");
        }
        store.begin(id(1), at(1)).await.expect("it begins");
        store.append_events(id(1), vec![(at(2), printed("half"))]).await.expect("it is added");
        store.finish(id(2), end(2, vec![])).await.expect("it ends");
        println!("\nacknowledged");
        std::thread::park_timeout(Duration::from_secs(60));
        return;
    }
    let folder = folder();
    let mut other = other("acknowledged_jobs_survive_a_killed_server", &[], folder.path());
    let lines = BufReader::new(other.stdout.take().expect("its output")).lines();
    lines
        .map_while(Result::ok)
        .find(|line| line == "acknowledged")
        .expect("the jobs are acknowledged");
    let store = open(&folder);
    assert!(
        store.adopt_all().await.expect("it adopts").jobs.is_empty(),
        "the other server is alive"
    );
    other.kill().expect("it is killed");
    other.wait().expect("it has ended");

    let adopted = store.adopt_all().await.expect("it adopts");
    assert_eq!(adopted.marks, [77]);
    let ids: Vec<JobId> = adopted.jobs.iter().map(|job| job.id).collect();
    let expected: Vec<JobId> = [1].into_iter().chain(3..=20).map(id).collect();
    assert_eq!(ids, expected);
    assert_eq!(adopted.jobs[0].state, JobState::Running);
    assert_eq!(adopted.jobs[1].state, JobState::Queued);
    let last = store.events(id(1), 2, 1).await.expect("events");
    assert_eq!(last[0].kind, printed("half"));
    let begun = store.begin(id(20), at(9)).await.expect("it begins").expect("it is there");
    assert_eq!((begun.input, begun.attempt), (json!({ "number": 20 }), 1));
}

#[tokio::test]
async fn the_mark_of_a_dead_server_without_jobs_is_returned_once() {
    let folder = folder();
    let store = open(&folder);
    let servers = folder.path().join("servers");
    std::fs::write(servers.join("00000000000000aa"), "5").expect("a file");
    std::fs::write(servers.join("00000000000000ab"), "").expect("a file that was not written");
    std::fs::write(servers.join("00000000000000ac.new"), "").expect("one that never had its name");
    std::fs::write(servers.join("README"), "").expect("an unrelated file");
    assert_eq!(store.adopt_all().await.expect("it adopts").marks, [5]);
    assert_eq!(store.adopt_all().await.expect("it adopts").marks, [0; 0]);
    let left = std::fs::read_dir(&servers).expect("a folder").count();
    assert_eq!(left, 2, "its own file and the README");
    drop(store);
    assert_eq!(std::fs::read_dir(&servers).expect("a folder").count(), 1);
}

#[tokio::test]
async fn removed_jobs_leave_no_rows() {
    let folder = folder();
    let store = open(&folder);
    for number in 1..=6 {
        store.accept(job(number)).await.expect("it is accepted");
    }
    for number in 1..=4 {
        store.finish(id(number), end(1, vec![(at(1), printed("x"))])).await.expect("it ends");
    }
    assert_eq!(store.remove_expired(at(9999), 9).await.expect("an answer").len(), 4);
    drop(store);

    let db = Connection::open(folder.path().join(FILE_NAME)).expect("a database");
    let count = |table: &str| -> i64 {
        db.query_row(&format!("SELECT count(*) FROM {table}"), (), |row| row.get(0)).expect("it")
    };
    assert_eq!(["jobs", "events", "inputs", "forgotten"].map(count), [2, 2, 2, 0]);
}

#[tokio::test]
async fn removed_jobs_free_their_disk_space() {
    let folder = folder();
    let store = open(&folder);
    store.accept(job(1)).await.expect("it is accepted");
    let megabyte = vec![(at(1), printed(&"x".repeat(1 << 16))); 16];
    for _ in 0..24 {
        store.append_events(id(1), megabyte.clone()).await.expect("it is added");
    }
    store.finish(id(1), end(2, vec![])).await.expect("it ends");
    assert_eq!(store.remove_expired(at(9999), 0).await.expect("an answer"), [id(1)]);
    drop(store);
    let bytes = std::fs::metadata(folder.path().join(FILE_NAME)).expect("a file").len();
    assert!(bytes < 6 << 20, "{bytes} of 24 MiB");
}

#[tokio::test]
async fn concurrent_writes_share_commits() {
    let folder = folder();
    let store = open(&folder);
    let before = commits(&folder);
    let accepted = join_all((1..=200).map(|number| store.accept(job(number)))).await;
    assert!(accepted.iter().all(Result::is_ok));
    let commits = commits(&folder) - before;
    assert!((1..=20).contains(&commits), "200 jobs took {commits} commits");
}

#[tokio::test]
async fn a_failed_write_does_not_affect_others_in_its_commit() {
    let folder = folder();
    let store = open(&folder);
    // Job 1 is accepted twice, the second time between others.
    let numbers = [1, 2, 1, 3];
    let accepted = join_all(numbers.map(|number| store.accept(job(number)))).await;
    assert_eq!(accepted.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
    // A write that fails halfway.
    let half = store.writer.submit(WriteDurability::Written, 0, |session: &WriterThreadState| {
        session.db.execute("INSERT INTO forgotten (job) VALUES (1)", ())?;
        Err::<(), _>(schema::SqliteFailure::Invalid("half".to_owned()))
    });
    let (half, whole) = tokio::join!(half, store.accept(job(4)));
    assert!(half.is_err() && whole.is_ok());
    while store.writer.submit(WriteDurability::Written, 0, writes::sweep).await.expect("it sweeps")
    {
    }
    assert_eq!(store.list(None, None, 10).await.expect("a page").jobs.len(), 4);
    assert_eq!(store.events(id(1), 0, 100).await.expect("events").len(), 1);
}

#[tokio::test]
async fn a_lost_transaction_fails_all_its_writes_and_stores_nothing() {
    let folder = folder();
    let store = open(&folder);
    let (go, wait) = std::sync::mpsc::channel();
    let (started, start) = std::sync::mpsc::channel();
    // The others gather while the first runs.
    let first = store.writer.submit(WriteDurability::Written, 0, move |_: &WriterThreadState| {
        started.send(()).map_err(|err| schema::SqliteFailure::Invalid(err.to_string()))?;
        wait.recv().map_err(|err| schema::SqliteFailure::Invalid(err.to_string()))
    });
    let mut first = Box::pin(first);
    assert!((&mut first).now_or_never().is_none(), "it waits");
    start.recv().expect("it is being done");
    let lost = store.writer.submit(WriteDurability::Written, 0, |session: &WriterThreadState| {
        session.db.execute_batch("ROLLBACK")?;
        Err::<(), _>(schema::SqliteFailure::Invalid("the disk failed".to_owned()))
    });
    let (first, before, lost, after, _) =
        tokio::join!(first, store.accept(job(1)), lost, store.accept(job(2)), async move {
            go.send(()).expect("it waits");
        });
    first.expect("it was committed before");
    for result in [before, lost, after] {
        assert!(result.expect_err("it is lost").to_string().contains("the disk failed"));
    }
    assert_eq!(store.list(None, None, 9).await.expect("a page").jobs.len(), 0);
    store.accept(job(1)).await.expect("it goes on");
}

#[tokio::test]
async fn a_new_job_has_no_data_of_a_half_removed_one() {
    let folder = folder();
    let store = open(&folder);
    store.accept(job(1)).await.expect("it is accepted");
    store.finish(id(1), end(1, vec![(at(1), printed("x")); 9])).await.expect("it ends");
    let forget = |session: &WriterThreadState| writes::remove_jobs(session, &[id(1)]);
    let forgotten = store.writer.submit(WriteDurability::Written, 0, forget).await;
    assert_eq!(forgotten.expect("it is forgotten"), [id(1)]);
    store.accept(job(2)).await.expect("it is accepted");
    assert_eq!(store.remove_expired(at(2), 9).await.expect("the rest goes"), []);
    assert_eq!(store.events(id(2), 0, 100).await.expect("events").len(), 1);
    assert!(store.begin(id(2), at(3)).await.expect("an answer").is_some());
}

#[tokio::test]
async fn only_durable_writes_wait_for_the_disk() {
    let folder = folder();
    let store = open(&folder);
    for (durability, level) in [
        (WriteDurability::Durable, 2_i64),
        (WriteDurability::Written, 1),
        (WriteDurability::Written, 1),
        (WriteDurability::Durable, 2),
    ] {
        let queried = store.writer.submit(durability, 0, |session: &WriterThreadState| {
            Ok(session.db.query_row("PRAGMA synchronous", (), |row| row.get::<_, i64>(0))?)
        });
        assert_eq!(queried.await.expect("a level"), level);
    }
}

#[tokio::test]
async fn a_submitted_write_is_done_even_if_nobody_waits_for_it() {
    let folder = folder();
    let store = open(&folder);
    for number in 1..=50 {
        assert!(store.accept(job(number)).now_or_never().is_none(), "it takes a moment");
    }
    drop(store);
    let store = open(&folder);
    assert_eq!(store.adopt_all().await.expect("it adopts").jobs.len(), 50);
}

#[tokio::test]
async fn reads_work_while_another_program_holds_the_lock_and_writes_work_afterwards() {
    let folder = folder();
    let store = open(&folder);
    store.accept(job(1)).await.expect("it is accepted");
    let other = Connection::open(folder.path().join(FILE_NAME)).expect("a database");
    other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    let (refused, read) = tokio::join!(store.accept(job(2)), async {
        let began = Instant::now();
        let read = store.job(id(1)).await.expect("an answer").expect("it is there");
        assert!(began.elapsed() < Duration::from_millis(150), "it waited for the writer");
        read
    });
    assert_eq!(read.state, JobState::Queued);
    let refused = refused.expect_err("it is locked").to_string();
    assert!(refused.contains("another program keeps") && refused.contains("locked"), "{refused}");
    other.execute_batch("ROLLBACK").expect("no lock");
    store.accept(job(2)).await.expect("it is accepted");
}

#[tokio::test]
async fn a_full_disk_is_reported_and_the_store_recovers() {
    const NAME: &str = "a_full_disk_is_reported_and_the_store_recovers";
    if let Some(folder) = std::env::var_os(OTHER) {
        return on_a_small_disk(Path::new(&folder)).await;
    }
    let folder = folder();
    // A separate file system that ends with the other process.
    let script = "mount -t tmpfs -o size=2m none \"$0\" && echo && echo mounted && exec \"$@\"";
    let path = folder.path().to_str().expect("a path");
    let starter = ["unshare", "-rm", "sh", "-c", script, path];
    let other = other(NAME, &starter, folder.path()).wait_with_output().expect("it ends");
    let output = String::from_utf8_lossy(&other.stdout);
    if !output.contains("mounted") {
        return eprintln!("skipped: this machine does not let a test mount a disk");
    }
    assert!(other.status.success(), "{output}");
}

async fn on_a_small_disk(folder: &Path) {
    let filler = folder.join("filler");
    std::fs::write(&filler, vec![1; 1 << 20]).expect("half the disk");
    let store = SqliteStore::open(&folder.join("jobs"), 1).expect("a store");
    store.accept(job(1)).await.expect("it is accepted");
    let some = || vec![(at(1), printed(&"x".repeat(20_000)))];
    let mut added = 0;
    let refused = loop {
        match store.append_events(id(1), some()).await {
            Ok(_) => added += 1,
            Err(err) => break err.to_string(),
        }
    };
    assert!(refused.contains("the disk of") && refused.contains("is full"), "{refused}");
    assert!(added > 5, "{added}");
    // Some still fit; the others fail, and nothing is stored halfway.
    let accepted = join_all((2..200).map(|number| store.accept(job(number)))).await;
    let accepted = accepted.iter().filter(|accepted| accepted.is_ok()).count();
    assert_eq!(store.list(None, None, 500).await.expect("a page").jobs.len(), 1 + accepted);

    std::fs::remove_file(&filler).expect("room");
    store.accept(job(900)).await.expect("it is accepted");
    store.append_events(id(1), some()).await.expect("it is added");
    store.finish(id(1), end(3, vec![])).await.expect("it ends");
    drop(store);
    let store = SqliteStore::open(&folder.join("jobs"), 1).expect("a store");
    let last = store.job(id(1)).await.expect("an answer").expect("it is there").last_event;
    assert_eq!(last, 1 + added + 1 + 1);
    let events = store.events(id(1), 0, usize::MAX).await.expect("events");
    assert_eq!(events.len() as u64, last);
}

#[tokio::test]
async fn a_mark_is_returned_until_its_server_is_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let left = folder.path().join("servers/0000000000000001");
    let store = SqliteStore::open(folder.path(), 8).expect("it opens");
    std::fs::write(left, "5").expect("a server's file");
    let marks = || async {
        let adopted = store.adopt(Arc::new(|_| true)).await.expect("it adopts");
        (adopted.marks, adopted.forget_servers)
    };
    let (first, forget_servers) = marks().await;
    drop(forget_servers);
    assert_eq!(first, [5]);
    let (again, forget_servers) = marks().await;
    forget_servers();
    assert_eq!(again, [5]);
    assert_eq!(marks().await.0, [0; 0]);
}
