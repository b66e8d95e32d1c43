//! Formats requests to the host and replies as lines of a transcript.

use http::StatusCode;
use serde_json::Value;
use toolgate_contract::{
    ArtefactSelection, CallEnvelope, CallError, CallMetadata, ChangeFilter, CompletionRequest,
    CompletionTarget, EnvelopeError, EnvelopeMetadata, EnvelopeRequestInfo, HostRequest,
    JobOptions, QuestionKind, QuestionSupport, Reply, ReplyBody, ResourceCursor,
    canonical_json_len,
};
use toolgate_dialects::{
    AcceptedResponseMode, DisconnectEffect, InFlightRequestKey, PendingHostRequest, QuestionChannel,
};

use crate::replay::TranscriptFrameTransport;

/// Formats a request to the host as transcript text, with its properties in brackets.
pub(crate) fn format_request(pending: &PendingHostRequest) -> String {
    let PendingHostRequest {
        key: InFlightRequestKey(key),
        request,
        encoder,
        on_disconnect,
        answer_form,
        question_mode,
        metadata,
        time_limit,
        origin,
    } = pending;
    let on_disconnect = match on_disconnect {
        DisconnectEffect::Cancels => "disconnecting cancels it",
        DisconnectEffect::Continues => "disconnecting does not cancel it",
    };
    let answer_form = match answer_form {
        AcceptedResponseMode::Message => "accepts one message",
        AcceptedResponseMode::Stream => "accepts a stream",
        AcceptedResponseMode::Resumable => "accepts a stream and resumes it",
    };
    let events = if encoder.encodes_events() { "receives events" } else { "receives no events" };
    let questions = format_question_mode(question_mode);
    let metadata = format_metadata(metadata);
    let time_limit = time_limit.map(|limit| format!(", time limit {} ms", limit.as_millis()));
    let time_limit = time_limit.unwrap_or_default();
    let origin = origin.as_deref().map_or_else(String::new, format_origin);
    format!(
        "? {}  [key {key}, {on_disconnect}, {answer_form}, {events}{questions}{metadata}{time_limit}{origin}]",
        format_host_request(request)
    )
}

/// Formats the information about a request that an envelope repeats.
fn format_origin(origin: &EnvelopeRequestInfo) -> String {
    let EnvelopeRequestInfo { transport, route, method, payload, tool, prompt, io } = origin;
    let names = tool.iter().chain(prompt).map(|name| format!(" {name}")).collect::<String>();
    let io = io.as_ref().map(|io| format!(" io {io}")).unwrap_or_default();
    format!(", enveloped {transport} {route} {method}{names} {payload}{io}")
}

/// Returns the envelope of a call with the given `origin` and `outcome`. Ids and times are
/// constant.
pub(crate) fn build_envelope(
    origin: EnvelopeRequestInfo,
    outcome: Result<Value, CallError>,
) -> CallEnvelope {
    let (data, error) = match outcome {
        Ok(data) => (Some(data), None),
        Err(why) => (None, Some(EnvelopeError::from_error(&why))),
    };
    CallEnvelope {
        ok: error.is_none(),
        meta: EnvelopeMetadata {
            request_id: "r".to_owned(),
            trace_id: "t".to_owned(),
            span_id: "s".to_owned(),
            schema_version: CallEnvelope::VERSION.to_owned(),
            deterministic: false,
            transport: origin.transport.to_owned(),
            route: origin.route,
            method: origin.method,
            duration_ms: 0.5,
            status: if error.is_none() { "ok" } else { "error" }.to_owned(),
            attempt: 0,
            input_bytes: canonical_json_len(&origin.payload),
            output_bytes: data.as_ref().map_or(0, canonical_json_len),
            tool_id: origin.tool,
            prompt_id: origin.prompt,
        },
        data,
        error,
    }
}

/// Formats a request to the host as transcript text, without its options.
fn format_host_request(request: &HostRequest) -> String {
    match request {
        HostRequest::ListTools { after: None } => "list the tools".to_owned(),
        HostRequest::ListTools { after: Some(tool) } => format!("list the tools after {tool}"),
        HostRequest::Discover => "discover".to_owned(),
        HostRequest::Refuse(why) => format!("refuse: {why}"),
        HostRequest::RefuseCall { tool, why } => format!("refuse to call {tool}: {why}"),
        HostRequest::CallTool { tool, input } => format!("call {tool} {input}"),
        HostRequest::StartJob { tool, input, terms } => {
            format!("start {tool} {input}{}", format_job_options(terms))
        }
        HostRequest::GetJob { id } => format!("get the job {id}"),
        HostRequest::AwaitJob { id } => format!("await the job {id}"),
        HostRequest::ListJobs { after: None } => "list the jobs".to_owned(),
        HostRequest::ListJobs { after: Some(id) } => format!("list the jobs after {id}"),
        HostRequest::CancelJob { id, .. } => format!("cancel the job {id}"),
        HostRequest::OpenArtefact { id, which: ArtefactSelection::Main } => {
            format!("open the file of the job {id}")
        }
        HostRequest::OpenArtefact { id, which: ArtefactSelection::Named(name) } => {
            format!("open the file {name} of the job {id}")
        }
        HostRequest::OpenArtefact { id, which: ArtefactSelection::All } => {
            format!("open all files of the job {id}")
        }
        HostRequest::AnswerJob { id, given } => format!("answer the job {id} {}", json(given)),
        HostRequest::ListResources { after: None } => "list the resources".to_owned(),
        HostRequest::ListResources { after: Some(ResourceCursor { source, uri }) } => {
            format!("list the resources after {uri} of {source}")
        }
        HostRequest::ListTemplates => "list the resource templates".to_owned(),
        HostRequest::ReadResource { uri } => format!("read the resource {uri}"),
        HostRequest::ReadFolder { uri, after } => {
            format!("read the folder {uri}{}", format_after(after.as_deref()))
        }
        HostRequest::WatchResource { uri } => format!("watch the resource {uri}"),
        HostRequest::ListPrompts { after } => {
            format!("list the prompts{}", format_after(after.as_deref()))
        }
        HostRequest::GetPrompt { name, arguments } => {
            format!("render the prompt {name} {}", json(arguments))
        }
        HostRequest::Complete(CompletionRequest { target, argument, prefix, other_arguments }) => {
            let target = match target {
                CompletionTarget::Prompt(name) => format!("the prompt {name}"),
                CompletionTarget::Template(uri) => format!("the template {uri}"),
            };
            let others = json(other_arguments);
            format!("complete {argument} of {target} from {prefix:?}, others {others}")
        }
        HostRequest::ListSkills { after } => {
            format!("list the skills{}", format_after(after.as_deref()))
        }
        HostRequest::GetSkill { uri } => format!("get the skill {uri}"),
    }
}

