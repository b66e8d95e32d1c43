//! Tests that audit records are neither lost nor duplicated, and that calls do not wait forever.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    CallEventSink, CallMetadata, Caller, PreparedCallValue, QuestionAsker, ToolRunStatus,
};

use super::file::rotated_path;
use super::*;

mod edits;

fn call() -> ToolCall {
    ToolCall {
        tool: "files_read".to_owned(),
        input: json!({}),
        caller: Caller::local(),
        dialect: "test".into(),
        cancel: CancellationToken::new(),
        events: CallEventSink::none(),
        job: None,
        asker: QuestionAsker::none(),
        metadata: CallMetadata::default(),
        time_limit: None,
        started_work: PreparedCallValue::default(),
    }
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn a_dropped_call_leaves_one_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.jsonl");
    let key = folder.path().join("key");
    let to = AuditFileSettings { path: path.clone(), key, keep: 1, bytes_max: 1 << 20 };
    let audit = AuditLog::open(&AuditDestination::File(to), false).expect("a log");
    drop(audit.begin_record(&call()).await.expect("a place"));
    let number =
        audit.begin_record(&call()).await.expect("a place").close(Err(&CallError::Canceled));
    audit.wait_until_stored(number).await.expect("a log that is not strict does not wait");
    audit.flush();
    let text = std::fs::read_to_string(path).expect("the log");
    assert_eq!(text.lines().count(), 2);
    assert!(text.contains("\"dropped\"") && text.contains("\"canceled\""), "{text}");
}

#[test]
fn two_processes_that_write_to_one_file_lose_no_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.jsonl");
    let key = || AuditKey::open_or_create(&folder.path().join("key")).expect("a key");
    let open = || ChainedAuditLog::open(&path, key(), 9, 10_000).expect("a file");
    let mut one = open();
    let mut two = open();
    for turn in 0..200 {
        let chain = if turn % 2 == 0 { &mut one } else { &mut two };
        chain.open_append(&[format!("{{\"turn\":{turn}}}").as_bytes()]).expect("it is written");
    }
    let whole = verify(&path, &key()).expect("it is read").expect("whole");
    assert_eq!((whole.first_seq, whole.last_seq), (1, 200));
    let aside = (1..9).map(|number| lines(&rotated_path(&path, number))).sum::<usize>();
    assert_eq!(lines(&path) + aside, 200);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_written_refuses_calls_instead_of_blocking_them() {
    /// Writer to a disk that is always full, for tests.
    struct FullDiskWriter;
    impl Write for FullDiskWriter {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let queue = Arc::new(AuditRecordQueue::new(2, None, false));
    let writers = queue.clone();
    std::thread::spawn(move || {
        writers.run_writer(AuditRecordSink::Stream(Box::new(FullDiskWriter)));
    });
    let audit = AuditLog(Some(queue));
    for _ in 0..2 {
        drop(audit.begin_record(&call()).await.expect("a place"));
    }
    assert!(matches!(audit.begin_record(&call()).await, Err(CallError::Limited { .. })));
}

/// Writer to a disk that is full while the flag is true, for tests.
struct SwitchableFullDisk(Arc<std::sync::atomic::AtomicBool>);

impl Write for SwitchableFullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_strict_log_refuses_calls_while_it_cannot_be_written_and_accepts_them_afterwards() {
    let full = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let queue = Arc::new(AuditRecordQueue::new(100, None, true));
    let writers = queue.clone();
    let disk = SwitchableFullDisk(full.clone());
    std::thread::spawn(move || writers.run_writer(AuditRecordSink::Stream(Box::new(disk))));
    let audit = AuditLog(Some(queue));
    let number = audit.begin_record(&call()).await.expect("a place").close(Ok(ToolRunStatus::Done));
    let early = tokio::time::timeout(Duration::from_millis(300), audit.wait_until_stored(number));
    assert!(early.await.is_err(), "the call was answered before its record was stored");
    let refused = audit.begin_record(&call()).await;
    assert!(matches!(refused, Err(CallError::Limited { .. })), "99 places were free");
    full.store(false, std::sync::atomic::Ordering::Relaxed);
    let number = audit.begin_record(&call()).await.expect("a place").close(Ok(ToolRunStatus::Done));
    audit.wait_until_stored(number).await.expect("the record is stored");
}

/// Writer that reports each text and waits until the text may be written, for tests.
struct PausedWriter {
    texts: mpsc::Sender<String>,
    permits: mpsc::Receiver<()>,
}

impl Write for PausedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The test may have ended.
        let _ = self.texts.send(String::from_utf8_lossy(bytes).into_owned());
        let _ = self.permits.recv();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn records_that_arrive_during_a_write_are_written_once() {
    let (sender, texts) = mpsc::channel();
    let (permits, receiver) = mpsc::channel();
    let queue = Arc::new(AuditRecordQueue::new(100, None, false));
    let writers = queue.clone();
    let stream = PausedWriter { texts: sender, permits: receiver };
    std::thread::spawn(move || writers.run_writer(AuditRecordSink::Stream(Box::new(stream))));
    let audit = AuditLog(Some(queue));
    for count in 1..4 {
        for _ in 0..count {
            drop(audit.begin_record(&call()).await.expect("a place"));
        }
        if count > 1 {
            permits.send(()).expect("the writer waits");
        }
        let text = texts.recv_timeout(Duration::from_secs(20)).expect("a batch is written");
        assert_eq!(text.lines().count(), count, "{text}");
    }
}
