//! One call to a running server, in the stateless revision of MCP.

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use toolgate_contract::{Ending, Output, Text, fold};
use toolgate_dialects::mcp::{Era, Revision};

/// Calls `tool` at the MCP endpoint `url`: its output, or why there is none.
pub(super) async fn call(
    url: &str,
    tool: &str,
    input: Value,
) -> anyhow::Result<Result<Output, String>> {
    let name = fold(tool);
    let params = json!({ "name": name, "arguments": input });
    let message = ask(url, "tools/call", Some(&name), params).await?;
    if let Some(error) = message.get("error") {
        let message = error["message"].as_str().unwrap_or("the server refused the call");
        return Ok(Err(message.to_owned()));
    }
    Ok(outcome(&message["result"]))
}

/// Sends one request and gives back the JSON-RPC message that answers it.
pub(super) async fn ask(
    url: &str,
    method: &str,
    name: Option<&str>,
    mut params: Value,
) -> anyhow::Result<Value> {
    let revision = Revision::newest(Era::Stateless).name;
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": revision,
        "io.modelcontextprotocol/clientInfo": { "name": "toolgate", "version": env!("CARGO_PKG_VERSION") },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });

    let uri: http::Uri = url.parse().with_context(|| format!("`{url}` is not a URL"))?;
    let Some(authority) = uri.authority().filter(|_| uri.scheme_str() == Some("http")) else {
        bail!("`{url}` is not a URL such as http://127.0.0.1:8000/mcp; only http is spoken here");
    };
    let address = (authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(80));
    let stream = TcpStream::connect(address).await.with_context(|| {
        format!("no server answers at {authority}; is `toolgate serve` running?")
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);

    let mut request = Request::post(uri.path())
        .header("host", authority.as_str())
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", revision)
        .header("mcp-method", method);
    if let Some(name) = name {
        request = request.header("mcp-name", name);
    }
    let request = request.body(Full::new(Bytes::from(body.to_string())))?;
    let response = sender.send_request(request).await.context("the server broke off")?;
    let status = response.status();
    let body = response.into_body().collect().await.context("the server broke off")?.to_bytes();
    let text = String::from_utf8_lossy(&body);
    last_message(&text).with_context(|| format!("{url} answered {status}: {}", text.trim()))
}

/// The one message of a JSON body, or the last of an event stream.
fn last_message(body: &str) -> anyhow::Result<Value> {
    let event = body.lines().rev().find_map(|line| line.strip_prefix("data:"));
    Ok(serde_json::from_str(event.unwrap_or(body))?)
}

fn outcome(result: &Value) -> Result<Output, String> {
    let texts: Vec<_> = result["content"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|block| block["text"].as_str())
        .collect();
    let failed = result["isError"] == true;
    let structured = result.get("structuredContent");
    if failed && structured.is_none() {
        return Err(texts.join("\n"));
    }
    let text = match texts.split_first() {
        Some((body, [])) => Text::body(*body),
        Some((body, notes)) => Text::body(*body).with_note(notes.join("\n")),
        None => Text::default(),
    };
    let ending = if failed { Ending::ProgramFailed } else { Ending::Done };
    Ok(Output { value: structured.cloned().unwrap_or_default(), text, ending })
}
