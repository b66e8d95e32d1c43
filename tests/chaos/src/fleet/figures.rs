//! Measures the performance figures of a fleet, and prints them beside the speed of the disk.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::json;

use super::LEASE_MS;
use super::claims::{self, JobStoreRates};
use super::database;
use super::event_times;
use super::members::FleetMemberStarter;
use crate::requests::{ChaosRequestOutcome, call_plainly, call_tool, cancel_job, submit_job};
use crate::server::{ChaosRunFolder, ChaosServerProcess, DRAIN_MS, TICK_TOOL, WAIT_TOOL};

/// Default duration of a server's lease, in milliseconds.
const DEFAULT_LEASE_MS: u64 = 30_000;
/// Time after the end of a lease within which another server must have taken over the job.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the start of a job's program.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two checks of a condition that a measurement waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Number of writes by which the speed of the disk is measured.
const DISK_WRITES: usize = 100;
/// Size of each write by which the speed of the disk is measured, in bytes.
const DISK_WRITE_BYTES: usize = 8 << 10;
/// Tool for measured calls that start no job.
const PLAIN_TOOL: &str = "files_tree";
/// Number of seconds that a job waits at least, which is longer than the test: the job runs until
/// it is cancelled.
const WAIT_SECONDS: u64 = 1_000_000;
/// Largest accepted number of jobs of a caller with many jobs that are claimed before those of all
/// others.
const EAGER_JOBS_MAX: usize = 200;
/// Smallest accepted ratio of the rate of accepted jobs to the rate at which plain database clients
/// insert the same rows.
const ACCEPTS_SHARE_MIN: f64 = 0.7;
/// Time for which a server gathers job events before it stores them, in milliseconds.
const EVENT_GATHER_MS: u64 = 20;
/// Largest number of connections from one server to PostgreSQL.
const CONNECTIONS_MAX: usize = 8;
/// SQL that counts the connections of all servers to the database.
const CONNECTIONS_SQL: &str = "select count(*) from pg_stat_activity \
    where backend_type = 'client backend' and pid <> pg_backend_pid()";
/// Number of SQL statements per call below which the figure counts as zero, because idle servers
/// also send statements.
const STATEMENTS_NOISE: f64 = 0.05;

/// Number of repetitions, jobs and calls that the measurements use.
struct MeasurementWorkload {
    takeovers: usize,
    waiting_jobs: usize,
    cancellations: usize,
    plain_calls: u32,
}

/// Row of the printed table of figures.
struct MeasurementTableRow {
    name: String,
    value: String,
    /// Required value of the figure as text, or an empty text if none is required.
    asked: String,
    /// True if the figure reaches the required value, or `None` if none is required.
    is_met: Option<bool>,
}

/// Measures all figures and prints their table. If `is_full` is true, measures with 100,000 waiting
/// jobs and also with the default lease, and fails if a figure misses its required value. Otherwise,
/// fails only if plain calls send SQL statements, because durations depend on the load of the
/// machine.
pub(super) fn run(folder: &ChaosRunFolder, is_full: bool) -> anyhow::Result<()> {
    let amounts = if is_full {
        MeasurementWorkload {
            takeovers: 5,
            waiting_jobs: 100_000,
            cancellations: 500,
            plain_calls: 10_000,
        }
    } else {
        MeasurementWorkload {
            takeovers: 1,
            waiting_jobs: 2000,
            cancellations: 30,
            plain_calls: 500,
        }
    };
    let mut rows =
        vec![MeasurementTableRow::without_target("fdatasync of 8 KiB, median", disk_row(folder)?)];
    {
        let database = database::PostgresServerProcess::durable();
        let mut members = FleetMemberStarter::new(folder, database.url(), LEASE_MS)?;
        rows.push(measure_takeovers(&mut members, &database, LEASE_MS, amounts.takeovers)?);
        if is_full {
            rows.push(measure_takeovers(&mut members, &database, DEFAULT_LEASE_MS, 1)?);
        }
        members.set_lease(LEASE_MS);
        rows.push(measure_handover(&mut members, &database)?);
        rows.extend(measure_two_servers(&mut members, &database, amounts.cancellations)?);
    }
    let statements = measure_statements(folder, amounts.plain_calls)?;
    let sends_statements = statements[0].is_met == Some(false);
    rows.extend(statements);
    rows.extend(measure_claims(amounts.waiting_jobs)?);
    print_table(&rows);
    ensure!(!sends_statements, "a plain call sends statements to PostgreSQL");
    let missed = rows.iter().filter(|row| row.is_met == Some(false)).count();
    ensure!(!is_full || missed == 0, "{missed} figures were missed");
    Ok(())
}

