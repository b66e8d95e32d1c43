//! Tests of the job store with a real PostgreSQL server, which each test starts itself.

mod claim_order;
mod frozen_servers;
mod session_messages;
mod shared_contents;

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use toolgate_contract::JobState;
use toolgate_postgres::{DatabasePassword, PostgresAddress};

use super::*;
use crate::database_server::PostgresServerProcess;
use crate::jobs::shared_folder::FleetLargeFileLocation;
use crate::jobs::store::ClaimableJobQueue;
use crate::jobs::store_tests::{
    TestStoreLocation, adopt_all, at, end, id, job, job_store_tests, printed,
};

/// Longest wait for the end of a short lease in a test.
const LEASE_WAIT: Duration = Duration::from_secs(30);

/// Test database, and the workspace of one test in this database.
struct TestDatabaseLocation {
    server: Arc<PostgresServerProcess>,
    database: String,
    workspace: String,
    /// Folder that the servers share, if any.
    files: Option<std::path::PathBuf>,
}

impl TestDatabaseLocation {
    fn start() -> Self {
        let (database, workspace) = ("postgres".to_owned(), "first".to_owned());
        Self { server: Arc::new(PostgresServerProcess::start()), database, workspace, files: None }
    }

    fn url(&self) -> String {
        self.server.url().replace("/postgres?", &format!("/{}?", self.database))
    }

    /// Returns the location of another workspace in the database of this test.
    fn other_workspace(&self) -> Self {
        let (server, database) = (self.server.clone(), self.database.clone());
        Self { server, database, workspace: "second".to_owned(), files: None }
    }

    /// Opens the job store as one more server with the lease time `lease`. After `lost_after`
    /// without contact, other servers consider the server lost.
    async fn open_with(&self, lease: Duration, lost_after: Duration) -> PostgresStore {
        self.try_open(&self.url(), lease, lost_after).await.expect("a store")
    }

    async fn try_open(
        &self,
        url: &str,
        lease: Duration,
        lost_after: Duration,
    ) -> Result<PostgresStore, JobStoreError> {
        let address = PostgresAddress::parse(url, "PGPASSWORD", &DatabasePassword::default());
        let address = address.expect("an address");
        let workspace = self.workspace.clone();
        let profile = FleetServerProfile::default();
        let files = self.files.clone().map(FleetLargeFileLocation::Folder);
        let settings =
            PostgresStoreSettings { address, workspace, lease, lost_after, files, profile };
        PostgresStore::open(settings, 7).await
    }

    async fn open_long(&self) -> PostgresStore {
        self.open_with(Duration::from_secs(60), Duration::from_secs(300)).await
    }
}

impl TestStoreLocation for TestDatabaseLocation {
    // Each step looks at everything, over a connection.
    const MODEL_RUNS: u32 = 8;

    fn open(&self) -> BoxFuture<'_, Box<dyn JobStore>> {
        Box::pin(async move { Box::new(self.open_long().await) as Box<dyn JobStore> })
    }

    fn another(&self) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let database = format!("database_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.server.run(&format!("create database {database}"));
        Self { server: self.server.clone(), database, workspace: "first".to_owned(), files: None }
    }
}

job_store_tests!(TestDatabaseLocation::start());

