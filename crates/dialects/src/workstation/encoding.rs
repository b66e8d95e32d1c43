//! Tool names, errors and text results of the workstation contract.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};
use toolgate_contract::{
    AnyTool, CallError, ContentBody, ToolId, ToolOutput, ToolSpec, ValidationProblem, exact_json,
    fold_name,
};

use super::contract_tools::{CONTRACT_TOOLS, find_tool, implemented_by};
use crate::rpc::{
    INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RpcError,
};
use crate::tool_mentions::{is_own_tool, rename_tools};

/// The error code of a call that exceeded its time limit.
const TIMED_OUT: i32 = -32000;
/// The workstation contract's name of the toolset `files`.
const FILES: &str = "filesystem";

/// Returns the workstation dialect's name of the tool `id`. Returns `None` for a tool that
/// implements a contract tool, and if the name would be ambiguous.
pub(crate) fn tool_name(id: &str) -> Option<String> {
    let (toolset, _) = id.split_once('.').unwrap_or((id, ""));
    if implemented_by(id).is_some() || toolset == FILES {
        return None;
    }
    let spelled = id.replace('.', "/");
    Some(match spelled.strip_prefix("files/") {
        Some(verb) => format!("{FILES}/{verb}"),
        None => spelled,
    })
}

/// Returns the name under which clients of the workstation dialect call the tool `id`.
pub(crate) fn dialect_name(id: &str) -> Option<String> {
    match implemented_by(id) {
        Some(tool) => Some(tool.name.to_owned()),
        None => tool_name(id),
    }
}

/// Returns `text`, which is about a call of `name`, with the workstation dialect's names of tools
/// and parameters.
fn in_own_names(name: &str, text: &str) -> String {
    match find_tool(name) {
        Some(tool) => tool.in_own_names(text),
        None => rename_tools(text, parse_tool_name(name).as_deref(), dialect_name),
    }
}

/// Returns the catalog id of the tool `name`, if it is not one of the workstation contract's own
/// tools. Returns `None` if no tool can have this name.
pub(crate) fn parse_tool_name(name: &str) -> Option<String> {
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
    (is_id && tool_name(&id).as_deref() == Some(name)).then_some(id)
}

/// Returns the catalog id of the workstation contract's tool that a misspelled `name` probably
/// means.
pub(crate) fn probable_tool(name: &str) -> Option<String> {
    let name = fold_name(name);
    let tool = CONTRACT_TOOLS
        .iter()
        .find(|tool| [tool.name, tool.tool].into_iter().any(|one| fold_name(one) == name));
    tool.map(|tool| tool.tool.to_owned())
}

/// Encodes the tools for `tools/list`. The workstation contract's own tools come first.
pub(crate) fn tool_list(tools: &[Arc<dyn AnyTool>]) -> Vec<Value> {
    encode_tools(tools, |name, about, schema| {
        exact_json::object([
            ("name", name.into()),
            ("description", about.into()),
            ("inputSchema", schema),
        ])
    })
}

/// Encodes the short list of tools: names and descriptions.
pub(crate) fn tool_summaries(tools: &[Arc<dyn AnyTool>]) -> Vec<Value> {
    encode_tools(tools, |name, about, _| json!({ "name": name, "description": about }))
}

fn encode_tools(
    tools: &[Arc<dyn AnyTool>],
    encode: impl Fn(&str, &str, Value) -> Value,
) -> Vec<Value> {
    let offered = |id: &str| tools.iter().any(|tool| tool.spec().id.as_str() == id);
    let own = CONTRACT_TOOLS.iter().filter(|tool| offered(tool.tool));
    let own = own.map(|tool| encode(tool.name, tool.description, tool.schema()));
    let others = tools.iter().filter_map(|tool| {
        let spec = tool.spec();
        let id = spec.id.as_str();
        let name = tool_name(id)?;
        let description = match is_own_tool(id) {
            true => rename_tools(&spec.description, Some(id), dialect_name),
            false => spec.description.clone(),
        };
        Some(encode(&name, &description, input_schema(spec)))
    });
    own.chain(others).collect()
}

/// Returns the input schema of a tool, with the `properties` and `required` that the workstation
/// contract expects.
fn input_schema(spec: &ToolSpec) -> Value {
    let mut schema = Value::clone(&spec.input_schema);
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("properties").or_insert_with(|| json!({}));
        fields.entry("required").or_insert_with(|| json!([]));
    }
    schema
}

/// Returns the complete output of the tool `name` as text, for the workstation dialect.
pub(crate) fn output_text(name: &str, output: &ToolOutput) -> String {
    let mut text = output.text.body.clone();
    let mut add = |more: &str| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(more);
    };
    for content in &output.content {
        match &content.shown {
            ContentBody::Text(shown) => add(shown),
            ContentBody::Image(media) => {
                add(&placeholder(&format!("an image, {}", media.media_type)));
            }
            ContentBody::Audio(media) => {
                add(&placeholder(&format!("a sound, {}", media.media_type)));
            }
            ContentBody::Link(_) => add(&placeholder("a link to a resource")),
            ContentBody::Resource(_) => add(&placeholder("a resource")),
        }
    }
    if let Some(note) = &output.text.note {
        add(&in_own_names(name, note));
    }
    text
}

