//! Renews the lease of this server. While the lease is valid, the database counts the server as
//! alive.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::lock_mutex;
use toolgate_postgres::{
    PostgresConnectionPool, PostgresError, PostgresFailure, SharedPostgresPool,
};

use super::failures::FailedDatabaseWrite;
use super::profile::FleetServerProfile;
use crate::jobs::store::JobStoreError;

/// SQL for the start of the database server, in microseconds since 1970.
pub(super) const ENGINE_START: &str =
    "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";

/// Id of a server, which the rows of its jobs contain.
pub(super) type FleetServerId = i64;

/// Row of this server in the table of servers.
pub(super) struct FleetServerRow {
    pub(super) id: FleetServerId,
    pub(super) workspace: String,
    /// Id of this boot of the machine. Programs of servers with the same boot id may run on this
    /// machine.
    pub(super) machine: String,
    /// Number that identifies this server's programs.
    pub(super) mark: u64,
    /// Name and role of this server, and digests of its settings, for operators.
    pub(super) profile: FleetServerProfile,
}

/// A position in the order in which jobs wait, before all jobs by default.
///
/// If a server may claim none of its candidates, for example because policy hides their tool from
/// their callers, its next claim looks at the jobs behind them.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobClaimPosition {
    /// The negated priority of the job, so that a smaller number comes first.
    pub(super) rank: i64,
    pub(super) turn: i64,
    pub(super) n: i64,
}

impl Default for JobClaimPosition {
    fn default() -> Self {
        Self { rank: i64::MIN, turn: i64::MIN, n: i64::MIN }
    }
}

/// The lease of this server.
///
/// The server trusts its lease for two thirds of its length, counted from the moment at which the
/// renewal was sent. So it stops before the database lets others take over its jobs, whatever the
/// clocks of both show.
pub(super) struct ServerLease {
    pub(super) server: FleetServerRow,
    length: Duration,
    /// Time after the end of a server's lease from which a job that may not run twice counts as
    /// interrupted.
    pub(super) lost_after: Duration,
    /// End of the time for which this server trusts its lease, in milliseconds since the machine
    /// booted.
    trusted_until_ms: AtomicU64,
    /// Number of times that this server renewed its lease after it had already stopped trusting the
    /// lease.
    lapses: AtomicU64,
    /// Start of the unbroken series of renewals, in milliseconds since the machine booted; 0 if the
    /// last renewal failed.
    steady_since_ms: AtomicU64,
    /// Start of the database server as last seen, in microseconds since 1970; 0 before the first
    /// query for it.
    engine_start: AtomicI64,
    /// End of the time in which the database may have forgotten jobs that run, in milliseconds
    /// since the machine booted.
    unsettled_until_ms: AtomicU64,
    has_left: AtomicBool,
    /// True if an operator has asked this server to begin no further jobs.
    is_draining: AtomicBool,
    /// Dead servers whose programs were ended, and that the next renewal removes.
    forgettable: Mutex<Vec<FleetServerId>>,
    /// Position in the order of waiting jobs after which the next claim looks.
    pub(super) claim_position: Mutex<JobClaimPosition>,
}

impl ServerLease {
    pub(super) fn new(server: FleetServerRow, length: Duration, lost_after: Duration) -> Arc<Self> {
        Arc::new(Self {
            server,
            length,
            lost_after,
            trusted_until_ms: AtomicU64::new(0),
            lapses: AtomicU64::new(0),
            steady_since_ms: AtomicU64::new(0),
            engine_start: AtomicI64::new(0),
            unsettled_until_ms: AtomicU64::new(0),
            has_left: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            forgettable: Mutex::default(),
            claim_position: Mutex::default(),
        })
    }

    /// Returns true if this server's lease is still certain, so that no other server can have taken
    /// over its jobs.
    pub(super) fn is_trusted(&self) -> bool {
        boot_time_ms() < self.trusted_until_ms.load(Ordering::Acquire)
    }

    /// Returns the rest of the time for which this server's lease is certain.
    pub(super) fn trusted_for(&self) -> Duration {
        let until_ms = self.trusted_until_ms.load(Ordering::Acquire);
        Duration::from_millis(until_ms.saturating_sub(boot_time_ms()))
    }

