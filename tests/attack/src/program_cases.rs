//! Attack cases about programs and jobs that run too long, and about reports of a missing sandbox.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::attempt::{AttackAttempt, CallResults, call};
use super::client::{AttackClient, connect, start_and_connect};
use super::dialects::{AttackDialect, AttackResponse, AttackTransport};
use super::exploits;
use super::folders::random_hex;
use super::invariants::descendants;
use super::oracle::summary;
use super::perform::wait_until;
use super::server::{AttackServerLaunch, AttackedServer, audit_log, write_all};

/// Time that a program may take until it is in the process list.
const PROGRAM_START_TIMEOUT: Duration = Duration::from_secs(10);

/// Program that sleeps for minutes. Its argument is unique, so that the process list shows whether
/// it runs.
struct SleepingTestProgram {
    input: Value,
    argument: String,
}

impl SleepingTestProgram {
    fn new() -> anyhow::Result<Self> {
        let argument = format!("300.{}", u64::from_str_radix(&random_hex(4)?, 16)?);
        let input = json!({ "command": "sleep", "args": [argument] });
        Ok(Self { input, argument })
    }

    fn wait_for_start(&self, server: &AttackedServer) -> anyhow::Result<()> {
        let runs = || has_descendant(server.pid(), &self.argument);
        ensure!(wait_until(PROGRAM_START_TIMEOUT, runs), "the program does not start");
        Ok(())
    }

    /// Returns true if the program ends within `timeout`. Finds the program even if it is no longer
    /// a descendant of the server.
    fn ends_within(&self, timeout: Duration) -> bool {
        wait_until(timeout, || !has_descendant(std::process::id(), &self.argument))
    }
}

/// Returns true if a descendant of the process `pid` has `word` in its command line.
pub(super) fn has_descendant(pid: u32, word: &str) -> bool {
    descendants(pid).iter().any(|(_, line)| line.contains(word))
}

/// Attack case X46: cancels a call while its program runs.
pub(super) fn cancel_call(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let sleeper = SleepingTestProgram::new()?;
    let request = client.call_request("exec.run", &sleeper.input)?;
    let params = json!({ "requestId": request.id, "reason": "attack" });
    let notification =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
    if client.is_stream() {
        client.send(&request)?;
        sleeper.wait_for_start(server)?;
        client.write(format!("{notification}\n").as_bytes())?;
        if !sleeper.ends_within(Duration::from_secs(1)) {
            attempt.failures.push("the program still runs 1 s after the cancellation".to_owned());
        }
        if let Some(response) = client.wait_for_answer(request.id, Duration::from_millis(500))? {
            let summary = summary(&response);
            attempt.failures.push(format!("the cancelled call was answered: {summary}"));
        }
        return Ok(Vec::new());
    }
    let addr = server.addr.context("no address")?;
    let stream = TcpStream::connect(addr)?;
    let mut http = request.http.clone();
    http.headers.extend(client.headers.iter().cloned());
    write_all(&mut &stream, &http.bytes(addr))?;
    sleeper.wait_for_start(server)?;
    if attempt.route.dialect == AttackDialect::Mcp2025 {
        let mut cancellation = client.codec.method_request("notifications/cancelled", &Value::Null);
        cancellation.http.body = notification.to_string().into_bytes();
        client.post(&cancellation.http)?;
    } else {
        // Without a session, a client cancels a call when it closes the connection.
        drop(stream);
    }
    if !sleeper.ends_within(Duration::from_millis(1500)) {
        attempt.failures.push("the program still runs after the cancellation".to_owned());
    }
    Ok(Vec::new())
}

/// Attack case X47: disconnects while the program of a call runs.
pub(super) fn disconnect_during_call(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let sleeper = SleepingTestProgram::new()?;
    let request = client.call_request("exec.run", &sleeper.input)?;
    if attempt.route.transport == AttackTransport::Http {
        let addr = server.addr.context("no address")?;
        let stream = TcpStream::connect(addr)?;
        write_all(&mut &stream, &request.http.bytes(addr))?;
        sleeper.wait_for_start(server)?;
        if attempt.route.dialect == AttackDialect::Mcp2025 {
            // A client may resume a lost stream in its session, so the session must end.
            let mut end = client.codec.method_request("ping", &Value::Null).http;
            end.method = "DELETE".to_owned();
            end.body = Vec::new();
            client.post(&end)?;
        }
        drop(stream);
    } else {
        client.send(&request)?;
        sleeper.wait_for_start(server)?;
        client.close();
    }
    if attempt.route.transport == AttackTransport::Stdio {
        attempt.may_exit = true;
        if let Err(reason) = server.wait_for_exit() {
            attempt.failures.push(reason);
        }
    }
    if !sleeper.ends_within(Duration::from_secs(4)) {
        attempt.failures.push("the program still runs 4 s after the client left".to_owned());
    }
    if attempt.route.transport == AttackTransport::WebSocket {
        *client = connect(server.addr.context("no address")?, attempt.route)?;
    }
    Ok(Vec::new())
}

