//! Threads that call upstreams through the gateway. Some check every answer, and others disconnect.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use toolgate_test_support::SeededRng;

use super::super::requests::{ChaosRequestOutcome, call_request, send_call};
use super::gateway_folder::GatewayFolder;
use super::{GatewayRunTally, increment};

/// Time limit for the first answers of all upstreams.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Name of a tool that returns its argument, and name of that argument.
type EchoToolName = (&'static str, &'static str);

const STEADY_ECHO: EchoToolName = ("steady_echo", "message");
const CALM_ECHO: EchoToolName = ("calm_echo", "message");
const WEB_ECHO: EchoToolName = ("web_echo", "message");

/// Waits until all upstreams of the gateway at `addr` answer.
pub(super) fn wait_for_upstreams(addr: SocketAddr) -> anyhow::Result<()> {
    for (tool, argument) in [STEADY_ECHO, CALM_ECHO, WEB_ECHO] {
        let started = Instant::now();
        while let Err(reason) = call_echo(addr, tool, argument, "here") {
            if started.elapsed() > START_TIMEOUT {
                bail!("{tool} does not answer: {reason}");
            }
            sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// Calls upstreams that are never killed until the run is over. Each call must succeed.
pub(super) fn call_healthy(addr: SocketAddr, mut rng: SeededRng, tally: &GatewayRunTally) {
    while tally.is_running() {
        let (tool, argument) = if rng.chance(50) { STEADY_ECHO } else { CALM_ECHO };
        let text = format!("hello {:x}", rng.next_number());
        let started = Instant::now();
        if let Err(reason) = call_echo(addr, tool, argument, &text) {
            let seconds = started.elapsed().as_secs_f64();
            tally.fail(format!("{tool} failed after {seconds:.1} s: {reason}"));
        }
        increment(&tally.healthy_calls);
        sleep(rng.duration_between(1, 20));
    }
}

/// Calls upstreams that are killed at random until the run is over. Each call must have an answer,
/// which may be an error.
pub(super) fn call_fragile(addr: SocketAddr, mut rng: SeededRng, tally: &GatewayRunTally) {
    while tally.is_running() {
        let (tool, arguments) = fragile_call(&mut rng);
        match send_call(addr, tool, &arguments) {
            ChaosRequestOutcome::Answered(answer) if answer.status == 200 => {}
            ChaosRequestOutcome::Answered(answer) => {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                tally.fail(format!("{tool} was answered with {}: {body}", answer.status));
            }
            ChaosRequestOutcome::NotSent => {
                tally.fail("the gateway refuses connections".to_owned());
            }
            ChaosRequestOutcome::Unknown(reason) => {
                tally.fail(format!("{tool} was not answered: {reason}"));
            }
        }
        increment(&tally.fragile_calls);
        sleep(rng.duration_between(5, 60));
    }
}

fn fragile_call(rng: &mut SeededRng) -> (&'static str, Value) {
    match rng.between(0, 9) {
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

/// Makes calls until the run is over, and disconnects before or during each answer.
pub(super) fn disconnect_early(addr: SocketAddr, mut rng: SeededRng, tally: &GatewayRunTally) {
    while tally.is_running() {
        let (tool, arguments) = match rng.between(0, 3) {
            0 => ("calm_never", json!({})),
            1 => ("calm_slow", json!({})),
            _ => fragile_call(&mut rng),
        };
        let Ok(mut stream) = TcpStream::connect(addr) else {
            tally.fail("the gateway refuses connections".to_owned());
            return;
        };
        let _ = stream.write_all(&call_request(addr, tool, &arguments));
        sleep(rng.duration_between(0, 400));
        drop(stream);
        increment(&tally.clients_killed);
        sleep(rng.duration_between(20, 200));
    }
}

/// Starts separate gateways over stdio until the run is over, each for one client. Then either the
/// client exits or the gateway is killed.
pub(super) fn run_own_gateways(
    folder: &GatewayFolder,
    mut rng: SeededRng,
    tally: &GatewayRunTally,
) {
    while tally.is_running() {
        match folder.start_own_gateway() {
            Ok(mut gateway) => {
                let _ = make_calls(&mut gateway, &mut rng);
                drop(gateway.stdin.take());
                if rng.chance(50) {
                    let _ = gateway.kill();
                }
                let _ = gateway.wait();
                increment(&tally.clients_killed);
            }
            Err(err) => tally.fail(format!("{err:#}")),
        }
        sleep(rng.duration_between(200, 2000));
    }
}

/// Makes some calls over stdio to the process `gateway`. The last call may remain without an
/// answer.
fn make_calls(gateway: &mut Child, rng: &mut SeededRng) -> anyhow::Result<()> {
    let mut input = gateway.stdin.as_ref().context("no stdin")?;
    let mut lines = BufReader::new(gateway.stdout.take().context("no stdout")?).lines();
    let initialize = json!({
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": { "name": "chaos", "version": "0" },
        },
    });
    writeln!(input, "{initialize}")?;
    lines.next().context("the gateway has exited")??;
    writeln!(input, "{}", json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
    for id in 1..=rng.between(1, 5) {
        let (tool, arguments) = fragile_call(rng);
        let call = json!({
            "jsonrpc": "2.0",
            "id": id,
            "method": "tools/call",
            "params": { "name": tool, "arguments": arguments },
        });
        writeln!(input, "{call}")?;
        if rng.chance(40) {
            sleep(rng.duration_between(0, 1000));
            return Ok(());
        }
        // Notifications may come before the answer.
        let id = format!("\"id\":{id}");
        while !lines.next().context("the gateway has exited")??.contains(&id) {}
    }
    Ok(())
}

/// Calls `tool` with `text`, and checks that the answer contains this text. Returns a failure
/// otherwise.
fn call_echo(addr: SocketAddr, tool: &str, argument: &str, text: &str) -> Result<(), String> {
    match send_call(addr, tool, &json!({ argument: text })) {
        ChaosRequestOutcome::Answered(answer) => {
            let body = String::from_utf8_lossy(&answer.body);
            let is_echo = answer.status == 200
                && body.contains(text)
                && !body.contains("\"isError\":true")
                && !body.contains("\"error\":");
            if is_echo { Ok(()) } else { Err(format!("{} {body}", answer.status)) }
        }
        ChaosRequestOutcome::NotSent => Err("no connection".to_owned()),
        ChaosRequestOutcome::Unknown(reason) => Err(reason),
    }
}
