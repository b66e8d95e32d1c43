//! Claims queued jobs of other servers.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use toolgate_contract::lock_mutex;
use toolgate_postgres::PostgresError;

use super::lease::{ENGINE_START, JobClaimPosition, ServerLease};
use super::reads::id_bytes;
use super::takeover::{COLUMNS, orphan_from_row};
use crate::jobs::store::{AdoptableJob, ClaimableJobQueue, JobClaim};

/// Maximum number of waiting jobs from which a server chooses the jobs that it claims.
const CANDIDATES_MAX: i64 = 64;
/// SQL that is true for a job that no server has claimed in the last 2 s. Otherwise, servers with
/// free slots would take the first jobs from each other before these begin. A time in the future
/// counts as long ago, because the clock was set back.
const IS_FREE: &str = "coalesce(claimed NOT BETWEEN now() - interval '2 s' \
                       AND now() + interval '2 s', true)";

/// Claims queued jobs of other servers, in order to run them at this server. Servers that claim at
/// the same moment get different jobs. A claimed job that does not begin may be claimed again after
/// 2 s.
///
/// A server claims any job only after it has renewed its lease without a break for the length of a
/// lease, at one start of the database. Until then, it claims only jobs that may run twice: after a
/// failover, the database may have forgotten that a job runs already.
pub(super) async fn claim(
    client: &mut Client,
    lease: &ServerLease,
    claim: &JobClaim,
) -> Result<Vec<AdoptableJob>, PostgresError> {
    let server = &lease.server;
    if open_lanes(lease, claim).is_empty() || !has_offers(client, lease, claim).await? {
        return Ok(Vec::new());
    }
    let callers: Vec<&str> = claim.busy_callers.iter().map(|caller| &*caller.name).collect();
    let work = client.transaction().await?;
    lock_live_server(&work, lease).await?;
    let lanes = open_lanes(lease, claim);
    let place = *lock_mutex(&lease.claim_position);
    let sql = format!(
        "SELECT {COLUMNS}, turn, n FROM toolgate_fleet.jobs WHERE workspace = $1 \
         AND state = 'queued' AND lane IS NOT NULL AND lane = ANY($2) AND owner <> $3 \
         AND NOT caller = ANY($4) AND (-priority::bigint, turn, n) > ($6, $7, $8) AND {IS_FREE} \
         ORDER BY priority DESC, turn, n LIMIT $5 FOR UPDATE OF jobs SKIP LOCKED"
    );
    let params = [
        (&server.workspace as _, Type::TEXT),
        (&lanes as _, Type::TEXT_ARRAY),
        (&server.id as _, Type::INT8),
        (&callers as _, Type::TEXT_ARRAY),
        (&CANDIDATES_MAX as _, Type::INT8),
        (&place.rank as _, Type::INT8),
        (&place.turn as _, Type::INT8),
        (&place.n as _, Type::INT8),
    ];
    let rows = work.query_typed(&sql, &params).await?;
    // A queued job does not run anywhere.
    let found = rows.iter().map(|row| orphan_from_row(row, true));
    let mut found = found.collect::<Result<Vec<AdoptableJob>, PostgresError>>()?;
    let has_more = i64::try_from(rows.len()).is_ok_and(|count| count >= CANDIDATES_MAX);
    let last_rank = found.last().map(|job| -i64::from(job.priority));
    found.retain(|job| (claim.may_claim)(job));
    found.truncate(claim.room);
    let next = match (rows.last(), last_rank) {
        (Some(last), Some(rank)) if has_more && found.is_empty() => {
            JobClaimPosition { rank, turn: last.try_get("turn")?, n: last.try_get("n")? }
        }
        _ => JobClaimPosition::default(),
    };
    *lock_mutex(&lease.claim_position) = next;
    if found.is_empty() {
        return Ok(found);
    }
    let keys: Vec<Vec<u8>> = found.iter().map(|job| id_bytes(job.id)).collect();
    let sql = "UPDATE toolgate_fleet.jobs SET owner = $2, claimed = now() WHERE id = ANY($1)";
    let params = [(&keys as _, Type::BYTEA_ARRAY), (&server.id as _, Type::INT8)];
    work.execute_typed(sql, &params).await?;
    work.commit().await?;
    Ok(found)
}

/// Returns the names of the job queues (one for each tool) from which this server may claim jobs
/// now.
fn open_lanes<'c>(lease: &ServerLease, claim: &'c JobClaim) -> Vec<&'c str> {
    let is_steady = lease.may_take_over();
    let open = |lane: &&ClaimableJobQueue| lane.has_room && (is_steady || lane.idempotent);
    let lanes = claim.lanes.iter().filter(open);
    lanes.map(|lane| lane.name.as_str()).collect()
}

/// Returns true if jobs of other servers wait in queues that this server may serve, and no operator
/// has asked this server to drain. Stores the names of this server's queues for `toolgate fleet
/// status` if they have changed. Uses one statement, because idle servers call this once a second.
async fn has_offers(
    client: &Client,
    lease: &ServerLease,
    claim: &JobClaim,
) -> Result<bool, PostgresError> {
    let server = &lease.server;
    let lanes: Vec<&str> = claim.lanes.iter().map(|lane| lane.name.as_str()).collect();
    let open = open_lanes(lease, claim);
    let sql = format!(
        "SELECT draining, EXISTS (SELECT 1 FROM toolgate_fleet.jobs WHERE workspace = $2 \
         AND state = 'queued' AND lane IS NOT NULL AND lane = ANY($4) AND owner <> $1 \
         AND {IS_FREE}), \
         lanes = $3, {ENGINE_START} \
         FROM toolgate_fleet.servers WHERE id = $1"
    );
    let params = [
        (&server.id as _, Type::INT8),
        (&server.workspace as _, Type::TEXT),
        (&lanes as _, Type::TEXT_ARRAY),
        (&open as _, Type::TEXT_ARRAY),
    ];
    let Some(row) = client.query_typed_opt(&sql, &params).await? else { return Ok(false) };
    lease.set_draining(row.try_get(0)?);
    lease.note_engine(row.try_get(3)?);
    if !row.try_get::<_, bool>(2)? {
        let sql = "UPDATE toolgate_fleet.servers SET lanes = $2 WHERE id = $1";
        let params = [(&server.id as _, Type::INT8), (&lanes as _, Type::TEXT_ARRAY)];
        client.execute_typed(sql, &params).await?;
    }
    Ok(row.try_get(1)? && !lease.is_draining())
}

/// Locks the row of this server, so that no other server takes over its jobs at the same moment.
/// Records the start time of the database server.
///
/// # Errors
/// The lease of the server has ended.
pub(super) async fn lock_live_server(
    work: &impl GenericClient,
    lease: &ServerLease,
) -> Result<(), PostgresError> {
    let id = lease.server.id;
    let sql = format!(
        "SELECT {ENGINE_START} FROM toolgate_fleet.servers \
         WHERE id = $1 AND lease_until > now() AND NOT has_left FOR KEY SHARE"
    );
    let Some(row) = work.query_typed_opt(&sql, &[(&id as _, Type::INT8)]).await? else {
        let why = "counts this server as stopped, because its lease was not renewed in time";
        return Err(PostgresError::Unusable(why.to_owned()));
    };
    lease.note_engine(row.try_get(0)?);
    Ok(())
}
