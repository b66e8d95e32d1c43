//! A job in words, for a person and for a program.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use toolgate_contract::{CallError, Job, JobState, Output, fold};

/// What a list says of a job.
pub(super) fn summary(job: &Job) -> Value {
    let time = |time: Timestamp| time.to_string();
    let files = job.artefacts.iter().map(|file| {
        json!({ "name": file.name, "path": file.path, "bytes": file.bytes, "media_type": file.media_type })
    });
    json!({
        "job_id": job.id.to_string(),
        "tool": fold(job.tool.as_str()),
        "caller": &*job.caller.name,
        "state": job.state.as_str(),
        "progress": job.progress,
        "message": job.message,
        "created": time(job.created),
        "started": job.started.map(time),
        "updated": time(job.updated),
        "attempts": job.attempts,
        "exit_code": exit_code(job),
        "error": error(job).map(ToString::to_string),
        "files": files.collect::<Vec<_>>(),
    })
}

/// The same with its result.
pub(super) fn in_full(job: &Job) -> Value {
    let mut told = summary(job);
    told["result"] = output(job).map_or(Value::Null, |output| output.value.clone());
    told
}

/// What it gave back, if it did.
pub(super) fn output(job: &Job) -> Option<&Output> {
    job.outcome.as_ref()?.as_ref().ok()
}

/// Why it gave nothing back, if so.
pub(super) fn error(job: &Job) -> Option<&CallError> {
    job.outcome.as_ref()?.as_ref().err()
}

/// How its program ended, if it ran one.
pub(super) fn exit_code(job: &Job) -> Option<i64> {
    output(job)?.value.get("exit_code")?.as_i64()
}

/// How far it is, or how its program ended.
pub(super) fn far(job: &Job) -> String {
    match (exit_code(job), job.state) {
        (Some(code), _) => format!("exit {code}"),
        (None, JobState::Running) if job.progress > 0.0 => format!("{:.0} %", job.progress * 100.0),
        (None, _) => String::new(),
    }
}

/// How long it ran, or has been running.
pub(super) fn ran(job: &Job, now: Timestamp) -> Option<Duration> {
    let until = if job.state.is_terminal() { job.updated } else { now };
    match (job.started, job.state) {
        (None, _) | (_, JobState::Queued) => None,
        (Some(started), _) => Some(between(started, until)),
    }
}

/// How long it is from `from` to `to`; nothing where a clock was set back.
pub(super) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
