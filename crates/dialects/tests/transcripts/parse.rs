//! Parses the lines of a transcript that tell the host's side: events, outcomes and tools.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolgate_contract::LazySchema;
use toolgate_contract::{
    AnyTool, CallError, CallEvent, Caller, Effects, HostAnswer, Icon, JobEvent, JobEventKind,
    JobId, JobOutputText, JobPage, JobSnapshot, JobState, JobStreamItem, JobSupport, OpenArtefact,
    OutgoingFile, OutputStreamKind, ResultText, ToolContext, ToolError, ToolFuture, ToolId,
    ToolOutput, ToolPage, ToolRunStatus, ToolSpec, ValidationProblem,
};
use toolgate_dialects::{FrameRefusal, InFlightRequestKey};

use crate::parse_answers::read_answer;

/// Parses an event of a call: `progress DONE [of TOTAL] [TEXT]`, `log LEVEL TEXT`, `chunk STREAM
/// TEXT` or `release`. Returns `None` for another `kind`.
pub(crate) fn read_event(kind: &str, rest: &str) -> Option<CallEvent> {
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
            CallEvent::Progress { done: first.parse().expect("how much is done"), total, message }
        }
        "log" => {
            CallEvent::log(serde_json::from_value(first.into()).expect("a level"), read_text(rest))
        }
        "release" => CallEvent::ReleaseConnection,
        "chunk" => {
            let stream =
                if first == "stderr" { OutputStreamKind::Stderr } else { OutputStreamKind::Stdout };
            CallEvent::ProgramOutput { stream, text: read_text(rest) }
        }
        _ => return None,
    })
}

/// Parses an outcome: `tools ID… [then more]`, `output VALUE TEXT [NOTE]`, `failed VALUE TEXT`,
/// `error REASON FIELDS`, `job JOB`, `jobs JOB | JOB… [then more]`, `artefact BYTES TYPE NAME`, or
/// a line of [`read_answer`].
pub(crate) fn read_outcome(kind: &str, rest: &str) -> Result<HostAnswer, CallError> {
    if let Some(answer) = read_answer(kind, rest) {
        return Ok(answer);
    }
    match kind {
        "tools" => Ok(HostAnswer::Tools(read_page(rest))),
        "everything" => {
            let (tools, prompts) = rest.split_once(" with ").expect("tools with prompts");
            let Some(HostAnswer::Prompts(page)) = read_answer("prompts", prompts) else {
                panic!("`{prompts}` are no prompts")
            };
            Ok(HostAnswer::Everything { tools: read_page(tools).tools, prompts: page.prompts })
        }
        "job" => Ok(HostAnswer::Job(Box::new(read_job(rest)))),
        "jobs" => Ok(HostAnswer::Jobs(read_jobs(rest))),
        "artefact" => Ok(HostAnswer::Artefact(read_artefact(rest))),
        "output" => Ok(HostAnswer::Output(read_output(rest, ToolRunStatus::Done))),
        "failed" => Ok(HostAnswer::Output(read_output(rest, ToolRunStatus::ProgramFailed))),
        "error" => Err(read_error(rest)),
        _ => panic!("a line of a host cannot start with `{kind}`"),
    }
}

