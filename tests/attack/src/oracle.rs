//! What came of a case: the wire's word, the audit record's, and what the asserts make of both.

use std::fs;

use serde_json::Value;

use super::case::{Assert, Code};
use super::play::{Came, Play};
use super::server::audit;
use super::spoken::{Dialect, Said};

/// How much of what a call may be answered with: four times the most that a tool gives at once,
/// since a wire may say it twice and escape it.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// What is said first of an answer that took too long.
pub(super) const LATE: &str = "it took";

/// Gives each of `came` the outcome of its record.
pub(super) fn with_records(play: &Play, came: &mut [Came]) {
    let text = fs::read_to_string(audit(&play.stage)).unwrap_or_default();
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut records: Vec<(String, String)> = records
        .filter_map(|record| {
            let tool = plain(record["tool"].as_str()?);
            Some((tool, record["outcome"].as_str()?.to_owned()))
        })
        .collect();
    for one in came {
        let tool = plain(&one.tool);
        if let Some(at) = records.iter().position(|(recorded, _)| *recorded == tool) {
            one.outcome = Some(records.remove(at).1);
        }
    }
}

/// A tool's name without what dialects put between its words.
fn plain(name: &str) -> String {
    let name = name.strip_prefix("mcp.tool:").unwrap_or(name);
    let name = match name {
        "exports.render.markdown" => "docs.render",
        "vector.query.search" => "docs.search",
        "vector/search" => "search.semantic",
        name => name,
    };
    let name = name.replace("filesystem", "files");
    name.chars().filter(char::is_ascii_alphanumeric).collect()
}

/// The words of the audit log that a reason may have.
fn outcomes(code: Code, said: &Said, of_resource: bool) -> Vec<&'static str> {
    match code {
        Code::PathEscape if of_resource => vec!["not_allowed", "not_found"],
        Code::PathEscape | Code::PolicyDenied => vec!["not_allowed"],
        Code::InvalidArg | Code::NotRegular => vec!["invalid_input"],
        Code::NotFound => vec!["not_found", "unknown_tool"],
        Code::PreconditionFailed => vec!["conflict"],
        Code::Limit => vec!["limited", "too_large"],
        Code::Timeout if told(said, "timed_out") => vec!["timed_out", "program_failed"],
        Code::Timeout => vec!["timed_out"],
        Code::TooLarge => vec!["too_large"],
    }
}

/// The words that some dialects have for a reason, as the record has them.
const REASONS: [&str; 9] = [
    "invalid_input",
    "not_allowed",
    "not_found",
    "unknown_tool",
    "conflict",
    "limited",
    "too_large",
    "timed_out",
    "unavailable",
];

/// What the wire alone says of a call that left no record: it was never one.
fn by_the_wire(said: &Said) -> &str {
    // Some say the very word.
    if let Some(word) = said.data["reason"].as_str().filter(|word| REASONS.contains(word)) {
        return word;
    }
    match said.code.as_str() {
        "-32602" | "1003" | "INVALID_INPUT" | "-32600" | "-32700" | "validation_failed" => {
            "invalid_input"
        }
        "-32601" | "1006" | "unsupported" => "unknown_tool",
        "1001" | "-32004" | "NOT_FOUND" | "not_found" => "not_found",
        "1002" | "UNAUTHORIZED" => "not_allowed",
        "1004" | "429" => "limited",
        "1005" => "conflict",
        "1007" => "too_large",
        _ => "unknown",
    }
}

/// Whether a result says that something is so, structured or in words.
fn told(said: &Said, key: &str) -> bool {
    said.data[key] == true
        || said.data["structuredContent"][key] == true
        // Zyra has no word for it and this code for nothing else.
        || (key == "timed_out" && said.data["exit_code"] == -1)
        || (key == "timed_out" && (says(said, "time was over") || says(said, "timed out")))
        || (key == "truncated"
            && (["go on with", "continue with", " more", "cut", "left out", "…", "\\u2026"]
                .iter()
                .any(|word| says(said, word))))
}

fn says(said: &Said, words: &str) -> bool {
    String::from_utf8_lossy(&said.raw).contains(words)
}

/// Holds every assert of the case against what came.
pub(super) fn judge(play: &mut Play, came: &[Came]) {
    let judged: Vec<&Came> = came.iter().filter(|one| one.judged).collect();
    for assert in play.case.asserts.clone() {
        let wrong = match &assert {
            Assert::Sealed => None,
            Assert::Shown(word) => shown(play, word),
            _ if of_the_stage(&assert) => stage(play, &assert),
            _ if judged.is_empty() => Some("the harness called nothing to judge by".to_owned()),
            _ => {
                let wrong = judged.iter().filter_map(|one| answer(play, &assert, one));
                let wrong: Vec<String> = wrong.take(20).collect();
                (!wrong.is_empty()).then(|| wrong.join("; "))
            }
        };
        if let Some(wrong) = wrong {
            play.wrong.push(wrong);
        }
    }
}

