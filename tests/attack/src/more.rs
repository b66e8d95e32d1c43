//! The cases of our own, in `more.jsonl`.

use std::fs;
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::case::Case;
use super::client::{Client, open};
use super::names::Form;
use super::play::{Came, Play, call};
use super::running::id_in;
use super::server::{Server, sh};
use super::spoken::{Dialect, Over, Way};
use super::{cases, oracle, traps};

/// A command that is declared for the attack: a line for a shell.
const DECLARED: &str = "[command.\"attack.line\"]\nabout = \"Runs a line.\"\nprogram = \"sh\"\n\
     argv = [\"-c\", \"{line}\"]\n[command.\"attack.line\".args]\n\
     line = { schema = { type = \"string\" }, required = true, dash = true }\n";

/// Whether a case that is no call of a tool is played by this way.
pub(super) fn is_for(case: &Case, way: Way) -> bool {
    let kind = case.input["kind"].as_str().unwrap_or_default();
    let plain = Way { dialect: Dialect::Mcp2026, over: Over::Http };
    match kind {
        "connections" => way == plain,
        "told" => way.over == Over::Stdio && way.dialect != Dialect::Synesthetic,
        _ => false,
    }
}

/// Whether a form of a case is enough by fewer ways: what matters is the tool, not the wire.
pub(super) fn is_enough_elsewhere(form: &Form, way: Way) -> bool {
    let two = [
        Way { dialect: Dialect::Mcp2026, over: Over::Stdio },
        Way { dialect: Dialect::Mira, over: Over::Http },
    ];
    matches!(form.label.as_str(), "ci.run" | "declared" | "job") && !two.contains(&way)
}

pub(super) fn prepare(play: &mut Play) -> anyhow::Result<()> {
    for line in &play.case.setup {
        sh(&play.stage.ws, &play.stage.fill(line))?;
    }
    if play.form.label == "declared" {
        play.launch.config = DECLARED.to_owned();
    }
    match play.case.id.as_str() {
        "M20" => {
            play.form.input["args"] = json!(["-e", traps::VSOCK]);
        }
        "M21" => play.form.input["args"] = json!(["-e", traps::VM_READ]),
        "M22" => {
            let port = play.ears.tcp()?;
            play.form.input["args"] = json!(["-e", traps::tcp(port)]);
        }
        "M16" => killing_all(play)?,
        // Small bounds: a machine is not to be filled to see that one holds.
        "M14" => play.launch.config = "[sandbox]\nprocesses = 100\n".to_owned(),
        "M15" => play.launch.config = "[sandbox]\nmemory_bytes = 268435456\n".to_owned(),
        "M40" => {
            let canary = play.stage.canary.clone();
            play.launch.env("ATTACK_SECRET", canary);
            play.launch.config = "[secrets]\nvalues_from = [\"ATTACK_SECRET\"]\n".to_owned();
            fs::write(play.stage.ws.join("printed.txt"), &play.stage.canary)?;
        }
        _ => {}
    }
    Ok(())
}

/// Puts the server into processes of its own, of which it is not the first: that one is spared.
fn killing_all(play: &mut Play) -> anyhow::Result<()> {
    let apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if sh(&play.stage.base, &format!("{} true", apart.join(" "))).is_err() {
        play.skipped = Some("this user may not have processes of their own".to_owned());
    }
    let inner = ["sh", "-c", "\"$@\"; exit $?", "sh"];
    play.launch.wrapper = apart.iter().chain(&inner).map(|word| (*word).to_owned()).collect();
    Ok(())
}

/// Plays a case of ours that starts its servers itself.
pub(super) fn without_server(play: &mut Play, id: &str) -> Option<anyhow::Result<Vec<Came>>> {
    match id {
        "M30" => Some(swapped_cwd(play)),
        _ => None,
    }
}

pub(super) fn perform(
    play: &mut Play,
    server: &mut Server,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    match play.case.input["kind"].as_str() {
        Some("connections") => silent(play, server, client),
        Some("told") => told(play, client),
        _ => match play.form.label.as_str() {
            "job" => job(play, client),
            _ => cases::once(play, client),
        },
    }
}

/// The program as a job, to its end.
fn job(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let form = play.form.clone();
    let said = client.call(&form.tool, &form.input)?;
    let id = id_in(&said)?;
    let came = call(client, "jobs.get", &json!({ "job_id": id, "wait_ms": 20_000 }))?;
    if !play.stage.ws.join("tried").exists() && form.input.to_string().contains("tried") {
        play.wrong.push(format!("the job did not run: {}", oracle::brief(&came.said)));
    }
    Ok(vec![came])
}

/// What stands in no result because it was not there: descriptions say nothing of the machine.
fn told(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let listed = Value::from(client.tools()?).to_string();
    for secret in [&play.stage.home, &play.stage.ws] {
        if listed.contains(&*secret.to_string_lossy()) {
            play.wrong.push(format!("the list of tools says {}", secret.display()));
        }
    }
    Ok(vec![Came { judged: true, ..Came::default() }])
}

