//! MCP's tasks, which are jobs: a parameter in 2025-11-25, an extension in 2026-07-28.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use toolgate_contract::{
    CallError, Happened, Job, JobEvent, JobId, JobPage, JobState, JobTerms, Reply, Request, Watched,
};

use super::hearing::Hearing;
use super::message::{Failure, Id, MISSING_CAPABILITY, not_a, notification, success};
use super::revision::{Revision, Tasks};
use super::ticket::{CallResult, McpTicket, Spelled, Stamp, wording};
use super::{META_CAPABILITIES, asking, cursor};
use crate::WatchTicket;
use crate::json::Params;

/// The name of the tasks extension.
pub(crate) const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// The `_meta` key of the task that a message belongs to.
const RELATED: &str = "io.modelcontextprotocol/related-task";
/// The suggested polling interval in milliseconds.
const POLL_MS: u64 = 500;
/// The status of a queued or running task.
const WORKING: &str = "working";
/// The status of a task that waits for answers.
const ASKING: &str = "input_required";
/// The time after which a call is answered with a task instead of its result.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Declares tasks in the server's `capabilities`.
pub(crate) fn declare(revision: &Revision, capabilities: &mut Value) {
    match revision.tasks {
        Tasks::None => {}
        Tasks::Param => {
            let requests = json!({ "tools": { "call": {} } });
            capabilities["tasks"] = json!({ "list": {}, "cancel": {}, "requests": requests });
        }
        Tasks::Extension => capabilities["extensions"] = json!({ EXTENSION: {} }),
    }
}

/// Parses the job options of a call; `None` if the call is not to be a task.
pub(crate) fn terms(
    revision: &Revision,
    id: &Id,
    params: &Params,
) -> Result<Option<JobTerms>, Failure> {
    match revision.tasks {
        Tasks::None => Ok(None),
        Tasks::Param => {
            let task = match params.get("task") {
                None | Some(Value::Null) => return Ok(None),
                Some(Value::Object(task)) => task,
                Some(_) => return Err(wrong(id, "`params.task` must be an object")),
            };
            let keep = match task.get("ttl") {
                None | Some(Value::Null) => None,
                Some(ttl) => match milliseconds(ttl) {
                    Some(keep) => Some(keep),
                    None => {
                        return Err(wrong(
                            id,
                            "`params.task.ttl` must be a number of milliseconds",
                        ));
                    }
                },
            };
            Ok(Some(JobTerms { keep, answer_within: None }))
        }
        Tasks::Extension => {
            let terms = JobTerms { keep: None, answer_within: Some(ANSWER_WITHIN) };
            Ok(declared(params).then_some(terms))
        }
    }
}

/// A kind of request about existing tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// The state of a task.
    Get,
    /// The result of a task, after its end.
    Result,
    /// The list of tasks.
    List,
    /// Answers for a task.
    Update,
    /// The cancellation of a task.
    Cancel,
}

impl About {
    /// Returns the request kind of `method`, if the revision has it.
    pub(crate) fn named(method: &str, revision: &Revision) -> Option<Self> {
        match (revision.tasks, method) {
            (Tasks::Param | Tasks::Extension, "tasks/get") => Some(Self::Get),
            (Tasks::Param | Tasks::Extension, "tasks/cancel") => Some(Self::Cancel),
            (Tasks::Param, "tasks/result") => Some(Self::Result),
            (Tasks::Param, "tasks/list") => Some(Self::List),
            (Tasks::Extension, "tasks/update") => Some(Self::Update),
            (Tasks::None | Tasks::Param | Tasks::Extension, _) => None,
        }
    }

    /// Parses the parameters into a host request.
    pub(crate) fn read(
        self,
        revision: &Revision,
        id: &Id,
        params: &Params,
    ) -> Result<Request, Failure> {
        match revision.tasks {
            Tasks::None | Tasks::Param => {}
            Tasks::Extension => check_declared(id, params)?,
        }
        let task = || match params.get("taskId") {
            Some(Value::String(task)) => Ok(task.clone()),
            other => Err(not_a("a string", id, "params.taskId", other)),
        };
        Ok(match self {
            Self::Get => Request::GetJob { id: task()? },
            Self::Result => Request::AwaitJob { id: task()? },
            Self::List => {
                let after = cursor::of(id, params, |text| text.parse().ok())?;
                Request::ListJobs { after }
            }
            Self::Update => match asking::given(id, params)? {
                Some(given) => Request::TellJob { id: task()?, given },
                None => return Err(wrong(id, "`params.inputResponses` is missing")),
            },
            Self::Cancel => Request::CancelJob { id: task()? },
        })
    }
}

fn wrong(id: &Id, why: &str) -> Failure {
    Failure::invalid_params(Some(id.clone()), why)
}

/// Checks that a request about tasks declares the extension.
pub(crate) fn check_declared(id: &Id, params: &Params) -> Result<(), Failure> {
    if declared(params) {
        return Ok(());
    }
    let why = format!("the request must declare the extension `{EXTENSION}`");
    Err(Failure::new(Some(id.clone()), MISSING_CAPABILITY, why)
        .with_data(json!({ "requiredCapabilities": required() })))
}