/// Adopts jobs like a server that knows no idempotent tool and already runs the jobs `own`. Tries
/// again until at least one job was adopted.
async fn adopt_some(store: &PostgresStore, own: &[JobId]) -> Vec<JobId> {
    let until = Instant::now() + LEASE_WAIT;
    loop {
        let own = own.to_vec();
        let may: TakeoverFilter = Arc::new(move |orphan| {
            !own.contains(&orphan.id) && (orphan.state == JobState::Queued || orphan.is_lost)
        });
        let adopted = store.adopt(may).await.expect("it adopts");
        if !adopted.jobs.is_empty() {
            (adopted.forget_servers)();
            return adopted.jobs.iter().map(|job| job.id).collect();
        }
        assert!(Instant::now() < until, "no job was taken over");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn jobs_of_a_killed_server_are_taken_over_after_its_lease_and_begun_ones_once_they_are_lost()
{
    let place = TestDatabaseLocation::start();
    let short = Duration::from_secs(3);
    let one = place.open_with(short, Duration::from_secs(3)).await;
    let two = place.open_with(short, Duration::from_secs(3)).await;
    for number in 1..=2 {
        one.accept(job(number)).await.expect("it is accepted");
    }
    one.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    // As after a kill, the lease is neither renewed nor ended.
    drop(one);
    assert_eq!(adopt_some(&two, &[]).await, [id(2)]);
    assert_eq!(adopt_some(&two, &[id(2)]).await, [id(1)]);
    assert!(two.finish(id(1), end(2, vec![])).await.expect("an answer").is_some());
    two.begin(id(2), at(2)).await.expect("an answer").expect("it begins");
}

#[tokio::test]
async fn a_server_that_was_overtaken_writes_nothing_and_is_told_to_stop() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    let two = place.open_with(Duration::from_secs(1), Duration::ZERO).await;
    for number in 1..=2 {
        one.accept(job(number)).await.expect("it is accepted");
    }
    one.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    assert_eq!(one.take_requests().await.expect("an answer"), []);
    // As if it had been frozen: its next renewal is 15 s away.
    let server = one.lease.server.id;
    let ended = format!(
        "update toolgate_fleet.servers set lease_until = now() - interval '1 minute' \
         where id = {server}"
    );
    place.server.run(&ended);
    let refused = one.begin(id(2), at(2)).await.expect_err("its lease has ended").to_string();
    assert!(refused.contains("counts this server as stopped"), "{refused}");

    let mut taken = adopt_some(&two, &[]).await;
    taken.sort_unstable();
    assert_eq!(taken, [id(1), id(2)]);
    let refused = one.append_events(id(1), vec![(at(2), printed("late"))]).await;
    let refused = refused.expect_err("it is fenced").to_string();
    assert!(refused.contains("does not run it"), "{refused}");
    assert!(one.finish(id(1), end(3, vec![])).await.expect("an answer").is_none());
    lock_mutex(&one.runs).mark_all_possibly_claimed();
    let stops = one.take_requests().await.expect("an answer");
    assert_eq!(
        stops,
        [RequestToJobOwner::Stop(id(2))],
        "the server has ended its run of the other job"
    );
    let stored = two.job(id(1)).await.expect("an answer").expect("it is there");
    assert_eq!((stored.state, stored.last_event), (JobState::Running, 2));
}

#[tokio::test]
async fn a_begun_job_that_another_server_took_over_is_stopped_once() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    let two = place.open_long().await;
    one.accept(job(1)).await.expect("it is accepted");
    one.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    let owner = two.lease.server.id;
    place.server.run(&format!("update toolgate_fleet.jobs set owner = {owner}"));
    let stop = RequestToJobOwner::Stop(id(1));
    assert_eq!(one.take_requests().await.expect("an answer"), [stop]);
    assert_eq!(one.take_requests().await.expect("an answer"), []);
}

#[tokio::test]
async fn a_job_that_its_server_does_not_know_is_adopted_by_that_server() {
    let place = TestDatabaseLocation::start();
    let store = place.open_long().await;
    for number in 1..=2 {
        store.accept(job(number)).await.expect("it is accepted");
    }
    let may: TakeoverFilter = Arc::new(|orphan| orphan.id == id(2) && orphan.is_lost);
    let adopted = store.adopt(may).await.expect("it adopts").jobs;
    assert_eq!(adopted.iter().map(|job| job.id).collect::<Vec<_>>(), [id(2)]);
    // The caller of job 1 was told that it was refused.
    lock_mutex(&store.runs).unacknowledged.insert(id(1));
    let adopted = adopt_all(&store).await.expect("it adopts").jobs;
    assert_eq!(adopted.iter().map(|job| job.id).collect::<Vec<_>>(), [id(2)]);
    assert!(store.job(id(1)).await.expect("an answer").is_none());
}

#[tokio::test]
async fn a_begin_with_an_unknown_outcome_is_completed_by_the_next_try() {
    let place = TestDatabaseLocation::start();
    let store = place.open_long().await;
    store.accept(job(1)).await.expect("it is accepted");
    let first = store.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    // As if the answer to the first try had been lost.
    lock_mutex(&store.runs).uncertain_begins.insert(id(1));
    let again = store.begin(id(1), at(2)).await.expect("an answer").expect("it has begun");
    assert_eq!((again.attempt, again.start_event), (first.attempt, first.start_event));
    assert!(store.begin(id(1), at(3)).await.expect("an answer").is_none());
}

