//! Secrets: what is known to be one, and its removal from what is told and what is logged.
//!
//! A secret is known by its value (the server's own), by its name (in a call: `API_TOKEN`,
//! `--password`), or by its shape (`ghp_…`). What tools give back is their result, and is not
//! touched.

mod shapes;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;

use serde_json::Value;
use toolgate_contract::{Arguments, CallError, Problem};

use shapes::{FORMS, NAME_BYTES_MAX, names_a_secret};

/// What stands where a secret was.
pub const REDACTED: &str = "[redacted]";

/// How short a value is at most that is not taken for a secret whatever it is called.
const SHORT: usize = 5;
/// How deep an input is looked into.
const DEPTH_MAX: usize = 16;
/// How many secrets one call may name for its refusal to be told without them.
const OF_CALL_MAX: usize = 256;
/// How many bytes they may have together.
const OF_CALL_BYTES_MAX: usize = 1 << 20;
/// What is said of a call that names more.
const WITHHELD: &str = "the call names more secrets than can be looked for in what is told, so \
                        nothing is told of it but this; pass fewer of them at once";

/// The secrets of a server, by their values.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    /// The longest first, so that none leaves a piece of one that it is in.
    values: Vec<String>,
}

/// The secrets that one call names.
#[derive(Debug, Default)]
pub(crate) struct CallSecrets {
    known: Secrets,
    /// Whether there are too many to know them.
    too_many: bool,
}

impl Secrets {
    /// What among `variables`, by name and value, is a secret by its name.
    pub fn among<'v>(variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Self {
        let named = variables.into_iter().filter(|(name, _)| names_a_secret(name));
        Self::of(named.filter_map(|(_, value)| secret(value)).collect())
    }

    fn of(values: HashSet<&str>) -> Self {
        let mut values: Vec<_> = values.into_iter().map(str::to_owned).collect();
        values.sort_by_key(|value| Reverse(value.len()));
        Self { values }
    }

    /// `text` without secrets.
    pub fn redacted<'t>(&self, text: &'t str) -> Cow<'t, str> {
        without_forms(without_values(&self.values, text))
    }

    /// `error` without these secrets and those of the call that it ends.
    pub(crate) fn without(&self, of_call: &CallSecrets, error: CallError) -> CallError {
        let mut values: Vec<_> = of_call.known.values.iter().chain(&self.values).collect();
        values.sort_by_key(|value| Reverse(value.len()));
        let or_else = |text: String, instead: &str| {
            if of_call.too_many {
                return instead.to_owned();
            }
            match without_forms(without_values(&values, &text)) {
                Cow::Borrowed(_) => text,
                Cow::Owned(clean) => clean,
            }
        };
        let clean = |text| or_else(text, WITHHELD);
        let clean_name = |text| or_else(text, REDACTED);
        let all_clean = |problems: Vec<Problem>| {
            let problems = problems.into_iter().map(|Problem { pointer, message }| Problem {
                pointer: or_else(pointer, ""),
                message: clean(message),
            });
            // Withheld, they are all alike.
            let told = if of_call.too_many { 1 } else { usize::MAX };
            problems.take(told).collect::<Vec<_>>()
        };
        match error {
            CallError::UnknownTool { name, nearest } => {
                CallError::UnknownTool { name: clean_name(name), nearest }
            }
            CallError::InvalidInput { problems } => {
                CallError::InvalidInput { problems: all_clean(problems) }
            }
            CallError::NotAllowed { message } => CallError::NotAllowed { message: clean(message) },
            CallError::Scope { message, needs } => {
                CallError::Scope { message: clean(message), needs }
            }
            CallError::Limited { message, retry_after } => {
                CallError::Limited { message: clean(message), retry_after }
            }
            CallError::NotFound { message } => CallError::NotFound { message: clean(message) },
            CallError::Conflict { message, details } => CallError::Conflict {
                message: clean(message),
                details: walked(details, &clean_name),
            },
            CallError::TooLarge { message } => CallError::TooLarge { message: clean(message) },
            CallError::Unavailable { message } => {
                CallError::Unavailable { message: clean(message) }
            }
            CallError::Failed { message, cause } => {
                CallError::Failed { message: clean(message), cause: clean(cause) }
            }
            CallError::Mismatch { message } => CallError::Mismatch { message: clean(message) },
            CallError::Refused { code, message, data } => CallError::Refused {
                code,
                message: clean(message),
                data: data.map(|data| walked(data, &clean_name)),
            },
            CallError::InvalidOutput { problems } => {
                CallError::InvalidOutput { problems: all_clean(problems) }
            }
            // They say nothing that came with the call; and questions are for whoever called.
            other @ (CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Asks { .. }
            | CallError::CannotAsk { .. }
            | CallError::NeedsJob { .. }
            | CallError::NoJob { .. }) => other,
        }
    }
}

