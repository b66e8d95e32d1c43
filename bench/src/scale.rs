//! Measures the server's memory and the 99th percentile of latency by the number of tools,
//! sessions, streams, WebSockets and calls in flight.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;

use crate::child::{BenchServerProcess, start_server};
use crate::files::UNLIMITED;
use crate::http::{BenchHttpConnection, BenchRequestHeaders, RequestSchedule, load, runtime};
use crate::question::BenchRequestTemplate;
use crate::row::{BenchResultRow, PerformanceGoal};
use crate::sockets::{self, BenchWebSocket};
use crate::{BenchRunOptions, program, text};

/// Calls per second that are sent while latency is measured.
const RATE: f64 = 2_000.0;
const CONNECTIONS: u8 = 16;

/// Settings that allow 16,384 connections.
const BOUNDS: &str = "[server]\nconnections_max = 16384\n";

/// Measures the server's memory and latency by the number of tools, sessions, streams and calls in
/// flight.
pub(crate) fn measure(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    // Each stream takes a file descriptor in this process and in the server.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let mut rows = tools(run)?;
    rows.extend(sessions(run)?);
    rows.extend(conversations(run)?);
    rows.push(in_flight(run)?);
    Ok(rows)
}

/// Running toolgate server, and the temporary folder that is its workspace.
struct BenchServerWithWorkspace {
    folder: tempfile::TempDir,
    server: BenchServerProcess,
}

impl BenchServerWithWorkspace {
    /// Starts toolgate in a new workspace, with the settings `more` in addition to those of the
    /// benchmark.
    fn start(more: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("one.txt"), "toolgate toolgate\n")?;
        fs::write(folder.path().join("toolgate.toml"), format!("{UNLIMITED}{BOUNDS}{more}"))?;
        let server = serve(folder.path())?;
        Ok(Self { folder, server })
    }

    fn memory(&self) -> anyhow::Result<f64> {
        self.server.child.settled_mib()
    }

    /// Measures the 99th percentile of latency, in milliseconds.
    fn latency(&self, run: &BenchRunOptions) -> anyhow::Result<f64> {
        let question = BenchRequestTemplate::stateless(
            "files_read",
            &json!({ "path": "one.txt" }),
            "toolgate",
        );
        let headers = BenchRequestHeaders::stateless(&self.server.address, "files_read");
        let time = run.time.max(Duration::from_secs(1));
        let latencies = load(&headers, &question, CONNECTIONS, RequestSchedule::Rate(RATE), time)?;
        Ok(latencies.percentile(99.0) / 1000.0)
    }
}

/// Starts toolgate over HTTP in the workspace `folder`.
fn serve(folder: &Path) -> anyhow::Result<BenchServerProcess> {
    start_server(&program("toolgate")?, &["serve", &text(folder), "--listen", "127.0.0.1:0"])
}

/// Memory in MiB and latency in milliseconds, each by the number of tools, sessions or streams.
struct ScaleMeasurements {
    memory: Vec<(f64, f64)>,
    latency: Vec<(f64, f64)>,
}

impl ScaleMeasurements {
    fn new() -> Self {
        Self { memory: Vec::new(), latency: Vec::new() }
    }

    fn add(
        &mut self,
        count: usize,
        served: &BenchServerWithWorkspace,
        run: &BenchRunOptions,
    ) -> anyhow::Result<()> {
        // Latency comes before memory, so that each figure includes the memory that a load needs
        // once.
        let latency = served.latency(run)?;
        self.latency.push((count as f64, latency));
        self.memory.push((count as f64, served.memory()?));
        Ok(())
    }

