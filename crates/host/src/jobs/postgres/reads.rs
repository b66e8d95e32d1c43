//! Reads jobs, events and requests, and converts rows.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use toolgate_contract::{
    Caller, ClientQuestions, JobEvent, JobId, JobOutputText, JobPage, JobSnapshot,
};
use toolgate_postgres::PostgresError;

use super::lease::FleetServerId;
use crate::jobs::store::RequestToJobOwner;
use crate::jobs::stored_caller::restore_caller;
use crate::jobs::stored_form::{
    parse_json, parse_state, parse_tool, timestamp_from_nanos, unix_nanos,
};

/// Maximum number of jobs that are removed at once.
const DUE_MAX: i64 = 1000;
/// Maximum number of a job's events that are read at once.
const EVENTS_READ_MAX: i64 = 20_000;
/// Columns of a job in its database table.
const COLUMNS: &str = "id, tool, caller, standing, state, created, updated, started, attempts, \
                       progress, message, keep, last_event, artefacts";

/// SQL expression for the open questions of a running job, which follows the job's other columns in
/// a query.
const QUESTIONS: &str = "CASE WHEN state = 'running' THEN questions END";

pub(super) async fn job(
    client: &Client,
    workspace: &str,
    id: JobId,
) -> Result<Option<JobSnapshot>, PostgresError> {
    let sql = format!(
        "SELECT {COLUMNS}, {QUESTIONS}, outcome FROM toolgate_fleet.jobs \
         WHERE id = $1 AND workspace = $2"
    );
    let params = [(&id_bytes(id) as _, Type::BYTEA), (&workspace as _, Type::TEXT)];
    let Some(row) = client.query_typed_opt(&sql, &params).await? else { return Ok(None) };
    let mut job = job_from_row(&row)?;
    read_questions(&row, &mut job)?;
    let outcome: Option<&str> = row.try_get(15)?;
    job.outcome = outcome.map(parse_json).transpose()?;
    Ok(Some(job))
}

pub(super) async fn events(
    client: &Client,
    id: JobId,
    after: u64,
    bytes_max: usize,
) -> Result<Vec<JobEvent>, PostgresError> {
    // The first event is always part of the page.
    let sql = "SELECT seq, at, what FROM (SELECT seq, at, what, \
               coalesce(sum(octet_length(what)) OVER (ORDER BY seq \
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS bytes_before \
               FROM (SELECT seq, at, what FROM toolgate_fleet.events \
               WHERE job = $1 AND seq > $2 ORDER BY seq LIMIT $4) AS following) AS page \
               WHERE bytes_before < $3 ORDER BY seq";
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX).max(1);
    let params = [
        (&id_bytes(id) as _, Type::BYTEA),
        (&after as _, Type::INT8),
        (&bytes_max as _, Type::INT8),
        (&EVENTS_READ_MAX as _, Type::INT8),
    ];
    let rows = client.query_typed(sql, &params).await?;
    let event = |row: &Row| -> Result<JobEvent, PostgresError> {
        let seq: i64 = row.try_get(0)?;
        let at = timestamp_from_nanos(row.try_get(1)?)?;
        Ok(JobEvent { seq: seq.cast_unsigned(), at, kind: parse_json(row.try_get(2)?)? })
    };
    rows.iter().map(event).collect()
}

/// Returns the number of the last event of an unfinished job of the server `owner`.
pub(super) async fn last_event(
    client: &Client,
    owner: FleetServerId,
    id: JobId,
) -> Result<Option<u64>, PostgresError> {
    let sql = "SELECT last_event FROM toolgate_fleet.jobs \
               WHERE id = $1 AND owner = $2 AND ended IS NULL";
    let params = [(&id_bytes(id) as _, Type::BYTEA), (&owner as _, Type::INT8)];
    let row = client.query_typed_opt(sql, &params).await?;
    Ok(row.map(|row| row.try_get::<_, i64>(0)).transpose()?.map(i64::cast_unsigned))
}

