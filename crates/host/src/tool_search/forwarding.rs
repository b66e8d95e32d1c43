//! Turns a call of `tools.call` or `tools.read` into a call of the named tool, before all checks.
//!
//! After that, policy, confirmation, limits, validation, deadline and audit see only the call of
//! the named tool.

use std::sync::Arc;

use serde_json::{Map, Value};
use toolgate_contract::{
    CallError, ToolCall, ToolId, ToolOutput, ToolRunStatus, ToolSpec, ValidationProblem, fold_name,
    lock_mutex,
};
use toolgate_tool_search::strip_prefix;

use super::answers::shorten;
use super::replies::{add_note, arguments_help, explain_failure, refuses_arguments};
use super::{CALL, READ};
use crate::catalog::CatalogToolEntry;
use crate::{Gate, pipeline};

/// Maximum number of nested calls of `tools.call` that are unpacked.
const NESTING_MAX: usize = 3;

/// A parsed call of `tools.call` or `tools.read`: the named tool and its arguments.
struct ForwardedToolCall {
    name: String,
    arguments: Value,
    /// True if the call is through `tools.read`, so that the named tool must only read.
    only_reads: bool,
    /// Corrections that were made to the call, one sentence each.
    notes: Vec<String>,
}

/// Returns the tool id `tools.call` or `tools.read`, if `name` names one of these two tools in any
/// spelling.
fn forwarder_id(name: &str) -> Option<&'static str> {
    // This runs on every call, and few names begin so.
    let rest = name.strip_prefix("tools")?;
    [CALL, READ].into_iter().find(|id| {
        fold_name(rest)
            .strip_prefix('_')
            .is_some_and(|verb| Some(verb) == id.strip_prefix("tools."))
    })
}

/// Returns the name of the tool that a call of `tool` with `input` runs. For `tools.call` and
/// `tools.read`, that is the tool that the arguments name, if any. For all others, it is `tool`.
pub fn forwarded_tool<'c>(tool: &'c str, input: &'c Value) -> &'c str {
    let mut named = tool;
    let mut input = input;
    for _ in 0..NESTING_MAX {
        if forwarder_id(named).is_none() {
            return named;
        }
        let arguments = input.get("arguments").unwrap_or(&Value::Null);
        let Some(name) = input.get("name").or_else(|| arguments.get("name")) else { break };
        let Some(name) = name.as_str() else { break };
        (named, input) = (name, arguments);
    }
    if forwarder_id(named).is_none() { named } else { tool }
}

/// Returns true if `call` calls `tools.call` or `tools.read`, and the caller may use that tool.
pub(crate) fn is_forwarder(gate: &Gate, call: &ToolCall) -> bool {
    let Some(id) = forwarder_id(&call.tool) else { return false };
    let entry = ToolId::new(id).and_then(|id| gate.catalog.snapshot().entry(&id));
    entry.is_some_and(|entry| gate.policy.shows(&call.caller, entry.spec()))
        && (!call.metadata.by_id || call.tool == id)
}

/// Runs the tool that `call` names in its arguments, and adds advice for the caller to the result.
pub(crate) async fn run_forwarded(
    gate: &Gate,
    call: &mut ToolCall,
) -> Result<ToolOutput, CallError> {
    let mut notes = forward(gate, call).await?;
    let session = call.metadata.session.clone();
    let outcome = pipeline::run_call(gate, call, None).await;
    match outcome {
        Ok(mut output) => {
            if output.ending == ToolRunStatus::Done {
                let scope = gate.tool_search.settings.memory;
                let mut memory = lock_mutex(&gate.tool_search.memory);
                memory.note_call(scope, &call.caller, session.as_ref(), &call.tool);
            } else if refuses_arguments(&output) {
                notes.push(arguments_help(gate, call));
            }
            add_note(&mut output, &notes);
            Ok(output)
        }
        Err(error) => explain_failure(gate, call, error, &notes),
    }
}

/// Rewrites `call` to a call of the tool that its arguments name. Returns the corrections that were
/// made, one sentence each.
///
/// # Errors
/// The arguments name no tool. The error is recorded in the audit log.
pub(crate) async fn forward(gate: &Gate, call: &mut ToolCall) -> Result<Vec<String>, CallError> {
    let only_reads = forwarder_id(&call.tool) == Some(READ);
    let named = match read_call(call.input.clone(), only_reads) {
        Ok(named) => named,
        Err(problem) => {
            let error = CallError::InvalidInput { problems: vec![problem] };
            return Err(pipeline::refuse_call(gate, call, error).await);
        }
    };
    let ForwardedToolCall { name, arguments, only_reads, mut notes } = named;
    if !gate.catalog.is_settled(&name) {
        gate.catalog.wait_for_listings(Some(&name)).await;
    }
    call.tool = match find_named(gate, call, &name) {
        Some(entry) => {
            let id = entry.spec().id.as_str();
            if fold_name(id) != fold_name(&name) {
                notes.push(format!("`{}` was corrected to `{}`", shorten(&name), fold_name(id)));
            }
            id.to_owned()
        }
        None => name,
    };
    call.input = arguments;
    call.metadata.via = Some(if only_reads { READ } else { CALL });
    // These describe the arguments of the tool that was called first.
    call.metadata.header_params = None;
    Ok(notes)
}

