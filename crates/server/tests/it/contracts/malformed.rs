//! The same bytes that are no message, on every dialect and transport: each answers in its own
//! terms, and serves the next message.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::{Connection, Launch, Post, Served, Socket, Stdio, Workspace, wait_for};

/// What kind of fault bytes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// They are not JSON.
    NotJson,
    /// They are JSON, and no request.
    NoRequest,
}

/// The corpus.
fn corpus() -> Vec<(Fault, Vec<u8>)> {
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
    let no_request: [&[u8]; 9] = [
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
    let of = |fault, all: &[&[u8]]| -> Vec<_> {
        all.iter().map(|bytes| (fault, bytes.to_vec())).collect()
    };
    [of(Fault::NotJson, &not_json), of(Fault::NoRequest, &no_request)].concat()
}

/// A dialect: where it is spoken, what it says of a fault, and a message that it answers well.
struct Spoken {
    name: &'static str,
    /// Where messages are posted among other dialects.
    path: &'static str,
    /// Where they are posted on a listener of its own.
    own_path: &'static str,
    socket: Option<&'static str>,
    /// What it says of a fault.
    says: fn(Fault, &Value),
    well: fn() -> Value,
    is_well: fn(&Value) -> bool,
}

fn jsonrpc(fault: Fault, answer: &Value) {
    let code = match fault {
        Fault::NotJson => -32700,
        Fault::NoRequest => -32600,
    };
    assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
    assert_eq!(answer["error"]["code"], code, "{answer}");
    assert!(answer["id"].is_null(), "nobody's id: {answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|said| !said.is_empty()), "{answer}");
    assert!(answer.get("result").is_none(), "{answer}");
}

fn request(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": "well", "method": method, "params": params })
}

/// Those whose messages are JSON-RPC wherever they are spoken.
fn spoken() -> Vec<Spoken> {
    vec![
        Spoken {
            name: "synesthetic",
            path: "/synesthetic",
            own_path: "/",
            socket: None,
            says: jsonrpc,
            well: || request("list_schemas", json!({})),
            is_well: |answer| answer["result"]["ok"] == true,
        },
        Spoken {
            name: "workstation",
            path: "/workstation",
            own_path: "/",
            socket: None,
            says: jsonrpc,
            well: || request("tools/list", json!({})),
            is_well: |answer| answer["result"]["tools"].is_array(),
        },
        Spoken {
            name: "mira",
            path: "/rpc",
            own_path: "/",
            socket: Some("/ws/rpc"),
            says: jsonrpc,
            well: || request("tools/list", json!({})),
            is_well: |answer| answer["result"]["tools"].is_array(),
        },
        Spoken {
            name: "zyra",
            path: "/v1/mcp",
            own_path: "/v1/mcp",
            socket: Some("/v1/ws/mcp"),
            says: jsonrpc,
            well: || request("tools/list", json!({})),
            is_well: |answer| answer["result"]["tools"].is_array(),
        },
    ]
}

/// One way to speak.
enum Way {
    Post(SocketAddr, &'static str),
    Socket(Box<Socket>),
    Stdio(Box<Stdio>),
}

impl Way {
    /// The answer to `bytes`; `None` where they cannot be sent this way.
    fn say(&mut self, bytes: &[u8]) -> Option<Value> {
        match self {
            Self::Post(addr, path) => {
                let mut connection = Connection::to(*addr);
                connection.post(&Post::bytes(bytes).to(path).without("accept"));
                Some(connection.response().json())
            }
            // A socket's text is UTF-8, or the socket is closed.
            Self::Socket(socket) => {
                socket.say(std::str::from_utf8(bytes).ok()?);
                Some(socket.receive())
            }
            Self::Stdio(stdio) => {
                stdio.write(&[bytes, b"\n"].concat());
                Some(stdio.receive())
            }
        }
    }
}

/// Where `name` is served alone.
fn alone(served: &Served, name: &str) -> SocketAddr {
    wait_for("the server says where it serves a dialect alone", || {
        let log = served.log();
        let (_, rest) = log.split_once(&format!("serving {name} alone at http://"))?;
        rest.split_once("/\n")?.0.parse().ok()
    })
}

/// A workspace whose server has a listener for each of `names`.
fn house(names: &[&str]) -> Workspace {
    let listen =
        |name: &&str| format!("[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"{name}\"\n");
    let settings: String = names.iter().map(listen).collect();
    Workspace::new().file("toolgate.toml", settings)
}

#[test]
fn s2_24_27_s4_34_bytes_that_are_no_message_are_refused_in_each_dialects_own_terms_and_the_next_is_served()
 {
    let all = spoken();
    let workspace = house(&all.iter().map(|one| one.name).collect::<Vec<_>>());
    let served = Launch::over(&workspace).served();
    for one in &all {
        let mut ways = vec![
            Way::Post(served.addr, one.path),
            Way::Post(alone(&served, one.name), one.own_path),
            Way::Stdio(Box::new(
                Launch::over(&Workspace::new()).arg("--dialect").arg(one.name).stdio(),
            )),
        ];
        ways.extend(one.socket.map(|path| Way::Socket(Box::new(served.socket(path)))));
        for way in &mut ways {
            for (fault, bytes) in corpus() {
                let shown: String = String::from_utf8_lossy(&bytes).chars().take(60).collect();
                eprintln!("{} {fault:?} {shown}", one.name);
                let Some(answer) = way.say(&bytes) else { continue };
                (one.says)(fault, &answer);
            }
            let well = way.say((one.well)().to_string().as_bytes()).expect("an answer");
            assert!((one.is_well)(&well), "{}: {well}", one.name);
            assert_eq!(well["id"], "well", "{well}");
        }
    }
}

#[test]
fn bytes_that_are_no_request_come_back_in_an_envelope() {
    let served = Launch::over(&house(&["envelope"])).served();
    let own = alone(&served, "envelope");
    for addr in [served.addr, own] {
        for (fault, bytes) in corpus() {
            let mut connection = Connection::to(addr);
            connection.post(&Post::bytes(&bytes).to("/mcp/tool/mcp.tool:files.read"));
            let response = connection.response();
            let envelope = response.json();
            eprintln!("{fault:?} {envelope}");
            assert_eq!(response.status, 400, "{envelope}");
            assert_eq!(envelope["ok"], false);
            assert!(envelope["data"].is_null());
            assert_eq!(envelope["error"]["code"], "INVALID_INPUT");
            assert_eq!(envelope["meta"]["transport"], "http");
        }
        let mut connection = Connection::to(addr);
        connection.post(&Post::bare("GET", "/mcp/discover"));
        assert_eq!(connection.response().json()["ok"], true);
    }
}

#[test]
fn s1_27_28_lines_that_are_no_request_are_refused_with_the_canonical_reason() {
    let mut stdio = Launch::over(&Workspace::new()).arg("--dialect").arg("envelope").stdio();
    for (fault, bytes) in corpus() {
        stdio.write(&[&bytes, &b"\n"[..]].concat());
        let answer = stdio.receive();
        eprintln!("{fault:?} {answer}");
        assert!(answer["id"].is_null(), "{answer}");
        assert_eq!(answer["error"]["data"]["canonical"], "INVALID_INPUT", "{answer}");
        let code = answer["error"]["code"].as_i64();
        let expected = match fault {
            Fault::NotJson => -32700,
            Fault::NoRequest => -32602,
        };
        assert_eq!(code, Some(expected), "{answer}");
    }
    stdio.write(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"mcp.discover\"}\n");
    assert_eq!(stdio.receive()["result"]["ok"], true);
}