    /// Returns the number of times that this server renewed its lease after it had already stopped
    /// trusting the lease.
    pub(super) fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::Acquire)
    }

    /// Checks that this server has trusted its lease without a break since [`lapses`](Self::lapses)
    /// returned `lapses`. In a break, other servers may have taken over this server's jobs.
    ///
    /// # Errors
    /// This server's trust in its lease had a break.
    pub(super) fn check_lease_unbroken(&self, lapses: u64) -> Result<(), FailedDatabaseWrite> {
        if self.lapses() == lapses {
            return Ok(());
        }
        let error = JobStoreError("the lease of this server ended meanwhile".to_owned());
        Err(FailedDatabaseWrite { error, has_unknown_outcome: true })
    }

    /// Returns true if this server has renewed its lease at one database server, without a failure,
    /// for the length of a lease. Before that, live servers may have been unable to renew their
    /// leases, so that they only seem to be dead.
    pub(super) fn may_take_over(&self) -> bool {
        let since = self.steady_since_ms.load(Ordering::Acquire);
        since != 0 && boot_time_ms().saturating_sub(since) >= millis(self.length)
    }

    /// Returns the time for which the end of a job is remembered: twice the length of a lease.
    pub(super) fn memory_time(&self) -> Duration {
        self.length.saturating_mul(2)
    }

    /// Records the start of the database server. If it has changed, the database may have forgotten
    /// the latest writes in a failover, which a broken connection alone does not show.
    pub(super) fn note_engine(&self, start: i64) {
        let before = self.engine_start.swap(start, Ordering::AcqRel);
        if before == 0 || before == start {
            return;
        }
        let now = boot_time_ms().max(1);
        self.unsettled_until_ms.store(now.saturating_add(millis(self.length)), Ordering::Release);
        self.steady_since_ms.store(now, Ordering::Release);
    }

    /// Queries the start time of the database server, and records that time.
    ///
    /// # Errors
    /// The query fails.
    pub(super) async fn look_at_engine(
        &self,
        client: &impl GenericClient,
    ) -> Result<(), PostgresError> {
        let row = client.query_typed_one(&format!("SELECT {ENGINE_START}"), &[]).await?;
        self.note_engine(row.try_get(0)?);
        Ok(())
    }

    /// Returns true for the length of a lease after a restart or a failover of the database. During
    /// that time, other servers report the jobs that the database has forgotten.
    pub(super) fn is_unsettled(&self) -> bool {
        boot_time_ms() < self.unsettled_until_ms.load(Ordering::Acquire)
    }

    /// Returns true if an operator has asked this server to begin no further jobs.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Records whether an operator has asked this server to begin no further jobs.
    pub(super) fn set_draining(&self, is_draining: bool) {
        self.is_draining.store(is_draining, Ordering::Release);
    }

    /// Lets the next renewal of the lease remove these dead servers from the database.
    pub(super) fn forget(&self, servers: Vec<FleetServerId>) {
        lock_mutex(&self.forgettable).extend(servers);
    }

    /// Renews the lease of this server, and registers the server if it is not registered.
    pub(super) async fn renew(&self, pool: &PostgresConnectionPool) -> Result<(), PostgresFailure> {
        let sent = boot_time_ms();
        let was_trusted = self.is_trusted();
        let renewed = self.try_renew(pool).await;
        if renewed.is_ok() {
            if !was_trusted {
                self.lapses.fetch_add(1, Ordering::AcqRel);
            }
            let trust = millis(trusted_time(self.length));
            self.trusted_until_ms.store(sent + trust, Ordering::Release);
            // After a pause, such as of a frozen process, the series begins anew.
            if !was_trusted || self.steady_since_ms.load(Ordering::Acquire) == 0 {
                self.steady_since_ms.store(sent.max(1), Ordering::Release);
            }
        } else {
            self.steady_since_ms.store(0, Ordering::Release);
        }
        renewed
    }

    async fn try_renew(&self, pool: &PostgresConnectionPool) -> Result<(), PostgresFailure> {
        let forgettable = lock_mutex(&self.forgettable).clone();
        let lent = pool.acquire().await?;
        let work = self.renew_with(&lent.connection.client, &forgettable);
        let result = pool.with_timeout(pool.query_timeout, work).await;
        lent.give_back(result)?;
        lock_mutex(&self.forgettable).retain(|id| !forgettable.contains(id));
        Ok(())
    }

    async fn renew_with(
        &self,
        client: &Client,
        forgettable: &[FleetServerId],
    ) -> Result<(), PostgresError> {
        let FleetServerRow { id, workspace, machine, mark, profile } = &self.server;
        let mark = mark.to_string();
        let seconds = self.length.as_secs_f64();
        let kind = profile.kind.as_str();
        let settings = profile.settings.current();
        let sql = format!(
            "INSERT INTO toolgate_fleet.servers (id, workspace, machine, mark, version, \
             lease_until, name, kind, settings, renewed) VALUES ($1, $2, $3, $4, $5, \
             now() + make_interval(secs => $6), $7, $8, $9, now()) \
             ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until, \
             settings = excluded.settings, renewed = excluded.renewed \
             WHERE NOT servers.has_left RETURNING draining, {ENGINE_START}"
        );
        let params = [
            (id as _, Type::INT8),
            (workspace as _, Type::TEXT),
            (machine as _, Type::TEXT),
            (&mark as _, Type::TEXT),
            (&env!("CARGO_PKG_VERSION") as _, Type::TEXT),
            (&seconds as _, Type::FLOAT8),
            (&profile.name as _, Type::TEXT),
            (&kind as _, Type::TEXT),
            (&settings as _, Type::TEXT),
        ];
        if let Some(row) = client.query_typed_opt(&sql, &params).await? {
            self.set_draining(row.try_get(0)?);
            self.note_engine(row.try_get(1)?);
        }
        if !forgettable.is_empty() {
            let sql = "DELETE FROM toolgate_fleet.servers WHERE id = ANY($1) \
                       AND (has_left OR lease_until < now()) AND NOT EXISTS (SELECT 1 \
                       FROM toolgate_fleet.jobs WHERE owner = servers.id AND ended IS NULL)";
            client.execute_typed(sql, &[(&forgettable as _, Type::INT8_ARRAY)]).await?;
        }
        Ok(())
    }

    /// Ends the lease of this server, so that other servers take over its remaining jobs at once.
    pub(super) async fn leave(&self, pool: &PostgresConnectionPool) -> Result<(), PostgresFailure> {
        self.has_left.store(true, Ordering::Release);
        self.stop_trusting_lease();
        let lent = pool.acquire().await?;
        let id = self.server.id;
        let work = async {
            let sql = "UPDATE toolgate_fleet.servers SET has_left = true WHERE id = $1";
            lent.connection.client.execute_typed(sql, &[(&id as _, Type::INT8)]).await?;
            Ok(())
        };
        let result = pool.with_timeout(pool.query_timeout, work).await;
        lent.give_back(result)
    }

    /// Stops trusting the lease until the next renewal.
    pub(super) fn stop_trusting_lease(&self) {
        self.trusted_until_ms.store(0, Ordering::Release);
    }
}

