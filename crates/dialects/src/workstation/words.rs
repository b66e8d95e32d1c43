//! Tool names, errors and text results of the workstation contract.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};
use toolgate_contract::{AnyTool, CallError, Output, Shape, ToolId, ToolSpec, fold};

use super::contracted::{ALL, Contracted, done_by};
use crate::rpc::{
    Failure, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR,
};

/// The code of a call that exceeded its time limit.
const TIMED_OUT: i32 = -32000;
/// The contract's name of the toolset `files`.
const FILES: &str = "filesystem";

/// Returns the dialect's name of the tool `id`. Returns `None` for tools that implement a contract
/// tool, and for names that would be ambiguous.
pub(crate) fn spell(id: &str) -> Option<String> {
    let (toolset, _) = id.split_once('.').unwrap_or((id, ""));
    if done_by(id).is_some() || toolset == FILES {
        return None;
    }
    let spelled = id.replace('.', "/");
    Some(match spelled.strip_prefix("files/") {
        Some(verb) => format!("{FILES}/{verb}"),
        None => spelled,
    })
}

/// Returns the catalog id of the tool `name`, if it is not one of the contract's own tools. Returns
/// `None` if no tool can have this name.
pub(crate) fn unspell(name: &str) -> Option<String> {
    let id = match name.strip_prefix("filesystem/") {
        Some(verb) => format!("files.{}", verb.replace('/', ".")),
        None => name.replace('/', "."),
    };
    // The catalog would resolve `files_read` to `files.read`, which has another name and form here.
    if name.starts_with("files_") {
        return None;
    }
    // Each tool has exactly one name here, so spellings such as `exec-run` are refused.
    let is_id =
        ToolId::new(&id).is_some() || (name.contains('/') && ToolId::foreign(&id).is_some());
    (is_id && spell(&id).as_deref() == Some(name)).then_some(id)
}

/// Returns the catalog id of the contract tool that a misspelled `name` probably means.
pub(crate) fn meant(name: &str) -> Option<String> {
    let name = fold(name);
    let own = ALL.iter().find(|own| [own.name, own.tool].into_iter().any(|one| fold(one) == name));
    own.map(|own| own.tool.to_owned())
}

/// Encodes the tools for `tools/list`, the contract's own first.
pub(crate) fn listed(tools: &[Arc<dyn AnyTool>]) -> Vec<Value> {
    named(
        tools,
        |name, about, schema| json!({ "name": name, "description": about, "inputSchema": schema }),
    )
}

/// Encodes the short tool list: names and descriptions.
pub(crate) fn summed(tools: &[Arc<dyn AnyTool>]) -> Vec<Value> {
    named(tools, |name, about, _| json!({ "name": name, "description": about }))
}

fn named(tools: &[Arc<dyn AnyTool>], tell: impl Fn(&str, &str, Value) -> Value) -> Vec<Value> {
    let offered = |id: &str| tools.iter().any(|tool| tool.spec().id.as_str() == id);
    let own = ALL.iter().filter(|tool| offered(tool.tool));
    let own = own.map(|tool| tell(tool.name, tool.about, tool.schema()));
    let others = tools.iter().filter_map(|tool| {
        let spec = tool.spec();
        Some(tell(&spell(spec.id.as_str())?, &spec.about, parameters(spec)))
    });
    own.chain(others).collect()
}

/// Returns the input schema, with the `properties` and `required` that the contract expects.
fn parameters(spec: &ToolSpec) -> Value {
    let mut schema = Value::clone(&spec.input_schema);
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("properties").or_insert_with(|| json!({}));
        fields.entry("required").or_insert_with(|| json!([]));
    }
    schema
}

/// Returns the whole output of a tool as text.
pub(crate) fn text(output: &Output) -> String {
    let mut text = output.text.body.clone();
    let mut add = |more: &str| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(more);
    };
    for content in &output.content {
        match &content.shown {
            Shape::Text(shown) => add(shown),
            Shape::Image(media) => add(&unshown("a picture", &media.media_type)),
            Shape::Audio(media) => add(&unshown("a sound", &media.media_type)),
            Shape::Link(_) => add(&unshown("a link", "a resource")),
            Shape::Resource(_) => add(&unshown("a resource", "see it over MCP")),
        }
    }
    if let Some(note) = &output.text.note {
        add(note);
    }
    text
}

/// Returns a placeholder for content that is not text.
fn unshown(what: &str, more: &str) -> String {
    format!("[{what}, {more}, which this contract cannot show]")
}

