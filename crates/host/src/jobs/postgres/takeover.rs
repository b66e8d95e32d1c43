//! Takes over the jobs of servers that left or whose lease has ended.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, Row};
use toolgate_contract::JobId;
use toolgate_postgres::PostgresError;

use super::lease::{FleetServerId, FleetServerRow, ServerLease};
use super::reads::{attempts_from_row, id_bytes, id_from_bytes};
use crate::jobs::store::{AdoptableJob, TakeoverFilter};
use crate::jobs::stored_caller::restore_caller;
use crate::jobs::stored_form::{parse_state, parse_tool, timestamp_from_nanos};

/// Maximum number of jobs of dead servers that are taken over at once.
const ADOPTED_MAX: i64 = 1000;
/// Maximum number of this server's own jobs that are checked at once.
const OWN_MAX: i64 = 20_000;
/// Database columns of a job that may be taken over.
pub(super) const COLUMNS: &str = "id, tool, priority, state, caller, standing, created, attempts, last_event, \
                       owner, EXISTS (SELECT 1 FROM toolgate_fleet.requests \
                       WHERE job = jobs.id AND answers IS NULL)";

/// Jobs that this server took over, and the dead servers that owned them.
pub(super) struct PostgresJobTakeover {
    pub(super) jobs: Vec<AdoptableJob>,
    pub(super) servers: Vec<DeadFleetServer>,
}

/// A server that left the fleet, or whose lease has ended.
pub(super) struct DeadFleetServer {
    pub(super) id: FleetServerId,
    /// Number that identifies the dead server's programs, if some may be left on this machine.
    pub(super) mark: Option<u64>,
    /// True if the server's jobs are certain to have stopped, or count as interrupted.
    is_lost: bool,
}

/// Takes over the jobs of dead servers that `filter` allows. Also removes this server's jobs in
/// `unacknowledged`, whose callers received a refusal.
pub(super) async fn adopt(
    client: &mut Client,
    lease: &ServerLease,
    filter: &TakeoverFilter,
    unacknowledged: &[JobId],
) -> Result<PostgresJobTakeover, PostgresError> {
    let server = &lease.server;
    let work = client.transaction().await?;
    lease.look_at_engine(&work).await?;
    let sweeps = lease.may_take_over();
    remove_unacknowledged(&work, server.id, unacknowledged).await?;
    let servers = dead_servers(&work, lease, sweeps).await?;
    let mut jobs = orphans(&work, server, &servers, sweeps).await?;
    jobs.extend(own_jobs(&work, server).await?);
    jobs.retain(|job| filter(job));
    let keys: Vec<Vec<u8>> = jobs.iter().map(|job| id_bytes(job.id)).collect();
    // An own job may have ended since it was read.
    let sql = "UPDATE toolgate_fleet.jobs SET owner = $2 \
               WHERE id = ANY($1) AND ended IS NULL RETURNING id";
    let params = [(&keys as _, Type::BYTEA_ARRAY), (&server.id as _, Type::INT8)];
    let rows = work.query_typed(sql, &params).await?;
    let taken = rows.iter().map(|row| id_from_bytes(row.try_get(0)?));
    let taken = taken.collect::<Result<Vec<JobId>, PostgresError>>()?;
    work.commit().await?;
    jobs.retain(|job| taken.contains(&job.id));
    Ok(PostgresJobTakeover { jobs, servers })
}

async fn remove_unacknowledged(
    work: &impl GenericClient,
    owner: FleetServerId,
    ids: &[JobId],
) -> Result<(), PostgresError> {
    if ids.is_empty() {
        return Ok(());
    }
    let keys: Vec<Vec<u8>> = ids.iter().copied().map(id_bytes).collect();
    let sql = "WITH gone AS (DELETE FROM toolgate_fleet.jobs WHERE id = ANY($1) AND owner = $2 \
               AND state = 'queued' AND attempts = 0 RETURNING id), \
               event AS (DELETE FROM toolgate_fleet.events WHERE job IN (SELECT id FROM gone)) \
               DELETE FROM toolgate_fleet.inputs WHERE job IN (SELECT id FROM gone)";
    let params = [(&keys as _, Type::BYTEA_ARRAY), (&owner as _, Type::INT8)];
    work.execute_typed(sql, &params).await?;
    Ok(())
}