impl MeasurementTableRow {
    fn without_target(name: impl Into<String>, value: String) -> Self {
        Self { name: name.into(), value, asked: String::new(), is_met: None }
    }

    /// Creates the row of a duration, which must be at most `most`.
    fn time_at_most(name: String, time: Duration, most: Duration) -> Self {
        let asked = format!("<= {}", millis(most));
        Self { name, value: millis(time), asked, is_met: Some(time <= most) }
    }
}

/// Returns `time` as text in milliseconds.
fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

fn print_table(rows: &[MeasurementTableRow]) {
    let names = column_width(rows, |row| &row.name);
    let values = column_width(rows, |row| &row.value);
    let asked = column_width(rows, |row| &row.asked).max("asked".len());
    println!("{:names$}  {:>values$}  {:asked$}", "figure", "value", "asked");
    for row in rows {
        let verdict = match row.is_met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let line =
            format!("{:names$}  {:>values$}  {:asked$}  {verdict}", row.name, row.value, row.asked);
        println!("{}", line.trim_end());
    }
}

/// Returns the number of characters of the longest text in a column of the table.
fn column_width(rows: &[MeasurementTableRow], column: fn(&MeasurementTableRow) -> &str) -> usize {
    rows.iter().map(|row| column(row).chars().count()).max().unwrap_or_default()
}

/// Measures the disk that the run uses. Returns a row with the median duration of a small write
/// with `fdatasync`.
fn disk_row(folder: &ChaosRunFolder) -> anyhow::Result<String> {
    let path = folder.folder.join("disk");
    let mut file = File::create(&path)?;
    let mut times = Vec::new();
    for _ in 0..DISK_WRITES {
        let started = Instant::now();
        file.write_all(&[1; DISK_WRITE_BYTES])?;
        file.sync_data()?;
        times.push(started.elapsed());
    }
    std::fs::remove_file(&path)?;
    times.sort_unstable();
    Ok(millis(percentile(&times, 50)))
}

/// Returns the duration below which `percent` percent of the sorted `times` are.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(at).copied().unwrap_or_default()
}

/// Measures `amount` times how long after the kill of a server its idempotent job runs again at
/// another server. Returns the row of the longest duration.
fn measure_takeovers(
    members: &mut FleetMemberStarter<'_>,
    database: &database::PostgresServerProcess,
    lease_ms: u64,
    amount: usize,
) -> anyhow::Result<MeasurementTableRow> {
    members.set_lease(lease_ms);
    let (survivor, survivor_address) = members.start_server(&[])?;
    // A server takes nothing over before it has held its lease for a whole length.
    sleep(Duration::from_millis(lease_ms + 1000));
    let mut longest = Duration::ZERO;
    for number in 0..amount {
        let (victim, address) = members.start_server(&[])?;
        let id = start_waiting_job(address, number)?;
        victim.kill()?;
        let time = wait_for_second_start(database, lease_ms)?;
        longest = longest.max(time);
        cancel(survivor_address, &id)?;
    }
    survivor.stop()?;
    let most = Duration::from_millis(lease_ms * 5 / 4 + 1000);
    let name = format!("takeover of a killed server's job, lease {lease_ms} ms, {amount} kills");
    Ok(MeasurementTableRow::time_at_most(name, longest, most))
}

/// Waits until the only running job has begun for the second time. Returns how long that took.
fn wait_for_second_start(
    database: &database::PostgresServerProcess,
    lease_ms: u64,
) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let most = Duration::from_millis(lease_ms) + TAKEOVER_TIMEOUT;
    let sql = "select count(*) from toolgate_fleet.jobs where state = 'running' and attempts = 2";
    while database.run(sql) != "1" {
        ensure!(started.elapsed() < most, "a job was not taken over");
    }
    Ok(started.elapsed())
}