#[tokio::test]
async fn events_of_an_append_with_an_unknown_outcome_are_stored_once() {
    let place = TestDatabaseLocation::start();
    let store = place.open_long().await;
    store.accept(job(1)).await.expect("it is accepted");
    store.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    let batch = || vec![(at(2), printed("one")), (at(2), printed("two"))];
    assert_eq!(store.append_events(id(1), batch()).await.expect("it is added"), 3);
    // As if the answer to a second append had been lost after its commit.
    assert_eq!(store.append_events(id(1), batch()).await.expect("it is added"), 5);
    lock_mutex(&store.runs).note_stored(id(1), 4);
    lock_mutex(&store.runs).note_uncertain(id(1), 2);
    assert_eq!(store.append_events(id(1), batch()).await.expect("it is there"), 5);
    // As if an append had never arrived.
    lock_mutex(&store.runs).note_uncertain(id(1), 2);
    let first = store.finish(id(1), end(3, batch())).await.expect("an answer");
    assert_eq!(first, Some(7));
    assert_eq!(store.events(id(1), 0, usize::MAX).await.expect("events").len(), 9);
}

#[tokio::test]
async fn other_servers_are_notified_of_changes() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    let two = place.open_long().await;
    one.accept(job(1)).await.expect("it is accepted");
    // Repeated, because the other server may not listen yet.
    let change = async {
        for _ in 0..1_000 {
            let added = one.append_events(id(1), vec![(at(1), printed("x"))]).await;
            added.expect("it is added");
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = two.wait_for_change(id(1), Duration::from_secs(600)) => {}
        () = change => panic!("no notification arrived"),
    }
}

#[tokio::test]
async fn several_servers_that_open_an_empty_database_at_once_share_one_store() {
    let place = TestDatabaseLocation::start();
    let stores = join_all((0..6).map(|_| place.open_long())).await;
    stores[0].accept(job(1)).await.expect("it is accepted");
    for store in &stores {
        assert!(store.job(id(1)).await.expect("an answer").is_some());
    }
}

#[tokio::test]
async fn jobs_of_another_workspace_are_neither_seen_nor_taken_over() {
    let place = TestDatabaseLocation::start();
    let one = place.open().await;
    one.accept(job(1)).await.expect("it is accepted");
    let other = place.other_workspace();
    let two = other.open().await;
    assert!(two.job(id(1)).await.expect("an answer").is_none());
    assert!(two.list(None, None, 9).await.expect("a page").jobs.is_empty());
    crate::jobs::store_tests::shut_down(one).await;
    assert!(adopt_all(&*two).await.expect("it adopts").jobs.is_empty());
}

#[tokio::test]
async fn a_database_of_a_newer_toolgate_is_refused() {
    let place = TestDatabaseLocation::start();
    drop(place.open_long().await);
    place.server.run("update toolgate_fleet.schema_version set number = 7, min_version = 5");
    let url = place.server.url();
    let refused = place.try_open(&url, LEASE_WAIT, LEASE_WAIT).await.err().expect("it is refused");
    let refused = refused.to_string();
    assert!(refused.contains("newer toolgate (job schema 7; this one supports 4)"), "{refused}");
    // As if the newer toolgate could share its tables with this one.
    place.server.run("update toolgate_fleet.schema_version set min_version = 2");
    let store = place.try_open(&url, LEASE_WAIT, LEASE_WAIT).await.expect("a store");
    store.accept(job(1)).await.expect("it is accepted");
}

/// Returns a claim for up to `room` jobs of the test tool, which is not idempotent.
fn places(room: usize) -> JobClaim {
    let lane =
        ClaimableJobQueue { name: "exec.run@1".to_owned(), idempotent: false, has_room: true };
    JobClaim { room, lanes: vec![lane], busy_callers: Vec::new(), may_claim: Arc::new(|_| true) }
}

