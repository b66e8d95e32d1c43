//! Measures the time that an MCP gateway adds to a call: toolgate, compared with other gateways.
//! The upstream of each is the same minimal server.

mod contenders;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_host::{SchemaFile, SchemaFiles, SchemaRegistry, SharedSchemaId};

use crate::http::{BenchRequestHeaders, LoadTestResult, RequestSchedule, load};
use crate::row::{BenchResultRow, PerformanceGoal};
use crate::{BenchRunOptions, lines, median};
use contenders::{
    BenchmarkedGateway, PIPED_PEERS, direct_http, direct_pipes, gateways_to_http,
    gateways_to_pipes, ours,
};

const CONNECTIONS: u8 = 16;
const SESSIONS: usize = 1_000;

/// Measures calls through MCP gateways to an upstream server.
pub(crate) fn measure(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let mut rows = pipes(run)?;
    rows.extend(http(run)?);
    rows.push(idle_sessions(run)?);
    rows.push(schema_check(run)?);
    Ok(rows)
}

/// Measures calls through gateways with an HTTP client and an upstream over pipes.
fn pipes(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let mut direct = direct_pipes()?;
    let mut all = gateways_to_pipes(run)?;
    let what = "time that a gateway adds to a call, HTTP client, stdio upstream, p50";
    let added = measure_added(run, what, &mut all, || {
        Ok(median(lines::micros(&mut direct.child, run.time, &direct.question)?))
    })?;
    let rate = measure_rate(
        run,
        "calls through a gateway, HTTP client, stdio upstream, 16 connections",
        &mut all,
    )?;
    let rate = PIPED_PEERS
        .iter()
        .fold(rate, |rate, peer| rate.with_target(PerformanceGoal::PeerRatioAtLeast(peer, 8.0)));
    Ok(vec![
        added.with_target(PerformanceGoal::AtMost(100.0)),
        rate.with_target(PerformanceGoal::CpuAtMost(22.0)),
    ])
}

/// Measures calls through gateways with an HTTP client and an upstream over HTTP.
fn http(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let direct = direct_http()?;
    let mut all = gateways_to_http(run)?;
    let what = "time that a gateway adds to a call, HTTP client, HTTP upstream, p50";
    let added =
        measure_added(run, what, &mut all, || Ok(load_gateway(&direct, 1, run)?.percentile(50.0)))?;
    let rate = measure_rate(
        run,
        "calls through a gateway, HTTP client, HTTP upstream, 16 connections",
        &mut all,
    )?;
    Ok(vec![
        added.with_target(PerformanceGoal::AtMost(150.0)),
        rate.with_target(PerformanceGoal::CpuAtMost(100.0)),
    ])
}

/// Measures the median time that each gateway adds to a call. A direct call to the upstream is
/// measured just before each gateway.
fn measure_added(
    run: &BenchRunOptions,
    what: &'static str,
    all: &mut [BenchmarkedGateway],
    mut measure_direct: impl FnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<BenchResultRow> {
    let measure_one = |gateway: &mut BenchmarkedGateway| {
        let direct = measure_direct()?;
        Ok(load_gateway(gateway, 1, run)?.percentile(50.0) - direct)
    };
    run.measure_row(what, " µs", all, |gateway| gateway.name, measure_one)
}

/// Measures the calls per second through each gateway in `all`.
fn measure_rate(
    run: &BenchRunOptions,
    what: &'static str,
    all: &mut [BenchmarkedGateway],
) -> anyhow::Result<BenchResultRow> {
    run.measure_rates(
        what,
        all,
        |gateway| gateway.name,
        |gateway| Some(&gateway.server.child),
        |gateway| Ok(load_gateway(gateway, CONNECTIONS, run)?.rate),
    )
}

/// Sends calls to a gateway over `connections` connections at once, as fast as it answers.
fn load_gateway(
    gateway: &BenchmarkedGateway,
    connections: u8,
    run: &BenchRunOptions,
) -> anyhow::Result<LoadTestResult> {
    load(&gateway.headers, &gateway.question, connections, RequestSchedule::Busy, run.time)
}

/// Measures the memory of toolgate as a gateway with 1,000 idle sessions.
fn idle_sessions(run: &BenchRunOptions) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: idle sessions with a gateway");
    let ours = ours()?;
    load_gateway(&ours, CONNECTIONS, run)?;
    for _ in 0..SESSIONS {
        BenchRequestHeaders::session(&ours.server.address)?;
    }
    let what = "memory of a gateway with 1,000 idle sessions";
    Ok(BenchResultRow::new(what, " MiB", ours.server.child.settled_mib()?)
        .with_target(PerformanceGoal::AtMost(40.0)))
}

/// Measures how long toolgate validates a value of 1 KiB against a JSON schema, in microseconds.
fn schema_check(run: &BenchRunOptions) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: a schema validation");
    let (schema, value) = schema_and_value();
    let file = SchemaFile { path: "checked.json".to_owned(), schema };
    let files = SchemaFiles { shared: vec![(SharedSchemaId::Envelope, file)], tools: Vec::new() };
    let registry = SchemaRegistry::new(files).map_err(|err| anyhow::anyhow!(err.why))?;
    let checker = registry.load_envelope();
    anyhow::ensure!(checker.problems(&value).is_empty(), "a valid value is refused");
    anyhow::ensure!(!checker.problems(&json!({})).is_empty(), "an invalid value is accepted");
    let mut micros = Vec::new();
    for _ in 0..run.rounds {
        let started = Instant::now();
        let mut count = 0_u32;
        while started.elapsed() < run.time.min(Duration::from_millis(200)) {
            for _ in 0..100 {
                std::hint::black_box(checker.problems(std::hint::black_box(&value)));
            }
            count += 100;
        }
        micros.push(started.elapsed().as_secs_f64() * 1e6 / f64::from(count));
    }
    Ok(BenchResultRow::new("validation of 1 KiB against a schema", " µs", median(micros))
        .with_target(PerformanceGoal::AtMost(20.0)))
}

/// Returns a JSON schema like those of tools, and a valid value of 1 KiB.
fn schema_and_value() -> (Value, Value) {
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
