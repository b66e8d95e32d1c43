//! Describes a job for people and programs.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use toolgate_contract::{CallError, JobSnapshot, JobState, ToolOutput, fold_name};

/// Returns a JSON object with the fields of a job that `toolgate jobs --json` lists.
pub(super) fn summary_json(job: &JobSnapshot) -> Value {
    let time = |time: Timestamp| time.to_string();
    let files = job.artefacts.iter().map(|file| {
        json!({ "name": file.name, "path": file.path, "bytes": file.bytes, "media_type": file.media_type })
    });
    json!({
        "job_id": job.id.to_string(),
        "tool": fold_name(job.tool.as_str()),
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

/// Returns a JSON object with the fields that `toolgate jobs --json` lists, and with the job's
/// result.
pub(super) fn full_json(job: &JobSnapshot) -> Value {
    let mut summary = summary_json(job);
    summary["result"] = output(job).map_or(Value::Null, |output| output.value.clone());
    summary
}

/// Returns the job's output, if it succeeded.
pub(super) fn output(job: &JobSnapshot) -> Option<&ToolOutput> {
    job.outcome.as_ref()?.as_ref().ok()
}

/// Returns the job's error, if it failed.
pub(super) fn error(job: &JobSnapshot) -> Option<&CallError> {
    job.outcome.as_ref()?.as_ref().err()
}

/// Returns the exit code of the job's program, if it ran one.
pub(super) fn exit_code(job: &JobSnapshot) -> Option<i64> {
    output(job)?.value.get("exit_code")?.as_i64()
}

/// Returns the exit code of the job's program as text or, while the job runs, its progress in
/// percent. Empty if neither is known.
pub(super) fn progress_text(job: &JobSnapshot) -> String {
    match (exit_code(job), job.state) {
        (Some(code), _) => format!("exit {code}"),
        (None, JobState::Running) if job.progress > 0.0 => format!("{:.0} %", job.progress * 100.0),
        (None, _) => String::new(),
    }
}

/// Returns the time for which the job ran, or has been running until `now`. Returns `None` if the
/// job has not started.
pub(super) fn running_time(job: &JobSnapshot, now: Timestamp) -> Option<Duration> {
    let until = if job.state.is_terminal() { job.updated } else { now };
    match (job.started, job.state) {
        (None, _) | (_, JobState::Queued) => None,
        (Some(started), _) => Some(time_between(started, until)),
    }
}

/// Returns the time between two timestamps, or zero if `to` is earlier than `from`.
pub(super) fn time_between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