/// Returns the text that replaces content of a result that is not text. `content` describes this
/// content, e.g. `a resource`.
fn placeholder(content: &str) -> String {
    format!("[{content}; only MCP clients can receive it]")
}

/// Creates an error with the workstation contract's message for `code`. The `data` of the error
/// contains `reason` and `detail`.
pub(crate) fn failure(code: i32, reason: &str, detail: &str) -> RpcError {
    let message = match code {
        PARSE_ERROR => "Parse error",
        INVALID_REQUEST => "Invalid Request",
        METHOD_NOT_FOUND => "Method not found",
        INVALID_PARAMS => "Invalid params",
        TIMED_OUT => "Tool execution timeout",
        _ => "Internal error",
    };
    RpcError::new(code, message).with_data(json!({ "reason": reason, "detail": detail }))
}

/// Converts a JSON-RPC parser's error to the workstation contract's message.
pub(crate) fn contract_failure(error: &RpcError) -> RpcError {
    let reason = match error.code {
        PARSE_ERROR => "parse_error",
        METHOD_NOT_FOUND => "unknown_method",
        INVALID_PARAMS => "invalid_params",
        _ => "invalid_request",
    };
    failure(error.code, reason, &error.message)
}

/// Converts `error`, the refusal of a call of `name`, to an error of the workstation contract.
/// `has_jobs` is true if the server has jobs.
pub(crate) fn refusal(name: &str, error: &CallError, has_jobs: bool) -> RpcError {
    let (code, detail): (i32, Cow<'_, str>) = match error {
        CallError::UnknownTool { name: unknown, nearest, unavailable } => {
            // The client's own spelling is shown unless the catalog reported another name.
            let is_called = parse_tool_name(name).is_some_and(|id| id == *unknown);
            let name = if is_called { name } else { unknown };
            let message = match unavailable {
                Some(why) => format!("`{name}` is not available: {}", in_own_names(name, why)),
                None => unknown_tool_message(name, nearest.as_deref()),
            };
            (METHOD_NOT_FOUND, message.into())
        }
        CallError::InvalidInput { .. } | CallError::TooLarge { .. } => {
            (INVALID_PARAMS, in_own_names(name, &error.to_string()).into())
        }
        CallError::NoJob { tool } => {
            let tool = dialect_name(tool);
            let error = tool.map_or_else(|| error.clone(), |tool| CallError::NoJob { tool });
            (INVALID_PARAMS, error.to_string().into())
        }
        CallError::NeedsJob { tool } => {
            let tool = dialect_name(tool).unwrap_or_else(|| tool.clone());
            let detail = format!("`{tool}` runs only as a job; start it with `jobs/start`");
            (INTERNAL_ERROR, detail.into())
        }
        CallError::TimedOut { after } => {
            let detail = format!(
                "`{name}` took longer than {} ms and was stopped; request less at once{}",
                after.as_millis(),
                if has_jobs { ", or run it as a job with `jobs/start`" } else { "" },
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
        | CallError::Mismatch { .. }
        | CallError::Refused { .. }
        | CallError::Failed { .. }
        | CallError::InvalidOutput { .. } => {
            (INTERNAL_ERROR, in_own_names(name, &error.to_string()).into())
        }
    };
    let mut failure = failure(code, error.reason(), &detail);
    let Some(data) = &mut failure.data else { return failure };
    if let CallError::InvalidInput { problems } = error {
        let renamed = problems.iter().map(|ValidationProblem { pointer, message }| {
            let message = in_own_names(name, message);
            ValidationProblem { pointer: pointer.clone(), message }
        });
        data["problems"] = json!(renamed.collect::<Vec<_>>());
    } else if let CallError::Limited { retry_after, .. } = error {
        data["retry_after_ms"] = json!(retry_after.as_millis());
    } else if let CallError::Conflict { details, .. } = error {
        data["details"] = details.clone();
    }
    failure
}

fn unknown_tool_message(name: &str, nearest: Option<&str>) -> String {
    match nearest.and_then(dialect_name) {
        Some(nearest) => format!("no tool is named `{name}`; did you mean `{nearest}`?"),
        None => format!("no tool is named `{name}`; `tools/list` lists the tools"),
    }
}

/// Creates the error for a failed program of a tool outside the workstation contract.
pub(crate) fn program_failed(name: &str, output: &ToolOutput) -> RpcError {
    let value = &output.value;
    let note = output.text.note.as_deref().unwrap_or("the program failed");
    let detail = format!("`{name}`: {}", in_own_names(name, note));
    let mut failure = failure(INTERNAL_ERROR, "program_failed", &detail);
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
    fn only_the_dialects_name_of_a_tool_is_parsed() {
        for (id, name) in [
            ("files.edit", "filesystem/edit"),
            ("exec.run", "exec/run"),
            ("docs.load.fetch", "docs/load/fetch"),
            ("pour", "pour"),
            ("ev.get-Sum", "ev/get-Sum"),
        ] {
            assert_eq!(tool_name(id).as_deref(), Some(name));
            assert_eq!(parse_tool_name(name).as_deref(), Some(id));
        }
        for name in
            ["files/edit", "files.edit", "filesystem/read", "exec.run", "exec-run", "filesystem/"]
        {
            assert_eq!(parse_tool_name(name), None, "{name}");
        }
        // It would look like a tool of the toolset `files`.
        assert_eq!(tool_name("filesystem.sync"), None);
    }
}
