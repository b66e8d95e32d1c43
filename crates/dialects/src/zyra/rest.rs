//! Discovery and jobs over plain HTTP: requests by path, and answers with statuses.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use toolgate_contract::{
    ArtefactSelection, CallError, EndedJobCancelReply, HostAnswer, HostRequest, JobArtefact, JobId,
    JobSnapshot, OpenArtefact, Reply, ReplyBody, ToolPage, exact_json,
};

use super::NAME;
use super::encoding::{ZyraCommandResult, in_own_names, input_schema, output_path, tool_name};
use super::http_paths::{ZyraRoute, single_query_value};
use super::watch;
use crate::rpc::to_json;
use crate::{
    AnswerEncoder, DisconnectEffect, InFlightRequestKey, MISMATCHED_ANSWER, ParsedFrame,
    PendingHostRequest, ServerInfo,
};

/// The description of the server in Zyra's discovery.
const ABOUT: &str = "Zyra MCP server for domain-specific data visualization";

/// Reads an HTTP request for the path `endpoint` of Zyra's dialect.
pub(crate) fn read(
    facts: &ServerInfo,
    endpoint: ZyraRoute,
    method: &str,
    query: &str,
) -> ParsedFrame {
    match (endpoint, method) {
        (ZyraRoute::Health, "GET" | "HEAD") => {
            ParsedFrame::Reply(json_reply(&status_report(facts)))
        }
        (ZyraRoute::Calls, "GET" | "HEAD" | "OPTIONS") => {
            request_reading(HostRequest::ListTools { after: None }, ZyraReplyContent::Discovery)
        }
        (ZyraRoute::Calls, _) => ParsedFrame::Reply(method_not_allowed("GET, HEAD, OPTIONS, POST")),
        (ZyraRoute::Job(id), "GET" | "HEAD") => read_job_request(id, |id| {
            Ok(request_reading(HostRequest::GetJob { id }, ZyraReplyContent::Job))
        }),
        (ZyraRoute::Job(id), "DELETE") => read_job_request(id, |id| {
            let request = HostRequest::CancelJob { id, if_ended: EndedJobCancelReply::Job };
            Ok(request_reading(request, ZyraReplyContent::Canceled))
        }),
        (ZyraRoute::Job(_), _) => ParsedFrame::Reply(method_not_allowed("GET, HEAD, DELETE")),
        (ZyraRoute::Manifest(id), "GET" | "HEAD") => read_job_request(id, |id| {
            Ok(request_reading(HostRequest::GetJob { id }, ZyraReplyContent::Manifest))
        }),
        (ZyraRoute::Download(id), "GET" | "HEAD") => read_job_request(id, |id| {
            let which = parse_selection(query)?;
            Ok(request_reading(HostRequest::OpenArtefact { id, which }, ZyraReplyContent::File))
        }),
        (ZyraRoute::Progress(id), "GET") => watch::event_stream_reading(id, query),
        // HEAD has no body, so no events are watched.
        (ZyraRoute::Progress(_), "HEAD") => {
            ParsedFrame::Reply(Reply::empty(200).with_header("content-type", "text/event-stream"))
        }
        (ZyraRoute::Talk | ZyraRoute::Watch(_), "GET" | "HEAD") => {
            let reply = error_reply(426, "this path accepts only WebSockets");
            ParsedFrame::Reply(reply.with_header("upgrade", "websocket"))
        }
        (
            ZyraRoute::Manifest(_)
            | ZyraRoute::Download(_)
            | ZyraRoute::Progress(_)
            | ZyraRoute::Health,
            _,
        ) => ParsedFrame::Reply(method_not_allowed("GET, HEAD")),
        (ZyraRoute::Talk | ZyraRoute::Watch(_), _) => ParsedFrame::Reply(method_not_allowed("GET")),
    }
}

/// Returns the answer to a health check: the status and version of the server.
pub(crate) fn status_report(facts: &ServerInfo) -> Value {
    json!({ "status": "ok", "version": facts.version })
}

/// Reads a request of a Zyra client about the job `id`. A malformed id has the same answer as an
/// unknown job.
fn read_job_request(
    id: String,
    read: impl FnOnce(String) -> Result<ParsedFrame, String>,
) -> ParsedFrame {
    let reading = match id.parse::<JobId>() {
        Ok(_) => read(id),
        Err(_) => return ParsedFrame::Reply(error_reply(404, unknown_job_message(&id))),
    };
    reading.unwrap_or_else(|why| ParsedFrame::Reply(error_reply(400, why)))
}

