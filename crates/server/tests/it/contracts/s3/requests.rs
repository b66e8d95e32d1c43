//! Tests of JSON-RPC in the Mira contract: requests, answers, ids and malformed requests.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{MiraClient, MiraServer, MiraTransport, over_all};
use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpConnection, TestHttpRequest, sleeps,
};

#[test]
fn s3_01_02_04_05_08_40_a_request_is_answered_with_its_id_on_every_transport() {
    let workspace = TempWorkspace::new().file("src/main.rs", "fn main() {}\n");
    over_all(&workspace, |mira| {
        let started = Instant::now();
        // As Mira writes it, key by key.
        let read =
            br#"{ "jsonrpc": "2.0", "method": "files/read", "params": {"path": "src/main.rs"}, "id": 2 }"#;
        let answer = mira.raw(read).unwrap();
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(2)));
        assert_eq!(answer["result"]["content"], "fn main() {}\n");
        for id in [json!(1), json!("a"), json!("1"), json!(0), json!(-7), json!("")] {
            let request = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" });
            let answer = mira.exchange(&request);
            assert!(answer["result"]["tools"].is_array(), "{answer}");
        }
        // Parameters are left out where there are none.
        assert!(mira.get("tools/list", Value::Null)["tools"].is_array());
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    });
}

#[test]
fn s3_05_an_id_is_returned_as_written() {
    let server = MiraServer::over(&TempWorkspace::new());
    let ids = ["1", "1.50", "12345678901234567890123", "9007199254740993", "1e3", "\"é\"", "\"\""];
    for id in ids {
        let body = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"files/read\",\"params\":{{\"path\":\"README.md\"}}}}"
        );
        let mut connection = TestHttpConnection::to(server.root);
        connection.post(&TestHttpRequest::bytes(body.as_bytes()).to("/"));
        let answer = connection.response().text();
        let start = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":");
        assert!(answer.starts_with(&start), "{id}: {answer}");
    }
}

