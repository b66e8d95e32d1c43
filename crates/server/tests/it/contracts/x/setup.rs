//! Server that serves every dialect on a shared listener, and each contract also on a dedicated
//! listener.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpConnection, TestHttpRequest,
    TestServerProcess, call, modern, wait_for,
};

/// Dialect with tools for files and programs, which the tests compare with other dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TestedDialect {
    Mcp,
    Zyra,
    Mira,
    Workstation,
    Envelope,
}

impl TestedDialect {
    pub(super) const ALL: [Self; 5] =
        [Self::Mcp, Self::Zyra, Self::Mira, Self::Workstation, Self::Envelope];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::Zyra => "zyra",
            Self::Mira => "mira",
            Self::Workstation => "workstation",
            Self::Envelope => "envelope",
        }
    }

    /// Returns a call of `tool`: its path on the shared listener, its path on a dedicated listener,
    /// and its body.
    fn request(self, tool: &str, arguments: &Value) -> (String, String, Value) {
        let rpc = |method: &str, params| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let named =
            |name: String| rpc("tools/call", json!({ "name": name, "arguments": arguments }));
        let path = |all: &str, alone: &str, body| (all.to_owned(), alone.to_owned(), body);
        match self {
            Self::Mcp => path("/mcp", "/mcp", call(1, &tool.replace('.', "_"), arguments.clone())),
            Self::Zyra => path("/v1/mcp", "/v1/mcp", named(tool.replace('.', "-"))),
            Self::Mira => path("/rpc", "/", rpc(&tool.replace('.', "/"), arguments.clone())),
            Self::Workstation => {
                let name = tool.replace("files.", "filesystem.").replace('.', "/");
                path("/workstation", "/", named(name))
            }
            Self::Envelope => {
                let at = format!("/mcp/tool/mcp.tool:{tool}");
                path(&at, &at, json!({ "arguments": arguments }))
            }
        }
    }

    /// Returns the text of the file in `answer`, the answer to a read.
    #[track_caller]
    pub(super) fn text(self, answer: &Value) -> String {
        let at = match self {
            Self::Mcp => "/result/structuredContent/content",
            Self::Zyra => "/result/stdout",
            Self::Mira | Self::Workstation => "/result/content",
            Self::Envelope => "/data/result/content",
        };
        let text = answer.pointer(at).and_then(Value::as_str);
        text.unwrap_or_else(|| panic!("{}: {answer}", self.name())).to_owned()
    }
}

/// Running server that serves several contracts.
pub(super) struct MultiContractServer {
    pub(super) served: HttpServerProcess,
    alone: Vec<(TestedDialect, SocketAddr)>,
}

impl MultiContractServer {
    pub(super) fn over(
        workspace: &TempWorkspace,
        tune: impl FnOnce(ServerLaunchOptions) -> ServerLaunchOptions,
    ) -> Self {
        let own = [
            TestedDialect::Zyra,
            TestedDialect::Mira,
            TestedDialect::Workstation,
            TestedDialect::Envelope,
        ];
        let listen =
            |name: &str| format!("[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"{name}\"\n");
        let settings: String = own.iter().map(|dialect| listen(dialect.name())).collect();
        let assets = "[assets]\nschemas = \"schemas\"\n";
        workspace.put("toolgate.toml", settings + &listen("synesthetic") + assets);
        workspace.put("schemas/tone.schema.json", r#"{"type":"object"}"#);
        let served = tune(ServerLaunchOptions::over(workspace)).served();
        let at = |name: &str| {
            wait_for("the server logs the address of the dedicated listener", || {
                let log = served.log();
                let (_, rest) = log.split_once(&format!("serving {name} alone at http://"))?;
                rest.split_once("/\n")?.0.parse().ok()
            })
        };
        let alone = own.into_iter().map(|dialect| (dialect, at(dialect.name()))).collect();
        Self { served, alone }
    }

    /// Returns the server process.
    pub(super) fn server(&self) -> &TestServerProcess {
        &self.served
    }

    /// Calls a tool in `dialect` on the shared listener and returns the answer.
    #[track_caller]
    pub(super) fn call(&self, dialect: TestedDialect, tool: &str, arguments: Value) -> Value {
        let (path, _, body) = dialect.request(tool, &arguments);
        post(self.served.addr, &path, &body)
    }

    /// Calls a tool in `dialect` on its dedicated listener. Returns `None` for MCP, which has no
    /// such listener.
    #[track_caller]
    pub(super) fn call_alone(
        &self,
        dialect: TestedDialect,
        tool: &str,
        arguments: Value,
    ) -> Option<Value> {
        let (_, addr) = self.alone.iter().find(|(other, _)| *other == dialect)?;
        let (_, path, body) = dialect.request(tool, &arguments);
        Some(post(*addr, &path, &body))
    }

    /// Returns the tool list in `dialect`.
    #[track_caller]
    pub(super) fn tools(&self, dialect: TestedDialect) -> Value {
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let addr = self.served.addr;
        match dialect {
            TestedDialect::Mcp => post(addr, "/mcp", &modern(1, "tools/list", json!({}))),
            TestedDialect::Zyra => post(addr, "/v1/mcp", &list),
            TestedDialect::Mira => post(addr, "/rpc", &list),
            TestedDialect::Workstation => post(addr, "/workstation", &list),
            TestedDialect::Envelope => {
                let mut connection = TestHttpConnection::to(addr);
                connection.post(&TestHttpRequest::bare("GET", "/mcp/discover"));
                connection.response().json()
            }
        }
    }

    /// Calls a method of the Synesthetic contract and returns the answer.
    #[track_caller]
    pub(super) fn synesthetic(&self, method: &str, params: Value) -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        post(self.served.addr, "/synesthetic", &message)
    }
}

#[track_caller]
fn post(addr: SocketAddr, path: &str, body: &Value) -> Value {
    let mut connection = TestHttpConnection::to(addr);
    // MCP needs its own headers; the other dialects ignore them.
    connection.post(&TestHttpRequest::mcp(body).malformed().to(path));
    connection.response().message()
}