/// Parses a job: `STATE [FIELDS] [OUTCOME]`. The fields are JSON and have defaults.
pub(crate) fn read_job(text: &str) -> JobSnapshot {
    let (state, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (fields, outcome) = if rest.starts_with('{') {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let fields = values.next().expect("a job's fields").expect("JSON");
        (fields, rest[values.byte_offset()..].trim_start())
    } else {
        (json!({}), rest)
    };
    let outcome = (!outcome.is_empty()).then(|| {
        let (kind, rest) = outcome.split_once(' ').unwrap_or((outcome, ""));
        read_outcome(kind, rest).map(|answer| match answer {
            HostAnswer::Output(output) => output,
            _ => panic!("`{outcome}` is not an outcome of a job"),
        })
    });
    let text = |name: &str, default: &str| fields[name].as_str().unwrap_or(default).to_owned();
    let count = |name: &str, default: u64| fields[name].as_u64().unwrap_or(default);
    let created = text("created", "2026-01-02T03:04:05Z");
    JobSnapshot {
        id: fields["id"].as_str().map_or(JobId::from_bits(1), |id| id.parse().expect("a job's id")),
        tool: ToolId::new(&text("tool", "exec.run")).expect("a tool's id"),
        caller: Caller::with_key(&text("caller", "ada")),
        state: serde_json::from_value(state.into()).expect("a state"),
        created: created.parse().expect("a time"),
        updated: text("updated", &created).parse().expect("a time"),
        started: fields["started"].as_str().map(|at| at.parse().expect("a time")),
        attempts: count("attempts", 1).try_into().expect("a count"),
        progress: fields["progress"].as_f64().unwrap_or_default(),
        message: fields["message"].as_str().map(str::to_owned),
        keep_for: Duration::from_millis(count("keep_ms", 3_600_000)),
        last_event: count("last_event", 1),
        artefacts: serde_json::from_value(fields.get("artefacts").cloned().unwrap_or(json!([])))
            .expect("artefacts"),
        questions: serde_json::from_value(fields.get("asks").cloned().unwrap_or(json!({})))
            .expect("questions"),
        outcome,
        printed: JobOutputText { stdout: text("stdout", ""), stderr: text("stderr", "") },
    }
}

/// Parses a page of jobs.
fn read_jobs(text: &str) -> JobPage {
    let (jobs, more) = match text.strip_suffix("then more") {
        Some(jobs) => (jobs.trim_end(), true),
        None => (text, false),
    };
    let jobs: Vec<_> = jobs.split(" | ").filter(|job| !job.is_empty()).map(read_job).collect();
    let next = jobs.last().filter(|_| more).map(|job| job.id);
    JobPage { jobs, next }
}

/// Parses `BYTES TYPE NAME` as an artefact (a file of a job) without content.
fn read_artefact(text: &str) -> OpenArtefact {
    let mut fields = text.splitn(3, ' ');
    let mut next_field = || fields.next().expect("a length, a media type and a name");
    let bytes = next_field();
    let media_type = next_field().to_owned();
    let name = read_text(next_field());
    #[allow(clippy::disallowed_methods, reason = "the content of the file does not matter")]
    let handle = Arc::new(File::open("/dev/null").expect("nothing"));
    let bytes = bytes.parse().expect("a length");
    OpenArtefact { name, file: OutgoingFile { handle, bytes, media_type, guard: None } }
}

/// Parses an event of a job: `queued`, `started ATTEMPT`, `progress FRACTION [TEXT]`, `output
/// STREAM TEXT`, `log LEVEL TEXT`, `artefact FIELDS`, `questions COUNT` or `finished STATE`, with
/// an optional `@SEQ` before it. Also parses `ended JOB`.
pub(crate) fn read_job_item(text: &str) -> JobStreamItem {
    if let Some(job) = text.strip_prefix("ended ") {
        return JobStreamItem::Ended(Box::new(read_job(job)));
    }
    let (seq, text) = match text.strip_prefix('@').and_then(|text| text.split_once(' ')) {
        Some((seq, text)) => (seq.parse().expect("an event's number"), text),
        None => (1, text),
    };
    let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
    let event = match kind {
        "queued" => JobEventKind::Queued,
        "started" => JobEventKind::Started { attempt: first.parse().expect("an attempt") },
        "progress" => JobEventKind::Progress {
            fraction: first.parse().expect("a fraction"),
            message: (!more.is_empty()).then(|| read_text(more)),
        },
        "output" => JobEventKind::Output {
            stream: serde_json::from_value(first.into()).expect("a stream"),
            text: read_text(more),
        },
        "log" => JobEventKind::Log {
            level: serde_json::from_value(first.into()).expect("a level"),
            message: read_text(more),
        },
        "artefact" => JobEventKind::Artefact(serde_json::from_str(rest).expect("an artefact")),
        "questions" => JobEventKind::Asks { open: first.parse().expect("a number of questions") },
        "finished" => {
            let state: JobState = serde_json::from_value(first.into()).expect("a state");
            JobEventKind::Finished { state }
        }
        _ => panic!("`{kind}` is not an event of a job"),
    };
    let at = "2026-01-02T03:04:06Z".parse().expect("a time");
    JobStreamItem::Event(Arc::new(JobEvent { seq, at, kind: event }))
}

/// Parses the output of a tool, `VALUE TEXT [NOTE]`.
pub(crate) fn read_output(text: &str, ending: ToolRunStatus) -> ToolOutput {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let mut next = || values.next().map(|value: Result<Value, _>| value.expect("JSON"));
    let value = next().expect("a value");
    let body = next().and_then(|text| text.as_str().map(str::to_owned)).expect("a text");
    let note = next().and_then(|text| text.as_str().map(str::to_owned));
    ToolOutput::new(value, ResultText { body, note }, ending)
}

/// Parses `ID… [then more]` as a page of tools.
pub(crate) fn read_page(text: &str) -> ToolPage {
    let (names, more) = match text.strip_suffix(" then more") {
        Some(names) => (names, true),
        None => (text, false),
    };
    let tools: Vec<_> = names.split_whitespace().map(tool).collect();
    let next = tools.last().filter(|_| more).map(|tool| tool.spec().id.clone());
    ToolPage { tools, next, unchanged_for: None }
}

/// Parses the error of a call, `REASON FIELDS`.
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
            problems.push(ValidationProblem { pointer: pointer.clone(), message });
        }
        problems
    };
    match reason {
        "unknown_tool" => {
            let nearest = fields["nearest"].as_str().map(str::to_owned);
            let unavailable = fields["unavailable"].as_str().map(str::to_owned);
            CallError::UnknownTool { name: text("name"), nearest, unavailable }
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
        "interrupted" => CallError::Interrupted,
        "failed" => CallError::Failed { message, cause: text("cause") },
        "cannot_ask" => CallError::CannotAsk {
            what: None,
            kind: serde_json::from_value(fields["kind"].clone()).expect("a kind of question"),
        },
        "asks" => CallError::Asks {
            questions: serde_json::from_value(fields["questions"].clone()).expect("questions"),
        },
        "needs_job" => CallError::NeedsJob { tool: text("tool") },
        "no_job" => CallError::NoJob { tool: text("tool") },
        "mismatch" => CallError::Mismatch { message },
        "refused" => CallError::Refused {
            code: fields["code"].as_i64().and_then(|code| code.try_into().ok()).expect("a code"),
            message,
            data: fields.get("data").cloned(),
        },
        "invalid_output" => CallError::InvalidOutput { problems: problems() },
        _ => panic!("unknown error `{reason}`"),
    }
}

