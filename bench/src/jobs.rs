//! Measures how fast jobs are accepted, run, watched and stored.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use toolgate_contract::{Caller, JobId, JobState, ResultText, ToolId, ToolOutput, ToolRunStatus};
use toolgate_host::{JobEnd, JobQuestionState, JobStore, NewJob, SqliteStore};

use crate::child::{BenchServerProcess, PipedProcess, start_server};
use crate::http::{BenchHttpConnection, runtime};
use crate::question::BenchRequestTemplate;
use crate::row::{BenchResultRow, PerformanceGoal};
use crate::sockets::BenchWebSocket;
use crate::{BenchRunOptions, lines, median, program, text};

/// Number of jobs in the full job store.
const STORED_JOBS: u128 = 100_000;
/// Number of clients that watch one job.
const WATCHERS: usize = 1_000;
/// Number of bytes that a job prints, to check that the server's memory does not grow with them.
const FLOOD_BYTES: &str = "2147483648";

/// Settings that declare the commands that the benchmark runs as jobs.
const COMMANDS: &str = r#"
[server]
connections_max = 4096
[limits]
rate = []
[command."bench.true"]
about = "Does nothing"
program = "true"
argv = []
idempotent = true

[command."bench.bare"]
about = "Does nothing, outside the sandbox"
program = "true"
argv = []
idempotent = true
[[sandbox.for]]
tools = "bench.bare"
profile = "off"

[command."bench.talk"]
about = "Prints a hundred lines in two seconds"
program = "sh"
argv = ["-c", "for i in $(seq 100); do echo line $i; sleep 0.02; done"]

[command."bench.flood"]
about = "Prints endlessly"
program = "head"
argv = ["-c", "{bytes}", "/dev/zero"]
[command."bench.flood".args]
bytes = "string!"
"#;

/// Measures how fast jobs start, run and are watched.
pub(crate) fn measure(options: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("toolgate.toml"), COMMANDS)?;
    let runtime = runtime()?;
    Ok(vec![
        runtime.block_on(measure_acceptance(folder.path(), options.choose(50, 400)))?,
        runtime.block_on(measure_throughput(
            "jobs of `true`, HTTP, 8 clients (floor: spawn and wait, one by one)",
            "bench-true",
            folder.path(),
            options.rounds,
        ))?,
        runtime.block_on(measure_throughput(
            "jobs of `true` outside the sandbox (floor: spawn and wait, one by one)",
            "bench-bare",
            folder.path(),
            options.rounds,
        ))?,
        runtime.block_on(measure_watchers(folder.path()))?,
        runtime.block_on(measure_flood(folder.path()))?,
        measure_start(folder.path(), &runtime, options.choose(5, 15))?,
    ])
}

/// Starts toolgate over HTTP in the workspace `folder`.
fn serve(folder: &Path) -> anyhow::Result<BenchServerProcess> {
    start_server(&program("toolgate")?, &["serve", &text(folder), "--listen", "127.0.0.1:0"])
}

/// Measures the time from the submission of a job to its acknowledgement, in milliseconds. For
/// comparison, also measures how long the job store alone takes to save a job.
async fn measure_acceptance(folder: &Path, rounds: usize) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: a job accepted");
    let server = serve(folder)?;
    let mut client = BenchJobClient::connect(&server.address).await?;
    let store = tempfile::tempdir()?;
    let store = SqliteStore::open(store.path(), 0)?;
    let mut ours = Vec::new();
    let mut floors = Vec::new();
    for round in 0..rounds {
        let job = new_job(round as u128 + 1);
        let started = Instant::now();
        store.accept(job).await?;
        floors.push(millis_since(started));
        let started = Instant::now();
        let id = client.start("bench-true", &json!({})).await?;
        ours.push(millis_since(started));
        client.wait_for_end(&id).await?;
    }
    Ok(BenchResultRow::new(
        "job accepted and acknowledged, HTTP (floor: the store's durable write)",
        " ms",
        median(ours),
    )
    .with_floor(median(floors))
    .with_target(PerformanceGoal::DifferenceAtMost(1.0)))
}

