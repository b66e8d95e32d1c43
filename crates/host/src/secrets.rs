//! Finds secrets and redacts them from messages and logs.
//!
//! A secret is found by its value (the server's own), by its name in a call (`API_TOKEN`,
//! `--password`), or by its shape (`ghp_…`). Results of tools are not changed, except for values
//! that the operator marked as secret.

mod shapes;
mod names;
mod told;
mod values;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use toolgate_contract::{Arguments, CallError, EventSink, Problem};

use names::Names;
use shapes::{FORMS, NAME_BYTES_MAX};
use values::{Values, Veil};

pub(crate) use told::Told;
pub(crate) use values::Veiled;

/// Text that replaces a secret.
pub const REDACTED: &str = "[redacted]";

/// Longest value in bytes that is never treated as a secret, whatever its name.
const SHORT: usize = 5;
/// Largest depth at which an input is searched for secrets.
const DEPTH_MAX: usize = 16;
/// Largest number of secrets in one call that are redacted from its refusal.
const OF_CALL_MAX: usize = 256;
/// Largest total size of these secrets in bytes.
const OF_CALL_BYTES_MAX: usize = 1 << 20;
/// Message that replaces a refusal if the call names more secrets.
const WITHHELD: &str = "the call names more secrets than can be looked for in what is told, so \
                        nothing is told of it but this; pass fewer of them at once";

/// Secrets of a server, known by their values.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Values, longest first, so that a contained shorter secret leaves no remainder.
    values: Vec<String>,
    /// Values that are also redacted from the results of tools.
    shown: Option<Arc<Values>>,
    /// Names that mark secrets.
    names: Arc<Names>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.values.len())
    }
}

/// Secrets that one call names.
#[derive(Debug, Default)]
pub(crate) struct CallSecrets {
    known: Secrets,
    /// True if there are too many to keep.
    too_many: bool,
}

impl Secrets {
    /// Collects those of `variables` (name and value) whose name marks a secret.
    pub fn among<'v>(variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Self {
        Self::among_named(variables, &[])
    }

    /// Collects secret `variables` like [`Secrets::among`]. The additional `names` mark secrets
    /// here and in calls.
    pub fn among_named<'v>(
        variables: impl IntoIterator<Item = (&'v str, &'v str)>,
        names: &[String],
    ) -> Self {
        let names = Arc::new(Names::of(names));
        let named = variables.into_iter().filter(|(name, _)| names.are_of(name));
        let known = Self::of(named.filter_map(|(_, value)| secret(value)).collect());
        Self { names, ..known }
    }

    fn of(values: HashSet<&str>) -> Self {
        let mut values: Vec<_> = values.into_iter().map(str::to_owned).collect();
        values.sort_by_key(|value| Reverse(value.len()));
        Self { values, shown: None, names: Arc::default() }
    }

    /// Adds `values` to the secrets.
    pub fn and(self, values: &[String]) -> Self {
        let all = self.values.iter().chain(values).map(String::as_str).collect();
        Self { shown: self.shown.clone(), names: self.names.clone(), ..Self::of(all) }
    }

    /// Adds `values` to the secrets, and redacts them from results and events of tools as well.
    pub fn and_everywhere(self, values: &[String]) -> Self {
        let all = self.values.iter().chain(values).map(String::as_str).collect();
        let shown = Values::of(values).map(Arc::new);
        Self { shown, names: self.names.clone(), ..Self::of(all) }
    }

    /// Redacts the values that must appear nowhere from a call's result.
    pub(crate) fn clear(&self, told: &mut impl Told) {
        if let Some(values) = &self.shown {
            told.rid(values);
        }
    }

    /// Returns `events` with such values redacted, for as long as the returned guard is kept.
    pub(crate) fn veiled(&self, events: &EventSink) -> (EventSink, Veiled) {
        match &self.shown {
            Some(values) if events.is_watched() => {
                let veil = Veil::over(values.clone(), events.clone());
                (veil.sink(), Veiled(Some(veil)))
            }
            Some(_) | None => (events.clone(), Veiled(None)),
        }
    }

    /// Returns `text` with secrets redacted.
    pub fn redacted<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.names.without(shapes::without(&FORMS, without_values(&self.values, text)))
    }

    /// Collects the secrets that `input` names, for the duration of the call.
    ///
    /// A call without secrets copies nothing.
    pub(crate) fn of_call(&self, input: &Value) -> CallSecrets {
        let mut named = Named::by(&self.names);
        let within = named.gather(input, DEPTH_MAX);
        named.known(within)
    }

    /// Collects the secrets that the arguments of a prompt name.
    pub(crate) fn of_arguments(&self, arguments: &Arguments) -> CallSecrets {
        let mut named = Named::by(&self.names);
        let mut secret = arguments.iter().filter(|(name, _)| self.names.are_of(name));
        let within = secret.try_for_each(|(_, value)| named.add(value));
        named.known(within)
    }

    /// Redacts these secrets, and those of the call, from `error`.
    pub(crate) fn without(&self, of_call: &CallSecrets, error: CallError) -> CallError {
        let mut values: Vec<_> = of_call.known.values.iter().chain(&self.values).collect();
        values.sort_by_key(|value| Reverse(value.len()));
        let or_else = |text: String, instead: &str| {
            if of_call.too_many {
                return instead.to_owned();
            }
            match self.names.without(shapes::without(&FORMS, without_values(&values, &text))) {
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
            // Withheld problems are all alike, so one is enough.
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
            CallError::CannotAsk { kind, what } => {
                CallError::CannotAsk { kind, what: what.map(clean) }
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

/// Secrets found in an input so far.
struct Named<'v> {
    names: &'v Names,
    values: HashSet<&'v str>,
    bytes: usize,
}

/// The limit on secrets of one call is exceeded.
#[derive(Clone, Copy)]
struct TooMany;

impl<'v> Named<'v> {
    fn by(names: &'v Names) -> Self {
        Self { names, values: HashSet::new(), bytes: 0 }
    }

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

    /// Collects values in `value` that a key or a preceding option marks as secret.
    fn gather(&mut self, value: &'v Value, depth: usize) -> Result<(), TooMany> {
        if depth == 0 {
            return Ok(());
        }
        match value {
            Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
                if self.names.are_of(name) {
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
                            // `env` and similar programs take variables in this form.
                            (name, Some(value)) if self.names.are_of(name) => self.add(value)?,
                            (_, Some(_)) => {}
                            (name, None) => {
                                after_option = text.starts_with('-') && self.names.are_of(name);
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

    /// Collects every text in `value`, which is marked as secret.
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

/// Splits an argument into its name and value: `--name`, `--name=value` or `NAME=value`. A `=`
/// beyond the longest secret name is ignored.
fn named_argument(text: &str) -> (&str, Option<&str>) {
    let bytes = text.as_bytes();
    let start = &bytes[..bytes.len().min(NAME_BYTES_MAX + 1)];
    match start.iter().position(|byte| *byte == b'=') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text.trim_start_matches('-'), None),
    }
}

/// Returns `value` trimmed, if it is long enough to be a secret.
fn secret(value: &str) -> Option<&str> {
    Some(value.trim()).filter(|value| value.len() > SHORT)
}

/// Redacts `values`, longest first, from `text`.
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

/// Applies `clean` to each text in `value`. Keys stay unchanged.
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
mod tests;
