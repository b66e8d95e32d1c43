//! Finds secrets and redacts them from messages and logs.
//!
//! A secret is found by its value (the server's own secrets), by its name in a call (`API_TOKEN`,
//! `--password`), or by its format (`ghp_…`). Results of tools are not changed, except for values
//! that the operator marked as secret.

mod shapes;
mod names;
mod redactable;
mod values;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use toolgate_contract::{CallError, CallEventSink, PromptArguments, ValidationProblem};

use names::SecretNames;
use shapes::{FORMS, NAME_BYTES_MAX};
use values::{RedactingEventSink, SecretValueMatcher};

pub(crate) use redactable::Redactable;
pub(crate) use values::RedactionGuard;

/// Text that replaces a secret in outputs and logs.
pub const REDACTED: &str = "[redacted]";

/// Longest value that is never treated as a secret, whatever its name, in bytes.
const SHORT_BYTES_MAX: usize = 5;
/// Maximum nesting depth to which an input is searched for secrets.
const DEPTH_MAX: usize = 16;
/// Maximum number of secrets in one call that are redacted from its refusal.
const CALL_SECRETS_MAX: usize = 256;
/// Maximum total size of the secrets of one call that are redacted, in bytes.
const CALL_SECRETS_BYTES_MAX: usize = 1 << 20;
/// Message that replaces a refusal if the call contains too many secrets to redact them all.
const WITHHELD_MESSAGE: &str = "the call contains too many secrets to redact, so its error \
                                message is not shown; pass fewer secrets at once";

/// The secrets of a server: their values and names.
#[derive(Clone, Default)]
pub struct SecretSet {
    /// Values of the secrets, longest first. Otherwise a shorter secret could be redacted within a
    /// longer one, and the rest would remain.
    values: Vec<String>,
    /// Secret values that are also redacted from the results of tools.
    hidden: Option<Arc<SecretValueMatcher>>,
    /// Names that mark secrets.
    names: Arc<SecretNames>,
}

impl fmt::Debug for SecretSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.values.len())
    }
}

/// Secrets that the input of one call contains.
#[derive(Default)]
pub(crate) struct CallSecrets {
    /// Values of the secrets, longest first.
    values: Vec<String>,
    /// True if the call contains more secrets than can be remembered for redaction.
    too_many: bool,
}

impl fmt::Debug for CallSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallSecrets({} values)", self.values.len())
    }
}

