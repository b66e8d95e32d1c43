//! Measures how fast the job store of a fleet accepts jobs, and claims them while many wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use jiff::Timestamp;
use serde_json::json;
use toolgate_contract::{CallEnding, Caller, JobId, JobState, ResultText, ToolId, ToolOutput};
use toolgate_host::{
    ClientAnswerState, FleetServerProfile, JobClaim, JobEnd, JobLane, JobStore, NewJob,
    PostgresStore, PostgresStoreSettings,
};
use toolgate_postgres::{DatabasePassword, PostgresAddress};

/// The number of tasks that submit jobs at once.
const SUBMITTERS: usize = 8;
/// The number of servers that claim jobs.
const CLAIMERS: usize = 4;
/// The number of free places of a server that claims jobs.
const FREE_PLACES: usize = 16;
/// The number of callers.
const CALLERS: u64 = 1000;
/// The most jobs that are claimed, so that most still wait.
const CLAIMED_MAX: usize = 10_000;
/// The lane in which the jobs wait.
const LANE: &str = "chaos.claim@1";
/// The length of a lease, which outlasts the measurement.
const LEASE: Duration = Duration::from_secs(600);

/// Rates of a job store, per second.
pub(super) struct StoreRates {
    /// Jobs that were accepted.
    pub(super) accepts: f64,
    /// Waiting jobs that were claimed.
    pub(super) claims: f64,
    /// Claimed jobs that began and ended.
    pub(super) lives: f64,
}

/// Measures the job store in the database at `url`, with `waiting` jobs.
pub(super) fn measure(url: &str, waiting: usize) -> anyhow::Result<StoreRates> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure_store(url, waiting))
}

async fn measure_store(url: &str, waiting: usize) -> anyhow::Result<StoreRates> {
    let front = Arc::new(open(url).await?);
    let started = Instant::now();
    submit(&front, waiting).await?;
    let accepts = rate(waiting, started);
    let mut claimers = Vec::new();
    for _ in 0..CLAIMERS {
        claimers.push(Arc::new(open(url).await?));
    }
    let amount = CLAIMED_MAX.min(waiting / 4);
    let started = Instant::now();
    let claimed = run_claimers(&claimers, amount, false).await?;
    let claims = rate(claimed, started);
    let started = Instant::now();
    let ended = run_claimers(&claimers, amount / 4, true).await?;
    let lives = rate(ended, started);
    Ok(StoreRates { accepts, claims, lives })
}

/// Returns the number of operations per second since `started`.
fn rate(count: usize, started: Instant) -> f64 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    f64::from(count) / started.elapsed().as_secs_f64()
}

/// Opens the store as one more server.
async fn open(url: &str) -> anyhow::Result<PostgresStore> {
    let address = PostgresAddress::parse(url, "PGPASSWORD", &DatabasePassword::default());
    let address = address.map_err(|err| anyhow::anyhow!("the URL {err}"))?;
    let settings = PostgresStoreSettings {
        address,
        workspace: "claims".to_owned(),
        lease: LEASE,
        lost_after: LEASE,
        profile: FleetServerProfile::default(),
    };
    Ok(PostgresStore::open(settings, 1).await?)
}

/// Submits `amount` jobs of many callers.
async fn submit(front: &Arc<PostgresStore>, amount: usize) -> anyhow::Result<()> {
    let next = Arc::new(AtomicU64::new(1));
    let amount = u64::try_from(amount)?;
    let mut submitters = Vec::new();
    for _ in 0..SUBMITTERS {
        let (front, next) = (front.clone(), next.clone());
        submitters.push(tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number > amount {
                    return anyhow::Ok(());
                }
                front.accept(new_job(number)?).await?;
            }
        }));
    }
    for submitter in submitters {
        submitter.await??;
    }
    Ok(())
}

fn new_job(number: u64) -> anyhow::Result<NewJob> {
    let bits = u128::from(number);
    Ok(NewJob {
        id: JobId::from_bits(bits << 64 | bits),
        tool: ToolId::new("chaos.claim").context("not the id of a tool")?,
        input: json!({ "n": number }),
        caller: Caller::with_key(&format!("caller-{}", number % CALLERS)),
        dialect: "mcp".into(),
        priority: 0,
        created: Timestamp::now(),
        keep: Duration::from_secs(3600),
        answers: ClientAnswerState::default(),
        lane: Some(LANE.to_owned()),
    })
}

/// Lets all claimers claim jobs until they have claimed `amount` together. If `is_whole` is true,
/// they also begin and end each job. Returns the number of claimed jobs.
async fn run_claimers(
    claimers: &[Arc<PostgresStore>],
    amount: usize,
    is_whole: bool,
) -> anyhow::Result<usize> {
    let claimed = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for claimer in claimers {
        let (claimer, claimed) = (claimer.clone(), claimed.clone());
        tasks.push(tokio::spawn(async move {
            while claimed.load(Ordering::Relaxed) < amount {
                let ids = claim(&claimer).await?;
                ensure!(!ids.is_empty(), "no job is left to claim");
                claimed.fetch_add(ids.len(), Ordering::Relaxed);
                for id in ids.into_iter().filter(|_| is_whole) {
                    run_job(&claimer, id).await?;
                }
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(claimed.load(Ordering::Relaxed))
}

async fn claim(store: &PostgresStore) -> anyhow::Result<Vec<JobId>> {
    let lane = JobLane { name: LANE.to_owned(), idempotent: true, has_room: true };
    let claim = JobClaim {
        room: FREE_PLACES,
        lanes: vec![lane],
        busy_callers: Vec::new(),
        may_claim: Arc::new(|_| true),
    };
    let claimed = store.claim(claim).await?;
    Ok(claimed.iter().map(|job| job.id).collect())
}

/// Begins and ends a job without running anything.
async fn run_job(store: &PostgresStore, id: JobId) -> anyhow::Result<()> {
    store.begin(id, Timestamp::now()).await?.context("a claimed job does not begin")?;
    let output = ToolOutput::new(json!(1), ResultText::from_body("one"), CallEnding::Done);
    let end = JobEnd {
        at: Timestamp::now(),
        state: JobState::Succeeded,
        outcome: Ok(output),
        artefacts: Vec::new(),
        last_events: Vec::new(),
    };
    store.finish(id, end).await?.context("a begun job does not end")?;
    Ok(())
}
