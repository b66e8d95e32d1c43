//! Conversion of contract parameters to tool inputs.

use serde_json::{Map, Value, json};

use super::methods::MiraContractMethod;
use super::refusals::dotted_path;

/// A limit in bytes that is above every tool's own limit, so that only the tool's limit applies.
const UNLIMITED_BYTES: u64 = 1 << 40;
/// The maximum size of one UTF-8 character, in bytes.
const CHARACTER_BYTES: u64 = 4;
/// The time limit of a program in Mira's dialect in milliseconds, if the call sets none.
const TIMEOUT_DEFAULT_MS: u64 = 60_000;

/// A called method of Mira's contract, with the parameters on which the answer depends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MiraCallParams {
    Read(MiraReadParams),
    Write(MiraWriteParams),
    Run { stream: bool },
    Search,
}

/// The parameters of a call that reads a file, as far as the answer depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MiraReadParams {
    /// The limit of the read in bytes. A larger file is refused.
    pub(super) bytes_max: Option<u64>,
}

/// The parameters of a call that writes a file, as far as the answer depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MiraWriteParams {
    pub(super) create: bool,
    pub(super) mkdirs: bool,
    /// True if the `content` to write was in Base64.
    pub(super) is_base64: bool,
}

impl MiraCallParams {
    pub(super) fn method(&self) -> MiraContractMethod {
        match self {
            Self::Read(_) => MiraContractMethod::Read,
            Self::Write(_) => MiraContractMethod::Write,
            Self::Run { .. } => MiraContractMethod::Run,
            Self::Search => MiraContractMethod::Search,
        }
    }

    /// Returns the parameter of Mira's contract for a `pointer` into the tool's input.
    pub(super) fn field(&self, pointer: &str) -> String {
        let field = match (self, pointer) {
            (Self::Read(_), "/if_none_match") | (Self::Write(_), "/if_match") => "etag",
            (Self::Write(MiraWriteParams { is_base64: true, .. }), "/content_base64") => "content",
            (Self::Search, "/path") => "filter.path_prefix",
            (Self::Search, "/limit") => "top_k",
            (Self::Search, "/tags") => "filter.tags",
            (Self::Read(_) | Self::Write(_) | Self::Run { .. } | Self::Search, other) => {
                return dotted_path(other);
            }
        };
        field.to_owned()
    }
}

/// Converts `params`, which satisfy the schema of Mira's contract, to the input of the tool for
/// `method`.
pub(super) fn tool_input(method: MiraContractMethod, params: Value) -> (Value, MiraCallParams) {
    let Value::Object(mut params) = params else { return (params, MiraCallParams::Search) };
    // Null counts as missing in all parameters.
    params.retain(|_, value| !value.is_null());
    match method {
        MiraContractMethod::Read => read_input(params),
        MiraContractMethod::Write => write_input(params),
        MiraContractMethod::Run => run_input(params),
        MiraContractMethod::Search => (search_input(params), MiraCallParams::Search),
    }
}

fn read_input(mut params: Map<String, Value>) -> (Value, MiraCallParams) {
    let bytes_max = params.get("max_bytes").map(whole_number);
    // With a limit below one character, the tool would report a split character, not the size.
    let max_bytes =
        bytes_max.map_or(UNLIMITED_BYTES, |bytes| bytes.clamp(CHARACTER_BYTES, UNLIMITED_BYTES));
    params.insert("max_bytes".to_owned(), json!(max_bytes));
    // An offset makes the tool read bytes instead of lines.
    params.entry("offset").or_insert(json!(0));
    rename(&mut params, "etag", "if_none_match");
    (Value::Object(params), MiraCallParams::Read(MiraReadParams { bytes_max }))
}

fn write_input(mut params: Map<String, Value>) -> (Value, MiraCallParams) {
    let is = |name: &str, or: bool| params.get(name).and_then(Value::as_bool).unwrap_or(or);
    let is_encoding_base64 = params.get("encoding").is_some_and(|encoding| encoding == "base64");
    let flags = MiraWriteParams {
        create: is("create", true),
        mkdirs: is("mkdirs", true),
        is_base64: is_encoding_base64
            && params.contains_key("content")
            && !params.contains_key("content_base64"),
    };
    params.remove("encoding");
    // This is the contract's default. Even then, an `etag` allows the file to be replaced.
    if params.get("overwrite").is_some_and(|overwrite| overwrite == false) {
        params.remove("overwrite");
    }
    if flags.is_base64 {
        rename(&mut params, "content", "content_base64");
    }
    rename(&mut params, "etag", "if_match");
    (Value::Object(params), MiraCallParams::Write(flags))
}

fn run_input(mut params: Map<String, Value>) -> (Value, MiraCallParams) {
    let stream = params.remove("stream").is_some_and(|stream| stream == true);
    params.entry("timeout_ms").or_insert(json!(TIMEOUT_DEFAULT_MS));
    params.insert("max_output_bytes".to_owned(), json!(UNLIMITED_BYTES));
    (Value::Object(params), MiraCallParams::Run { stream })
}

fn search_input(mut params: Map<String, Value>) -> Value {
    if let Some(Value::Object(filter)) = params.remove("filter") {
        params.extend(filter.into_iter().filter(|(_, value)| !value.is_null()));
    }
    rename(&mut params, "path_prefix", "path");
    rename(&mut params, "top_k", "limit");
    // The contract's matches are passages.
    params.insert("by_file".to_owned(), json!(false));
    Value::Object(params)
}

fn rename(params: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = params.remove(from) {
        params.insert(to.to_owned(), value);
    }
}

/// Converts the JSON number `number`, a non-negative integer, to `u64`. Larger values become
/// `u64::MAX`.
pub(super) fn whole_number(number: &Value) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let whole = |number: f64| number as u64;
    number.as_u64().or_else(|| number.as_f64().map(whole)).unwrap_or(u64::MAX)
}
