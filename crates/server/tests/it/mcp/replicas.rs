//! Tests of questions that one server asks, and that the client answers at another server with the
//! same session key (rows MR of the MCP checklist).

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use super::asking::{agree_again, questions, with_confirmations};
use super::code;
use crate::support::{MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, refusal};

/// Writes a session key that consists of `byte` into `folder`, and returns its path.
fn session_key(folder: &TempDir, byte: u8) -> String {
    let path = folder.path().join(format!("{byte}.key"));
    fs::write(&path, [byte; 32]).unwrap();
    path.display().to_string()
}

/// Starts a server with the session key in the file `key` and a state folder of its own. Returns
/// its client.
fn replica(workspace: &TempWorkspace, key: &str) -> TestMcpClient {
    TestMcpClient::http(
        with_confirmations(ServerLaunchOptions::over(workspace)).set("server_session_key", key),
        MODERN,
    )
}

/// Starts a server with the session key in the file `key` and the state folder `state`. Returns its
/// client.
fn replica_in(state: &TempDir, workspace: &TempWorkspace, key: &str) -> TestMcpClient {
    let launch = with_confirmations(ServerLaunchOptions::over(workspace)).with_state(state);
    TestMcpClient::http(launch.set("server_session_key", key), MODERN)
}

#[track_caller]
fn assert_used(answer: &Value) {
    assert_eq!(code(answer), -32602, "{answer}");
    assert!(refusal(answer).contains("already used"), "{answer}");
}

#[test]
fn mr5_a_confirmation_is_accepted_at_another_server_with_the_same_key() {
    let workspace = TempWorkspace::new();
    let keys = TempDir::new().unwrap();
    let key = session_key(&keys, 1);
    let [mut one, mut other] = [(); 2].map(|()| replica(&workspace, &key));
    let reply = questions(&mut one, "a");
    let state = &reply["requestState"];
    let answer = agree_again(&mut other, "b", &reply, state);
    assert_eq!(code(&answer), -32602, "of another request: {answer}");
    assert!(!workspace.path("b").exists());
    let done = agree_again(&mut other, "a", &reply, state);
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert_eq!(workspace.read("a"), "x");
    workspace.put("a", "meanwhile");
    assert_used(&agree_again(&mut other, "a", &reply, state));
    assert_eq!(workspace.read("a"), "meanwhile");
}

#[test]
fn mr5_a_confirmation_is_valid_once_at_servers_that_share_a_state_folder() {
    let workspace = TempWorkspace::new();
    let [keys, state_folder] = [(); 2].map(|()| TempDir::new().unwrap());
    let key = session_key(&keys, 1);
    let start = || replica_in(&state_folder, &workspace, &key);
    let [mut one, mut other] = [(); 2].map(|()| start());
    let reply = questions(&mut one, "a");
    let state = &reply["requestState"];
    let done = agree_again(&mut other, "a", &reply, state);
    assert_eq!(done["result"]["isError"], false, "{done}");
    workspace.put("a", "meanwhile");
    assert_used(&agree_again(&mut one, "a", &reply, state));
    // A server that starts later knows the key, too.
    drop((one, other));
    assert_used(&agree_again(&mut start(), "a", &reply, state));
    assert_eq!(workspace.read("a"), "meanwhile");
}

#[test]
fn mr5_an_open_question_survives_a_restart_with_the_same_key() {
    let workspace = TempWorkspace::new();
    let [keys, state_folder] = [(); 2].map(|()| TempDir::new().unwrap());
    let key = session_key(&keys, 1);
    let mut client = replica_in(&state_folder, &workspace, &key);
    let reply = questions(&mut client, "a");
    drop(client);
    let mut client = replica_in(&state_folder, &workspace, &key);
    let done = agree_again(&mut client, "a", &reply, &reply["requestState"]);
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert_eq!(workspace.read("a"), "x");
}

#[test]
fn mr5_a_state_of_a_server_with_another_key_is_refused() {
    let workspace = TempWorkspace::new();
    let keys = TempDir::new().unwrap();
    let mut one = replica(&workspace, &session_key(&keys, 1));
    let reply = questions(&mut one, "a");
    let state = &reply["requestState"];
    let other_key = replica(&workspace, &session_key(&keys, 2));
    let no_key =
        TestMcpClient::http(with_confirmations(ServerLaunchOptions::over(&workspace)), MODERN);
    for mut stranger in [other_key, no_key] {
        let answer = agree_again(&mut stranger, "a", &reply, state);
        assert_eq!(code(&answer), -32602, "{answer}");
        assert!(refusal(&answer).contains("another `server.session_key`"), "{answer}");
        assert!(!workspace.path("a").exists());
    }
    let done = agree_again(&mut one, "a", &reply, state);
    assert_eq!(done["result"]["isError"], false, "{done}");
}
