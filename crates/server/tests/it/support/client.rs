//! MCP client for tests, over both transports and in any revision.

use std::fmt::Display;

use serde_json::{Value, json};

use super::{
    HttpServerProcess, MODERN, ServerLaunchOptions, StdioServerProcess, TempWorkspace,
    TestHttpRequest, TestHttpResponse, TestServerProcess, initialize, notification, request,
};

/// MCP client whose connection is ready: after its handshake, if its revision has one.
pub(crate) struct TestMcpClient {
    pub(crate) wire: TestClientTransport,
    pub(crate) revision: &'static str,
    pub(crate) session: Option<String>,
    serial: u64,
    /// Capabilities that the client declares.
    capabilities: Value,
    /// Server's answer to `initialize`, or null in a revision without it.
    pub(crate) opened: Value,
}

/// Transport of a test client: HTTP or standard streams.
pub(crate) enum TestClientTransport {
    Stdio(StdioServerProcess),
    Http(HttpServerProcess),
}

/// Runs `check` over both transports in the newest revision.
pub(crate) fn over_both(workspace: &TempWorkspace, check: impl Fn(&mut TestMcpClient)) {
    over_both_tuned(workspace, |launch| launch, check);
}

/// Runs `check` over both transports in the newest revision. `settings` are the names and values of
/// settings of the servers.
pub(crate) fn over_both_with(
    workspace: &TempWorkspace,
    settings: &[(&str, impl Display + Copy)],
    check: impl Fn(&mut TestMcpClient),
) {
    let set = |launch: ServerLaunchOptions, (name, value): &(&str, _)| launch.set(name, *value);
    over_both_tuned(workspace, |launch| settings.iter().fold(launch, set), check);
}

/// Runs `check` over both transports in the newest revision. `tune` changes the start options of
/// the servers.
pub(crate) fn over_both_tuned(
    workspace: &TempWorkspace,
    tune: impl Fn(ServerLaunchOptions) -> ServerLaunchOptions,
    check: impl Fn(&mut TestMcpClient),
) {
    eprintln!("over stdio:");
    check(&mut TestMcpClient::stdio(tune(ServerLaunchOptions::over(workspace)), MODERN));
    eprintln!("over HTTP:");
    check(&mut TestMcpClient::http(tune(ServerLaunchOptions::over(workspace)), MODERN));
}

impl TestMcpClient {
    pub(crate) fn stdio(launch: ServerLaunchOptions, revision: &'static str) -> Self {
        Self::open(TestClientTransport::Stdio(launch.stdio()), revision, json!({}))
    }

    pub(crate) fn http(launch: ServerLaunchOptions, revision: &'static str) -> Self {
        Self::open(TestClientTransport::Http(launch.served()), revision, json!({}))
    }

    /// Opens a client that declares these `capabilities`.
    pub(crate) fn open(
        wire: TestClientTransport,
        revision: &'static str,
        capabilities: Value,
    ) -> Self {
        let opened = Value::Null;
        let mut client = Self { wire, revision, session: None, serial: 0, capabilities, opened };
        if revision == MODERN {
            return client;
        }
        let mut hello = initialize("hello", revision);
        hello["params"]["capabilities"] = client.capabilities.clone();
        let initialized = notification("notifications/initialized", json!({}));
        match &mut client.wire {
            TestClientTransport::Stdio(stdio) => {
                client.opened = stdio.ask(&hello);
                stdio.send(&initialized);
            }
            TestClientTransport::Http(served) => {
                let response = served.send(&TestHttpRequest::mcp(&hello));
                client.opened = response.message();
                client.session = response.header("mcp-session-id").map(str::to_owned);
                let response = client.response(&initialized);
                assert_eq!(response.status, 202, "{response:?}");
            }
        }
        client
    }

    /// Returns a request in the format of the client's revision, with the client's next id.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        self.serial += 1;
        let mut message = request(self.revision, self.serial, method, params);
        let capabilities =
            message.pointer_mut("/params/_meta/io.modelcontextprotocol~1clientCapabilities");
        if let Some(none) = capabilities.filter(|declared| **declared == json!({})) {
            *none = self.capabilities.clone();
        }
        message
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = self.request(method, params);
        self.exchange(&message)
    }

    #[track_caller]
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Sends one message to the server and returns the answer.
    #[track_caller]
    pub(crate) fn exchange(&mut self, message: &Value) -> Value {
        match &mut self.wire {
            TestClientTransport::Stdio(stdio) => stdio.ask(message),
            TestClientTransport::Http(_) => self.response(message).message(),
        }
    }

    /// Sends one message that violates its schema but that the server may accept, and returns the
    /// answer.
    #[track_caller]
    pub(crate) fn exchange_malformed(&mut self, message: &Value) -> Value {
        let post = self.post(message).malformed();
        match &mut self.wire {
            TestClientTransport::Stdio(stdio) => {
                stdio.send_malformed(message);
                stdio.answer(message["id"].clone())
            }
            TestClientTransport::Http(served) => served.send(&post).message(),
        }
    }

    /// Sends bytes as a line or an HTTP body, and returns the answer.
    #[track_caller]
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Value {
        match &mut self.wire {
            TestClientTransport::Stdio(stdio) => {
                stdio.write(&[bytes, b"\n"].concat());
                stdio.receive()
            }
            TestClientTransport::Http(served) => served
                .send(&self.session.iter().fold(TestHttpRequest::bytes(bytes), |post, id| {
                    post.with("mcp-session-id", id)
                }))
                .message(),
        }
    }

    /// Sends one message over HTTP and returns the response.
    #[track_caller]
    pub(crate) fn response(&self, message: &Value) -> TestHttpResponse {
        let TestClientTransport::Http(served) = &self.wire else {
            panic!("stdio has no HTTP responses")
        };
        served.send(&self.post(message))
    }

    /// Returns the HTTP request by which the client sends one message.
    pub(crate) fn post(&self, message: &Value) -> TestHttpRequest {
        let post = TestHttpRequest::mcp(message);
        match &self.session {
            Some(id) => post.with("mcp-session-id", id).with("mcp-protocol-version", self.revision),
            None => post,
        }
    }

    pub(crate) fn server(&self) -> &TestServerProcess {
        match &self.wire {
            TestClientTransport::Stdio(stdio) => stdio,
            TestClientTransport::Http(served) => served,
        }
    }

    /// Requests all pages of the tool list, and returns the tools.
    #[track_caller]
    pub(crate) fn tools(&mut self) -> Vec<Value> {
        let mut tools = Vec::new();
        let mut cursor = None;
        for _page in 0..50 {
            let params =
                cursor.map_or_else(|| json!({}), |cursor: Value| json!({ "cursor": cursor }));
            let answer = self.ask("tools/list", params);
            tools.extend(answer["result"]["tools"].as_array().unwrap().iter().cloned());
            match answer["result"].get("nextCursor") {
                Some(next) => cursor = Some(next.clone()),
                None => return tools,
            }
        }
        panic!("the list has no end");
    }
}
