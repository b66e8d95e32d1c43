//! Tests that every dialect and transport refuses malformed bytes with its own error, and then
//! serves the next message.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, StdioServerProcess, TempWorkspace, TestHttpConnection,
    TestHttpRequest, TestWebSocket, wait_for,
};

/// Fault in the bytes of a malformed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageFault {
    /// Bytes that are not JSON.
    NotJson,
    /// JSON that is not a request.
    NotRequest,
}

/// Returns malformed messages, each with its fault.
fn corpus() -> Vec<(MessageFault, Vec<u8>)> {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let inner = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"params\":{}1{}}}",
        "{\"a\":".repeat(2_000),
        "}".repeat(2_000)
    );
    let not_json: [&[u8]; 10] = [
        b"\xff\xfe",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc3\x28\"}",
        b"not json",
        b"{",
        b"{\"jsonrpc\":\"2.0\"} {}",
        b"{'jsonrpc':'2.0'}",
        b"{\"jsonrpc\":\"2.0\",\"id\":NaN,\"method\":\"m\"}",
        &b"[".repeat(10_000),
        deep.as_bytes(),
        inner.as_bytes(),
    ];
    let not_request: [&[u8]; 9] = [
        b"1",
        b"null",
        b"\"ping\"",
        b"[]",
        b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
        b"{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":true,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"ping\"}",
    ];
    let with_fault = |fault, all: &[&[u8]]| -> Vec<_> {
        all.iter().map(|bytes| (fault, bytes.to_vec())).collect()
    };
    [
        with_fault(MessageFault::NotJson, &not_json),
        with_fault(MessageFault::NotRequest, &not_request),
    ]
    .concat()
}

/// Dialect with its paths on the server, its error for each fault, and a request that succeeds.
struct MalformedInputCase {
    name: &'static str,
    /// Path of the dialect on the shared listener.
    path: &'static str,
    /// Path of the dialect on a dedicated listener.
    own_path: &'static str,
    socket: Option<&'static str>,
    /// Checks that an answer is the dialect's error for the fault.
    check_error: fn(MessageFault, &Value),
    valid_request: fn() -> Value,
    is_success: fn(&Value) -> bool,
}

fn jsonrpc(fault: MessageFault, answer: &Value) {
    let code = match fault {
        MessageFault::NotJson => -32700,
        MessageFault::NotRequest => -32600,
    };
    assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
    assert_eq!(answer["error"]["code"], code, "{answer}");
    assert!(answer["id"].is_null(), "the id is not null: {answer}");
    assert!(
        answer["error"]["message"].as_str().is_some_and(|message| !message.is_empty()),
        "{answer}"
    );
    assert!(answer.get("result").is_none(), "{answer}");
}

fn request(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": "well", "method": method, "params": params })
}

/// Returns the dialects that use JSON-RPC on every transport.
fn json_rpc_dialects() -> Vec<MalformedInputCase> {
    vec![
        MalformedInputCase {
            name: "synesthetic",
            path: "/synesthetic",
            own_path: "/",
            socket: None,
            check_error: jsonrpc,
            valid_request: || request("list_schemas", json!({})),
            is_success: |answer| answer["result"]["ok"] == true,
        },
        MalformedInputCase {
            name: "workstation",
            path: "/workstation",
            own_path: "/",
            socket: None,
            check_error: jsonrpc,
            valid_request: || request("tools/list", json!({})),
            is_success: |answer| answer["result"]["tools"].is_array(),
        },
        MalformedInputCase {
            name: "mira",
            path: "/rpc",
            own_path: "/",
            socket: Some("/ws/rpc"),
            check_error: jsonrpc,
            valid_request: || request("tools/list", json!({})),
            is_success: |answer| answer["result"]["tools"].is_array(),
        },
        MalformedInputCase {
            name: "zyra",
            path: "/v1/mcp",
            own_path: "/v1/mcp",
            socket: Some("/v1/ws/mcp"),
            check_error: jsonrpc,
            valid_request: || request("tools/list", json!({})),
            is_success: |answer| answer["result"]["tools"].is_array(),
        },
    ]
}

