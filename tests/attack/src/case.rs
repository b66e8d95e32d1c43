//! Attack cases. Each line of `attacks.jsonl` or `extra.jsonl` defines an attack, and conditions
//! that must hold after it.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

/// Attack case: the setup, the call that attacks, and the conditions to check.
#[derive(Debug, Clone)]
pub(super) struct AttackCase {
    pub(super) id: String,
    pub(super) title: String,
    /// Shell commands with placeholders that prepare the workspace. If they are prose, `setup.rs`
    /// has code for the case.
    pub(super) setup: Vec<String>,
    pub(super) input: Value,
    pub(super) assertions: Vec<AttackCaseAssertion>,
    /// True if the case comes from `extra.jsonl`.
    pub(super) is_extra: bool,
}

/// Condition that the results of an attack case must meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AttackCaseAssertion {
    /// The call must fail for one of these reasons, or for any reason if the list is empty.
    Error(Vec<ExpectedRefusalReason>),
    /// The call must succeed.
    Ok,
    /// The call must succeed, or fail for one of these reasons.
    OkOrError(Vec<ExpectedRefusalReason>),
    /// The call must fail, or keep every byte of the file that it does not edit.
    ErrorOrBytesPreserved,
    /// The server must refuse the message with one of these JSON-RPC error codes.
    RpcError(Vec<i64>),
    /// The HTTP status of the response must be one of these.
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
    /// Invariant that is checked after every case, so that nothing else is checked here.
    Invariant,
    /// The code of the case must have recorded a finding of this name, without an error.
    Finding(String),
}

/// Reason of a refusal, as the files of attack cases spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedRefusalReason {
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

/// Names of findings that only code for a single attack case can record.
const FINDINGS: [&str; 17] = [
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

/// Reads all attack cases in `file`. An error contains the number of the invalid line.
pub(super) fn load(file: &Path, is_extra: bool) -> anyhow::Result<Vec<AttackCase>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            parse_line(line, is_extra).with_context(|| format!("{}:{}", file.display(), at + 1))
        })
        .collect()
}

fn parse_line(line: &str, is_extra: bool) -> anyhow::Result<AttackCase> {
    let line: Value = serde_json::from_str(line)?;
    let text = |name: &str| line[name].as_str().map(str::to_owned).context(name.to_owned());
    let texts = |name: &str| -> anyhow::Result<Vec<String>> {
        let all = line[name].as_array().with_context(|| name.to_owned())?;
        all.iter().map(|one| one.as_str().map(str::to_owned).context("no text")).collect()
    };
    let assertions = texts("asserts")?
        .iter()
        .map(|word| AttackCaseAssertion::parse(word))
        .collect::<Result<_, _>>();
    Ok(AttackCase {
        id: text("id")?,
        title: text("title")?,
        setup: texts("setup")?,
        input: line["input"].clone(),
        assertions: assertions?,
        is_extra,
    })
}

impl AttackCase {
    /// Returns the name of the test for this case: the id and the words of the title, in lower
    /// case.
    pub(super) fn test_name(&self) -> String {
        let text = format!("{} {}", self.id, self.title).to_ascii_lowercase();
        let words =
            text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("_")
    }
}

impl AttackCaseAssertion {
    /// Parses an assertion in the list `asserts` of a case. An unknown assertion is an error.
    pub(super) fn parse(word: &str) -> anyhow::Result<Self> {
        let (name, value) = word.split_once(':').unwrap_or((word, ""));
        Ok(match name {
            "error" if value == "*" => Self::Error(Vec::new()),
            "error" if value == "*|bytes_preserved" => Self::ErrorOrBytesPreserved,
            "error" => match value.strip_suffix("|ok") {
                Some(reasons) => Self::OkOrError(parse_reasons(reasons)?),
                None => Self::Error(parse_reasons(value)?),
            },
            "ok" if value.is_empty() => Self::Ok,
            "ok_or_error" => Self::OkOrError(parse_reasons(value)?),
            "rpc_error" => Self::RpcError(parse_numbers(value)?),
            "status" => Self::Status(parse_numbers(value)?),
            "exists" => Self::Exists(value.to_owned()),
            "not_exists" => Self::NotExists(value.to_owned()),
            "unchanged" => Self::Unchanged(value.to_owned()),
            "content" => Self::Content(value.to_owned()),
            "bytes" => Self::Bytes(parse_python_bytes(value)?),
            "mode" => Self::Mode(u32::from_str_radix(value, 8)?),
            "max_ms" => Self::MaxMs(value.parse()?),
            "max_rss_mb" => Self::MaxRssMb(value.parse()?),
            "max_bytes" => Self::MaxBytes,
            "truncated" => Self::Truncated,
            "exit_nonzero" => Self::ExitNonzero,
            "rpc_stream_valid" => Self::RpcStreamValid,
            "ws_unchanged" => Self::WorkspaceUnchanged,
            "no_canary" | "no_env_canary" | "outside_unchanged" | "alive" | "no_survivors" => {
                Self::Invariant
            }
            _ if FINDINGS.contains(&word) => Self::Finding(word.to_owned()),
            _ => bail!("unknown assertion `{word}`"),
        })
    }
}

fn parse_reasons(text: &str) -> anyhow::Result<Vec<ExpectedRefusalReason>> {
    text.split('|').map(ExpectedRefusalReason::parse).collect()
}

fn parse_numbers<N>(text: &str) -> anyhow::Result<Vec<N>>
where
    N: std::str::FromStr,
    N::Err: std::error::Error + Send + Sync + 'static,
{
    text.split('|').map(|number| number.parse().with_context(|| format!("`{number}`"))).collect()
}

impl ExpectedRefusalReason {
    fn parse(word: &str) -> anyhow::Result<Self> {
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
            _ => bail!("unknown reason `{word}`"),
        })
    }
}

/// Parses a bytes literal in Python syntax, `b'…'`.
fn parse_python_bytes(literal: &str) -> anyhow::Result<Vec<u8>> {
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
    fn an_unknown_assertion_is_refused_when_parsed() {
        for word in ["", "eror:*", "error:NO_SUCH", "ok:1", "mode:9", "bytes:x", "race:", "status:"]
        {
            assert!(AttackCaseAssertion::parse(word).is_err(), "{word}");
        }
    }

    #[test]
    fn python_literals_are_parsed_byte_for_byte() {
        assert_eq!(parse_python_bytes(r"b'a\r\n\xef\\'").expect("sound"), b"a\r\n\xef\\");
    }

    #[test]
    fn a_test_name_has_the_id_and_the_words_of_the_title() {
        let line = r#"{"id":"F04","title":"An absolute path (to /etc) is refused.","setup":[],"input":{},"asserts":[]}"#;
        let case = parse_line(line, false).expect("a case");
        assert_eq!(case.test_name(), "f04_an_absolute_path_to_etc_is_refused");
    }
}