#[test]
fn s3_03_04_06_12_13_14_malformed_requests_are_refused_and_the_next_is_served() {
    over_all(&TempWorkspace::new(), |mira| {
        let null = Value::Null;
        for (bytes, code, id) in [
            (r#"{"id":5,"method":"tools/list"}"#, -32600, json!(5)),
            (r#"{"jsonrpc":"1.0","id":5,"method":"tools/list"}"#, -32600, json!(5)),
            (r#"{"jsonrpc":2,"id":5,"method":"tools/list"}"#, -32600, json!(5)),
            ("{}", -32600, null.clone()),
            (r#"{"jsonrpc":"2.0","id":5}"#, -32600, json!(5)),
            (r#"{"jsonrpc":"2.0","id":5,"method":7}"#, -32600, json!(5)),
            (r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#, -32600, null.clone()),
            (r#"{"jsonrpc":"2.0","id":{},"method":"tools/list"}"#, -32600, null.clone()),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list"}"#, -32600, null.clone()),
            ("[]", -32600, null.clone()),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]"#, -32600, null.clone()),
            ("7", -32600, null.clone()),
            ("\"tools/list\"", -32600, null.clone()),
            ("null", -32600, null.clone()),
            ("{", -32700, null.clone()),
            ("tools/list", -32700, null.clone()),
            (&"[".repeat(5000), -32700, null),
            (r#"{"jsonrpc":"2.0","id":5,"method":"files/nope"}"#, -32601, json!(5)),
            (r#"{"jsonrpc":"2.0","id":5,"method":"initialize","params":{}}"#, -32601, json!(5)),
            (r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{}}"#, -32601, json!(5)),
            (r#"{"jsonrpc":"2.0","id":5,"method":"files_read","params":{}}"#, -32601, json!(5)),
            (r#"{"jsonrpc":"2.0","id":5,"method":"tools/list","params":[]}"#, -32602, json!(5)),
            (r#"{"jsonrpc":"2.0","id":5,"method":"tools/list","params":"a"}"#, -32602, json!(5)),
            (r#"{"jsonrpc":"2.0","id":5,"method":"git/status","params":7}"#, -32602, json!(5)),
            (r#"{"jsonrpc":"2.0","id":5,"method":"files/read","params":{}}"#, -32602, json!(5)),
            (
                r#"{"jsonrpc":"2.0","id":5,"method":"files/read","params":{"path":"a","line":1}}"#,
                -32602,
                json!(5),
            ),
            (
                r#"{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{"limit":0}}"#,
                -32602,
                json!(5),
            ),
            (
                r#"{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{"limit":201}}"#,
                -32602,
                json!(5),
            ),
        ] {
            let answer = mira.raw(bytes.as_bytes()).unwrap();
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &id), "{bytes}");
            assert!(answer["error"]["data"]["detail"].is_string(), "{answer}");
        }
        let read = mira.get("files/read", json!({ "path": "README.md" }));
        assert_eq!(read["content"], TempWorkspace::README);
    });
}

#[test]
fn s3_02_notifications_and_responses_get_no_answer() {
    over_all(&TempWorkspace::new(), |mira| {
        for message in [
            r#"{"jsonrpc":"2.0","method":"files/write","params":{"path":"n","content":"x"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
            r#"{"jsonrpc":"2.0","method":"no/such"}"#,
            r#"{"jsonrpc":"2.0","id":9,"result":{}}"#,
        ] {
            match &mut mira.wire {
                MiraTransport::Http { .. } => {
                    assert_eq!(mira.raw(message.as_bytes()), None, "{message}");
                }
                MiraTransport::Socket(socket) => socket.send_text(message),
                MiraTransport::Stdio(stdio) => stdio.write(format!("{message}\n").as_bytes()),
            }
        }
        // The next answer belongs to the next request.
        mira.expect_refusal(1001, "files/read", json!({ "path": "n" }));
    });
}

#[test]
fn s3_03_every_answer_over_http_has_status_200_so_that_clients_read_its_code() {
    let workspace = TempWorkspace::new();
    let server =
        MiraServer::with(&workspace, "", |launch| launch.set("limits_message_bytes", 4096));
    for (addr, path) in [(server.root, "/"), (server.served.addr, "/rpc")] {
        let large = json!({ "jsonrpc": "2.0", "id": 1, "method": "files/write", "params": {
            "path": "large", "content": "x".repeat(5000),
        }});
        let mut connection = TestHttpConnection::to(addr);
        connection.post(&TestHttpRequest::bytes(large.to_string().as_bytes()).to(path));
        let response = connection.response();
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.json()["error"]["code"], 1007);
        for (body, code) in [
            (&b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}"[..], -32700),
            (b"", -32700),
            (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"files/read\",\"params\":{\"path\":\"gone\"}}", 1001),
        ] {
            let mut connection = TestHttpConnection::to(addr);
            connection.post(&TestHttpRequest::bytes(body).to(path));
            let response = connection.response();
            assert_eq!((response.status, &response.json()["error"]["code"]), (200, &json!(code)));
        }
        let mut connection = TestHttpConnection::to(addr);
        connection.post(&TestHttpRequest::bare("GET", path));
        let refused = connection.response();
        // On the shared listener, the root is not Mira's.
        assert_eq!((refused.status, refused.header("allow")), (405, Some("POST")), "{refused:?}");
    }
}

#[test]
fn s3_03_a_line_over_the_limit_is_refused_and_the_next_is_served() {
    let workspace = TempWorkspace::new();
    let mut mira =
        MiraClient::stdio(ServerLaunchOptions::over(&workspace).set("limits_message_bytes", 4096));
    let large = json!({ "jsonrpc": "2.0", "id": 1, "method": "files/write", "params": {
        "path": "large", "content": "x".repeat(5000),
    }});
    let answer = mira.raw(large.to_string().as_bytes()).unwrap();
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(1007), &Value::Null));
    assert_eq!(
        mira.get("files/read", json!({ "path": "README.md" }))["content"],
        TempWorkspace::README
    );
    assert!(!workspace.path("large").exists());
}

#[test]
fn s3_08_a_client_that_disconnects_leaves_nothing_running() {
    let workspace = TempWorkspace::new();
    let server = MiraServer::over(&workspace);
    let marker = ProcessMarker::new();
    let request = server.root().request("exec/run", sleeps(&marker));
    let mut connection = TestHttpConnection::to(server.root);
    connection.post(&TestHttpRequest::bytes(request.to_string().as_bytes()).to("/"));
    marker.wait_until_running();
    connection.close();
    marker.wait_until_gone();
    assert_eq!(server.outcomes(1), ["canceled"]);
}

#[test]
fn s3_75_versioned_method_names_are_unknown() {
    over_all(&TempWorkspace::new(), |mira| {
        for method in ["files/read.v2", "files/read.v1", "tools/list.v2", "capabilities"] {
            mira.expect_refusal(-32601, method, json!({ "path": "README.md" }));
        }
    });
}
