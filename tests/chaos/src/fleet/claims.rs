//! Measures how fast the job store of a fleet accepts jobs, claims them while many wait, and stores
//! their output. Also measures whether jobs of different callers take turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use jiff::Timestamp;
use serde_json::json;
use toolgate_contract::{
    Caller, JobEventKind, JobId, JobState, OutputStreamKind, ResultText, ToolId, ToolOutput,
    ToolRunStatus,
};
use toolgate_host::{
    AdoptableJob, ClaimableJobQueue, FleetServerProfile, JobClaim, JobEnd, JobQuestionState,
    JobStore, NewJob, PostgresStore, PostgresStoreSettings,
};
use toolgate_postgres::{DatabasePassword, PostgresAddress, PostgresConnectionPool};

/// Number of tasks that submit jobs to the store at once.
const SUBMITTERS: usize = 8;
/// Number of servers that claim jobs at once.
const CLAIMERS: usize = 4;
/// Number of jobs that each claiming server can run in addition.
const FREE_PLACES: usize = 16;
/// Number of callers whose jobs wait.
const CALLERS: u64 = 1000;
/// Largest number of jobs that are claimed, so that most jobs still wait.
const CLAIMED_MAX: usize = 10_000;
/// Largest number of jobs that plain database clients insert.
const BARE_INSERTS_MAX: usize = 10_000;
/// SQL that inserts the rows of a new job with the id `$1`, without the job store.
const BARE_INSERT_SQL: &str = "with job as (insert into toolgate_fleet.jobs (id, workspace, tool, \
    caller, dialect, priority, state, owner, created, updated, keep, last_event, lane, turn) \
    values ($1, 'bare', 'chaos.claim', 'caller', 'mcp', 0, 'queued', 1, 1, 1, 1, 1, 'bare', 1)), \
    input as (insert into toolgate_fleet.inputs (job, input) values ($1, '{\"n\":1}')) \
    insert into toolgate_fleet.events (job, seq, at, what) values ($1, 1, 1, '\"queued\"')";
/// Time limit of one statement of a plain database client.
const BARE_TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the caller with many jobs.
const EAGER_CALLER: &str = "eager";
/// Number of callers with few jobs.
const MODEST_CALLERS: u64 = 99;
/// Number of jobs that the caller with many jobs has for each job of another caller.
const EAGER_SHARE: usize = 1000;
/// Number of jobs whose output is stored at once.
const PRINTING_JOBS: usize = 8;
/// Number of pieces of output that each of [`PRINTING_JOBS`] jobs stores.
const OUTPUT_PIECES: usize = 32;
/// Size of one piece of output, in bytes.
const OUTPUT_PIECE_BYTES: usize = 64 << 10;
/// Name of the group of waiting jobs in which the measured jobs wait. The job store calls such a
/// group a lane.
const LANE: &str = "chaos.claim@1";
/// Duration of a server's lease. It is longer than the measurement.
const LEASE: Duration = Duration::from_secs(600);

/// Measured rates of a job store.
pub(super) struct JobStoreRates {
    /// Number of jobs that the store accepts per second.
    pub(super) accepts: f64,
    /// Number of waiting jobs that servers claim per second.
    pub(super) claims: f64,
    /// Number of claimed jobs that begin and end per second.
    pub(super) lives: f64,
    /// Number of jobs per second whose rows plain database clients insert without the store.
    pub(super) bare_inserts: f64,
    /// Output of running jobs that the store writes, in MiB per second.
    pub(super) output: f64,
    /// Number of jobs of the caller with many jobs that are claimed before all jobs of the others
    /// are. This is a count, not a rate.
    pub(super) eager_jobs: usize,
}

/// Measures the job store in the PostgreSQL database at `url`, with `waiting` waiting jobs.
pub(super) fn measure(url: &str, waiting: usize) -> anyhow::Result<JobStoreRates> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure_store(url, waiting))
}

async fn measure_store(url: &str, waiting: usize) -> anyhow::Result<JobStoreRates> {
    let front = Arc::new(open(url, "claims").await?);
    let started = Instant::now();
    submit(&front, waiting, new_job).await?;
    let accepts = rate(waiting, started.elapsed());
    let bare_inserts = insert_bare(url, waiting.min(BARE_INSERTS_MAX)).await?;
    let mut claimers = Vec::new();
    for _ in 0..CLAIMERS {
        claimers.push(Arc::new(open(url, "claims").await?));
    }
    let amount = CLAIMED_MAX.min(waiting / 4);
    let claims = measure_claims(&claimers, amount).await?;
    let started = Instant::now();
    let ended = run_jobs(&claimers, amount / 4).await?;
    let lives = rate(ended, started.elapsed());
    let output = store_output(&front, u64::try_from(waiting)?).await?;
    let eager_jobs = measure_fairness(url, waiting / 10).await?;
    Ok(JobStoreRates { accepts, claims, lives, bare_inserts, output, eager_jobs })
}

