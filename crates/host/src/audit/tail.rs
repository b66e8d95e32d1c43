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
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{
    ChangeFeed, Effects, KeepActiveGuard, ResourceContents, ResourceSource, ResourceSpec,
    ServerChange, ToolContext, ToolError, ToolFuture, ToolId, ToolSpec,
};
use toolgate_net::spawn_blocking;

use super::file::{open_if_exists, rotated_path};
use super::queue::AuditRecordQueue;

/// Id that policy rules use for reads of the audit resource, like the id of a tool.
pub(super) const GUARD_ID: &str = "audit.read";
/// URI of the resource with the latest audit records.
const URI: &str = "audit://tail";
/// Media type of the resource with the latest audit records.
const MEDIA_TYPE: &str = "application/x-ndjson";
/// Maximum number of audit records that a read of the resource returns.
const RECORDS_MAX: usize = 100;
/// Maximum total size of the returned audit records in bytes.
const BYTES_MAX: usize = 1 << 20;
/// Longest audit record that a read of the resource returns, in bytes.
const LINE_BYTES_MAX: usize = 256 << 10;
/// Number of bytes of the audit log that are read at once.
const PIECE_BYTES: usize = 64 << 10;
/// Time for which a change of the audit resource waits to be combined with other changes.
const GATHER_TIME: Duration = Duration::from_millis(100);

/// Returns the id that policy rules use for reads of the audit resource, like the id of a tool.
pub fn audit_guard() -> ToolId {
    ToolId::new(GUARD_ID).expect("an id")
}

/// Creates the resource with the latest records of `queue`, or returns `None` if the log is not a
/// file.
pub(super) fn tail_resource(queue: &Arc<AuditRecordQueue>) -> Option<Arc<dyn ResourceSource>> {
    queue.file.as_ref()?;
    let about = "Your last 100 audit records: time, tool, outcome and duration of each call.";
    let guard = ToolSpec::new(audit_guard(), "Audit tail", about, Effects::Reads);
    Some(Arc::new(AuditTailSource { guard, queue: queue.clone() }))
}

/// Source of the resource `audit://tail`: the latest audit records of its caller.
struct AuditTailSource {
    guard: ToolSpec,
    queue: Arc<AuditRecordQueue>,
}

impl ResourceSource for AuditTailSource {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with("audit://")
    }

    fn list<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        after: Option<&'a str>,
        _at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        let entry = ResourceSpec {
            title: Some(self.guard.title.clone()),
            about: Some(self.guard.description.clone()),
            media_type: Some(MEDIA_TYPE.to_owned()),
            ..ResourceSpec::new(URI, "tail")
        };
        let entries = if after.is_none() { vec![entry] } else { Vec::new() };
        Box::pin(async { Ok(entries) })
    }

    fn read<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        Box::pin(async move {
            check_uri(uri)?;
            let queue = self.queue.clone();
            let caller = ctx.caller.name.clone();
            let cancel = ctx.cancel.clone();
            let records = spawn_blocking(move || {
                queue.flush();
                let file = queue.file.as_deref().unwrap_or(Path::new(""));
                latest_records(&caller, file, &cancel)
            });
            let failed = |err: &dyn std::fmt::Display| {
                ToolError::with_cause("the audit log could not be read", err)
            };
            let records = records.await.map_err(|err| failed(&err))?.map_err(|err| failed(&err))?;
            Ok(vec![ResourceContents::text(uri, MEDIA_TYPE, records)])
        })
    }

    fn watch<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
        changes: &'a ChangeFeed,
    ) -> ToolFuture<'a, KeepActiveGuard> {
        Box::pin(async move {
            check_uri(uri)?;
            let mut written_callers = self.queue.written_callers.subscribe();
            let changes = changes.clone();
            let (caller, uri): (_, Arc<str>) = (ctx.caller.name.clone(), uri.into());
            let task = toolgate_net::spawn_task(async move {
                loop {
                    match written_callers.recv().await {
                        Ok(written_caller) if written_caller != caller => continue,
                        Ok(_) | Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return,
                    }
                    tokio::time::sleep(GATHER_TIME).await;
                    // Drops the notifications that this one covers.
                    written_callers = written_callers.resubscribe();
                    changes.publish(&ServerChange::Resource(uri.clone()));
                }
            });
            Ok(KeepActiveGuard::new(AbortOnDropHandle::new(task)))
        })
    }
}

