//! Tests of bytes that are not a message, and of messages that arrive in unusual pieces.

use serde_json::{Value, json};

use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestClientTransport, TestHttpRequest, TestMcpClient, call,
    legacy, modern, over_both, refusal, structured, text, wait_until,
};

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;

/// Checks that the server answers each of `bytes` with the error `code`, and then answers a valid
/// message.
fn check(code: i64, bytes: &[&[u8]]) {
    over_both(&TempWorkspace::new(), |client| {
        for bytes in bytes {
            let sent = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]);
            let answer = client.raw(bytes);
            assert_eq!(answer["error"]["code"], code, "{sent}: {answer}");
            let ids = [None, Some(&json!(1))];
            let id = answer.get("id");
            assert!(ids.contains(&id) && (id.is_none() || sent.contains("\"id\":1")), "{answer}");
            let read = client.call("files_read", json!({ "path": "README.md" }));
            assert_eq!(structured(&read)["content"], TempWorkspace::README, "after {sent}");
        }
    });
}

#[test]
fn invalid_json_is_a_parse_error_and_the_next_message_is_served() {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    check(
        PARSE_ERROR,
        &[
            b"\xff\xfe",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc3\x28\"}",
            b"not json",
            b"{",
            b"{\"jsonrpc\":\"2.0\"} {}",
            "[".repeat(10_000).as_bytes(),
            deep.as_bytes(),
        ],
    );
}

#[test]
fn json_that_is_not_a_message_is_an_invalid_request_and_the_next_message_is_served() {
    check(
        INVALID_REQUEST,
        &[
            b"1",
            b"null",
            b"\"ping\"",
            b"{}",
            b"[]",
            b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
            b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}",
            b"{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"ping\"}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"ping\"}",
        ],
    );
}

#[test]
fn an_invalid_message_is_answered_with_its_id() {
    let cases = [
        (json!({ "id": 1, "method": "ping" }), INVALID_REQUEST),
        (json!({ "jsonrpc": "1.0", "id": 1, "method": "ping" }), INVALID_REQUEST),
        (json!({ "jsonrpc": "2.0", "id": 1, "method": 5 }), INVALID_REQUEST),
        (json!({ "jsonrpc": "2.0", "id": 1 }), INVALID_REQUEST),
        (
            json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": [] }),
            INVALID_PARAMS,
        ),
        (json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }), INVALID_PARAMS),
    ];
    over_both(&TempWorkspace::new(), |client| {
        for (message, code) in &cases {
            let answer = client.exchange(message);
            assert_eq!(answer["error"]["code"], *code, "{message}: {answer}");
            assert_eq!(answer["id"], 1, "{message}: {answer}");
        }
    });
}

#[test]
fn an_unknown_method_is_named_in_the_error() {
    over_both(&TempWorkspace::new(), |client| {
        for method in ["tools/fly", "ping", "initialized", ""] {
            let answer = client.ask(method, json!({}));
            assert_eq!(answer["error"]["code"], -32601, "{answer}");
            assert!(refusal(&answer).contains(&format!("`{method}`")), "{answer}");
        }
    });
}

#[test]
fn an_id_of_any_type_is_returned_unchanged() {
    let ids = [
        json!(0),
        json!(-7),
        json!(9_007_199_254_740_993_u64),
        json!("7"),
        json!(""),
        json!("ü\n\""),
    ];
    over_both(&TempWorkspace::new(), |client| {
        for id in &ids {
            let answer = client.exchange(&modern(id.clone(), "server/discover", json!({})));
            assert_eq!(answer["id"], *id, "{answer}");
        }
    });
}

#[test]
fn an_id_in_flight_is_refused_and_the_first_call_is_answered() {
    let workspace = TempWorkspace::new();
    let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
    let wait =
        json!({ "command": "until [ -e go ]; do sleep 0.02; done; echo went", "shell": true });
    stdio.send(&call(7, "exec_run", wait));
    stdio.send(&call(7, "files_read", json!({ "path": "README.md" })));
    let refused = stdio.receive();
    assert!(refused.get("id").is_none(), "the id belongs to the call in flight: {refused}");
    assert!(refusal(&refused).contains("the request id 7 is already in use"), "{refused}");
    // A string id differs from the number that it spells.
    let read = stdio.ask(&call("7", "files_read", json!({ "path": "README.md" })));
    assert_eq!(structured(&read)["content"], TempWorkspace::README);

    workspace.put("go", "");
    assert_eq!(structured(&stdio.answer(7))["stdout"], "went\n");
    // The id is free again.
    let read = stdio.ask(&call(7, "files_read", json!({ "path": "README.md" })));
    assert_eq!(structured(&read)["content"], TempWorkspace::README);
}