/// Returns the number of operations per second if `count` operations took `time`.
fn rate(count: usize, time: Duration) -> f64 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    f64::from(count) / time.as_secs_f64()
}

fn parse_address(url: &str) -> anyhow::Result<PostgresAddress> {
    let address = PostgresAddress::parse(url, "PGPASSWORD", &DatabasePassword::default());
    address.map_err(|err| anyhow::anyhow!("the URL {err}"))
}

/// Opens the job store as a new server of the workspace `workspace`.
async fn open(url: &str, workspace: &str) -> anyhow::Result<PostgresStore> {
    let settings = PostgresStoreSettings {
        address: parse_address(url)?,
        workspace: workspace.to_owned(),
        lease: LEASE,
        lost_after: LEASE,
        files: None,
        profile: FleetServerProfile::default(),
    };
    Ok(PostgresStore::open(settings, 1).await?)
}

/// Submits `amount` jobs to `front` from several tasks at once. `job` creates the job of a number.
async fn submit(
    front: &Arc<PostgresStore>,
    amount: usize,
    job: impl Fn(u64) -> anyhow::Result<NewJob> + Copy + Send + 'static,
) -> anyhow::Result<()> {
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
                front.accept(job(number)?).await?;
            }
        }));
    }
    for submitter in submitters {
        submitter.await??;
    }
    Ok(())
}

/// Inserts the rows of `amount` jobs with plain database clients. Returns the number of jobs per
/// second.
async fn insert_bare(url: &str, amount: usize) -> anyhow::Result<f64> {
    let pool = PostgresConnectionPool::new(parse_address(url)?, SUBMITTERS, BARE_TIMEOUT);
    let next = Arc::new(AtomicUsize::new(1));
    let mut connections = Vec::new();
    for _ in 0..SUBMITTERS {
        connections.push(pool.connect(BARE_TIMEOUT).await?);
    }
    let started = Instant::now();
    let mut clients = Vec::new();
    for connection in connections {
        let next = next.clone();
        clients.push(tokio::spawn(async move {
            // The task takes the whole connection, which ends when it is dropped.
            let connection = connection;
            let statement = connection.client.prepare(BARE_INSERT_SQL).await?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number > amount {
                    return anyhow::Ok(());
                }
                let id = format!("bare {number}").into_bytes();
                connection.client.execute(&statement, &[&id]).await?;
            }
        }));
    }
    for client in clients {
        client.await??;
    }
    Ok(rate(amount, started.elapsed()))
}

/// Submits `amount` jobs of one caller, and then a few jobs of many others. Returns the number of
/// jobs of the first caller that are claimed before all jobs of the others are.
async fn measure_fairness(url: &str, amount: usize) -> anyhow::Result<usize> {
    let front = Arc::new(open(url, "fairness").await?);
    let others = usize::try_from(MODEST_CALLERS)? * (amount / EAGER_SHARE).max(1);
    let eager_amount = u64::try_from(amount)?;
    submit(&front, amount, |number| caller_job(number, EAGER_CALLER)).await?;
    let modest_job = move |number| {
        caller_job(eager_amount + number, &format!("modest-{}", number % MODEST_CALLERS))
    };
    submit(&front, others, modest_job).await?;
    let claimer = open(url, "fairness").await?;
    let eager = Caller::with_key(EAGER_CALLER);
    let mut eager_jobs = 0;
    let mut other_jobs = 0;
    while other_jobs < others {
        let claimed = claim_jobs(&claimer).await?;
        ensure!(!claimed.is_empty(), "no job is left to claim");
        let of_eager = claimed.iter().filter(|job| job.caller == eager).count();
        eager_jobs += of_eager;
        other_jobs += claimed.len() - of_eager;
    }
    Ok(eager_jobs)
}

/// Submits jobs with the numbers after `last`, and stores output of all of them at once. Returns
/// the number of MiB per second.
async fn store_output(front: &Arc<PostgresStore>, last: u64) -> anyhow::Result<f64> {
    let mut ids = Vec::new();
    for number in (last + 1..).take(PRINTING_JOBS) {
        // Without a lane, no other server claims it.
        let job = NewJob { lane: None, ..new_job(number)? };
        let id = job.id;
        front.accept(job).await?;
        front.begin(id, Timestamp::now()).await?.context("an own job does not begin")?;
        ids.push(id);
    }
    let started = Instant::now();
    let mut jobs = Vec::new();
    for id in ids {
        let front = front.clone();
        jobs.push(tokio::spawn(async move {
            for _ in 0..OUTPUT_PIECES {
                let text = "x".repeat(OUTPUT_PIECE_BYTES);
                let piece = JobEventKind::Output { stream: OutputStreamKind::Stdout, text };
                front.append_events(id, vec![(Timestamp::now(), piece)]).await?;
            }
            anyhow::Ok(())
        }));
    }
    for job in jobs {
        job.await??;
    }
    let mebibytes = PRINTING_JOBS * OUTPUT_PIECES * OUTPUT_PIECE_BYTES / (1 << 20);
    Ok(rate(mebibytes, started.elapsed()))
}

