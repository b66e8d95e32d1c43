//! Pins: the approved definitions of upstreams' tools and instructions, and their differences from
//! the current definitions.
//!
//! This module reads and writes the text of `toolgate.lock` but opens no file.

use std::collections::{BTreeMap, btree_map};
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolgate_contract::{exact_json, printable};

use crate::instructions::is_bounded;

mod differences;
mod injection_signs;
mod approval;
mod schemas;
mod render;

pub(crate) use approval::ServedUpstreamTool;
pub use approval::{PinMismatchReaction, PinPolicy, PinSettings};
pub use differences::{
    PinDifference, PinDifferenceSeverity, ToolDefinitionChange, UpstreamChanges,
};
pub use render::{render_changes, summarize_changes};
pub use toolgate_contract::printable::escape_hidden as one_line;

/// Version of the format of `toolgate.lock`.
const VERSION: i64 = 1;
/// Comment at the start of `toolgate.lock`.
const FILE_HEADER: &str = "# Written by toolgate: the approved definitions of its upstreams. \
                    To change one, approve it again; edits by hand are refused.";
/// Advice in the error about a lock file that cannot be trusted.
const REPAIR_ADVICE: &str =
    "restore the file from version control, or remove it, review the tools and pin them again";

const EDITED_BY_HAND: &str = "the hash does not match, so the file was edited by hand";
const LISTED_TWICE: &str = "it is listed twice";

/// The definition of an upstream's tool, as far as a model or a caller relies on it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    /// The upstream's own name for the tool.
    pub name: String,
    /// Display name of the tool.
    pub title: Option<String>,
    /// Description of the tool for models.
    pub description: Option<String>,
    /// Behaviour hints of the tool, such as `readOnlyHint`.
    pub annotations: Option<Value>,
    /// JSON schema of the tool's input.
    pub input_schema: Value,
    /// JSON schema of the tool's output, if there is one.
    pub output_schema: Option<Value>,
    /// The tool's `_meta` object, for clients that display the tool.
    pub meta: Option<Value>,
}

impl ToolDefinition {
    /// Parses an entry of `tools/list`. Returns `None` if the entry has no name.
    ///
    /// A tool without an input schema accepts any input.
    pub fn from_entry(tool: &Value) -> Option<Self> {
        let text = |key: &str| tool.get(key)?.as_str().map(str::to_owned);
        let value = |key: &str| tool.get(key).filter(|value| !value.is_null()).cloned();
        Some(Self {
            name: text("name")?,
            title: text("title"),
            description: text("description"),
            annotations: value("annotations"),
            input_schema: value("inputSchema").unwrap_or_else(|| json!({})),
            output_schema: value("outputSchema"),
            meta: value("_meta"),
        })
    }

    /// Returns the entry of `tools/list` for this definition.
    pub(crate) fn to_entry(&self) -> Value {
        let Self { name, title, description, annotations, input_schema, output_schema, meta } =
            self;
        let mut entry = exact_json::object([
            ("name", name.as_str().into()),
            ("inputSchema", input_schema.clone()),
        ]);
        for (key, value) in [
            ("title", title.as_deref().map(Value::from)),
            ("description", description.as_deref().map(Value::from)),
            ("annotations", annotations.clone()),
            ("outputSchema", output_schema.clone()),
            ("_meta", meta.clone()),
        ] {
            if let Some(value) = value {
                entry[key] = value;
            }
        }
        entry
    }

    /// Returns the BLAKE3 hash of the definition in hex. The order of JSON keys does not affect the
    /// hash.
    pub fn hash(&self) -> String {
        let mut parts = Map::new();
        let mut part = |key: &str, value: Option<Value>| {
            parts.extend(value.map(|value| (key.to_owned(), value)));
        };
        part("name", Some(self.name.as_str().into()));
        part("title", self.title.as_deref().map(Value::from));
        part("description", self.description.as_deref().map(Value::from));
        part("annotations", self.annotations.clone());
        part("input_schema", Some(self.input_schema.clone()));
        part("output_schema", self.output_schema.clone());
        part("meta", self.meta.clone());
        hash_of(&sort_keys(&Value::Object(parts)).to_string())
    }
}

/// The contents of `toolgate.lock`: the approved definitions of the upstreams' tools and
/// instructions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PinLock {
    /// Approved tools and instructions (pins) of each upstream, by the upstream's name.
    pub upstreams: BTreeMap<String, UpstreamPins>,
}