/// Measures how long after SIGTERM to a server its idempotent job runs again at another server.
fn measure_handover(
    members: &mut FleetMemberStarter<'_>,
    database: &database::PostgresServerProcess,
) -> anyhow::Result<MeasurementTableRow> {
    let (survivor, survivor_address) = members.start_server(&[])?;
    let (stopped, address) = members.start_server(&[])?;
    let id = start_waiting_job(address, 0)?;
    stopped.terminate()?;
    let time = wait_for_second_start(database, LEASE_MS)?;
    cancel(survivor_address, &id)?;
    drop(stopped);
    survivor.stop()?;
    let name = format!("takeover of a stopped server's job, drain {DRAIN_MS} ms");
    Ok(MeasurementTableRow::time_at_most(name, time, Duration::from_millis(DRAIN_MS + 1000)))
}

/// Measures how long two servers take to cancel a running job, at the server that runs it and at
/// the other one, and how long events take. Also counts the database connections of both servers.
fn measure_two_servers(
    members: &mut FleetMemberStarter<'_>,
    database: &database::PostgresServerProcess,
    amount: usize,
) -> anyhow::Result<[MeasurementTableRow; 6]> {
    let (runner, runner_address) = members.start_server(&[])?;
    let (other, other_address) = members.start_server(&["--no-jobs"])?;
    let measure = |address: SocketAddr| -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::new();
        for number in 0..amount {
            let id = start_waiting_job(runner_address, number)?;
            let started = Instant::now();
            cancel(address, &id)?;
            times.push(started.elapsed());
        }
        times.sort_unstable();
        Ok(times)
    };
    let elsewhere = measure(other_address)?;
    let here = measure(runner_address)?;
    let id = submit(runner_address, TICK_TOOL, 0)?;
    let events = event_times::measure(other_address, &id, amount)?;
    cancel(runner_address, &id)?;
    let connections: usize = database.run(CONNECTIONS_SQL).parse()?;
    [other, runner].into_iter().try_for_each(ChaosServerProcess::stop)?;
    let row = |subject: &str, times: &[Duration], percent: usize, most_ms: u64| {
        let name = format!("{subject} at another server, p{percent} of {amount}");
        MeasurementTableRow::time_at_most(
            name,
            percentile(times, percent),
            Duration::from_millis(most_ms),
        )
    };
    let name = format!("cancellation at the server that runs the job, p50 of {amount}");
    Ok([
        row("cancellation", &elsewhere, 50, 10),
        row("cancellation", &elsewhere, 99, 100),
        MeasurementTableRow::without_target(name, millis(percentile(&here, 50))),
        row("event", &events, 50, EVENT_GATHER_MS + 10),
        row("event", &events, 99, EVENT_GATHER_MS + 50),
        MeasurementTableRow {
            name: "connections of two servers to PostgreSQL".to_owned(),
            value: connections.to_string(),
            asked: format!("<= {}", 2 * CONNECTIONS_MAX),
            is_met: Some(connections <= 2 * CONNECTIONS_MAX),
        },
    ])
}

/// Starts a job that runs until it is cancelled, and waits until its program runs. Returns the job
/// id.
fn start_waiting_job(address: SocketAddr, number: usize) -> anyhow::Result<String> {
    let id = submit(address, WAIT_TOOL, WAIT_SECONDS + u64::try_from(number)?)?;
    let started = Instant::now();
    while !has_printed(address, &id)? {
        ensure!(started.elapsed() < START_TIMEOUT, "job {id} does not start");
        sleep(POLL_INTERVAL);
    }
    Ok(id)
}

/// Submits a job that calls `tool` with the argument `number`, and returns the id of the job.
fn submit(address: SocketAddr, tool: &str, number: u64) -> anyhow::Result<String> {
    let ChaosRequestOutcome::Answered(answer) = submit_job(address, tool, number) else {
        bail!("no answer to the submission of a job");
    };
    let message = answer.json()?;
    let id = message["result"]["job_id"].as_str();
    Ok(id.with_context(|| format!("the job is refused: {message}"))?.to_owned())
}

/// Returns true if the program of the job `id` has printed something, and therefore runs. The state
/// `running` of a job begins before the start of its program.
fn has_printed(address: SocketAddr, id: &str) -> anyhow::Result<bool> {
    let page = call_tool(address, "jobs_output", &json!({ "job_id": id }))?;
    Ok(page["pieces"].as_array().is_some_and(|pieces| !pieces.is_empty()))
}