/// Locks and returns the dead servers of the workspace, except servers that are beginning a job
/// now. A locked server cannot begin a job. Without `sweeps`, only servers that have left count as
/// dead.
async fn dead_servers(
    work: &impl GenericClient,
    lease: &ServerLease,
    sweeps: bool,
) -> Result<Vec<DeadFleetServer>, PostgresError> {
    let server = &lease.server;
    let sql = "SELECT id, machine, mark, \
               has_left OR lease_until < now() - make_interval(secs => $4) \
               FROM toolgate_fleet.servers WHERE workspace = $1 AND id <> $2 \
               AND (has_left OR $3 AND lease_until < now()) FOR UPDATE SKIP LOCKED";
    let lost_after = lease.lost_after.as_secs_f64();
    let params = [
        (&server.workspace as _, Type::TEXT),
        (&server.id as _, Type::INT8),
        (&sweeps as _, Type::BOOL),
        (&lost_after as _, Type::FLOAT8),
    ];
    let rows = work.query_typed(sql, &params).await?;
    let dead = |row: &Row| -> Result<DeadFleetServer, PostgresError> {
        let is_lost: bool = row.try_get(3)?;
        // Programs of a server that is only silent may still be needed.
        let machine: &str = row.try_get(1)?;
        let is_here = is_lost && !machine.is_empty() && machine == server.machine;
        let mark: &str = row.try_get(2)?;
        let mark = mark.parse().ok().filter(|_| is_here);
        Ok(DeadFleetServer { id: row.try_get(0)?, mark, is_lost })
    };
    rows.iter().map(dead).collect()
}

/// Locks the unfinished jobs of dead servers and returns them. With `sweeps`, includes jobs whose
/// server was removed from the table.
async fn orphans(
    work: &impl GenericClient,
    server: &FleetServerRow,
    dead: &[DeadFleetServer],
    sweeps: bool,
) -> Result<Vec<AdoptableJob>, PostgresError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM toolgate_fleet.jobs WHERE workspace = $1 AND ended IS NULL \
         AND (owner = ANY($2) OR $3 AND NOT EXISTS (SELECT 1 FROM toolgate_fleet.servers \
         WHERE servers.id = jobs.owner)) ORDER BY n LIMIT $4 FOR UPDATE OF jobs SKIP LOCKED"
    );
    let owners: Vec<FleetServerId> = dead.iter().map(|server| server.id).collect();
    let params = [
        (&server.workspace as _, Type::TEXT),
        (&owners as _, Type::INT8_ARRAY),
        (&sweeps as _, Type::BOOL),
        (&ADOPTED_MAX as _, Type::INT8),
    ];
    let rows = work.query_typed(&sql, &params).await?;
    let is_lost = |owner: FleetServerId| {
        dead.iter().find(|server| server.id == owner).is_none_or(|server| server.is_lost)
    };
    rows.iter().map(|row| orphan_from_row(row, is_lost(row.try_get(9)?))).collect()
}

/// Returns the unfinished jobs of this server in the database. The server may not know some of
/// them, because a write with an unknown outcome may have stored them.
async fn own_jobs(
    work: &impl GenericClient,
    server: &FleetServerRow,
) -> Result<Vec<AdoptableJob>, PostgresError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM toolgate_fleet.jobs \
         WHERE owner = $1 AND ended IS NULL ORDER BY n LIMIT $2"
    );
    let params = [(&server.id as _, Type::INT8), (&OWN_MAX as _, Type::INT8)];
    let rows = work.query_typed(&sql, &params).await?;
    rows.iter().map(|row| orphan_from_row(row, true)).collect()
}

pub(super) fn orphan_from_row(row: &Row, is_lost: bool) -> Result<AdoptableJob, PostgresError> {
    Ok(AdoptableJob {
        id: id_from_bytes(row.try_get(0)?)?,
        tool: parse_tool(row.try_get(1)?)?,
        priority: row.try_get(2)?,
        state: parse_state(row.try_get(3)?)?,
        caller: restore_caller(row.try_get(4)?, row.try_get(5)?)?,
        created: timestamp_from_nanos(row.try_get(6)?)?,
        attempts: attempts_from_row(row, 7)?,
        last_event: row.try_get::<_, i64>(8)?.cast_unsigned(),
        cancel_requested: row.try_get(10)?,
        is_lost,
    })
}