/// Measures ended jobs per second, from the first submission to the end of the last job. For
/// comparison, also starts the programs directly, one after another.
async fn measure_throughput(
    what: &'static str,
    tool: &'static str,
    folder: &Path,
    rounds: usize,
) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: {what}");
    let count = 300;
    let server = serve(folder)?;
    let mut ours = Vec::new();
    let mut floors = Vec::new();
    for _ in 0..rounds {
        let started = Instant::now();
        for _ in 0..count {
            ensure!(Command::new("true").status()?.success(), "`true` failed");
        }
        floors.push(count as f64 / started.elapsed().as_secs_f64());
        let started = Instant::now();
        let mut senders = Vec::new();
        for _ in 0..8 {
            let mut client = BenchJobClient::connect(&server.address).await?;
            senders.push(tokio::spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..count / 8 {
                    ids.push(client.start(tool, &json!({})).await?);
                }
                for id in &ids {
                    client.wait_for_end(id).await?;
                }
                anyhow::Ok(ids.len())
            }));
        }
        let mut ended = 0;
        for sender in senders {
            ended += sender.await??;
        }
        ours.push(ended as f64 / started.elapsed().as_secs_f64());
    }
    Ok(BenchResultRow::new(what, "/s", median(ours))
        .with_floor(median(floors))
        .with_target(PerformanceGoal::RatioAtLeast(0.5)))
}

/// Measures the time from the end of a job until the last of its watchers has been notified of the
/// end.
async fn measure_watchers(folder: &Path) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: watchers of one job");
    let server = serve(folder)?;
    let mut client = BenchJobClient::connect(&server.address).await?;
    let id = client.start("bench-talk", &json!({})).await?;
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        watchers.push(tokio::spawn(watch(server.address.clone(), id.clone())));
    }
    client.wait_for_end(&id).await?;
    let started = Instant::now();
    for watcher in watchers {
        watcher.await??;
    }
    Ok(BenchResultRow::new(
        "1,000 WebSockets that watch one job: time until the last one gets its end",
        " ms",
        millis_since(started),
    ))
}

/// Measures the peak memory of the server while a job prints 2 GiB.
async fn measure_flood(folder: &Path) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: a job that prints 2 GiB");
    let server = serve(folder)?;
    let mut client = BenchJobClient::connect(&server.address).await?;
    let id = client.start("bench-flood", &json!({ "bytes": FLOOD_BYTES })).await?;
    client.wait_for_end(&id).await?;
    Ok(BenchResultRow::new(
        "peak RSS, serve, while a job prints 2 GiB",
        " MiB",
        server.child.peak_mib()?,
    )
    .with_target(PerformanceGoal::AtMost(64.0)))
}

/// Measures the time from the start of a server to its first answer about jobs, with a full job
/// store and with an empty one.
fn measure_start(
    folder: &Path,
    runtime: &tokio::runtime::Runtime,
    rounds: usize,
) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: startup with 100,000 jobs kept");
    let stores = tempfile::tempdir()?;
    let full = stores.path().join("full");
    let empty = stores.path().join("empty");
    for (store, count) in [(&full, STORED_JOBS), (&empty, 1)] {
        let job_folder = create_job_folder(folder, store, runtime)?;
        runtime.block_on(fill(&job_folder, count))?;
    }
    let start = |store: &Path| {
        let store = text(store);
        let folder = text(folder);
        let command = ["TOOLGATE_JOBS_TO=".to_owned() + &store, text(&program("toolgate")?)];
        PipedProcess::stdio(
            Path::new("/usr/bin/env"),
            &[&command[0], &command[1], "stdio", &folder],
        )
    };
    let question = BenchRequestTemplate::stateless("jobs_list", &json!({}), "bench_true");
    let mut ours = Vec::new();
    let mut floors = Vec::new();
    for _ in 0..rounds {
        floors.push(lines::first_answer(|| start(&empty), &question)?);
        ours.push(lines::first_answer(|| start(&full), &question)?);
    }
    Ok(BenchResultRow::new(
        "cold start to first answer about jobs, 100,000 stored (floor: one stored)",
        " ms",
        median(ours),
    )
    .with_floor(median(floors))
    .with_target(PerformanceGoal::DifferenceAtMost(100.0)))
}