/// Returns the job `number` of `caller`. Its id differs from those of other measurements.
fn caller_job(number: u64, caller: &str) -> anyhow::Result<NewJob> {
    let id = JobId::from_bits(u128::from(number) << 64 | u128::from(u64::MAX));
    Ok(NewJob { id, caller: Caller::with_key(caller), ..new_job(number)? })
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
        answers: JobQuestionState::default(),
        lane: Some(LANE.to_owned()),
    })
}

/// Makes all servers claim jobs at once, repeatedly, until `amount` claimed jobs have begun.
/// Returns the number of claimed jobs per second, without the time in which jobs begin.
async fn measure_claims(claimers: &[Arc<PostgresStore>], amount: usize) -> anyhow::Result<f64> {
    let mut time = Duration::ZERO;
    let mut begun = 0;
    while begun < amount {
        let started = Instant::now();
        let claims = claimers.iter().map(|claimer| {
            let claimer = claimer.clone();
            tokio::spawn(async move { claim(&claimer).await })
        });
        let claims: Vec<_> = claims.collect();
        let mut claimed = Vec::new();
        for claim in claims {
            claimed.push(claim.await??);
        }
        time += started.elapsed();
        let begins =
            claimers.iter().cloned().zip(claimed).map(|(claimer, ids)| {
                tokio::spawn(async move { begin_jobs(&claimer, &ids).await })
            });
        let begins: Vec<_> = begins.collect();
        let before = begun;
        for begin in begins {
            begun += begin.await??;
        }
        ensure!(begun > before, "no claimed job begins");
    }
    Ok(rate(begun, time))
}

/// Begins the jobs `ids` in the store. Returns the number of jobs that no other server has claimed
/// meanwhile.
async fn begin_jobs(store: &PostgresStore, ids: &[JobId]) -> anyhow::Result<usize> {
    let mut begun = 0;
    for id in ids {
        let started = store.begin(*id, Timestamp::now()).await?;
        begun += usize::from(started.is_some());
    }
    Ok(begun)
}

/// Makes all servers claim, begin and end jobs at once until `amount` jobs have ended. Returns the
/// number of ended jobs.
async fn run_jobs(claimers: &[Arc<PostgresStore>], amount: usize) -> anyhow::Result<usize> {
    let ended = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for claimer in claimers {
        let (claimer, ended) = (claimer.clone(), ended.clone());
        tasks.push(tokio::spawn(async move {
            while ended.load(Ordering::Relaxed) < amount {
                let ids = claim(&claimer).await?;
                ensure!(!ids.is_empty(), "no job is left to claim");
                for id in ids {
                    let has_ended = run_job(&claimer, id).await?;
                    ended.fetch_add(usize::from(has_ended), Ordering::Relaxed);
                }
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(ended.load(Ordering::Relaxed))
}

async fn claim(store: &PostgresStore) -> anyhow::Result<Vec<JobId>> {
    Ok(claim_jobs(store).await?.iter().map(|job| job.id).collect())
}

async fn claim_jobs(store: &PostgresStore) -> anyhow::Result<Vec<AdoptableJob>> {
    let lane = ClaimableJobQueue { name: LANE.to_owned(), idempotent: true, has_room: true };
    let claim = JobClaim {
        room: FREE_PLACES,
        lanes: vec![lane],
        busy_callers: Vec::new(),
        may_claim: Arc::new(|_| true),
    };
    Ok(store.claim(claim).await?)
}

/// Begins and ends the job `id` in the store without running a program. Returns false if another
/// server has claimed the job meanwhile.
async fn run_job(store: &PostgresStore, id: JobId) -> anyhow::Result<bool> {
    if store.begin(id, Timestamp::now()).await?.is_none() {
        return Ok(false);
    }
    let output = ToolOutput::new(json!(1), ResultText::from_body("one"), ToolRunStatus::Done);
    let end = JobEnd {
        at: Timestamp::now(),
        state: JobState::Succeeded,
        outcome: Ok(output),
        artefacts: Vec::new(),
        last_events: Vec::new(),
    };
    store.finish(id, end).await?.context("a begun job does not end")?;
    Ok(true)
}