pub(crate) fn unknown_job_message(id: &str) -> String {
    format!("no job is named `{id}`")
}

/// Parses the selection of a job's files from `query`.
fn parse_selection(query: &str) -> Result<ArtefactSelection, String> {
    let zip = match single_query_value(query, "zip")?.as_deref() {
        None | Some("" | "0" | "false") => false,
        Some("1" | "true") => true,
        Some(other) => return Err(format!("`zip` must be 1 or 0, not `{other}`")),
    };
    match (single_query_value(query, "file")?, zip) {
        (Some(_), true) => {
            Err("`file` selects one file and `zip` selects all files; give only one of `file` and \
                 `zip`"
                .to_owned())
        }
        (Some(name), false) => {
            let is_plain = !matches!(name.as_str(), "" | "." | "..")
                && !name.contains(['/', '\\'])
                && !name.contains(char::is_control);
            is_plain
                .then(|| ArtefactSelection::Named(name.clone()))
                .ok_or_else(|| format!("`{name}` is not a file name; the manifest lists the names"))
        }
        (None, true) => Ok(ArtefactSelection::All),
        (None, false) => Ok(ArtefactSelection::Main),
    }
}

fn request_reading(request: HostRequest, view: ZyraReplyContent) -> ParsedFrame {
    let on_disconnect = match view {
        ZyraReplyContent::Canceled => DisconnectEffect::Continues,
        ZyraReplyContent::Discovery
        | ZyraReplyContent::Job
        | ZyraReplyContent::Manifest
        | ZyraReplyContent::File => DisconnectEffect::Cancels,
    };
    // The request is alone in its conversation, so any key is unique.
    let key = InFlightRequestKey("rest".to_owned());
    ParsedFrame::Request(PendingHostRequest {
        on_disconnect,
        ..PendingHostRequest::new(key, request, ZyraRestEncoder { view })
    })
}

/// The encoder for the answer to one request of a Zyra client, with the kind of content that the
/// reply has, such as a job or the list of its files.
struct ZyraRestEncoder {
    view: ZyraReplyContent,
}

/// Kind of content that a REST reply of Zyra's dialect has.
#[derive(Debug, Clone, Copy)]
enum ZyraReplyContent {
    Discovery,
    Job,
    Canceled,
    Manifest,
    File,
}

impl AnswerEncoder for ZyraRestEncoder {
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply> {
        Some(match (self.view, outcome) {
            (ZyraReplyContent::Discovery, Ok(HostAnswer::Tools(page))) => {
                json_reply(&discovery(&page))
            }
            (ZyraReplyContent::Job, Ok(HostAnswer::Job(job))) => json_reply(&job_record(&job)),
            (ZyraReplyContent::Canceled, Ok(HostAnswer::Job(job))) => {
                json_reply(&json!({ "status": job.state, "job_id": job.id.to_string() }))
            }
            (ZyraReplyContent::Manifest, Ok(HostAnswer::Job(job))) => json_reply(&manifest(&job)),
            (ZyraReplyContent::File, Ok(HostAnswer::Artefact(artefact))) => file_reply(artefact),
            (_, Err(error)) => refusal(&error),
            (_, Ok(_)) => error_reply(500, MISMATCHED_ANSWER),
        })
    }
}

fn discovery(page: &ToolPage) -> Value {
    let mut commands = Vec::with_capacity(page.tools.len());
    for tool in &page.tools {
        let spec = tool.spec();
        commands.push(exact_json::object([
            ("name", tool_name(spec.id.as_str()).into()),
            ("description", spec.description.as_str().into()),
            ("parameters", input_schema(spec).into_owned()),
        ]));
    }
    exact_json::object([
        ("mcp_version", "0.1".into()),
        ("name", NAME.into()),
        ("description", ABOUT.into()),
        ("capabilities", exact_json::object([("commands", commands.into())])),
    ])
}

fn job_record(job: &JobSnapshot) -> Value {
    let printed = ZyraCommandResult::from_job(job);
    json!({
        "job_id": job.id.to_string(),
        "status": job.state,
        "stdout": printed.stdout,
        "stderr": printed.stderr,
        "exit_code": printed.exit_code,
        "output_file": output_path(job),
        // Zyra lists the resolved placeholders of arguments here. toolgate has no placeholders.
        "resolved_input_paths": [],
    })
}

