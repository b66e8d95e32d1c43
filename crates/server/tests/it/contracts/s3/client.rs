//! A client as Mira's own is: numbered requests, `params` left out where there are none, raw JSON
//! posted to the endpoint's root, any status but 2xx taken for a broken connection.
//!
//! Whatever the server answers is held against the contract: JSON-RPC's envelope, the error object,
//! and the seed's own schema of each result.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::support::{
    Connection, Launch, Post, Served, Server, Socket, Stdio, Workspace, wait_for,
};

/// The seed's schemas of results, by method.
static RESULTS: LazyLock<HashMap<&'static str, Validator>> = LazyLock::new(|| {
    let schema = |text: &str| {
        let schema: Value = serde_json::from_str(text).unwrap();
        jsonschema::options().build(&schema).unwrap()
    };
    macro_rules! of {
        ($name:literal) => {
            schema(include_str!(concat!(
                "../../../../../dialects/src/mira/",
                $name,
                ".result.schema.json"
            )))
        };
    }
    HashMap::from([
        ("tools/list", of!("tools_list")),
        ("files/read", of!("files_read")),
        ("files/write", of!("files_write")),
        ("exec/run", of!("exec_run")),
        ("vector/search", of!("vector_search")),
    ])
});

/// A server with a listener of Mira's own beside the one for all.
pub(super) struct House {
    pub(super) served: Served,
    /// Where Mira is spoken at the root.
    pub(super) root: SocketAddr,
}

impl House {
    pub(super) fn over(workspace: &Workspace) -> Self {
        Self::with(workspace, "", |launch| launch)
    }

    /// The same with more in its settings' file, started however `tune` says.
    pub(super) fn with(
        workspace: &Workspace,
        settings: &str,
        tune: impl FnOnce(Launch) -> Launch,
    ) -> Self {
        let listen = "[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"mira\"\n";
        workspace.put("toolgate.toml", format!("{listen}{settings}"));
        let served = tune(Launch::over(workspace)).served();
        let root = alone(&served);
        Self { served, root }
    }

    /// A client of the endpoint's root.
    pub(super) fn root(&self) -> Mira {
        Mira::new(Wire::Http { addr: self.root, path: "/", key: None })
    }

    /// One that says who it is.
    pub(super) fn root_as(&self, key: &str) -> Mira {
        Mira::new(Wire::Http { addr: self.root, path: "/", key: Some(key.to_owned()) })
    }

    /// A client of the path where Mira is spoken beside others.
    pub(super) fn rpc(&self) -> Mira {
        Mira::new(Wire::Http { addr: self.served.addr, path: "/rpc", key: None })
    }

    /// A client over a WebSocket.
    pub(super) fn socket(&self) -> Mira {
        Mira::new(Wire::Socket(Box::new(self.served.socket("/ws/rpc"))))
    }
}

impl Deref for House {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.served
    }
}

/// Where a server says that it serves Mira alone.
#[track_caller]
pub(super) fn alone(served: &Served) -> SocketAddr {
    wait_for("the server says where it serves mira alone", || {
        let log = served.log();
        let (_, rest) = log.split_once("serving mira alone at http://")?;
        rest.split_once("/\n")?.0.parse().ok()
    })
}

/// One client.
pub(super) struct Mira {
    pub(super) wire: Wire,
    serial: u64,
    /// What came unasked.
    pub(super) told: Vec<Value>,
}

pub(super) enum Wire {
    Http { addr: SocketAddr, path: &'static str, key: Option<String> },
    Socket(Box<Socket>),
    Stdio(Box<Stdio>),
}

/// Checks the same over every wire: at a root of its own, beside other dialects, over a WebSocket
/// and over stdio.
pub(super) fn over_all(workspace: &Workspace, check: impl Fn(&mut Mira)) {
    let house = House::over(workspace);
    for mut mira in
        [house.root(), house.rpc(), house.socket(), Mira::stdio(Launch::over(workspace))]
    {
        eprintln!("over {}:", mira.name());
        check(&mut mira);
    }
}

impl Mira {
    fn new(wire: Wire) -> Self {
        Self { wire, serial: 0, told: Vec::new() }
    }

    pub(super) fn stdio(launch: Launch) -> Self {
        Self::new(Wire::Stdio(Box::new(launch.arg("--dialect").arg("mira").stdio())))
    }

    pub(super) fn name(&self) -> &'static str {
        match &self.wire {
            Wire::Http { path, .. } => path,
            Wire::Socket(_) => "a WebSocket",
            Wire::Stdio(_) => "stdio",
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.wire, Wire::Socket(_) | Wire::Stdio(_))
    }

