//! JSON-RPC of the workstation contract: parsing of methods, results and errors.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolgate_contract::{
    CallError, HostAnswer, HostRequest, Reply, ToolOutput, ToolRunStatus, ValidationProblem,
    exact_json,
};

use super::contract_tools::{WorkstationContractTool, find_tool, job_arguments};
use super::encoding::{
    contract_failure, failure, output_text, parse_tool_name, probable_tool, program_failed,
    refusal, tool_list, tool_summaries,
};
use crate::rpc::{
    INTERNAL_ERROR, METHOD_NOT_FOUND, RequestId, RpcError, parse_object, read_id, success,
    take_method_and_params, to_json,
};
use crate::zyra::retry_seconds;
use crate::{
    AnswerEncoder, InFlightRequestKey, MISMATCHED_ANSWER, ParsedFrame, PendingHostRequest,
    ServerInfo,
};

/// The MCP revisions that a client of the workstation dialect may choose, newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The workstation contract's time limit of a call.
const CALL_TIME_LIMIT: Duration = Duration::from_secs(30);

/// The id of the tool that starts a job.
const START_JOB: &str = "jobs.start";
/// The maximum number of characters of an unknown tool name that an error repeats.
const NAME_CHARS_MAX: usize = 100;

/// The JSON type of `content` in the result of a call in the workstation dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultContentForm {
    /// Result content as a string, as the workstation contract defines it.
    Literal,
    /// Result content as a list of blocks, for MCP clients.
    Blocks,
}

/// Reads one message of the workstation dialect. MCP's `initialize` opens a session, and errors use
/// the contract's messages.
pub(crate) fn read_message(
    facts: &ServerInfo,
    content_form: ResultContentForm,
    body: &[u8],
) -> ParsedFrame {
    let parsed = parse_object(body).and_then(|fields| Ok((read_id(fields.get("id"))?, fields)));
    match parsed {
        Ok((id, fields)) => read_fields(facts, content_form, id.as_ref(), fields)
            .unwrap_or_else(|failure| failure_reading(id.as_ref(), &failure)),
        Err(failure) => failure_reading(None, &failure),
    }
}

fn failure_reading(id: Option<&RequestId>, failure: &RpcError) -> ParsedFrame {
    ParsedFrame::Reply(Reply::json(contract_failure(failure).to_json(id)))
}

fn read_fields(
    facts: &ServerInfo,
    content_form: ResultContentForm,
    id: Option<&RequestId>,
    mut fields: Map<String, Value>,
) -> Result<ParsedFrame, RpcError> {
    // This comes before all checks, because answering an answer would never end.
    let is_answer = fields.contains_key("result") || fields.contains_key("error");
    if is_answer && !fields.contains_key("method") {
        return Ok(ParsedFrame::Reply(Reply::empty(202)));
    }
    if fields.get("jsonrpc").is_none_or(|version| version != "2.0") {
        return Err(RpcError::invalid_request("`jsonrpc` must be \"2.0\""));
    }
    let (method, params) = take_method_and_params(&mut fields, id.is_some())?;
    match id {
        Some(id) => read_request(facts, content_form, id, &method, params),
        None => Ok(read_notification(&method, &params)),
    }
}

/// Reads a JSON-RPC notification. A request without an id is not run, because nobody would see the
/// result.
fn read_notification(method: &str, params: &Map<String, Value>) -> ParsedFrame {
    let reply = Reply::empty(202);
    let id = params.get("requestId").and_then(RequestId::parse);
    let key = id.map(|id| id.key());
    match (method, key) {
        ("notifications/cancelled", Some(key)) => ParsedFrame::Cancel { key, reply },
        _ => ParsedFrame::Reply(reply),
    }
}

