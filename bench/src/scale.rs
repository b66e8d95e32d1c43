//! What much of everything costs: tools, sessions, streams, sockets, calls in flight. Memory, and
//! how late the last answers of a hundred are, against how many there are.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;

use crate::child::{Server, start_server};
use crate::files::UNLIMITED;
use crate::http::{Connection, Headers, Pace, load, runtime};
use crate::question::Question;
use crate::row::{Asked, Row};
use crate::sockets::{self, Socket};
use crate::{Run, program, text};

/// So many calls a second are asked while it is looked how late they are answered.
const RATE: f64 = 2_000.0;
const CONNECTIONS: u8 = 16;

/// What a server bears here.
const BOUNDS: &str = "[server]\nconnections_max = 16384\nstreams_max = 8192\nstreams_each = 8192\n\
                      sessions_max = 8192\n";

pub(crate) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    // Each of many streams takes a descriptor, here and there.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let mut rows = tools(run)?;
    rows.extend(sessions(run)?);
    rows.extend(conversations(run)?);
    rows.push(in_flight(run)?);
    Ok(rows)
}

/// A folder that is served so.
struct Served {
    folder: tempfile::TempDir,
    server: Server,
}

impl Served {
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

    /// How late the last of a hundred answers is, in milliseconds.
    fn late(&self, run: &Run) -> anyhow::Result<f64> {
        let question = Question::stateless("files_read", &json!({ "path": "one.txt" }), "toolgate");
        let headers = Headers::stateless(&self.server.address, "files_read");
        let time = run.time.max(Duration::from_secs(1));
        let latencies = load(&headers, &question, CONNECTIONS, Pace::Rate(RATE), time)?;
        Ok(latencies.percentile(99.0) / 1000.0)
    }
}

fn serve(folder: &Path) -> anyhow::Result<Server> {
    start_server(&program("toolgate")?, &["serve", &text(folder), "--listen", "127.0.0.1:0"])
}

/// Something against how many there are of something.
struct Against {
    memory: Vec<(f64, f64)>,
    late: Vec<(f64, f64)>,
}

impl Against {
    fn new() -> Self {
        Self { memory: Vec::new(), late: Vec::new() }
    }

    fn add(&mut self, count: usize, served: &Served, run: &Run) -> anyhow::Result<()> {
        // Before memory, so that what a load needs once is there in all of them.
        let late = served.late(run)?;
        self.late.push((count as f64, late));
        self.memory.push((count as f64, served.memory()?));
        Ok(())
    }

    /// Two rows: KiB for each of the last many, and how late answers are with all of them beside
    /// with the first.
    fn rows(self, what: [&'static str; 2], most: Option<f64>) -> Vec<Row> {
        let Self { memory, late } = self;
        let ((few, least), (many, all)) = (memory[0], memory[memory.len() - 1]);
        let slope = Row::new(what[0], " KiB", (all - least) * 1024.0 / (many - few));
        let slope = match most {
            Some(most) => slope.asked(Asked::Most(most)),
            None => slope,
        };
        let first = late[0].1;
        let last = late[late.len() - 1].1;
        vec![
            slope.against("MiB", memory),
            Row::new(what[1], " ms", last).floor(first).against("ms", late),
        ]
    }
}

fn tools(run: &Run) -> anyhow::Result<Vec<Row>> {
    eprintln!("measuring: many tools");
    let mut against = Against::new();
    for count in run.of(vec![10, 1_000], vec![10, 1_000, 2_500, 5_000, 10_000]) {
        let mut declared = String::new();
        for number in 0..count {
            let _ = writeln!(
                declared,
                "[command.\"many.tool_{number}\"]\nabout = \"Does nothing, for the {number}th time\"\n\
                 program = \"true\"\nargv = [\"{{text}}\"]\n[command.\"many.tool_{number}\".args]\n\
                 text = \"string!\""
            );
        }
        against.add(count, &Served::start(&declared)?, run)?;
    }
    Ok(against.rows(
        ["memory of each of 10,000 tools", "p99 of a call, 10,000 tools available (floor: 10)"],
        None,
    ))
}

fn sessions(run: &Run) -> anyhow::Result<Vec<Row>> {
    eprintln!("measuring: many sessions and streams");
    let served = Served::start("")?;
    let address = &served.server.address;
    let mut sessions = Against::new();
    let mut streams = Against::new();
    let mut opened = Vec::new();
    let steps = run.of(vec![0, 500], vec![0, 1_250, 2_500, 3_750, 5_000]);
    for &count in &steps {
        while opened.len() < count {
            opened.push(Headers::session(address)?);
        }
        sessions.add(count, &served, run)?;
    }
    let runtime = runtime()?;
    let mut open = Vec::new();
    for &count in &steps {
        while open.len() < count {
            let get = opened[open.len()].get();
            open.push(runtime.block_on(async {
                let mut connection = Connection::open(address).await?;
                connection.send(&get).await?;
                connection.head().await.context("a stream")?;
                anyhow::Ok(connection)
            })?);
        }
        streams.add(count, &served, run)?;
    }
    let mut rows = sessions.rows(
        [
            "memory of each of 5,000 idle sessions",
            "p99 of a call beside 5,000 sessions (floor: none)",
        ],
        Some(40.0),
    );
    rows.extend(streams.rows(
        [
            "memory of each of 5,000 open streams",
            "p99 of a call beside 5,000 streams (floor: none)",
        ],
        None,
    ));
    Ok(rows)
}

fn conversations(run: &Run) -> anyhow::Result<Vec<Row>> {
    eprintln!("measuring: many WebSockets");
    let served = Served::start("")?;
    let runtime = runtime()?;
    let mut against = Against::new();
    let mut open = Vec::new();
    for count in run.of(vec![0, 200], vec![0, 250, 500, 750, 1_000]) {
        while open.len() < count {
            open.push(runtime.block_on(Socket::open(&served.server.address, "/ws/rpc"))?);
        }
        against.add(count, &served, run)?;
    }
    Ok(against.rows(
        [
            "memory of each of 1,000 WebSockets",
            "p99 of a call beside 1,000 WebSockets (floor: none)",
        ],
        None,
    ))
}

/// Calls a second over WebSockets, each with so many in flight, beside one in flight.
fn in_flight(run: &Run) -> anyhow::Result<Row> {
    eprintln!("measuring: many calls in flight");
    let served = Served::start("")?;
    let at = (served.server.address.as_str(), "/ws/rpc");
    let question = Question::method("files/read", &json!({ "path": "one.txt" }), "toolgate");
    let mut rates = Vec::new();
    for depth in [1, 4, 16, 64] {
        rates.push((depth as f64, sockets::rate(at, &question, CONNECTIONS, depth, run.time)?));
    }
    let what = "files_read, 16 WebSockets, 64 in flight each (floor: one)";
    drop(served.folder);
    Ok(Row::new(what, "/s", rates[3].1).floor(rates[0].1).against("/s", rates))
}
