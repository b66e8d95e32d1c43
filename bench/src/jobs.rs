//! What a job costs: to be accepted, to be run, to be watched, to be kept.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use toolgate_contract::{CallEnding, Caller, JobId, JobState, ResultText, ToolId, ToolOutput};
use toolgate_host::{CallerAnswers, JobEnd, JobStore, NewJob, SqliteStore};

use crate::child::{Child, Server, start_server};
use crate::http::{Connection, runtime};
use crate::question::Question;
use crate::row::{Asked, Row};
use crate::sockets::Socket;
use crate::{Run, lines, median, program, text};

/// How many jobs are kept in the store that is opened.
const KEPT: u128 = 100_000;
/// How many watch one job.
const WATCHERS: usize = 1_000;
/// How much a job prints that must not fill the memory.
const FLOOD: &str = "2147483648";

/// The commands that are run as jobs.
const COMMANDS: &str = r#"
[server]
connections_max = 4096
streams_max = 2048
streams_each = 2048
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

pub(crate) fn measure(all: &Run) -> anyhow::Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("toolgate.toml"), COMMANDS)?;
    let runtime = runtime()?;
    Ok(vec![
        runtime.block_on(accepted(folder.path(), all.of(50, 400)))?,
        runtime.block_on(run(
            "jobs of `true`, HTTP, 8 clients (floor: spawn and wait, one by one)",
            "bench-true",
            folder.path(),
            all.rounds,
        ))?,
        runtime.block_on(run(
            "the same outside the sandbox (floor: spawn and wait, one by one)",
            "bench-bare",
            folder.path(),
            all.rounds,
        ))?,
        runtime.block_on(watched(folder.path()))?,
        runtime.block_on(flooded(folder.path()))?,
        kept(folder.path(), &runtime, all.of(5, 15))?,
    ])
}

fn serve(folder: &Path) -> anyhow::Result<Server> {
    start_server(&program("toolgate")?, &["serve", &text(folder), "--listen", "127.0.0.1:0"])
}

/// From sending a job to its acknowledgement, beside the store's own durable write; medians.
async fn accepted(folder: &Path, rounds: usize) -> anyhow::Result<Row> {
    eprintln!("measuring: a job accepted");
    let server = serve(folder)?;
    let mut client = Client::connect(&server.address).await?;
    let store = tempfile::tempdir()?;
    let store = SqliteStore::open(store.path(), 0)?;
    let mut ours = Vec::new();
    let mut floors = Vec::new();
    for round in 0..rounds {
        let job = new_job(round as u128 + 1);
        let begun = Instant::now();
        store.accept(job).await?;
        floors.push(millis(begun));
        let begun = Instant::now();
        let id = client.start("bench-true", &json!({})).await?;
        ours.push(millis(begun));
        client.ended(&id).await?;
    }
    Ok(Row::new(
        "job accepted and acknowledged, HTTP (floor: the store's durable write)",
        " ms",
        median(ours),
    )
    .floor(median(floors))
    .asked(Asked::Over(1.0)))
}

/// Jobs a second, from the first sent to the last ended, beside programs started and waited for
/// one after the other.
async fn run(
    what: &'static str,
    tool: &'static str,
    folder: &Path,
    rounds: usize,
) -> anyhow::Result<Row> {
    eprintln!("measuring: {what}");
    let count = 300;
    let server = serve(folder)?;
    let mut ours = Vec::new();
    let mut floors = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        for _ in 0..count {
            ensure!(Command::new("true").status()?.success(), "`true` failed");
        }
        floors.push(count as f64 / begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        let mut senders = Vec::new();
        for _ in 0..8 {
            let mut client = Client::connect(&server.address).await?;
            senders.push(tokio::spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..count / 8 {
                    ids.push(client.start(tool, &json!({})).await?);
                }
                for id in &ids {
                    client.ended(id).await?;
                }
                anyhow::Ok(ids.len())
            }));
        }
        let mut ended = 0;
        for sender in senders {
            ended += sender.await??;
        }
        ours.push(ended as f64 / begun.elapsed().as_secs_f64());
    }
    Ok(Row::new(what, "/s", median(ours)).floor(median(floors)).asked(Asked::Ratio(0.5)))
}

/// From the end of a job until the last of its watchers was told.
async fn watched(folder: &Path) -> anyhow::Result<Row> {
    eprintln!("measuring: watchers of one job");
    let server = serve(folder)?;
    let mut client = Client::connect(&server.address).await?;
    let id = client.start("bench-talk", &json!({})).await?;
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        watchers.push(tokio::spawn(watch(server.address.clone(), id.clone())));
    }
    client.ended(&id).await?;
    let begun = Instant::now();
    for watcher in watchers {
        watcher.await??;
    }
    Ok(Row::new(
        "1,000 watchers of one job, WebSocket: its end sent to the last after",
        " ms",
        millis(begun),
    ))
}

