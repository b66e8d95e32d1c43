//! Reads jobs and events, and converts rows.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use toolgate_contract::{
    Caller, ClientQuestions, JobEvent, JobId, JobOutputText, JobPage, JobSnapshot,
};

use super::schema::{EVENTS_MAX, SqliteFailure};
use super::servers::SqliteServerId;
use crate::jobs::store::RequestToJobOwner;
use crate::jobs::stored_caller::restore_caller;
use crate::jobs::stored_form::{
    parse_json, parse_state, parse_tool, timestamp_from_nanos, unix_nanos,
};

/// Maximum number of jobs that are removed at once.
const DUE_MAX: i64 = 1000;
/// Columns of a job in its database table.
const COLUMNS: &str = "id, tool, caller, state, created, updated, started, attempts, progress, \
                       message, keep, last_event, artefacts, standing";

/// SQL expression for the open questions of a running job, which follows the job's other columns in
/// a query.
const QUESTIONS: &str =
    "(SELECT open FROM questions WHERE job = jobs.n AND jobs.state = 'running')";

pub(super) fn job(db: &Connection, id: JobId) -> Result<Option<JobSnapshot>, SqliteFailure> {
    let mut statement = db.prepare_cached(&format!(
        "SELECT {COLUMNS}, {QUESTIONS}, outcome FROM jobs WHERE id = ?1"
    ))?;
    let mut rows = statement.query([id.bits().to_be_bytes()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let mut job = job_from_row(row)?;
    read_questions(row, &mut job)?;
    job.outcome = optional_text(row, 15)?.map(parse_json).transpose()?;
    Ok(Some(job))
}

/// Returns the stored requests, such as cancellations, for jobs that the server `owner` runs,
/// oldest first. Each comes with its sequence number.
pub(super) fn requests(
    db: &Connection,
    owner: SqliteServerId,
) -> Result<Vec<(i64, RequestToJobOwner)>, SqliteFailure> {
    // A cross join reads the few requests first, not the many jobs.
    let sql = "SELECT number, id, answers FROM requests CROSS JOIN jobs ON n = job \
               WHERE owner = ?1 AND ended IS NULL ORDER BY number";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([owner])?;
    let mut requests = Vec::new();
    while let Some(row) = rows.next()? {
        let id = id_from_bytes(row.get(1)?);
        let request = match optional_text(row, 2)? {
            Some(answers) => RequestToJobOwner::Answer(id, parse_json(answers)?),
            None => RequestToJobOwner::Cancel(id),
        };
        requests.push((row.get(0)?, request));
    }
    Ok(requests)
}

pub(super) fn events(
    db: &Connection,
    id: JobId,
    after: u64,
    bytes_max: usize,
) -> Result<Vec<JobEvent>, SqliteFailure> {
    let sql = "SELECT place & 4294967295, at, what FROM events \
               WHERE place > ?2 + (SELECT n << 32 FROM jobs WHERE id = ?1) \
               AND place < (SELECT (n + 1) << 32 FROM jobs WHERE id = ?1) ORDER BY place";
    let mut statement = db.prepare_cached(sql)?;
    let after = i64::try_from(after).unwrap_or(EVENTS_MAX).min(EVENTS_MAX);
    let mut rows = statement.query(params![id.bits().to_be_bytes(), after])?;
    let mut events = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let what = row.get_ref(2)?.as_str().map_err(column_error)?;
        bytes += what.len();
        let seq = row.get::<_, i64>(0)?.cast_unsigned();
        events.push(JobEvent {
            seq,
            at: timestamp_from_nanos(row.get(1)?)?,
            kind: parse_json(what)?,
        });
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
) -> Result<JobPage, SqliteFailure> {
    let whose = if caller.is_some() { "caller = ?1" } else { "?1 IS NULL" };
    // If that job was removed since, older ones mostly were too, so the page is empty.
    let place = match after {
        Some(_) => "n < (SELECT n FROM jobs WHERE id = ?2)",
        None => "?2 IS NULL",
    };
    let mut statement = db.prepare_cached(&format!(
        "SELECT {COLUMNS}, {QUESTIONS} FROM jobs WHERE {whose} AND {place} \
         ORDER BY n DESC LIMIT ?3"
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
        let mut job = job_from_row(row)?;
        read_questions(row, &mut job)?;
        page.jobs.push(job);
    }
    Ok(page)
}

/// Returns the jobs to remove: expired jobs and, beyond `ended_max`, the oldest jobs of the callers
/// with the most jobs.
pub(super) fn jobs_to_remove(
    db: &Connection,
    now: Timestamp,
    ended_max: usize,
) -> Result<Vec<JobId>, SqliteFailure> {
    let late = "SELECT id FROM jobs WHERE until < ?1 ORDER BY until LIMIT ?2";
    let mut late = db.prepare_cached(late)?;
    let rows =
        late.query_map(params![unix_nanos(now), DUE_MAX], |row| row.get(0).map(id_from_bytes))?;
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
    let rows = statement.query_map([beyond.min(DUE_MAX)], |row| row.get(0).map(id_from_bytes))?;
    due.extend(rows.collect::<Result<Vec<_>, _>>()?);
    due.sort_unstable();
    due.dedup();
    Ok(due)
}

/// Sets the open questions of `job` from a database row that ends with them.
fn read_questions(row: &Row<'_>, job: &mut JobSnapshot) -> Result<(), SqliteFailure> {
    if let Some(open) = optional_text(row, 14)? {
        job.questions = parse_json(open)?;
    }
    Ok(())
}

/// Converts a database row with the columns of a job to a job without its outcome.
fn job_from_row(row: &Row<'_>) -> Result<JobSnapshot, SqliteFailure> {
    let text = |column: usize| row.get_ref(column)?.as_str().map_err(column_error);
    let started: Option<i64> = row.get(6)?;
    Ok(JobSnapshot {
        id: id_from_bytes(row.get(0)?),
        tool: parse_tool(text(1)?)?,
        caller: restore_caller(text(2)?, optional_text(row, 13)?)?,
        state: parse_state(text(3)?)?,
        created: timestamp_from_nanos(row.get(4)?)?,
        updated: timestamp_from_nanos(row.get(5)?)?,
        started: started.map(timestamp_from_nanos).transpose()?,
        attempts: row.get(7)?,
        progress: row.get(8)?,
        message: row.get(9)?,
        keep_for: Duration::from_nanos(row.get::<_, i64>(10)?.cast_unsigned()),
        last_event: row.get::<_, i64>(11)?.cast_unsigned(),
        artefacts: parse_json(text(12)?)?,
        questions: ClientQuestions::new(),
        outcome: None,
        printed: JobOutputText::default(),
    })
}

pub(super) fn id_from_bytes(bytes: [u8; 16]) -> JobId {
    JobId::from_bits(u128::from_be_bytes(bytes))
}

/// Returns the text in `column` of `row`, or `None` for NULL.
pub(super) fn optional_text<'r>(
    row: &'r Row<'_>,
    column: usize,
) -> Result<Option<&'r str>, SqliteFailure> {
    row.get_ref(column)?.as_str_or_null().map_err(column_error)
}

/// Converts an error about a database column of the wrong type to a failure of the job store.
pub(super) fn column_error(err: rusqlite::types::FromSqlError) -> SqliteFailure {
    rusqlite::Error::from(err).into()
}