fn read_request(
    facts: &ServerInfo,
    content_form: ResultContentForm,
    id: &RequestId,
    method: &str,
    params: Map<String, Value>,
) -> Result<ParsedFrame, RpcError> {
    match method {
        "initialize" => initialize(facts, id, &params),
        "ping" => Ok(ParsedFrame::Reply(Reply::json(success(id, &json!({}))))),
        "tools/list" => {
            // The list has one page.
            let params =
                params.into_iter().filter(|(name, value)| name != "cursor" || !value.is_null());
            check_members(&params.collect(), &["_meta"])?;
            let encoder = WorkstationEncoder {
                id: id.clone(),
                content_form,
                name: String::new(),
                contract_tool: None,
                has_jobs: facts.jobs,
            };
            Ok(request_reading(HostRequest::Discover, encoder, None))
        }
        "tools/call" => read_call(facts, content_form, id, params),
        _ => {
            let method: String = method.chars().take(100).collect();
            let why = format!(
                "no method is named `{method}`; methods are initialize, ping, tools/list and \
                 tools/call"
            );
            Err(RpcError::new(METHOD_NOT_FOUND, why))
        }
    }
}

fn initialize(
    facts: &ServerInfo,
    id: &RequestId,
    params: &Map<String, Value>,
) -> Result<ParsedFrame, RpcError> {
    let requested = match params.get("protocolVersion") {
        None => None,
        Some(Value::String(revision)) => Some(revision.as_str()),
        Some(_) => {
            return Err(RpcError::invalid_params("`params.protocolVersion` must be a string"));
        }
    };
    let supported = REVISIONS.into_iter().find(|revision| Some(*revision) == requested);
    let result = json!({
        "protocolVersion": supported.unwrap_or(REVISIONS[0]),
        "capabilities": { "tools": {} },
        "serverInfo": { "name": facts.name, "version": facts.version },
    });
    Ok(ParsedFrame::OpenSession(Reply::json(success(id, &result))))
}

fn read_call(
    facts: &ServerInfo,
    content_form: ResultContentForm,
    id: &RequestId,
    mut params: Map<String, Value>,
) -> Result<ParsedFrame, RpcError> {
    check_members(&params, &["name", "arguments", "_meta"])?;
    let name = match params.remove("name") {
        Some(Value::String(name)) => name,
        Some(_) => return Err(RpcError::invalid_params("`params.name` must be a string")),
        None => {
            return Err(RpcError::invalid_params("`params.name` is missing; it names the tool"));
        }
    };
    let arguments = match params.remove("arguments") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(RpcError::invalid_params("`params.arguments` must be an object")),
    };
    let (contract_tool, request) = match find_tool(&name) {
        Some(contract_tool) => match contract_tool.input(&arguments) {
            Ok(input) => (
                Some(contract_tool),
                HostRequest::CallTool { tool: contract_tool.tool.to_owned(), input },
            ),
            Err(problems) => {
                let why = CallError::InvalidInput { problems };
                (None, HostRequest::RefuseCall { tool: contract_tool.tool.to_owned(), why })
            }
        },
        None => match parse_tool_name(&name) {
            Some(tool) => match job_arguments_of(&tool, arguments) {
                Ok(input) => (None, HostRequest::CallTool { tool, input: Value::Object(input) }),
                Err(problems) => {
                    let why = CallError::InvalidInput { problems };
                    (None, HostRequest::RefuseCall { tool, why })
                }
            },
            None => {
                let name: String = name.chars().take(NAME_CHARS_MAX).collect();
                let nearest = probable_tool(&name);
                let why = CallError::UnknownTool { name: name.clone(), nearest, unavailable: None };
                (None, HostRequest::RefuseCall { tool: name, why })
            }
        },
    };
    Ok(request_reading(
        request,
        WorkstationEncoder {
            id: id.clone(),
            content_form,
            name,
            contract_tool,
            has_jobs: facts.jobs,
        },
        Some(CALL_TIME_LIMIT),
    ))
}

/// Converts `arguments` of a call that starts a job, if they name a tool of the workstation
/// contract, to arguments that name the catalog tool. Returns the `arguments` of calls of other
/// tools unchanged.
fn job_arguments_of(
    tool: &str,
    arguments: Map<String, Value>,
) -> Result<Map<String, Value>, Vec<ValidationProblem>> {
    if tool == START_JOB { job_arguments(arguments) } else { Ok(arguments) }
}

