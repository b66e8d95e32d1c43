//! What must not happen to records: loss, doubling, and calls that wait for ever.

use serde_json::json;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{Asker, Beside, Caller, EventSink};

use super::*;

fn call() -> Call {
    Call {
        tool: "files_read".to_owned(),
        input: json!({}),
        caller: Caller::local(),
        dialect: "test".into(),
        cancel: CancellationToken::new(),
        events: EventSink::none(),
        job: None,
        asker: Asker::nobody(),
        beside: Beside::default(),
        within: None,
    }
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn a_dropped_call_leaves_one_record_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.jsonl");
    let audit = Audit::open(&Destination::File(path.clone())).expect("a log");
    drop(audit.begin(&call()).await.expect("a place"));
    audit.begin(&call()).await.expect("a place").close(Err(&CallError::Canceled));
    audit.flush();
    let text = std::fs::read_to_string(path).expect("the log");
    assert_eq!(text.lines().count(), 2);
    assert!(text.contains("\"dropped\"") && text.contains("\"canceled\""), "{text}");
}

#[test]
fn two_processes_that_fill_one_file_lose_no_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.jsonl");
    let mut one = RolledFile::open(&path).expect("a file");
    let mut two = RolledFile::open(&path).expect("a file");
    let line = [vec![b'x'; 1023], vec![b'\n']].concat();
    let count = usize::try_from(FILE_BYTES_MAX).expect("small") / line.len() + 100;
    for turn in 0..count {
        let file = if turn % 2 == 0 { &mut one } else { &mut two };
        file.write_all(&line).expect("it is written");
    }
    assert_eq!(lines(&path) + lines(&aside(&path)), count);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_written_refuses_calls_instead_of_keeping_them_waiting() {
    /// A disk that is full until it is told otherwise.
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let queue = Arc::new(Queue::new(2, None));
    let writers = queue.clone();
    std::thread::spawn(move || writers.write_all(Box::new(Full)));
    let audit = Audit(Some(queue));
    for _ in 0..2 {
        drop(audit.begin(&call()).await.expect("a place"));
    }
    assert!(matches!(audit.begin(&call()).await, Err(CallError::Limited { .. })));
}
