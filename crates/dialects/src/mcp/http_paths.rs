//! MCP's HTTP paths: the endpoint, the HTTP+SSE transport of 2024-11-05 and the server card.

use http::Method;
use serde_json::{Value, json};
use toolgate_contract::{FrameMetadata, Reply};

use super::revision::REVISIONS;
use crate::rpc::to_json;
use crate::{HttpSseRequestKind, ServerCard, ServerInfo};

const ENDPOINT: &str = "/mcp";
const STREAM: &str = "/sse";
const MESSAGES: &str = "/messages";
const CARD: &str = "/mcp/server-card";
const CATALOG: &str = "/.well-known/ai-catalog.json";

/// The query parameter that contains the conversation id in the HTTP+SSE transport.
const CONVERSATION: &str = "session_id=";
/// The maximum number of characters of the server's description in a server card.
const ABOUT_CHARS_MAX: usize = 100;
/// The `cache-control` value of a server card: one hour.
const CACHE_CONTROL: &str = "public, max-age=3600";

/// Returns the HTTP paths of MCP that the server uses.
pub(crate) fn paths(facts: &ServerInfo) -> &'static [&'static str] {
    match (facts.http_sse, &facts.card) {
        (false, None) => &[ENDPOINT],
        (true, None) => &[ENDPOINT, STREAM, MESSAGES],
        (false, Some(_)) => &[ENDPOINT, CARD, CATALOG],
        (true, Some(_)) => &[ENDPOINT, STREAM, MESSAGES, CARD, CATALOG],
    }
}

/// Returns the kind of a request in an HTTP+SSE conversation. Returns `None` if the request belongs
/// to no such conversation.
pub(crate) fn duplex(head: &FrameMetadata) -> Option<HttpSseRequestKind> {
    let FrameMetadata::Http { method, path, query, .. } = head else { return None };
    match (method, path.as_str()) {
        (&Method::GET, STREAM) => Some(HttpSseRequestKind::Open),
        (&Method::POST, MESSAGES) => {
            let id = query.split('&').find_map(|pair| pair.strip_prefix(CONVERSATION));
            Some(HttpSseRequestKind::Message { id: id.unwrap_or_default().to_owned() })
        }
        _ => None,
    }
}

/// Returns the path to which the client of the HTTP+SSE conversation `id` posts its messages.
pub(crate) fn endpoint(id: &str) -> String {
    format!("{MESSAGES}?{CONVERSATION}{id}")
}

/// Returns the text for a person who opens the MCP endpoint in a browser. Returns `None` for a
/// request that does not come from a browser or has another path.
pub(crate) fn greeting(facts: &ServerInfo, head: &FrameMetadata) -> Option<Reply> {
    let FrameMetadata::Http { method: Method::GET | Method::HEAD, path, .. } = head else {
        return None;
    };
    let accepts_html = |value: &[u8]| String::from_utf8_lossy(value).contains("text/html");
    if path != ENDPOINT || !head.header("accept").any(accepts_html) {
        return None;
    }
    let url = format!("{}{ENDPOINT}", origin(facts, head));
    let ServerInfo { name, title, .. } = facts;
    let text = format!(
        "This is {title}, which serves tools to AI agents over MCP. Give this address to a client, \
         such as: claude mcp add --transport http {name} {url}"
    );
    let reply = Reply::json(text).with_status(405).with_header("allow", "POST");
    Some(reply.with_header("content-type", "text/plain; charset=utf-8"))
}

/// Returns the server card, or the catalog that links to the card, at the request's path. Returns
/// `None` if the path has neither.
pub(crate) fn document(facts: &ServerInfo, head: &FrameMetadata) -> Option<Reply> {
    let FrameMetadata::Http { method, path, .. } = head else { return None };
    let card = facts.card.as_ref()?;
    let path = path.as_str();
    let (kind, text) = match path {
        CARD => ("application/mcp-server-card+json", self::card(facts, card)),
        CATALOG => ("application/ai-catalog+json", catalog(card)),
        _ => return None,
    };
    if method != Method::GET && method != Method::HEAD {
        return Some(Reply::empty(405).with_header("allow", "GET, HEAD"));
    }
    let text = to_json(&text);
    let tag = format!("\"{}\"", fingerprint(&text));
    let known = head.header("if-none-match").any(|known| known == tag.as_bytes());
    let reply = if known { Reply::empty(304) } else { Reply::json(text) };
    Some(
        reply
            .with_header("content-type", kind)
            .with_header("etag", tag)
            .with_header("cache-control", CACHE_CONTROL),
    )
}

fn card(facts: &ServerInfo, ServerCard { name, url }: &ServerCard) -> Value {
    let versions = REVISIONS.each_ref().map(|row| row.name);
    let about = if facts.description.is_empty() { &facts.title } else { &facts.description };
    json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
        "name": name,
        "version": facts.version,
        "title": facts.title,
        "description": about.chars().take(ABOUT_CHARS_MAX).collect::<String>(),
        "remotes": [{
            "type": "streamable-http",
            "url": url,
            "supportedProtocolVersions": versions,
        }],
    })
}

fn catalog(ServerCard { name, url }: &ServerCard) -> Value {
    // For example, `com.example/weather` becomes `urn:air:example.com:mcp:weather`.
    let (namespace, short) = name.split_once('/').unwrap_or(("", name));
    let mut labels: Vec<&str> = namespace.split('.').collect();
    labels.reverse();
    json!({
        "specVersion": "1.0",
        "entries": [{
            "identifier": format!("urn:air:{}:mcp:{short}", labels.join(".")),
            "type": "application/mcp-server-card+json",
            "url": format!("{}/server-card", url.trim_end_matches('/')),
        }],
    })
}

/// Returns the origin (scheme and host) under which the client reached the server.
fn origin(facts: &ServerInfo, head: &FrameMetadata) -> String {
    let host = head.header("host").next().and_then(|host| std::str::from_utf8(host).ok());
    let scheme = if facts.tls { "https" } else { "http" };
    format!("{scheme}://{}", host.unwrap_or("localhost"))
}

/// Returns the FNV-1a hash of `text` in hex, for an etag.
fn fingerprint(text: &[u8]) -> String {
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
