//! How a transcript writes what is asked of the server and what goes out.

use http::StatusCode;
use serde_json::Value;
use toolgate_contract::{
    ArtefactSelection, CallEnvelope, CallError, CallMetadata, CallOrigin, ChangeFilter,
    CompletionRequest, CompletionTarget, EnvelopeError, EnvelopeMeta, HostRequest, JobOptions,
    QuestionKind, QuestionSupport, Reply, ReplyBody, ResourceCursor, canonical_json_len,
};
use toolgate_dialects::{AnswerForm, OnDisconnect, PendingRequest, QuestionMode, RequestKey};

use crate::stage::Over;

/// What is asked, and in brackets the rest of the ask.
pub(crate) fn asked(ask: &PendingRequest) -> String {
    let PendingRequest {
        key: RequestKey(key),
        request,
        encoder: ticket,
        on_disconnect: on_leave,
        answer_form: events,
        question_mode: asking,
        metadata: beside,
        time_limit: within,
        origin: via,
    } = ask;
    let leaving = match on_leave {
        OnDisconnect::Cancels => "leaving cancels it",
        OnDisconnect::Continues => "leaving does not end it",
    };
    let takes = match events {
        AnswerForm::Message => "takes one message",
        AnswerForm::Stream => "takes a stream",
        AnswerForm::Resumable => "takes a stream and comes back for it",
    };
    let hears = if ticket.encodes_events() { "hears events" } else { "hears no events" };
    let asking = how_asked(asking);
    let beside = came_beside(beside);
    let within = within.map(|within| format!(", within {} ms", within.as_millis()));
    let within = within.unwrap_or_default();
    let via = via.as_deref().map_or_else(String::new, came_by);
    format!(
        "? {}  [key {key}, {leaving}, {takes}, {hears}{asking}{beside}{within}{via}]",
        wanted(request)
    )
}

fn came_by(via: &CallOrigin) -> String {
    let CallOrigin { transport, route, method, payload, tool, prompt, io } = via;
    let named = tool.iter().chain(prompt).map(|name| format!(" {name}")).collect::<String>();
    let io = io.as_ref().map(|io| format!(" io {io}")).unwrap_or_default();
    format!(", enveloped {transport} {route} {method}{named} {payload}{io}")
}

/// The envelope of a call that came by `via`, by a server whose ids are letters and whose time
/// stands still.
pub(crate) fn sealed(via: CallOrigin, came: Result<Value, CallError>) -> CallEnvelope {
    let (data, error) = match came {
        Ok(data) => (Some(data), None),
        Err(why) => (None, Some(EnvelopeError::from_error(&why))),
    };
    CallEnvelope {
        ok: error.is_none(),
        meta: EnvelopeMeta {
            request_id: "r".to_owned(),
            trace_id: "t".to_owned(),
            span_id: "s".to_owned(),
            schema_version: CallEnvelope::VERSION.to_owned(),
            deterministic: false,
            transport: via.transport.to_owned(),
            route: via.route,
            method: via.method,
            duration_ms: 0.5,
            status: if error.is_none() { "ok" } else { "error" }.to_owned(),
            attempt: 0,
            input_bytes: canonical_json_len(&via.payload),
            output_bytes: data.as_ref().map_or(0, canonical_json_len),
            tool_id: via.tool,
            prompt_id: via.prompt,
        },
        data,
        error,
    }
}

fn wanted(request: &HostRequest) -> String {
    match request {
        HostRequest::ListTools { after: None } => "list the tools".to_owned(),
        HostRequest::ListTools { after: Some(tool) } => format!("list the tools after {tool}"),
        HostRequest::Discover => "discover".to_owned(),
        HostRequest::Refuse(why) => format!("refuse: {why}"),
        HostRequest::RefuseCall { tool, why } => format!("refuse to call {tool}: {why}"),
        HostRequest::CallTool { tool, input } => format!("call {tool} {input}"),
        HostRequest::StartJob { tool, input, terms } => {
            format!("start {tool} {input}{}", on_terms(terms))
        }
        HostRequest::GetJob { id } => format!("get the job {id}"),
        HostRequest::AwaitJob { id } => format!("await the job {id}"),
        HostRequest::ListJobs { after: None } => "list the jobs".to_owned(),
        HostRequest::ListJobs { after: Some(id) } => format!("list the jobs after {id}"),
        HostRequest::CancelJob { id } => format!("cancel the job {id}"),
        HostRequest::OpenArtefact { id, which: ArtefactSelection::Main } => {
            format!("open the file of the job {id}")
        }
        HostRequest::OpenArtefact { id, which: ArtefactSelection::Named(name) } => {
            format!("open the file {name} of the job {id}")
        }
        HostRequest::OpenArtefact { id, which: ArtefactSelection::All } => {
            format!("open all files of the job {id}")
        }
        HostRequest::AnswerJob { id, given } => format!("tell the job {id} {}", json(given)),
        HostRequest::ListResources { after: None } => "list the resources".to_owned(),
        HostRequest::ListResources { after: Some(ResourceCursor { source, uri }) } => {
            format!("list the resources after {uri} of {source}")
        }
        HostRequest::ListTemplates => "list the resource templates".to_owned(),
        HostRequest::ReadResource { uri } => format!("read the resource {uri}"),
        HostRequest::ReadFolder { uri, after } => {
            format!("read the folder {uri}{}", after_that(after.as_deref()))
        }
        HostRequest::WatchResource { uri } => format!("watch the resource {uri}"),
        HostRequest::ListPrompts { after } => {
            format!("list the prompts{}", after_that(after.as_deref()))
        }
        HostRequest::GetPrompt { name, arguments } => {
            format!("make the prompt {name} {}", json(arguments))
        }
        HostRequest::Complete(CompletionRequest {
            target: of,
            argument,
            prefix: so_far,
            other_arguments: others,
        }) => {
            let of = match of {
                CompletionTarget::Prompt(name) => format!("the prompt {name}"),
                CompletionTarget::Template(uri) => format!("the template {uri}"),
            };
            format!("complete {argument} of {of} from {so_far:?}, others {}", json(others))
        }
        HostRequest::ListSkills { after } => {
            format!("list the skills{}", after_that(after.as_deref()))
        }
        HostRequest::GetSkill { uri } => format!("get the skill {uri}"),
    }
}