/// Cancels the job `id`. Fails unless the server confirms the cancellation.
fn cancel(address: SocketAddr, id: &str) -> anyhow::Result<()> {
    match cancel_job(address, id) {
        ChaosRequestOutcome::Answered(answer) if answer.status == 200 => Ok(()),
        ChaosRequestOutcome::Answered(answer) => {
            bail!("job {id} is not cancelled: {} {}", answer.status, answer.json()?)
        }
        ChaosRequestOutcome::NotSent => bail!("job {id} is not cancelled: no connection"),
        ChaosRequestOutcome::Unknown(why) => bail!("job {id} is not cancelled: {why}"),
    }
}

/// Counts the SQL statements that a server sends to PostgreSQL during `calls` plain calls, by the
/// log of PostgreSQL. Subtracts those that an idle server sends.
fn measure_statements(
    folder: &ChaosRunFolder,
    calls: u32,
) -> anyhow::Result<[MeasurementTableRow; 2]> {
    let database = database::PostgresServerProcess::durable();
    let mut members = FleetMemberStarter::new(folder, database.url(), DEFAULT_LEASE_MS)?;
    let (server, address) = members.start_server(&[])?;
    call_plainly(address, PLAIN_TOOL)?;
    database.run("alter system set log_statement = 'all'");
    database.run("select pg_reload_conf()");
    let count = || {
        let log = database.log();
        let is_statement =
            |line: &&str| line.contains("LOG:  execute ") || line.contains("LOG:  statement: ");
        log.lines().filter(is_statement).count()
    };
    let before = count();
    let started = Instant::now();
    for _ in 0..calls {
        call_plainly(address, PLAIN_TOOL)?;
    }
    let time = started.elapsed();
    let during = count() - before;
    sleep(time);
    let idle = count() - before - during;
    let idle_rate = f64::from(u32::try_from(idle)?) / time.as_secs_f64();
    server.stop()?;
    let added = u32::try_from(during.saturating_sub(idle)).unwrap_or(u32::MAX);
    let statements = f64::from(added) / f64::from(calls);
    Ok([
        MeasurementTableRow {
            name: format!("statements to PostgreSQL in a plain call, {calls} calls"),
            value: format!("{statements:.2}"),
            asked: "0".to_owned(),
            is_met: Some(statements < STATEMENTS_NOISE),
        },
        MeasurementTableRow::without_target(
            "statements of an idle server to PostgreSQL",
            format!("{idle_rate:.1}/s"),
        ),
    ])
}

/// Measures how fast the job store accepts jobs, claims them and stores their output, with
/// `waiting` waiting jobs.
fn measure_claims(waiting: usize) -> anyhow::Result<[MeasurementTableRow; 6]> {
    let database = database::PostgresServerProcess::durable();
    let rates = claims::measure(&database.url(), waiting)?;
    let JobStoreRates { accepts, claims, lives, bare_inserts, output, eager_jobs } = rates;
    let accepts_min = bare_inserts * ACCEPTS_SHARE_MIN;
    let per_second = |rate: f64| format!("{rate:.0}/s");
    Ok([
        MeasurementTableRow::without_target(
            "jobs whose rows as many bare clients insert",
            per_second(bare_inserts),
        ),
        MeasurementTableRow {
            name: "jobs accepted by the store".to_owned(),
            value: per_second(accepts),
            asked: format!(">= {accepts_min:.0}/s"),
            is_met: Some(accepts >= accepts_min),
        },
        MeasurementTableRow {
            name: format!("claims with {waiting} jobs waiting"),
            value: per_second(claims),
            asked: ">= 1500/s".to_owned(),
            is_met: Some(claims >= 1500.0),
        },
        MeasurementTableRow::without_target("claimed jobs that began and ended", per_second(lives)),
        MeasurementTableRow::without_target(
            "stored output of 8 jobs",
            format!("{output:.1} MiB/s"),
        ),
        MeasurementTableRow {
            name: "claimed jobs of an eager caller before those of 99 others".to_owned(),
            value: eager_jobs.to_string(),
            asked: format!("<= {EAGER_JOBS_MAX}"),
            is_met: Some(eager_jobs <= EAGER_JOBS_MAX),
        },
    ])
}