pub(super) async fn list(
    client: &Client,
    workspace: &str,
    caller: Option<&Caller>,
    after: Option<JobId>,
    size: usize,
) -> Result<JobPage, PostgresError> {
    // If the job `after` was removed since, older ones mostly were too, so the page is empty.
    let sql = format!(
        "SELECT {COLUMNS}, {QUESTIONS} FROM toolgate_fleet.jobs WHERE workspace = $1 \
         AND ($2::text IS NULL OR caller = $2) AND ($3::bytea IS NULL \
         OR n < (SELECT n FROM toolgate_fleet.jobs WHERE id = $3)) ORDER BY n DESC LIMIT $4"
    );
    let caller = caller.map(|caller| caller.name.to_string());
    let after = after.map(id_bytes);
    let limit = i64::try_from(size).unwrap_or(i64::MAX).saturating_add(1);
    let params = [
        (&workspace as _, Type::TEXT),
        (&caller as _, Type::TEXT),
        (&after as _, Type::BYTEA),
        (&limit as _, Type::INT8),
    ];
    let rows = client.query_typed(&sql, &params).await?;
    let mut page = JobPage { jobs: Vec::new(), next: None };
    for row in &rows {
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

/// Sets the open questions of `job` from the last column of the database row.
fn read_questions(row: &Row, job: &mut JobSnapshot) -> Result<(), PostgresError> {
    if let Some(open) = row.try_get::<_, Option<&str>>(14)? {
        job.questions = parse_json(open)?;
    }
    Ok(())
}

/// Returns the stored requests, such as cancellations, for jobs that the server `owner` runs,
/// oldest first. Each comes with its sequence number.
pub(super) async fn requests(
    client: &Client,
    owner: FleetServerId,
) -> Result<Vec<(i64, RequestToJobOwner)>, PostgresError> {
    let sql = "SELECT number, job, answers FROM toolgate_fleet.requests \
               JOIN toolgate_fleet.jobs ON id = job WHERE owner = $1 AND ended IS NULL \
               ORDER BY number";
    let rows = client.query_typed(sql, &[(&owner as _, Type::INT8)]).await?;
    let request = |row: &Row| -> Result<(i64, RequestToJobOwner), PostgresError> {
        let id = id_from_bytes(row.try_get(1)?)?;
        let request = match row.try_get::<_, Option<&str>>(2)? {
            Some(answers) => RequestToJobOwner::Answer(id, parse_json(answers)?),
            None => RequestToJobOwner::Cancel(id),
        };
        Ok((row.try_get(0)?, request))
    };
    rows.iter().map(request).collect()
}

/// Returns the jobs among `running` that do not run at the server `owner` any more.
pub(super) async fn jobs_taken_over(
    client: &Client,
    owner: FleetServerId,
    running: &[JobId],
) -> Result<Vec<JobId>, PostgresError> {
    if running.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Vec<u8>> = running.iter().copied().map(id_bytes).collect();
    let sql = "SELECT running.id FROM unnest($1) AS running(id) WHERE NOT EXISTS (SELECT 1 \
               FROM toolgate_fleet.jobs WHERE jobs.id = running.id AND owner = $2 \
               AND ended IS NULL)";
    let params = [(&ids as _, Type::BYTEA_ARRAY), (&owner as _, Type::INT8)];
    let rows = client.query_typed(sql, &params).await?;
    rows.iter().map(|row| id_from_bytes(row.try_get(0)?)).collect()
}

/// Returns the jobs to remove, in order of their ids: expired jobs and, beyond `ended_max`, the
/// oldest jobs of the callers with the most jobs.
pub(super) async fn jobs_to_remove(
    client: &Client,
    workspace: &str,
    now: Timestamp,
    ended_max: usize,
) -> Result<Vec<JobId>, PostgresError> {
    let sql = "SELECT id FROM toolgate_fleet.jobs WHERE workspace = $1 AND until < $2 \
               ORDER BY until LIMIT $3";
    let now = unix_nanos(now);
    let params =
        [(&workspace as _, Type::TEXT), (&now as _, Type::INT8), (&DUE_MAX as _, Type::INT8)];
    let mut rows = client.query_typed(sql, &params).await?;
    let sql = "SELECT count(*) FROM toolgate_fleet.jobs \
               WHERE workspace = $1 AND ended IS NOT NULL";
    let count = client.query_typed_one(sql, &[(&workspace as _, Type::TEXT)]).await?;
    let beyond =
        count.try_get::<_, i64>(0)?.saturating_sub(i64::try_from(ended_max).unwrap_or(i64::MAX));
    if beyond > 0 {
        let sql = "SELECT id FROM (SELECT id, ended, n, row_number() OVER \
                   (PARTITION BY caller ORDER BY ended DESC, n DESC) AS nth \
                   FROM toolgate_fleet.jobs WHERE workspace = $1 AND ended IS NOT NULL) AS ranked \
                   ORDER BY nth DESC, ended, n LIMIT $2";
        let limit = beyond.min(DUE_MAX);
        let params = [(&workspace as _, Type::TEXT), (&limit as _, Type::INT8)];
        rows.extend(client.query_typed(sql, &params).await?);
    }
    let ids = rows.iter().map(|row| id_from_bytes(row.try_get(0)?));
    let mut due = ids.collect::<Result<Vec<_>, PostgresError>>()?;
    due.sort_unstable();
    due.dedup();
    Ok(due)
}

/// Converts a database row with the columns of a job to a job without its outcome.
fn job_from_row(row: &Row) -> Result<JobSnapshot, PostgresError> {
    let started: Option<i64> = row.try_get(7)?;
    let message: Option<&str> = row.try_get(10)?;
    Ok(JobSnapshot {
        id: id_from_bytes(row.try_get(0)?)?,
        tool: parse_tool(row.try_get(1)?)?,
        caller: restore_caller(row.try_get(2)?, row.try_get(3)?)?,
        state: parse_state(row.try_get(4)?)?,
        created: timestamp_from_nanos(row.try_get(5)?)?,
        updated: timestamp_from_nanos(row.try_get(6)?)?,
        started: started.map(timestamp_from_nanos).transpose()?,
        attempts: attempts_from_row(row, 8)?,
        progress: row.try_get(9)?,
        message: message.map(parse_json).transpose()?,
        keep_for: Duration::from_nanos(row.try_get::<_, i64>(11)?.cast_unsigned()),
        last_event: row.try_get::<_, i64>(12)?.cast_unsigned(),
        artefacts: parse_json(row.try_get(13)?)?,
        questions: ClientQuestions::new(),
        outcome: None,
        printed: JobOutputText::default(),
    })
}

pub(super) fn attempts_from_row(row: &Row, column: usize) -> Result<u32, PostgresError> {
    Ok(u32::try_from(row.try_get::<_, i32>(column)?).unwrap_or(0))
}

/// Returns the bytes with which the database stores a job's id.
pub(super) fn id_bytes(id: JobId) -> Vec<u8> {
    id.bits().to_be_bytes().to_vec()
}

pub(super) fn id_from_bytes(bytes: &[u8]) -> Result<JobId, PostgresError> {
    let bytes = <[u8; 16]>::try_from(bytes)
        .map_err(|_| PostgresError::Rejected("a stored job has an invalid id".to_owned()))?;
    Ok(JobId::from_bits(u128::from_be_bytes(bytes)))
}
