//! Envelopes of requests, which are completed when the answer is known.

use std::time::Instant;

use serde_json::{Value, json};
use toolgate_contract::{
    CallError, EnvelopeRequestInfo, HostAnswer, HostRequest, Reply, TraceContext, exact_json,
};
use toolgate_dialects::envelope::catalog_name;
use toolgate_dialects::{AnswerEncoder, PendingHostRequest};
use toolgate_host::Host;

/// Longest tool or prompt name in the envelope log, in characters.
const NAME_CHARS_MAX: usize = 1000;

/// The envelope of one request, which is completed when the answer to the request is known.
pub(crate) struct PendingEnvelope {
    origin: EnvelopeRequestInfo,
    trace: Option<TraceContext>,
    began: Instant,
    /// True if the answer to the client is the envelope. Otherwise the envelope is only logged.
    is_answer: bool,
}

impl PendingEnvelope {
    /// Creates the envelope of `request`. Returns `None` if the request's dialect uses no envelopes
    /// and the request is not logged.
    ///
    /// If the called tool or its input is invalid, replaces `request` by a request that the host
    /// refuses.
    pub(crate) fn for_request(
        host: &Host,
        request: &mut PendingHostRequest,
        dialect: &str,
        transport: &'static str,
    ) -> Option<Box<Self>> {
        let envelopes = host.envelopes();
        let is_answer = request.origin.is_some();
        let origin = match request.origin.take() {
            Some(origin) => {
                if let Err(why) = envelopes.check_tool_io(&origin) {
                    request.request = match &request.request {
                        HostRequest::CallTool { tool, .. } => {
                            HostRequest::RefuseCall { tool: tool.clone(), why }
                        }
                        _ => HostRequest::Refuse(why),
                    };
                }
                *origin
            }
            None if envelopes.is_logging() => logged_origin(&request.request, dialect, transport)?,
            None => return None,
        };
        let trace = request.metadata.trace.clone();
        // Boxed because most calls have no envelope, but reserve space for one.
        Some(Box::new(Self { origin, trace, began: Instant::now(), is_answer }))
    }

    /// Returns the reply to the client for `outcome`. Completes the envelope, which the reply
    /// contains if the dialect uses envelopes.
    pub(crate) fn reply(
        self,
        host: &Host,
        encoder: &dyn AnswerEncoder,
        outcome: Result<HostAnswer, CallError>,
    ) -> Option<Reply> {
        let Self { origin, trace, began, is_answer } = self;
        let envelopes = host.envelopes();
        let called = origin.tool.as_deref().map(catalog_name).unwrap_or_default();
        let time_limit = host.time_limit(called);
        let seal = |data| envelopes.build(&origin, data, began.elapsed(), trace.as_ref());
        if is_answer {
            let data = outcome.map(|answer| encoder.envelope_data(&answer, time_limit));
            let data = data.map_err(|error| encoder.envelope_error(error));
            return encoder.encode_envelope(&seal(data));
        }
        let data = outcome.as_ref().map(|answer| encoder.envelope_data(answer, time_limit));
        seal(data.map_err(CallError::clone));
        encoder.encode_reply(outcome)
    }

    /// Completes and logs the envelope of a cancelled call.
    pub(crate) fn seal_cancelled(self, host: &Host) {
        self.seal_error(host, CallError::Canceled);
    }

    /// Completes and logs the envelope of a call that was refused because of a duplicate id or an
    /// ended session.
    pub(crate) fn seal_not_started(self, host: &Host) {
        let message = "the request id is already in use, or the session has ended".to_owned();
        self.seal_error(host, CallError::Conflict { message, details: Value::Null });
    }

    fn seal_error(self, host: &Host, error: CallError) {
        let Self { origin, trace, began, .. } = self;
        host.envelopes().build(&origin, Err(error), began.elapsed(), trace.as_ref());
    }
}

/// Returns the envelope data of a request in a dialect without envelopes, or `None` if the envelope
/// log contains no requests of this type.
fn logged_origin(
    request: &HostRequest,
    dialect: &str,
    transport: &'static str,
) -> Option<EnvelopeRequestInfo> {
    let origin = |route: &str, verb: &str, payload: Value| {
        let route = route.to_owned();
        let method = format!("{dialect}:{verb}");
        EnvelopeRequestInfo {
            transport,
            route,
            method,
            payload,
            tool: None,
            prompt: None,
            io: None,
        }
    };
    let tool_origin = |verb: &str, tool: &str, input: &Value| {
        let payload = exact_json::object([("toolId", json!(tool)), ("arguments", input.clone())]);
        let tool = Some(clip_name(tool));
        EnvelopeRequestInfo { tool, ..origin("tool", verb, payload) }
    };
    Some(match request {
        HostRequest::ListTools { .. } | HostRequest::ListPrompts { .. } | HostRequest::Discover => {
            origin("discover", "discover", json!({}))
        }
        HostRequest::CallTool { tool, input } => tool_origin("tool.invoke", tool, input),
        HostRequest::StartJob { tool, input, .. } => tool_origin("tool.start", tool, input),
        HostRequest::GetPrompt { name, arguments } => {
            let payload = json!({ "promptId": name, "arguments": arguments });
            EnvelopeRequestInfo {
                prompt: Some(clip_name(name)),
                ..origin("prompt", "prompt.get", payload)
            }
        }
        HostRequest::ReadResource { uri } => {
            origin("resource", "resource.read", json!({ "uri": uri }))
        }
        HostRequest::RefuseCall { tool, .. } => tool_origin("tool.invoke", tool, &Value::Null),
        HostRequest::Refuse(_) => origin("rpc", "refused", json!({})),
        HostRequest::GetJob { .. }
        | HostRequest::AwaitJob { .. }
        | HostRequest::ListJobs { .. }
        | HostRequest::CancelJob { .. }
        | HostRequest::OpenArtefact { .. }
        | HostRequest::AnswerJob { .. }
        | HostRequest::ListResources { .. }
        | HostRequest::ListTemplates
        | HostRequest::ReadFolder { .. }
        | HostRequest::WatchResource { .. }
        | HostRequest::Complete(_)
        | HostRequest::ListSkills { .. }
        | HostRequest::GetSkill { .. } => return None,
    })
}

/// Returns the first 1000 characters of the tool or prompt name `name`.
fn clip_name(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}