async fn claimed(store: &PostgresStore, claim: JobClaim) -> Vec<JobId> {
    let claimed = store.claim(claim).await.expect("it claims");
    claimed.iter().map(|job| job.id).collect()
}

/// Opens the job store as a server with a lease of 4 s, and waits until this server may take over
/// the jobs of other servers.
async fn open_steady(place: &TestDatabaseLocation) -> PostgresStore {
    let store = place.open_with(Duration::from_secs(4), Duration::from_secs(300)).await;
    let until = Instant::now() + LEASE_WAIT;
    while !store.lease.may_take_over() {
        assert!(Instant::now() < until, "the lease is not renewed without a break");
        sleep(Duration::from_millis(20)).await;
    }
    store
}

#[tokio::test]
async fn a_waiting_job_is_claimed_once_and_its_former_owner_is_told() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    for number in 1..=4 {
        one.accept(job(number)).await.expect("it is accepted");
    }
    one.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    let [two, three] = [open_steady(&place).await, open_steady(&place).await];
    let (left, right) = tokio::join!(claimed(&two, places(2)), claimed(&three, places(9)));
    assert!(left.iter().all(|id| !right.contains(id)), "both have claimed {left:?}");
    let mut all = [left.as_slice(), right.as_slice()].concat();
    // A server skips the jobs that another one is looking at, and claims them later.
    let later = claimed(&three, places(9)).await;
    all.extend(later.into_iter().filter(|id| !left.contains(id)));
    all.sort_unstable();
    assert_eq!(all, [id(2), id(3), id(4)]);
    assert!(left.len() <= 2);
    assert!(one.begin(id(2), at(2)).await.expect("an answer").is_none(), "it was claimed");
    lock_mutex(&one.runs).mark_all_possibly_claimed();
    let mut told = one.take_requests().await.expect("an answer");
    told.sort_by_key(|request| match request {
        RequestToJobOwner::Stop(id)
        | RequestToJobOwner::Cancel(id)
        | RequestToJobOwner::Answer(id, _) => *id,
    });
    assert_eq!(told, [id(2), id(3), id(4)].map(RequestToJobOwner::Stop));
    assert_eq!(one.take_requests().await.expect("an answer"), []);
}

#[tokio::test]
async fn a_server_that_has_just_connected_claims_only_idempotent_jobs() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    one.accept(job(1)).await.expect("it is accepted");
    let two = place.open_long().await;
    assert_eq!(claimed(&two, places(9)).await, []);
    let lane =
        ClaimableJobQueue { name: "exec.run@1".to_owned(), idempotent: true, has_room: true };
    let claim = JobClaim { lanes: vec![lane], ..places(9) };
    assert_eq!(claimed(&two, claim).await, [id(1)]);
}

#[tokio::test]
async fn a_running_job_whose_start_the_database_forgot_is_not_claimed() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    one.accept(job(1)).await.expect("it is accepted");
    one.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    // As after a failover to a standby that had not received the start.
    place.server.run("update toolgate_fleet.jobs set state = 'queued', attempts = 0");
    assert_eq!(one.take_requests().await.expect("an answer"), []);
    let two = open_steady(&place).await;
    assert_eq!(claimed(&two, places(9)).await, []);
    let stored = two.job(id(1)).await.expect("an answer").expect("it is there");
    assert_eq!((stored.state, stored.attempts), (JobState::Running, 1));
    // A job that was put back on purpose stays queued.
    one.requeue(id(1), at(2)).await.expect("it is put back");
    assert_eq!(one.take_requests().await.expect("an answer"), []);
    assert_eq!(claimed(&two, places(9)).await, [id(1)]);
}

#[tokio::test]
async fn a_job_that_another_server_began_before_a_failover_does_not_begin_again() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    let two = open_steady(&place).await;
    one.accept(job(1)).await.expect("it is accepted");
    assert_eq!(claimed(&two, places(9)).await, [id(1)]);
    two.begin(id(1), at(1)).await.expect("an answer").expect("it begins");
    // As after a failover to a standby that had not received the claim.
    let forget = format!(
        "update toolgate_fleet.jobs set state = 'queued', attempts = 0, ended = null, owner = {}",
        one.lease.server.id
    );
    place.server.run(&forget);
    assert_eq!(two.take_requests().await.expect("an answer"), []);
    assert!(one.begin(id(1), at(2)).await.expect("an answer").is_none());
    two.finish(id(1), end(3, Vec::new())).await.expect("an answer").expect("it ends");
    place.server.run(&forget);
    two.lease.note_engine(1);
    assert_eq!(adopt_some(&two, &[]).await, [id(1)]);
    let stored = two.job(id(1)).await.expect("an answer").expect("it is there");
    assert_eq!((stored.state, stored.attempts), (JobState::Running, 1));
}