/// Connections that say nothing, as many as there is room for and more.
fn silent(play: &mut Play, server: &mut Server, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let addr = server.addr.context("no address")?;
    let mut streams = Vec::new();
    for _ in 0..1100 {
        let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_secs(5)) else { break };
        streams.push(stream);
    }
    if streams.len() < 1100 {
        play.wrong.push(format!("the harness: only {} connections", streams.len()));
    }
    let begun = std::time::Instant::now();
    let answered = client.ping();
    let took = begun.elapsed();
    if answered.is_err() || took > Duration::from_secs(2) {
        play.wrong.push(format!("beside {} silent connections it takes {took:?}", streams.len()));
    }
    Ok(vec![Came { judged: true, took, ..Came::default() }])
}

/// The folder to start in becomes a link out while programs start there.
fn swapped_cwd(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let ws = play.stage.ws.clone();
    fs::create_dir(ws.join("x"))?;
    fs::write(ws.join("x/secret"), "inside")?;
    std::os::unix::fs::symlink(&play.stage.evil, ws.join("xl"))?;
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    let (going, swaps) = super::setups::exchanging(&ws.join("x"), &ws.join("xl"));
    let input = json!({ "command": "cat", "args": ["secret"], "cwd": "x" });
    let mut inside = 0;
    let mut leaks = 0;
    for _ in 0..150 {
        let said = client.call("exec.run", &input)?;
        let raw = String::from_utf8_lossy(&said.raw).into_owned();
        inside += u32::from(raw.contains("inside") && !said.error);
        leaks += u32::from(raw.contains(&play.stage.canary));
    }
    drop(going);
    let found = match (inside, leaks) {
        (1.., 0) => Ok(()),
        (0, 0) => Err("it never ran inside".to_owned()),
        (_, leaks) => Err(format!("{leaks} of 150 programs ran outside")),
    };
    play.show("race:no_canary", found);
    play.notes.push(format!(
        "{inside} ran inside, {} swaps",
        swaps.load(std::sync::atomic::Ordering::Relaxed)
    ));
    play.after(&mut server, &mut client);
    Ok(Vec::new())
}

/// T02: a declared tool with the name of one that is built in, from the folder that is served and
/// from the operator's own settings, and one that is declared twice.
pub(super) fn shadowed(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let table = |name: &str| {
        format!(
            "[command.\"{name}\"]\nabout = \"Not what it was.\"\nprogram = \"echo\"\n\
             argv = [\"shadowed\", \"{{path}}\"]\n[command.\"{name}\".args]\npath = \"string!\"\n"
        )
    };
    let twice = format!("{}{}", table("a.b"), table("a_b"));
    let all = [
        ("files.read", "files.read", table("files.read")),
        ("exec.run", "exec.run", table("exec.run")),
        ("files_read", "files.read", table("files_read")),
        ("FILES.read", "files.read", table("FILES.read")),
        ("one name twice", "a.b", twice),
    ];
    // The same table by a name of its own is taken, or the others were refused for another reason.
    play.launch.config = table("attack.echo");
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    let said = client.call("attack.echo", &json!({ "path": "ok.txt" })).with_context(|| {
        format!("the harness: {}", String::from_utf8_lossy(&server.log()).trim())
    })?;
    if !String::from_utf8_lossy(&said.raw).contains("shadowed") {
        play.wrong.push(format!("the harness: its table is no tool: {}", oracle::brief(&said)));
    }
    play.stop(&mut server, &mut client);
    let mut found = Ok(());
    for (name, tool, config) in all {
        for within in [true, false] {
            let file = play.stage.ws.join("toolgate.toml");
            play.launch.config = if within { String::new() } else { config.clone() };
            if within {
                fs::write(&file, &config)?;
            } else {
                _ = fs::remove_file(&file);
            }
            if let Some(why) = taken(play, tool)? {
                let place = if within { "the folder's" } else { "the operator's" };
                found = Err(format!("{name} in {place} settings: {why}"));
            }
        }
    }
    play.show("config_rejected", found);
    // A server without it is started, so that the seals have what to look at.
    _ = fs::remove_file(play.stage.ws.join("toolgate.toml"));
    play.launch.config = String::new();
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    play.after(&mut server, &mut client);
    Ok(Vec::new())
}

/// How the declared tool came to stand for the built-in one; none if it did not.
fn taken(play: &mut Play, tool: &str) -> anyhow::Result<Option<String>> {
    let mut command = play.launch.command(&play.stage, &["check-config"])?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // `check-config` takes the folder as `stdio` does.
    let checked = command.stderr(Stdio::null()).status()?;
    let Ok((mut server, mut client)) = open(&play.launch, &play.stage, play.way) else {
        return Ok(None);
    };
    if !server.is_running() || client.ping().is_err() {
        return Ok(None);
    }
    let why = match client.call(tool, &json!({ "path": "ok.txt" })) {
        Ok(said) if String::from_utf8_lossy(&said.raw).contains("shadowed") => {
            Some("it took the built-in tool's place".to_owned())
        }
        Ok(_) if checked.success() => {
            Some("it is neither refused nor told (check-config says 0)".to_owned())
        }
        Ok(_) | Err(_) => None,
    };
    client.close();
    server.kill();
    Ok(why)
}