    /// Calls `method`; null is no parameters.
    #[track_caller]
    pub(super) fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let request = self.request(method, params);
        let answer = self.exchange(&request);
        if let Some(error) = answer.get("error") {
            return Err(error.clone());
        }
        let result = answer["result"].clone();
        if let Some(schema) = RESULTS.get(method) {
            let faults: Vec<_> =
                schema.iter_errors(&result).map(|error| error.to_string()).collect();
            assert!(faults.is_empty(), "{method} gave back {result}: {faults:?}");
        }
        Ok(result)
    }

    /// The result of `method`.
    #[track_caller]
    pub(super) fn get(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params.clone())
            .unwrap_or_else(|error| panic!("{method} {params} was refused: {error}"))
    }

    /// The error that `method` is refused with, which must have `code`.
    #[track_caller]
    pub(super) fn refused(&mut self, code: i64, method: &str, params: Value) -> Value {
        match self.ask(method, params.clone()) {
            Err(error) => {
                assert_eq!(error["code"], code, "{method} {params}: {error}");
                error
            }
            Ok(result) => panic!("{method} {params} was done: {result}"),
        }
    }

    /// The same, and the parameter that it is about.
    #[track_caller]
    pub(super) fn refused_about(&mut self, code: i64, field: &str, method: &str, params: Value) {
        let error = self.refused(code, method, params.clone());
        assert_eq!(error["data"]["field"], field, "{method} {params}: {error}");
    }

    /// The next request.
    pub(super) fn request(&mut self, method: &str, params: Value) -> Value {
        self.serial += 1;
        let mut request = json!({ "jsonrpc": "2.0", "method": method, "id": self.serial });
        if !params.is_null() {
            request["params"] = params;
        }
        request
    }

    /// Sends `request` and gives back what answers it, which has its id.
    #[track_caller]
    pub(super) fn exchange(&mut self, request: &Value) -> Value {
        let answer = self.raw(request.to_string().as_bytes()).expect("an answer");
        assert_eq!(answer["id"], request["id"], "{request}: {answer}");
        answer
    }

    /// Sends bytes that may be no request, and gives back the next message but notifications, if
    /// there is one: over HTTP no body is none. On a connection one must come.
    #[track_caller]
    pub(super) fn raw(&mut self, bytes: &[u8]) -> Option<Value> {
        let message = match &mut self.wire {
            Wire::Http { addr, path, key } => {
                let post = Post::bytes(bytes).to(path).without("accept");
                let post = match key {
                    Some(key) => post.with("x-api-key", key),
                    None => post,
                };
                let mut connection = Connection::to(*addr);
                connection.post(&post);
                let response = connection.response();
                if response.status == 204 {
                    return None;
                }
                assert_eq!(response.status, 200, "{}", response.text());
                Some(response.json())
            }
            Wire::Socket(socket) => {
                socket.say(std::str::from_utf8(bytes).expect("a WebSocket has texts"));
                None
            }
            Wire::Stdio(stdio) => {
                stdio.write(&[bytes, b"\n"].concat());
                None
            }
        };
        let message = match message {
            Some(message) => message,
            None => self.next(),
        };
        well_formed(&message);
        Some(message)
    }

    /// The next message of a connection that is no notification.
    #[track_caller]
    fn next(&mut self) -> Value {
        loop {
            let message = match &mut self.wire {
                Wire::Socket(socket) => socket.receive(),
                Wire::Stdio(stdio) => stdio.receive(),
                Wire::Http { .. } => panic!("nothing comes unasked over HTTP"),
            };
            if message.get("method").is_none() {
                return message;
            }
            assert!(message.get("id").is_none(), "the server asks: {message}");
            self.told.push(message);
        }
    }
}

/// What every answer of this wire is like.
#[track_caller]
fn well_formed(answer: &Value) {
    let keys = |value: &Value| -> Vec<String> {
        let object = value.as_object().unwrap_or_else(|| panic!("{answer}"));
        let mut keys: Vec<_> = object.keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
    let Some(error) = answer.get("error") else {
        return assert_eq!(keys(answer), ["id", "jsonrpc", "result"], "{answer}");
    };
    assert_eq!(keys(answer), ["error", "id", "jsonrpc"], "{answer}");
    assert_eq!(keys(error), ["code", "data", "message"], "{answer}");
    let code = error["code"].as_i64().unwrap();
    let data = &error["data"];
    const CODES: [i64; 13] =
        [-32700, -32600, -32601, -32602, -32603, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1010];
    assert!(CODES.contains(&code), "{answer}");
    assert!(data["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{answer}");
    if code < 0 {
        assert_eq!(data["detail"], data["reason"], "{answer}");
    }
    if code == 1003 && data.get("problems").is_none() {
        assert_eq!(keys(data), ["field", "reason"], "{answer}");
    }
}
