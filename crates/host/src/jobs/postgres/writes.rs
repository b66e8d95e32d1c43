//! Writes jobs to the database. Each write is one statement or one transaction, and names the owner
//! of the job, so that it changes nothing after another server has taken the job over. A write of a
//! run also names the start of the job, so that it changes nothing after a later start.

use std::time::Duration;

use futures_util::future::try_join3;
use jiff::Timestamp;
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use toolgate_contract::{ClientAnswers, ClientQuestions, JobEventKind, JobId};
use toolgate_postgres::PostgresError;

use super::claims::lock_live_server;
use super::lease::{FleetServerId, FleetServerRow, ServerLease};
use super::reads::{self, attempts_from_row, id_bytes, id_from_bytes};
use crate::jobs::store::{JobQuestionState, JobStoreError, NewJob, RequestToJobOwner, StartedJob};
use crate::jobs::stored_caller::{caller_to_json, restore_caller};
use crate::jobs::stored_form::{
    JobEventRows, StoredJobEnd, duration_nanos, parse_input, parse_json, parse_tool, to_json,
    unix_nanos,
};

/// Maximum number of used confirmations that are recorded for a workspace.
const CONFIRMATIONS_MAX: i64 = 1 << 16;

/// New job in the format of its database row.
pub(super) struct NewJobRow {
    id: Vec<u8>,
    tool: String,
    caller: String,
    standing: Option<String>,
    dialect: String,
    priority: i32,
    created: i64,
    keep: i64,
    input: String,
    asking: Option<String>,
    event: String,
    lane: Option<String>,
}

impl NewJobRow {
    pub(super) fn from_job(job: &NewJob) -> Result<Self, JobStoreError> {
        let asking = (job.answers != JobQuestionState::default())
            .then(|| to_json(&job.answers))
            .transpose()?;
        Ok(Self {
            id: id_bytes(job.id),
            tool: job.tool.as_str().to_owned(),
            caller: job.caller.name.to_string(),
            standing: caller_to_json(&job.caller)?,
            dialect: job.dialect.to_string(),
            priority: job.priority,
            created: unix_nanos(job.created),
            keep: duration_nanos(job.keep),
            input: job.input.to_string(),
            asking,
            event: to_json(&JobEventKind::Queued)?,
            lane: job.lane.clone(),
        })
    }
}

/// Stores a new job. Returns false if there is a job with this id.
pub(super) async fn accept(
    client: &Client,
    server: &FleetServerRow,
    job: &NewJobRow,
) -> Result<bool, PostgresError> {
    // A caller's jobs come one after another, and those of others between them.
    let sql = "WITH accepted AS (INSERT INTO toolgate_fleet.jobs (id, workspace, tool, caller, \
               standing, dialect, priority, state, owner, created, updated, keep, last_event, \
               lane, turn) VALUES ($1, $2, $3, $4, $5, $6, $7, 'queued', $8, $9, $9, $10, 1, $14, \
               1 + greatest(0, (SELECT turn FROM toolgate_fleet.jobs WHERE workspace = $2 \
               AND state = 'queued' ORDER BY turn LIMIT 1), (SELECT turn FROM toolgate_fleet.jobs \
               WHERE workspace = $2 AND caller = $4 AND state = 'queued' \
               ORDER BY turn DESC LIMIT 1))) \
               ON CONFLICT (id) DO NOTHING RETURNING id), \
               input AS (INSERT INTO toolgate_fleet.inputs (job, input, asking) \
               SELECT id, $11, $12 FROM accepted), \
               event AS (INSERT INTO toolgate_fleet.events (job, seq, at, what) \
               SELECT id, 1, $9, $13 FROM accepted) \
               SELECT id FROM accepted";
    let params = [
        (&job.id as _, Type::BYTEA),
        (&server.workspace as _, Type::TEXT),
        (&job.tool as _, Type::TEXT),
        (&job.caller as _, Type::TEXT),
        (&job.standing as _, Type::TEXT),
        (&job.dialect as _, Type::TEXT),
        (&job.priority as _, Type::INT4),
        (&server.id as _, Type::INT8),
        (&job.created as _, Type::INT8),
        (&job.keep as _, Type::INT8),
        (&job.input as _, Type::TEXT),
        (&job.asking as _, Type::TEXT),
        (&job.event as _, Type::TEXT),
        (&job.lane as _, Type::TEXT),
    ];
    Ok(client.query_typed_opt(sql, &params).await?.is_some())
}