fn shown(play: &Play, word: &str) -> Option<String> {
    if word == "listener_silent" && !play.shown.contains_key(word) {
        return Some("the harness asked no listener".to_owned());
    }
    match play.shown.get(word) {
        None => Some(format!("the harness did not look at `{word}`")),
        Some(Ok(())) => None,
        Some(Err(why)) => Some(format!("{word}: {why}")),
    }
}

fn of_the_stage(assert: &Assert) -> bool {
    matches!(
        assert,
        Assert::Exists(_)
            | Assert::NotExists(_)
            | Assert::Unchanged(_)
            | Assert::Content(_)
            | Assert::Bytes(_)
            | Assert::Mode(_)
            | Assert::MaxRssMb(_)
            | Assert::RpcStreamValid
            | Assert::WorkspaceUnchanged
    )
}

/// What must be so of the folders and of the server.
fn stage(play: &Play, assert: &Assert) -> Option<String> {
    let path = |name: &str| std::path::PathBuf::from(play.stage.fill(name));
    let subject = || {
        let name = play.case.input["arguments"]["path"].as_str().unwrap_or("f");
        play.stage.ws.join(name)
    };
    let wrong = |why: String| Some(why);
    match assert {
        Assert::Exists(name) if fs::symlink_metadata(path(name)).is_err() => {
            wrong(format!("{name} is gone"))
        }
        Assert::NotExists(name) if fs::symlink_metadata(path(name)).is_ok() => {
            wrong(format!("{name} was made"))
        }
        Assert::Unchanged(name) => {
            let now = fs::read(path(name)).unwrap_or_default();
            (now != b"as it was\n")
                .then(|| format!("{name} holds {:?}", String::from_utf8_lossy(&now)))
        }
        Assert::Content(text) => {
            let now = fs::read(subject()).unwrap_or_default();
            (now != text.replace("\\n", "\n").as_bytes())
                .then(|| format!("it holds {:?}", String::from_utf8_lossy(&now)))
        }
        Assert::Bytes(bytes) => {
            let now = fs::read(subject()).unwrap_or_default();
            (now != *bytes).then(|| format!("it holds {now:02x?}"))
        }
        Assert::Mode(mode) => {
            use std::os::unix::fs::PermissionsExt;
            let now = fs::metadata(subject()).map_or(0, |meta| meta.permissions().mode() & 0o7777);
            (now != *mode).then(|| format!("its mode is {now:04o}"))
        }
        Assert::MaxRssMb(most) => (play.grown_mb > *most)
            .then(|| format!("the server grew by {} MiB, more than {most}", play.grown_mb)),
        Assert::WorkspaceUnchanged => match &play.inside {
            None => Some("the harness did not look at the workspace before".to_owned()),
            Some(before) => match super::stage::Tree::of(&play.stage.ws) {
                Ok(now) => before.changed(&now).map(|what| format!("the workspace: {what}")),
                Err(err) => Some(err.to_string()),
            },
        },
        // The seal looks at all that is outside; what is impure on the stream is told as it comes.
        _ => None,
    }
}