#[tokio::test]
async fn a_job_that_may_not_run_twice_begins_a_lease_after_a_restart_of_the_database() {
    let place = TestDatabaseLocation::start();
    let store = place.open_with(Duration::from_secs(3), Duration::from_secs(300)).await;
    for number in 1..=2 {
        store.accept(job(number)).await.expect("it is accepted");
    }
    // The next look finds another start.
    store.lease.note_engine(1);
    let refused = store.begin_once(id(1), at(1)).await.expect_err("it is too early").to_string();
    assert!(refused.contains("was restarted or replaced"), "{refused}");
    store.begin(id(2), at(1)).await.expect("an answer").expect("it begins");
    let until = Instant::now() + LEASE_WAIT;
    loop {
        if let Ok(begun) = store.begin_once(id(1), at(2)).await {
            assert!(begun.is_some());
            return;
        }
        assert!(Instant::now() < until, "it does not begin");
    }
}

#[tokio::test]
async fn a_lapse_of_the_lease_is_noticed_although_it_is_trusted_again() {
    let place = TestDatabaseLocation::start();
    let store = place.open_with(Duration::from_secs(300), Duration::from_secs(300)).await;
    let lapses = store.lease.lapses();
    store.lease.renew(&store.pool).await.expect("it is renewed");
    assert!(store.lease.check_lease_unbroken(lapses).is_ok());
    // As after a freeze for longer than the lease.
    store.lease.stop_trusting_lease();
    store.lease.renew(&store.pool).await.expect("it is renewed");
    assert!(store.is_owner_certain() && store.lease.check_lease_unbroken(lapses).is_err());
}

#[tokio::test]
async fn a_server_that_is_to_drain_claims_nothing() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    one.accept(job(1)).await.expect("it is accepted");
    let two = open_steady(&place).await;
    assert!(!two.is_draining());
    place.server.run("update toolgate_fleet.servers set draining = true");
    assert_eq!(claimed(&two, places(9)).await, []);
    assert!(two.is_draining());
}

#[tokio::test]
async fn other_servers_are_notified_of_offered_jobs() {
    let place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    let two = place.open_long().await;
    // Repeated, because the other server may not listen yet, and waits for a second at most.
    let until = Instant::now() + LEASE_WAIT;
    loop {
        let began = Instant::now();
        one.offer_jobs();
        two.wait_for_offers().await;
        if began.elapsed() < Duration::from_millis(900) {
            return;
        }
        assert!(Instant::now() < until, "no notification arrived");
    }
}

#[tokio::test]
async fn a_user_who_may_not_create_tables_is_told_what_to_allow() {
    let place = TestDatabaseLocation::start();
    place.server.run("create role guest login");
    let url = place.server.url().replace("postgres@", "guest@");
    let refused = place.try_open(&url, LEASE_WAIT, LEASE_WAIT).await.err().expect("it is refused");
    let refused = refused.to_string();
    assert!(refused.contains("allow the user to create a schema"), "{refused}");
}

#[tokio::test]
async fn without_the_database_a_server_loses_its_trust_and_goes_on_after_a_restart() {
    let mut place = TestDatabaseLocation::start();
    let store = place.open_with(Duration::from_secs(3), Duration::from_secs(300)).await;
    store.accept(job(1)).await.expect("it is accepted");
    assert!(store.is_owner_certain());
    Arc::get_mut(&mut place.server).expect("one owner").stop();
    let refused = store.accept(job(2)).await.expect_err("it is away").to_string();
    assert!(refused.contains("PostgreSQL `postgres` at"), "{refused}");
    let until = Instant::now() + LEASE_WAIT;
    while store.is_owner_certain() {
        assert!(Instant::now() < until, "the lease is trusted for too long");
        sleep(Duration::from_millis(20)).await;
    }
    Arc::get_mut(&mut place.server).expect("one owner").again();
    while !store.is_owner_certain() {
        assert!(Instant::now() < until, "the lease is not renewed");
        sleep(Duration::from_millis(20)).await;
    }
    store.accept(job(2)).await.expect("it is accepted");
    assert!(store.begin(id(1), at(1)).await.expect("an answer").is_some());
}

