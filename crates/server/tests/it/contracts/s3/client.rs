//! Client like Mira's own: numbered requests, no `params` if there are none, raw JSON posted to the
//! endpoint's root, and any status but 2xx counts as a broken connection.
//!
//! The client validates every answer against the contract: JSON-RPC's envelope, the error object,
//! and the specification's own schema of each result.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, StdioServerProcess, TempWorkspace, TestHttpConnection,
    TestHttpRequest, TestServerProcess, TestWebSocket, wait_for,
};

/// Schemas of results in the specification of Mira's contract, by method.
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

/// Server that has both a shared listener and a dedicated listener for the Mira dialect.
pub(super) struct MiraServer {
    pub(super) served: HttpServerProcess,
    /// The address of Mira's dedicated listener.
    pub(super) root: SocketAddr,
}

impl MiraServer {
    pub(super) fn over(workspace: &TempWorkspace) -> Self {
        Self::with(workspace, "", |launch| launch)
    }

    /// Starts a server with additional `settings`. `tune` changes the options of its start.
    pub(super) fn with(
        workspace: &TempWorkspace,
        settings: &str,
        tune: impl FnOnce(ServerLaunchOptions) -> ServerLaunchOptions,
    ) -> Self {
        let listen = "[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"mira\"\n";
        workspace.put("toolgate.toml", format!("{listen}{settings}"));
        let served = tune(ServerLaunchOptions::over(workspace)).served();
        let root = dedicated_address(&served);
        Self { served, root }
    }

    /// Returns a client of the dedicated listener.
    pub(super) fn root(&self) -> MiraClient {
        MiraClient::new(MiraTransport::Http { addr: self.root, path: "/", key: None })
    }

    /// Returns a client of the dedicated listener that sends the API key `key`.
    pub(super) fn root_as(&self, key: &str) -> MiraClient {
        MiraClient::new(MiraTransport::Http {
            addr: self.root,
            path: "/",
            key: Some(key.to_owned()),
        })
    }

    /// Returns a client of Mira's path on the shared listener.
    pub(super) fn rpc(&self) -> MiraClient {
        MiraClient::new(MiraTransport::Http { addr: self.served.addr, path: "/rpc", key: None })
    }

    /// Returns a client over a WebSocket.
    pub(super) fn socket(&self) -> MiraClient {
        MiraClient::new(MiraTransport::Socket(Box::new(self.served.socket("/ws/rpc"))))
    }
}

impl Deref for MiraServer {
    type Target = TestServerProcess;

    fn deref(&self) -> &TestServerProcess {
        &self.served
    }
}

/// Returns the address of Mira's dedicated listener.
#[track_caller]
pub(super) fn dedicated_address(served: &HttpServerProcess) -> SocketAddr {
    wait_for("the server logs the address of the dedicated listener", || {
        let log = served.log();
        let (_, rest) = log.split_once("serving mira alone at http://")?;
        rest.split_once("/\n")?.0.parse().ok()
    })
}

/// Client of the Mira contract over one transport.
pub(super) struct MiraClient {
    pub(super) wire: MiraTransport,
    serial: u64,
    /// The notifications received so far.
    pub(super) notifications: Vec<Value>,
}

/// Transport of a client of the Mira contract.
pub(super) enum MiraTransport {
    Http { addr: SocketAddr, path: &'static str, key: Option<String> },
    Socket(Box<TestWebSocket>),
    Stdio(Box<StdioServerProcess>),
}

/// Runs `check` over every transport: the dedicated listener, the shared one, a WebSocket and
/// stdio.
pub(super) fn over_all(workspace: &TempWorkspace, check: impl Fn(&mut MiraClient)) {
    let server = MiraServer::over(workspace);
    for mut mira in [
        server.root(),
        server.rpc(),
        server.socket(),
        MiraClient::stdio(ServerLaunchOptions::over(workspace)),
    ] {
        eprintln!("over {}:", mira.name());
        check(&mut mira);
    }
}

impl MiraClient {
    fn new(wire: MiraTransport) -> Self {
        Self { wire, serial: 0, notifications: Vec::new() }
    }

    pub(super) fn stdio(launch: ServerLaunchOptions) -> Self {
        Self::new(MiraTransport::Stdio(Box::new(launch.arg("--dialect").arg("mira").stdio())))
    }