/// Parses the refusal of a message: `too_large BYTES`, `busy TEXT`, `repeated KEY`, `unauthorized
/// KEY` (`-` means no key) or `throttled SECONDS`.
pub(crate) fn read_refusal(text: &str) -> FrameRefusal {
    match text.split_once(' ').expect("a reason and a value") {
        ("too_large", limit) => FrameRefusal::TooLarge { limit: limit.parse().expect("bytes") },
        ("busy", message) => FrameRefusal::Busy { message: read_text(message) },
        ("repeated", key) => FrameRefusal::DuplicateId { key: InFlightRequestKey(key.to_owned()) },
        ("unauthorized", key) => FrameRefusal::Unauthorized { had_credential: key != "-" },
        ("throttled", seconds) => {
            let seconds = seconds.parse().expect("seconds");
            FrameRefusal::Throttled { retry_after: Duration::from_secs(seconds) }
        }
        (why, _) => panic!("`{why}` is not a reason of a refusal"),
    }
}

/// Parses a JSON string.
pub(crate) fn read_text(text: &str) -> String {
    serde_json::from_str(text).expect("a JSON string")
}

/// Tool that appears in lists of a transcript and cannot be called.
struct TranscriptTool(ToolSpec);

impl AnyTool for TranscriptTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn run<'a>(&'a self, _: &'a ToolContext, _: Value) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async { Err(ToolError::not_allowed("this tool is only listed")) })
    }
}

/// Returns a tool with the id `id`, for tool lists in transcripts.
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
        "process.decode_grib2" => (
            "Decode GRIB2",
            Effects::Runs,
            false,
            json!({ "type": "object", "properties": { "file_or_url": { "type": "string" } }, "required": ["file_or_url"] }),
            None,
        ),
        // A tool of an upstream, which has no output schema.
        "docs.search.recent" => {
            ("Search docs", Effects::Reads, false, json!({ "type": "object" }), None)
        }
        // A tool with an icon, whose argument is also sent in a header.
        "show.icon" => (
            "Show",
            Effects::Reads,
            true,
            json!({ "type": "object", "properties": { "region": { "type": "string", "x-mcp-header": "Region" } } }),
            None,
        ),
        "jobs.start" | "exec.build" => {
            (id, Effects::Runs, false, json!({ "type": "object" }), None)
        }
        // A tool whose result is a list.
        "files.names" => (
            "Names",
            Effects::Reads,
            true,
            json!({ "type": "object", "additionalProperties": false }),
            Some(json!({ "type": "array", "items": { "type": "string" } })),
        ),
        // A tool with an argument of any type.
        "assets.check" => (
            "Check asset",
            Effects::Reads,
            true,
            json!({ "type": "object", "properties": { "asset": true, "strict": { "type": "boolean" } } }),
            Some(json!({ "type": "object", "properties": { "found": true } })),
        ),
        _ => panic!("unknown tool `{id}` in a transcript"),
    };
    Arc::new(TranscriptTool(ToolSpec {
        idempotent,
        input_schema: input_schema.into(),
        output_schema: output_schema.map(LazySchema::from),
        job: match id {
            "jobs.start" => JobSupport::Never,
            "exec.build" => JobSupport::Required,
            _ => JobSupport::Optional,
        },
        icons: if id == "show.icon" { vec![Icon::svg("<svg/>")] } else { Vec::new() },
        ..ToolSpec::new(ToolId::new(id).expect("an id"), title, format!("About {id}."), effects)
    }))
}
