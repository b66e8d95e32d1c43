//! Describes a job for people and programs.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use toolgate_contract::{CallError, Job, JobState, Output, fold};

/// Returns the list entry of a job as JSON.
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

/// Returns the list entry with the job's result.
pub(super) fn in_full(job: &Job) -> Value {
    let mut told = summary(job);
    told["result"] = output(job).map_or(Value::Null, |output| output.value.clone());
    told
}

/// Returns the job's output, if it succeeded.
pub(super) fn output(job: &Job) -> Option<&Output> {
    job.outcome.as_ref()?.as_ref().ok()
}

/// Returns the job's error, if it failed.
pub(super) fn error(job: &Job) -> Option<&CallError> {
    job.outcome.as_ref()?.as_ref().err()
}

/// Returns the exit code of the job's program, if it ran one.
pub(super) fn exit_code(job: &Job) -> Option<i64> {
    output(job)?.value.get("exit_code")?.as_i64()
}

/// Formats the job's progress or exit code.
pub(super) fn far(job: &Job) -> String {
    match (exit_code(job), job.state) {
        (Some(code), _) => format!("exit {code}"),
        (None, JobState::Running) if job.progress > 0.0 => format!("{:.0} %", job.progress * 100.0),
        (None, _) => String::new(),
    }
}

/// Returns the time that the job ran, or has been running.
pub(super) fn ran(job: &Job, now: Timestamp) -> Option<Duration> {
    let until = if job.state.is_terminal() { job.updated } else { now };
    match (job.started, job.state) {
        (None, _) | (_, JobState::Queued) => None,
        (Some(started), _) => Some(between(started, until)),
    }
}

/// Returns the time between two timestamps. Zero if a clock was set back.
pub(super) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