/// Checks that the object `params` of a message has no members but `known`.
fn check_members(params: &Map<String, Value>, known: &[&str]) -> Result<(), RpcError> {
    match params.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let name: String = name.chars().take(100).collect();
            Err(RpcError::invalid_params(format!("unknown member `params.{name}`; omit it")))
        }
    }
}

fn request_reading(
    request: HostRequest,
    encoder: WorkstationEncoder,
    time_limit: Option<Duration>,
) -> ParsedFrame {
    ParsedFrame::Request(PendingHostRequest {
        time_limit,
        ..PendingHostRequest::new(encoder.id.key(), request, encoder)
    })
}

/// Creates the request to the host for the short list of tools (names and descriptions).
pub(crate) fn summary_reading() -> ParsedFrame {
    // The request is alone in its conversation, so any key is unique.
    let key = InFlightRequestKey("tools".to_owned());
    let request = HostRequest::Discover;
    ParsedFrame::Request(PendingHostRequest::new(key, request, ToolSummaryEncoder))
}

/// The encoder for the answer to one request of the workstation dialect.
struct WorkstationEncoder {
    id: RequestId,
    content_form: ResultContentForm,
    /// The called tool's name as the client sent it.
    name: String,
    /// The called tool of the workstation contract, if the call uses its name and parameters.
    contract_tool: Option<&'static WorkstationContractTool>,
    /// True if the server has jobs.
    has_jobs: bool,
}

impl AnswerEncoder for WorkstationEncoder {
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply> {
        Some(match outcome {
            Ok(HostAnswer::Everything { tools, .. }) => {
                self.success(&exact_json::object([("tools", tool_list(&tools).into())]))
            }
            Ok(HostAnswer::Output(output)) => self.output(&output),
            Err(error) => self.refusal(error),
            Ok(_) => self.failure(&failure(INTERNAL_ERROR, "failed", MISMATCHED_ANSWER)),
        })
    }
}

impl WorkstationEncoder {
    fn output(&self, output: &ToolOutput) -> Reply {
        let text = match self.contract_tool {
            Some(tool) if tool.is_result(output.ending) => tool.output_text(output),
            None if output.ending == ToolRunStatus::Done => Ok(output_text(&self.name, output)),
            Some(_) | None => return self.failure(&program_failed(&self.name, output)),
        };
        match (text, self.content_form) {
            (Ok(text), ResultContentForm::Literal) => self.success(&json!({ "content": text })),
            (Ok(text), ResultContentForm::Blocks) => {
                self.success(&json!({ "content": [{ "type": "text", "text": text }] }))
            }
            (Err(error), _) => self.refusal(error),
        }
    }

    fn refusal(&self, error: CallError) -> Reply {
        let error = match self.contract_tool {
            Some(tool) => tool.rename_parameters(error),
            None => error,
        };
        let reply = self.failure(&refusal(&self.name, &error, self.has_jobs));
        if let CallError::Limited { retry_after, .. } = &error {
            return reply.with_header("retry-after", retry_seconds(*retry_after));
        }
        reply
    }

    fn success(&self, result: &impl Serialize) -> Reply {
        Reply::json(success(&self.id, result))
    }

    fn failure(&self, failure: &RpcError) -> Reply {
        Reply::json(failure.to_json(Some(&self.id)))
    }
}

/// The encoder for the short list of tools.
struct ToolSummaryEncoder;

impl AnswerEncoder for ToolSummaryEncoder {
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply> {
        Some(match outcome {
            Ok(HostAnswer::Everything { tools, .. }) => {
                Reply::json(to_json(&json!({ "tools": tool_summaries(&tools) })))
            }
            Ok(_) => Reply::json(to_json(&json!({ "error": MISMATCHED_ANSWER }))).with_status(500),
            Err(error) => {
                Reply::json(to_json(&json!({ "error": error.to_string() }))).with_status(503)
            }
        })
    }
}
