//! Client of the workstation contract. It numbers its requests, waits for each answer, and makes no
//! handshake.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, StdioServerProcess, TempWorkspace, TestHttpConnection,
    TestHttpRequest, TestHttpResponse, TestServerProcess, wait_for,
};

/// Names of the tools of the workstation contract, in the order of the contract.
pub(super) const TOOLS: [&str; 19] = [
    "filesystem/read",
    "filesystem/write",
    "filesystem/list",
    "filesystem/delete",
    "filesystem/mkdir",
    "filesystem/file_exists",
    "filesystem/dir_exists",
    "git/status",
    "git/log",
    "git/diff",
    "git/branches",
    "git/current_branch",
    "git/add",
    "git/commit",
    "ci/build",
    "ci/test",
    "ci/restore",
    "ci/run",
    "ci/diagnostics",
];

/// Settings for a dedicated listener of the workstation contract.
pub(super) const ALONE: &str = "[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"workstation\"\n";

/// Client of the workstation contract over one transport.
pub(super) struct WorkstationClient {
    wire: WorkstationTransport,
    serial: u64,
}

/// Transport of a client of the workstation contract.
enum WorkstationTransport {
    Stdio(Box<StdioServerProcess>),
    Http { served: Box<HttpServerProcess>, addr: SocketAddr, path: &'static str },
}

/// Runs `check` over every transport.
pub(super) fn over_all(workspace: &TempWorkspace, check: impl Fn(&mut WorkstationClient)) {
    over_all_tuned(workspace, |launch| launch, check);
}

/// Runs `check` over every transport. `tune` changes the options with which the servers start.
pub(super) fn over_all_tuned(
    workspace: &TempWorkspace,
    tune: impl Fn(ServerLaunchOptions) -> ServerLaunchOptions,
    check: impl Fn(&mut WorkstationClient),
) {
    let start = || tune(ServerLaunchOptions::over(workspace));
    eprintln!("over stdio:");
    check(&mut WorkstationClient::stdio(start()));
    eprintln!("at its path:");
    check(&mut WorkstationClient::http(start()));
    if workspace.path("toolgate.toml").exists() {
        return;
    }
    for path in ["/", "/mcp"] {
        eprintln!("alone at {path}:");
        workspace.put("toolgate.toml", ALONE);
        let served = start().served();
        std::fs::remove_file(workspace.path("toolgate.toml")).unwrap();
        check(&mut WorkstationClient::alone(served, path));
    }
}

/// Returns the address of the contract's dedicated listener.
pub(super) fn own_address(served: &HttpServerProcess) -> SocketAddr {
    wait_for("the server logs the address of the dedicated listener", || {
        let log = served.log();
        let (_, rest) = log.split_once("serving workstation alone at http://")?;
        rest.split_once("/\n")?.0.parse().ok()
    })
}

impl WorkstationClient {
    fn new(wire: WorkstationTransport) -> Self {
        Self { wire, serial: 0 }
    }

    pub(super) fn stdio(launch: ServerLaunchOptions) -> Self {
        let stdio = launch.arg("--dialect").arg("workstation").stdio();
        Self::new(WorkstationTransport::Stdio(Box::new(stdio)))
    }

    pub(super) fn http(launch: ServerLaunchOptions) -> Self {
        let served = launch.served();
        let addr = served.addr;
        Self::new(WorkstationTransport::Http {
            served: Box::new(served),
            addr,
            path: "/workstation",
        })
    }

    pub(super) fn alone(served: HttpServerProcess, path: &'static str) -> Self {
        let addr = own_address(&served);
        Self::new(WorkstationTransport::Http { served: Box::new(served), addr, path })
    }

    pub(super) fn is_http(&self) -> bool {
        matches!(self.wire, WorkstationTransport::Http { .. })
    }

    pub(super) fn server(&self) -> &TestServerProcess {
        match &self.wire {
            WorkstationTransport::Stdio(stdio) => stdio,
            WorkstationTransport::Http { served, .. } => served,
        }
    }

    /// Returns the connection over standard streams. Panics for a client over HTTP.
    pub(super) fn stream(&mut self) -> &mut StdioServerProcess {
        match &mut self.wire {
            WorkstationTransport::Stdio(stdio) => stdio,
            WorkstationTransport::Http { .. } => panic!("there are no streams over HTTP"),
        }
    }

