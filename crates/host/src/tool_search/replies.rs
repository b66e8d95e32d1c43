//! Adds corrections, and help after a failure, to the result of `tools.call`.

use std::fmt::Write as _;

use serde_json::{Value, json};
use toolgate_contract::{
    CallError, ContentBlock, ResultText, ToolCall, ToolOutput, ToolRunStatus, fold_name, lock_mutex,
};
use toolgate_tool_search::{lean_schema, signature, skeleton};

use super::answers::CallerToolSearch;
use super::shown::ShownToolVersion;
use crate::Gate;

/// Longest input schema, in bytes, that the result of a failed call contains in full. A longer
/// schema is summarized in one line.
const SCHEMA_BYTES_MAX: usize = 2 << 10;
/// Number of tools that are suggested for an unknown tool name.
const NEAREST: usize = 3;
/// JSON-RPC error code by which other servers refuse arguments.
const INVALID_PARAMS: i32 = -32602;
/// Phrases with which the MCP SDKs refuse arguments in a failed result, in lower case.
const REFUSAL_PHRASES: [&str; 5] = [
    "-32602",
    "input validation error",
    "invalid arguments",
    "validation error for ",
    "validation errors for ",
];
/// Maximum number of characters of a failed result that are searched for refusal phrases.
const SEARCHED_CHARS_MAX: usize = 1000;

/// Adds the corrections of a call to its `output`.
pub(super) fn add_note(output: &mut ToolOutput, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    let note = notes.join("; ");
    if output.text.body.is_empty() && !output.content.is_empty() {
        output.content.push(ContentBlock::text(note));
        return;
    }
    output.text.note = Some(match output.text.note.take() {
        Some(before) => format!("{before}; {note}"),
        None => note,
    });
}

/// Returns a failed result with advice on how to call the tool, if the arguments or the name were
/// wrong. Returns all other errors unchanged.
pub(super) fn explain_failure(
    gate: &Gate,
    call: &ToolCall,
    error: CallError,
    notes: &[String],
) -> Result<ToolOutput, CallError> {
    let mut text = error.to_string();
    match &error {
        CallError::InvalidInput { .. } => _ = write!(text, "\n{}", arguments_help(gate, call)),
        CallError::Refused { code, .. } if *code == INVALID_PARAMS => {
            _ = write!(text, "\n{}", arguments_help(gate, call));
        }
        CallError::UnknownTool { unavailable: None, .. } => suggest_tools(gate, call, &mut text),
        _ => return Err(error),
    }
    for note in notes {
        _ = write!(text, "\n{note}");
    }
    Ok(failed_output(text))
}

/// Returns a failed result that suggests other tools, if `error` means that a tool of the client's
/// list no longer exists. Returns all other errors unchanged.
pub(crate) fn explain_gone(
    gate: &Gate,
    call: &ToolCall,
    error: CallError,
) -> Result<ToolOutput, CallError> {
    let is_unknown = matches!(error, CallError::UnknownTool { unavailable: None, .. });
    if !is_unknown || !gate.has_listed(call) {
        return Err(error);
    }
    let mut text = format!("`{}` is in your list, but no longer available", call.tool);
    suggest_tools(gate, call, &mut text);
    Ok(failed_output(text))
}

fn failed_output(text: String) -> ToolOutput {
    let content = vec![ContentBlock::text(text)];
    let failed = ToolOutput::new(Value::Null, ResultText::default(), ToolRunStatus::ToolFailed);
    ToolOutput { structured: false, content, ..failed }
}

/// Returns true if the called tool failed because it did not accept its arguments.
pub(super) fn refuses_arguments(output: &ToolOutput) -> bool {
    if output.ending != ToolRunStatus::ToolFailed {
        return false;
    }
    let texts = output.content.iter().map(ContentBlock::as_text);
    let text: String = [output.text.body.clone()].into_iter().chain(texts).collect();
    let start: String = text.chars().take(SEARCHED_CHARS_MAX).collect();
    let start = start.to_lowercase();
    REFUSAL_PHRASES.iter().any(|phrase| start.contains(*phrase))
}

/// Returns a description of the arguments of the called tool, and an example call. Returns an empty
/// text if the caller may not see the tool.
pub(super) fn arguments_help(gate: &Gate, call: &ToolCall) -> String {
    let Ok(entry) = gate.find(&call.caller, &call.tool) else { return String::new() };
    let spec = entry.spec();
    let name = fold_name(spec.id.as_str());
    let session = call.metadata.session.as_ref();
    let tool = ShownToolVersion::new(&entry);
    let was_sent = lock_mutex(&gate.tool_search.shown).note_schema(&call.caller, session, tool);
    let schema = lean_schema(&spec.input_schema).to_string();
    let arguments = match (was_sent, schema.len() <= SCHEMA_BYTES_MAX) {
        (true, _) => {
            let request = json!({ "names": [name] });
            format!(": the schema was sent before; tools_search {request} sends it again")
        }
        (false, true) => format!(" takes: {schema}"),
        (false, false) => signature(&spec.input_schema).text,
    };
    let example = json!({ "name": name, "arguments": skeleton(&spec.input_schema) });
    format!("{name}{arguments}\ntools_call {example}")
}

fn suggest_tools(gate: &Gate, call: &ToolCall, text: &mut String) {
    let search = CallerToolSearch::of_caller(gate, &call.caller, call.metadata.session.as_ref());
    let nearest = search.nearest(&call.tool, NEAREST);
    if nearest.is_empty() {
        text.push_str("\nfind tools with tools_search");
        return;
    }
    text.push_str("\nnearest:");
    for line in nearest {
        _ = write!(text, "\n{line}");
    }
}
