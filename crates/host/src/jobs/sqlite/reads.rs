//! Reads jobs and events, and converts rows.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use serde::de::DeserializeOwned;
use toolgate_contract::{Caller, Job, JobEvent, JobId, JobPage, JobState, Questions, ToolId};

use super::schema::{EVENTS_MAX, Trouble, nanos, timestamp};
use super::standing::caller_of;

/// Largest number of jobs that are removed at once.
const DUE_MAX: i64 = 1000;
/// Columns of a job.
const COLUMNS: &str = "id, tool, caller, state, created, updated, started, attempts, progress, \
                       message, keep, last_event, artefacts, standing";

pub(super) fn job(db: &Connection, id: JobId) -> Result<Option<Job>, Trouble> {
    let mut statement =
        db.prepare_cached(&format!("SELECT {COLUMNS}, outcome FROM jobs WHERE id = ?1"))?;
    let mut rows = statement.query([id.bits().to_be_bytes()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let mut job = job_of(row)?;
    job.outcome = text_or_none(row, 14)?.map(parsed).transpose()?;
    Ok(Some(job))
}

pub(super) fn events(
    db: &Connection,
    id: JobId,
    after: u64,
    bytes_max: usize,
) -> Result<Vec<JobEvent>, Trouble> {
    let sql = "SELECT place & 4294967295, at, what FROM events \
               WHERE place > ?2 + (SELECT n << 32 FROM jobs WHERE id = ?1) \
               AND place < (SELECT (n + 1) << 32 FROM jobs WHERE id = ?1) ORDER BY place";
    let mut statement = db.prepare_cached(sql)?;
    let after = i64::try_from(after).unwrap_or(EVENTS_MAX).min(EVENTS_MAX);
    let mut rows = statement.query(params![id.bits().to_be_bytes(), after])?;
    let mut events = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let what = row.get_ref(2)?.as_str().map_err(unfit)?;
        bytes += what.len();
        let seq = row.get::<_, i64>(0)?.cast_unsigned();
        events.push(JobEvent { seq, at: timestamp(row.get(1)?)?, what: parsed(what)? });
        if bytes >= bytes_max {
            break;
        }
    }
    Ok(events)
}

pub(super) fn list(
    db: &Connection,
    caller: Option<&Caller>,
    after: Option<JobId>,
    size: usize,
) -> Result<JobPage, Trouble> {
    let whose = if caller.is_some() { "caller = ?1" } else { "?1 IS NULL" };
    // If that job was removed since, older ones mostly were too, so the page is empty.
    let place = match after {
        Some(_) => "n < (SELECT n FROM jobs WHERE id = ?2)",
        None => "?2 IS NULL",
    };
    let mut statement = db.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM jobs WHERE {whose} AND {place} ORDER BY n DESC LIMIT ?3"
    ))?;
    let mut rows = statement.query(params![
        caller.map(|caller| &caller.name),
        after.map(|id| id.bits().to_be_bytes()),
        i64::try_from(size).unwrap_or(i64::MAX).saturating_add(1),
    ])?;
    let mut page = JobPage { jobs: Vec::new(), next: None };
    while let Some(row) = rows.next()? {
        if page.jobs.len() == size {
            page.next = page.jobs.last().map(|job| job.id);
            break;
        }
        page.jobs.push(job_of(row)?);
    }
    Ok(page)
}

/// Returns the jobs to remove: the expired ones and, beyond `ended_max`, the oldest of the callers
/// with most jobs.
pub(super) fn due(
    db: &Connection,
    now: Timestamp,
    ended_max: usize,
) -> Result<Vec<JobId>, Trouble> {
    let late = "SELECT id FROM jobs WHERE until < ?1 ORDER BY until LIMIT ?2";
    let mut late = db.prepare_cached(late)?;
    let rows = late.query_map(params![nanos(now), DUE_MAX], |row| row.get(0).map(id_of))?;
    let mut due = rows.collect::<Result<Vec<_>, _>>()?;
    let count = "SELECT count(*) FROM jobs WHERE ended IS NOT NULL";
    let ended: i64 = db.prepare_cached(count)?.query_row((), |row| row.get(0))?;
    let beyond = ended.saturating_sub(i64::try_from(ended_max).unwrap_or(i64::MAX));
    if beyond <= 0 {
        return Ok(due);
    }
    let beyond_it = "SELECT id FROM (SELECT id, ended, n, row_number() OVER \
                     (PARTITION BY caller ORDER BY ended DESC, n DESC) AS nth \
                     FROM jobs WHERE ended IS NOT NULL) ORDER BY nth DESC, ended, n LIMIT ?1";
    let mut statement = db.prepare_cached(beyond_it)?;
    let rows = statement.query_map([beyond.min(DUE_MAX)], |row| row.get(0).map(id_of))?;
    due.extend(rows.collect::<Result<Vec<_>, _>>()?);
    due.sort_unstable();
    due.dedup();
    Ok(due)
}

/// Converts a row of [`COLUMNS`] to a job without its outcome.
fn job_of(row: &Row<'_>) -> Result<Job, Trouble> {
    let text = |column: usize| row.get_ref(column)?.as_str().map_err(unfit);
    let started: Option<i64> = row.get(6)?;
    Ok(Job {
        id: id_of(row.get(0)?),
        tool: tool_of(text(1)?)?,
        caller: caller_of(text(2)?, text_or_none(row, 13)?)?,
        state: state_of(text(3)?)?,
        created: timestamp(row.get(4)?)?,
        updated: timestamp(row.get(5)?)?,
        started: started.map(timestamp).transpose()?,
        attempts: row.get(7)?,
        progress: row.get(8)?,
        message: row.get(9)?,
        keep: Duration::from_nanos(row.get::<_, i64>(10)?.cast_unsigned()),
        last_event: row.get::<_, i64>(11)?.cast_unsigned(),
        artefacts: parsed(text(12)?)?,
        asks: Questions::new(),
        outcome: None,
    })
}

pub(super) fn id_of(bytes: [u8; 16]) -> JobId {
    JobId::of(u128::from_be_bytes(bytes))
}

pub(super) fn tool_of(text: &str) -> Result<ToolId, Trouble> {
    ToolId::foreign(text).ok_or_else(|| Trouble::Said(format!("no tool can be named `{text}`")))
}

pub(super) fn state_of(text: &str) -> Result<JobState, Trouble> {
    use JobState::{Canceled, Failed, Queued, Running, Succeeded};
    let states = [Queued, Running, Succeeded, Failed, Canceled];
    let found = states.into_iter().find(|state| state.as_str() == text);
    found.ok_or_else(|| Trouble::Said(format!("no job can be `{text}`")))
}

pub(super) fn parsed<T: DeserializeOwned>(json: &str) -> Result<T, Trouble> {
    serde_json::from_str(json).map_err(Trouble::from)
}

/// Returns the text in `column`, or `None` for NULL.
pub(super) fn text_or_none<'r>(
    row: &'r Row<'_>,
    column: usize,
) -> Result<Option<&'r str>, Trouble> {
    row.get_ref(column)?.as_str_or_null().map_err(unfit)
}

/// Converts an error about a column of the wrong type.
pub(super) fn unfit(err: rusqlite::types::FromSqlError) -> Trouble {
    rusqlite::Error::from(err).into()
}