#[tokio::test]
async fn servers_take_calls_from_one_bucket_and_none_beyond_its_burst() {
    let place = TestDatabaseLocation::start();
    let [one, two] = [place.open_long().await, place.open_long().await];
    let slow =
        RateBucket { key: [7; 16], interval: Duration::from_secs(600), burst: 5, at_least: 1 };
    let mut taken = 0;
    for store in [&one, &two].into_iter().cycle().take(8) {
        taken += store.take_calls(slow).await.expect("an answer").calls;
    }
    assert_eq!(taken, 5);
    let empty = one.take_calls(slow).await.expect("an answer");
    assert_eq!((empty.calls, empty.servers), (0, 2));
    assert!(empty.retry_after <= slow.interval, "{empty:?}");
    // The calls of 50 ms for two servers.
    let fast =
        RateBucket { key: [8; 16], interval: Duration::from_millis(1), burst: 1000, at_least: 1 };
    assert_eq!(two.take_calls(fast).await.expect("an answer").calls, 25);
    let many = RateBucket { key: [9; 16], at_least: 4, ..slow };
    let taken = [(&one, 4), (&two, 1), (&one, 0)];
    for (store, calls) in taken {
        assert_eq!(store.take_calls(many).await.expect("an answer").calls, calls);
    }
    let left = "select count(*) from toolgate_fleet.rates";
    assert_eq!(place.server.run(left).trim(), "3");
    place.server.run("update toolgate_fleet.rates set full_at = 0");
    one.remove_expired(at(1), usize::MAX).await.expect("full buckets are removed");
    assert_eq!(place.server.run(left).trim(), "0");
}

#[tokio::test]
async fn a_credential_is_shared_and_locked_by_one_server_at_a_time() {
    let place = TestDatabaseLocation::start();
    let open = || {
        let address =
            PostgresAddress::parse(&place.url(), "PGPASSWORD", &DatabasePassword::default());
        FleetCredentials::new(PostgresStoreSettings {
            address: address.expect("an address"),
            workspace: "first".to_owned(),
            lease: LEASE_WAIT,
            lost_after: LEASE_WAIT,
            files: None,
            profile: FleetServerProfile::default(),
        })
    };
    let [one, two] = [open(), open()];
    assert_eq!(one.read("a").await.expect("an answer"), FleetCredentialState::Unknown);
    let held = one.lock("a").await.expect("it is locked");
    let _other = two.lock("b").await.expect("another one is free");
    one.write("a", Some(b"sealed")).await.expect("it is stored");
    let waiting = two.lock("a");
    tokio::pin!(waiting);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
    assert!(early.is_err(), "the first lock is held");
    let stored = FleetCredentialState::Stored(b"sealed".to_vec());
    assert_eq!(two.read("a").await.expect("an answer"), stored);
    drop(held);
    let held = waiting.await.expect("it is locked after the first lock was released");
    two.write("a", None).await.expect("it is deleted");
    drop(held);
    assert_eq!(one.read("a").await.expect("an answer"), FleetCredentialState::Deleted);
}

#[tokio::test]
async fn after_a_restart_of_the_database_only_idempotent_jobs_are_claimed_for_a_while() {
    let mut place = TestDatabaseLocation::start();
    let one = place.open_long().await;
    one.accept(job(1)).await.expect("it is accepted");
    let two = open_steady(&place).await;
    let server = Arc::get_mut(&mut place.server).expect("one owner");
    server.stop();
    server.again();
    // The first statements may meet connections that the stop has closed.
    let claimed = async {
        loop {
            if let Ok(jobs) = two.claim(places(9)).await {
                return jobs;
            }
        }
    };
    assert_eq!(claimed.await.len(), 0);
    assert!(!two.lease.may_take_over());
}