/// Returns the client capability that tasks need.
pub(crate) fn required() -> Value {
    json!({ "extensions": { EXTENSION: {} } })
}

/// Returns true if the request declares the tasks extension.
fn declared(params: &Params) -> bool {
    let capabilities = params.get("_meta").and_then(|meta| meta.get(META_CAPABILITIES));
    let extensions = capabilities.and_then(|capabilities| capabilities.get("extensions"));
    extensions.and_then(|extensions| extensions.get(EXTENSION)).is_some_and(Value::is_object)
}

/// Parses a number of milliseconds; `None` if it is invalid.
fn milliseconds(value: &Value) -> Option<Duration> {
    if let Some(whole) = value.as_u64() {
        return Some(Duration::from_millis(whole));
    }
    let some = value.as_f64().filter(|some| *some >= 0.0)?;
    Some(Duration::try_from_secs_f64(some / 1000.0).unwrap_or(Duration::MAX))
}

/// Creates the `_meta` that relates a message to `task`.
pub(crate) fn related(task: JobId) -> Value {
    json!({ RELATED: { "taskId": task.to_string() } })
}

impl McpTicket {
    /// Encodes the answer to a call that became a task.
    pub(crate) fn created(&self, job: &Job) -> Reply {
        // The result and the questions are left to `tasks/get`.
        let Shown { task, stamp, .. } = self.shown(job);
        match self.revision.tasks {
            Tasks::None | Tasks::Param => {
                success(&self.id, &json!({ "task": task, "_meta": related(job.id) }))
            }
            Tasks::Extension => {
                let stamp = stamp.of_task();
                success(&self.id, &Shown::seed(task, stamp))
            }
        }
    }

    /// Encodes the answer to a request about the task of `job`.
    pub(crate) fn about(&self, about: About, job: &Job) -> Reply {
        match (about, self.revision.tasks) {
            (About::Get, Tasks::None | Tasks::Param | Tasks::Extension)
            | (About::Cancel, Tasks::None | Tasks::Param) => success(&self.id, &self.shown(job)),
            (About::Cancel, Tasks::Extension) | (About::Update, _) => self.acknowledged(),
            (About::Result, _) if !job.state.is_terminal() => self.astray(),
            (About::Result, _) => match self.came_of(job) {
                Spelled::Result(result) => success(&self.id, &result.of_task(job.id)),
                Spelled::Error(failure) => self.failed(failure),
            },
            (About::List, _) => self.astray(),
        }
    }

    /// Encodes a page of tasks.
    pub(crate) fn tasks(&self, page: &JobPage) -> Reply {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct List<'a> {
            tasks: Vec<Shown<'a>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_cursor: Option<String>,
        }
        let tasks = page.jobs.iter().map(|job| self.shown(job)).collect();
        success(&self.id, &List { tasks, next_cursor: page.next.as_ref().map(cursor::write) })
    }

    /// Encodes the refusal of a request about tasks.
    pub(crate) fn refused_about(&self, about: About, error: &CallError) -> Reply {
        match (error, about, self.revision.tasks) {
            // The task ended before it was cancelled, which is the result that the client wanted.
            (CallError::Conflict { .. }, About::Cancel, Tasks::Extension) => self.acknowledged(),
            (CallError::Conflict { .. }, About::Cancel, Tasks::None | Tasks::Param) => {
                self.failed(wrong(&self.id, "the task has ended already: it cannot be cancelled"))
            }
            (CallError::NotFound { .. }, About::List, _) => {
                self.failed(wrong(&self.id, "the task of the cursor is gone; list from the start"))
            }
            (CallError::NotFound { .. }, _, _) => {
                self.failed(wrong(&self.id, "no such task: it has expired or never was"))
            }
            (error, _, _) => self.refused(error),
        }
    }

    fn acknowledged(&self) -> Reply {
        success(&self.id, &self.stamp(None))
    }

    /// Converts a task to the form of a notification, which equals the answer to `tasks/get`.
    pub(crate) fn detailed(&self, job: &Job) -> Value {
        let mut task = json!(self.shown(job));
        if let Some(fields) = task.as_object_mut() {
            fields.retain(|name, _| name != "resultType" && name != "_meta");
        }
        task
    }

    fn shown<'a>(&'a self, job: &'a Job) -> Shown<'a> {
        let (status, result, error) = match (self.revision.tasks, job.state) {
            // In the extension, `failed` means a protocol error.
            (Tasks::Extension, JobState::Succeeded | JobState::Failed) => match self.came_of(job) {
                Spelled::Result(result) => ("completed", Some(result), None),
                Spelled::Error(failure) => ("failed", None, Some(failure)),
            },
            (Tasks::Extension, JobState::Queued | JobState::Running | JobState::Canceled)
            | (Tasks::None | Tasks::Param, _) => (status(job), None, None),
        };
        let input_requests = match self.revision.tasks {
            Tasks::Extension if asks(job) => Some(asking::input_requests(&job.asks, self.revision)),
            Tasks::None | Tasks::Param | Tasks::Extension => None,
        };
        let task = Task::new(job, self.revision, status);
        let stamp = self.stamp(None);
        Shown { task, input_requests, result, error, stamp }
    }

    /// Encodes the outcome of an ended job as the result of the call.
    fn came_of<'a>(&'a self, job: &'a Job) -> Spelled<'a> {
        match &job.outcome {
            Some(outcome) => self.spelled(outcome.as_ref()),
            None => {
                let message = "nothing is known of what came of it".into();
                self.spelled(Err(&CallError::Failed { message, cause: String::new() }))
            }
        }
    }
}

