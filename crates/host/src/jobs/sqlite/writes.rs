//! Writes to the database, each within a transaction that the writer opened.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use toolgate_contract::{ClientAnswers, ClientQuestions, JobEventKind, JobId};

use super::reads::{column_error, id_from_bytes, optional_text};
use super::schema::{EVENTS_MAX, SqliteFailure};
use super::servers::DeadServerLock;
use super::threads::WriterThreadState;
use crate::jobs::store::{AdoptableJob, JobQuestionState, NewJob, StartedJob, TakeoverFilter};
use crate::jobs::stored_caller::{caller_to_json, restore_caller};
use crate::jobs::stored_form::{
    JobEventRows, StoredJobEnd, duration_nanos, parse_input, parse_json, parse_state, parse_tool,
    timestamp_from_nanos, to_json, unix_nanos,
};

/// Number of events that are removed in one step. Other requests run between two steps.
const SWEEP_STEP: usize = 128;
/// Number of free pages of the file that are returned to the disk in one step.
const SHRINK_STEP: i64 = 256;
/// Number of free pages that stay in the job store's file for reuse.
const FREE_PAGES_MAX: i64 = 1024;
/// Maximum number of used confirmations that are recorded.
const CONFIRMATIONS_MAX: i64 = 1 << 16;

pub(super) fn accept(
    session: &WriterThreadState,
    job: &NewJob,
    input: &str,
) -> Result<(), SqliteFailure> {
    // A job number is not reused while data of its previous job remains.
    let sql = "INSERT INTO jobs (n, id, tool, caller, dialect, priority, state, owner, created, \
               updated, keep, last_event, standing) VALUES (\
               1 + max((SELECT coalesce(max(n), 0) FROM jobs), \
               (SELECT coalesce(max(job), 0) FROM forgotten)), \
               ?1, ?2, ?3, ?4, ?5, 'queued', ?6, ?7, ?7, ?8, 0, ?9)";
    let id = job.id.bits().to_be_bytes();
    let inserted = session.db.prepare_cached(sql)?.execute(params![
        id,
        job.tool.as_str(),
        job.caller.name,
        job.dialect,
        job.priority,
        session.server.owner,
        unix_nanos(job.created),
        duration_nanos(job.keep),
        caller_to_json(&job.caller)?,
    ]);
    inserted.map_err(|err| match err.sqlite_error_code() {
        Some(rusqlite::ErrorCode::ConstraintViolation) => {
            SqliteFailure::Invalid(format!("job {} already exists", job.id))
        }
        Some(_) | None => err.into(),
    })?;
    let n = session.db.last_insert_rowid();
    let asking =
        (job.answers != JobQuestionState::default()).then(|| to_json(&job.answers)).transpose()?;
    let sql = "INSERT INTO inputs (job, input, asking) VALUES (?1, ?2, ?3)";
    session.db.prepare_cached(sql)?.execute(params![n, input, asking])?;
    let lines = JobEventRows::from_events(&[(job.created, JobEventKind::Queued)])?;
    insert_events(session, n, 0, &lines)
}

pub(super) fn begin(
    session: &WriterThreadState,
    id: JobId,
    at: Timestamp,
) -> Result<Option<StartedJob>, SqliteFailure> {
    let sql = "UPDATE jobs SET state = 'running', started = ?2, attempts = attempts + 1 \
               WHERE id = ?1 AND state = 'queued' AND owner = ?3 \
               RETURNING n, last_event, tool, caller, dialect, attempts, standing";
    let found =
        session.db.prepare_cached(sql)?.query_row(
            params![id.bits().to_be_bytes(), unix_nanos(at), session.server.owner],
            |row| Ok((row.get(0)?, row.get(1)?, started_row(row)?)),
        );
    let Some((n, last, begun)) = found.optional()? else { return Ok(None) };
    let (tool, caller, dialect, attempt, standing) = begun;
    insert_events(
        session,
        n,
        last,
        &JobEventRows::from_events(&[(at, JobEventKind::Started { attempt })])?,
    )?;
    let sql = "SELECT input, asking FROM inputs WHERE job = ?1";
    let stored =
        session.db.prepare_cached(sql)?.query_row([n], |row| Ok((row.get(0)?, row.get(1)?)));
    let (input, asking): (String, Option<String>) = stored?;
    Ok(Some(StartedJob {
        tool: parse_tool(&tool)?,
        input: parse_input(&input)?,
        caller: restore_caller(&caller, standing.as_deref())?,
        dialect: dialect.into(),
        answers: asking
            .map_or_else(|| Ok(JobQuestionState::default()), |asking| parse_json(&asking))?,
        attempt,
        start_event: (last + 1).cast_unsigned(),
    }))
}

