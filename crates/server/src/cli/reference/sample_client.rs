//! Sample requests to each dialect, for reference pages that show the dialects' messages.

use std::sync::Arc;

use anyhow::{Context, bail};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use toolgate_contract::{Caller, FrameMetadata, MessageFrame, ToolResultFormat};
use toolgate_dialects::mcp::{McpRevision, SessionModel};
use toolgate_dialects::{
    AgentInstructions, Dialect, ParsedFrame, PendingHostRequest, ServerInfo, all_dialects,
};

/// Id of the job in the sample messages of the reference.
pub(super) const JOB_ID: &str = "00000000000000000000000000000001";

/// Returns all dialects of a server with every feature, for the samples of the reference.
pub(super) fn dialects() -> Vec<Arc<dyn Dialect>> {
    all_dialects(&Arc::new(ServerInfo {
        name: "toolgate".to_owned(),
        title: "toolgate".to_owned(),
        version: "1.0.0".to_owned(),
        description: String::new(),
        instructions: AgentInstructions::default(),
        jobs: true,
        resources: true,
        prompts: true,
        skills: true,
        http_sse: true,
        card: None,
        zyra_body_bytes_max: None,
        requires_auth: true,
        tls: false,
        results: ToolResultFormat::Text,
    }))
}

/// Returns the dialect `name`. Fails if no dialect has this name.
pub(super) fn dialect(name: &str) -> anyhow::Result<Arc<dyn Dialect>> {
    let found = dialects().into_iter().find(|dialect| dialect.name() == name);
    found.with_context(|| format!("no dialect is named `{name}`"))
}

/// Passes `frames` to the dialect `name` as messages of one client. Returns the last frame as the
/// dialect parsed it. Fails if the dialect is unknown, or if there are no frames.
pub(super) fn read(name: &str, frames: &[MessageFrame]) -> anyhow::Result<ParsedFrame> {
    let mut conversation = dialect(name)?.start_conversation(&Caller::local());
    let mut last = None;
    for frame in frames {
        last = Some(conversation.read(frame));
    }
    last.context("there are no frames")
}

/// Passes `frames` to the dialect `name` as messages of one client. Returns the request in the last
/// frame, and fails if the dialect refused that frame.
pub(super) fn request(name: &str, frames: &[MessageFrame]) -> anyhow::Result<PendingHostRequest> {
    match read(name, frames)? {
        ParsedFrame::Request(request) => Ok(request),
        _ => bail!("a sample for dialect `{name}` is not a valid request"),
    }
}

/// Returns an HTTP request with these headers and a JSON body, as a frame.
pub(super) fn http_frame(
    method: Method,
    path: &str,
    headers: &[(&'static str, &str)],
    body: &Value,
) -> MessageFrame {
    let header = |&(name, value): &(&'static str, &str)| {
        let value = HeaderValue::from_str(value).expect("samples of headers are ASCII");
        (http::HeaderName::from_static(name), value)
    };
    let headers: HeaderMap = headers.iter().map(header).collect();
    let head = FrameMetadata::Http { method, path: path.to_owned(), query: String::new(), headers };
    MessageFrame { head, body: body.to_string().into() }
}

/// Returns a JSON-RPC request of `method` with `params`, as JSON.
pub(super) fn rpc(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}

/// Returns the frames of an MCP client that makes one request over HTTP in the protocol revision
/// `revision`.
pub(super) fn mcp(revision: &McpRevision, method: &str, mut params: Value) -> Vec<MessageFrame> {
    let McpRevision { name, era, .. } = revision;
    match era {
        SessionModel::Session => {
            let hello = json!({
                "protocolVersion": name,
                "capabilities": {},
                "clientInfo": { "name": "sample", "version": "1" },
            });
            let post = |body| http_frame(Method::POST, "/mcp", &[], &body);
            vec![post(rpc("initialize", &hello)), post(rpc(method, &params))]
        }
        SessionModel::Stateless => {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(name);
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
            let subject = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default();
            let headers = [
                ("mcp-protocol-version", *name),
                ("mcp-method", method),
                ("mcp-name", subject),
                ("accept", "application/json, text/event-stream"),
            ];
            vec![http_frame(Method::POST, "/mcp", &headers, &rpc(method, &params))]
        }
    }
}
