//! Encoders for job events: on the WebSocket that started the job, on its own WebSocket, or as
//! server-sent events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use toolgate_contract::{Happened, Job, JobId, Reply, Stream, Watched};

use super::places::single;
use super::rest::{detail, no_job};
use super::words::{Printed, output_file};
use crate::rpc::{notification, written};
use crate::{Pace, Reading, Upgrade, WatchTicket, Watching};

/// The quiet period of a WebSocket before a keep-alive message.
const QUIET: Duration = Duration::from_secs(5);
/// The allowed interval between snapshots, in milliseconds.
const INTERVAL_MS: Bounds = Bounds { least: 50, usual: 200, most: 60_000 };
/// The allowed duration of a snapshot stream, in milliseconds.
const MAX_MS: Bounds = Bounds { least: 0, usual: 10_000, most: 3_600_000 };

/// The range and default of a query parameter. Values outside the range are clamped.
struct Bounds {
    least: u64,
    usual: u64,
    most: u64,
}

impl Bounds {
    fn read(&self, query: &str, name: &str) -> Result<Duration, String> {
        let ms = match single(query, name)?.as_deref() {
            None | Some("") => self.usual,
            Some(text) => text.parse().map_err(|_| {
                format!("`{name}` must be a whole number of milliseconds, not `{text}`")
            })?,
        };
        Ok(Duration::from_millis(ms.clamp(self.least, self.most)))
    }
}

/// Starts server-sent events for the job `id`. An unknown job has the status `unknown`.
pub(crate) fn as_events(id: String, query: &str) -> Reading {
    let pace = INTERVAL_MS.read(query, "interval_ms").and_then(|every| {
        let at_most = MAX_MS.read(query, "max_ms")?;
        Ok(Pace::Snapshots { every, at_most })
    });
    match pace {
        Ok(pace) => {
            let ticket = Arc::new(Snapshots { id: id.clone() });
            Reading::Watch(Watching { id, pace, ticket })
        }
        Err(why) => Reading::Reply(detail(400, why)),
    }
}

/// Starts the events of the job `id` on its own WebSocket.
pub(crate) fn over_websocket(id: String, query: &str) -> Result<Upgrade, Reply> {
    let told = Told::read(query).map_err(|why| detail(400, why))?;
    let ticket = Arc::new(Live { id: id.clone(), told });
    Ok(Upgrade::Watch(Watching { id, pace: Pace::Events { quiet: QUIET }, ticket }))
}

/// The encoder for snapshots of a job.
struct Snapshots {
    /// The id as in the path. An unknown job has no other.
    id: String,
}

impl WatchTicket for Snapshots {
    /// The first snapshot is sent separately.
    fn begin(&self, _job: Option<&Job>) -> Option<Bytes> {
        None
    }

    fn told(&self, what: &Watched) -> Option<Bytes> {
        match what {
            Watched::Event(_) => None,
            Watched::Ended(job) => self.snapshot(Some(job)),
        }
    }

    fn snapshot(&self, job: Option<&Job>) -> Option<Bytes> {
        Some(written(&json!({
            "job_id": self.id,
            "status": job.map_or("unknown", |job| job.state.as_str()),
            "exit_code": job.and_then(|job| Printed::of_job(job).exit_code),
            "output_file": job.and_then(output_file),
        })))
    }

    fn alive(&self) -> Option<Bytes> {
        None
    }
}

/// The encoder for a job's events on its own WebSocket.
struct Live {
    id: String,
    told: Told,
}

impl WatchTicket for Live {
    fn begin(&self, job: Option<&Job>) -> Option<Bytes> {
        match job {
            Some(_) => self.told.stderr.then(|| written(&json!({ "stderr": "listening" }))),
            None => Some(written(&json!({ "error": no_job(&self.id) }))),
        }
    }

    fn told(&self, what: &Watched) -> Option<Bytes> {
        let mut fields = match what {
            Watched::Event(event) => match &event.what {
                Happened::Queued => object(json!({ "progress": 0.0 })),
                what => step(what)?,
            },
            Watched::Ended(job) => {
                let Printed { stdout, stderr, exit_code } = Printed::of_job(job);
                object(json!({
                    "status": job.state,
                    "stdout": stdout,
                    "stderr": stderr,
                    "exit_code": exit_code,
                    "progress": 1.0,
                    "output_file": output_file(job),
                }))
            }
        };
        fields.retain(|name, _| self.told.has(name));
        (!fields.is_empty()).then(|| written(&fields))
    }