/// Returns true if the server `owner` owns the job `id`.
pub(super) async fn is_owner(
    client: &Client,
    owner: FleetServerId,
    id: JobId,
) -> Result<bool, PostgresError> {
    let sql = "SELECT 1 FROM toolgate_fleet.jobs WHERE id = $1 AND owner = $2";
    let params = [(&id_bytes(id) as _, Type::BYTEA), (&owner as _, Type::INT8)];
    Ok(client.query_typed_opt(sql, &params).await?.is_some())
}

/// Begins a queued job. If `may_have_begun`, an earlier attempt of this server to begin the job had
/// an unknown outcome, so that a running job counts as begun now. If `runs_once`, a second run of
/// the job may do harm.
///
/// # Errors
/// Another server may run the job, and the database has forgotten that in a failover.
pub(super) async fn begin(
    client: &mut Client,
    lease: &ServerLease,
    id: JobId,
    at: Timestamp,
    may_have_begun: bool,
    runs_once: bool,
) -> Result<Option<StartedJob>, PostgresError> {
    let work = client.transaction().await?;
    lock_live_server(&work, lease).await?;
    if runs_once && lease.is_unsettled() {
        let why = "was restarted or replaced: jobs that may not run twice start after all \
                   servers have reported which jobs they run";
        return Err(PostgresError::Unusable(why.to_owned()));
    }
    let owner = lease.server.id;
    let sql = "SELECT state, tool, caller, standing, dialect, attempts, last_event, input, asking \
               FROM toolgate_fleet.jobs JOIN toolgate_fleet.inputs ON job = id \
               WHERE id = $1 AND owner = $2 AND ended IS NULL FOR UPDATE OF jobs";
    let key = id_bytes(id);
    let params = [(&key as _, Type::BYTEA), (&owner as _, Type::INT8)];
    let Some(row) = work.query_typed_opt(sql, &params).await? else { return Ok(None) };
    let mut attempt = attempts_from_row(&row, 5)?;
    let mut start_event: i64 = row.try_get(6)?;
    match row.try_get::<_, &str>(0)? {
        "queued" => {
            attempt += 1;
            start_event += 1;
            let sql = "WITH event AS (INSERT INTO toolgate_fleet.events (job, seq, at, what) \
                       VALUES ($1, $2, $3, $4)) \
                       UPDATE toolgate_fleet.jobs SET state = 'running', started = $3, \
                       updated = $3, attempts = attempts + 1, last_event = $2 WHERE id = $1";
            let at = unix_nanos(at);
            let event = to_json(&JobEventKind::Started { attempt })?;
            let params = [
                (&key as _, Type::BYTEA),
                (&start_event as _, Type::INT8),
                (&at as _, Type::INT8),
                (&event as _, Type::TEXT),
            ];
            work.execute_typed(sql, &params).await?;
        }
        "running" if may_have_begun => {}
        _ => return Ok(None),
    }
    let asking: Option<&str> = row.try_get(8)?;
    let started = StartedJob {
        tool: parse_tool(row.try_get(1)?)?,
        input: parse_input(row.try_get(7)?)?,
        caller: restore_caller(row.try_get(2)?, row.try_get(3)?)?,
        dialect: row.try_get::<_, String>(4)?.into(),
        answers: asking.map_or_else(|| Ok(JobQuestionState::default()), parse_json)?,
        attempt,
        start_event: start_event.cast_unsigned(),
    };
    work.commit().await?;
    Ok(Some(started))
}

