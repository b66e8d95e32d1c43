//! Selects the arguments of a call that its audit record shows.

use serde_json::Value;
use toolgate_contract::printable;

use crate::secrets::{REDACTED, SecretSet};

/// Longest subject of a call (such as its path or command line) in an audit record, in characters.
const SUBJECT_CHARS_MAX: usize = 200;
/// Maximum length of a recorded text argument, in characters. Longer texts, such as the contents of
/// files, are cut.
const TEXT_CHARS_MAX: usize = 200;
/// Maximum number of values in the recorded arguments of a call.
const VALUES_MAX: usize = 100;
/// Maximum nesting depth of the recorded arguments of a call.
const DEPTH_MAX: usize = 8;
/// Names of the tool arguments that show what a call acts on, the most specific first.
const SUBJECT_NAMES: [&str; 15] = [
    "path",
    "file",
    "file_path",
    "uri",
    "url",
    "paths",
    "files",
    "from",
    "source",
    "repo",
    "project",
    "folder",
    "cwd",
    "job",
    "id",
];

/// Parts of a call's arguments that the audit log records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuditArgumentDetail {
    /// Records only the hash of the arguments.
    None,
    /// Records the subject of the call (path, command line, repository or URI), and the error
    /// message or the last error line of a failed program.
    #[default]
    Subject,
    /// Records the subject of the call, and all arguments without secrets and long texts.
    Redacted,
}

impl AuditArgumentDetail {
    /// Returns the subject of a call with `input` (such as its path), redacted and cut to 200
    /// characters. Returns `None` if this detail level records no subjects.
    pub(crate) fn subject(self, input: &Value, secrets: &SecretSet) -> Option<String> {
        if self == Self::None {
            return None;
        }
        let subject = match command_line(input) {
            Some(line) => secrets.redact_input(&secrets.call_secrets(input), &line),
            None => secrets.redact(&named_subject(input)?).into_owned(),
        };
        Some(printable::shorten(&subject, SUBJECT_CHARS_MAX).into_owned())
    }

    /// Returns the value of the first argument in `input` that has one of the `names`, as the
    /// subject of the call. Returns `None` if this detail level records no subjects.
    pub(crate) fn path_subject(
        self,
        input: &Value,
        names: &[String],
        secrets: &SecretSet,
    ) -> Option<String> {
        if self == Self::None {
            return None;
        }
        let subject = first_subject(input, names)?;
        Some(printable::shorten(&secrets.redact(&subject), SUBJECT_CHARS_MAX).into_owned())
    }

    /// Returns the command line `words` as the subject of a call with `input`, redacted and cut to
    /// 200 characters. Returns `None` if this detail level records no subjects.
    pub(crate) fn line_subject(
        self,
        input: &Value,
        words: &[String],
        secrets: &SecretSet,
    ) -> Option<String> {
        if self == Self::None {
            return None;
        }
        // Longer lines are cut in any case.
        let line: String = words.join(" ").chars().take(SUBJECT_CHARS_MAX * 4).collect();
        let line = secrets.redact_input(&secrets.call_secrets(input), &line);
        Some(printable::shorten(&line, SUBJECT_CHARS_MAX).into_owned())
    }

    /// Returns true if audit records contain error messages at this detail level. Error messages
    /// may name arguments.
    pub(crate) fn includes_errors(self) -> bool {
        self != Self::None
    }

    /// Returns the redacted arguments in `input`, or `None` if this detail level records no
    /// arguments.
    pub(crate) fn arguments(self, input: &Value, secrets: &SecretSet) -> Option<Value> {
        if self != Self::Redacted {
            return None;
        }
        Some(redacted_arguments(input, secrets, TEXT_CHARS_MAX))
    }
}

/// Returns the arguments in `input` with secrets redacted, and with each text cut after
/// `text_chars_max` characters.
pub(super) fn redacted_arguments(
    input: &Value,
    secrets: &SecretSet,
    text_chars_max: usize,
) -> Value {
    let mut left = VALUES_MAX;
    let of_call = secrets.call_secrets(input);
    let redact = |text: &str| {
        // The end of a long text is never shown, so it is not searched.
        let start = printable::shorten(text, text_chars_max * 20);
        let redacted = secrets.redact_input(&of_call, &start);
        printable::shorten(&redacted, text_chars_max).into_owned()
    };
    shorten(input, secrets, &redact, &mut left, DEPTH_MAX)
}

/// Returns the command line in `input`: its command and arguments.
fn command_line(input: &Value) -> Option<String> {
    let mut line = input.get("command")?.as_str()?.to_owned();
    for arg in input.get("args").and_then(Value::as_array).into_iter().flatten() {
        // Longer lines are cut in any case.
        if line.len() > SUBJECT_CHARS_MAX * 4 {
            break;
        }
        line.push(' ');
        match arg.as_str() {
            Some(text) => line.push_str(text),
            None => line.push_str(&arg.to_string()),
        }
    }
    Some(line)
}

/// Returns the subject of a call with `input`: the value of the argument whose name comes first in
/// [`SUBJECT_NAMES`], or the file of the first edit.
fn named_subject(input: &Value) -> Option<String> {
    let first_edit = || first_subject(input.get("edits")?.as_array()?.first()?, &SUBJECT_NAMES);
    first_subject(input, &SUBJECT_NAMES).or_else(first_edit)
}

/// Returns the value of the first argument in `input` that has one of the `names`, as the subject
/// of a call.
fn first_subject(input: &Value, names: &[impl AsRef<str>]) -> Option<String> {
    // A call has few arguments, so looking for each in the list is faster than the reverse.
    let ranked = input.as_object()?.iter().filter_map(|(argument, value)| {
        let rank = names.iter().position(|name| name.as_ref() == argument)?;
        Some((rank, subject_text(value)?))
    });
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, subject)| subject)
}

