//! Programs and jobs that outlive what they may, and what is told of them.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::cases::until;
use super::client::{Client, open};
use super::play::{Came, Play, call};
use super::seals::descendants;
use super::server::{Server, audit};
use super::spoken::{Dialect, Over, Said};
use super::stage::random;
use super::traps;

/// How long a program may take to be seen to run.
const SEEN: Duration = Duration::from_secs(10);

/// A program that sleeps for minutes and is known by its argument.
fn sleeper() -> anyhow::Result<(Value, String)> {
    let word = format!("300.{}", u64::from_str_radix(&random(4)?, 16)?);
    Ok((json!({ "command": "sleep", "args": [word] }), word))
}

/// Whether a program beneath the server has this word on its command line.
pub(super) fn runs(server: &Server, word: &str) -> bool {
    descendants(server.pid()).iter().any(|(_, line)| line.contains(word))
}

/// X46: a call is cancelled while its program runs.
pub(super) fn cancelled(
    play: &mut Play,
    server: &mut Server,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    let (input, word) = sleeper()?;
    let asked = client.calling("exec.run", &input)?;
    let gone = || !descendants(std::process::id()).iter().any(|(_, line)| line.contains(&word));
    if client.is_line() {
        client.send(&asked)?;
        begun(until(SEEN, || runs(server, &word)))?;
        let params = json!({ "requestId": asked.id, "reason": "attack" });
        let note =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        client.write(format!("{note}\n").as_bytes())?;
        if !until(Duration::from_secs(1), gone) {
            play.wrong.push("it still runs 1 s after it was cancelled".to_owned());
        }
        if let Some(said) = client.answer(asked.id, Duration::from_millis(500))? {
            let said = super::oracle::brief(&said);
            play.wrong.push(format!("it was answered after it was cancelled: {said}"));
        }
        return Ok(Vec::new());
    }
    // In a session a notification says so; without one, leaving does.
    let addr = server.addr.context("no address")?;
    let stream = std::net::TcpStream::connect(addr)?;
    let mut request = asked.request.clone();
    request.headers.extend(client.headers.iter().cloned());
    super::server::put(&mut &stream, &request.bytes(addr))?;
    begun(until(SEEN, || runs(server, &word)))?;
    if play.way.dialect == Dialect::Mcp2025 {
        let mut note = client.spoken.rpc("notifications/cancelled", &Value::Null);
        let params = json!({ "requestId": asked.id });
        let body =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        note.request.body = body.to_string().into_bytes();
        client.post(&note.request)?;
    } else {
        drop(stream);
    }
    if !until(Duration::from_millis(1500), gone) {
        play.wrong.push("it still runs after it was cancelled".to_owned());
    }
    Ok(Vec::new())
}

fn begun(seen: bool) -> anyhow::Result<()> {
    if seen { Ok(()) } else { bail!("the program is not seen to run") }
}

/// X47: the client leaves while its program runs.
pub(super) fn left(
    play: &mut Play,
    server: &mut Server,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    let (input, word) = sleeper()?;
    let asked = client.calling("exec.run", &input)?;
    if play.way.over == Over::Http {
        let addr = server.addr.context("no address")?;
        let stream = std::net::TcpStream::connect(addr)?;
        super::server::put(&mut &stream, &asked.request.bytes(addr))?;
        begun(until(SEEN, || runs(server, &word)))?;
        if play.way.dialect == Dialect::Mcp2025 {
            // In a session a client that lost its stream may come back: the session ends instead.
            let mut end = client.spoken.rpc("ping", &Value::Null).request;
            end.method = "DELETE".to_owned();
            end.body = Vec::new();
            client.post(&end)?;
        }
        drop(stream);
    } else {
        client.send(&asked)?;
        begun(until(SEEN, || runs(server, &word)))?;
        client.close();
    }
    if play.way.over == Over::Stdio {
        play.may_die = true;
        if let Err(why) = server.ended() {
            play.wrong.push(why);
        }
    }
    let gone = || !descendants(std::process::id()).iter().any(|(_, line)| line.contains(&word));
    if !until(Duration::from_secs(4), gone) {
        play.wrong.push("it still runs 4 s after the client left".to_owned());
    }
    if play.way.over == Over::Socket {
        // The server lives on, without this client.
        *client = super::client::join(server.addr.context("no address")?, play.way)?;
    }
    Ok(Vec::new())
}

/// X52: neither Landlock nor namespaces: it is told, and refused where that is asked for.
pub(super) fn without_sandbox(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let plain = play.launch.clone();
    play.launch.wrapper = ["perl", "-e", traps::WITHOUT_SANDBOX].map(str::to_owned).into();
    let tool = play.form.tool.clone();
    let input = play.form.input.clone();
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    let mut came = call(&mut client, &tool, &input)?;
    play.after(&mut server, &mut client);
    came.judged = false;
    let records = std::fs::read_to_string(audit(&play.stage)).unwrap_or_default();
    let raw = String::from_utf8_lossy(&came.said.raw).to_lowercase();
    // Where a contract gives the result its keys, the record says it.
    let told = tells(&raw) || records.lines().any(|line| tells(&line.to_lowercase()));
    let silent = !came.said.error && !told;
    let found = match silent {
        true => Err(format!(
            "it ran unconfined and nobody was told: {}",
            super::oracle::brief(&came.said)
        )),
        false => Ok(()),
    };
    play.show("sandbox_report", found);
    play.launch.config = format!("{}\n[sandbox]\nrequire = \"strict\"\n", play.launch.config);
    if let Ok(said) = tried(play, &tool, &input)
        && !said.error
    {
        let said = super::oracle::brief(&said);
        let why = format!("it ran all the same under require = strict: {said}");
        play.show("sandbox_report", Err(why));
    }
    // Where nothing is missing a strict server starts, or it was refused for another reason.
    play.launch = super::server::Launch { config: play.launch.config.clone(), ..plain };
    match tried(play, &tool, &input) {
        Ok(said) if said.error => {
            play.notes.push(format!("strict refuses here too: {}", super::oracle::brief(&said)));
        }
        Ok(_) => {}
        Err(err) => play.show("sandbox_report", Err(format!("a strict server: {err:#}"))),
    }
    Ok(vec![came])
}