impl CallSecrets {
    /// What of `input` is a secret by its name, to be remembered while the call goes on.
    ///
    /// Nothing is copied of a call that names none.
    pub(crate) fn of(input: &Value) -> Self {
        let mut named = Named::default();
        let within = named.gather(input, DEPTH_MAX);
        named.known(within)
    }

    /// The same of a prompt's arguments.
    pub(crate) fn of_arguments(arguments: &Arguments) -> Self {
        let mut named = Named::default();
        let mut secret = arguments.iter().filter(|(name, _)| names_a_secret(name));
        let within = secret.try_for_each(|(_, value)| named.add(value));
        named.known(within)
    }
}

/// What is known to be a secret in an input.
#[derive(Default)]
struct Named<'v> {
    values: HashSet<&'v str>,
    bytes: usize,
}

/// There are too many.
#[derive(Clone, Copy)]
struct TooMany;

impl<'v> Named<'v> {
    fn add(&mut self, value: &'v str) -> Result<(), TooMany> {
        let Some(value) = secret(value) else { return Ok(()) };
        if self.values.insert(value) {
            self.bytes = self.bytes.saturating_add(value.len());
        }
        let fit = self.values.len() <= OF_CALL_MAX && self.bytes <= OF_CALL_BYTES_MAX;
        if fit { Ok(()) } else { Err(TooMany) }
    }

    fn known(self, within: Result<(), TooMany>) -> CallSecrets {
        match within {
            Ok(()) => CallSecrets { known: Secrets::of(self.values), too_many: false },
            Err(TooMany) => CallSecrets { known: Secrets::default(), too_many: true },
        }
    }

    /// Gathers what in `value` is called a secret: by its key, or as an argument after its option.
    fn gather(&mut self, value: &'v Value, depth: usize) -> Result<(), TooMany> {
        if depth == 0 {
            return Ok(());
        }
        match value {
            Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
                if names_a_secret(name) {
                    self.gather_all(value, depth)
                } else {
                    self.gather(value, depth - 1)
                }
            }),
            Value::Array(items) => {
                let mut after_option = false;
                for item in items {
                    match item {
                        Value::String(text) if after_option && !text.starts_with('-') => {
                            self.add(text)?;
                            after_option = false;
                        }
                        Value::String(text) => match named_argument(text) {
                            // `env` and its like take variables so.
                            (name, Some(value)) if names_a_secret(name) => self.add(value)?,
                            (_, Some(_)) => {}
                            (name, None) => {
                                after_option = text.starts_with('-') && names_a_secret(name);
                            }
                        },
                        other => {
                            self.gather(other, depth - 1)?;
                            after_option = false;
                        }
                    }
                }
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    /// Gathers every text in `value`, which is called a secret.
    fn gather_all(&mut self, value: &'v Value, depth: usize) -> Result<(), TooMany> {
        match value {
            Value::String(text) => self.add(text),
            Value::Array(items) if depth > 0 => {
                items.iter().try_for_each(|item| self.gather_all(item, depth - 1))
            }
            Value::Object(fields) if depth > 0 => {
                fields.values().try_for_each(|value| self.gather_all(value, depth - 1))
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => Ok(()),
        }
    }
}

/// What an argument names, and the value it gives it: `--name`, `--name=value`, `NAME=value`. No
/// name is longer than a secret's may be.
fn named_argument(text: &str) -> (&str, Option<&str>) {
    let bytes = text.as_bytes();
    let start = &bytes[..bytes.len().min(NAME_BYTES_MAX + 1)];
    match start.iter().position(|byte| *byte == b'=') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text.trim_start_matches('-'), None),
    }
}

/// `value` as it is looked for, if it is long enough to be.
fn secret(value: &str) -> Option<&str> {
    Some(value.trim()).filter(|value| value.len() > SHORT)
}

/// `text` without `values`, the longest of which come first.
fn without_values<'t>(values: &[impl AsRef<str>], text: &'t str) -> Cow<'t, str> {
    let mut text = Cow::Borrowed(text);
    for value in values {
        let value = value.as_ref();
        if text.contains(value) {
            text = Cow::Owned(text.replace(value, REDACTED));
        }
    }
    text
}

