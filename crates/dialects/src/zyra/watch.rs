//! Encoders for job events: on the WebSocket that started the job, on a separate WebSocket for the
//! job, or as server-sent events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use toolgate_contract::{JobEventKind, JobId, JobSnapshot, JobStreamItem, OutputStream, Reply};

use super::encoding::{CommandResult, output_path};
use super::http_paths::single_query_value;
use super::rest::{error_reply, unknown_job_message};
use crate::rpc::{notification, to_json};
use crate::{FrameReading, JobEventEncoder, JobWatchRequest, JobWatchSchedule, SocketUpgrade};

/// The quiet period of a WebSocket before a keep-alive message.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(5);
/// The allowed interval between snapshots, in milliseconds.
const INTERVAL_MS: MillisBounds = MillisBounds { min: 50, default: 200, max: 60_000 };
/// The allowed duration of a snapshot stream, in milliseconds.
const MAX_MS: MillisBounds = MillisBounds { min: 0, default: 10_000, max: 3_600_000 };

/// The range and default of a query parameter. Values outside the range are clamped.
struct MillisBounds {
    min: u64,
    default: u64,
    max: u64,
}

impl MillisBounds {
    fn parse(&self, query: &str, name: &str) -> Result<Duration, String> {
        let ms = match single_query_value(query, name)?.as_deref() {
            None | Some("") => self.default,
            Some(text) => text.parse().map_err(|_| {
                format!("`{name}` must be a whole number of milliseconds, not `{text}`")
            })?,
        };
        Ok(Duration::from_millis(ms.clamp(self.min, self.max)))
    }
}

/// Starts server-sent events for the job `id`. An unknown job has the status `unknown`.
pub(crate) fn event_stream_reading(id: String, query: &str) -> FrameReading {
    let schedule = INTERVAL_MS.parse(query, "interval_ms").and_then(|every| {
        let at_most = MAX_MS.parse(query, "max_ms")?;
        Ok(JobWatchSchedule::Snapshots { every, at_most })
    });
    match schedule {
        Ok(schedule) => {
            let encoder = Arc::new(SnapshotEncoder { id: id.clone() });
            FrameReading::Watch(JobWatchRequest { id, schedule, encoder })
        }
        Err(why) => FrameReading::Reply(error_reply(400, why)),
    }
}

/// Starts the events of the job `id` on its own WebSocket.
pub(crate) fn websocket_upgrade(id: String, query: &str) -> Result<SocketUpgrade, Reply> {
    let selection = StreamSelection::parse(query).map_err(|why| error_reply(400, why))?;
    let encoder = Arc::new(LiveEncoder { id: id.clone(), selection });
    Ok(SocketUpgrade::Watch(JobWatchRequest {
        id,
        schedule: JobWatchSchedule::Events { quiet: KEEP_ALIVE_AFTER },
        encoder,
    }))
}

/// The encoder for snapshots of a job.
struct SnapshotEncoder {
    /// The job's id as the path contains it, which may be the id of an unknown job.
    id: String,
}

impl JobEventEncoder for SnapshotEncoder {
    /// Returns `None`: the first message is a snapshot, which is encoded separately.
    fn encode_start(&self, _job: Option<&JobSnapshot>) -> Option<Bytes> {
        None
    }

    fn encode_item(&self, what: &JobStreamItem) -> Option<Bytes> {
        match what {
            JobStreamItem::Event(_) => None,
            JobStreamItem::Ended(job) => self.encode_snapshot(Some(job)),
        }
    }

    fn encode_snapshot(&self, job: Option<&JobSnapshot>) -> Option<Bytes> {
        Some(to_json(&json!({
            "job_id": self.id,
            "status": job.map_or("unknown", |job| job.state.as_str()),
            "exit_code": job.and_then(|job| CommandResult::from_job(job).exit_code),
            "output_file": job.and_then(output_path),
        })))
    }

    fn encode_keep_alive(&self) -> Option<Bytes> {
        None
    }
}

/// The encoder for a job's events on its own WebSocket.
struct LiveEncoder {
    id: String,
    selection: StreamSelection,
}

impl JobEventEncoder for LiveEncoder {
    fn encode_start(&self, job: Option<&JobSnapshot>) -> Option<Bytes> {
        match job {
            Some(_) => self.selection.stderr.then(|| to_json(&json!({ "stderr": "listening" }))),
            None => Some(to_json(&json!({ "error": unknown_job_message(&self.id) }))),
        }
    }

