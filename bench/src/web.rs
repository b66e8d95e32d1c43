//! Measures a call over HTTP and WebSockets, compared with axum with a canned answer and with other
//! servers.

use serde_json::json;

use crate::contenders::{
    FLOOR, HttpContender, OURS, RMCP, ours_http, session_echoes, stateless_echoes,
};
use crate::http::{RequestSchedule, load};
use crate::question::Question;
use crate::row::{ResultRow, Target};
use crate::{RunOptions, sockets};

const CONNECTIONS: u8 = 16;

/// Measures all rows of this section.
pub(crate) fn measure(run: &RunOptions) -> anyhow::Result<Vec<ResultRow>> {
    let rate = |server: &mut HttpContender| {
        Ok(load(&server.headers, &server.question, CONNECTIONS, RequestSchedule::Busy, run.time)?
            .rate)
    };
    let mut all = stateless_echoes(run)?;
    let what = "echo, HTTP, 16 connections, stateless";
    let stateless = run.measure_row(what, "/s", &mut all, |server| server.name, rate)?;
    let stateless = stateless
        .with_target(Target::RatioAtLeast(0.8))
        .with_target(Target::PeerRatioAtLeast(RMCP, 2.5));
    let what = "echo, HTTP, 16 connections, in a session";
    let session =
        run.measure_row(what, "/s", &mut session_echoes(run)?, |server| server.name, rate)?;
    let session = session.with_target(Target::RatioAtLeast(0.8));
    let mut rows = vec![stateless, session, sockets(run)?];
    rows.extend(measure_latency(run)?);
    Ok(rows)
}

/// Measures calls over WebSockets, in Mira's dialect. The floor is axum over HTTP.
fn sockets(run: &RunOptions) -> anyhow::Result<ResultRow> {
    let floor = HttpContender::floor()?;
    let ours = ours_http()?;
    let question = Question::method("example/echo", &json!({ "text": "hello" }), "hello");
    let mut both = [(FLOOR, Some(floor)), (OURS, None)];
    let row = run.measure_row(
        "echo, WebSocket, 16 connections (floor: axum over HTTP)",
        "/s",
        &mut both,
        |(name, _)| *name,
        |(_, floor)| match floor {
            Some(server) => Ok(load(
                &server.headers,
                &server.question,
                CONNECTIONS,
                RequestSchedule::Busy,
                run.time,
            )?
            .rate),
            None => {
                let target = (ours.address.as_str(), "/ws/rpc");
                sockets::rate(target, &question, CONNECTIONS, 1, run.time)
            }
        },
    )?;
    Ok(row.with_target(Target::RatioAtLeast(0.8)))
}

/// Measures the 99th percentile of latency at half of the highest rate, and axum's at the same
/// rate. The latter shows the share of the machine.
fn measure_latency(run: &RunOptions) -> anyhow::Result<[ResultRow; 2]> {
    eprintln!("measuring: latency of answers");
    let ours = HttpContender::stateless(OURS, ours_http()?, "example_echo");
    let floor = HttpContender::floor()?;
    let load = |server: &HttpContender, pace| {
        load(&server.headers, &server.question, CONNECTIONS, pace, run.time)
    };
    let mut p99s = [Vec::new(), Vec::new()];
    let mut p50s = [Vec::new(), Vec::new()];
    for _ in 0..run.rounds {
        let half = RequestSchedule::Rate(load(&ours, RequestSchedule::Busy)?.rate / 2.0);
        for (index, server) in [&ours, &floor].into_iter().enumerate() {
            let latencies = load(server, half)?;
            p99s[index].push(latencies.percentile(99.0));
            p50s[index].push(latencies.percentile(50.0));
        }
    }
    let row = |what, p99, p50| {
        ResultRow::new(what, " µs", crate::median(p99)).with_floor(crate::median(p50))
    };
    let ([ours, floor], [p50, floor_p50]) = (p99s, p50s);
    let what = "echo, HTTP, at half of that rate: p99 (floor: p50)";
    let floor_what = "axum with a canned answer, at as many calls: p99 (floor: its p50)";
    Ok([
        row(what, ours, p50).with_target(Target::RatioAtMost(5.0)),
        row(floor_what, floor, floor_p50),
    ])
}
