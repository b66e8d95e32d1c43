//! Attack cases of the file `extra.jsonl`, and a few others about declared tools.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use super::attempt::{AttackAttempt, AttackCallResult, CallResults, call};
use super::client::{AttackClient, start_and_connect};
use super::console_cases;
use super::exploits;
use super::fault_cases;
use super::network_cases;
use super::oracle::summary;
use super::perform::call_once;
use super::program_cases::job_id_in;
use super::resource_cases;
use super::server::{AttackedServer, sh};
use super::setup::start_swapping;

/// Settings with a declared command that runs a shell line.
const DECLARED_COMMAND: &str = "[command.\"attack.line\"]\nabout = \"Runs a line.\"\n\
     program = \"sh\"\nargv = [\"-c\", \"{line}\"]\n[command.\"attack.line\".args]\n\
     line = { schema = { type = \"string\" }, required = true, dash = true }\n";
/// Number of connections that send nothing. It exceeds the number that the server accepts.
const SILENT_CONNECTIONS: usize = 1100;

/// Prepares an attack case of the file `extra.jsonl`.
pub(super) fn prepare(attempt: &mut AttackAttempt) -> anyhow::Result<()> {
    for line in &attempt.case.setup {
        sh(&attempt.folders.ws, &attempt.folders.fill(line))?;
    }
    if attempt.variant.label == "declared" {
        attempt.launch.config = DECLARED_COMMAND.to_owned();
    }
    match attempt.case.input["kind"].as_str() {
        Some("resource") => return resource_cases::prepare(attempt),
        Some("fault") => return fault_cases::prepare(attempt),
        _ => {}
    }
    if attempt.case.input["kind"] == "console" {
        console_cases::prepare(attempt);
    }
    if network_cases::IDS.contains(&attempt.case.id.as_str()) {
        return network_cases::prepare(attempt);
    }
    match attempt.case.id.as_str() {
        "M20" => attempt.variant.input["args"] = json!(["-e", exploits::VSOCK]),
        "M21" => attempt.variant.input["args"] = json!(["-e", exploits::VM_READ]),
        "M22" => {
            let port = attempt.listeners.listen_tcp()?;
            attempt.variant.input["args"] = json!(["-e", exploits::tcp(port)]);
        }
        "M16" => isolate_processes(attempt)?,
        // The default limits would take all resources of this machine.
        "M14" => attempt.launch.config = "[sandbox]\nprocesses = 100\n".to_owned(),
        "M15" => attempt.launch.config = "[sandbox]\nmemory_bytes = 268435456\n".to_owned(),
        "M40" => {
            let canary = attempt.folders.canary.clone();
            attempt.launch.env("ATTACK_SECRET", canary);
            attempt.launch.config = "[secrets]\nvalues_from = [\"ATTACK_SECRET\"]\n".to_owned();
            fs::write(attempt.folders.ws.join("printed.txt"), &attempt.folders.canary)?;
        }
        _ => {}
    }
    Ok(())
}

/// Makes the server start in a new process namespace. The server is not the first process there,
/// because the kernel protects the first process.
fn isolate_processes(attempt: &mut AttackAttempt) -> anyhow::Result<()> {
    let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if sh(&attempt.folders.base, &format!("{} true", namespace.join(" "))).is_err() {
        attempt.skip_reason = Some("this user cannot create a process namespace".to_owned());
    }
    let first_process = ["sh", "-c", "\"$@\"; exit $?", "sh"];
    attempt.launch.wrapper =
        namespace.iter().chain(&first_process).map(|word| (*word).to_owned()).collect();
    Ok(())
}

/// Performs an attack case of the file `extra.jsonl` against a running server.
pub(super) fn perform(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    match attempt.case.input["kind"].as_str() {
        Some("connections") => open_silent_connections(attempt, server, client),
        Some("tool_list") => list_tools(attempt, client),
        Some("console") => console_cases::perform(attempt, server, client),
        Some("resource") => resource_cases::perform(attempt, server, client),
        Some("fault") => fault_cases::perform(attempt, client),
        _ if attempt.variant.label == "job" => run_job(attempt, client),
        _ => call_once(attempt, client),
    }
}

/// Runs the program of the case as a job, and waits until the job has ended.
fn run_job(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let variant = attempt.variant.clone();
    let response = client.call(&variant.tool, &variant.input)?;
    let id = job_id_in(&response)?;
    let result = call(client, "jobs.get", &json!({ "job_id": id, "wait_ms": 20_000 }))?;
    if !attempt.folders.ws.join("tried").exists() && variant.input.to_string().contains("tried") {
        attempt.failures.push(format!("the job did not run: {}", summary(&result.response)));
    }
    Ok(vec![result])
}

/// Attack case M42: checks that descriptions of tools contain no paths of this machine.
fn list_tools(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let listed = Value::from(client.tools()?).to_string();
    for path in [&attempt.folders.home, &attempt.folders.ws] {
        if listed.contains(&*path.to_string_lossy()) {
            attempt.failures.push(format!("the list of tools contains {}", path.display()));
        }
    }
    Ok(vec![AttackCallResult { is_judged: true, ..AttackCallResult::default() }])
}