/// What a server that is started for this says, if it starts.
fn tried(play: &mut Play, tool: &str, input: &Value) -> anyhow::Result<Said> {
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    let said = client.call(tool, input);
    let log = String::from_utf8_lossy(&server.log()).into_owned();
    let said = said.with_context(|| log.lines().last().unwrap_or_default().to_owned())?;
    play.after(&mut server, &mut client);
    Ok(said)
}

/// Whether it is said that a sandbox lacks something.
fn tells(text: &str) -> bool {
    let Some(at) = text.find("sandbox") else { return false };
    ["missing", "lacks", "none", "degraded", "unconfined", "not held", "off", "without"]
        .iter()
        .any(|word| text[at..].contains(word))
}

/// Starts a job; its id.
fn job(client: &mut Client, tool: &str, arguments: &Value) -> anyhow::Result<String> {
    let said = client.call("jobs.start", &json!({ "tool": tool, "arguments": arguments }))?;
    id_in(&said)
}

/// The id of a job in what was said.
pub(super) fn id_in(said: &Said) -> anyhow::Result<String> {
    if let Some(id) = said.data["job_id"].as_str() {
        return Ok(id.to_owned());
    }
    let words = said.text.split(|c: char| !c.is_ascii_hexdigit());
    let id = words.filter(|word| word.len() == 32).map(str::to_owned).next();
    id.with_context(|| format!("no job: {}", super::oracle::brief(said)))
}

/// J02: ids that cannot be guessed.
pub(super) fn ids(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let mut ids = BTreeSet::new();
    let count: usize = if client.is_line() { 1000 } else { 200 };
    for _ in 0..count {
        ids.insert(job(client, "files.exists", &json!({ "path": "ok.txt" }))?);
    }
    let bits: Vec<u128> =
        ids.iter().map(|id| u128::from_str_radix(id, 16)).collect::<Result<_, _>>()?;
    let mut found = Ok(());
    if bits.len() != count {
        found = Err(format!("{} ids for {count} jobs", bits.len()));
    }
    let stuck: Vec<u32> = (0..128)
        .filter(|bit| {
            let set = bits.iter().filter(|id| **id >> bit & 1 == 1).count();
            !(count * 3 / 10..=count * 7 / 10).contains(&set)
        })
        .collect();
    if !stuck.is_empty() {
        found = Err(format!("{} of 128 bits are not random", stuck.len()));
    }
    play.show("entropy:128", found);
    Ok(Vec::new())
}

/// J03: five hundred jobs that print without end, and what is kept of them.
pub(super) fn kept(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let mut first = None;
    for _ in 0..500 {
        let id = job(client, "exec.run", &json!({ "command": "yes", "timeout_ms": 100 }))?;
        first.get_or_insert(id);
    }
    let first = first.context("no job")?;
    let mut last = Said::default();
    let gone = until(Duration::from_secs(100), || {
        sleep(Duration::from_millis(200));
        let Ok(said) = client.call("jobs.get", &json!({ "job_id": first })) else { return false };
        let gone = said.error;
        last = said;
        gone
    });
    if !gone {
        play.wrong.push(format!("the first job is not forgotten: {}", super::oracle::brief(&last)));
    }
    Ok(Vec::new())
}

/// J05: offsets that nobody means.
pub(super) fn offsets(_play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let id = job(client, "exec.run", &json!({ "command": "echo", "args": ["x"] }))?;
    let wait = json!({ "job_id": id, "wait_ms": 5000 });
    client.call("jobs.get", &wait)?;
    let came = call(client, "jobs.output", &json!({ "job_id": id, "after": -1 }))?;
    let huge = json!({ "job_id": id, "after": u64::MAX });
    let mut beyond = call(client, "jobs.output", &huge)?;
    beyond.judged = false;
    Ok(vec![came, beyond])
}

/// J06: what a server says of a job that another, killed, was running.
pub(super) fn restarted(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    let (input, word) = sleeper()?;
    let id = job(&mut client, "exec.run", &input)?;
    begun(until(SEEN, || runs(&server, &word)))?;
    server.kill();
    play.heard.append(&mut client.heard);
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    let mut last = Said::default();
    let told = until(Duration::from_secs(5), || {
        let Ok(said) = client.call("jobs.get", &json!({ "job_id": id })) else { return false };
        let raw = String::from_utf8_lossy(&said.raw).into_owned();
        last = said;
        raw.contains("interrupted") || raw.contains("the server stopped during the call")
    });
    let found = match told {
        true => Ok(()),
        false => Err(format!("it is told to be {}", super::oracle::brief(&last))),
    };
    play.show("state:lost", found);
    play.after(&mut server, &mut client);
    Ok(Vec::new())
}
