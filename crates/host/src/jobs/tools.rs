//! Provides the toolset `jobs`, for clients whose protocol has no jobs.

mod start;
mod get;
mod list;
mod cancel;
mod output;

use std::sync::{Arc, OnceLock, Weak};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use toolgate_contract::{
    AnyTool, Artefact, CallError, Content, Fault, Job, JobState, Output, Problem, ToolError,
    ToolSpec, erase, fold,
};

use super::{Inner, Jobs};

/// Late-bound reference from these tools to the jobs, because tools are created before the host.
#[derive(Clone, Default)]
pub struct Handle(Arc<OnceLock<Weak<Inner>>>);

impl Handle {
    pub(crate) fn fill(&self, jobs: &Jobs) {
        // The tools belong to the first host that offers them.
        let _ = self.0.set(Arc::downgrade(&jobs.0));
    }

    pub(super) fn jobs(&self) -> Result<Jobs, ToolError> {
        let inner = self.0.get().and_then(Weak::upgrade);
        inner.map(Jobs).ok_or_else(|| {
            ToolError::new(Fault::Unavailable, "this server keeps no jobs; call the tool itself")
        })
    }
}

/// Creates the tools, which use the jobs in `handle`.
pub(crate) fn tools(handle: &Handle) -> Vec<Arc<dyn AnyTool>> {
    vec![
        erase(start::Start(handle.clone())),
        erase(get::Get(handle.clone())),
        erase(list::List(handle.clone())),
        erase(cancel::Cancel(handle.clone())),
        erase(output::Output(handle.clone())),
    ]
}

/// Returns the spec of `jobs.get`, which guards the job resources.
pub(super) fn looking(handle: &Handle) -> ToolSpec {
    erase(get::Get(handle.clone())).spec().clone()
}

/// A job.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Told {
    /// The job's id.
    job_id: String,
    /// The tool that is called.
    tool: String,
    /// The state.
    state: JobState,
    /// Progress, 0 to 1.
    progress: f64,
    /// The last status message.
    message: Option<String>,
    /// Time of acceptance.
    created: String,
    /// Time of the last start.
    started: Option<String>,
    /// Time of the last change, or of the end.
    updated: String,
    /// Number of starts.
    attempts: u32,
    /// The tool's result, once it has ended.
    result: Option<Value>,
    /// The error, if it ended without a result.
    error: Option<String>,
    /// The files it left.
    files: Vec<File>,
}

/// A file that a job left.
#[derive(Debug, Serialize, JsonSchema)]
struct File {
    /// Path relative to the workspace.
    path: String,
    /// Size in bytes.
    bytes: u64,
    /// Media type, e.g. `image/png`.
    media_type: String,
}

impl Told {
    pub(super) fn of(job: Job) -> Self {
        let time = |time: Timestamp| time.to_string();
        let (result, error) = match job.outcome {
            Some(Ok(output)) => (Some(result_of(output)), None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, None),
        };
        Self {
            job_id: job.id.to_string(),
            tool: fold(job.tool.as_str()).into_owned(),
            state: job.state,
            progress: job.progress,
            message: job.message,
            created: time(job.created),
            started: job.started.map(time),
            updated: time(job.updated),
            attempts: job.attempts,
            result,
            error,
            files: job.artefacts.into_iter().map(File::of).collect(),
        }
    }

    /// Formats the job as one line.
    fn line(&self) -> String {
        let Self { job_id, tool, state, message, error, .. } = self;
        let percent = (self.progress * 100.0).round();
        let said = error.as_ref().or(message.as_ref());
        let said = said.map(|said| format!(": {said}")).unwrap_or_default();
        match state {
            JobState::Running if percent > 0.0 => {
                format!("{job_id} {tool} running, {percent} %{said}")
            }
            _ => format!("{job_id} {tool} {}{said}", state.as_str()),
        }
    }
}

/// Returns a tool's result: its structured value, or else its visible content as text.
fn result_of(output: Output) -> Value {
    let Output { value, structured, text, content, meta: _, ending: _ } = output;
    if structured {
        return value;
    }
    let shown = content.iter().map(Content::as_text);
    let shown = [text.body].into_iter().chain(shown).filter(|text| !text.is_empty());
    Value::String(shown.collect::<Vec<_>>().join("\n"))
}

impl File {
    fn of(artefact: Artefact) -> Self {
        let Artefact { path, bytes, media_type, .. } = artefact;
        Self { path, bytes, media_type }
    }
}

/// Converts an error of the jobs to one of a tool. `pointer` is the input field that caused it.
pub(super) fn refusal(error: CallError, pointer: &str) -> ToolError {
    let message = error.to_string();
    let fault = match error {
        CallError::UnknownTool { .. } => Fault::Invalid { pointer: "/tool".to_owned() },
        CallError::InvalidInput { problems } => return invalid(problems, pointer),
        CallError::NotAllowed { .. } | CallError::Scope { .. } => Fault::NotAllowed,
        CallError::NotFound { .. } => Fault::NotFound,
        CallError::Conflict { details, .. } => Fault::Conflict(details),
        CallError::TooLarge { .. } => Fault::TooLarge,
        CallError::Limited { message, retry_after } => {
            return ToolError::new(Fault::Limited(retry_after), message);
        }
        CallError::Unavailable { .. } => Fault::Unavailable,
        CallError::Canceled => Fault::Canceled,
        CallError::Asks { questions } => Fault::Asks(questions),
        CallError::CannotAsk { kind, .. } => Fault::CannotAsk(kind),
        CallError::Refused { code, data, .. } => Fault::Refused { code, data: data.map(Box::new) },
        CallError::NeedsJob { .. } | CallError::NoJob { .. } | CallError::Mismatch { .. } => {
            Fault::Invalid { pointer: "/tool".to_owned() }
        }
        CallError::TimedOut { .. }
        | CallError::Interrupted
        | CallError::Failed { .. }
        | CallError::InvalidOutput { .. } => Fault::Failed,
    };
    ToolError::new(fault, message)
}

/// Converts problems in the called tool's input, which is at `pointer` in the input of our tool.
fn invalid(problems: Vec<Problem>, pointer: &str) -> ToolError {
    let mut problems = problems.into_iter();
    let first =
        problems.next().unwrap_or(Problem { pointer: String::new(), message: String::new() });
    let rest =
        problems.map(|Problem { pointer: at, message }| format!("; {pointer}{at}: {message}"));
    let message = first.message + &rest.collect::<String>();
    ToolError::invalid(format!("{pointer}{}", first.pointer), message)
}
