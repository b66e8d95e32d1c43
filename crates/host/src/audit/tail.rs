//! Serves the caller's latest audit records as a resource, read from the end of the log file.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{
    BoxFuture, Change, Changes, Contents, Ctx, Effects, Hold, ResourceSpec, Resources, ToolError,
    ToolId, ToolSpec,
};

use super::file::aside;
use super::queue::Queue;

/// Guard id of this resource, for policy and records.
pub(super) const ID: &str = "audit.read";
/// URI of the resource.
const URI: &str = "audit://tail";
/// Media type of the resource.
const MEDIA_TYPE: &str = "application/x-ndjson";
/// Largest number of records returned.
const RECORDS_MAX: usize = 100;
/// Largest total size of the returned records in bytes.
const BYTES_MAX: usize = 1 << 20;
/// Longest record that is returned, in bytes.
const LINE_BYTES_MAX: usize = 256 << 10;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Time that a change waits to be combined with others.
const GATHER: Duration = Duration::from_millis(100);

/// Returns the guard id of the audit resource.
pub fn guard() -> ToolId {
    ToolId::new(ID).expect("an id")
}

/// Creates the resource for `queue`, or returns `None` if the log is not a file.
pub(super) fn of(queue: &Arc<Queue>) -> Option<Arc<dyn Resources>> {
    queue.file.as_ref()?;
    let about =
        "The last hundred records of your calls: when, what, how it ended, how long it took.";
    let guard = ToolSpec::new(guard(), "Audit tail", about, Effects::Reads);
    Some(Arc::new(Tail { guard, queue: queue.clone() }))
}

struct Tail {
    guard: ToolSpec,
    queue: Arc<Queue>,
}

impl Resources for Tail {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with("audit://")
    }

    fn list<'a>(
        &'a self,
        _ctx: &'a Ctx,
        after: Option<&'a str>,
        _at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        let entry = ResourceSpec {
            title: Some(self.guard.title.clone()),
            about: Some(self.guard.about.clone()),
            media_type: Some(MEDIA_TYPE.to_owned()),
            ..ResourceSpec::new(URI, "tail")
        };
        let entries = if after.is_none() { vec![entry] } else { Vec::new() };
        Box::pin(async { Ok(entries) })
    }

    fn read<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Contents>, ToolError>> {
        Box::pin(async move {
            is_there(uri)?;
            let queue = self.queue.clone();
            let caller = ctx.caller.name.clone();
            let cancel = ctx.cancel.clone();
            let records = spawn_blocking(move || {
                queue.flush();
                let file = queue.file.as_deref().unwrap_or(Path::new(""));
                last_of(&caller, file, &cancel)
            });
            let failed = |err: &dyn std::fmt::Display| {
                ToolError::because("the audit log could not be read", err)
            };
            let records = records.await.map_err(|err| failed(&err))?.map_err(|err| failed(&err))?;
            Ok(vec![Contents::text(uri, MEDIA_TYPE, records)])
        })
    }

    fn watch<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
        changes: &'a Changes,
    ) -> BoxFuture<'a, Result<Hold, ToolError>> {
        Box::pin(async move {
            is_there(uri)?;
            let mut news = self.queue.news.subscribe();
            let changes = changes.clone();
            let (caller, uri): (_, Arc<str>) = (ctx.caller.name.clone(), uri.into());
            let telling = tokio::spawn(async move {
                loop {
                    match news.recv().await {
                        Ok(whose) if whose != caller => continue,
                        Ok(_) | Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return,
                    }
                    tokio::time::sleep(GATHER).await;
                    // Drops the notifications that this one covers.
                    news = news.resubscribe();
                    changes.tell(&Change::Resource(uri.clone()));
                }
            });
            Ok(Hold::of(AbortOnDropHandle::new(telling)))
        })
    }
}

fn is_there(uri: &str) -> Result<(), ToolError> {
    if uri == URI {
        return Ok(());
    }
    let uri: String = uri.chars().take(100).collect();
    Err(ToolError::not_found(format!("no resource is at `{uri}`; the records are at {URI}")))
}

/// Caller of a record.
#[derive(Deserialize)]
struct Whose {
    caller: String,
}

/// Returns the record in `line` as its caller may see it.
///
/// The cause and the fields that prove the chain are only for the operator.
fn told(line: &[u8]) -> String {
    match serde_json::from_slice::<Map<String, Value>>(line) {
        Ok(mut record) => {
            for field in ["cause", "server", "prev", "mac"] {
                record.shift_remove(field);
            }
            Value::Object(record).to_string()
        }
        Err(_) => String::from_utf8_lossy(line).into_owned(),
    }
}