/// The most the server keeps in memory while a job prints 2 GiB.
async fn flooded(folder: &Path) -> anyhow::Result<Row> {
    eprintln!("measuring: a job that prints 2 GiB");
    let server = serve(folder)?;
    let mut client = Client::connect(&server.address).await?;
    let id = client.start("bench-flood", &json!({ "bytes": FLOOD })).await?;
    client.ended(&id).await?;
    Ok(Row::new("peak RSS, serve, while a job prints 2 GiB", " MiB", server.child.peak_mib()?)
        .asked(Asked::Most(64.0)))
}

/// From the start of a process to its first answer about jobs, with many kept and with none.
fn kept(folder: &Path, runtime: &tokio::runtime::Runtime, rounds: usize) -> anyhow::Result<Row> {
    eprintln!("measuring: startup with 100,000 jobs kept");
    let stores = tempfile::tempdir()?;
    let full = stores.path().join("full");
    let empty = stores.path().join("empty");
    for (store, count) in [(&full, KEPT), (&empty, 1)] {
        let own = own_folder(folder, store, runtime)?;
        runtime.block_on(fill(&own, count))?;
    }
    let start = |store: &Path| {
        let store = text(store);
        let folder = text(folder);
        let words = ["TOOLGATE_JOBS_TO=".to_owned() + &store, text(&program("toolgate")?)];
        Child::stdio(Path::new("/usr/bin/env"), &[&words[0], &words[1], "stdio", &folder])
    };
    let question = Question::stateless("jobs_list", &json!({}), "bench_true");
    let mut ours = Vec::new();
    let mut floors = Vec::new();
    for _ in 0..rounds {
        floors.push(lines::first_answer(|| start(&empty), &question)?);
        ours.push(lines::first_answer(|| start(&full), &question)?);
    }
    Ok(Row::new(
        "cold start to first answer about jobs, 100,000 kept (floor: one kept)",
        " ms",
        median(ours),
    )
    .floor(median(floors))
    .asked(Asked::Over(100.0)))
}

/// Where a server of `folder` keeps its jobs in `store`: it is given one, and makes it.
fn own_folder(
    folder: &Path,
    store: &Path,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<PathBuf> {
    let words = [&format!("TOOLGATE_JOBS_TO={}", text(store)), &text(&program("toolgate")?)];
    let args =
        [words[0].as_str(), words[1].as_str(), "serve", &text(folder), "--listen", "127.0.0.1:0"];
    let server = start_server(Path::new("/usr/bin/env"), &args)?;
    runtime.block_on(async {
        let mut client = Client::connect(&server.address).await?;
        let id = client.start("bench-true", &json!({})).await?;
        client.ended(&id).await
    })?;
    let made = std::fs::read_dir(store)?.next().context("no folder was created")??;
    Ok(made.path())
}

/// A store with `count` jobs that have ended.
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
                store.finish(id, end()).await?;
            }
            anyhow::Ok(())
        }));
    }
    for writer in writers {
        writer.await??;
    }
    Ok(())
}

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
        answers: CallerAnswers::default(),
    }
}

fn end() -> JobEnd {
    let value = json!({ "exit_code": 0, "stdout": "", "stderr": "" });
    JobEnd {
        at: Timestamp::now(),
        state: JobState::Succeeded,
        outcome: Ok(ToolOutput::new(value, ResultText::from_body(""), CallEnding::Done)),
        artefacts: Vec::new(),
        last_events: Vec::new(),
    }
}

/// A client that starts jobs and waits for their ends, over one connection.
struct Client {
    connection: Connection,
    address: String,
}

impl Client {
    async fn connect(address: &str) -> anyhow::Result<Self> {
        Ok(Self { connection: Connection::open(address).await?, address: address.to_owned() })
    }

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
        let answer = self.ask(&(head + &body)).await?;
        let id = answer["result"]["job_id"].as_str();
        Ok(id.with_context(|| format!("not accepted: {answer}"))?.to_owned())
    }

    async fn ended(&mut self, id: &str) -> anyhow::Result<()> {
        loop {
            let job = format!("GET /jobs/{id} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
            let job = self.ask(&job).await?;
            match job["status"].as_str() {
                Some("succeeded") => return Ok(()),
                Some("queued" | "running") => tokio::time::sleep(Duration::from_millis(1)).await,
                _ => anyhow::bail!("the job failed: {job}"),
            }
        }
    }

    async fn ask(&mut self, request: &str) -> anyhow::Result<Value> {
        self.connection.send(request.as_bytes()).await?;
        let (_, body) = self.connection.answer().await?;
        Ok(serde_json::from_slice(&body)?)
    }
}

/// Watches a job over a WebSocket until its end is told.
async fn watch(address: String, id: String) -> anyhow::Result<()> {
    let mut socket = Socket::open(&address, &format!("/ws/jobs/{id}")).await?;
    let mut text = String::new();
    while !text.contains("\"succeeded\"") {
        text.push_str(std::str::from_utf8(&socket.hear().await?)?);
    }
    // Every line was told, and in order.
    let places = (1..=100).map(|line| text.find(&format!("line {line}\\n")));
    let places: Option<Vec<_>> = places.collect();
    ensure!(places.is_some_and(|places| places.is_sorted()), "lines are missing");
    Ok(())
}

fn millis(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1000.0
}
