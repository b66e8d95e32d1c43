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
    AnyTool, CallError, ContentBlock, JobArtefact, JobSnapshot, JobState, ToolError, ToolErrorKind,
    ToolOutput, ToolSpec, ValidationProblem, erase_tool, fold_name,
};

use super::{JobService, JobServiceState};

/// JSON pointer to the input field that contains the id of a job.
const JOB_ID: &str = "/job_id";

/// Reference from the `jobs.*` tools to the jobs. The reference is set later, because tools are
/// created before the host.
#[derive(Clone, Default)]
pub struct JobsToolHandle(Arc<OnceLock<Weak<JobServiceState>>>);

impl JobsToolHandle {
    pub(crate) fn set(&self, jobs: &JobService) {
        // The tools belong to the first host that offers them.
        let _ = self.0.set(Arc::downgrade(&jobs.0));
    }

    pub(super) fn jobs(&self) -> Result<JobService, ToolError> {
        let inner = self.0.get().and_then(Weak::upgrade);
        inner.map(JobService).ok_or_else(|| {
            ToolError::new(
                ToolErrorKind::Unavailable,
                "this server has no jobs; call the tool directly",
            )
        })
    }
}

/// Creates the `jobs.*` tools, which use the jobs of `handle`.
pub(crate) fn tools(handle: &JobsToolHandle) -> Vec<Arc<dyn AnyTool>> {
    vec![
        erase_tool(start::StartJob(handle.clone())),
        erase_tool(get::GetJob(handle.clone())),
        erase_tool(list::ListJobs(handle.clone())),
        erase_tool(cancel::CancelJob(handle.clone())),
        erase_tool(output::ReadJobOutput(handle.clone())),
    ]
}

/// Returns the spec of `jobs.get`, the tool whose policy rules apply to the job resources.
pub(super) fn guard_spec(handle: &JobsToolHandle) -> ToolSpec {
    erase_tool(get::GetJob(handle.clone())).spec().clone()
}

/// A job as the `jobs` tools return it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct JobView {
    /// The job's id.
    job_id: String,
    /// Name of the called tool.
    tool: String,
    /// The state.
    state: JobState,
    /// Progress, 0 to 1.
    progress: f64,
    /// The last status message.
    message: Option<String>,
    /// Time at which the job was accepted.
    created: String,
    /// Time of the last start.
    started: Option<String>,
    /// Time of the last change, or of the end.
    updated: String,
    /// Number of starts.
    attempts: u32,
    /// Result of the tool; null until the job has ended with a result.
    result: Option<Value>,
    /// The error, if the job ended without a result.
    error: Option<String>,
    /// The files that the job created.
    files: Vec<JobFileInfo>,
}

/// A file that a job left.
#[derive(Debug, Serialize, JsonSchema)]
struct JobFileInfo {
    /// Path relative to the workspace, or absolute.
    path: String,
    /// Size in bytes.
    bytes: u64,
    /// Media type, e.g. `image/png`.
    media_type: String,
}

impl JobView {
    pub(super) fn from_job(job: JobSnapshot) -> Self {
        let time = |time: Timestamp| time.to_string();
        let (result, error) = match job.outcome {
            Some(Ok(output)) => (Some(result_value(output)), None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, None),
        };
        Self {
            job_id: job.id.to_string(),
            tool: fold_name(job.tool.as_str()).into_owned(),
            state: job.state,
            progress: job.progress,
            message: job.message,
            created: time(job.created),
            started: job.started.map(time),
            updated: time(job.updated),
            attempts: job.attempts,
            result,
            error,
            files: job.artefacts.into_iter().map(JobFileInfo::from_artefact).collect(),
        }
    }

    /// Formats the job as one line of text.
    fn summary_line(&self) -> String {
        let Self { job_id, tool, state, message, error, .. } = self;
        let percent = (self.progress * 100.0).round();
        let detail = error.as_ref().or(message.as_ref());
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        match state {
            JobState::Running if percent > 0.0 => {
                format!("{job_id} {tool} running, {percent} %{detail}")
            }
            _ => format!("{job_id} {tool} {}{detail}", state.as_str()),
        }
    }
}

/// Returns a tool's result: its structured value, or else its visible content as text.
fn result_value(output: ToolOutput) -> Value {
    let ToolOutput { value, structured, text, content, .. } = output;
    if structured {
        return value;
    }
    let texts = content.iter().map(ContentBlock::as_text);
    let texts = [text.body].into_iter().chain(texts).filter(|text| !text.is_empty());
    Value::String(texts.collect::<Vec<_>>().join("\n"))
}

impl JobFileInfo {
    fn from_artefact(artefact: JobArtefact) -> Self {
        let JobArtefact { path, bytes, media_type, .. } = artefact;
        Self { path, bytes, media_type }
    }
}

/// Converts an error about a job to the error of a tool. `pointer` names the input field that
/// caused the error.
pub(super) fn tool_error(error: CallError, pointer: &str) -> ToolError {
    let mut message = error.to_string();
    if matches!(error, CallError::NotFound { .. }) && pointer == JOB_ID && !message.contains(';') {
        message.push_str("; `jobs_list` lists yours");
    }
    let fault = match error {
        CallError::UnknownTool { .. } => ToolErrorKind::Invalid { pointer: "/tool".to_owned() },
        CallError::InvalidInput { problems } => return invalid_input(problems, pointer),
        CallError::NotAllowed { .. } | CallError::Scope { .. } => ToolErrorKind::NotAllowed,
        CallError::NotFound { .. } => ToolErrorKind::NotFound,
        CallError::Conflict { details, .. } => ToolErrorKind::Conflict(details),
        CallError::TooLarge { .. } => ToolErrorKind::TooLarge,
        CallError::Limited { message, retry_after } => {
            return ToolError::new(ToolErrorKind::Limited(retry_after), message);
        }
        CallError::Unavailable { .. } => ToolErrorKind::Unavailable,
        CallError::Canceled => ToolErrorKind::Canceled,
        CallError::Asks { questions } => ToolErrorKind::Asks(questions),
        CallError::CannotAsk { kind, .. } => ToolErrorKind::CannotAsk(kind),
        CallError::Refused { code, data, .. } => {
            ToolErrorKind::Refused { code, data: data.map(Box::new) }
        }
        CallError::NeedsJob { .. } | CallError::NoJob { .. } | CallError::Mismatch { .. } => {
            ToolErrorKind::Invalid { pointer: "/tool".to_owned() }
        }
        CallError::TimedOut { .. }
        | CallError::Interrupted
        | CallError::Failed { .. }
        | CallError::InvalidOutput { .. } => ToolErrorKind::Failed,
    };
    ToolError::new(fault, message)
}

/// Converts problems in the input of the called tool to an error of `jobs.start`, whose input
/// contains that input at `pointer`.
fn invalid_input(problems: Vec<ValidationProblem>, pointer: &str) -> ToolError {
    let mut problems = problems.into_iter();
    let first = problems
        .next()
        .unwrap_or(ValidationProblem { pointer: String::new(), message: String::new() });
    let rest = problems
        .map(|ValidationProblem { pointer: at, message }| format!("; {pointer}{at}: {message}"));
    let message = first.message + &rest.collect::<String>();
    ToolError::invalid(format!("{pointer}{}", first.pointer), message)
}
