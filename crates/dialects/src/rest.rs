//! REST for jobs: a program starts, lists, watches and cancels jobs without MCP.
//!
//! Zyra has its own requests below `/v1/jobs/`. If both are served, Zyra answers those that it
//! defines (`/v1/jobs/ID`), and this dialect answers the others. Both use the same names for the id
//! and the status of a job.

mod http_paths;
mod job_json;
mod openapi;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use toolgate_contract::{
    ArtefactSelection, CallError, Caller, EndedJobCancelReply, FrameMetadata, HostAnswer,
    HostRequest, JobId, JobOptions, MessageFrame, OpenArtefact, Reply, ReplyBody, exact_json,
};

use self::http_paths::{PATHS, RestRoute, parse_path};
use self::job_json::{RestJobEventEncoder, job_json};
use crate::json::JsonError;
use crate::rpc::to_json;
use crate::zyra::{disposition, retry_seconds, single_query_value};
use crate::{
    AnswerEncoder, ClientConversation, Dialect, DisconnectEffect, FrameRefusal, InFlightRequestKey,
    JobWatchRequest, JobWatchSchedule, MISMATCHED_ANSWER, ParsedFrame, PendingHostRequest,
};

/// The name of the dialect in audit records.
const NAME: &str = "rest";
/// Media type of an HTTP reply that describes an error (RFC 9457).
const PROBLEM: &str = "application/problem+json";
/// Time without events after which a client that watches a job gets a keep-alive message.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(15);

/// The dialect of REST requests that start, list, watch and cancel jobs.
#[derive(Default)]
pub struct RestDialect;

/// The body of a request that starts a job.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RestJobRequestBody {
    tool: String,
    #[serde(default, deserialize_with = "exact_json::deserialize")]
    arguments: Value,
    /// Time in milliseconds for which the job is kept after its end.
    keep_ms: Option<u64>,
}

impl Dialect for RestDialect {
    fn name(&self) -> &'static str {
        NAME
    }

    fn paths(&self) -> &'static [&'static str] {
        PATHS
    }

    fn claims(&self, head: &FrameMetadata) -> bool {
        parse_path(head.path()).is_some_and(|path| !matches!(path, RestRoute::Job(_)))
    }

    fn start_conversation(&self, _caller: &Caller) -> Box<dyn ClientConversation> {
        Box::new(RestConversation)
    }

    fn unknown_session(&self) -> Reply {
        problem(503, "the connection is closing and accepts no new requests")
    }

    fn refuse(&self, why: &FrameRefusal) -> Reply {
        match why {
            FrameRefusal::TooLarge { limit } => {
                problem(413, format!("the request is larger than {limit} bytes"))
            }
            FrameRefusal::Busy { message } => {
                problem(503, message.as_str()).with_header("retry-after", "1")
            }
            FrameRefusal::Unauthorized { had_credential: true } => {
                problem(401, "unknown key or token")
            }
            FrameRefusal::Unauthorized { had_credential: false } => {
                problem(401, "send a key or token as `Authorization: Bearer KEY`")
            }
            FrameRefusal::SeveralCredentials => problem(400, "send only one key or token"),
            FrameRefusal::Throttled { retry_after } => {
                problem(429, "too many failed authentication attempts; try again later")
                    .with_header("retry-after", retry_seconds(*retry_after))
            }
            FrameRefusal::DuplicateId { key: InFlightRequestKey(id) } => {
                problem(409, format!("the id {id} is in use"))
            }
        }
    }

    fn reject_unreadable(&self, _head: &FrameMetadata, why: &str) -> Option<ParsedFrame> {
        Some(ParsedFrame::Reply(problem(400, why)))
    }
}

/// The REST requests of one client, which have no state.
struct RestConversation;

impl ClientConversation for RestConversation {
    fn read(&mut self, frame: &MessageFrame) -> ParsedFrame {
        let FrameMetadata::Http { method, path, query, .. } = &frame.head else {
            return ParsedFrame::Reply(problem(400, "this dialect is served over HTTP only"));
        };
        let Some(endpoint) = parse_path(path) else {
            return ParsedFrame::Reply(problem(404, format!("unknown path `{path}`")));
        };
        read_request(endpoint, method.as_str(), query, &frame.body)
            .unwrap_or_else(ParsedFrame::Reply)
    }
}