fn format_after(after: Option<&str>) -> String {
    after.map(|after| format!(" after {after}")).unwrap_or_default()
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("JSON")
}

/// Formats the options of a job as transcript text.
fn format_job_options(JobOptions { keep_for, answer_within }: &JobOptions) -> String {
    let keep = keep_for.map(|time| format!(" keep for {} ms", time.as_millis()));
    let answer = answer_within.map(|time| format!(" answer within {} ms", time.as_millis()));
    keep.unwrap_or_default() + &answer.unwrap_or_default()
}

/// Formats which types of questions the client answers and when, or returns an empty text if none.
fn format_question_mode(mode: &QuestionChannel) -> String {
    let format_kinds = |can: &QuestionSupport| {
        let kinds =
            [QuestionKind::Form, QuestionKind::Visit, QuestionKind::Sample, QuestionKind::Roots];
        let can = kinds.into_iter().filter(|kind| can.supports(*kind));
        can.map(|kind| format!(" {}", json(&kind).replace('"', ""))).collect::<String>()
    };
    match mode {
        QuestionChannel::Nobody => String::new(),
        QuestionChannel::DuringCall(can) if *can == QuestionSupport::default() => String::new(),
        QuestionChannel::DuringCall(can) => {
            format!(", answers questions during the call:{}", format_kinds(can))
        }
        QuestionChannel::OnRepeat { can, given, state } => {
            let can = match format_kinds(can) {
                empty if empty.is_empty() => String::new(),
                kinds => format!(", answers questions on a repeat:{kinds}"),
            };
            let given = (!given.is_empty()).then(|| format!(", answers {}", json(given)));
            let state = state.as_ref().map(|state| format!(", state {state}"));
            can + &given.unwrap_or_default() + &state.unwrap_or_default()
        }
    }
}

/// Formats the header parameters and the trace context of a call.
fn format_metadata(
    CallMetadata {
        header_params,
        trace,
        session: _,
        transport: _,
        as_job: _,
        by_id: _,
        via: _,
        client: _,
    }: &CallMetadata,
) -> String {
    let header_params = match header_params.as_deref() {
        None => String::new(),
        Some([]) => ", no header parameters".to_owned(),
        Some(params) => {
            let params = params.iter().map(|(name, text)| match text {
                Ok(text) => format!(" {name}={text:?}"),
                Err(why) => format!(" {name} is invalid: {why}"),
            });
            format!(", header parameters:{}", params.collect::<String>())
        }
    };
    let trace = trace.as_ref().map(|trace| {
        let more = [("state", &trace.state), ("baggage", &trace.baggage)];
        let more = more.into_iter().filter_map(|(name, it)| Some((name, it.as_ref()?)));
        let more = more.map(|(name, it)| format!(" {name} {it}")).collect::<String>();
        format!(", trace {}{more}", trace.parent)
    });
    header_params + &trace.unwrap_or_default()
}

/// Formats the changes that a client subscribes to.
pub(crate) fn format_filter(filter: &ChangeFilter) -> String {
    let ChangeFilter { tools, prompts, resources, uris, jobs } = filter;
    let lists = [(*tools, "tools"), (*prompts, "prompts"), (*resources, "resources")];
    let lists =
        lists.into_iter().filter(|(is_selected, _)| *is_selected).map(|(_, name)| name.to_owned());
    let uris = uris.iter().map(|uri| format!("resource {uri}"));
    let jobs = jobs.iter().map(|id| format!("job {id}"));
    let all = lists.chain(uris).chain(jobs).collect::<Vec<_>>();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

/// Formats a reply as transcript lines. Over HTTP, they have the status, the headers and the body.
/// For a line, they have only the body.
pub(crate) fn format_reply(
    transport: TranscriptFrameTransport,
    reply: Option<&Reply>,
) -> Vec<String> {
    let Some(Reply { status, headers, body }) = reply else {
        return vec!["< nothing".to_owned()];
    };
    let mut lines = Vec::new();
    if transport == TranscriptFrameTransport::Http {
        lines.push(format!("< {}", StatusCode::from_u16(*status).expect("a status")));
        lines.extend(headers.iter().map(|(name, value)| format!("< {name}: {value}")));
    }
    match body {
        ReplyBody::Json(bytes) => {
            lines.push(format!("< {}", std::str::from_utf8(bytes).expect("UTF-8")));
        }
        ReplyBody::File(file) => {
            lines.push(format!("< a file of {} bytes, {}", file.bytes, file.media_type));
        }
        ReplyBody::Empty if lines.is_empty() => lines.push("< nothing".to_owned()),
        ReplyBody::Empty => {}
    }
    lines
}