fn after_that(after: Option<&str>) -> String {
    after.map(|after| format!(" after {after}")).unwrap_or_default()
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("JSON")
}

fn on_terms(JobOptions { keep_for: keep, answer_within }: &JobOptions) -> String {
    let keep = keep.map(|keep| format!(" kept {} ms", keep.as_millis()));
    let within = answer_within.map(|within| format!(" answered within {} ms", within.as_millis()));
    keep.unwrap_or_default() + &within.unwrap_or_default()
}

/// How the client can be asked something; nothing where it can not.
fn how_asked(asking: &QuestionMode) -> String {
    let of = |can: &QuestionSupport| {
        let kinds =
            [QuestionKind::Form, QuestionKind::Visit, QuestionKind::Sample, QuestionKind::Roots];
        let can = kinds.into_iter().filter(|kind| can.supports(*kind));
        can.map(|kind| format!(" {}", json(&kind).replace('"', ""))).collect::<String>()
    };
    match asking {
        QuestionMode::Nobody => String::new(),
        QuestionMode::DuringCall(can) if *can == QuestionSupport::default() => String::new(),
        QuestionMode::DuringCall(can) => format!(", is asked now:{}", of(can)),
        QuestionMode::OnRepeat { can, given, state } => {
            let can = match of(can) {
                none if none.is_empty() => String::new(),
                kinds => format!(", is asked by asking again:{kinds}"),
            };
            let given = (!given.is_empty()).then(|| format!(", answers {}", json(given)));
            let state = state.as_ref().map(|state| format!(", state {state}"));
            can + &given.unwrap_or_default() + &state.unwrap_or_default()
        }
    }
}

fn came_beside(
    CallMetadata { header_params: mirrored, trace, session: _, transport: _, as_job: _, by_id: _ }: &CallMetadata,
) -> String {
    let mirrored = match mirrored.as_deref() {
        None => String::new(),
        Some([]) => ", nothing said beside".to_owned(),
        Some(said) => {
            let said = said.iter().map(|(name, text)| match text {
                Ok(text) => format!(" {name}={text:?}"),
                Err(why) => format!(" {name} is odd: {why}"),
            });
            format!(", said beside:{}", said.collect::<String>())
        }
    };
    let trace = trace.as_ref().map(|trace| {
        let more = [("state", &trace.state), ("baggage", &trace.baggage)];
        let more = more.into_iter().filter_map(|(name, it)| Some((name, it.as_ref()?)));
        let more = more.map(|(name, it)| format!(" {name} {it}")).collect::<String>();
        format!(", trace {}{more}", trace.parent)
    });
    mirrored + &trace.unwrap_or_default()
}

/// What a client wants to be told of.
pub(crate) fn interested(interest: &ChangeFilter) -> String {
    let ChangeFilter { tools, prompts, resources, uris, jobs } = interest;
    let lists = [(*tools, "tools"), (*prompts, "prompts"), (*resources, "resources")];
    let lists = lists.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| name.to_owned());
    let uris = uris.iter().map(|uri| format!("resource {uri}"));
    let jobs = jobs.iter().map(|id| format!("job {id}"));
    let all = lists.chain(uris).chain(jobs).collect::<Vec<_>>();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

/// A reply as it goes out: over HTTP with its status and headers, on a line alone.
pub(crate) fn written(over: Over, reply: Option<&Reply>) -> Vec<String> {
    let Some(Reply { status, headers, body }) = reply else {
        return vec!["< nothing".to_owned()];
    };
    let mut told = Vec::new();
    if over == Over::Http {
        told.push(format!("< {}", StatusCode::from_u16(*status).expect("a status")));
        told.extend(headers.iter().map(|(name, value)| format!("< {name}: {value}")));
    }
    match body {
        ReplyBody::Json(bytes) => {
            told.push(format!("< {}", std::str::from_utf8(bytes).expect("UTF-8")));
        }
        ReplyBody::File(file) => {
            told.push(format!("< a file of {} bytes, {}", file.bytes, file.media_type));
        }
        ReplyBody::Empty if told.is_empty() => told.push("< nothing".to_owned()),
        ReplyBody::Empty => {}
    }
    told
}
