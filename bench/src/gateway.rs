//! What a gateway adds to a call of the server behind it, beside other gateways before the same
//! server, which does nothing but answer.

mod contenders;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_host::{SchemaFile, SchemaFiles, SchemaRegistry, SharedSchema};

use crate::http::{Came, Headers, Pace, load};
use crate::row::{Asked, Row};
use crate::{Run, lines, median};
use contenders::{
    Gateway, PIPED_PEERS, before_http, before_pipes, direct_http, direct_pipes, ours,
};

const CONNECTIONS: u8 = 16;
const SESSIONS: usize = 1_000;

pub(crate) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let mut rows = pipes(run)?;
    rows.extend(http(run)?);
    rows.push(idle_sessions(run)?);
    rows.push(schema_check(run)?);
    Ok(rows)
}

/// A client over HTTP, the server behind over pipes.
fn pipes(run: &Run) -> anyhow::Result<Vec<Row>> {
    let mut direct = direct_pipes()?;
    let mut all = before_pipes(run)?;
    let what = "added to a call by a gateway, HTTP before pipes, p50";
    let added = added(run, what, &mut all, || {
        Ok(median(lines::micros(&mut direct.child, run.time, &direct.question)?))
    })?;
    let rate = rate(run, "calls through a gateway, HTTP before pipes, 16 connections", &mut all)?;
    let rate = PIPED_PEERS.iter().fold(rate, |rate, peer| rate.asked(Asked::Times(peer, 10.0)));
    let cpu = processors("CPU of a call through toolgate, HTTP before pipes", &all[0], run)?;
    Ok(vec![added.asked(Asked::Most(100.0)), rate, cpu])
}

/// A client over HTTP, the server behind over HTTP.
fn http(run: &Run) -> anyhow::Result<Vec<Row>> {
    let direct = direct_http()?;
    let mut all = before_http(run)?;
    let what = "added to a call by a gateway, HTTP before HTTP, p50";
    let added = added(run, what, &mut all, || Ok(asked(&direct, 1, run)?.percentile(50.0)))?;
    let rate = rate(run, "calls through a gateway, HTTP before HTTP, 16 connections", &mut all)?;
    let cpu = processors("CPU of a call through toolgate, HTTP before HTTP", &all[0], run)?;
    Ok(vec![added.asked(Asked::Most(150.0)), rate, cpu])
}

/// What each gateway adds to what a call takes by itself, which is measured just before.
fn added(
    run: &Run,
    what: &'static str,
    all: &mut [Gateway],
    mut alone: impl FnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<Row> {
    let once = |it: &mut Gateway| {
        let alone = alone()?;
        Ok(asked(it, 1, run)?.percentile(50.0) - alone)
    };
    run.row(what, " µs", all, |it| it.name, once)
}

fn rate(run: &Run, what: &'static str, all: &mut [Gateway]) -> anyhow::Result<Row> {
    run.row(what, "/s", all, |it| it.name, |it| Ok(asked(it, CONNECTIONS, run)?.rate))
}

fn asked(it: &Gateway, connections: u8, run: &Run) -> anyhow::Result<Came> {
    load(&it.headers, &it.question, connections, Pace::Busy, run.time)
}

/// How long the gateway's own threads run for a call, 16 connections.
fn processors(what: &'static str, ours: &Gateway, run: &Run) -> anyhow::Result<Row> {
    eprintln!("measuring: {what}");
    let mut micros = Vec::new();
    for _ in 0..run.rounds {
        let spent = ours.server.child.cpu_micros()?;
        let calls = asked(ours, CONNECTIONS, run)?.micros.len();
        micros.push((ours.server.child.cpu_micros()? - spent) / calls as f64);
    }
    Ok(Row::new(what, " µs", median(micros)).asked(Asked::Most(100.0)))
}

fn idle_sessions(run: &Run) -> anyhow::Result<Row> {
    eprintln!("measuring: idle sessions with a gateway");
    let ours = ours()?;
    asked(&ours, CONNECTIONS, run)?;
    for _ in 0..SESSIONS {
        Headers::session(&ours.server.address)?;
    }
    let what = "memory of a gateway with 1,000 idle sessions";
    Ok(Row::new(what, " MiB", ours.server.child.settled_mib()?).asked(Asked::Most(40.0)))
}

/// Microseconds to validate 1 KiB against a schema.
fn schema_check(run: &Run) -> anyhow::Result<Row> {
    eprintln!("measuring: a schema validation");
    let (schema, value) = checked();
    let file = SchemaFile { path: "checked.json".to_owned(), schema };
    let files = SchemaFiles { shared: vec![(SharedSchema::Envelope, file)], tools: Vec::new() };
    let registry = SchemaRegistry::new(files).map_err(|err| anyhow::anyhow!(err.why))?;
    let checker = registry.load_envelope();
    anyhow::ensure!(checker.problems(&value).is_empty(), "a valid value is refused");
    anyhow::ensure!(!checker.problems(&json!({})).is_empty(), "an invalid value is accepted");
    let mut micros = Vec::new();
    for _ in 0..run.rounds {
        let begun = Instant::now();
        let mut count = 0_u32;
        while begun.elapsed() < run.time.min(Duration::from_millis(200)) {
            for _ in 0..100 {
                std::hint::black_box(checker.problems(std::hint::black_box(&value)));
            }
            count += 100;
        }
        micros.push(begun.elapsed().as_secs_f64() * 1e6 / f64::from(count));
    }
    Ok(Row::new("1 KiB validated against a schema", " µs", median(micros)).asked(Asked::Most(20.0)))
}

/// A schema as tools have them, and 1 KiB that it allows.
fn checked() -> (Value, Value) {
    let line = json!({
        "type": "object",
        "properties": {
            "path": { "type": "string", "minLength": 1, "pattern": "^[a-z0-9_/.]+$" },
            "line": { "type": "integer", "minimum": 1 },
            "kind": { "enum": ["added", "removed", "same"] },
            "text": { "type": "string", "maxLength": 4096 },
        },
        "required": ["path", "line", "kind"],
        "additionalProperties": false,
    });
    let schema = json!({
        "type": "object",
        "properties": {
            "title": { "type": "string" },
            "limit": { "type": "integer", "minimum": 0, "maximum": 1000 },
            "lines": { "type": "array", "items": line, "maxItems": 100 },
        },
        "required": ["title", "lines"],
        "additionalProperties": false,
    });
    let line = |number: u32| {
        json!({
            "path": format!("src/module_{number}.rs"),
            "line": number + 1,
            "kind": "added",
            "text": "let answer = question.answered(by, within);",
        })
    };
    let lines: Vec<_> = (0..9).map(line).collect();
    let value = json!({ "title": "what has changed", "limit": 10, "lines": lines });
    (schema, value)
}
