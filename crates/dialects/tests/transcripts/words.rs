//! What the words of a transcript mean: events, outcomes, tools.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolgate_contract::{
    Answer, AnyTool, BoxFuture, CallError, Ctx, Effects, Ending, Event, Output, Problem, Stream,
    Text, ToolError, ToolId, ToolPage, ToolSpec,
};
use toolgate_dialects::{Key, Refused};

/// `progress DONE [of TOTAL] [TEXT]`, `log LEVEL TEXT` or `chunk STREAM TEXT`.
pub(crate) fn read_event(kind: &str, rest: &str) -> Option<Event> {
    let (first, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    Some(match kind {
        "progress" => {
            let (total, message) = match rest.strip_prefix("of ") {
                Some(rest) => {
                    let (total, message) = rest.split_once(' ').unwrap_or((rest, ""));
                    (Some(total.parse().expect("a total")), message)
                }
                None => (None, rest),
            };
            let message = (!message.is_empty()).then(|| read_text(message));
            Event::Progress { done: first.parse().expect("how much is done"), total, message }
        }
        "log" => Event::Log {
            level: serde_json::from_value(first.into()).expect("a level"),
            message: read_text(rest),
        },
        "chunk" => {
            let stream = if first == "stderr" { Stream::Stderr } else { Stream::Stdout };
            Event::Chunk { stream, text: read_text(rest) }
        }
        _ => return None,
    })
}

/// `tools ID… [then more]`, `output VALUE TEXT [NOTE]`, `failed VALUE TEXT` or `error REASON FIELDS`.
pub(crate) fn read_outcome(kind: &str, rest: &str) -> Result<Answer, CallError> {
    match kind {
        "tools" => Ok(Answer::Tools(read_page(rest))),
        "output" => Ok(Answer::Output(read_output(rest, Ending::Done))),
        "failed" => Ok(Answer::Output(read_output(rest, Ending::ProgramFailed))),
        "error" => Err(read_error(rest)),
        _ => panic!("a host does not say `{kind}`"),
    }
}

pub(crate) fn read_output(text: &str, ending: Ending) -> Output {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let mut next = || values.next().map(|value: Result<Value, _>| value.expect("JSON"));
    let value = next().expect("a value");
    let body = next().and_then(|text| text.as_str().map(str::to_owned)).expect("a text");
    let note = next().and_then(|text| text.as_str().map(str::to_owned));
    Output { value, text: Text { body, note }, ending }
}

pub(crate) fn read_page(text: &str) -> ToolPage {
    let (names, more) = match text.strip_suffix(" then more") {
        Some(names) => (names, true),
        None => (text, false),
    };
    let tools: Vec<_> = names.split_whitespace().map(tool).collect();
    let next = tools.last().filter(|_| more).map(|tool| tool.spec().id.clone());
    ToolPage { tools, next }
}

pub(crate) fn read_error(text: &str) -> CallError {
    let (reason, fields) = text.split_once(' ').unwrap_or((text, "{}"));
    let fields: Value = serde_json::from_str(fields).expect("an error's fields");
    let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
    let ms = |name: &str| Duration::from_millis(fields[name].as_u64().unwrap_or_default());
    let message = text("message");
    let problems = || {
        let mut problems = Vec::new();
        for (pointer, message) in fields.as_object().expect("pointers and messages") {
            let message = message.as_str().expect("a message").to_owned();
            problems.push(Problem { pointer: pointer.clone(), message });
        }
        problems
    };
    match reason {
        "unknown_tool" => {
            let nearest = fields["nearest"].as_str().map(str::to_owned);
            CallError::UnknownTool { name: text("name"), nearest }
        }
        "invalid_input" => CallError::InvalidInput { problems: problems() },
        "not_allowed" => CallError::NotAllowed { message },
        "limited" => CallError::Limited { message, retry_after: ms("retry_after_ms") },
        "not_found" => CallError::NotFound { message },
        "conflict" => CallError::Conflict { message, details: fields["details"].clone() },
        "too_large" => CallError::TooLarge { message },
        "unavailable" => CallError::Unavailable { message },
        "timed_out" => CallError::TimedOut { after: ms("after_ms") },
        "canceled" => CallError::Canceled,
        "failed" => CallError::Failed { message, cause: text("cause") },
        "invalid_output" => CallError::InvalidOutput { problems: problems() },
        _ => panic!("no error is named `{reason}`"),
    }
}

/// `too_large BYTES`, `busy TEXT` or `repeated KEY`.
pub(crate) fn read_refused(text: &str) -> Refused {
    match text.split_once(' ').expect("why, and what") {
        ("too_large", limit) => Refused::TooLarge { limit: limit.parse().expect("bytes") },
        ("busy", message) => Refused::Busy { message: read_text(message) },
        ("repeated", key) => Refused::Repeated { key: Key(key.to_owned()) },
        (why, _) => panic!("a server does not refuse because `{why}`"),
    }
}

pub(crate) fn read_text(text: &str) -> String {
    serde_json::from_str(text).expect("a JSON string")
}

/// A tool that is only listed.
struct Listed(ToolSpec);

impl AnyTool for Listed {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn run<'a>(&'a self, _: &'a Ctx, _: Value) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async { Err(ToolError::not_allowed("it is only listed")) })
    }
}

/// The tools that transcripts name.
pub(crate) fn tool(id: &str) -> Arc<dyn AnyTool> {
    let path = json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] });
    let text = json!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] });
    let (title, effects, idempotent, input_schema, output_schema) = match id {
        "files.read" => ("Read file", Effects::Reads, true, path, Some(text)),
        "files.mkdir" => {
            ("Make folder", Effects::Adds, true, path, Some(json!({ "type": "object" })))
        }
        "files.delete" => {
            ("Delete file", Effects::Changes, false, path, Some(json!({ "type": "object" })))
        }
        "exec.run" => {
            ("Run program", Effects::Runs, false, json!({ "type": "object" }), Some(text))
        }
        // Another server's, which promises no structure.
        "docs.search.recent" => {
            ("Search docs", Effects::Reads, false, json!({ "type": "object" }), None)
        }
        // Its result is a list.
        "files.names" => (
            "Names",
            Effects::Reads,
            true,
            json!({ "type": "object", "additionalProperties": false }),
            Some(json!({ "type": "array", "items": { "type": "string" } })),
        ),
        // One of its arguments may be anything.
        "assets.check" => (
            "Check asset",
            Effects::Reads,
            true,
            json!({ "type": "object", "properties": { "asset": true, "strict": { "type": "boolean" } } }),
            Some(json!({ "type": "object", "properties": { "found": true } })),
        ),
        _ => panic!("no tool of these transcripts is named `{id}`"),
    };
    Arc::new(Listed(ToolSpec {
        id: ToolId::new(id).expect("an id"),
        title: title.into(),
        about: format!("About {id}."),
        effects,
        idempotent,
        deadline: None,
        input_schema,
        output_schema,
    }))
}