/// Returns true if the job waits for answers.
fn asks(job: &Job) -> bool {
    !job.asks.is_empty() && !job.state.is_terminal()
}

fn status(job: &Job) -> &'static str {
    match job.state {
        JobState::Queued | JobState::Running if asks(job) => ASKING,
        JobState::Queued | JobState::Running => WORKING,
        JobState::Succeeded => "completed",
        JobState::Failed => "failed",
        JobState::Canceled => "cancelled",
    }
}

/// A task with its outcome.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    #[serde(flatten)]
    task: Task<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_requests: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<CallResult<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
    #[serde(flatten)]
    stamp: Stamp<'a>,
}

impl<'a> Shown<'a> {
    /// Creates a task without an outcome.
    fn seed(task: Task<'a>, stamp: Stamp<'a>) -> Self {
        Self { task, input_requests: None, result: None, error: None, stamp }
    }
}

/// A job in MCP's form.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Task<'a> {
    task_id: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_message: Option<Cow<'a, str>>,
    created_at: String,
    last_updated_at: String,
    #[serde(flatten)]
    times: Times,
}

/// The retention time and polling interval of a task, in milliseconds.
#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Times {
    Param { ttl: u64, poll_interval: u64 },
    Extension { ttl_ms: u64, poll_interval_ms: u64 },
}

impl<'a> Task<'a> {
    fn new(job: &'a Job, revision: &Revision, status: &'static str) -> Self {
        let ttl = u64::try_from(job.keep.as_millis()).unwrap_or(u64::MAX);
        let times = match revision.tasks {
            Tasks::None | Tasks::Param => Times::Param { ttl, poll_interval: POLL_MS },
            Tasks::Extension => Times::Extension { ttl_ms: ttl, poll_interval_ms: POLL_MS },
        };
        Self {
            task_id: job.id.to_string(),
            status,
            status_message: message(job),
            created_at: format!("{:.3}", job.created),
            last_updated_at: format!("{:.3}", job.updated),
            times,
        }
    }
}

/// Returns the status message of a job.
fn message(job: &Job) -> Option<Cow<'_, str>> {
    match (job.state, &job.outcome) {
        (JobState::Queued | JobState::Running, _) => job.message.as_deref().map(Cow::Borrowed),
        (JobState::Succeeded | JobState::Failed | JobState::Canceled, Some(Err(error))) => {
            Some(wording(error).into())
        }
        (JobState::Failed, Some(Ok(output))) => {
            let note = output.text.note.as_deref();
            Some(note.unwrap_or("its program reported failure").into())
        }
        (JobState::Succeeded | JobState::Failed | JobState::Canceled, Some(Ok(_)) | None) => None,
    }
}

/// The encoder for a task's events on the connection that created it.
pub(crate) struct TaskWatch {
    pub(crate) revision: &'static Revision,
    pub(crate) hearing: Hearing,
    /// The task at its creation.
    pub(crate) job: Job,
}

impl TaskWatch {
    /// Encodes a status notification at the time of `event`.
    fn status(&self, status: &'static str, event: &JobEvent) -> Bytes {
        let job = Job { updated: event.at, message: None, ..self.job.clone() };
        notification("notifications/tasks/status", &Task::new(&job, self.revision, status))
    }
}

impl WatchTicket for TaskWatch {
    fn begin(&self, _job: Option<&Job>) -> Option<Bytes> {
        // The answer to the call already contained the task.
        None
    }

    fn told(&self, what: &Watched) -> Option<Bytes> {
        match what {
            Watched::Event(event) => match &event.what {
                Happened::Progress { fraction, message } => {
                    self.hearing.progress(*fraction, Some(1.0), message.as_deref())
                }
                Happened::Log { level, message } => self.hearing.log(*level, None, &json!(message)),
                Happened::Asks { open: 0 } => Some(self.status(WORKING, event)),
                Happened::Asks { .. } => Some(self.status(ASKING, event)),
                // The status stays `working`, and the end is reported by `Watched::Ended`.
                Happened::Queued
                | Happened::Started { .. }
                | Happened::Output { .. }
                | Happened::Artefact(_)
                | Happened::Finished { .. } => None,
            },
            Watched::Ended(job) => {
                let task = Task::new(job, self.revision, status(job));
                Some(notification("notifications/tasks/status", &task))
            }
        }
    }

    fn snapshot(&self, _job: Option<&Job>) -> Option<Bytes> {
        None
    }

    fn alive(&self) -> Option<Bytes> {
        None
    }
}

#[cfg(test)]
pub(crate) mod tests;
