//! What is asked, whoever is asked it.

use std::io::Write;

use anyhow::{Context, ensure};
use memchr::memmem::{find, rfind};
use serde_json::{Value, json};

/// A question, without its id, and what the answer to it holds.
#[derive(Clone)]
pub(crate) struct Question {
    /// `,"method":…}`.
    rest: String,
    answer: String,
}

impl Question {
    /// A call of `tool`, the answer to which holds `answer`.
    pub(crate) fn call(tool: &str, arguments: &Value, answer: &str) -> Self {
        Self::of(&json!({ "name": tool, "arguments": arguments }), answer)
    }

    /// The same of 2026-07-28, which needs no session.
    pub(crate) fn stateless(tool: &str, arguments: &Value, answer: &str) -> Self {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "bench", "version": "0" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        Self::of(&json!({ "_meta": meta, "name": tool, "arguments": arguments }), answer)
    }

    fn of(params: &Value, answer: &str) -> Self {
        Self::method("tools/call", params, answer)
    }

    /// A call of `method`.
    pub(crate) fn method(method: &str, params: &Value, answer: &str) -> Self {
        let rest = format!(",\"method\":\"{method}\",\"params\":{params}}}");
        Self { rest, answer: answer.to_owned() }
    }

    /// As `id` on a line.
    pub(crate) fn line(&self, id: u64, out: &mut Vec<u8>) {
        let _ = writeln!(out, "{{\"jsonrpc\":\"2.0\",\"id\":{id}{}", self.rest);
    }

    /// As `id`, which is JSON.
    pub(crate) fn body(&self, id: &str) -> String {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id}{}", self.rest)
    }

    /// Sees that `answer` is one.
    pub(crate) fn check(&self, answer: &[u8]) -> anyhow::Result<()> {
        let is_right = find(answer, self.answer.as_bytes()).is_some();
        ensure!(is_right, "a wrong answer: {}", shown(answer));
        Ok(())
    }
}

/// What `answer` answers; some write it first and some last.
pub(crate) fn id_of(answer: &[u8]) -> anyhow::Result<u64> {
    const NAME: &[u8] = b"\"id\":";
    const NEAR: usize = 64;
    let first = find(&answer[..answer.len().min(NEAR)], NAME);
    let last = answer.len().saturating_sub(NEAR);
    let at = first.or_else(|| Some(last + rfind(&answer[last..], NAME)?));
    let digits = &answer[at.with_context(|| format!("no id: {}", shown(answer)))? + NAME.len()..];
    let count = digits.iter().take_while(|it| it.is_ascii_digit()).count();
    Ok(std::str::from_utf8(&digits[..count])?.parse()?)
}

/// The beginning of an answer.
pub(crate) fn shown(answer: &[u8]) -> String {
    String::from_utf8_lossy(&answer[..answer.len().min(300)]).into_owned()
}
