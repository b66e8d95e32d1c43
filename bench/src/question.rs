//! Requests that the benchmarks send to each server.

use std::io::Write;

use anyhow::{Context, ensure};
use memchr::memmem::{find, rfind};
use serde_json::{Value, json};

/// Request without its id, and a text that the answer must contain.
#[derive(Clone)]
pub(crate) struct BenchRequestTemplate {
    /// JSON text of the request after its id: `,"method":…}`.
    rest: String,
    answer: String,
}

impl BenchRequestTemplate {
    /// Returns a request that calls `tool`. The answer must contain the text `answer`.
    pub(crate) fn call(tool: &str, arguments: &Value, answer: &str) -> Self {
        Self::from_params(&json!({ "name": tool, "arguments": arguments }), answer)
    }

    /// Returns a request that calls `tool` in MCP revision 2026-07-28, which needs no session. The
    /// answer must contain the text `answer`.
    pub(crate) fn stateless(tool: &str, arguments: &Value, answer: &str) -> Self {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "bench", "version": "0" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        Self::from_params(&json!({ "_meta": meta, "name": tool, "arguments": arguments }), answer)
    }

    fn from_params(params: &Value, answer: &str) -> Self {
        Self::method("tools/call", params, answer)
    }

    /// Returns a request of `method`. The answer must contain the text `answer`.
    pub(crate) fn method(method: &str, params: &Value, answer: &str) -> Self {
        let rest = format!(",\"method\":\"{method}\",\"params\":{params}}}");
        Self { rest, answer: answer.to_owned() }
    }

    /// Appends the request to `out` with the id `id`, as one line.
    pub(crate) fn write_line(&self, id: u64, out: &mut Vec<u8>) {
        let _ = writeln!(out, "{{\"jsonrpc\":\"2.0\",\"id\":{id}{}", self.rest);
    }

    /// Returns the request with the id `id`. The id must be JSON: a number or a quoted text.
    pub(crate) fn body(&self, id: &str) -> String {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id}{}", self.rest)
    }

    /// Fails unless `answer` contains the text that the request expects.
    pub(crate) fn check(&self, answer: &[u8]) -> anyhow::Result<()> {
        let is_expected = find(answer, self.answer.as_bytes()).is_some();
        ensure!(is_expected, "a wrong answer: {}", excerpt(answer));
        Ok(())
    }
}

/// Returns the JSON-RPC id in `answer`. Some servers write the id first and some last.
pub(crate) fn response_id(answer: &[u8]) -> anyhow::Result<u64> {
    const NAME: &[u8] = b"\"id\":";
    const NEAR: usize = 64;
    let first = find(&answer[..answer.len().min(NEAR)], NAME);
    let last = answer.len().saturating_sub(NEAR);
    let start = first.or_else(|| Some(last + rfind(&answer[last..], NAME)?));
    let digits =
        &answer[start.with_context(|| format!("no id: {}", excerpt(answer)))? + NAME.len()..];
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    Ok(std::str::from_utf8(&digits[..count])?.parse()?)
}

/// Returns the first 300 bytes of an answer as text.
pub(crate) fn excerpt(answer: &[u8]) -> String {
    String::from_utf8_lossy(&answer[..answer.len().min(300)]).into_owned()
}