/// Runs a server that keeps its data in the folder `store`, and runs one job on it. Returns the
/// folder for jobs that the server created.
fn create_job_folder(
    folder: &Path,
    store: &Path,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<PathBuf> {
    let command = [&format!("TOOLGATE_JOBS_TO={}", text(store)), &text(&program("toolgate")?)];
    let args = [
        command[0].as_str(),
        command[1].as_str(),
        "serve",
        &text(folder),
        "--listen",
        "127.0.0.1:0",
    ];
    let server = start_server(Path::new("/usr/bin/env"), &args)?;
    runtime.block_on(async {
        let mut client = BenchJobClient::connect(&server.address).await?;
        let id = client.start("bench-true", &json!({})).await?;
        client.wait_for_end(&id).await
    })?;
    let entry = std::fs::read_dir(store)?.next().context("no folder was created")??;
    Ok(entry.path())
}

/// Fills the job store in `folder` with `count` ended jobs.
async fn fill(folder: &Path, count: u128) -> anyhow::Result<()> {
    let store = std::sync::Arc::new(SqliteStore::open(folder, 0)?);
    let mut writers = Vec::new();
    for writer in 0..64 {
        let store = store.clone();
        writers.push(tokio::spawn(async move {
            for number in (writer + 1..=count).step_by(64) {
                let id = JobId::from_bits(number);
                store.accept(new_job(number)).await?;
                store.begin(id, Timestamp::now()).await?;
                store.finish(id, job_end()).await?;
            }
            anyhow::Ok(())
        }));
    }
    for writer in writers {
        writer.await??;
    }
    Ok(())
}

/// Returns a new job for the job store, with the id `number`.
fn new_job(number: u128) -> NewJob {
    NewJob {
        id: JobId::from_bits(number),
        tool: ToolId::new("bench.true").expect("a tool's id"),
        input: json!({}),
        caller: Caller::local(),
        dialect: "mcp".into(),
        priority: 0,
        created: Timestamp::now(),
        keep: Duration::from_secs(24 * 3600),
        answers: JobQuestionState::default(),
        lane: None,
    }
}

/// Returns the end of a successful job, as the job store records it.
fn job_end() -> JobEnd {
    let value = json!({ "exit_code": 0, "stdout": "", "stderr": "" });
    JobEnd {
        at: Timestamp::now(),
        state: JobState::Succeeded,
        outcome: Ok(ToolOutput::new(value, ResultText::from_body(""), ToolRunStatus::Done)),
        artefacts: Vec::new(),
        last_events: Vec::new(),
    }
}

/// Client with one connection that starts jobs and waits for their end.
struct BenchJobClient {
    connection: BenchHttpConnection,
    address: String,
}

impl BenchJobClient {
    /// Opens a connection to the server at `address`.
    async fn connect(address: &str) -> anyhow::Result<Self> {
        Ok(Self {
            connection: BenchHttpConnection::open(address).await?,
            address: address.to_owned(),
        })
    }

    /// Starts a job that calls `tool`, and returns its id.
    async fn start(&mut self, tool: &str, arguments: &Value) -> anyhow::Result<String> {
        let params = json!({ "name": tool, "arguments": arguments, "mode": "async" });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let body = body.to_string();
        let head = format!(
            "POST /v1/mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let answer = self.request(&(head + &body)).await?;
        let id = answer["result"]["job_id"].as_str();
        Ok(id.with_context(|| format!("not accepted: {answer}"))?.to_owned())
    }

    /// Waits until the job `id` has ended. Fails unless the job succeeded.
    async fn wait_for_end(&mut self, id: &str) -> anyhow::Result<()> {
        loop {
            let job = format!("GET /jobs/{id} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
            let job = self.request(&job).await?;
            match job["status"].as_str() {
                Some("succeeded") => return Ok(()),
                Some("queued" | "running") => tokio::time::sleep(Duration::from_millis(1)).await,
                _ => anyhow::bail!("the job failed: {job}"),
            }
        }
    }

    /// Sends an HTTP request and returns the JSON body of its response.
    async fn request(&mut self, request: &str) -> anyhow::Result<Value> {
        self.connection.send(request.as_bytes()).await?;
        let (_, body) = self.connection.read_response().await?;
        Ok(serde_json::from_slice(&body)?)
    }
}

/// Watches the job `id` over a WebSocket until the end of the job is received.
async fn watch(address: String, id: String) -> anyhow::Result<()> {
    let mut socket = BenchWebSocket::open(&address, &format!("/ws/jobs/{id}")).await?;
    let mut text = String::new();
    while !text.contains("\"succeeded\"") {
        text.push_str(std::str::from_utf8(&socket.receive().await?)?);
    }
    // Every line was received, in order.
    let places = (1..=100).map(|line| text.find(&format!("line {line}\\n")));
    let places: Option<Vec<_>> = places.collect();
    ensure!(places.is_some_and(|places| places.is_sorted()), "lines are missing");
    Ok(())
}

/// Returns the milliseconds that have passed since `started`.
fn millis_since(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1000.0
}