/// Creates an error with the contract's message. `data` has the reason and details.
pub(crate) fn failure(code: i32, reason: &str, detail: &str) -> Failure {
    let message = match code {
        PARSE_ERROR => "Parse error",
        INVALID_REQUEST => "Invalid Request",
        METHOD_NOT_FOUND => "Method not found",
        INVALID_PARAMS => "Invalid params",
        TIMED_OUT => "Tool execution timeout",
        _ => "Internal error",
    };
    Failure::new(code, message).with_data(json!({ "reason": reason, "detail": detail }))
}

/// Converts a parser's error to the contract's message.
pub(crate) fn reworded(found: &Failure) -> Failure {
    let reason = match found.code {
        PARSE_ERROR => "parse_error",
        METHOD_NOT_FOUND => "unknown_method",
        INVALID_PARAMS => "invalid_params",
        _ => "invalid_request",
    };
    failure(found.code, reason, &found.message)
}

/// Converts the refusal of the call of `name`.
pub(crate) fn refusal(name: &str, error: &CallError) -> Failure {
    let (code, detail): (i32, Cow<'_, str>) = match error {
        CallError::UnknownTool { name: unknown, nearest } => {
            // The client's own spelling is shown unless the catalog reported another name.
            let said = unspell(name).is_some_and(|id| id == *unknown);
            let name = if said { name } else { unknown };
            (METHOD_NOT_FOUND, no_tool(name, nearest.as_deref()).into())
        }
        CallError::InvalidInput { .. } | CallError::TooLarge { .. } | CallError::NoJob { .. } => {
            (INVALID_PARAMS, error.to_string().into())
        }
        CallError::TimedOut { after } => {
            let detail = format!(
                "`{name}` took longer than {} ms and was stopped; ask for less at once",
                after.as_millis()
            );
            (TIMED_OUT, detail.into())
        }
        CallError::NotAllowed { .. }
        | CallError::Scope { .. }
        | CallError::Limited { .. }
        | CallError::NotFound { .. }
        | CallError::Conflict { .. }
        | CallError::Unavailable { .. }
        | CallError::Canceled
        | CallError::Interrupted
        | CallError::Asks { .. }
        | CallError::CannotAsk { .. }
        | CallError::NeedsJob { .. }
        | CallError::Mismatch { .. }
        | CallError::Refused { .. }
        | CallError::Failed { .. }
        | CallError::InvalidOutput { .. } => (INTERNAL_ERROR, error.to_string().into()),
    };
    let mut failure = failure(code, error.reason(), &detail);
    let Some(data) = &mut failure.data else { return failure };
    if let CallError::InvalidInput { problems } = error {
        data["problems"] = json!(problems);
    } else if let CallError::Limited { retry_after, .. } = error {
        data["retry_after_ms"] = json!(retry_after.as_millis());
    } else if let CallError::Conflict { details, .. } = error {
        data["details"] = details.clone();
    }
    failure
}

fn no_tool(name: &str, nearest: Option<&str>) -> String {
    let meant = nearest.and_then(|id| match done_by(id) {
        Some(Contracted { name, .. }) => Some((*name).to_owned()),
        None => spell(id),
    });
    match meant {
        Some(meant) => format!("no tool is named `{name}`; did you mean `{meant}`?"),
        None => format!("no tool is named `{name}`; `tools/list` has their names"),
    }
}

/// Creates the error for a failed program of a tool outside the contract.
pub(crate) fn program_failed(name: &str, output: &Output) -> Failure {
    let value = &output.value;
    let note = output.text.note.as_deref().unwrap_or("the program failed");
    let mut failure = failure(INTERNAL_ERROR, "program_failed", &format!("`{name}`: {note}"));
    if let Some(data) = &mut failure.data {
        data["output"] = json!(output.text.body);
        if let Some(code) = value.get("exit_code") {
            data["exit_code"] = code.clone();
        }
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_one_name_and_is_called_by_no_other() {
        for (id, name) in [
            ("files.edit", "filesystem/edit"),
            ("exec.run", "exec/run"),
            ("docs.load.fetch", "docs/load/fetch"),
            ("pour", "pour"),
            ("ev.get-Sum", "ev/get-Sum"),
        ] {
            assert_eq!(spell(id).as_deref(), Some(name));
            assert_eq!(unspell(name).as_deref(), Some(id));
        }
        for name in
            ["files/edit", "files.edit", "filesystem/read", "exec.run", "exec-run", "filesystem/"]
        {
            assert_eq!(unspell(name), None, "{name}");
        }
        // It would be taken for the files'.
        assert_eq!(spell("filesystem.sync"), None);
    }
}
