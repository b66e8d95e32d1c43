//! What a call costs over HTTP and over WebSockets, beside axum with a canned answer, and beside
//! what others make of it.

use serde_json::json;

use crate::contenders::{FLOOR, OURS, RMCP, Served, ours_http, session_echoes, stateless_echoes};
use crate::http::{Pace, load};
use crate::question::Question;
use crate::row::{Asked, Row};
use crate::{Run, sockets};

const CONNECTIONS: u8 = 16;

pub(crate) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let rate = |it: &mut Served| {
        Ok(load(&it.headers, &it.question, CONNECTIONS, Pace::Busy, run.time)?.rate)
    };
    let mut all = stateless_echoes(run)?;
    let what = "echo, HTTP, 16 connections, stateless";
    let stateless = run.row(what, "/s", &mut all, |it| it.name, rate)?;
    let stateless = stateless.asked(Asked::Ratio(0.8)).asked(Asked::Times(RMCP, 2.5));
    let what = "echo, HTTP, 16 connections, in a session";
    let session = run.row(what, "/s", &mut session_echoes(run)?, |it| it.name, rate)?;
    let session = session.asked(Asked::Ratio(0.8));
    let mut rows = vec![stateless, session, sockets(run)?];
    rows.extend(late(run)?);
    Ok(rows)
}

/// Over WebSockets, which Mira's wire has; the floor is axum's over HTTP.
fn sockets(run: &Run) -> anyhow::Result<Row> {
    let floor = Served::floor()?;
    let ours = ours_http()?;
    let question = Question::method("example/echo", &json!({ "text": "hello" }), "hello");
    let mut both = [(FLOOR, Some(floor)), (OURS, None)];
    let row = run.row(
        "echo, WebSocket, 16 connections (floor: axum over HTTP)",
        "/s",
        &mut both,
        |(name, _)| *name,
        |(_, floor)| match floor {
            Some(it) => {
                Ok(load(&it.headers, &it.question, CONNECTIONS, Pace::Busy, run.time)?.rate)
            }
            None => {
                let at = (ours.address.as_str(), "/ws/rpc");
                sockets::rate(at, &question, CONNECTIONS, 1, run.time)
            }
        },
    )?;
    Ok(row.asked(Asked::Ratio(0.8)))
}

/// How late the last answers of a hundred are at half of the most that can be had, and how late
/// axum's are at as many: what of it is the machine's.
fn late(run: &Run) -> anyhow::Result<[Row; 2]> {
    eprintln!("measuring: latency of answers");
    let ours = Served::modern(OURS, ours_http()?, "example_echo");
    let floor = Served::floor()?;
    let load = |it: &Served, pace| load(&it.headers, &it.question, CONNECTIONS, pace, run.time);
    let mut lates = [Vec::new(), Vec::new()];
    let mut usuals = [Vec::new(), Vec::new()];
    for _ in 0..run.rounds {
        let half = Pace::Rate(load(&ours, Pace::Busy)?.rate / 2.0);
        for (at, it) in [&ours, &floor].into_iter().enumerate() {
            let latencies = load(it, half)?;
            lates[at].push(latencies.percentile(99.0));
            usuals[at].push(latencies.percentile(50.0));
        }
    }
    let row =
        |what, late, usual| Row::new(what, " µs", crate::median(late)).floor(crate::median(usual));
    let ([ours, floor], [usual, floor_usual]) = (lates, usuals);
    let what = "echo, HTTP, at half of that rate: p99 (floor: p50)";
    let beside = "axum with a canned answer, at as many calls: p99 (floor: its p50)";
    Ok([row(what, ours, usual).asked(Asked::Within(5.0)), row(beside, floor, floor_usual)])
}