impl SecretSet {
    /// Creates a set of the secrets among `variables` (name and value), whose name marks a secret.
    pub fn from_variables<'v>(variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Self {
        Self::from_named_variables(variables, &[])
    }

    /// Creates a set of the secrets among `variables` like [`SecretSet::from_variables`]. The
    /// additional `names` mark secrets in `variables` and in calls.
    pub fn from_named_variables<'v>(
        variables: impl IntoIterator<Item = (&'v str, &'v str)>,
        names: &[String],
    ) -> Self {
        let names = Arc::new(SecretNames::new(names));
        let named = variables.into_iter().filter(|(name, _)| names.is_secret(name));
        let known =
            Self::from_values(named.filter_map(|(_, value)| searchable_secret(value)).collect());
        Self { names, ..known }
    }

    fn from_values(values: HashSet<&str>) -> Self {
        Self { values: longest_first(values), hidden: None, names: Arc::default() }
    }

    /// Adds the values `values` to the secrets of the server.
    pub fn with_values(self, values: &[String]) -> Self {
        let all = self.values.iter().chain(values).map(String::as_str).collect();
        Self { hidden: self.hidden.clone(), names: self.names.clone(), ..Self::from_values(all) }
    }

    /// Adds `values` to the secrets. Unlike other secrets, these values are also redacted from
    /// results and events of tools.
    pub fn with_hidden_values(self, values: &[String]) -> Self {
        let all = self.values.iter().chain(values).map(String::as_str).collect();
        let shown = SecretValueMatcher::new(values).map(Arc::new);
        Self { hidden: shown, names: self.names.clone(), ..Self::from_values(all) }
    }

    /// Redacts from a call's result the values that the operator marked as secret.
    pub(crate) fn redact_value(&self, value: &mut impl Redactable) {
        if let Some(values) = &self.hidden {
            value.redact_with(values);
        }
    }

    /// Redacts from a message the values that the operator marked as secret. Returns `None` if the
    /// message contains none.
    pub(crate) fn redact_message(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.hidden.as_ref()?.redact_bytes(message)
    }

    /// Returns a sink that forwards to `events` and redacts the values that the operator marked as
    /// secret. The redaction ends when the returned guard is dropped.
    pub(crate) fn redact_events(&self, events: &CallEventSink) -> (CallEventSink, RedactionGuard) {
        match &self.hidden {
            Some(values) if events.has_receiver() => {
                let redacting_sink = RedactingEventSink::new(values.clone(), events.clone());
                (redacting_sink.sink(), RedactionGuard(Some(redacting_sink)))
            }
            Some(_) | None => (events.clone(), RedactionGuard(None)),
        }
    }

    /// Returns `text` with secrets redacted.
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.names.redact(FORMS.redact(redact_texts(&self.values, text)))
    }

    /// Returns true if `name` marks the value of an argument as secret.
    pub(crate) fn is_secret_name(&self, name: &str) -> bool {
        self.names.is_secret(name)
    }

    /// Redacts the server's secrets, and the secrets `of_call`, from `text`, a part of the call's
    /// input.
    pub(crate) fn redact_input(&self, of_call: &CallSecrets, text: &str) -> String {
        if of_call.too_many {
            return REDACTED.to_owned();
        }
        self.redact(&redact_texts(&of_call.values, text)).into_owned()
    }

    /// Collects the secrets in `input`, for the duration of the call.
    ///
    /// Copies nothing if the call has no secrets.
    pub(crate) fn call_secrets(&self, input: &Value) -> CallSecrets {
        let mut named = NamedSecretCollector::new(&self.names);
        let result = named.collect(input, DEPTH_MAX);
        named.into_call_secrets(result)
    }

    /// Collects the secrets in the arguments of a prompt.
    pub(crate) fn argument_secrets(&self, arguments: &PromptArguments) -> CallSecrets {
        let mut named = NamedSecretCollector::new(&self.names);
        let mut secret = arguments.iter().filter(|(name, _)| self.names.is_secret(name));
        let result = secret.try_for_each(|(_, value)| named.add(value));
        named.into_call_secrets(result)
    }

    /// Redacts the server's secrets, and the secrets `of_call`, from `error`.
    pub(crate) fn redact_error(&self, of_call: &CallSecrets, error: CallError) -> CallError {
        let mut values: Vec<_> = of_call.values.iter().chain(&self.values).collect();
        values.sort_by_key(|value| Reverse(value.len()));
        let or_else = |text: String, instead: &str| {
            if of_call.too_many {
                return instead.to_owned();
            }
            match self.names.redact(FORMS.redact(redact_texts(&values, &text))) {
                Cow::Borrowed(_) => text,
                Cow::Owned(clean) => clean,
            }
        };
        let clean = |text| or_else(text, WITHHELD_MESSAGE);
        let clean_name = |text| or_else(text, REDACTED);
        let all_clean = |problems: Vec<ValidationProblem>| {
            let problems = problems.into_iter().map(|ValidationProblem { pointer, message }| {
                ValidationProblem { pointer: or_else(pointer, ""), message: clean(message) }
            });
            // Withheld problems are all alike, so one is enough.
            let count_max = if of_call.too_many { 1 } else { usize::MAX };
            problems.take(count_max).collect::<Vec<_>>()
        };
        match error {
            CallError::UnknownTool { name, nearest, unavailable } => CallError::UnknownTool {
                name: clean_name(name),
                nearest,
                unavailable: unavailable.map(clean),
            },
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
                details: map_texts(details, &clean_name),
            },
            CallError::TooLarge { message } => CallError::TooLarge { message: clean(message) },
            CallError::Unavailable { message } => {
                CallError::Unavailable { message: clean(message) }
            }
            CallError::Failed { message, cause } => {
                CallError::Failed { message: clean(message), cause: clean(cause) }
            }
            CallError::CannotAsk { kind, what } => {
                CallError::CannotAsk { kind, what: what.map(clean) }
            }
            CallError::Mismatch { message } => CallError::Mismatch { message: clean(message) },
            CallError::Refused { code, message, data } => CallError::Refused {
                code,
                message: clean(message),
                data: data.map(|data| map_texts(data, &clean_name)),
            },
            CallError::InvalidOutput { problems } => {
                CallError::InvalidOutput { problems: all_clean(problems) }
            }
            // These errors repeat nothing of the call, or contain questions for the caller.
            other @ (CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Asks { .. }
            | CallError::NeedsJob { .. }
            | CallError::NoJob { .. }) => other,
        }
    }
}

