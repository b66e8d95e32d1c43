//! Tests of the sandbox from inside confined programs, with the real toolgate program.

mod files;
mod git;
mod places;
mod standby;
mod kernel;
mod network;
mod hosts;
mod inspected;
mod ssh;
mod presets;
mod package_servers;
mod processes;
mod exits;
mod reports;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, call, wait_until};

/// Starts a server whose programs run with the sandbox profile `profile`, and returns its client.
fn confined_client(workspace: &TempWorkspace, profile: &str) -> TestMcpClient {
    TestMcpClient::stdio(
        ServerLaunchOptions::over(workspace).set("sandbox_profile", profile),
        MODERN,
    )
}

/// Result of a program that ran in the sandbox.
struct SandboxedProgramResult {
    code: i64,
    stdout: String,
    stderr: String,
    value: Value,
}

fn run(client: &mut TestMcpClient, input: Value) -> SandboxedProgramResult {
    let answer = client.call("exec_run", input);
    let value = answer["result"]["structuredContent"].clone();
    assert!(value.is_object(), "{answer}");
    let text = |name: &str| value[name].as_str().unwrap().to_owned();
    let code = value["exit_code"].as_i64().unwrap();
    SandboxedProgramResult { code, stdout: text("stdout"), stderr: text("stderr"), value }
}

fn sh(client: &mut TestMcpClient, script: &str) -> SandboxedProgramResult {
    run(client, json!({ "command": "sh", "args": ["-c", script] }))
}

/// Runs a Perl script and returns its output. Perl can make system calls by number.
fn perl(client: &mut TestMcpClient, script: &str) -> String {
    let result = run(client, json!({ "command": "/usr/bin/perl", "args": ["-e", script] }));
    assert!(result.stderr.is_empty(), "{}", result.stderr);
    result.stdout
}

/// Returns the reason why programs of `client` run without the sandbox layer `layer`, or `None` if
/// they have it.
fn missing_layer(client: &mut TestMcpClient, layer: &str) -> Option<Value> {
    let result = run(client, json!({ "command": "true" }));
    let missing = result.value["sandbox"]["missing"].as_array().cloned().unwrap_or_default();
    missing.into_iter().find(|it| it["layer"] == layer).map(|it| it["why"].clone())
}

/// Returns true if this system supports the sandbox layer `layer`. If not, prints that the test was
/// skipped. Panics if only the server of `client` lacks the layer.
fn has_layer(client: &mut TestMcpClient, layer: &str) -> bool {
    let Some(why) = missing_layer(client, layer) else { return true };
    let workspace = TempWorkspace::new();
    let mut plain = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    assert!(missing_layer(&mut plain, layer).is_some(), "only this server lacks `{layer}`: {why}");
    eprintln!("NOT TRIED: this system lacks `{layer}`: {why}");
    false
}

/// Returns `client` if this system supports the sandbox layer `layer`. If not, prints that the test
/// was skipped.
fn with_layer(mut client: TestMcpClient, layer: &str) -> Option<TestMcpClient> {
    has_layer(&mut client, layer).then_some(client)
}

/// Returns a client with the sandbox profile `workspace` if this system supports the sandbox layer
/// `layer`.
fn confined_with_layer(workspace: &TempWorkspace, layer: &str) -> Option<TestMcpClient> {
    with_layer(confined_client(workspace, "workspace"), layer)
}