/// The approved tools and instructions of one upstream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UpstreamPins {
    /// Approved instructions of the upstream.
    pub instructions: Option<String>,
    /// Approved tools, by the upstream's own names.
    pub tools: BTreeMap<String, ToolDefinition>,
}

impl PinLock {
    /// Parses the text of a `toolgate.lock` file.
    ///
    /// # Errors
    ///
    /// Returns the tool, the problem and the fix.
    pub fn parse(text: &str) -> Result<Self, String> {
        // A checkout may have changed the line ends to `\r\n`.
        let table = text.replace("\r\n", "\n").parse::<toml::Table>();
        let table = table.map_err(|err| unreadable(err.message()))?;
        match table.get("version").map(toml::Value::as_integer) {
            Some(Some(VERSION)) => {}
            Some(Some(other)) => {
                return Err(format!(
                    "`toolgate.lock` has version {other}, and this toolgate supports version \
                     {VERSION}; use the toolgate that wrote it, or remove it, review the tools and \
                     pin them again"
                ));
            }
            Some(None) | None => return Err(unreadable("`version = 1` is missing")),
        }
        let file: PinLockFile =
            table.try_into().map_err(|err: toml::de::Error| unreadable(err.message()))?;
        let without_tools =
            file.upstreams_without_tools.into_iter().map(|name| (name, UpstreamPins::default()));
        let mut lock = Self { upstreams: without_tools.collect() };
        for entry in file.instructions {
            let PinLockInstructions { upstream, hash, text } = entry;
            let wrong = |why: &str| {
                let subject =
                    format!("the instructions of upstream `{upstream}` in `toolgate.lock`");
                printable::escape_hidden(&format!("{subject}: {why}; {REPAIR_ADVICE}"))
            };
            // Anyone can compute the hash, so the length limit is checked as well.
            if hash != hash_of(&text) || !is_bounded(&text) {
                return Err(wrong(EDITED_BY_HAND));
            }
            let pins = lock.upstreams.entry(upstream.clone()).or_default();
            if pins.instructions.replace(text).is_some() {
                return Err(wrong(LISTED_TWICE));
            }
        }
        for (at, entry) in file.tool.into_iter().enumerate() {
            let subject = match ["upstream", "name"].map(|key| entry.get(key)?.as_str()) {
                [Some(upstream), Some(name)] => format!("`{name}` of upstream `{upstream}`"),
                [None, _] | [_, None] => format!("tool number {}", at + 1),
            };
            let error = |why: String| {
                printable::escape_hidden(&format!(
                    "{subject} in `toolgate.lock`: {why}; {REPAIR_ADVICE}"
                ))
            };
            let (upstream, definition) = parse_tool(entry).map_err(error)?;
            let pins = lock.upstreams.entry(upstream).or_default();
            match pins.tools.entry(definition.name.clone()) {
                btree_map::Entry::Vacant(place) => _ = place.insert(definition),
                btree_map::Entry::Occupied(_) => return Err(error(LISTED_TWICE.into())),
            }
        }
        Ok(lock)
    }

    /// Returns the text of `toolgate.lock`, which depends only on the pins.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FILE_HEADER}\nversion = {VERSION}\n");
        let without_tools = self.upstreams.iter().filter(|(_, pins)| pins.tools.is_empty());
        let without_tools: Vec<_> = without_tools.map(|(name, _)| toml_string(name)).collect();
        if !without_tools.is_empty() {
            _ = writeln!(text, "upstreams_without_tools = [{}]", without_tools.join(", "));
        }
        for (upstream, UpstreamPins { instructions, tools }) in &self.upstreams {
            if let Some(instructions_text) = instructions {
                text.push_str("\n[[instructions]]\n");
                _ = writeln!(text, "upstream = {}", toml_string(upstream));
                _ = writeln!(text, "hash = {}", toml_string(&hash_of(instructions_text)));
                _ = writeln!(text, "text = {}", toml_string(instructions_text));
            }
            for definition in tools.values() {
                write_tool(&mut text, upstream, definition);
            }
        }
        text
    }
}

/// Content of the lock file `toolgate.lock`, as TOML.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PinLockFile {
    #[serde(rename = "version")]
    _version: i64,
    #[serde(default)]
    upstreams_without_tools: Vec<String>,
    #[serde(default)]
    instructions: Vec<PinLockInstructions>,
    #[serde(default)]
    tool: Vec<toml::Table>,
}