/// Reads the REST request of `method` at the path `endpoint`.
fn read_request(
    endpoint: RestRoute,
    method: &str,
    query: &str,
    body: &Bytes,
) -> Result<ParsedFrame, Reply> {
    Ok(match (endpoint, method) {
        (RestRoute::OpenApi, "GET" | "HEAD") => {
            ParsedFrame::Reply(Reply::json(to_json(&openapi::document())))
        }
        (RestRoute::Jobs, "GET" | "HEAD") => {
            let after = match single_query_value(query, "after").map_err(|why| problem(400, why))? {
                None => None,
                Some(id) => Some(parse_id(&id)?),
            };
            request_reading(HostRequest::ListJobs { after }, RestReplyContent::Jobs)
        }
        (RestRoute::Jobs, "POST") => {
            request_reading(read_job_request(body)?, RestReplyContent::Started)
        }
        (RestRoute::Job(id), "GET" | "HEAD") => {
            let id = parse_id(&id)?.to_string();
            request_reading(HostRequest::GetJob { id }, RestReplyContent::Job)
        }
        (RestRoute::Job(id), "DELETE") => {
            let id = parse_id(&id)?.to_string();
            let if_ended = EndedJobCancelReply::Job;
            request_reading(HostRequest::CancelJob { id, if_ended }, RestReplyContent::Job)
        }
        (RestRoute::Events(id), "GET") => {
            let id = parse_id(&id)?.to_string();
            let encoder = Arc::new(RestJobEventEncoder { id: id.clone() });
            let schedule = JobWatchSchedule::Events { quiet: KEEP_ALIVE_AFTER };
            ParsedFrame::Watch(JobWatchRequest { id, schedule, encoder })
        }
        // HEAD has no body, so no events are watched.
        (RestRoute::Events(_), "HEAD") => {
            ParsedFrame::Reply(Reply::empty(200).with_header("content-type", "text/event-stream"))
        }
        (RestRoute::File(id, name), "GET" | "HEAD") => {
            let id = parse_id(&id)?.to_string();
            let which = ArtefactSelection::Named(name);
            request_reading(HostRequest::OpenArtefact { id, which }, RestReplyContent::File)
        }
        (RestRoute::Jobs, _) => return Err(method_not_allowed("GET, HEAD, POST")),
        (RestRoute::Job(_), _) => return Err(method_not_allowed("GET, HEAD, DELETE")),
        (RestRoute::OpenApi | RestRoute::Events(_) | RestRoute::File(..), _) => {
            return Err(method_not_allowed("GET, HEAD"));
        }
    })
}

fn read_job_request(body: &Bytes) -> Result<HostRequest, Reply> {
    let value = crate::json::parse(body).map_err(|err| {
        let (JsonError::Syntax(why) | JsonError::Invalid(why)) = err;
        problem(400, format!("the body is not JSON: {why}"))
    })?;
    let RestJobRequestBody { tool, arguments, keep_ms } = serde_json::from_value(value)
        .map_err(|why| problem(400, format!("the body is not a job: {why}")))?;
    let input = match arguments {
        Value::Null => json!({}),
        arguments @ Value::Object(_) => arguments,
        _ => return Err(problem(400, "`arguments` must be an object")),
    };
    let terms = JobOptions { keep_for: keep_ms.map(Duration::from_millis), answer_within: None };
    Ok(HostRequest::StartJob { tool, input, terms })
}

fn parse_id(id: &str) -> Result<JobId, Reply> {
    id.parse().map_err(|_| problem(404, "no job has this id"))
}