/// Returns the tool that the caller may mean by `name`, if there is only one.
fn find_named(gate: &Gate, call: &ToolCall, name: &str) -> Option<Arc<CatalogToolEntry>> {
    let find = |name: &str| gate.find(&call.caller, name).ok();
    let shows = |spec: &ToolSpec| gate.policy.shows(&call.caller, spec);
    let bare = strip_prefix(name);
    find(name)
        .or_else(|| bare.and_then(find))
        .or_else(|| gate.catalog.snapshot().find_unprefixed(bare.unwrap_or(name), shows))
}

/// Parses `input`, the arguments of `tools.call` or `tools.read`. Corrects errors that can mean
/// only one thing.
///
/// # Errors
/// The arguments name no tool.
fn read_call(input: Value, only_reads: bool) -> Result<ForwardedToolCall, ValidationProblem> {
    let mut call =
        ForwardedToolCall { name: String::new(), arguments: input, only_reads, notes: Vec::new() };
    for _ in 0..NESTING_MAX {
        let fields = match std::mem::take(&mut call.arguments) {
            Value::Object(fields) => fields,
            _ => return Err(problem("/arguments", "it must be an object")),
        };
        (call.name, call.arguments) = read_fields(fields, &mut call.notes)?;
        let Some(inner) = forwarder_id(&call.name) else { return Ok(call) };
        call.only_reads |= inner == READ;
        call.notes.push(format!("the tool named in `{}` was called directly", fold_name(inner)));
    }
    Err(problem("/name", "name the tool to run, not a tool that calls others"))
}

/// Removes the tool's name and the arguments from `fields` and returns them. Adds corrections to
/// `notes`.
fn read_fields(
    mut fields: Map<String, Value>,
    notes: &mut Vec<String>,
) -> Result<(String, Value), ValidationProblem> {
    let name = fields.shift_remove("name");
    let arguments = fields.shift_remove("arguments");
    let mut arguments = match arguments {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(Value::Object(arguments)) => {
                notes.push("`arguments` was read as JSON; send an object".to_owned());
                arguments
            }
            _ => return Err(problem("/arguments", "it must be an object")),
        },
        Some(_) => return Err(problem("/arguments", "it must be an object")),
    };
    let name = match name {
        Some(Value::String(name)) => name,
        // The name of the tool may have slipped into its arguments.
        None => match arguments.shift_remove("name") {
            Some(Value::String(name)) => {
                notes.push("put `name` next to `arguments`, not inside it".to_owned());
                name
            }
            _ => return Err(problem("/name", "the name of the tool to call is missing")),
        },
        Some(_) => return Err(problem("/name", "it must be a string")),
    };
    if !fields.is_empty() {
        if !arguments.is_empty() {
            let names: Vec<&str> = fields.keys().map(|name| name.as_str()).take(8).collect();
            let names = names.join("`, `");
            return Err(problem(
                "/arguments",
                &format!("move `{}` into `arguments`", shorten(&names)),
            ));
        }
        notes.push("put the tool's arguments into `arguments`".to_owned());
        arguments = fields;
    }
    Ok((name, Value::Object(arguments)))
}

fn problem(pointer: &str, message: &str) -> ValidationProblem {
    ValidationProblem { pointer: pointer.to_owned(), message: message.to_owned() }
}

/// Reads `bytes` as a JSON call through `tools.call`, and checks that the result is a call of a
/// tool that the JSON names. If the caller may only read, the called tool must only read.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_call(bytes: &[u8]) {
    let Ok(input) = serde_json::from_slice::<Value>(bytes) else { return };
    for only_reads in [false, true] {
        let Ok(call) = read_call(input.clone(), only_reads) else { continue };
        assert!(forwarder_id(&call.name).is_none(), "{input}");
        assert!(call.arguments.is_object(), "{input}");
        assert!(names_tool(&input, &call.name), "{input}");
        assert!(call.only_reads || !only_reads, "{input}");
        // A call that was read is read in the same way again.
        let name = Value::String(call.name.clone());
        let plain = toolgate_contract::exact_json::object([
            ("name", name),
            ("arguments", call.arguments.clone()),
        ]);
        let again = read_call(plain, call.only_reads).expect("it has a name and arguments");
        assert_eq!((again.name, again.arguments), (call.name, call.arguments), "{input}");
        assert!(again.notes.is_empty(), "{input}");
    }
}

