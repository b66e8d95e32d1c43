//! The dialects, from the client's side: a call becomes bytes, bytes become what was said.

mod mcp;
mod mira;
mod zyra;
mod workstation;
mod envelope;
mod synesthetic;

use serde_json::Value;

use super::http::Request;

/// Something to be said: as a request over HTTP, whose body is also what goes on a line.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) request: Request,
    /// By what the answer is known on a line.
    pub(super) id: u64,
}

/// What was answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    pub(super) error: bool,
    /// The wire's own code: a number, or a word.
    pub(super) code: String,
    /// What a person would read.
    pub(super) text: String,
    /// The structured result, where the dialect gives one.
    pub(super) data: Value,
    /// The status of HTTP, where there is one.
    pub(super) status: u16,
    /// The message as it came.
    pub(super) raw: Vec<u8>,
}

/// What a tool is called on a wire, and what it is given there.
pub(super) type Spelled = (String, Value);

/// A dialect.
pub(super) trait Spoken: Send {
    /// A tool of the catalog in the wire's words; none where the wire cannot say it.
    fn spell(&self, tool: &str, input: &Value) -> Option<Spelled>;
    /// A call of a tool by its name on the wire.
    fn call(&mut self, name: &str, input: &Value) -> Asked;
    /// Asks for a page of the tools; none where the wire has no list.
    fn list(&mut self, cursor: Option<&str>) -> Option<Asked>;
    /// The cheapest thing to be asked.
    fn ping(&mut self) -> Asked;
    fn decode(&self, message: &Value) -> Said;
    /// What is said before everything else, and whether it is answered.
    fn opening(&mut self) -> Vec<(Asked, bool)> {
        Vec::new()
    }
    /// Another method than those, with these parameters.
    fn rpc(&mut self, method: &str, params: &Value) -> Asked;
    /// Remembers the session that HTTP began.
    fn in_session(&mut self, _id: &str) {}
}

/// Which of them, over what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) dialect: Dialect,
    pub(super) over: Over,
}

/// A wire contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Mcp2026,
    Mcp2025,
    Mira,
    Zyra,
    Workstation,
    Envelope,
    Synesthetic,
}

/// How bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Stdio,
    Http,
    Socket,
}

/// Every way to say something.
pub(super) const WAYS: [Way; 16] = [
    way(Dialect::Mcp2026, Over::Stdio),
    way(Dialect::Mcp2026, Over::Http),
    way(Dialect::Mcp2025, Over::Stdio),
    way(Dialect::Mcp2025, Over::Http),
    way(Dialect::Mira, Over::Stdio),
    way(Dialect::Mira, Over::Http),
    way(Dialect::Mira, Over::Socket),
    way(Dialect::Zyra, Over::Stdio),
    way(Dialect::Zyra, Over::Http),
    way(Dialect::Zyra, Over::Socket),
    way(Dialect::Workstation, Over::Stdio),
    way(Dialect::Workstation, Over::Http),
    way(Dialect::Envelope, Over::Stdio),
    way(Dialect::Envelope, Over::Http),
    way(Dialect::Synesthetic, Over::Stdio),
    way(Dialect::Synesthetic, Over::Http),
];

const fn way(dialect: Dialect, over: Over) -> Way {
    Way { dialect, over }
}

impl Way {
    pub(super) fn name(self) -> String {
        let over = match self.over {
            Over::Stdio => "stdio",
            Over::Http => "http",
            Over::Socket => "ws",
        };
        format!("{} {over}", self.dialect.name())
    }

    pub(super) fn called(name: &str) -> Option<Self> {
        WAYS.into_iter().find(|way| way.name() == name)
    }

    pub(super) fn spoken(self) -> Box<dyn Spoken> {
        match self.dialect {
            Dialect::Mcp2026 => Box::new(mcp::Mcp::stateless()),
            Dialect::Mcp2025 => Box::new(mcp::Mcp::with_sessions()),
            Dialect::Mira => Box::new(mira::Mira::default()),
            Dialect::Zyra => Box::new(zyra::Zyra::default()),
            Dialect::Workstation => Box::new(workstation::Workstation::default()),
            Dialect::Envelope => Box::new(envelope::Envelope::over(self.over)),
            Dialect::Synesthetic => Box::new(synesthetic::Synesthetic::default()),
        }
    }
}

impl Dialect {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mcp2026 => "mcp-2026",
            Self::Mcp2025 => "mcp-2025",
            Self::Mira => "mira",
            Self::Zyra => "zyra",
            Self::Workstation => "workstation",
            Self::Envelope => "envelope",
            Self::Synesthetic => "synesthetic",
        }
    }

    /// What `--dialect` calls it.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Mcp2026 | Self::Mcp2025 => "mcp",
            Self::Mira | Self::Zyra | Self::Workstation | Self::Envelope | Self::Synesthetic => {
                self.name()
            }
        }
    }

    /// Where its WebSocket is.
    pub(super) fn socket(self) -> &'static str {
        match self {
            Self::Mira => "/ws/rpc",
            Self::Zyra
            | Self::Mcp2026
            | Self::Mcp2025
            | Self::Workstation
            | Self::Envelope
            | Self::Synesthetic => "/v1/ws/mcp",
        }
    }
}

/// Ids of requests, from 1.
#[derive(Debug, Default)]
struct Ids(u64);

impl Ids {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// A request of JSON-RPC to `path`.
fn rpc(ids: &mut Ids, path: &str, method: &str, params: &Value) -> Asked {
    let id = ids.next();
    let message =
        serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    Asked { request: Request::post(path, message.to_string().into_bytes()), id }
}

/// What an error of JSON-RPC says; none if it is none.
fn refused(message: &Value) -> Option<Said> {
    let error = message.get("error").filter(|error| error.is_object())?;
    let text = error["message"].as_str().unwrap_or_default();
    Some(Said {
        error: true,
        code: error["code"].to_string(),
        text: format!("{text} {}", error["data"]),
        data: error["data"].clone(),
        ..Said::default()
    })
}

/// The input, if all its keys are among `known`.
fn only(input: &Value, known: &[&str]) -> Option<serde_json::Map<String, Value>> {
    let object = input.as_object()?;
    object.keys().all(|key| known.contains(&key.as_str())).then(|| object.clone())
}