/// Columns of a job that begins to run.
type StartedJobRow = (String, String, String, u32, Option<String>);

fn started_row(row: &Row<'_>) -> rusqlite::Result<StartedJobRow> {
    Ok((row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
}

pub(super) fn requeue(
    session: &WriterThreadState,
    id: JobId,
    at: Timestamp,
) -> Result<(), SqliteFailure> {
    let sql = "UPDATE jobs SET state = 'queued', updated = ?2 \
               WHERE id = ?1 AND state = 'running' AND owner = ?3 RETURNING n";
    let mut statement = session.db.prepare_cached(sql)?;
    let requeued = statement
        .query_row(params![id.bits().to_be_bytes(), unix_nanos(at), session.server.owner], |row| {
            row.get::<_, i64>(0)
        });
    let Some(n) = requeued.optional()? else { return Ok(()) };
    // The next run asks again.
    session.db.prepare_cached("DELETE FROM questions WHERE job = ?1")?.execute([n])?;
    Ok(())
}

pub(super) fn append(
    session: &WriterThreadState,
    id: JobId,
    lines: &JobEventRows,
) -> Result<u64, SqliteFailure> {
    let Some((n, last)) = unended_row(session, id)? else {
        let why = format!("job {id} has ended, or this server does not run it");
        return Err(SqliteFailure::Invalid(why));
    };
    insert_events(session, n, last, lines)?;
    Ok((last + 1).cast_unsigned())
}

/// Replaces the open questions of a job of this server.
pub(super) fn set_questions(
    session: &WriterThreadState,
    id: JobId,
    open: &ClientQuestions,
) -> Result<(), SqliteFailure> {
    let Some((n, _)) = unended_row(session, id)? else { return Ok(()) };
    if open.is_empty() {
        session.db.prepare_cached("DELETE FROM questions WHERE job = ?1")?.execute([n])?;
        return Ok(());
    }
    let open = to_json(open)?;
    let sql = "INSERT OR REPLACE INTO questions (job, open) VALUES (?1, ?2)";
    session.db.prepare_cached(sql)?.execute(params![n, open])?;
    Ok(())
}

/// Adds answers to the stored answers of a job, and keeps the earlier answers. If another server
/// runs the job, the added answers become a request to that server.
pub(super) fn add_answers(
    session: &WriterThreadState,
    id: JobId,
    given: &ClientAnswers,
) -> Result<(), SqliteFailure> {
    let sql = "SELECT job, asking FROM inputs WHERE job = (SELECT n FROM jobs WHERE id = ?1)";
    let mut statement = session.db.prepare_cached(sql)?;
    let found = statement
        .query_row([id.bits().to_be_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((n, asking)): Option<(i64, Option<String>)> = found else { return Ok(()) };
    let mut asking: JobQuestionState =
        asking.map_or_else(|| Ok(JobQuestionState::default()), |it| parse_json(&it))?;
    let mut added = given.clone();
    added.retain(|key, _| !asking.given.contains_key(key));
    if added.is_empty() {
        return Ok(());
    }
    asking.given.extend(added.clone());
    let asking = to_json(&asking)?;
    let sql = "UPDATE inputs SET asking = ?2 WHERE job = ?1";
    session.db.prepare_cached(sql)?.execute(params![n, asking])?;
    let added = to_json(&added)?;
    let sql = "INSERT INTO requests (job, answers) SELECT n, ?2 FROM jobs \
               WHERE n = ?1 AND owner <> ?3";
    session.db.prepare_cached(sql)?.execute(params![n, added, session.server.owner])?;
    Ok(())
}

/// Adds the request to cancel a job that has not ended, unless the request exists already.
pub(super) fn request_cancel(session: &WriterThreadState, id: JobId) -> Result<(), SqliteFailure> {
    let sql = "INSERT INTO requests (job) SELECT n FROM jobs WHERE id = ?1 AND ended IS NULL \
               AND NOT EXISTS (SELECT 1 FROM requests WHERE job = jobs.n AND answers IS NULL)";
    session.db.prepare_cached(sql)?.execute([id.bits().to_be_bytes()])?;
    Ok(())
}

/// Removes the stored requests of other servers (such as cancellations) with these sequence
/// numbers.
pub(super) fn remove_requests(
    session: &WriterThreadState,
    numbers: &[i64],
) -> Result<(), SqliteFailure> {
    let mut delete = session.db.prepare_cached("DELETE FROM requests WHERE number = ?1")?;
    for number in numbers {
        delete.execute([number])?;
    }
    Ok(())
}

/// Records that the confirmation `code` was used. Returns false if the code was used before, or if
/// there are too many records.
pub(super) fn use_confirmation(
    session: &WriterThreadState,
    code: &[u8; 32],
    now: Timestamp,
    keep: Duration,
) -> Result<bool, SqliteFailure> {
    let now = unix_nanos(now);
    let sql = "DELETE FROM used_confirmations WHERE until < ?1";
    session.db.prepare_cached(sql)?.execute([now])?;
    let sql = "INSERT OR IGNORE INTO used_confirmations (code, until) SELECT ?1, ?2 \
               WHERE (SELECT count(*) FROM used_confirmations) < ?3";
    let until = now.saturating_add(duration_nanos(keep));
    let added = session.db.prepare_cached(sql)?.execute(params![code, until, CONFIRMATIONS_MAX])?;
    Ok(added == 1)
}

pub(super) fn finish(
    session: &WriterThreadState,
    id: JobId,
    ending: &StoredJobEnd,
) -> Result<Option<u64>, SqliteFailure> {
    let Some((n, last)) = unended_row(session, id)? else { return Ok(None) };
    insert_events(session, n, last, &ending.lines)?;
    let sql = "UPDATE jobs SET state = ?2, ended = ?3, outcome = ?4, artefacts = ?5, \
               until = CASE WHEN keep > 9223372036854775807 - max(?3, 0) \
               THEN 9223372036854775807 ELSE ?3 + keep END WHERE n = ?1";
    session.db.prepare_cached(sql)?.execute(params![
        n,
        ending.state.as_str(),
        ending.at,
        ending.outcome,
        ending.artefacts
    ])?;
    // The input is no longer needed, and may be large.
    remove_run_data(&session.db, n)?;
    Ok(Some((last + 1).cast_unsigned()))
}

/// Removes the data of the job with the row number `n` that is only needed until the job's end.
fn remove_run_data(db: &Connection, n: i64) -> Result<(), SqliteFailure> {
    for sql in [
        "DELETE FROM inputs WHERE job = ?1",
        "DELETE FROM questions WHERE job = ?1",
        "DELETE FROM requests WHERE job = ?1",
    ] {
        db.prepare_cached(sql)?.execute([n])?;
    }
    Ok(())
}

/// Returns the row number and last event of a job of this server that has not ended.
fn unended_row(
    session: &WriterThreadState,
    id: JobId,
) -> Result<Option<(i64, i64)>, SqliteFailure> {
    let sql = "SELECT n, last_event FROM jobs WHERE id = ?1 AND owner = ?2 AND ended IS NULL";
    let mut statement = session.db.prepare_cached(sql)?;
    let found = statement
        .query_row(params![id.bits().to_be_bytes(), session.server.owner], |row| {
            Ok((row.get(0)?, row.get(1)?))
        });
    Ok(found.optional()?)
}

/// Adds events of a job after event number `last`.
fn insert_events(
    session: &WriterThreadState,
    n: i64,
    last: i64,
    lines: &JobEventRows,
) -> Result<(), SqliteFailure> {
    let sql = "INSERT INTO events (place, at, what) VALUES ((?1 << 32) + ?2, ?3, ?4)";
    let mut insert = session.db.prepare_cached(sql)?;
    let mut seq = last;
    for (at, json) in &lines.rows {
        seq += 1;
        if seq > EVENTS_MAX {
            return Err(SqliteFailure::Invalid("a job has too many events".to_owned()));
        }
        insert.execute(params![n, seq, at, json])?;
    }
    let Some((updated, _)) = lines.rows.last() else { return Ok(()) };
    if let Some((fraction, message)) = &lines.progress {
        let sql = "UPDATE jobs SET progress = ?2, message = ?3 WHERE n = ?1";
        session.db.prepare_cached(sql)?.execute(params![n, fraction, message])?;
    }
    let sql = "UPDATE jobs SET last_event = ?2, updated = ?3 WHERE n = ?1";
    session.db.prepare_cached(sql)?.execute(params![n, seq, updated])?;
    Ok(())
}

/// Takes over jobs of dead servers. Returns these jobs and servers. The caller removes the servers
/// after the commit.
pub(super) fn adopt(
    session: &WriterThreadState,
    filter: &TakeoverFilter,
) -> Result<SqliteJobTakeover, SqliteFailure> {
    let sql = "SELECT DISTINCT owner FROM jobs WHERE ended IS NULL";
    let mut statement = session.db.prepare(sql)?;
    let owners = statement.query_map((), |row| row.get(0))?.collect::<Result<_, _>>()?;
    let dead_servers = session.server.dead_servers(owners)?;

    let mut orphans = Vec::new();
    let sql = "SELECT n, id, tool, priority, state, caller, created, attempts, last_event, \
               standing, EXISTS (SELECT 1 FROM requests WHERE job = jobs.n AND answers IS NULL) \
               FROM jobs WHERE owner = ?1 AND ended IS NULL";
    let mut statement = session.db.prepare(sql)?;
    let mut take = session.db.prepare("UPDATE jobs SET owner = ?2 WHERE n = ?1")?;
    for server in &dead_servers {
        let mut rows = statement.query([server.owner])?;
        while let Some(row) = rows.next()? {
            let orphan = AdoptableJob {
                id: id_from_bytes(row.get(1)?),
                tool: parse_tool(row.get_ref(2)?.as_str().map_err(column_error)?)?,
                priority: row.get(3)?,
                state: parse_state(row.get_ref(4)?.as_str().map_err(column_error)?)?,
                caller: restore_caller(
                    row.get_ref(5)?.as_str().map_err(column_error)?,
                    optional_text(row, 9)?,
                )?,
                created: timestamp_from_nanos(row.get(6)?)?,
                attempts: row.get(7)?,
                last_event: row.get::<_, i64>(8)?.cast_unsigned(),
                cancel_requested: row.get(10)?,
                is_lost: true,
            };
            if filter(&orphan) {
                orphans.push((row.get::<_, i64>(0)?, orphan));
            }
        }
    }
    orphans.sort_by_key(|(n, _)| *n);
    for (n, _) in &orphans {
        take.execute([*n, session.server.owner])?;
    }
    Ok(SqliteJobTakeover {
        jobs: orphans.into_iter().map(|(_, orphan)| orphan).collect(),
        servers: dead_servers,
    })
}

/// Jobs that were taken over, and their former servers.
pub(super) struct SqliteJobTakeover {
    pub(super) jobs: Vec<AdoptableJob>,
    pub(super) servers: Vec<DeadServerLock>,
}

/// Removes the jobs among `ids` that still exist, except for the data that [`sweep`] removes.
pub(super) fn remove_jobs(
    session: &WriterThreadState,
    ids: &[JobId],
) -> Result<Vec<JobId>, SqliteFailure> {
    let sql = "DELETE FROM jobs WHERE id = ?1 AND ended IS NOT NULL RETURNING n";
    let mut delete = session.db.prepare_cached(sql)?;
    let sql = "INSERT INTO forgotten (job) VALUES (?1)";
    let mut insert = session.db.prepare_cached(sql)?;
    let mut forgotten = Vec::with_capacity(ids.len());
    for id in ids {
        let found = delete.query_row([id.bits().to_be_bytes()], |row| row.get::<_, i64>(0));
        if let Some(n) = found.optional()? {
            insert.execute([n])?;
            forgotten.push(*id);
        }
    }
    Ok(forgotten)
}

/// Removes some data of removed jobs. Returns true if more may remain.
pub(super) fn sweep(session: &WriterThreadState) -> Result<bool, SqliteFailure> {
    let db = &session.db;
    let mut room = SWEEP_STEP;
    while room > 0 {
        let sql = "SELECT job FROM forgotten LIMIT 1";
        let found = db.prepare_cached(sql)?.query_row((), |row| row.get::<_, i64>(0));
        let Some(n) = found.optional()? else { return Ok(false) };
        let sql = "DELETE FROM events WHERE place IN (SELECT place FROM events \
                   WHERE place > ?1 << 32 AND place < (?1 + 1) << 32 ORDER BY place LIMIT ?2)";
        let limit = i64::try_from(room).unwrap_or(i64::MAX);
        let removed = db.prepare_cached(sql)?.execute([n, limit])?;
        if removed < room {
            remove_run_data(db, n)?;
            db.prepare_cached("DELETE FROM forgotten WHERE job = ?1")?.execute([n])?;
        }
        room = room.saturating_sub(removed.max(1));
    }
    Ok(true)
}

/// Returns some free pages of the file to the disk. Returns true if more may remain.
pub(super) fn shrink(session: &WriterThreadState) -> Result<bool, SqliteFailure> {
    let db = &session.db;
    let free: i64 = db.query_row("PRAGMA freelist_count", (), |row| row.get(0))?;
    let step = SHRINK_STEP.min(free - FREE_PAGES_MAX);
    if step <= 0 {
        return Ok(false);
    }
    // The pragma frees one page per row.
    let mut statement = db.prepare(&format!("PRAGMA incremental_vacuum({step})"))?;
    let mut rows = statement.query(())?;
    while rows.next()?.is_some() {}
    Ok(true)
}