/// Starts the task that renews this server's lease. Dropping the handle stops the renewals.
pub(super) fn start_renewals(
    lease: Arc<ServerLease>,
    pool: SharedPostgresPool,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(toolgate_net::spawn_task(async move {
        let mut was_renewed = true;
        loop {
            // After a failure, it tries again sooner.
            let pause = if was_renewed { lease.length / 4 } else { lease.length / 16 };
            tokio::time::sleep(pause).await;
            if lease.has_left.load(Ordering::Acquire) {
                return;
            }
            let renewed = lease.renew(&pool).await;
            match &renewed {
                Err(err) if was_renewed => {
                    tracing::warn!(
                        "{err}; other servers may take over the jobs of this \
                         server"
                    );
                }
                Ok(()) if !was_renewed => {
                    tracing::info!("{} is available again", pool.display_name());
                }
                Err(_) | Ok(()) => {}
            }
            was_renewed = renewed.is_ok();
        }
    }))
}

/// Returns the id of this boot of the machine, or an empty text if the system has no such id.
/// Without it, no leftover programs are found.
#[allow(clippy::disallowed_methods, reason = "a file of the kernel, outside every root")]
pub(super) fn machine_boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Returns the time after a renewal for which a server trusts its lease of the given `length`.
pub(super) fn trusted_time(length: Duration) -> Duration {
    length / 3 * 2
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time since the machine booted, including the time that the machine was suspended,
/// because a lease ends during that time as well.
fn boot_time_ms() -> u64 {
    let now: Duration = clock_gettime(ClockId::Boottime).try_into().unwrap_or_default();
    millis(now)
}