/// Marks a running job of the server `owner` as queued again. Changes nothing if `attempt` is set
/// and the job has begun again since that start, because a late write must not end the later run.
pub(super) async fn requeue(
    client: &Client,
    owner: FleetServerId,
    id: JobId,
    attempt: Option<u32>,
    at: Timestamp,
) -> Result<(), PostgresError> {
    // The next run asks its questions again.
    let sql = "UPDATE toolgate_fleet.jobs SET state = 'queued', updated = $3, questions = NULL, \
               claimed = NULL WHERE id = $1 AND owner = $2 AND state = 'running' \
               AND attempts = coalesce($4, attempts)";
    let at = unix_nanos(at);
    let attempt = attempt_number(attempt);
    let params = [
        (&id_bytes(id) as _, Type::BYTEA),
        (&owner as _, Type::INT8),
        (&at as _, Type::INT8),
        (&attempt as _, Type::INT4),
    ];
    client.execute_typed(sql, &params).await?;
    Ok(())
}

/// Events of a job as columns for an SQL statement.
struct JobEventColumns<'e> {
    times: Vec<i64>,
    texts: Vec<&'e str>,
    count: i64,
    updated: Option<i64>,
    fraction: Option<f64>,
    message: Option<String>,
}

impl<'e> JobEventColumns<'e> {
    fn from_rows(events: &'e JobEventRows) -> Result<Self, PostgresError> {
        let (fraction, message) = match &events.progress {
            Some((fraction, message)) => (Some(*fraction), message.as_ref()),
            None => (None, None),
        };
        Ok(Self {
            times: events.rows.iter().map(|(at, _)| *at).collect(),
            texts: events.rows.iter().map(|(_, json)| json.as_str()).collect(),
            count: i64::try_from(events.rows.len()).unwrap_or(i64::MAX),
            updated: events.rows.last().map(|(at, _)| *at),
            fraction,
            message: message.map(to_json).transpose()?,
        })
    }
}

/// Converts the number of a job's start to an SQL integer.
fn attempt_number(attempt: Option<u32>) -> Option<i32> {
    attempt.and_then(|attempt| i32::try_from(attempt).ok())
}

/// Appends events to a job, even if the database has forgotten the start `attempt` in a failover.
/// Returns the number of the first event, or `None` if the job has ended, is not a job of the
/// server `owner`, or has begun again since the start `attempt`.
pub(super) async fn append(
    client: &Client,
    owner: FleetServerId,
    id: JobId,
    attempt: Option<u32>,
    events: &JobEventRows,
) -> Result<Option<u64>, PostgresError> {
    let sql = "WITH changed AS (UPDATE toolgate_fleet.jobs SET last_event = last_event + $5, \
               updated = coalesce($6, updated), progress = coalesce($7, progress), \
               message = CASE WHEN $7 IS NULL THEN message ELSE $8 END \
               WHERE id = $1 AND owner = $2 AND ended IS NULL \
               AND attempts <= coalesce($9, attempts) \
               RETURNING last_event - $5 AS last), \
               added AS (INSERT INTO toolgate_fleet.events (job, seq, at, what) \
               SELECT $1, changed.last + event.place, event.at, event.what \
               FROM changed, unnest($3, $4) WITH ORDINALITY AS event(at, what, place)) \
               SELECT last + 1 FROM changed";
    let columns = JobEventColumns::from_rows(events)?;
    let attempt = attempt_number(attempt);
    let params = [
        (&id_bytes(id) as _, Type::BYTEA),
        (&owner as _, Type::INT8),
        (&columns.times as _, Type::INT8_ARRAY),
        (&columns.texts as _, Type::TEXT_ARRAY),
        (&columns.count as _, Type::INT8),
        (&columns.updated as _, Type::INT8),
        (&columns.fraction as _, Type::FLOAT8),
        (&columns.message as _, Type::TEXT),
        (&attempt as _, Type::INT4),
    ];
    let row = client.query_typed_opt(sql, &params).await?;
    Ok(row.map(|row| row.try_get::<_, i64>(0)).transpose()?.map(i64::cast_unsigned))
}