#[test]
fn a_call_whose_id_is_in_flight_is_in_the_envelope_log() {
    let workspace = TempWorkspace::new();
    let launch = ServerLaunchOptions::over(&workspace).arg("--log-dir").arg(workspace.path("runs"));
    let mut stdio = launch.stdio();
    let wait = json!({ "command": "until [ -e go ]; do sleep 0.02; done", "shell": true });
    stdio.send(&call(7, "exec_run", wait));
    stdio.send(&call(7, "files_read", json!({ "path": "README.md" })));
    assert!(refusal(&stdio.receive()).contains("the request id 7 is already in use"));
    let log = workspace.path("runs/mcp_server/envelope_validation.latest.jsonl");
    let logged = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("it is logged", || logged().contains("files_read"));
    let logged = logged();
    let line = logged.lines().find(|line| line.contains("files_read")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["metadata"]["toolId"], "files_read");
    assert_eq!(line["error"]["details"]["reason"], "conflict");
    workspace.put("go", "");
    stdio.answer(7);
}

#[test]
fn an_id_in_flight_in_an_http_session_is_refused_and_the_first_call_is_answered() {
    let workspace = TempWorkspace::new();
    let client = TestMcpClient::http(ServerLaunchOptions::over(&workspace), "2025-11-25");
    let wait = json!({ "command": "touch began; until [ -e go ]; do sleep 0.02; done; echo went", "shell": true });
    let message = |tool, arguments| {
        let params = json!({ "name": tool, "arguments": arguments });
        legacy(7, "tools/call", params)
    };
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let mut first = served.connect();
    first.post(&client.post(&message("exec_run", wait)));
    wait_until("it runs", || workspace.path("began").exists());
    let refused = client.response(&message("files_read", json!({ "path": "README.md" }))).message();
    assert!(refusal(&refused).contains("the request id 7 is already in use"), "{refused}");
    // Each session has its own ids.
    let session = served.session("2025-11-25");
    let other = TestHttpRequest::mcp(&message("files_read", json!({ "path": "README.md" })));
    let other = served.send(&other.with("mcp-session-id", &session)).message();
    assert_eq!(structured(&other)["content"], TempWorkspace::README);

    workspace.put("go", "");
    assert_eq!(structured(&first.response().message())["stdout"], "went\n");
}

#[test]
fn lines_are_read_in_any_pieces_and_with_any_line_end() {
    let ping = |id: u32| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}");
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    stdio.write(format!("\n\r\n  \n\t\r\n{}\r\n\n", ping(1)).as_bytes());
    assert_eq!(stdio.receive()["id"], 1);

    let together: String = (2..50).map(|id| ping(id) + "\n").collect();
    stdio.write(together.as_bytes());
    for id in 2..50 {
        assert_eq!(stdio.answer(id)["result"], json!({}));
    }
    for byte in (ping(50) + "\n").bytes() {
        stdio.write(&[byte]);
    }
    assert_eq!(stdio.answer(50)["result"], json!({}));

    // The last line needs no line break.
    stdio.write(ping(51).as_bytes());
    stdio.close_input();
    assert_eq!(stdio.read_rest(), [json!({ "jsonrpc": "2.0", "id": 51, "result": {} })]);
    assert!(stdio.wait_for_exit().success());
}

#[test]
fn input_that_ends_within_a_line_is_an_error_and_earlier_lines_are_answered() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    stdio.send(&call(1, "files_read", json!({ "path": "README.md" })));
    stdio.write(b"{\"jsonrpc\":\"2.0\",\"id\":2,\"meth");
    stdio.close_input();
    let answers = stdio.read_rest();
    let codes: Vec<&Value> = answers.iter().map(|answer| &answer["error"]["code"]).collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(codes.contains(&&json!(PARSE_ERROR)), "{answers:?}");
    let read = answers.iter().find(|answer| answer["id"] == 1).unwrap();
    assert_eq!(structured(read)["content"], TempWorkspace::README);
    assert!(stdio.wait_for_exit().success());
}

#[test]
fn text_with_any_characters_is_returned_unchanged() {
    let odd = "line\u{2028}separator \u{85} \u{0} \u{1b}[31m 𝄞 \r\n tab\t end";
    let workspace = TempWorkspace::new().file("odd.txt", odd).file("ünï cødé.txt", "yes");
    over_both(&workspace, |client| {
        let read = client.call("files_read", json!({ "path": "odd.txt" }));
        assert_eq!(structured(&read)["content"], odd);
        assert!(text(&read).starts_with(odd), "{read}");
        let read = client.call("files_read", json!({ "path": "ünï cødé.txt" }));
        assert_eq!(structured(&read)["content"], "yes");
    });
}
