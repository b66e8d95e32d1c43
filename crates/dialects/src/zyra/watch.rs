//! Encoders for job events: on the WebSocket that started the job, on a separate WebSocket for the
//! job, or as server-sent events.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use toolgate_contract::{
    JobEventKind, JobId, JobSnapshot, JobStreamItem, OutputStreamKind, Reply, lock_mutex,
};

use super::encoding::{ZyraCommandResult, output_path};
use super::http_paths::single_query_value;
use super::rest::{error_reply, unknown_job_message};
use crate::rpc::{notification, to_json};
use crate::{JobEventEncoder, JobWatchRequest, JobWatchSchedule, ParsedFrame, WebSocketPurpose};

/// Time without events after which a WebSocket that watches a job gets a keep-alive message.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(5);
/// Range and default of the interval between snapshots of a job, in milliseconds, which a client
/// may choose.
const INTERVAL_MS: MillisecondsParamRange =
    MillisecondsParamRange { min: 50, default: 200, max: 60_000 };
/// Range and default of the duration of a stream of snapshots of a job, in milliseconds, which a
/// client may choose.
const MAX_MS: MillisecondsParamRange =
    MillisecondsParamRange { min: 0, default: 10_000, max: 3_600_000 };
/// The keys of messages about a job, from which the query parameter `stream` selects.
const KEYS: [&str; 7] =
    ["stdout", "stderr", "progress", "message", "status", "exit_code", "output_file"];
/// Progress of zero, for a job that has not reported any progress yet.
const NO_PROGRESS: JobEventKind = JobEventKind::Progress { fraction: 0.0, message: None };

/// The range and default of a query parameter in milliseconds. Values outside the range are
/// clamped.
struct MillisecondsParamRange {
    min: u64,
    default: u64,
    max: u64,
}

impl MillisecondsParamRange {
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

/// Starts a stream of server-sent events about the job `id`. An unknown job has the status
/// `unknown`.
pub(crate) fn event_stream_reading(id: String, query: &str) -> ParsedFrame {
    let schedule = INTERVAL_MS.parse(query, "interval_ms").and_then(|every| {
        let at_most = MAX_MS.parse(query, "max_ms")?;
        Ok(JobWatchSchedule::Snapshots { every, at_most })
    });
    match schedule {
        Ok(schedule) => {
            let encoder = Arc::new(ZyraJobSnapshotEncoder { id: id.clone() });
            ParsedFrame::Watch(JobWatchRequest { id, schedule, encoder })
        }
        Err(why) => ParsedFrame::Reply(error_reply(400, why)),
    }
}

/// Upgrades a request to a WebSocket on which the client gets the events of the job `id`.
pub(crate) fn websocket_upgrade(id: String, query: &str) -> Result<WebSocketPurpose, Reply> {
    let selection = SelectedJobMessageKeys::parse(query).map_err(|why| error_reply(400, why))?;
    let encoder = Arc::new(ZyraWatchSocketEncoder {
        id: id.clone(),
        selection,
        sent: SentJobEvents::default(),
    });
    Ok(WebSocketPurpose::Watch(JobWatchRequest {
        id,
        schedule: JobWatchSchedule::Events { quiet: KEEP_ALIVE_AFTER },
        encoder,
    }))
}

/// The encoder for snapshots of a job that a Zyra client watches.
struct ZyraJobSnapshotEncoder {
    /// The job's id in the path of the request, which may be the id of an unknown job.
    id: String,
}

impl JobEventEncoder for ZyraJobSnapshotEncoder {
    /// Returns `None`: the first message about a job is a snapshot, which is encoded separately.
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
            "exit_code": job.and_then(|job| ZyraCommandResult::from_job(job).exit_code),
            "output_file": job.and_then(output_path),
        })))
    }
}

/// The encoder for a job's events on a WebSocket of its own.
struct ZyraWatchSocketEncoder {
    id: String,
    selection: SelectedJobMessageKeys,
    sent: SentJobEvents,
}

impl JobEventEncoder for ZyraWatchSocketEncoder {
    fn encode_start(&self, job: Option<&JobSnapshot>) -> Option<Bytes> {
        match job {
            Some(_) => {
                let is_chosen = self.selection.includes("stderr");
                is_chosen.then(|| to_json(&json!({ "stderr": "listening" })))
            }
            None => Some(to_json(&json!({ "error": unknown_job_message(&self.id) }))),
        }
    }