/// Ends a job. Returns the number of the first event of its end, or `None` if the job has ended, is
/// not a job of the server `owner`, or has begun again since the start `attempt`.
pub(super) async fn finish(
    client: &Client,
    owner: FleetServerId,
    id: JobId,
    attempt: Option<u32>,
    end: &StoredJobEnd,
) -> Result<Option<u64>, PostgresError> {
    // The input is no longer needed, and may be large.
    let sql = "WITH changed AS (UPDATE toolgate_fleet.jobs SET last_event = last_event + $5, \
               updated = coalesce($6, updated), progress = coalesce($7, progress), \
               message = CASE WHEN $7 IS NULL THEN message ELSE $8 END, state = $9, ended = $10, \
               outcome = $11, artefacts = $12, questions = NULL, \
               until = CASE WHEN keep > 9223372036854775807 - greatest($10, 0) \
               THEN 9223372036854775807 ELSE $10 + keep END \
               WHERE id = $1 AND owner = $2 AND ended IS NULL \
               AND attempts <= coalesce($13, attempts) \
               RETURNING last_event - $5 AS last), \
               added AS (INSERT INTO toolgate_fleet.events (job, seq, at, what) \
               SELECT $1, changed.last + event.place, event.at, event.what \
               FROM changed, unnest($3, $4) WITH ORDINALITY AS event(at, what, place)), \
               input AS (DELETE FROM toolgate_fleet.inputs \
               WHERE job = $1 AND EXISTS (SELECT 1 FROM changed)), \
               request AS (DELETE FROM toolgate_fleet.requests \
               WHERE job = $1 AND EXISTS (SELECT 1 FROM changed)) \
               SELECT last + 1 FROM changed";
    let columns = JobEventColumns::from_rows(&end.lines)?;
    let attempt = attempt_number(attempt);
    let state = end.state.as_str();
    let params = [
        (&id_bytes(id) as _, Type::BYTEA),
        (&owner as _, Type::INT8),
        (&columns.times as _, Type::INT8_ARRAY),
        (&columns.texts as _, Type::TEXT_ARRAY),
        (&columns.count as _, Type::INT8),
        (&columns.updated as _, Type::INT8),
        (&columns.fraction as _, Type::FLOAT8),
        (&columns.message as _, Type::TEXT),
        (&state as _, Type::TEXT),
        (&end.at as _, Type::INT8),
        (&end.outcome as _, Type::TEXT),
        (&end.artefacts as _, Type::TEXT),
        (&attempt as _, Type::INT4),
    ];
    let row = client.query_typed_opt(sql, &params).await?;
    Ok(row.map(|row| row.try_get::<_, i64>(0)).transpose()?.map(i64::cast_unsigned))
}

/// Replaces the open questions of a job of the server `owner`, unless the job has begun again since
/// the start `attempt`.
pub(super) async fn set_questions(
    client: &Client,
    owner: FleetServerId,
    id: JobId,
    attempt: Option<u32>,
    open: &ClientQuestions,
) -> Result<(), PostgresError> {
    let open = (!open.is_empty()).then(|| to_json(open)).transpose()?;
    let sql = "UPDATE toolgate_fleet.jobs SET questions = $3 \
               WHERE id = $1 AND owner = $2 AND ended IS NULL \
               AND attempts <= coalesce($4, attempts)";
    let attempt = attempt_number(attempt);
    let params = [
        (&id_bytes(id) as _, Type::BYTEA),
        (&owner as _, Type::INT8),
        (&open as _, Type::TEXT),
        (&attempt as _, Type::INT4),
    ];
    client.execute_typed(sql, &params).await?;
    Ok(())
}