    /// Returns two rows with the names `what`: the memory that each additional item takes in KiB,
    /// and the latency with all items, compared with the latency at the first count. The goal of
    /// the first row is at most `most` KiB.
    fn rows(self, what: [&'static str; 2], most: Option<f64>) -> Vec<BenchResultRow> {
        let Self { memory, latency } = self;
        let ((few, memory_of_few), (many, memory_of_many)) = (memory[0], memory[memory.len() - 1]);
        let memory_each = (memory_of_many - memory_of_few) * 1024.0 / (many - few);
        let slope = BenchResultRow::new(what[0], " KiB", memory_each);
        let slope = match most {
            Some(most) => slope.with_target(PerformanceGoal::AtMost(most)),
            None => slope,
        };
        let first = latency[0].1;
        let last = latency[latency.len() - 1].1;
        vec![
            slope.with_curve("MiB", memory),
            BenchResultRow::new(what[1], " ms", last).with_floor(first).with_curve("ms", latency),
        ]
    }
}

fn tools(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    eprintln!("measuring: many tools");
    let mut by_count = ScaleMeasurements::new();
    for count in run.choose(vec![10, 1_000], vec![10, 1_000, 2_500, 5_000, 10_000]) {
        let mut declared = String::new();
        for number in 0..count {
            let _ = writeln!(
                declared,
                "[command.\"many.tool_{number}\"]\nabout = \"Does nothing, for the {number}th time\"\n\
                 program = \"true\"\nargv = [\"{{text}}\"]\n[command.\"many.tool_{number}\".args]\n\
                 text = \"string!\""
            );
        }
        by_count.add(count, &BenchServerWithWorkspace::start(&declared)?, run)?;
    }
    Ok(by_count.rows(
        ["memory per tool, 10,000 tools", "p99 of a call, 10,000 tools available (floor: 10)"],
        None,
    ))
}

fn sessions(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    eprintln!("measuring: many sessions and streams");
    let served = BenchServerWithWorkspace::start("")?;
    let address = &served.server.address;
    let mut sessions = ScaleMeasurements::new();
    let mut streams = ScaleMeasurements::new();
    let mut opened = Vec::new();
    let steps = run.choose(vec![0, 500], vec![0, 1_250, 2_500, 3_750, 5_000]);
    for &count in &steps {
        while opened.len() < count {
            opened.push(BenchRequestHeaders::session(address)?);
        }
        sessions.add(count, &served, run)?;
    }
    let runtime = runtime()?;
    let mut open = Vec::new();
    for &count in &steps {
        while open.len() < count {
            let get = opened[open.len()].get();
            open.push(runtime.block_on(async {
                let mut connection = BenchHttpConnection::open(address).await?;
                connection.send(&get).await?;
                connection.read_head().await.context("a stream")?;
                anyhow::Ok(connection)
            })?);
        }
        streams.add(count, &served, run)?;
    }
    let mut rows = sessions.rows(
        [
            "memory per idle session, 5,000 sessions",
            "p99 of a call, 5,000 idle sessions (floor: none)",
        ],
        Some(40.0),
    );
    rows.extend(streams.rows(
        [
            "memory per open stream, 5,000 streams",
            "p99 of a call, 5,000 open streams (floor: none)",
        ],
        None,
    ));
    Ok(rows)
}

fn conversations(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    eprintln!("measuring: many WebSockets");
    let served = BenchServerWithWorkspace::start("")?;
    let runtime = runtime()?;
    let mut by_count = ScaleMeasurements::new();
    let mut open = Vec::new();
    for count in run.choose(vec![0, 200], vec![0, 250, 500, 750, 1_000]) {
        while open.len() < count {
            open.push(runtime.block_on(BenchWebSocket::open(&served.server.address, "/ws/rpc"))?);
        }
        by_count.add(count, &served, run)?;
    }
    Ok(by_count.rows(
        ["memory per WebSocket, 1,000 WebSockets", "p99 of a call, 1,000 WebSockets (floor: none)"],
        None,
    ))
}

/// Measures calls per second over WebSockets, with 1 to 64 calls in flight on each WebSocket.
fn in_flight(run: &BenchRunOptions) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: many calls in flight");
    let served = BenchServerWithWorkspace::start("")?;
    let target = (served.server.address.as_str(), "/ws/rpc");
    let question =
        BenchRequestTemplate::method("files/read", &json!({ "path": "one.txt" }), "toolgate");
    let mut rates = Vec::new();
    for depth in [1, 4, 16, 64] {
        rates.push((depth as f64, sockets::rate(target, &question, CONNECTIONS, depth, run.time)?));
    }
    let what = "files_read, 16 WebSockets, 64 calls in flight on each (floor: one call)";
    drop(served.folder);
    Ok(BenchResultRow::new(what, "/s", rates[3].1).with_floor(rates[0].1).with_curve("/s", rates))
}