    fn encode_item(&self, what: &JobStreamItem) -> Option<Bytes> {
        let mut fields = match what {
            JobStreamItem::Event(event) => match &event.kind {
                JobEventKind::Queued => self.sent.next_fields(&NO_PROGRESS)?,
                what => self.sent.next_fields(what)?,
            },
            JobStreamItem::Ended(job) => {
                let ZyraCommandResult { stdout, stderr, exit_code } =
                    ZyraCommandResult::from_job(job);
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

    fn encode_keep_alive(&self) -> Option<Bytes> {
        Some(to_json(&json!({ "keepalive": true })))
    }
}

/// The keys that messages about a job contain, as the client selected them. If the client selected
/// none, all are contained.
#[derive(Debug, PartialEq, Eq)]
struct SelectedJobMessageKeys {
    keys: Vec<&'static str>,
}

impl SelectedJobMessageKeys {
    /// Parses the query parameter `stream`, which selects the keys that messages about a job
    /// contain.
    fn parse(query: &str) -> Result<Self, String> {
        let selected =
            single_query_value(query, "stream")?.unwrap_or_default().to_ascii_lowercase();
        let names = selected.split(',').map(str::trim).filter(|name| !name.is_empty());
        let keys = names.map(|name| {
            let key = KEYS.into_iter().find(|key| *key == name);
            key.ok_or_else(|| format!("`stream` may name {}, not `{name}`", KEYS.join(", ")))
        });
        Ok(Self { keys: keys.collect::<Result<_, _>>()? })
    }

    /// Returns true if messages about a job contain the key `name`, as the client selected.
    fn includes(&self, name: &str) -> bool {
        self.keys.is_empty() || self.keys.contains(&name)
    }
}

/// The encoder for a job's events on the WebSocket over which the job was started.
pub(crate) struct ZyraCallSocketJobEncoder {
    job: JobId,
    /// The client's token for progress notifications, if it sent one.
    token: Option<Value>,
    sent: SentJobEvents,
}

impl JobEventEncoder for ZyraCallSocketJobEncoder {
    fn encode_start(&self, job: Option<&JobSnapshot>) -> Option<Bytes> {
        job.and_then(|_| self.encode_event(&NO_PROGRESS))
    }

    fn encode_item(&self, what: &JobStreamItem) -> Option<Bytes> {
        match what {
            JobStreamItem::Event(event) => self.encode_event(&event.kind),
            JobStreamItem::Ended(job) => Some(self.encode_progress(object(json!({
                "progress": 1.0,
                "status": job.state,
                "exit_code": ZyraCommandResult::from_job(job).exit_code,
                "output_file": output_path(job),
            })))),
        }
    }
}

impl ZyraCallSocketJobEncoder {
    /// Creates the encoder for the events of `job`, with the client's progress token `token`.
    pub(crate) fn new(job: JobId, token: Option<Value>) -> Self {
        Self { job, token, sent: SentJobEvents::default() }
    }

    fn encode_event(&self, what: &JobEventKind) -> Option<Bytes> {
        self.sent.next_fields(what).map(|fields| self.encode_progress(fields))
    }

    fn encode_progress(&self, fields: Map<String, Value>) -> Bytes {
        let mut params = object(json!({ "job_id": self.job.to_string() }));
        if let Some(token) = &self.token {
            params.insert("progressToken".to_owned(), token.clone());
        }
        params.extend(fields);
        notification("notifications/progress", &params)
    }
}

/// Progress and output of a job that its watcher has received, so that no progress is repeated.
#[derive(Debug, Default)]
struct SentJobEvents(Mutex<SentJobEventState>);

#[derive(Debug, Default)]
struct SentJobEventState {
    /// The last progress of the job that the watcher received, from 0 to 1.
    progress: Option<f64>,
    /// True if the watcher has received output of the job.
    has_output: bool,
}

impl SentJobEvents {
    /// Encodes the progress and output events of a watched job. Returns `None` for progress that is
    /// not new, and for all other events, which are encoded elsewhere.
    fn next_fields(&self, what: &JobEventKind) -> Option<Map<String, Value>> {
        let mut sent = lock_mutex(&self.0);
        match what {
            JobEventKind::Progress { fraction, message } => {
                // After output, the message is the last line that the program printed, and this
                // line was already sent.
                let message = message.as_ref().filter(|_| !sent.has_output);
                let last = sent.progress.replace(*fraction);
                if message.is_none() && last == Some(*fraction) {
                    return None;
                }
                let mut fields = object(json!({ "progress": fraction }));
                if let Some(message) = message {
                    fields.insert("message".to_owned(), json!(message));
                }
                Some(fields)
            }
            JobEventKind::Output { stream, text } => {
                sent.has_output = true;
                let key = match stream {
                    OutputStreamKind::Stdout => "stdout",
                    OutputStreamKind::Stderr => "stderr",
                };
                Some([(key.to_owned(), json!(text))].into_iter().collect())
            }
            JobEventKind::Queued
            | JobEventKind::Started { .. }
            | JobEventKind::Log { .. }
            | JobEventKind::Artefact(_)
            | JobEventKind::Asks { .. }
            | JobEventKind::Finished { .. } => None,
        }
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
    fn a_selection_without_names_selects_all_keys() {
        for query in ["", "stream=", "stream=%20,,", "api_key=x"] {
            let all = SelectedJobMessageKeys { keys: Vec::new() };
            assert_eq!(SelectedJobMessageKeys::parse(query), Ok(all), "{query}");
        }
        let chosen = SelectedJobMessageKeys::parse("stream=STDOUT,+exit_code,,Progress").unwrap();
        assert_eq!(chosen.keys, ["stdout", "exit_code", "progress"]);
        assert!(chosen.includes("stdout") && !chosen.includes("stderr"));
    }

    #[test]
    fn progress_is_sent_once_and_without_the_last_line_of_the_output() {
        let sent = SentJobEvents::default();
        let progress = |fraction, message: Option<&str>| {
            let message = message.map(str::to_owned);
            let fields = sent.next_fields(&JobEventKind::Progress { fraction, message });
            fields.map(Value::Object)
        };
        assert_eq!(progress(0.0, None), Some(json!({ "progress": 0.0 })));
        assert_eq!(progress(0.0, None), None);
        assert_eq!(
            progress(0.0, Some("loading")),
            Some(json!({ "progress": 0.0, "message": "loading" }))
        );
        let text = "KeyError: 'a'\n".to_owned();
        let output = JobEventKind::Output { stream: OutputStreamKind::Stderr, text: text.clone() };
        assert_eq!(sent.next_fields(&output).map(Value::Object), Some(json!({ "stderr": text })));
        assert_eq!(progress(0.0, Some("KeyError: 'a'")), None);
        assert_eq!(progress(0.5, Some("KeyError: 'a'")), Some(json!({ "progress": 0.5 })));
    }
}