/// Adds the answers `given` to the stored answers of a job. Earlier answers stay. If another server
/// owns the job, also stores the answers as a request to that server, and returns its id.
pub(super) async fn add_answers(
    client: &mut Client,
    server: &FleetServerRow,
    id: JobId,
    given: &ClientAnswers,
) -> Result<Option<FleetServerId>, PostgresError> {
    let work = client.transaction().await?;
    let key = id_bytes(id);
    let sql = "SELECT owner, asking FROM toolgate_fleet.jobs JOIN toolgate_fleet.inputs \
               ON job = id WHERE id = $1 AND workspace = $2 AND ended IS NULL FOR UPDATE";
    let params = [(&key as _, Type::BYTEA), (&server.workspace as _, Type::TEXT)];
    let Some(row) = work.query_typed_opt(sql, &params).await? else { return Ok(None) };
    let owner: FleetServerId = row.try_get(0)?;
    let asking: Option<&str> = row.try_get(1)?;
    let mut asking: JobQuestionState =
        asking.map_or_else(|| Ok(JobQuestionState::default()), parse_json)?;
    let mut added = given.clone();
    added.retain(|name, _| !asking.given.contains_key(name));
    if added.is_empty() {
        return Ok(None);
    }
    asking.given.extend(added.clone());
    let asking = to_json(&asking)?;
    let sql = "UPDATE toolgate_fleet.inputs SET asking = $2 WHERE job = $1";
    work.execute_typed(sql, &[(&key as _, Type::BYTEA), (&asking as _, Type::TEXT)]).await?;
    let is_elsewhere = owner != server.id;
    if is_elsewhere {
        let added = to_json(&added)?;
        let sql = "INSERT INTO toolgate_fleet.requests (job, answers) VALUES ($1, $2)";
        work.execute_typed(sql, &[(&key as _, Type::BYTEA), (&added as _, Type::TEXT)]).await?;
    }
    work.commit().await?;
    Ok(is_elsewhere.then_some(owner))
}

