//! Those who call: some whose every call is looked at, some who go away.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::super::chance::Chance;
use super::super::wire::{self, Told};
use super::stage::Stage;
use super::{Tally, count};

/// How long all upstreams may take to be there at first.
const WARM: Duration = Duration::from_secs(60);

/// Waits until upstreams that nobody kills yet answer.
pub(super) fn warm(at: SocketAddr) -> anyhow::Result<()> {
    for (tool, argument) in [STEADY, CALM, WEB] {
        let begun = Instant::now();
        while let Err(why) = echoed(at, tool, argument, "here") {
            if begun.elapsed() > WARM {
                bail!("{tool} does not answer: {why}");
            }
            sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// A tool that says back what an argument says.
type Echo = (&'static str, &'static str);

const STEADY: Echo = ("steady_echo", "message");
const CALM: Echo = ("calm_echo", "message");
const WEB: Echo = ("web_echo", "message");

/// Calls upstreams that nobody kills: each call must be answered, and rightly.
pub(super) fn healthy(at: SocketAddr, mut chance: Chance, tally: &Tally) {
    while tally.goes_on() {
        let (tool, argument) = if chance.is(50) { STEADY } else { CALM };
        let text = format!("hello {:x}", chance.number());
        let begun = Instant::now();
        if let Err(why) = echoed(at, tool, argument, &text) {
            let after = begun.elapsed().as_secs_f64();
            tally.wrong(format!("{tool} failed after {after:.1} s: {why}"));
        }
        count(&tally.healthy);
        sleep(chance.millis(1, 20));
    }
}

/// Calls upstreams that are killed: each call must be answered, somehow.
pub(super) fn fragile(at: SocketAddr, mut chance: Chance, tally: &Tally) {
    while tally.goes_on() {
        let (tool, arguments) = fragile_call(&mut chance);
        match wire::ask(at, tool, &arguments) {
            Told::Answer(answer) if answer.status == 200 => {}
            Told::Answer(answer) => {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                tally.wrong(format!("{tool} was answered with {}: {body}", answer.status));
            }
            Told::NotSent => tally.wrong("the gateway takes no connection".to_owned()),
            Told::Unknown(why) => tally.wrong(format!("{tool} was not answered: {why}")),
        }
        count(&tally.fragile);
        sleep(chance.millis(5, 60));
    }
}

fn fragile_call(chance: &mut Chance) -> (&'static str, Value) {
    match chance.between(0, 9) {
        0 => ("fragile_die", json!({})),
        1 => ("fragile_flood", json!({})),
        2 => ("fragile_slow", json!({})),
        3 => ("fragile_shout", json!({})),
        4 => ("fragile_children", json!({})),
        5 => ("brittle_trigger-long-running-operation", json!({ "duration": 1, "steps": 5 })),
        6 => ("brittle_echo", json!({ "message": "hello" })),
        7 => ("web_trigger-long-running-operation", json!({ "duration": 1, "steps": 5 })),
        _ => ("web_echo", json!({ "message": "hello" })),
    }
}

/// Calls whatever there is, and goes away before the answer is there, or in the midst of it.
pub(super) fn reckless(at: SocketAddr, mut chance: Chance, tally: &Tally) {
    while tally.goes_on() {
        let (tool, arguments) = match chance.between(0, 3) {
            0 => ("calm_never", json!({})),
            1 => ("calm_slow", json!({})),
            _ => fragile_call(&mut chance),
        };
        let Ok(mut stream) = TcpStream::connect(at) else {
            tally.wrong("the gateway takes no connection".to_owned());
            return;
        };
        let _ = stream.write_all(&wire::asking(at, tool, &arguments));
        sleep(chance.millis(0, 400));
        drop(stream);
        count(&tally.clients_killed);
        sleep(chance.millis(20, 200));
    }
}

/// Programs that have a gateway of their own over pipes; either is killed, or the pipe ends.
pub(super) fn programs(stage: &Stage, mut chance: Chance, tally: &Tally) {
    while tally.goes_on() {
        match stage.own() {
            Ok(mut own) => {
                let _ = talk(&mut own, &mut chance);
                // The client ends, and its pipes with it; or somebody kills the gateway.
                drop(own.stdin.take());
                if chance.is(50) {
                    let _ = own.kill();
                }
                let _ = own.wait();
                count(&tally.clients_killed);
            }
            Err(err) => tally.wrong(format!("{err:#}")),
        }
        sleep(chance.millis(200, 2000));
    }
}

/// Some calls, of which the last may go unanswered.
fn talk(own: &mut Child, chance: &mut Chance) -> anyhow::Result<()> {
    let mut input = own.stdin.as_ref().context("a pipe")?;
    let mut lines = BufReader::new(own.stdout.take().context("a pipe")?).lines();
    let hello = json!({
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": { "name": "chaos", "version": "0" },
        },
    });
    writeln!(input, "{hello}")?;
    lines.next().context("it ended")??;
    writeln!(input, "{}", json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
    for id in 1..=chance.between(1, 5) {
        let (tool, arguments) = fragile_call(chance);
        let call = json!({
            "jsonrpc": "2.0",
            "id": id,
            "method": "tools/call",
            "params": { "name": tool, "arguments": arguments },
        });
        writeln!(input, "{call}")?;
        if chance.is(40) {
            sleep(chance.millis(0, 1000));
            return Ok(());
        }
        // What it says beside comes in lines, too.
        while !lines.next().context("it ended")??.contains(&format!("\"id\":{id}")) {}
    }
    Ok(())
}

/// Calls `tool` and sees that it says back what it is told.
fn echoed(at: SocketAddr, tool: &str, argument: &str, text: &str) -> Result<(), String> {
    match wire::ask(at, tool, &json!({ argument: text })) {
        Told::Answer(answer) => {
            let body = String::from_utf8_lossy(&answer.body);
            let is_right = answer.status == 200
                && body.contains(text)
                && !body.contains("\"isError\":true")
                && !body.contains("\"error\":");
            if is_right { Ok(()) } else { Err(format!("{} {body}", answer.status)) }
        }
        Told::NotSent => Err("no connection".to_owned()),
        Told::Unknown(why) => Err(why),
    }
}