    /// Builds a request with the next id. Leaves `params` out if it is null.
    pub(super) fn request(&mut self, method: &str, params: Value) -> Value {
        self.serial += 1;
        let mut message = json!({ "jsonrpc": "2.0", "id": self.serial, "method": method });
        if !params.is_null() {
            message["params"] = params;
        }
        message
    }

    /// Sends a request and returns the answer. Checks that the answer is valid JSON-RPC.
    #[track_caller]
    pub(super) fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = self.request(method, params);
        self.exchange(&message)
    }

    #[track_caller]
    pub(super) fn exchange(&mut self, message: &Value) -> Value {
        let answer = self.raw(message.to_string().as_bytes());
        assert_eq!(answer["id"], message["id"], "{answer}");
        answer
    }

    /// Sends bytes to the server and returns the answer.
    #[track_caller]
    pub(super) fn raw(&mut self, bytes: &[u8]) -> Value {
        let answer = match &mut self.wire {
            WorkstationTransport::Stdio(stdio) => {
                stdio.write(&[bytes, b"\n"].concat());
                stdio.receive()
            }
            WorkstationTransport::Http { .. } => {
                let response = self.post(&TestHttpRequest::bytes(bytes));
                assert_eq!(response.status, 200, "{response:?}");
                response.json()
            }
        };
        check_json_rpc(&answer);
        answer
    }

    /// Sends one request over HTTP.
    #[track_caller]
    pub(super) fn post(&self, post: &TestHttpRequest) -> TestHttpResponse {
        let WorkstationTransport::Http { addr, path, .. } = &self.wire else {
            panic!("not over HTTP")
        };
        let mut connection = TestHttpConnection::to(*addr);
        connection.post(&post.clone().to(path));
        connection.response()
    }

    /// Opens a new connection.
    pub(super) fn connect(&self) -> TestHttpConnection {
        let WorkstationTransport::Http { addr, .. } = &self.wire else { panic!("not over HTTP") };
        TestHttpConnection::to(*addr)
    }

    /// Sends a message without waiting for an answer.
    #[track_caller]
    pub(super) fn tell(&mut self, message: &Value) {
        match &mut self.wire {
            WorkstationTransport::Stdio(stdio) => stdio.send_malformed(message),
            WorkstationTransport::Http { .. } => {
                let response = self.post(&TestHttpRequest::bytes(message.to_string().as_bytes()));
                assert_eq!((response.status, response.text().as_str()), (202, ""));
            }
        }
    }

    #[track_caller]
    pub(super) fn tools(&mut self) -> Vec<Value> {
        let answer = self.ask("tools/list", Value::Null);
        answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
    }

    #[track_caller]
    pub(super) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Calls a tool and returns its text. Checks that the result has no other field.
    #[track_caller]
    pub(super) fn content(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.call(tool, arguments);
        let result = answer["result"].as_object().unwrap_or_else(|| panic!("{tool}: {answer}"));
        assert_eq!(result.len(), 1, "{answer}");
        result["content"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Calls a tool that must be refused. Returns the code, the message and the data of the error.
    #[track_caller]
    pub(super) fn refusal(&mut self, tool: &str, arguments: Value) -> (i64, String, Value) {
        let answer = self.call(tool, arguments);
        error_parts(&answer)
    }
}

/// Returns the code, message and data of an error.
#[track_caller]
pub(super) fn error_parts(answer: &Value) -> (i64, String, Value) {
    let error = answer.get("error").unwrap_or_else(|| panic!("not a refusal: {answer}"));
    let detail = error["data"]["detail"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(!detail.is_empty(), "{answer}");
    let message = error["message"].as_str().unwrap().to_owned();
    (error["code"].as_i64().unwrap(), message, error["data"].clone())
}

/// Checks that `answer` is a JSON-RPC 2.0 response with either a result or an error.
#[track_caller]
pub(super) fn check_json_rpc(answer: &Value) {
    let fields = answer.as_object().unwrap_or_else(|| panic!("{answer}"));
    let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
    assert!(matches!(keys[..], ["jsonrpc", "id", "result" | "error"]), "{answer}");
    assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
    if let Some(error) = answer.get("error") {
        let keys: Vec<&str> = error.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["code", "message", "data"], "{answer}");
        assert!(error["code"].is_i64() && error["message"].is_string(), "{answer}");
    }
}