/// Stores a request to cancel the job `id` if the job has not ended and no such request exists.
/// Returns the owner of the job.
pub(super) async fn request_cancel(
    client: &Client,
    workspace: &str,
    id: JobId,
) -> Result<Option<FleetServerId>, PostgresError> {
    let sql = "WITH live AS (SELECT id, owner FROM toolgate_fleet.jobs \
               WHERE id = $1 AND workspace = $2 AND ended IS NULL), \
               added AS (INSERT INTO toolgate_fleet.requests (job) SELECT id FROM live \
               ON CONFLICT (job) WHERE answers IS NULL DO NOTHING) \
               SELECT owner FROM live";
    let params = [(&id_bytes(id) as _, Type::BYTEA), (&workspace as _, Type::TEXT)];
    let row = client.query_typed_opt(sql, &params).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Returns the requests, such as cancellations, for jobs of the server `owner`, and removes the
/// answers among them. Adds a stop request for each job in `running` and `waiting` that the server
/// does not own any more. `running` contains job ids and the numbers of the jobs' starts.
pub(super) async fn take_requests(
    client: &Client,
    owner: FleetServerId,
    running: &[(JobId, u32)],
    waiting: &[JobId],
) -> Result<Vec<RequestToJobOwner>, PostgresError> {
    let ids = running.iter().map(|(id, _)| *id);
    let known: Vec<JobId> = ids.chain(waiting.iter().copied()).collect();
    // All are sent before the first answer arrives. The database executes them in this order.
    let (found, (), taken) = try_join3(
        reads::requests(client, owner),
        report_running(client, owner, running),
        reads::jobs_taken_over(client, owner, &known),
    )
    .await?;
    let answers: Vec<i64> = found
        .iter()
        .filter(|(_, request)| matches!(request, RequestToJobOwner::Answer(..)))
        .map(|(number, _)| *number)
        .collect();
    if !answers.is_empty() {
        remove_requests(client, &answers).await?;
    }
    let mut requests: Vec<RequestToJobOwner> =
        found.into_iter().map(|(_, request)| request).collect();
    requests.extend(taken.into_iter().map(RequestToJobOwner::Stop));
    Ok(requests)
}

/// Marks jobs that the server `owner` has begun as running at that server, if the database has
/// forgotten their start in a failover. So no other server begins them. `running` contains job ids
/// and the numbers of the jobs' starts, which only grow.
pub(super) async fn report_running(
    client: &Client,
    owner: FleetServerId,
    running: &[(JobId, u32)],
) -> Result<(), PostgresError> {
    if running.is_empty() {
        return Ok(());
    }
    // The database may have forgotten the claim as well, so another server may be the owner.
    let sql = "UPDATE toolgate_fleet.jobs SET state = 'running', attempts = run.attempt, owner = $3 \
               FROM unnest($1, $2) AS run(id, attempt) WHERE jobs.id = run.id \
               AND state = 'queued' AND attempts < run.attempt";
    let ids: Vec<Vec<u8>> = running.iter().map(|(id, _)| id_bytes(*id)).collect();
    let attempts = running.iter().map(|(_, attempt)| i32::try_from(*attempt).unwrap_or(i32::MAX));
    let attempts: Vec<i32> = attempts.collect();
    let params = [
        (&ids as _, Type::BYTEA_ARRAY),
        (&attempts as _, Type::INT4_ARRAY),
        (&owner as _, Type::INT8),
    ];
    client.execute_typed(sql, &params).await?;
    Ok(())
}

/// Removes the stored requests of other servers (such as cancellations) with these sequence
/// numbers.
async fn remove_requests(client: &Client, numbers: &[i64]) -> Result<(), PostgresError> {
    let sql = "DELETE FROM toolgate_fleet.requests WHERE number = ANY($1)";
    client.execute_typed(sql, &[(&numbers as _, Type::INT8_ARRAY)]).await?;
    Ok(())
}

/// Removes the jobs among `ids` that have ended, with all their data. Returns their ids in order.
pub(super) async fn remove_jobs(
    client: &Client,
    ids: &[JobId],
) -> Result<Vec<JobId>, PostgresError> {
    let keys: Vec<Vec<u8>> = ids.iter().copied().map(id_bytes).collect();
    let sql = "WITH gone AS (DELETE FROM toolgate_fleet.jobs \
               WHERE id = ANY($1) AND ended IS NOT NULL RETURNING id), \
               event AS (DELETE FROM toolgate_fleet.events WHERE job IN (SELECT id FROM gone)), \
               input AS (DELETE FROM toolgate_fleet.inputs WHERE job IN (SELECT id FROM gone)), \
               request AS (DELETE FROM toolgate_fleet.requests \
               WHERE job IN (SELECT id FROM gone)), \
               file AS (UPDATE toolgate_fleet.files SET until = now() \
               WHERE job IN (SELECT id FROM gone)) \
               SELECT id FROM gone ORDER BY id";
    let rows = client.query_typed(sql, &[(&keys as _, Type::BYTEA_ARRAY)]).await?;
    rows.iter().map(|row| id_from_bytes(row.try_get(0)?)).collect()
}

/// Records that the confirmation `code` was used. Returns false if the code was used before, or if
/// there are too many records.
pub(super) async fn use_confirmation(
    client: &Client,
    workspace: &str,
    code: &[u8],
    now: Timestamp,
    keep: Duration,
) -> Result<bool, PostgresError> {
    let now = unix_nanos(now);
    let until = now.saturating_add(duration_nanos(keep));
    let sql = "INSERT INTO toolgate_fleet.used_confirmations AS used (workspace, code, until) \
               SELECT $1, $2, $3 WHERE (SELECT count(*) FROM toolgate_fleet.used_confirmations \
               WHERE workspace = $1 AND until >= $4) < $5 \
               ON CONFLICT (workspace, code) DO UPDATE SET until = excluded.until \
               WHERE used.until < $4";
    let params = [
        (&workspace as _, Type::TEXT),
        (&code as _, Type::BYTEA),
        (&until as _, Type::INT8),
        (&now as _, Type::INT8),
        (&CONFIRMATIONS_MAX as _, Type::INT8),
    ];
    Ok(client.execute_typed(sql, &params).await? == 1)
}

/// Removes the records of confirmations that have expired.
pub(super) async fn remove_confirmations(
    client: &Client,
    workspace: &str,
    now: Timestamp,
) -> Result<(), PostgresError> {
    let sql = "DELETE FROM toolgate_fleet.used_confirmations WHERE workspace = $1 AND until < $2";
    let now = unix_nanos(now);
    let params = [(&workspace as _, Type::TEXT), (&now as _, Type::INT8)];
    client.execute_typed(sql, &params).await?;
    Ok(())
}