    fn snapshot(&self, _job: Option<&Job>) -> Option<Bytes> {
        None
    }

    fn alive(&self) -> Option<Bytes> {
        Some(written(&json!({ "keepalive": true })))
    }
}

/// The selected parts of a job's events.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    stdout: bool,
    stderr: bool,
    progress: bool,
}

impl Told {
    /// Parses the query parameter `stream`. Without it, all parts are selected.
    fn read(query: &str) -> Result<Self, String> {
        let chosen = single(query, "stream")?.unwrap_or_default().to_ascii_lowercase();
        let names = || chosen.split(',').map(str::trim).filter(|name| !name.is_empty());
        let odd = names().find(|name| !matches!(*name, "stdout" | "stderr" | "progress"));
        if let Some(odd) = odd {
            return Err(format!("`stream` may name stdout, stderr and progress, not `{odd}`"));
        }
        let all = names().next().is_none();
        let has = |wanted| all || names().any(|name| name == wanted);
        Ok(Self { stdout: has("stdout"), stderr: has("stderr"), progress: has("progress") })
    }

    /// Returns true if the field `name` is selected. Fields other than the outputs count as
    /// progress.
    fn has(&self, name: &str) -> bool {
        match name {
            "stdout" => self.stdout,
            "stderr" => self.stderr,
            _ => self.progress,
        }
    }
}

/// The encoder for a job's events on the WebSocket that started it.
pub(crate) struct Follow {
    pub(crate) job: JobId,
    /// The progress token, if the client sent one.
    pub(crate) token: Option<Value>,
}

impl WatchTicket for Follow {
    fn begin(&self, job: Option<&Job>) -> Option<Bytes> {
        job.map(|_| self.params(object(json!({ "progress": 0.0 }))))
    }

    fn told(&self, what: &Watched) -> Option<Bytes> {
        match what {
            Watched::Event(event) => step(&event.what).map(|fields| self.params(fields)),
            Watched::Ended(job) => Some(self.params(object(json!({
                "progress": 1.0,
                "status": job.state,
                "exit_code": Printed::of_job(job).exit_code,
                "output_file": output_file(job),
            })))),
        }
    }

    fn snapshot(&self, _job: Option<&Job>) -> Option<Bytes> {
        None
    }

    fn alive(&self) -> Option<Bytes> {
        None
    }
}

impl Follow {
    fn params(&self, fields: Map<String, Value>) -> Bytes {
        let mut params = object(json!({ "job_id": self.job.to_string() }));
        if let Some(token) = &self.token {
            params.insert("progressToken".to_owned(), token.clone());
        }
        params.extend(fields);
        notification("notifications/progress", &params)
    }
}

/// Encodes progress and output events; `None` for all others, which are reported otherwise.
fn step(what: &Happened) -> Option<Map<String, Value>> {
    match what {
        Happened::Progress { fraction, message } => {
            let mut fields = object(json!({ "progress": fraction }));
            if let Some(message) = message {
                fields.insert("message".to_owned(), json!(message));
            }
            Some(fields)
        }
        Happened::Output { stream: Stream::Stdout, text } => {
            Some(object(json!({ "stdout": text })))
        }
        Happened::Output { stream: Stream::Stderr, text } => {
            Some(object(json!({ "stderr": text })))
        }
        Happened::Queued
        | Happened::Started { .. }
        | Happened::Log { .. }
        | Happened::Artefact(_)
        | Happened::Asks { .. }
        | Happened::Finished { .. } => None,
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
    fn a_filter_that_chooses_nothing_chooses_all() {
        let all = Told { stdout: true, stderr: true, progress: true };
        for query in ["", "stream=", "stream=%20,,", "api_key=x", "stream=STDOUT,stderr,+progress"]
        {
            assert_eq!(Told::read(query).as_ref(), Ok(&all), "{query}");
        }
    }
}