fn manifest(job: &JobSnapshot) -> Value {
    let listed = |artefact: &JobArtefact| {
        let JobArtefact { name, path, bytes, modified, media_type } = artefact;
        json!({
            "name": name,
            "path": path,
            "size": bytes,
            "mtime": modified.as_second(),
            "media_type": media_type,
        })
    };
    let artifacts: Vec<Value> = job.downloads().iter().map(listed).collect();
    json!({ "job_id": job.id.to_string(), "artifacts": artifacts })
}

fn file_reply(OpenArtefact { name, file }: OpenArtefact) -> Reply {
    Reply { status: 200, headers: Vec::new(), body: ReplyBody::File(file) }
        .with_header("content-disposition", disposition(&name))
        // This stops browsers from running a job's file as a page of this server.
        .with_header("x-content-type-options", "nosniff")
}

/// Returns the `Content-Disposition` of a file (RFC 6266): an ASCII name, and the full name in
/// UTF-8.
pub(crate) fn disposition(name: &str) -> String {
    let plain =
        |c: char| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\' | '%') { c } else { '_' };
    let ascii: String = name.chars().map(plain).collect();
    let mut header = format!("attachment; filename=\"{ascii}\"");
    if ascii != name {
        header.push_str("; filename*=UTF-8''");
        header.extend(utf8_percent_encode(name, NON_ALPHANUMERIC));
    }
    header
}

fn refusal(error: &CallError) -> Reply {
    let message = in_own_names(error, None).to_string();
    match error {
        CallError::InvalidInput { .. } => error_reply(400, message),
        CallError::NotAllowed { .. } | CallError::Scope { .. } => error_reply(403, message),
        CallError::UnknownTool { .. } | CallError::NotFound { .. } => error_reply(404, message),
        CallError::Conflict { .. } => error_reply(409, message),
        CallError::TooLarge { .. } => error_reply(413, message),
        CallError::Limited { retry_after, .. } => {
            error_reply(429, message).with_header("retry-after", retry_seconds(*retry_after))
        }
        CallError::NeedsJob { .. }
        | CallError::NoJob { .. }
        | CallError::Mismatch { .. }
        | CallError::Refused { .. } => error_reply(400, message),
        CallError::Failed { .. }
        | CallError::InvalidOutput { .. }
        | CallError::Interrupted
        | CallError::Asks { .. }
        | CallError::CannotAsk { .. } => error_reply(500, message),
        CallError::Unavailable { .. } | CallError::Canceled => error_reply(503, message),
        CallError::TimedOut { .. } => error_reply(504, message),
    }
}

/// Returns the duration `wait` in whole seconds, rounded up, at least 1, for the header
/// `Retry-After`.
pub(crate) fn retry_seconds(wait: Duration) -> String {
    wait.as_millis().div_ceil(1000).max(1).to_string()
}

/// Creates an HTTP reply for an error with its reason.
pub(crate) fn error_reply(status: u16, why: impl Into<String>) -> Reply {
    json_reply(&json!({ "detail": why.into() })).with_status(status)
}

/// Creates the reply that refuses all HTTP methods but `allow`.
pub(crate) fn method_not_allowed(allow: &'static str) -> Reply {
    error_reply(405, format!("this path accepts only {allow}")).with_header("allow", allow)
}

/// Creates the reply to a request for an unknown path.
pub(crate) fn path_not_found(path: &str) -> Reply {
    error_reply(404, format!("unknown path `{path}`"))
}

fn json_reply(value: &Value) -> Reply {
    Reply::json(to_json(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_cannot_end_its_header() {
        assert_eq!(disposition("heat map.png"), r#"attachment; filename="heat map.png""#);
        assert_eq!(
            disposition("größe\".png\r\nx: y"),
            "attachment; filename=\"gr__e_.png__x: y\"; \
             filename*=UTF-8''gr%C3%B6%C3%9Fe%22%2Epng%0D%0Ax%3A%20y"
        );
    }

    #[test]
    fn a_wait_is_rounded_up() {
        for (ms, expected) in [(0, "1"), (1, "1"), (1000, "1"), (1001, "2")] {
            assert_eq!(retry_seconds(Duration::from_millis(ms)), expected);
        }
    }
}
