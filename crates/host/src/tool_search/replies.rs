//! Adds corrections, and help after a failure, to the result of `tools.call`.

use std::fmt::Write as _;

use serde_json::{Value, json};
use toolgate_contract::{
    CallEnding, CallError, ContentBlock, ResultText, ToolCall, ToolOutput, fold_name,
};
use toolgate_tool_search::{lean_schema, signature, skeleton};

use super::answers::CatalogSearch;
use crate::Gate;

/// Longest schema that an answer contains whole, in bytes. A longer one becomes a line.
const SCHEMA_BYTES_MAX: usize = 2 << 10;
/// Number of tools that are suggested for an unknown name.
const NEAREST: usize = 3;
/// Code by which other servers refuse arguments.
const INVALID_PARAMS: i32 = -32602;

/// Adds what was corrected to `output`.
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

/// Returns a failed result that says how to call the tool, if the arguments or the name were wrong.
/// Returns any other `error` unchanged.
pub(super) fn explain_failure(
    gate: &Gate,
    call: &ToolCall,
    error: CallError,
    notes: &[String],
) -> Result<ToolOutput, CallError> {
    let mut text = error.to_string();
    match &error {
        CallError::InvalidInput { .. } => describe_arguments(gate, call, &mut text),
        CallError::Refused { code, .. } if *code == INVALID_PARAMS => {
            describe_arguments(gate, call, &mut text);
        }
        CallError::UnknownTool { unavailable: None, .. } => suggest_tools(gate, call, &mut text),
        _ => return Err(error),
    }
    for note in notes {
        _ = write!(text, "\n{note}");
    }
    let content = vec![ContentBlock::text(text)];
    let failed = ToolOutput::new(Value::Null, ResultText::default(), CallEnding::ToolFailed);
    Ok(ToolOutput { structured: false, content, ..failed })
}

fn describe_arguments(gate: &Gate, call: &ToolCall, text: &mut String) {
    let Ok(entry) = gate.find(&call.caller, &call.tool) else { return };
    let spec = entry.spec();
    let name = fold_name(spec.id.as_str());
    let schema = lean_schema(&spec.input_schema).to_string();
    if schema.len() <= SCHEMA_BYTES_MAX {
        _ = write!(text, "\n{name} takes: {schema}");
    } else {
        _ = write!(text, "\n{name}{}", signature(&spec.input_schema).text);
    }
    let example = json!({ "name": name, "arguments": skeleton(&spec.input_schema) });
    _ = write!(text, "\ntools_call {example}");
}

fn suggest_tools(gate: &Gate, call: &ToolCall, text: &mut String) {
    let search = CatalogSearch::of_caller(gate, &call.caller, call.metadata.session.as_ref());
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