/// Approved instructions of an upstream in the lock file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PinLockInstructions {
    upstream: String,
    hash: String,
    text: String,
}

/// Approved definition of a tool in the lock file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PinLockTool {
    upstream: String,
    name: String,
    hash: String,
    title: Option<String>,
    description: Option<String>,
    annotations: Option<String>,
    input_schema: String,
    output_schema: Option<String>,
    meta: Option<String>,
}

/// Returns the BLAKE3 hash of `text` in hex.
fn hash_of(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

fn unreadable(why: &str) -> String {
    format!(
        "`toolgate.lock` cannot be read: {}; {REPAIR_ADVICE}",
        printable::escape_hidden(why.trim())
    )
}

fn parse_tool(entry: toml::Table) -> Result<(String, ToolDefinition), String> {
    let entry: PinLockTool =
        entry.try_into().map_err(|err: toml::de::Error| err.message().trim().to_owned())?;
    let value = |key: &str, text: &str| {
        exact_json::parse(text).map_err(|err| format!("`{key}` is not JSON: {err}"))
    };
    let definition = ToolDefinition {
        name: entry.name,
        title: entry.title,
        description: entry.description,
        annotations: entry.annotations.map(|text| value("annotations", &text)).transpose()?,
        input_schema: value("input_schema", &entry.input_schema)?,
        output_schema: entry.output_schema.map(|text| value("output_schema", &text)).transpose()?,
        meta: entry.meta.map(|text| value("meta", &text)).transpose()?,
    };
    if definition.hash() != entry.hash {
        return Err(EDITED_BY_HAND.to_owned());
    }
    Ok((entry.upstream, definition))
}

fn write_tool(text: &mut String, upstream: &str, definition: &ToolDefinition) {
    let ToolDefinition { name, title, description, annotations, input_schema, output_schema, meta } =
        definition;
    let json = |value: &Option<Value>| value.as_ref().map(toml_json);
    let parts = [
        ("upstream", Some(toml_string(upstream))),
        ("name", Some(toml_string(name))),
        ("hash", Some(toml_string(&definition.hash()))),
        ("title", title.as_deref().map(toml_string)),
        ("description", description.as_deref().map(toml_string)),
        ("annotations", json(annotations)),
        ("input_schema", Some(toml_json(input_schema))),
        ("output_schema", json(output_schema)),
        ("meta", json(meta)),
    ];
    text.push_str("\n[[tool]]\n");
    for (key, value) in parts {
        if let Some(value) = value {
            _ = writeln!(text, "{key} = {value}");
        }
    }
}

/// Returns `text` as a TOML string, with its line breaks. Invisible characters are escaped.
fn toml_string(text: &str) -> String {
    let lines = text.contains('\n');
    let mut quoted = String::from(if lines { "\"\"\"\n" } else { "\"" });
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        // Editors may strip trailing spaces.
        let at_end = matches!(chars.peek(), None | Some('\n'));
        match c {
            '\n' => quoted.push('\n'),
            '"' | '\\' => quoted.extend(['\\', c]),
            ' ' if lines && at_end => quoted.push_str("\\u0020"),
            c if c == '\t' || printable::is_hidden(c) => {
                _ = write!(quoted, "\\U{:08x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push_str(if lines { "\"\"\"" } else { "\"" });
    quoted
}

/// Returns `value` as indented JSON in a TOML literal string, for the lock file.
fn toml_json(value: &Value) -> String {
    let json = pretty_json(value).replace("'''", "''\\u0027");
    format!("'''\n{json}\n'''")
}

/// Returns `value` as indented JSON with sorted keys and escaped invisible characters.
fn pretty_json(value: &Value) -> String {
    let mut json = String::new();
    for c in format!("{:#}", sort_keys(value)).chars() {
        // Such a character can only be part of a JSON string.
        if c != '\n' && printable::is_hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                _ = write!(json, "\\u{unit:04x}");
            }
        } else {
            json.push(c);
        }
    }
    json
}

/// Returns `value` with sorted object keys.
fn sort_keys(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members: BTreeMap<_, _> = members.iter().collect();
            members.into_iter().map(|(key, value)| (key.clone(), sort_keys(value))).collect()
        }
        Value::Array(items) => items.iter().map(sort_keys).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests;
