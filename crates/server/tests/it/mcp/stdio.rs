//! Tests of messages over standard input and output (rows T of the MCP checklist).

use serde_json::{Value, json};

use super::{code, meta_with_capabilities};
use crate::support::{
    NOTHING, ServerLaunchOptions, StdioServerProcess, TempWorkspace, call, initialize, legacy,
    modern, notification, structured,
};

fn start_fresh() -> StdioServerProcess {
    ServerLaunchOptions::over(&TempWorkspace::new()).stdio()
}

#[test]
fn t1_a_message_is_one_line_whatever_its_content() {
    let text = "one\ntwo\r\nthree\u{2028}four\u{85}";
    let workspace = TempWorkspace::new().file("lines", text);
    let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
    // Each line that is read must be a whole message.
    let answer = stdio.ask(&call(1, "files_read", json!({ "path": "lines" })));
    assert_eq!(structured(&answer)["content"], text);
}

#[test]
fn a_byte_order_mark_before_a_message_is_ignored() {
    let mut stdio = start_fresh();
    let marked = |message: &Value| format!("\u{feff}{message}\n").into_bytes();
    stdio.write(&marked(&initialize(1, "2025-06-18")));
    assert_eq!(stdio.answer(1)["result"]["protocolVersion"], "2025-06-18");
    stdio.write("\u{feff}\r\n".as_bytes());
    stdio.write(&marked(&json!({ "jsonrpc": "2.0", "id": 2, "method": "ping", "params": null })));
    assert_eq!(stdio.answer(2)["result"], json!({}));
}

#[test]
fn t3_the_server_sends_no_requests_in_the_stateless_revision() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new())
        .set("tools_confirm", "files.write")
        .stdio();
    let everything =
        json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} });
    let write = json!({ "path": "a", "content": "a" });
    let params = json!({ "name": "files_write", "arguments": write, "_meta": meta_with_capabilities(everything) });
    stdio.send(&modern(1, "tools/call", params));
    stdio.send(&modern(2, "tools/list", json!({})));
    stdio.send(&call(3, "files_read", json!({ "path": "README.md" })));
    stdio.close_input();
    let messages = stdio.read_rest();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(messages.iter().all(|message| message.get("method").is_none()), "{messages:?}");
}

#[test]
fn t4_notifications_belong_to_a_request_in_flight() {
    let mut stdio = start_fresh();
    let script = "for n in 1 2 3; do echo $n; sleep 0.2; done";
    let params = json!({
        "name": "exec_run",
        "arguments": { "command": script, "shell": true },
        "_meta": { "progressToken": "mine" },
    });
    stdio.send(&modern("a", "tools/call", params));
    stdio.send(&call("b", "files_read", json!({ "path": "README.md" })));
    stdio.close_input();
    let messages = stdio.read_rest();
    let end = messages.iter().position(|message| message["id"] == "a").unwrap();
    for (at, message) in messages.iter().enumerate().filter(|(_, one)| one.get("method").is_some())
    {
        assert_eq!(message["params"]["progressToken"], "mine", "{message}");
        assert!(at < end, "after its request was answered: {messages:?}");
    }
}

#[test]
fn t5_a_cancelled_request_is_not_answered() {
    let workspace = TempWorkspace::new();
    let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
    let script = "touch began; sleep 60";
    stdio.send(&call(1, "exec_run", json!({ "command": script, "shell": true })));
    crate::support::wait_until("it begins", || workspace.path("began").exists());
    stdio.send(&notification("notifications/cancelled", json!({ "requestId": 1, "reason": "it" })));
    assert!(stdio.ask(&modern(2, "server/discover", json!({})))["result"].is_object());
    stdio.close_input();
    assert_eq!(stdio.read_rest(), NOTHING);
}

#[test]
fn t6_the_server_ends_at_once_when_its_input_ends() {
    for first in [
        None,
        Some(modern(1, "server/discover", json!({}))),
        Some(initialize(1, "2025-11-25")),
        Some(modern(1, "subscriptions/listen", json!({ "notifications": {} }))),
    ] {
        let mut stdio = start_fresh();
        if let Some(first) = first {
            stdio.send(&first);
            stdio.receive();
        }
        stdio.close_input();
        assert!(stdio.wait_for_exit().success());
    }
}

#[test]
fn t7_a_handshake_selects_sessions_and_stateless_requests_still_work() {
    let mut stdio = start_fresh();
    let bare = legacy(1, "tools/list", json!({}));
    assert_eq!(code(&stdio.ask(&bare)), -32602);
    assert!(stdio.ask(&modern(2, "server/discover", json!({})))["result"].is_object());
    assert_eq!(stdio.ask(&initialize(3, "2025-06-18"))["result"]["protocolVersion"], "2025-06-18");
    let is_stateless = |answer: &Value| answer["result"].get("resultType").is_some();
    assert!(!is_stateless(&stdio.ask(&legacy(4, "tools/list", json!({})))));
    assert!(is_stateless(&stdio.ask(&modern(5, "tools/list", json!({})))));
    assert!(!is_stateless(&stdio.ask(&legacy(6, "tools/list", json!({})))));
}

#[test]
fn c2_an_unknown_or_invalid_cancellation_is_ignored() {
    let mut stdio = start_fresh();
    for params in [
        json!({}),
        json!({ "requestId": null }),
        json!({ "requestId": 1.5 }),
        json!({ "requestId": ["a"] }),
        json!({ "requestId": "nobody" }),
        json!({ "requestId": 1, "reason": 5 }),
        json!([]),
        json!("x"),
    ] {
        stdio.send_malformed(&notification("notifications/cancelled", params));
    }
    stdio.send_malformed(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled" }));
    let last = stdio.ask(&modern("last", "server/discover", json!({})));
    assert!(last["result"].is_object(), "{last}");
    stdio.close_input();
    // Malformed notifications may get an error without an id.
    for message in stdio.read_rest() {
        assert!(message.get("id").is_none() && message["error"].is_object(), "{message}");
    }
}
