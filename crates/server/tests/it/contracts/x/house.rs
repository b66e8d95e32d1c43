//! A server that speaks every dialect at one address, and each contract alone at one of its own.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::{Connection, Launch, Post, Served, Server, Workspace, call, modern, wait_for};

/// A dialect that files are read and programs are run by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tongue {
    Mcp,
    Zyra,
    Mira,
    Workstation,
    Envelope,
}

impl Tongue {
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

    /// How a call of `toolset.verb` is posted: where among others, where alone, and what.
    fn posted(self, tool: &str, arguments: &Value) -> (String, String, Value) {
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

    /// The text of a file in the answer to who reads it.
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

/// The server.
pub(super) struct House {
    pub(super) served: Served,
    alone: Vec<(Tongue, SocketAddr)>,
}

impl House {
    pub(super) fn over(workspace: &Workspace, tune: impl FnOnce(Launch) -> Launch) -> Self {
        let own = [Tongue::Zyra, Tongue::Mira, Tongue::Workstation, Tongue::Envelope];
        let listen =
            |name: &str| format!("[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"{name}\"\n");
        let settings: String = own.iter().map(|tongue| listen(tongue.name())).collect();
        let assets = "[assets]\nschemas = \"schemas\"\n";
        workspace.put("toolgate.toml", settings + &listen("synesthetic") + assets);
        workspace.put("schemas/tone.schema.json", r#"{"type":"object"}"#);
        let served = tune(Launch::over(workspace)).served();
        let at = |name: &str| {
            wait_for("the server says where it serves a contract alone", || {
                let log = served.log();
                let (_, rest) = log.split_once(&format!("serving {name} alone at http://"))?;
                rest.split_once("/\n")?.0.parse().ok()
            })
        };
        let alone = own.into_iter().map(|tongue| (tongue, at(tongue.name()))).collect();
        Self { served, alone }
    }

    /// The server itself.
    pub(super) fn server(&self) -> &Server {
        &self.served
    }

    /// What `tongue` answers to a call at the address of all.
    #[track_caller]
    pub(super) fn call(&self, tongue: Tongue, tool: &str, arguments: Value) -> Value {
        let (path, _, body) = tongue.posted(tool, &arguments);
        post(self.served.addr, &path, &body)
    }

    /// The same at its own address; MCP has none.
    #[track_caller]
    pub(super) fn call_alone(&self, tongue: Tongue, tool: &str, arguments: Value) -> Option<Value> {
        let (_, addr) = self.alone.iter().find(|(other, _)| *other == tongue)?;
        let (_, path, body) = tongue.posted(tool, &arguments);
        Some(post(*addr, &path, &body))
    }

    /// What `tongue` tells of the tools.
    #[track_caller]
    pub(super) fn tools(&self, tongue: Tongue) -> Value {
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let addr = self.served.addr;
        match tongue {
            Tongue::Mcp => post(addr, "/mcp", &modern(1, "tools/list", json!({}))),
            Tongue::Zyra => post(addr, "/v1/mcp", &list),
            Tongue::Mira => post(addr, "/rpc", &list),
            Tongue::Workstation => post(addr, "/workstation", &list),
            Tongue::Envelope => {
                let mut connection = Connection::to(addr);
                connection.post(&Post::bare("GET", "/mcp/discover"));
                connection.response().json()
            }
        }
    }

    /// What the Synesthetic contract answers.
    #[track_caller]
    pub(super) fn synesthetic(&self, method: &str, params: Value) -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        post(self.served.addr, "/synesthetic", &message)
    }
}

#[track_caller]
fn post(addr: SocketAddr, path: &str, body: &Value) -> Value {
    let mut connection = Connection::to(addr);
    // MCP's own has headers of its own; the others take no notice.
    connection.post(&Post::mcp(body).malformed().to(path));
    connection.response().message()
}