    pub(super) fn name(&self) -> &'static str {
        match &self.wire {
            MiraTransport::Http { path, .. } => path,
            MiraTransport::Socket(_) => "a WebSocket",
            MiraTransport::Stdio(_) => "stdio",
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.wire, MiraTransport::Socket(_) | MiraTransport::Stdio(_))
    }

    /// Calls `method` and returns the result, or the error of the answer. Null `params` mean no
    /// parameters.
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
            assert!(faults.is_empty(), "{method} returned the invalid result {result}: {faults:?}");
        }
        Ok(result)
    }

    /// Calls `method` and returns its result, which must be a success.
    #[track_caller]
    pub(super) fn get(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params.clone())
            .unwrap_or_else(|error| panic!("{method} {params} was refused: {error}"))
    }

    /// Calls `method`, which must be refused with `code`, and returns the error.
    #[track_caller]
    pub(super) fn expect_refusal(&mut self, code: i64, method: &str, params: Value) -> Value {
        match self.ask(method, params.clone()) {
            Err(error) => {
                assert_eq!(error["code"], code, "{method} {params}: {error}");
                error
            }
            Ok(result) => panic!("{method} {params} succeeded: {result}"),
        }
    }

    /// Calls `method`, which must be refused with `code` because of the parameter `field`.
    #[track_caller]
    pub(super) fn expect_refusal_of(
        &mut self,
        code: i64,
        field: &str,
        method: &str,
        params: Value,
    ) {
        let error = self.expect_refusal(code, method, params.clone());
        assert_eq!(error["data"]["field"], field, "{method} {params}: {error}");
    }

    /// Returns a request for `method` with the next id of this client.
    pub(super) fn request(&mut self, method: &str, params: Value) -> Value {
        self.serial += 1;
        let mut request = json!({ "jsonrpc": "2.0", "method": method, "id": self.serial });
        if !params.is_null() {
            request["params"] = params;
        }
        request
    }

    /// Sends `request` and returns the answer, which must have its id.
    #[track_caller]
    pub(super) fn exchange(&mut self, request: &Value) -> Value {
        let answer = self.raw(request.to_string().as_bytes()).expect("an answer");
        assert_eq!(answer["id"], request["id"], "{request}: {answer}");
        answer
    }

    /// Sends bytes, valid or not, and returns the next message that is not a notification. Returns
    /// `None` if an HTTP response has no message. On a stream, a message must arrive.
    #[track_caller]
    pub(super) fn raw(&mut self, bytes: &[u8]) -> Option<Value> {
        let message = match &mut self.wire {
            MiraTransport::Http { addr, path, key } => {
                let post = TestHttpRequest::bytes(bytes).to(path).without("accept");
                let post = match key {
                    Some(key) => post.with("x-api-key", key),
                    None => post,
                };
                let mut connection = TestHttpConnection::to(*addr);
                connection.post(&post);
                let response = connection.response();
                if response.status == 204 {
                    return None;
                }
                assert_eq!(response.status, 200, "{}", response.text());
                Some(response.json())
            }
            MiraTransport::Socket(socket) => {
                socket.send_text(std::str::from_utf8(bytes).expect("WebSocket texts are UTF-8"));
                None
            }
            MiraTransport::Stdio(stdio) => {
                stdio.write(&[bytes, b"\n"].concat());
                None
            }
        };
        let message = match message {
            Some(message) => message,
            None => self.next(),
        };
        check_shape(&message);
        Some(message)
    }

    /// Returns the next message on the client's stream that is not a notification.
    #[track_caller]
    fn next(&mut self) -> Value {
        loop {
            let message = match &mut self.wire {
                MiraTransport::Socket(socket) => socket.receive(),
                MiraTransport::Stdio(stdio) => stdio.receive(),
                MiraTransport::Http { .. } => panic!("there are no notifications over HTTP"),
            };
            if message.get("method").is_none() {
                return message;
            }
            assert!(message.get("id").is_none(), "the server sent a request: {message}");
            self.notifications.push(message);
        }
    }
}

/// Checks that the members of an answer are those that Mira's contract defines.
#[track_caller]
fn check_shape(answer: &Value) {
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
