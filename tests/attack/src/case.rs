//! A line of `tests/attack/*.jsonl`: what is tried, and what must be so afterwards.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

/// One attack.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) id: String,
    pub(super) title: String,
    /// Lines for `sh`, with `{WS}` and `{EVIL}` in them; some are prose, and are code in `setups`.
    pub(super) setup: Vec<String>,
    pub(super) input: Value,
    pub(super) asserts: Vec<Assert>,
    /// Whether it is one of ours, beside the shared ones.
    pub(super) more: bool,
}

/// One thing that must be so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Assert {
    /// It is refused, for one of these reasons; any, where there are none.
    Error(Vec<Code>),
    Ok,
    /// Either it is done, or refused for one of these.
    OkOrError(Vec<Code>),
    /// It is refused, or every byte is as it was.
    ErrorOrBytesPreserved,
    /// A refusal of JSON-RPC itself, by one of these codes.
    RpcError(Vec<i64>),
    /// The HTTP status is one of these.
    Status(Vec<u16>),
    Exists(String),
    NotExists(String),
    Unchanged(String),
    Content(String),
    Bytes(Vec<u8>),
    Mode(u32),
    MaxMs(u128),
    MaxRssMb(u64),
    MaxBytes,
    Truncated,
    ExitNonzero,
    RpcStreamValid,
    WorkspaceUnchanged,
    /// What a seal looks at after every case anyway.
    Sealed,
    /// What whoever plays the case must have looked at, by this word.
    Shown(String),
}

/// A reason in the words of the cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    PathEscape,
    PolicyDenied,
    InvalidArg,
    NotRegular,
    NotFound,
    PreconditionFailed,
    Limit,
    Timeout,
    TooLarge,
}

/// What only the one who plays a case can look at.
const SHOWN: [&str; 17] = [
    "linearizable",
    "etag_changed",
    "atomic",
    "paginated",
    "sandbox_report",
    "listener_silent",
    "fds:0,1,2",
    "entropy:128",
    "state:lost",
    "state:degraded",
    "no_stale",
    "structured_only",
    "no_ctrl",
    "bind:127.0.0.1",
    "config_rejected",
    "race:no_canary",
    "race:outside_unchanged",
];

/// All cases of a file, or what is wrong with it.
pub(super) fn load(file: &Path, more: bool) -> anyhow::Result<Vec<Case>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            read(line, more).with_context(|| format!("{}:{}", file.display(), at + 1))
        })
        .collect()
}

fn read(line: &str, more: bool) -> anyhow::Result<Case> {
    let line: Value = serde_json::from_str(line)?;
    let text = |name: &str| line[name].as_str().map(str::to_owned).context(name.to_owned());
    let texts = |name: &str| -> anyhow::Result<Vec<String>> {
        let all = line[name].as_array().with_context(|| name.to_owned())?;
        all.iter().map(|one| one.as_str().map(str::to_owned).context("no text")).collect()
    };
    let asserts = texts("asserts")?.iter().map(|word| Assert::read(word)).collect::<Result<_, _>>();
    Ok(Case {
        id: text("id")?,
        title: text("title")?,
        setup: texts("setup")?,
        input: line["input"].clone(),
        asserts: asserts?,
        more,
    })
}

impl Assert {
    /// What a word means; a word that means nothing is an error.
    pub(super) fn read(word: &str) -> anyhow::Result<Self> {
        let (name, value) = word.split_once(':').unwrap_or((word, ""));
        Ok(match name {
            "error" if value == "*" => Self::Error(Vec::new()),
            "error" if value == "*|bytes_preserved" => Self::ErrorOrBytesPreserved,
            "error" => match value.strip_suffix("|ok") {
                Some(codes) => Self::OkOrError(codes_of(codes)?),
                None => Self::Error(codes_of(value)?),
            },
            "ok" if value.is_empty() => Self::Ok,
            "ok_or_error" => Self::OkOrError(codes_of(value)?),
            "rpc_error" => Self::RpcError(numbers(value)?),
            "status" => Self::Status(numbers(value)?),
            "exists" => Self::Exists(value.to_owned()),
            "not_exists" => Self::NotExists(value.to_owned()),
            "unchanged" => Self::Unchanged(value.to_owned()),
            "content" => Self::Content(value.to_owned()),
            "bytes" => Self::Bytes(pythons(value)?),
            "mode" => Self::Mode(u32::from_str_radix(value, 8)?),
            "max_ms" => Self::MaxMs(value.parse()?),
            "max_rss_mb" => Self::MaxRssMb(value.parse()?),
            "max_bytes" => Self::MaxBytes,
            "truncated" => Self::Truncated,
            "exit_nonzero" => Self::ExitNonzero,
            "rpc_stream_valid" => Self::RpcStreamValid,
            "ws_unchanged" => Self::WorkspaceUnchanged,
            "no_canary" | "no_env_canary" | "outside_unchanged" | "alive" | "no_survivors" => {
                Self::Sealed
            }
            _ if SHOWN.contains(&word) => Self::Shown(word.to_owned()),
            _ => bail!("no assert is called `{word}`"),
        })
    }
}

fn codes_of(text: &str) -> anyhow::Result<Vec<Code>> {
    text.split('|').map(Code::read).collect()
}

fn numbers<N>(text: &str) -> anyhow::Result<Vec<N>>
where
    N: std::str::FromStr,
    N::Err: std::error::Error + Send + Sync + 'static,
{
    text.split('|').map(|number| number.parse().with_context(|| format!("`{number}`"))).collect()
}

impl Code {
    fn read(word: &str) -> anyhow::Result<Self> {
        Ok(match word {
            "PATH_ESCAPE" => Self::PathEscape,
            "POLICY_DENIED" => Self::PolicyDenied,
            "INVALID_ARG" => Self::InvalidArg,
            "NOT_REGULAR" => Self::NotRegular,
            "NOT_FOUND" => Self::NotFound,
            "PRECONDITION_FAILED" => Self::PreconditionFailed,
            "LIMIT" => Self::Limit,
            "TIMEOUT" => Self::Timeout,
            "TOO_LARGE" => Self::TooLarge,
            _ => bail!("no reason is called `{word}`"),
        })
    }
}

/// The bytes of a literal of Python's, `b'…'`.
fn pythons(literal: &str) -> anyhow::Result<Vec<u8>> {
    let inner = literal.strip_prefix("b'").and_then(|rest| rest.strip_suffix('\''));
    let mut rest = inner.context("not b'…'")?.bytes();
    let mut bytes = Vec::new();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().context("a lone backslash")? {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'x' => {
                let digits = [rest.next(), rest.next()].map(|digit| digit.unwrap_or(b'?'));
                u8::from_str_radix(std::str::from_utf8(&digits)?, 16)?
            }
            other => other,
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_assert_is_refused_when_parsed() {
        for word in ["", "eror:*", "error:NO_SUCH", "ok:1", "mode:9", "bytes:x", "race:", "status:"]
        {
            assert!(Assert::read(word).is_err(), "{word}");
        }
    }

    #[test]
    fn python_literals_are_parsed_byte_for_byte() {
        assert_eq!(pythons(r"b'a\r\n\xef\\'").expect("sound"), b"a\r\n\xef\\");
    }
}