/// Returns the latest records of `caller` in the file at `path` and its predecessor, oldest first.
fn last_of(caller: &str, path: &Path, cancel: &CancellationToken) -> io::Result<String> {
    let mut lines = Vec::new();
    let mut bytes = 0;
    let mut take = |line: &[u8]| {
        let whose = serde_json::from_slice::<Whose>(line);
        if cancel.is_cancelled() || !whose.is_ok_and(|whose| whose.caller == caller) {
            return if cancel.is_cancelled() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            };
        }
        bytes += line.len();
        if bytes > BYTES_MAX {
            return ControlFlow::Break(());
        }
        lines.push(told(line) + "\n");
        if lines.len() < RECORDS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let newest = open(path)?;
    let mut going = match &newest {
        Some(file) => backwards(file, &mut take)?,
        None => ControlFlow::Continue(()),
    };
    if going.is_continue()
        && let Some(older) = open(&aside(path, 1))?
    {
        // The newest file may have been rotated since it was opened.
        let is_read = match &newest {
            Some(newest) => is_same(newest, &older)?,
            None => false,
        };
        if !is_read {
            going = backwards(&older, &mut take)?;
        }
    }
    let _ = going;
    lines.reverse();
    Ok(lines.concat())
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let one = one.metadata()?;
    let other = other.metadata()?;
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Passes the lines of `file` to `take`, last first, until it breaks. Overlong lines are skipped.
fn backwards(
    file: &File,
    take: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut at = file.metadata()?.len();
    let mut piece = vec![0; PIECE];
    // Tail of a line whose start is not read yet, or `None` if it is too long.
    let mut end_of_line: Option<Vec<u8>> = Some(Vec::new());
    while at > 0 {
        let size = at.min(PIECE as u64);
        at -= size;
        // It never exceeds one piece.
        let piece = &mut piece[..usize::try_from(size).unwrap_or(PIECE)];
        file.read_exact_at(piece, at)?;
        let mut rest: &[u8] = piece;
        while let Some(line_break) = rest.iter().rposition(|byte| *byte == b'\n') {
            let line = joined(&rest[line_break + 1..], end_of_line.as_deref());
            if let Some(line) = line.filter(|line| !line.is_empty())
                && take(&line).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            (rest, end_of_line) = (&rest[..line_break], Some(Vec::new()));
        }
        end_of_line = joined(rest, end_of_line.as_deref());
    }
    match end_of_line.filter(|line| !line.is_empty()) {
        Some(line) => Ok(take(&line)),
        None => Ok(ControlFlow::Continue(())),
    }
}

/// Joins the two parts of a line, unless the line is too long.
fn joined(start: &[u8], end: Option<&[u8]>) -> Option<Vec<u8>> {
    let end = end.filter(|end| start.len() + end.len() <= LINE_BYTES_MAX)?;
    Some([start, end].concat())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn record(caller: &str, number: usize, pad: usize) -> String {
        let pad = "x".repeat(pad);
        format!("{{\"caller\":\"{caller}\",\"n\":{number},\"pad\":\"{pad}\"}}\n")
    }

    fn numbers(text: &str) -> Vec<u64> {
        let number = |line| serde_json::from_str::<Value>(line).expect("JSON")["n"].as_u64();
        text.lines().map(|line| number(line).expect("a number")).collect()
    }

    fn last(path: &Path) -> Vec<u64> {
        numbers(&last_of("ada", path, &CancellationToken::new()).expect("it is read"))
    }

    #[test]
    fn the_last_hundred_of_the_caller_are_told_in_order_over_two_files_and_pieces() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        let mut old = File::create(aside(&path, 1)).expect("a file");
        for number in 0..100 {
            old.write_all(record("ada", number, 3000).as_bytes()).expect("written");
            old.write_all(record("bob", number, 10).as_bytes()).expect("written");
        }
        let mut new = File::create(&path).expect("a file");
        for number in 100..150 {
            new.write_all(record("ada", number, number % 7).as_bytes()).expect("written");
            new.write_all(record("bob", number, 10).as_bytes()).expect("written");
        }
        new.write_all(b"{\"caller\":\"ada\",\"n\":1").expect("written");
        assert_eq!(last(&path), (50..150).collect::<Vec<_>>());
    }

    #[test]
    fn a_record_that_is_too_long_is_left_out_and_the_others_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        assert_eq!(last(&path), Vec::<u64>::new());
        let mut file = File::create(&path).expect("a file");
        for (number, pad) in [(1, 0), (2, LINE_BYTES_MAX), (3, PIECE), (4, PIECE * 2 + 1)] {
            file.write_all(record("ada", number, pad).as_bytes()).expect("written");
        }
        assert_eq!(last(&path), [1, 3, 4]);
    }
}