/// `text` without what looks like a secret.
fn without_forms(mut text: Cow<'_, str>) -> Cow<'_, str> {
    for (form, instead) in FORMS.iter() {
        if form.is_match(&text) {
            text = Cow::Owned(form.replace_all(&text, *instead).into_owned());
        }
    }
    text
}

/// `value` with each text in it as `clean` leaves it; keys stay.
fn walked(value: Value, clean: &impl Fn(String) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(clean(text)),
        Value::Array(items) => items.into_iter().map(|item| walked(item, clean)).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key, walked(value, clean))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOTHING: Secrets = Secrets { values: Vec::new() };

    #[track_caller]
    fn check(text: &str, clean: &str) {
        assert_eq!(NOTHING.redacted(text), clean);
    }

    #[test]
    fn a_server_knows_the_values_of_its_own_variables() {
        let secrets = Secrets::among([
            ("ZYRA_API_KEY", "deadbeefcafe"),
            ("DB_PASSWORD", "deadbeefcafe-and-more"),
            ("HOME", "/home/ada"),
            ("GITHUB_TOKEN", "1"),
        ]);
        let text = "at /home/ada: deadbeefcafe-and-more, deadbeefcafe, 1";
        assert_eq!(secrets.redacted(text), "at /home/ada: [redacted], [redacted], 1");
    }

    #[test]
    fn a_call_names_its_secrets() {
        let secrets = CallSecrets::of(&json!({
            "command": "deploy",
            "args": ["--token", "first-one", "--verbose", "-password=second-one", "API_KEY=third-one",
                     "--token", "--dry-run", "plain-one"],
            "env": { "AWS_SECRET_ACCESS_KEY": "fourth-one", "LANG": "plain-two" },
            "more": [{ "credentials": { "user": ["fifth-one"] } }],
        }));
        let text = "first-one second-one third-one fourth-one fifth-one plain-one plain-two";
        let clean = format!("{} plain-one plain-two", [REDACTED; 5].join(" "));
        assert_eq!(secrets.known.redacted(text), clean);
    }

    #[test]
    fn what_is_no_secret_is_gathered_from_no_call() {
        for input in [
            json!({ "path": "token.txt", "content": "password" }),
            json!({ "cursor": "abcdefghijkl", "key": "value-of-it", "max_tokens": 100_000 }),
            json!({ "args": ["--tokenizer", "cl100k_base", "a=b"] }),
        ] {
            assert!(CallSecrets::of(&input).known.values.is_empty(), "{input}");
        }
    }

    fn refused(of_call: &CallSecrets) -> CallError {
        let problem = |text: &str| Problem { pointer: text.to_owned(), message: text.to_owned() };
        let problems = vec![problem("/a"), problem("/b secret-number-1")];
        NOTHING.without(of_call, CallError::InvalidInput { problems })
    }

    #[test]
    fn of_a_call_that_names_more_secrets_than_are_looked_for_nothing_is_told() {
        let named = |count: usize| {
            let all: Vec<_> = (0..count).map(|one| format!("secret-number-{one}")).collect();
            CallSecrets::of(&json!({ "tokens": all, "args": ["--token", "secret-number-1"] }))
        };
        let most = named(OF_CALL_MAX);
        assert_eq!(most.known.values.len(), OF_CALL_MAX);
        let CallError::InvalidInput { problems } = refused(&most) else { panic!("as it was") };
        assert_eq!(problems[0].message, "/a");
        assert_eq!(problems[1].message, "/b [redacted]");
        for many in [OF_CALL_MAX + 1, 200_000] {
            let many = named(many);
            assert!(many.too_many && many.known.values.is_empty());
            let CallError::InvalidInput { problems } = refused(&many) else { panic!("as it was") };
            let withheld = Problem { pointer: String::new(), message: WITHHELD.to_owned() };
            assert_eq!(problems, [withheld]);
        }
        let long = CallSecrets::of(&json!({ "token": "x".repeat(OF_CALL_BYTES_MAX + 1) }));
        assert!(long.too_many);
    }

    #[test]
    fn a_long_argument_is_a_secret_by_a_short_name_only() {
        let long = "x".repeat(100);
        let call =
            json!({ "args": [format!("TOKEN={long}"), format!("{long}TOKEN=not-a-secret")] });
        assert_eq!(CallSecrets::of(&call).known.values, [long]);
    }

    #[test]
    fn a_prompt_s_arguments_name_their_secrets() {
        let arguments = [("api_key", " secret-one "), ("topic", "tokens")];
        let arguments = arguments.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let secrets = CallSecrets::of_arguments(&arguments.into());
        assert_eq!(secrets.known.values, ["secret-one"]);
    }

    #[test]
    fn a_secret_of_the_server_and_one_of_the_call_leave_no_piece_of_each_other() {
        let server = Secrets::among([("TOKEN", "abcdef-ghijkl")]);
        let call = CallSecrets::of(&json!({ "token": "abcdef" }));
        let told = CallError::NotFound { message: "abcdef-ghijkl abcdef".to_owned() };
        let CallError::NotFound { message } = server.without(&call, told) else {
            panic!("as it was")
        };
        assert_eq!(message, "[redacted] [redacted]");
    }

    #[test]
    fn secrets_are_known_by_their_shape() {
        let many = "a1B2".repeat(10);
        check(&format!("sk-{many} failed"), "[redacted] failed");
        check(&format!("(sk-ant-api03-{many})"), "([redacted])");
        check(&format!("ghp_{many}"), "[redacted]");
        check(&format!("a/github_pat_{many}/b"), "a/[redacted]/b");
        check("AKIAIOSFODNN7EXAMPLE", "[redacted]");
        check("xoxb-123456789012-abcdefABCDEF", "[redacted]");
        let jwt = format!("eyJ{many}.eyJ{many}.{many}");
        check(&format!("no {jwt}"), "no [redacted]");
        check("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]");
        check("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [redacted]");
        check("https://ada:hunter2@host/x", "https://ada:[redacted]@host/x");
        check("https://:hunter2@host/x", "https://:[redacted]@host/x");
        check("clone ada:hunter2@host:x", "clone ada:[redacted]@host:x");
        check("--token=hunter2 --verbose", "--token=[redacted] --verbose");
        check("-e DB_PASSWORD='hunter2'", "-e DB_PASSWORD='[redacted]'");
        check("curl --password hunter2 x", "curl --password [redacted] x");
        check(r#"{"api_key":"hunter2","a":1}"#, r#"{"api_key":"[redacted]","a":1}"#);
        check("?access_token=hunter2&a=1", "?access_token=[redacted]&a=1");
        check(
            "x -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- y",
            "x [redacted] y",
        );
    }

    #[test]
    fn what_has_no_secret_stays_as_it_is() {
        for text in [
            "`a.txt` could not be read",
            "no tool is named `fils.read`; did you mean `files.read`?",
            "the cursor is of another question; ask for the first page",
            "/token: it must be a string",
            "git@github.com:a/b.git is not there",
            "task-1 sk-short risk-averse-and-long-enough-to-be-one",
            "at 12:30 ada@example.com wrote",
            "unexpected token `=` at line 3",
        ] {
            assert!(
                matches!(NOTHING.redacted(text), Cow::Borrowed(_)),
                "{text}: {}",
                NOTHING.redacted(text)
            );
        }
    }

    #[test]
    fn every_part_of_an_error_is_cleaned() {
        let of_call = CallSecrets::of(&json!({ "env": { "MY_TOKEN": "hunter2-hunter2" } }));
        let said = || "of hunter2-hunter2".to_owned();
        let problems = || vec![Problem { pointer: said(), message: said() }];
        let deep = || json!({ "a": [said()] });
        let wait = std::time::Duration::ZERO;
        for error in [
            CallError::UnknownTool { name: said(), nearest: None },
            CallError::InvalidInput { problems: problems() },
            CallError::NotAllowed { message: said() },
            CallError::Scope { message: said(), needs: Vec::new() },
            CallError::Limited { message: said(), retry_after: wait },
            CallError::NotFound { message: said() },
            CallError::Conflict { message: said(), details: deep() },
            CallError::TooLarge { message: said() },
            CallError::Unavailable { message: said() },
            CallError::Failed { message: said(), cause: said() },
            CallError::Mismatch { message: said() },
            CallError::Refused { code: 1, message: said(), data: Some(deep()) },
            CallError::InvalidOutput { problems: problems() },
        ] {
            let clean = NOTHING.without(&of_call, error);
            let written = format!("{clean:?}");
            assert!(!written.contains("hunter2") && written.contains(REDACTED), "{written}");
        }
    }
}