/// Attack case X52: runs a program on a system without Landlock and namespaces. The server must
/// report that, and refuse to run it if `require` is `strict`.
pub(super) fn run_without_sandbox(attempt: &mut AttackAttempt) -> CallResults {
    let sandboxed = attempt.launch.clone();
    attempt.launch.wrapper = ["perl", "-e", exploits::WITHOUT_SANDBOX].map(str::to_owned).into();
    let tool = attempt.variant.tool.clone();
    let input = attempt.variant.input.clone();
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    let mut result = call(&mut client, &tool, &input)?;
    attempt.check_alive_and_stop(&mut server, &mut client);
    result.is_judged = false;
    let records = std::fs::read_to_string(audit_log(&attempt.folders)).unwrap_or_default();
    let raw = String::from_utf8_lossy(&result.response.raw).to_lowercase();
    // Some contracts have no room for the report in a result. It is then only in the record.
    let is_reported = reports_missing_sandbox(&raw)
        || records.lines().any(|line| reports_missing_sandbox(&line.to_lowercase()));
    let finding = match is_reported || result.response.is_error {
        true => Ok(()),
        false => {
            let summary = summary(&result.response);
            Err(format!("the program ran unconfined without a report: {summary}"))
        }
    };
    attempt.record_finding("sandbox_report", finding);
    attempt.launch.config = format!("{}\n[sandbox]\nrequire = \"strict\"\n", attempt.launch.config);
    if let Ok(response) = call_new_server(attempt, &tool, &input)
        && !response.is_error
    {
        let summary = summary(&response);
        let reason = format!("the program ran under require = strict: {summary}");
        attempt.record_finding("sandbox_report", Err(reason));
    }
    // With the sandbox, a strict server starts. Otherwise, the refusal proves nothing.
    attempt.launch = AttackServerLaunch { config: attempt.launch.config.clone(), ..sandboxed };
    match call_new_server(attempt, &tool, &input) {
        Ok(response) if response.is_error => {
            attempt.notes.push(format!("strict refuses here too: {}", summary(&response)));
        }
        Ok(_) => {}
        Err(err) => {
            attempt.record_finding("sandbox_report", Err(format!("a strict server: {err:#}")));
        }
    }
    Ok(vec![result])
}

/// Starts a server with the attempt's settings, and calls a tool.
fn call_new_server(
    attempt: &mut AttackAttempt,
    tool: &str,
    input: &Value,
) -> anyhow::Result<AttackResponse> {
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    let response = client.call(tool, input);
    let log = String::from_utf8_lossy(&server.log()).into_owned();
    let response = response.with_context(|| log.lines().last().unwrap_or_default().to_owned())?;
    attempt.check_alive_and_stop(&mut server, &mut client);
    Ok(response)
}

/// Returns true if `text` reports that a layer of the sandbox is missing.
fn reports_missing_sandbox(text: &str) -> bool {
    let Some(at) = text.find("sandbox") else { return false };
    ["missing", "lacks", "none", "degraded", "unconfined", "not held", "off", "without"]
        .iter()
        .any(|word| text[at..].contains(word))
}

/// Starts a job that calls `tool`, and returns the id of the job.
fn start_job(client: &mut AttackClient, tool: &str, arguments: &Value) -> anyhow::Result<String> {
    let response = client.call("jobs.start", &json!({ "tool": tool, "arguments": arguments }))?;
    job_id_in(&response)
}