/// Returns true if `value`, or a call nested in its arguments, has the tool name `name`.
#[cfg(any(fuzzing, test))]
fn names_tool(value: &Value, name: &str) -> bool {
    match value {
        Value::Object(fields) => {
            fields.get("name").is_some_and(|known| known == name)
                || fields.get("arguments").is_some_and(|inner| names_tool(inner, name))
        }
        Value::String(text) => {
            serde_json::from_str(text).is_ok_and(|inner: Value| names_tool(&inner, name))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Checks that `input` is parsed as a call of the tool `name` with `arguments`, and that
    /// parsing makes this number of `corrections`.
    #[track_caller]
    fn check(input: &Value, name: &str, arguments: &Value, corrections: usize) {
        let call = read_call(input.clone(), false).map_err(|problem| problem.message);
        let call = call.unwrap_or_else(|why| panic!("{input}: {why}"));
        assert_eq!((call.name.as_str(), &call.arguments), (name, arguments), "{input}");
        assert_eq!(call.notes.len(), corrections, "{input}");
    }

    #[test]
    fn a_slip_with_one_reading_is_corrected_and_reported() {
        let arguments = json!({ "path": "a" });
        let inner = json!({ "name": "files_read", "arguments": arguments });
        for (input, corrections) in [
            (inner.clone(), 0),
            (json!({ "arguments": { "name": "files_read", "path": "a" } }), 1),
            (json!({ "name": "files_read", "path": "a" }), 1),
            (json!({ "name": "files_read", "arguments": "{\"path\":\"a\"}" }), 1),
            (json!({ "name": "tools_call", "arguments": inner }), 1),
        ] {
            check(&input, "files_read", &arguments, corrections);
        }
        check(&json!({ "name": "t" }), "t", &json!({}), 0);
        check(&json!({ "name": "t", "arguments": null }), "t", &json!({}), 0);
    }

    #[test]
    fn the_tool_that_a_call_runs_is_the_one_that_its_arguments_name() {
        let inner = json!({ "name": "files_write", "arguments": { "path": "a" } });
        for (tool, input, expected) in [
            ("files_write", json!({ "name": "files_read" }), "files_write"),
            ("tools_call", inner.clone(), "files_write"),
            ("tools.read", inner.clone(), "files_write"),
            ("tools_call", json!({ "name": "tools_call", "arguments": inner }), "files_write"),
            ("tools_call", json!({ "arguments": { "name": "files_write" } }), "files_write"),
            ("tools_call", json!({ "name": 1 }), "tools_call"),
            ("tools_call", json!({ "name": "tools_call", "arguments": 1 }), "tools_call"),
            ("tools_call", json!([]), "tools_call"),
        ] {
            assert_eq!(forwarded_tool(tool, &input), expected, "{tool} {input}");
        }
    }

    #[test]
    fn a_slip_with_two_readings_is_refused() {
        for input in [
            json!({ "name": "t", "arguments": { "a": 1 }, "b": 2 }),
            json!({ "name": "t", "arguments": "not JSON" }),
            json!({ "name": 1 }),
            json!({ "arguments": { "path": "a" } }),
            json!([]),
        ] {
            assert!(read_call(input.clone(), false).is_err(), "{input}");
        }
    }

    #[test]
    fn a_call_within_a_reading_call_stays_restricted_to_reading() {
        let input = json!({ "name": "tools_call", "arguments": { "name": "t" } });
        assert!(read_call(input, true).is_ok_and(|call| call.only_reads));
        let input = json!({ "name": "tools.read", "arguments": { "name": "t" } });
        assert!(read_call(input, false).is_ok_and(|call| call.only_reads));
    }

    #[test]
    fn only_the_names_of_forwarding_tools_are_forwarded() {
        for name in ["tools_call", "tools.call", "tools/call", "tools-call"] {
            assert_eq!(forwarder_id(name), Some(CALL), "{name}");
        }
        for name in ["tools", "toolscall", "tools_calls", "tools_search", "files_read", "tools_"] {
            assert_eq!(forwarder_id(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn the_tool_that_is_read_is_named_in_the_input(
            outer in "[a-z_]{0,12}", inner in "[a-z_]{0,12}", nested: bool,
        ) {
            let arguments = json!({ "name": inner, "x": 1 });
            let input = match nested {
                true => json!({ "arguments": arguments }),
                false => json!({ "name": outer, "arguments": arguments }),
            };
            let expected = if nested || forwarder_id(&outer).is_some() { &inner } else { &outer };
            match read_call(input, false) {
                Ok(call) => prop_assert_eq!(&call.name, expected),
                Err(_) => prop_assert!(forwarder_id(expected).is_some()),
            }
        }
    }
}
