//! Measures a call over HTTP and over WebSockets, compared with a minimal axum server and with
//! other servers.

use serde_json::json;

use crate::contenders::{
    BenchmarkedHttpServer, FLOOR, OURS, RMCP, ours_http, session_echoes, stateless_echoes,
};
use crate::http::{LoadTestResult, RequestSchedule, load};
use crate::question::BenchRequestTemplate;
use crate::row::{BenchResultRow, PerformanceGoal};
use crate::{BenchRunOptions, sockets};

const CONNECTIONS: u8 = 16;

/// Calls per second that are sent while latencies are compared. Every compared server can answer
/// more.
const STEADY_RATE: f64 = 5_000.0;

/// Measures calls of toolgate and other servers over HTTP and WebSockets.
pub(crate) fn measure(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let mut all = stateless_echoes(run)?;
    let stateless = measure_rates(run, "echo, HTTP, 16 connections, stateless", &mut all)?
        .with_target(PerformanceGoal::RatioAtLeast(0.65))
        .with_target(PerformanceGoal::CpuRatioAtMost(2.0))
        .with_target(PerformanceGoal::PeerCpuRatioAtMost(RMCP, 0.5));
    let latency = measure_latency(run, &mut all)?;
    drop(all);
    let what = "echo, HTTP, 16 connections, in a session";
    let session = measure_rates(run, what, &mut session_echoes(run)?)?
        .with_target(PerformanceGoal::RatioAtLeast(0.65))
        .with_target(PerformanceGoal::CpuRatioAtMost(2.0));
    Ok(vec![stateless, session, sockets(run)?, latency])
}

/// Measures the calls per second of each server in `all`, over [`CONNECTIONS`] connections.
fn measure_rates(
    run: &BenchRunOptions,
    what: &'static str,
    all: &mut [BenchmarkedHttpServer],
) -> anyhow::Result<BenchResultRow> {
    run.measure_rates(
        what,
        all,
        |server| server.name,
        |server| Some(&server.server.child),
        |server| Ok(load_server(server, RequestSchedule::Busy, run)?.rate),
    )
}

/// Sends calls to a server over [`CONNECTIONS`] connections at once.
fn load_server(
    server: &BenchmarkedHttpServer,
    schedule: RequestSchedule,
    run: &BenchRunOptions,
) -> anyhow::Result<LoadTestResult> {
    load(&server.headers, &server.question, CONNECTIONS, schedule, run.time)
}

/// Measures calls over WebSockets in the Mira dialect. The floor is a minimal axum server over
/// HTTP.
fn sockets(run: &BenchRunOptions) -> anyhow::Result<BenchResultRow> {
    let floor = BenchmarkedHttpServer::floor()?;
    let ours = BenchmarkedHttpServer::stateless(OURS, ours_http()?, "example_echo");
    let question =
        BenchRequestTemplate::method("example/echo", &json!({ "text": "hello" }), "hello");
    let row = run.measure_rates(
        "echo, WebSocket, 16 connections (floor: axum over HTTP)",
        &mut [floor, ours],
        |server| server.name,
        |server| Some(&server.server.child),
        |server| match server.name {
            OURS => {
                let target = (server.server.address.as_str(), "/ws/rpc");
                sockets::rate(target, &question, CONNECTIONS, 1, run.time)
            }
            _ => Ok(load_server(server, RequestSchedule::Busy, run)?.rate),
        },
    )?;
    Ok(row.with_target(PerformanceGoal::RatioAtLeastOrCpuAtMost(0.8, 1.5)))
}

/// Measures the 99th percentile of latency at [`STEADY_RATE`] calls per second, which every
/// compared server can answer.
fn measure_latency(
    run: &BenchRunOptions,
    all: &mut Vec<BenchmarkedHttpServer>,
) -> anyhow::Result<BenchResultRow> {
    all.retain(|server| [OURS, FLOOR, RMCP].contains(&server.name));
    let row = run.measure_row(
        "echo, HTTP, 16 connections, 5,000 calls a second: p99",
        " µs",
        all,
        |server| server.name,
        |server| {
            let schedule = RequestSchedule::Rate(STEADY_RATE);
            Ok(load_server(server, schedule, run)?.percentile(99.0))
        },
    )?;
    Ok(row.with_target(PerformanceGoal::PeerRatioAtMost(RMCP, 1.0)))
}
