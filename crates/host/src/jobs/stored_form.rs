//! Serializes events, ends and times of jobs for all storage engines.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toolgate_contract::{JobEventKind, JobState, ToolId, exact_json};

use super::store::{JobEnd, JobStoreError, TimedJobEvent};

/// Events of a job, serialized for the job store.
pub(super) struct JobEventRows {
    /// Time and JSON of each event.
    pub(super) rows: Vec<(i64, String)>,
    /// The progress and message that the events report last.
    pub(super) progress: Option<(f64, Option<String>)>,
}

impl JobEventRows {
    pub(super) fn from_events(events: &[TimedJobEvent]) -> Result<Self, JobStoreError> {
        let mut progress = None;
        let mut rows = Vec::with_capacity(events.len());
        for (at, kind) in events {
            if let JobEventKind::Progress { fraction, message } = kind {
                if !fraction.is_finite() {
                    return Err(JobStoreError(format!("invalid progress {fraction}")));
                }
                progress = Some((*fraction, message.clone()));
            }
            rows.push((unix_nanos(*at), to_json(kind)?));
        }
        Ok(Self { rows, progress })
    }

    /// Returns the approximate size of the stored events in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.rows.iter().map(|(_, json)| json.len()).sum()
    }
}

/// End of a job, serialized for the job store.
pub(super) struct StoredJobEnd {
    pub(super) at: i64,
    pub(super) state: JobState,
    pub(super) outcome: String,
    pub(super) artefacts: String,
    pub(super) lines: JobEventRows,
}

impl StoredJobEnd {
    pub(super) fn from_end(end: JobEnd) -> Result<Self, JobStoreError> {
        let JobEnd { at, state, outcome, artefacts, last_events: mut events } = end;
        if !state.is_terminal() {
            return Err(JobStoreError(format!("a job cannot end as {}", state.as_str())));
        }
        events.push((at, JobEventKind::Finished { state }));
        Ok(Self {
            at: unix_nanos(at),
            state,
            outcome: to_json(&outcome)?,
            artefacts: to_json(&artefacts)?,
            lines: JobEventRows::from_events(&events)?,
        })
    }

    /// Returns the approximate size of the stored end of a job in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.outcome.len() + self.artefacts.len() + self.lines.bytes()
    }
}

/// Converts a time to nanoseconds since the Unix epoch, saturating.
pub(super) fn unix_nanos(at: Timestamp) -> i64 {
    let nanos = at.as_nanosecond();
    i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

/// Converts a duration to nanoseconds, up to 292 years.
pub(super) fn duration_nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Converts nanoseconds from [`unix_nanos`] to a time.
pub(super) fn timestamp_from_nanos(nanos: i64) -> Result<Timestamp, JobStoreError> {
    Timestamp::from_nanosecond(nanos.into()).map_err(|err| JobStoreError(err.to_string()))
}

pub(super) fn parse_tool(text: &str) -> Result<ToolId, JobStoreError> {
    ToolId::foreign(text).ok_or_else(|| JobStoreError(format!("invalid tool name `{text}`")))
}

pub(super) fn parse_state(text: &str) -> Result<JobState, JobStoreError> {
    use JobState::{Canceled, Failed, Queued, Running, Succeeded};
    let states = [Queued, Running, Succeeded, Failed, Canceled];
    let found = states.into_iter().find(|state| state.as_str() == text);
    found.ok_or_else(|| JobStoreError(format!("invalid job state `{text}`")))
}

pub(super) fn parse_json<T: DeserializeOwned>(json: &str) -> Result<T, JobStoreError> {
    serde_json::from_str(json).map_err(|err| invalid_data(&err))
}

/// Parses the stored arguments of a job. Numbers keep their original spelling.
pub(super) fn parse_input(json: &str) -> Result<Value, JobStoreError> {
    exact_json::parse(json).map_err(|err| invalid_data(&err))
}

pub(super) fn to_json(value: &impl Serialize) -> Result<String, JobStoreError> {
    serde_json::to_string(value).map_err(|err| invalid_data(&err))
}

fn invalid_data(err: &serde_json::Error) -> JobStoreError {
    JobStoreError(format!("invalid stored data: {err}"))
}
