//! What a confined program can do, from inside one: the binary is real, and so are the attempts.

mod files;
mod git;
mod places;
mod standby;
mod kernel;
mod network;
mod processes;
mod ends;
mod reports;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Launch, MODERN, Workspace, call, wait_until};

/// A client whose programs are confined as `profile` says.
fn confined(workspace: &Workspace, profile: &str) -> Client {
    Client::stdio(Launch::over(workspace).set("sandbox_profile", profile), MODERN)
}

/// What came of a script.
struct Ran {
    code: i64,
    stdout: String,
    stderr: String,
    value: Value,
}

fn run(client: &mut Client, input: Value) -> Ran {
    let answer = client.call("exec_run", input);
    let value = answer["result"]["structuredContent"].clone();
    assert!(value.is_object(), "{answer}");
    let text = |name: &str| value[name].as_str().unwrap().to_owned();
    let code = value["exit_code"].as_i64().unwrap();
    Ran { code, stdout: text("stdout"), stderr: text("stderr"), value }
}

fn sh(client: &mut Client, script: &str) -> Ran {
    run(client, json!({ "command": "sh", "args": ["-c", script] }))
}

/// What a script of Perl prints, which makes system calls by their numbers.
fn perl(client: &mut Client, script: &str) -> String {
    let ran = run(client, json!({ "command": "/usr/bin/perl", "args": ["-e", script] }));
    assert!(ran.stderr.is_empty(), "{}", ran.stderr);
    ran.stdout
}

/// Whether this system holds `layer` for programs; where it does not, that is said aloud.
fn holds(client: &mut Client, layer: &str) -> bool {
    let ran = run(client, json!({ "command": "true" }));
    let missing = ran.value["sandbox"]["missing"].as_array().cloned().unwrap_or_default();
    let lacks = missing.iter().find(|it| it["layer"] == layer);
    if let Some(lacks) = lacks {
        eprintln!("NOT TRIED: this system lacks `{layer}`: {}", lacks["why"]);
    }
    lacks.is_none()
}