    fn encode_item(&self, what: &JobStreamItem) -> Option<Bytes> {
        let mut fields = match what {
            JobStreamItem::Event(event) => match &event.kind {
                JobEventKind::Queued => object(json!({ "progress": 0.0 })),
                what => event_fields(what)?,
            },
            JobStreamItem::Ended(job) => {
                let CommandResult { stdout, stderr, exit_code } = CommandResult::from_job(job);
                object(json!({
                    "status": job.state,
                    "stdout": stdout,
                    "stderr": stderr,
                    "exit_code": exit_code,
                    "progress": 1.0,
                    "output_file": output_path(job),
                }))
            }
        };
        fields.retain(|name, _| self.selection.includes(name));
        (!fields.is_empty()).then(|| to_json(&fields))
    }

    fn encode_snapshot(&self, _job: Option<&JobSnapshot>) -> Option<Bytes> {
        None
    }

    fn encode_keep_alive(&self) -> Option<Bytes> {
        Some(to_json(&json!({ "keepalive": true })))
    }
}

/// The selected parts of a job's events.
#[derive(Debug, PartialEq, Eq)]
struct StreamSelection {
    stdout: bool,
    stderr: bool,
    progress: bool,
}

impl StreamSelection {
    /// Parses the query parameter `stream`. Without it, all parts are selected.
    fn parse(query: &str) -> Result<Self, String> {
        let selected =
            single_query_value(query, "stream")?.unwrap_or_default().to_ascii_lowercase();
        let names = || selected.split(',').map(str::trim).filter(|name| !name.is_empty());
        let unknown = names().find(|name| !matches!(*name, "stdout" | "stderr" | "progress"));
        if let Some(unknown) = unknown {
            return Err(format!("`stream` may name stdout, stderr and progress, not `{unknown}`"));
        }
        let all = names().next().is_none();
        let has = |wanted| all || names().any(|name| name == wanted);
        Ok(Self { stdout: has("stdout"), stderr: has("stderr"), progress: has("progress") })
    }

    /// Returns true if the field `name` is selected. Fields other than the outputs count as
    /// progress.
    fn includes(&self, name: &str) -> bool {
        match name {
            "stdout" => self.stdout,
            "stderr" => self.stderr,
            _ => self.progress,
        }
    }
}

/// The encoder for a job's events on the WebSocket that started it.
pub(crate) struct FollowEncoder {
    pub(crate) job: JobId,
    /// The progress token, if the client sent one.
    pub(crate) token: Option<Value>,
}

impl JobEventEncoder for FollowEncoder {
    fn encode_start(&self, job: Option<&JobSnapshot>) -> Option<Bytes> {
        job.map(|_| self.encode_progress(object(json!({ "progress": 0.0 }))))
    }

    fn encode_item(&self, what: &JobStreamItem) -> Option<Bytes> {
        match what {
            JobStreamItem::Event(event) => {
                event_fields(&event.kind).map(|fields| self.encode_progress(fields))
            }
            JobStreamItem::Ended(job) => Some(self.encode_progress(object(json!({
                "progress": 1.0,
                "status": job.state,
                "exit_code": CommandResult::from_job(job).exit_code,
                "output_file": output_path(job),
            })))),
        }
    }

    fn encode_snapshot(&self, _job: Option<&JobSnapshot>) -> Option<Bytes> {
        None
    }

    fn encode_keep_alive(&self) -> Option<Bytes> {
        None
    }
}

impl FollowEncoder {
    fn encode_progress(&self, fields: Map<String, Value>) -> Bytes {
        let mut params = object(json!({ "job_id": self.job.to_string() }));
        if let Some(token) = &self.token {
            params.insert("progressToken".to_owned(), token.clone());
        }
        params.extend(fields);
        notification("notifications/progress", &params)
    }
}

/// Encodes progress and output events. `None` for all other events, which are reported in another
/// form.
fn event_fields(what: &JobEventKind) -> Option<Map<String, Value>> {
    match what {
        JobEventKind::Progress { fraction, message } => {
            let mut fields = object(json!({ "progress": fraction }));
            if let Some(message) = message {
                fields.insert("message".to_owned(), json!(message));
            }
            Some(fields)
        }
        JobEventKind::Output { stream: OutputStream::Stdout, text } => {
            Some(object(json!({ "stdout": text })))
        }
        JobEventKind::Output { stream: OutputStream::Stderr, text } => {
            Some(object(json!({ "stderr": text })))
        }
        JobEventKind::Queued
        | JobEventKind::Started { .. }
        | JobEventKind::Log { .. }
        | JobEventKind::Artefact(_)
        | JobEventKind::Asks { .. }
        | JobEventKind::Finished { .. } => None,
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_without_names_selects_all_parts() {
        let all = StreamSelection { stdout: true, stderr: true, progress: true };
        for query in ["", "stream=", "stream=%20,,", "api_key=x", "stream=STDOUT,stderr,+progress"]
        {
            assert_eq!(StreamSelection::parse(query).as_ref(), Ok(&all), "{query}");
        }
    }
}
