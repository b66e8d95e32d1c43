//! Secrets: what is known to be one, and its removal from what is told and what is logged.
//!
//! A secret is known by its value (the server's own), by its name (in a call: `API_TOKEN`,
//! `--password`), or by its shape (`ghp_…`). What tools give back is their result, and is not
//! touched, but for values that whoever runs the server named as secrets.

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
#[derive(Clone, Default)]
pub struct Secrets {
    /// The longest first, so that none leaves a piece of one that it is in.
    values: Vec<String>,
    /// Those that are taken out of what tools give back, too.
    shown: Option<Arc<Values>>,
    /// What they are called.
    names: Arc<Names>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.values.len())
    }
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
        Self::among_named(variables, &[])
    }

    /// The same where secrets are called by these `names`, too, here and in calls.
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

    /// The same and `values`.
    pub fn and(self, values: &[String]) -> Self {
        let all = self.values.iter().chain(values).map(String::as_str).collect();
        Self { shown: self.shown.clone(), names: self.names.clone(), ..Self::of(all) }
    }

    /// The same and `values`, which are in nothing that tools give back or say either.
    pub fn and_everywhere(self, values: &[String]) -> Self {
        let all = self.values.iter().chain(values).map(String::as_str).collect();
        let shown = Values::of(values).map(Arc::new);
        Self { shown, names: self.names.clone(), ..Self::of(all) }
    }

    /// Takes out of what a call comes to what is to be nowhere.
    pub(crate) fn clear(&self, told: &mut impl Told) {
        if let Some(values) = &self.shown {
            told.rid(values);
        }
    }

    /// `events` without what is to be nowhere, for as long as the second is held.
    pub(crate) fn veiled(&self, events: &EventSink) -> (EventSink, Veiled) {
        match &self.shown {
            Some(values) if events.is_watched() => {
                let veil = Veil::over(values.clone(), events.clone());
                (veil.sink(), Veiled(Some(veil)))
            }
            Some(_) | None => (events.clone(), Veiled(None)),
        }
    }

    /// `text` without secrets.
    pub fn redacted<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.names.without(shapes::without(&FORMS, without_values(&self.values, text)))
    }

    /// What of `input` is a secret by its name, to be remembered while the call goes on.
    ///
    /// Nothing is copied of a call that names none.
    pub(crate) fn of_call(&self, input: &Value) -> CallSecrets {
        let mut named = Named::by(&self.names);
        let within = named.gather(input, DEPTH_MAX);
        named.known(within)
    }

    /// The same of a prompt's arguments.
    pub(crate) fn of_arguments(&self, arguments: &Arguments) -> CallSecrets {
        let mut named = Named::by(&self.names);
        let mut secret = arguments.iter().filter(|(name, _)| self.names.are_of(name));
        let within = secret.try_for_each(|(_, value)| named.add(value));
        named.known(within)
    }

    /// `error` without these secrets and those of the call that it ends.
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
            // They say nothing that came with the call; and questions are for whoever called.
            other @ (CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Asks { .. }
            | CallError::NeedsJob { .. }
            | CallError::NoJob { .. }) => other,
        }
    }
}

/// What is known to be a secret in an input.
struct Named<'v> {
    names: &'v Names,
    values: HashSet<&'v str>,
    bytes: usize,
}

/// There are too many.
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

    /// Gathers what in `value` is called a secret: by its key, or as an argument after its option.
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
                            // `env` and its like take variables so.
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
mod tests;