/// Returns the argument `value` as the subject of a call: a text, or the first text of a list.
fn subject_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => {
            // Only the start is needed, and a text may be long.
            Some(text.chars().take(SUBJECT_CHARS_MAX * 4).collect())
        }
        Value::Array(items) => {
            let first = items.first()?.as_str()?;
            let more = items.len() - 1;
            Some(if more == 0 { first.to_owned() } else { format!("{first} and {more} more") })
        }
        _ => None,
    }
}

/// Returns `value` with each text shortened and redacted by `redact`, and without the values of
/// arguments whose name marks a secret. Stops after `left` values and `depth` nesting levels.
fn shorten(
    value: &Value,
    secrets: &SecretSet,
    redact: &impl Fn(&str) -> String,
    left: &mut usize,
    depth: usize,
) -> Value {
    if *left == 0 || depth == 0 {
        return Value::String("…".to_owned());
    }
    *left -= 1;
    match value {
        Value::String(text) => Value::String(redact(text)),
        Value::Array(items) => {
            let items = items.iter().take(*left);
            items.map(|item| shorten(item, secrets, redact, left, depth - 1)).collect()
        }
        Value::Object(fields) => {
            let fields = fields.iter().take(*left).map(|(name, value)| {
                let shown = match secrets.is_secret_name(name) {
                    true => Value::String(REDACTED.to_owned()),
                    false => shorten(value, secrets, redact, left, depth - 1),
                };
                (redact(name), shown)
            });
            fields.collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(input: &Value, expected: Option<&str>) {
        let subject = AuditArgumentDetail::Subject.subject(input, &SecretSet::default());
        assert_eq!(subject.as_deref(), expected, "{input}");
    }

    #[test]
    fn the_subject_is_a_path_a_command_line_a_repository_or_a_uri() {
        check(&json!({ "path": "src/a.rs", "content": "secret plan" }), Some("src/a.rs"));
        check(
            &json!({ "command": "cargo", "args": ["test", 3], "cwd": "x" }),
            Some("cargo test 3"),
        );
        check(&json!({ "paths": ["a", "b", "c"] }), Some("a and 2 more"));
        check(&json!({ "edits": [{ "path": "a", "new": "x" }] }), Some("a"));
        check(&json!({ "repo": "sub", "message": "Fix" }), Some("sub"));
        check(&json!({ "uri": "file:///a" }), Some("file:///a"));
        check(&json!({ "content": "text" }), None);
        check(&json!({ "id": "7", "cwd": "x", "path": "", "repo": "sub" }), Some("sub"));
        check(&json!(["path"]), None);
        check(&Value::Null, None);
    }

    #[test]
    fn the_subject_of_a_declared_command_is_its_first_path_argument() {
        let names = ["input".to_owned(), "output".to_owned()];
        let input = json!({ "title": "text", "output": "map.png", "input": "demo.npy" });
        let subject = |recorded: AuditArgumentDetail| {
            recorded.path_subject(&input, &names, &SecretSet::default())
        };
        assert_eq!(subject(AuditArgumentDetail::Subject).as_deref(), Some("demo.npy"));
        assert_eq!(subject(AuditArgumentDetail::None), None);
    }

    #[test]
    fn the_command_line_of_a_declared_command_is_its_subject_without_secrets() {
        let input = json!({ "password": "hunter2-and-more", "name": "demo" });
        let words = ["plot", "--password", "hunter2-and-more", "demo"].map(str::to_owned);
        let subject = |recorded: AuditArgumentDetail| {
            recorded.line_subject(&input, &words, &SecretSet::default())
        };
        let line = subject(AuditArgumentDetail::Subject).expect("a subject");
        assert!(line.starts_with("plot --password") && line.contains(REDACTED), "{line}");
        assert!(!line.contains("hunter2"), "{line}");
        assert_eq!(subject(AuditArgumentDetail::None), None);
    }

    #[test]
    fn a_long_subject_is_cut_between_characters() {
        let subject = "ä".repeat(1000);
        let shown = AuditArgumentDetail::Subject
            .subject(&json!({ "path": subject }), &SecretSet::default())
            .expect("a subject");
        assert_eq!(shown.chars().count(), SUBJECT_CHARS_MAX + 1);
    }

    #[test]
    fn secrets_are_redacted_by_name_by_option_and_by_form() {
        let key = format!("ghp_{}", "a1B2".repeat(9));
        let input = json!({
            "command": "deploy",
            "args": ["--password", "hunter22222", &key],
            "env": { "API_TOKEN": "value-of-token" },
        });
        let secrets = SecretSet::default();
        let subject = AuditArgumentDetail::Redacted.subject(&input, &secrets).expect("a subject");
        let arguments =
            AuditArgumentDetail::Redacted.arguments(&input, &secrets).expect("arguments");
        for shown in [subject, arguments.to_string()] {
            for secret in ["hunter22222", &key, "value-of-token"] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
        assert_eq!(AuditArgumentDetail::None.subject(&input, &secrets), None);
        assert_eq!(AuditArgumentDetail::Subject.arguments(&input, &secrets), None);
    }

    #[test]
    fn recorded_arguments_are_bounded_in_size_and_depth() {
        let mut deep = json!("x");
        for _ in 0..100 {
            deep = json!([deep]);
        }
        let input = json!({ "deep": deep, "text": "x".repeat(1 << 20), "many": vec![1; 10_000] });
        let shown = AuditArgumentDetail::Redacted.arguments(&input, &SecretSet::default());
        assert!(shown.expect("arguments").to_string().len() < 2000);
    }
}
