//! Conversion of contract parameters to tool inputs.

use serde_json::{Map, Value, json};

use super::methods::Contracted;
use super::refusals::dotted;

/// A byte limit above every tool's own limit, so that only the tool's limit applies.
const ALL_BYTES: u64 = 1 << 40;
/// The most bytes of one UTF-8 character.
const CHARACTER_BYTES: u64 = 4;
/// The time limit of a program in milliseconds, if the call sets none.
const TIMEOUT_MS: u64 = 60_000;

/// A called contract method, with the data needed to answer it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Called {
    Read(ReadTerms),
    Write(Written),
    Run { stream: bool },
    Search,
}

/// The parameters of a read that its answer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadTerms {
    /// The limit in bytes. A larger file is refused.
    pub(super) bytes_max: Option<u64>,
}

/// The parameters of a write that its answer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) create: bool,
    pub(super) mkdirs: bool,
    /// True if `content` was Base64.
    pub(super) is_base64: bool,
}

impl Called {
    pub(super) fn method(&self) -> Contracted {
        match self {
            Self::Read(_) => Contracted::Read,
            Self::Write(_) => Contracted::Write,
            Self::Run { .. } => Contracted::Run,
            Self::Search => Contracted::Search,
        }
    }

    /// Returns the contract parameter for a `pointer` into the tool's input.
    pub(super) fn field(&self, pointer: &str) -> String {
        let field = match (self, pointer) {
            (Self::Read(_), "/if_none_match") | (Self::Write(_), "/if_match") => "etag",
            (Self::Write(Written { is_base64: true, .. }), "/content_base64") => "content",
            (Self::Search, "/path_prefix") => "filter.path_prefix",
            (Self::Search, "/tags") => "filter.tags",
            (Self::Read(_) | Self::Write(_) | Self::Run { .. } | Self::Search, other) => {
                return dotted(other);
            }
        };
        field.to_owned()
    }
}

/// Converts `params`, which satisfy the contract's schema, to the input of the tool for `method`.
pub(super) fn input(method: Contracted, params: Value) -> (Value, Called) {
    let Value::Object(mut params) = params else { return (params, Called::Search) };
    // Null counts as missing in all parameters.
    params.retain(|_, value| !value.is_null());
    match method {
        Contracted::Read => read(params),
        Contracted::Write => write(params),
        Contracted::Run => run(params),
        Contracted::Search => (search(params), Called::Search),
    }
}

fn read(mut params: Map<String, Value>) -> (Value, Called) {
    let bytes_max = params.get("max_bytes").map(whole);
    // With a limit below one character, the tool would report a split character, not the size.
    let given = bytes_max.map_or(ALL_BYTES, |bytes| bytes.clamp(CHARACTER_BYTES, ALL_BYTES));
    params.insert("max_bytes".to_owned(), json!(given));
    // An offset makes the tool read bytes instead of lines.
    params.entry("offset").or_insert(json!(0));
    rename(&mut params, "etag", "if_none_match");
    (Value::Object(params), Called::Read(ReadTerms { bytes_max }))
}

fn write(mut params: Map<String, Value>) -> (Value, Called) {
    let is = |name: &str, or: bool| params.get(name).and_then(Value::as_bool).unwrap_or(or);
    let encoded = params.get("encoding").is_some_and(|encoding| encoding == "base64");
    let written = Written {
        create: is("create", true),
        mkdirs: is("mkdirs", true),
        is_base64: encoded
            && params.contains_key("content")
            && !params.contains_key("content_base64"),
    };
    params.remove("encoding");
    if written.is_base64 {
        rename(&mut params, "content", "content_base64");
    }
    rename(&mut params, "etag", "if_match");
    (Value::Object(params), Called::Write(written))
}

fn run(mut params: Map<String, Value>) -> (Value, Called) {
    let stream = params.remove("stream").is_some_and(|stream| stream == true);
    params.entry("timeout_ms").or_insert(json!(TIMEOUT_MS));
    params.insert("max_output_bytes".to_owned(), json!(ALL_BYTES));
    (Value::Object(params), Called::Run { stream })
}

fn search(mut params: Map<String, Value>) -> Value {
    if let Some(Value::Object(filter)) = params.remove("filter") {
        params.extend(filter.into_iter().filter(|(_, value)| !value.is_null()));
    }
    Value::Object(params)
}

fn rename(params: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = params.remove(from) {
        params.insert(to.to_owned(), value);
    }
}

/// Converts a non-negative whole number. Values above `u64::MAX` saturate.
pub(super) fn whole(number: &Value) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let whole = |number: f64| number as u64;
    number.as_u64().or_else(|| number.as_f64().map(whole)).unwrap_or(u64::MAX)
}