fn check_uri(uri: &str) -> Result<(), ToolError> {
    if uri == URI {
        return Ok(());
    }
    let uri: String = uri.chars().take(100).collect();
    Err(ToolError::not_found(format!("no resource is at `{uri}`; the records are at {URI}")))
}

/// Caller of an audit record. All other fields are skipped.
#[derive(Deserialize)]
struct AuditRecordCaller {
    caller: String,
}

/// Returns the fields of the audit record in `line` that the record's caller may see.
///
/// The cause and the fields of the chain are only for the operator.
fn visible_record(line: &[u8]) -> String {
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

/// Returns the latest audit records of `caller` in the log file at `path` and its newest rotated
/// file, oldest first.
fn latest_records(caller: &str, path: &Path, cancel: &CancellationToken) -> io::Result<String> {
    let mut lines = Vec::new();
    let mut bytes = 0;
    let mut take = |line: &[u8]| {
        let record = serde_json::from_slice::<AuditRecordCaller>(line);
        if cancel.is_cancelled() || !record.is_ok_and(|record| record.caller == caller) {
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
        lines.push(visible_record(line) + "\n");
        if lines.len() < RECORDS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let newest = open_if_exists(path)?;
    let mut flow = match &newest {
        Some(file) => read_lines_backwards(file, &mut take)?,
        None => ControlFlow::Continue(()),
    };
    if flow.is_continue()
        && let Some(older) = open_if_exists(&rotated_path(path, 1))?
    {
        // The newest file may have been rotated since it was opened.
        let is_read = match &newest {
            Some(newest) => same_file(newest, &older)?,
            None => false,
        };
        if !is_read {
            flow = read_lines_backwards(&older, &mut take)?;
        }
    }
    let _ = flow;
    lines.reverse();
    Ok(lines.concat())
}

fn same_file(one: &File, other: &File) -> io::Result<bool> {
    let one = one.metadata()?;
    let other = other.metadata()?;
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Passes the lines of `file` to `take`, the last line first, until `take` breaks. Skips overlong
/// lines.
fn read_lines_backwards(
    file: &File,
    take: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut at = file.metadata()?.len();
    let mut piece = vec![0; PIECE_BYTES];
    // Tail of a line whose start is not read yet, or `None` if it is too long.
    let mut end_of_line: Option<Vec<u8>> = Some(Vec::new());
    while at > 0 {
        let size = at.min(PIECE_BYTES as u64);
        at -= size;
        // It never exceeds one piece.
        let piece = &mut piece[..usize::try_from(size).unwrap_or(PIECE_BYTES)];
        file.read_exact_at(piece, at)?;
        let mut rest: &[u8] = piece;
        while let Some(line_break) = rest.iter().rposition(|byte| *byte == b'\n') {
            let line = join_line(&rest[line_break + 1..], end_of_line.as_deref());
            if let Some(line) = line.filter(|line| !line.is_empty())
                && take(&line).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            (rest, end_of_line) = (&rest[..line_break], Some(Vec::new()));
        }
        end_of_line = join_line(rest, end_of_line.as_deref());
    }
    match end_of_line.filter(|line| !line.is_empty()) {
        Some(line) => Ok(take(&line)),
        None => Ok(ControlFlow::Continue(())),
    }
}

/// Joins `start` and `end`, the two parts of a line. Returns `None` if the line is too long.
fn join_line(start: &[u8], end: Option<&[u8]>) -> Option<Vec<u8>> {
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
        numbers(&latest_records("ada", path, &CancellationToken::new()).expect("it is read"))
    }

    #[test]
    fn the_last_hundred_records_of_the_caller_are_returned_in_order_across_two_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        let mut old = File::create(rotated_path(&path, 1)).expect("a file");
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
    fn only_a_record_that_is_too_long_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        assert_eq!(last(&path), Vec::<u64>::new());
        let mut file = File::create(&path).expect("a file");
        for (number, pad) in
            [(1, 0), (2, LINE_BYTES_MAX), (3, PIECE_BYTES), (4, PIECE_BYTES * 2 + 1)]
        {
            file.write_all(record("ada", number, pad).as_bytes()).expect("written");
        }
        assert_eq!(last(&path), [1, 3, 4]);
    }
}