/// Attack case M41: opens many connections that send nothing, and makes a call meanwhile.
fn open_silent_connections(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let addr = server.addr.context("no address")?;
    let mut streams = Vec::new();
    for _ in 0..SILENT_CONNECTIONS {
        let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_secs(5)) else { break };
        streams.push(stream);
    }
    let count = streams.len();
    if count < SILENT_CONNECTIONS {
        attempt.failures.push(format!("the harness: only {count} connections"));
    }
    let started = Instant::now();
    let ping = client.ping();
    let elapsed = started.elapsed();
    if ping.is_err() || elapsed > Duration::from_secs(2) {
        let failure = format!("a call beside {count} silent connections takes {elapsed:?}");
        attempt.failures.push(failure);
    }
    Ok(vec![AttackCallResult { is_judged: true, elapsed, ..AttackCallResult::default() }])
}

/// Attack case M30: replaces the working folder of programs by a symlink to a folder outside while
/// they start.
pub(super) fn swap_working_folder(attempt: &mut AttackAttempt) -> CallResults {
    let ws = attempt.folders.ws.clone();
    fs::create_dir(ws.join("x"))?;
    fs::write(ws.join("x/secret"), "inside")?;
    symlink(&attempt.folders.evil, ws.join("xl"))?;
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    let (swapping, swaps) = start_swapping(&ws.join("x"), &ws.join("xl"));
    let input = json!({ "command": "cat", "args": ["secret"], "cwd": "x" });
    let mut inside = 0;
    let mut leaks = 0;
    for _ in 0..150 {
        let response = client.call("exec.run", &input)?;
        let raw = String::from_utf8_lossy(&response.raw).into_owned();
        inside += u32::from(raw.contains("inside") && !response.is_error);
        leaks += u32::from(raw.contains(&attempt.folders.canary));
    }
    drop(swapping);
    let finding = match (inside, leaks) {
        (1.., 0) => Ok(()),
        (0, 0) => Err("no program ran inside".to_owned()),
        (_, leaks) => Err(format!("{leaks} of 150 programs ran outside")),
    };
    attempt.record_finding("race:no_canary", finding);
    let swaps = swaps.load(Ordering::Relaxed);
    attempt.notes.push(format!("{inside} ran inside, {swaps} swaps"));
    attempt.check_alive_and_stop(&mut server, &mut client);
    Ok(Vec::new())
}

/// Attack case T02: declares tools with the names of built-in tools, and two tools of one name, in
/// the settings of the workspace and of the operator.
pub(super) fn shadow_builtin_tools(attempt: &mut AttackAttempt) -> CallResults {
    let declaration = |name: &str| {
        format!(
            "[command.\"{name}\"]\nabout = \"Shadows a tool.\"\nprogram = \"echo\"\n\
             argv = [\"shadowed\", \"{{path}}\"]\n[command.\"{name}\".args]\npath = \"string!\"\n"
        )
    };
    let twice = format!("{}{}", declaration("a.b"), declaration("a_b"));
    let shadows = [
        ("files.read", "files.read", declaration("files.read")),
        ("exec.run", "exec.run", declaration("exec.run")),
        ("files_read", "files.read", declaration("files_read")),
        ("FILES.read", "files.read", declaration("FILES.read")),
        ("one name twice", "a.b", twice),
    ];
    // Unless the declaration works under its own name, a refusal proves nothing.
    attempt.launch.config = declaration("attack.echo");
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    let response = client.call("attack.echo", &json!({ "path": "ok.txt" })).with_context(|| {
        format!("the harness: {}", String::from_utf8_lossy(&server.log()).trim())
    })?;
    if !String::from_utf8_lossy(&response.raw).contains("shadowed") {
        let summary = summary(&response);
        attempt.failures.push(format!("the harness: the declared tool does not work: {summary}"));
    }
    attempt.stop(&mut server, &mut client);
    let mut finding = Ok(());
    for (name, tool, config) in shadows {
        for is_in_workspace in [true, false] {
            let file = attempt.folders.ws.join("toolgate.toml");
            attempt.launch.config = if is_in_workspace { String::new() } else { config.clone() };
            if is_in_workspace {
                fs::write(&file, &config)?;
            } else {
                _ = fs::remove_file(&file);
            }
            if let Some(failure) = check_shadow_refused(attempt, tool)? {
                let place = if is_in_workspace { "the workspace" } else { "the operator" };
                finding = Err(format!("{name} in the settings of {place}: {failure}"));
            }
        }
    }
    attempt.record_finding("config_rejected", finding);
    // The invariants need a server that runs.
    _ = fs::remove_file(attempt.folders.ws.join("toolgate.toml"));
    attempt.launch.config = String::new();
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    attempt.check_alive_and_stop(&mut server, &mut client);
    Ok(Vec::new())
}

/// Checks that the server refuses a declared tool named like the built-in `tool`. Returns a
/// description of the failure if it replaces the built-in tool.
fn check_shadow_refused(attempt: &mut AttackAttempt, tool: &str) -> anyhow::Result<Option<String>> {
    let mut command = attempt.launch.command(&attempt.folders, &["check-config"])?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let check = command.status()?;
    let Ok((mut server, mut client)) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)
    else {
        return Ok(None);
    };
    if !server.is_running() || client.ping().is_err() {
        return Ok(None);
    }
    let failure = match client.call(tool, &json!({ "path": "ok.txt" })) {
        Ok(response) if String::from_utf8_lossy(&response.raw).contains("shadowed") => {
            Some("it replaced the built-in tool".to_owned())
        }
        Ok(_) if check.success() => {
            Some("it is neither refused nor reported (check-config exits with 0)".to_owned())
        }
        Ok(_) | Err(_) => None,
    };
    client.close();
    server.kill();
    Ok(failure)
}
