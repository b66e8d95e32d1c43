//! Tests of the sharing of an upstream's program between callers and sessions.

use serde_json::json;

use super::{launch, text, with_odds};
use crate::support::{
    HttpServerProcess, TestHttpRequest, call, initialize, is_alive, keys_of, legacy, wait_until,
};

const REVISION: &str = "2025-06-18";

/// Calls `tool` as `caller`, in `session` or without a session. Returns the process id of the
/// upstream program that answered.
#[track_caller]
fn program(served: &HttpServerProcess, tool: &str, caller: &str, session: Option<&str>) -> u32 {
    let post = match session {
        Some(session) => {
            let params = json!({ "name": tool, "arguments": {} });
            let post = TestHttpRequest::mcp(&legacy(1, "tools/call", params));
            post.with("mcp-protocol-version", REVISION).with("mcp-session-id", session)
        }
        None => TestHttpRequest::mcp(&call(1, tool, json!({}))),
    };
    text(&served.send(&post.with("x-api-key", &format!("{caller}-key"))).message()).parse().unwrap()
}

fn session(served: &HttpServerProcess, caller: &str) -> String {
    let post =
        TestHttpRequest::mcp(&initialize(0, REVISION)).with("x-api-key", &format!("{caller}-key"));
    served.send(&post).header("mcp-session-id").unwrap().to_owned()
}

#[test]
fn a_program_is_shared_by_all_callers_or_belongs_to_a_caller_or_session() {
    let keys = keys_of(&["ada", "bob"]);
    let workspace = with_odds(&[
        ("everyones", "", ""),
        ("callers", "", "shared_by = \"caller\""),
        ("sessions", "", &format!("shared_by = \"session\"\n{keys}")),
    ]);
    let served = launch(&workspace).served();
    let [one, two, bobs] = ["ada", "ada", "bob"].map(|caller| session(&served, caller));
    let callers = [("ada", Some(&*one)), ("ada", Some(&two)), ("bob", Some(&bobs)), ("bob", None)];
    let programs = |upstream: &str| {
        let tool = format!("{upstream}_pid");
        let programs = callers.map(|(caller, session)| program(&served, &tool, caller, session));
        let again = callers.map(|(caller, session)| program(&served, &tool, caller, session));
        assert_eq!(programs, again, "{upstream}");
        programs
    };
    let [one, two, bobs, stateless] = programs("everyones");
    assert!(one == two && two == bobs && bobs == stateless);
    let [one, two, bobs, stateless] = programs("callers");
    assert!(one == two && two != bobs && bobs == stateless);
    let [one, two, bobs, stateless] = programs("sessions");
    assert!(one != two && two != bobs && bobs != stateless && one != bobs && one != stateless);
}

#[test]
fn the_program_of_a_session_ends_with_its_session_only() {
    let more = format!("shared_by = \"session\"\n{}", keys_of(&["ada"]));
    let workspace = with_odds(&[("odd", "", &more)]);
    let served = launch(&workspace).served();
    let [one, other] = [session(&served, "ada"), session(&served, "ada")];
    let [first, second] = [&one, &other].map(|of| program(&served, "odd_pid", "ada", Some(of)));
    let end = TestHttpRequest::bare("DELETE", "/mcp").with("mcp-protocol-version", REVISION);
    served.send(&end.with("mcp-session-id", &one).with("x-api-key", "ada-key"));
    wait_until("it has ended", || !is_alive(first));
    assert!(is_alive(second));
    assert_eq!(program(&served, "odd_pid", "ada", Some(&other)), second);
}

#[test]
fn a_session_that_was_suspended_and_resumed_keeps_its_program() {
    let settings =
        format!("shared_by = \"session\"\n{}\n[server]\nconnections_max = 1", keys_of(&["ada"]));
    let workspace = with_odds(&[("odd", "", &settings)]);
    let served = launch(&workspace).served();
    let one = session(&served, "ada");
    let first = program(&served, "odd_pid", "ada", Some(&one));
    // With one connection, there are at most four sessions.
    for _ in 0..4 {
        let other = session(&served, "ada");
        program(&served, "odd_pid", "ada", Some(&other));
    }
    assert_eq!(program(&served, "odd_pid", "ada", Some(&one)), first);
}