/// Returns the job id in a response.
pub(super) fn job_id_in(response: &AttackResponse) -> anyhow::Result<String> {
    if let Some(id) = response.data["job_id"].as_str() {
        return Ok(id.to_owned());
    }
    let words = response.text.split(|c: char| !c.is_ascii_hexdigit());
    let id = words.filter(|word| word.len() == 32).map(str::to_owned).next();
    id.with_context(|| format!("no job: {}", summary(response)))
}

/// Attack case J02: checks that the bits of many job ids are random.
pub(super) fn check_job_ids(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let mut ids = BTreeSet::new();
    let count = if client.is_stream() { attempt.length.repetitions(1000) } else { 200 };
    for _ in 0..count {
        ids.insert(start_job(client, "files.exists", &json!({ "path": "ok.txt" }))?);
    }
    let numbers: Vec<u128> =
        ids.iter().map(|id| u128::from_str_radix(id, 16)).collect::<Result<_, _>>()?;
    let mut finding = Ok(());
    if numbers.len() != count {
        finding = Err(format!("{} ids for {count} jobs", numbers.len()));
    }
    let biased_bits = (0..128).filter(|bit| {
        let ones = numbers.iter().filter(|id| **id >> bit & 1 == 1).count();
        !(count * 3 / 10..=count * 7 / 10).contains(&ones)
    });
    let biased_bits = biased_bits.count();
    if biased_bits > 0 {
        finding = Err(format!("{biased_bits} of 128 bits are not random"));
    }
    attempt.record_finding("entropy:128", finding);
    Ok(Vec::new())
}

/// Attack case J03: starts up to 500 jobs with endless output that expire as early as possible, and
/// waits until the server has removed the first one.
pub(super) fn check_job_expiry(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> CallResults {
    let mut first = None;
    for _ in 0..attempt.length.repetitions(500) {
        let input = json!({ "command": "yes", "timeout_ms": 100 });
        let task = json!({ "name": "exec_run", "arguments": input, "task": { "ttl": 1000 } });
        let request = client.codec.method_request("tools/call", &task);
        let response = client.send_and_wait(&request)?;
        let id = response.data["task"]["taskId"].as_str();
        let id = id.with_context(|| format!("no job: {}", summary(&response)))?;
        first.get_or_insert_with(|| id.to_owned());
    }
    let first = first.context("no job")?;
    let mut last = AttackResponse::default();
    let is_forgotten = wait_until(Duration::from_secs(100), || {
        sleep(Duration::from_millis(200));
        let Ok(response) = client.call("jobs.get", &json!({ "job_id": first })) else {
            return false;
        };
        last = response;
        last.is_error
    });
    if !is_forgotten {
        attempt.failures.push(format!("the first job is still known: {}", summary(&last)));
    }
    Ok(Vec::new())
}

/// Attack case J05: reads the output of a job at a negative and at a huge offset.
pub(super) fn read_odd_offsets(client: &mut AttackClient) -> CallResults {
    let id = start_job(client, "exec.run", &json!({ "command": "echo", "args": ["x"] }))?;
    client.call("jobs.get", &json!({ "job_id": id, "wait_ms": 5000 }))?;
    let negative = call(client, "jobs.output", &json!({ "job_id": id, "after": -1 }))?;
    let mut huge = call(client, "jobs.output", &json!({ "job_id": id, "after": u64::MAX }))?;
    huge.is_judged = false;
    Ok(vec![negative, huge])
}

/// Attack case J06: kills a server during a job, starts another, and asks it about the job.
pub(super) fn restart_during_job(attempt: &mut AttackAttempt) -> CallResults {
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    let sleeper = SleepingTestProgram::new()?;
    let id = start_job(&mut client, "exec.run", &sleeper.input)?;
    sleeper.wait_for_start(&server)?;
    server.kill();
    attempt.received.append(&mut client.received);
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    let mut last = AttackResponse::default();
    let is_interrupted = wait_until(Duration::from_secs(5), || {
        let Ok(response) = client.call("jobs.get", &json!({ "job_id": id })) else { return false };
        let raw = String::from_utf8_lossy(&response.raw).into_owned();
        last = response;
        raw.contains("interrupted") || raw.contains("the server stopped during the call")
    });
    let finding = match is_interrupted {
        true => Ok(()),
        false => Err(format!("the job is not interrupted: {}", summary(&last))),
    };
    attempt.record_finding("state:lost", finding);
    attempt.check_alive_and_stop(&mut server, &mut client);
    Ok(Vec::new())
}
