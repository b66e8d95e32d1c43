//! Encodes jobs and their events as JSON.

use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use toolgate_contract::{JobArtefact, JobEventKind, JobSnapshot, JobStreamItem};

use crate::JobEventEncoder;
use crate::envelope_data::output_data;
use crate::rpc::to_json;

/// Returns `job` as JSON for REST clients.
pub(super) fn job_json(job: &JobSnapshot) -> Value {
    let (result, error) = match &job.outcome {
        None => (Value::Null, Value::Null),
        Some(Ok(output)) => (output_data(output), Value::Null),
        Some(Err(error)) => {
            (Value::Null, json!({ "reason": error.reason(), "detail": error.to_string() }))
        }
    };
    let files: Vec<Value> =
        job.downloads().iter().map(|file| file_json(&job.id.to_string(), file)).collect();
    json!({
        "job_id": job.id.to_string(),
        "status": job.state,
        "tool": job.tool.as_str(),
        "created": job.created,
        "updated": job.updated,
        "started": job.started,
        "attempts": job.attempts,
        "progress": job.progress,
        "message": job.message,
        "open_questions": job.questions.len(),
        "files": files,
        "result": result,
        "error": error,
    })
}

fn file_json(id: &str, file: &JobArtefact) -> Value {
    let JobArtefact { name, bytes, media_type, .. } = file;
    let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
    json!({
        "name": name,
        "bytes": bytes,
        "media_type": media_type,
        "url": format!("/v1/jobs/{id}/files/{encoded}"),
    })
}

/// The encoder for the events of a job that a REST client watches.
pub(super) struct RestJobEventEncoder {
    pub(super) id: String,
}

impl JobEventEncoder for RestJobEventEncoder {
    fn encode_start(&self, job: Option<&JobSnapshot>) -> Option<Bytes> {
        Some(to_json(&match job {
            Some(job) => json!({ "event": "job", "job": job_json(job) }),
            None => {
                json!({ "event": "unknown", "job_id": self.id, "detail": "no job has this id" })
            }
        }))
    }

    fn encode_item(&self, what: &JobStreamItem) -> Option<Bytes> {
        let (at, mut event) = match what {
            JobStreamItem::Ended(job) => {
                return Some(to_json(&json!({ "event": "ended", "job": job_json(job) })));
            }
            JobStreamItem::Event(event) => (event, event_json(&event.kind)),
        };
        event["seq"] = json!(at.seq);
        event["at"] = json!(at.at);
        Some(to_json(&event))
    }

    fn encode_keep_alive(&self) -> Option<Bytes> {
        Some(to_json(&json!({ "event": "keepalive" })))
    }
}

fn event_json(event: &JobEventKind) -> Value {
    match event {
        JobEventKind::Queued => json!({ "event": "queued" }),
        JobEventKind::Started { attempt } => json!({ "event": "started", "attempt": attempt }),
        JobEventKind::Progress { fraction, message } => {
            json!({ "event": "progress", "progress": fraction, "message": message })
        }
        JobEventKind::Output { stream, text } => {
            json!({ "event": "output", "stream": stream, "text": text })
        }
        JobEventKind::Log { level, message } => {
            json!({ "event": "log", "level": level, "message": message })
        }
        JobEventKind::Artefact(file) => json!({ "event": "file", "name": file.name }),
        JobEventKind::Asks { open } => json!({ "event": "questions", "open_questions": open }),
        JobEventKind::Finished { state } => json!({ "event": "finished", "status": state }),
    }
}