/// What must be so of one answer.
fn answer(play: &Play, assert: &Assert, came: &Came) -> Option<String> {
    let said = &came.said;
    let shown = brief(said);
    let of_resource = play.case.input["kind"] == "rpc";
    let outcome = came.outcome.clone();
    let refused = |codes: &[Code]| -> Option<String> {
        if !said.error {
            return Some(format!("it was done: {shown}"));
        }
        // What a dialect refuses of a tool's answer is recorded as done.
        let done = outcome.as_deref() == Some("ok");
        let recorded = outcome.clone().filter(|_| !done);
        let word = recorded.unwrap_or_else(|| by_the_wire(said).to_owned());
        if word == "unknown" && done {
            return Some(format!("the record says ok, the wire {shown}"));
        }
        if word == "failed" || word == "dropped" || word == "panicked" {
            return Some(format!("the record says {word}, the wire {shown}"));
        }
        let fits = codes.is_empty()
            || codes.iter().any(|code| outcomes(*code, said, of_resource).contains(&word.as_str()));
        (!fits).then(|| format!("refused as {word}, not {codes:?}: {shown}"))
    };
    match assert {
        // What is invalid has a result here; that its schema was not fetched is in it.
        Assert::Error(codes)
            if codes.is_empty()
                && play.form.tool == "assets.validate_asset"
                && says(said, "schema_load_failed") =>
        {
            None
        }
        // What there must be none of is refused for any reason.
        Assert::Error(_) if super::absent::is(&play.case.id) => refused(&[]),
        // Only a reader could give too much; the others must be quick and small.
        Assert::Error(codes) if codes.contains(&Code::TooLarge) && !play.form.label.is_empty() => {
            None
        }
        Assert::Error(codes) if codes.contains(&Code::TooLarge) && !said.error => {
            let bounded = told(said, "truncated") && said.raw.len() < ANSWER_BYTES_MAX;
            (!bounded).then(|| format!("neither refused nor cut: {shown}"))
        }
        // A search that fails in time, or a program that was stopped, has a result.
        Assert::Error(codes) if codes.contains(&Code::Timeout) && told(said, "timed_out") => None,
        Assert::Error(codes) => refused(codes),
        Assert::OkOrError(codes) => said.error.then(|| refused(codes)).flatten(),
        Assert::Ok => match outcome.as_deref() {
            _ if said.error => Some(format!("it was refused: {shown}")),
            None | Some("ok") => None,
            Some(word) => Some(format!("the record says {word}")),
        },
        Assert::ErrorOrBytesPreserved => {
            let path = play.stage.ws.join(play.form.input["path"].as_str().unwrap_or("f"));
            let now = fs::read(path).unwrap_or_default();
            let exact = now == b"\xff\xfe\x00y" || (said.error && now == b"\xff\xfe\x00x");
            (!exact).then(|| format!("it holds {now:02x?}"))
        }
        Assert::RpcError(codes) => {
            let code = said.code.parse::<i64>().ok();
            let fits = code.is_some_and(|code| codes.contains(&code))
                || (said.code == "INVALID_INPUT" && said.status == 400);
            (!fits).then(|| format!("answered with {shown}"))
        }
        // Mira's client loses the code of whatever is not 200, so an error there is in the body;
        // the envelope has one word, and status, for all that cannot be read.
        Assert::Status(statuses)
            if play.way.dialect == Dialect::Mira
                && said.status == 200
                && !statuses.contains(&403)
                && said.text.contains("\"error\":{\"code\"") =>
        {
            None
        }
        Assert::Status(_)
            if play.way.dialect == Dialect::Envelope
                && play.case.id == "H15"
                && said.status == 400
                && said.text.contains("content encoding") =>
        {
            None
        }
        Assert::Status(statuses) => {
            (!statuses.contains(&said.status)).then(|| format!("status {}: {}", said.status, shown))
        }
        Assert::MaxMs(most) => (came.took.as_millis() > *most)
            .then(|| format!("{LATE} {} ms, more than {most}", came.took.as_millis())),
        Assert::MaxBytes => (said.raw.len() > ANSWER_BYTES_MAX)
            .then(|| format!("{} bytes were answered", said.raw.len())),
        Assert::Truncated => {
            let cut = told(said, "truncated") || said.data["diff_truncated"] == true;
            (!cut && !said.error).then(|| format!("nothing says that it was cut: {shown}"))
        }
        Assert::ExitNonzero => {
            let code = said.data["exit_code"].as_i64();
            let failed = said.error || code.is_some_and(|code| code != 0);
            let failed = failed || outcome.as_deref() == Some("program_failed");
            (!failed).then(|| format!("it exited with 0: {shown}"))
        }
        Assert::Sealed | Assert::Shown(_) => None,
        Assert::Exists(_)
        | Assert::NotExists(_)
        | Assert::Unchanged(_)
        | Assert::Content(_)
        | Assert::Bytes(_)
        | Assert::Mode(_)
        | Assert::MaxRssMb(_)
        | Assert::RpcStreamValid
        | Assert::WorkspaceUnchanged => None,
    }
}

/// What was said, in a line.
pub(super) fn brief(said: &Said) -> String {
    let text = if said.text.trim().is_empty() {
        String::from_utf8_lossy(&said.raw).into_owned()
    } else {
        said.text.clone()
    };
    let text: String = text.replace('\n', " ").chars().take(160).collect();
    match (said.error, said.code.as_str()) {
        (true, code) if !code.is_empty() => format!("error {code} {text:?}"),
        (true, _) => format!("error {text:?}"),
        (false, _) => format!("{text:?}"),
    }
}