/// Collector of the secrets in a call's input that are marked by a name.
struct NamedSecretCollector<'v> {
    names: &'v SecretNames,
    values: HashSet<&'v str>,
    bytes: usize,
}

/// Error if a call's input contains too many secrets.
#[derive(Clone, Copy)]
struct TooManySecrets;

impl<'v> NamedSecretCollector<'v> {
    fn new(names: &'v SecretNames) -> Self {
        Self { names, values: HashSet::new(), bytes: 0 }
    }

    fn add(&mut self, value: &'v str) -> Result<(), TooManySecrets> {
        let Some(value) = searchable_secret(value) else { return Ok(()) };
        if self.values.insert(value) {
            self.bytes = self.bytes.saturating_add(value.len());
        }
        let fit = self.values.len() <= CALL_SECRETS_MAX && self.bytes <= CALL_SECRETS_BYTES_MAX;
        if fit { Ok(()) } else { Err(TooManySecrets) }
    }

    fn into_call_secrets(self, result: Result<(), TooManySecrets>) -> CallSecrets {
        match result {
            Ok(()) => CallSecrets { values: longest_first(self.values), too_many: false },
            Err(TooManySecrets) => CallSecrets { values: Vec::new(), too_many: true },
        }
    }

    /// Collects values in `value` that a key, or an option such as `--token` before them, marks as
    /// secret.
    ///
    /// # Errors
    /// The input contains too many secrets.
    fn collect(&mut self, value: &'v Value, depth: usize) -> Result<(), TooManySecrets> {
        if depth == 0 {
            return Ok(());
        }
        match value {
            Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
                if self.names.is_secret(name) {
                    self.collect_all(value, depth)
                } else {
                    self.collect(value, depth - 1)
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
                        Value::String(text) => match split_argument(text) {
                            // `env` and similar programs take variables in this form.
                            (name, Some(value)) if self.names.is_secret(name) => self.add(value)?,
                            (_, Some(_)) => {}
                            (name, None) => {
                                after_option = text.starts_with('-') && self.names.is_secret(name);
                            }
                        },
                        other => {
                            self.collect(other, depth - 1)?;
                            after_option = false;
                        }
                    }
                }
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    /// Collects every text in `value`, which is marked as secret.
    ///
    /// # Errors
    /// The input contains too many secrets.
    fn collect_all(&mut self, value: &'v Value, depth: usize) -> Result<(), TooManySecrets> {
        match value {
            Value::String(text) => self.add(text),
            Value::Array(items) if depth > 0 => {
                items.iter().try_for_each(|item| self.collect_all(item, depth - 1))
            }
            Value::Object(fields) if depth > 0 => {
                fields.values().try_for_each(|value| self.collect_all(value, depth - 1))
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => Ok(()),
        }
    }
}

/// Copies `values`, and sorts them from the longest to the shortest.
fn longest_first(values: HashSet<&str>) -> Vec<String> {
    let mut values: Vec<_> = values.into_iter().map(str::to_owned).collect();
    values.sort_by_key(|value| Reverse(value.len()));
    values
}

/// Splits an argument into its name and value: `--name`, `--name=value` or `NAME=value`. Ignores a
/// `=` after more bytes than the longest secret name has.
fn split_argument(text: &str) -> (&str, Option<&str>) {
    let bytes = text.as_bytes();
    let start = &bytes[..bytes.len().min(NAME_BYTES_MAX + 1)];
    match start.iter().position(|byte| *byte == b'=') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text.trim_start_matches('-'), None),
    }
}

/// Returns the trimmed `value`, or `None` if `value` is too short to be a secret.
fn searchable_secret(value: &str) -> Option<&str> {
    Some(value.trim()).filter(|value| value.len() > SHORT_BYTES_MAX)
}

/// Redacts each of `values`, which are sorted from the longest to the shortest, from `text`.
fn redact_texts<'t>(values: &[impl AsRef<str>], text: &'t str) -> Cow<'t, str> {
    let mut text = Cow::Borrowed(text);
    for value in values {
        let value = value.as_ref();
        if text.contains(value) {
            text = Cow::Owned(text.replace(value, REDACTED));
        }
    }
    text
}

/// Returns `value` with each text replaced by the result of `clean`. Keys stay unchanged.
fn map_texts(value: Value, clean: &impl Fn(String) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(clean(text)),
        Value::Array(items) => items.into_iter().map(|item| map_texts(item, clean)).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key, map_texts(value, clean))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

#[cfg(test)]
mod tests;