/// Transport over which malformed messages are sent.
enum MalformedMessageTransport {
    Post(SocketAddr, &'static str),
    Socket(Box<TestWebSocket>),
    Stdio(Box<StdioServerProcess>),
}

impl MalformedMessageTransport {
    /// Sends `bytes` and returns the answer, or `None` if this transport cannot send them.
    fn exchange(&mut self, bytes: &[u8]) -> Option<Value> {
        match self {
            Self::Post(addr, path) => {
                let mut connection = TestHttpConnection::to(*addr);
                connection.post(&TestHttpRequest::bytes(bytes).to(path).without("accept"));
                Some(connection.response().json())
            }
            // A WebSocket text must be UTF-8; the server closes the socket otherwise.
            Self::Socket(socket) => {
                socket.send_text(std::str::from_utf8(bytes).ok()?);
                Some(socket.receive())
            }
            Self::Stdio(stdio) => {
                stdio.write(&[bytes, b"\n"].concat());
                Some(stdio.receive())
            }
        }
    }
}

/// Returns the address of the listener that serves only the dialect `name`.
fn dedicated_address(served: &HttpServerProcess, name: &str) -> SocketAddr {
    wait_for("the server logs the address of the dedicated listener", || {
        let log = served.log();
        let (_, rest) = log.split_once(&format!("serving {name} alone at http://"))?;
        rest.split_once("/\n")?.0.parse().ok()
    })
}

/// Returns a workspace whose server has a dedicated listener for each of the dialects `names`.
fn workspace_with_listeners(names: &[&str]) -> TempWorkspace {
    let listen =
        |name: &&str| format!("[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"{name}\"\n");
    let settings: String = names.iter().map(listen).collect();
    TempWorkspace::new().file("toolgate.toml", settings)
}

#[test]
fn s2_24_27_s4_34_malformed_bytes_are_refused_in_each_dialects_form_and_the_next_message_is_served()
{
    let all = json_rpc_dialects();
    let workspace = workspace_with_listeners(&all.iter().map(|one| one.name).collect::<Vec<_>>());
    let served = ServerLaunchOptions::over(&workspace).served();
    for one in &all {
        let mut transports = vec![
            MalformedMessageTransport::Post(served.addr, one.path),
            MalformedMessageTransport::Post(dedicated_address(&served, one.name), one.own_path),
            MalformedMessageTransport::Stdio(Box::new(
                ServerLaunchOptions::over(&TempWorkspace::new())
                    .arg("--dialect")
                    .arg(one.name)
                    .stdio(),
            )),
        ];
        transports.extend(
            one.socket.map(|path| MalformedMessageTransport::Socket(Box::new(served.socket(path)))),
        );
        for transport in &mut transports {
            for (fault, bytes) in corpus() {
                let shown: String = String::from_utf8_lossy(&bytes).chars().take(60).collect();
                eprintln!("{} {fault:?} {shown}", one.name);
                let Some(answer) = transport.exchange(&bytes) else { continue };
                (one.check_error)(fault, &answer);
            }
            let answer = transport
                .exchange((one.valid_request)().to_string().as_bytes())
                .expect("an answer");
            assert!((one.is_success)(&answer), "{}: {answer}", one.name);
            assert_eq!(answer["id"], "well", "{answer}");
        }
    }
}

#[test]
fn malformed_bytes_are_refused_in_an_envelope() {
    let served = ServerLaunchOptions::over(&workspace_with_listeners(&["envelope"])).served();
    let own = dedicated_address(&served, "envelope");
    for addr in [served.addr, own] {
        for (fault, bytes) in corpus() {
            let mut connection = TestHttpConnection::to(addr);
            connection.post(&TestHttpRequest::bytes(&bytes).to("/mcp/tool/mcp.tool:files.read"));
            let response = connection.response();
            let envelope = response.json();
            eprintln!("{fault:?} {envelope}");
            assert_eq!(response.status, 400, "{envelope}");
            assert_eq!(envelope["ok"], false);
            assert!(envelope["data"].is_null());
            assert_eq!(envelope["error"]["code"], "INVALID_INPUT");
            assert_eq!(envelope["meta"]["transport"], "http");
        }
        let mut connection = TestHttpConnection::to(addr);
        connection.post(&TestHttpRequest::bare("GET", "/mcp/discover"));
        assert_eq!(connection.response().json()["ok"], true);
    }
}

#[test]
fn s1_27_28_malformed_lines_are_refused_with_the_canonical_reason() {
    let mut stdio =
        ServerLaunchOptions::over(&TempWorkspace::new()).arg("--dialect").arg("envelope").stdio();
    for (fault, bytes) in corpus() {
        stdio.write(&[&bytes, &b"\n"[..]].concat());
        let answer = stdio.receive();
        eprintln!("{fault:?} {answer}");
        assert!(answer["id"].is_null(), "{answer}");
        assert_eq!(answer["error"]["data"]["canonical"], "INVALID_INPUT", "{answer}");
        let code = answer["error"]["code"].as_i64();
        let expected = match fault {
            MessageFault::NotJson => -32700,
            MessageFault::NotRequest => -32602,
        };
        assert_eq!(code, Some(expected), "{answer}");
    }
    stdio.write(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"mcp.discover\"}\n");
    assert_eq!(stdio.receive()["result"]["ok"], true);
}