fn request_reading(request: HostRequest, view: RestReplyContent) -> ParsedFrame {
    let on_disconnect = match request {
        HostRequest::CancelJob { .. } | HostRequest::StartJob { .. } => DisconnectEffect::Continues,
        _ => DisconnectEffect::Cancels,
    };
    // The request is alone in its conversation, so any key is unique.
    let key = InFlightRequestKey(NAME.to_owned());
    ParsedFrame::Request(PendingHostRequest {
        on_disconnect,
        ..PendingHostRequest::new(key, request, RestJobEncoder { view })
    })
}

/// The encoder for the answer to one REST request.
struct RestJobEncoder {
    view: RestReplyContent,
}

/// The content of a REST reply.
#[derive(Debug, Clone, Copy)]
enum RestReplyContent {
    Started,
    Job,
    Jobs,
    File,
}

impl AnswerEncoder for RestJobEncoder {
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply> {
        Some(match (self.view, outcome) {
            (RestReplyContent::Started, Ok(HostAnswer::Job(job))) => {
                Reply::json(to_json(&job_json(&job)))
                    .with_status(202)
                    .with_header("location", format!("/v1/jobs/{}", job.id))
            }
            (RestReplyContent::Job, Ok(HostAnswer::Job(job))) => {
                Reply::json(to_json(&job_json(&job)))
            }
            (RestReplyContent::Jobs, Ok(HostAnswer::Jobs(page))) => {
                let jobs: Vec<Value> = page.jobs.iter().map(job_json).collect();
                let next = page.next.map(|id| id.to_string());
                Reply::json(to_json(&json!({ "jobs": jobs, "next": next })))
            }
            (RestReplyContent::File, Ok(HostAnswer::Artefact(OpenArtefact { name, file }))) => {
                Reply { status: 200, headers: Vec::new(), body: ReplyBody::File(file) }
                    .with_header("content-disposition", disposition(&name))
                    // This stops browsers from running a job's file as a page of this server.
                    .with_header("x-content-type-options", "nosniff")
            }
            (_, Err(error)) => error_reply(&error),
            (_, Ok(_)) => problem(500, MISMATCHED_ANSWER),
        })
    }
}

fn error_reply(error: &CallError) -> Reply {
    let status = match error {
        CallError::InvalidInput { .. }
        | CallError::NeedsJob { .. }
        | CallError::NoJob { .. }
        | CallError::Mismatch { .. }
        | CallError::Refused { .. } => 400,
        CallError::NotAllowed { .. } | CallError::Scope { .. } => 403,
        CallError::UnknownTool { .. } | CallError::NotFound { .. } => 404,
        CallError::Conflict { .. } => 409,
        CallError::TooLarge { .. } => 413,
        CallError::Limited { .. } => 429,
        CallError::Failed { .. }
        | CallError::InvalidOutput { .. }
        | CallError::Interrupted
        | CallError::Asks { .. }
        | CallError::CannotAsk { .. } => 500,
        CallError::Unavailable { .. } | CallError::Canceled => 503,
        CallError::TimedOut { .. } => 504,
    };
    let value = json!({ "status": status, "detail": error.to_string(), "reason": error.reason() });
    let reply = problem_reply(status, &value);
    match error {
        CallError::Limited { retry_after, .. } => {
            reply.with_header("retry-after", retry_seconds(*retry_after))
        }
        _ => reply,
    }
}

fn problem(status: u16, detail: impl Into<String>) -> Reply {
    problem_reply(status, &json!({ "status": status, "detail": detail.into() }))
}

fn problem_reply(status: u16, value: &Value) -> Reply {
    Reply::json(to_json(value)).with_status(status).with_header("content-type", PROBLEM)
}

fn method_not_allowed(allow: &'static str) -> Reply {
    problem(405, format!("this path accepts only {allow}")).with_header("allow", allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_in_the_arguments_of_a_job_keep_their_text() {
        let arguments = r#"{"n":[1E-7,-0,1e2,1E400,12345678901234567890.5]}"#;
        let body = format!(r#"{{"tool":"a.b","arguments":{arguments}}}"#);
        let Ok(HostRequest::StartJob { input, .. }) = read_job_request(&Bytes::from(body)) else {
            panic!("it starts a job")
        };
        assert_eq!(input.to_string(), arguments);
    }
}
