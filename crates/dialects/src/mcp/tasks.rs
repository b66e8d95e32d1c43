//! MCP's tasks, which are toolgate's jobs. A client requests them by a parameter in 2025-11-25, and
//! by an extension in 2026-07-28.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use toolgate_contract::{
    CallError, EndedJobCancelReply, HostRequest, JobEvent, JobEventKind, JobId, JobOptions,
    JobPage, JobSnapshot, JobState, JobStreamItem, Reply, exact_json,
};

use super::encoder::{
    CommonResultMembers, EncodedCallOutcome, McpCallResult, McpEncoder, error_message,
};
use super::message::{MISSING_CAPABILITY, McpError, RequestId, notification, success, wrong_type};
use super::request_notifications::RequestedNotifications;
use super::revision::{McpRevision, TaskSupport};
use super::{META_CAPABILITIES, cursor, questions};
use crate::JobEventEncoder;
use crate::json::RpcParams;

/// The name of MCP's tasks extension.
pub(crate) const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// The `_meta` key for the id of the task to which a message belongs.
const RELATED: &str = "io.modelcontextprotocol/related-task";
/// The polling interval that tasks suggest to clients, in milliseconds.
const POLL_MS: u64 = 500;
/// The MCP status of a queued or running task.
const WORKING: &str = "working";
/// The status of a task that waits for the client's answers.
const ASKING: &str = "input_required";
/// The time after which the answer to a call is a task instead of the call's result.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Adds tasks to the server's `capabilities`, if the protocol revision supports them.
pub(crate) fn declare_capabilities(revision: &McpRevision, capabilities: &mut Value) {
    match revision.tasks {
        TaskSupport::None => {}
        TaskSupport::Param => {
            let requests = json!({ "tools": { "call": {} } });
            capabilities["tasks"] = json!({ "list": {}, "cancel": {}, "requests": requests });
        }
        TaskSupport::Extension => capabilities["extensions"] = json!({ EXTENSION: {} }),
    }
}

/// Parses the job options of a call. `None` if the call must not become a task.
pub(crate) fn parse_job_options(
    revision: &McpRevision,
    id: &RequestId,
    params: &RpcParams,
) -> Result<Option<JobOptions>, McpError> {
    match revision.tasks {
        TaskSupport::None => Ok(None),
        TaskSupport::Param => {
            let task = match params.get("task") {
                None | Some(Value::Null) => return Ok(None),
                Some(Value::Object(task)) => task,
                Some(_) => return Err(invalid_params(id, "`params.task` must be an object")),
            };
            let keep = match task.get("ttl") {
                None | Some(Value::Null) => None,
                Some(ttl) => match parse_millis(ttl) {
                    Some(keep) => Some(keep),
                    None => {
                        return Err(invalid_params(
                            id,
                            "`params.task.ttl` must be a number of milliseconds",
                        ));
                    }
                },
            };
            Ok(Some(JobOptions { keep_for: keep, answer_within: None }))
        }
        TaskSupport::Extension => {
            let terms = JobOptions { keep_for: None, answer_within: Some(ANSWER_WITHIN) };
            Ok(declares_extension(params).then_some(terms))
        }
    }
}

/// The kind of a request about existing MCP tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskRequest {
    /// A request for the state of a task.
    Get,
    /// A request for the result of a task, which waits for its end.
    Result,
    /// A request for the list of tasks.
    List,
    /// A request with answers to the questions of a task.
    Update,
    /// A request to cancel a task.
    Cancel,
}

impl TaskRequest {
    /// Returns the kind of task request that `method` makes, if the revision has it.
    pub(crate) fn from_method(method: &str, revision: &McpRevision) -> Option<Self> {
        match (revision.tasks, method) {
            (TaskSupport::Param | TaskSupport::Extension, "tasks/get") => Some(Self::Get),
            (TaskSupport::Param | TaskSupport::Extension, "tasks/cancel") => Some(Self::Cancel),
            (TaskSupport::Param, "tasks/result") => Some(Self::Result),
            (TaskSupport::Param, "tasks/list") => Some(Self::List),
            (TaskSupport::Extension, "tasks/update") => Some(Self::Update),
            (TaskSupport::None | TaskSupport::Param | TaskSupport::Extension, _) => None,
        }
    }

    /// Parses the parameters of a task request into a host request.
    pub(crate) fn parse(
        self,
        revision: &McpRevision,
        id: &RequestId,
        params: &RpcParams,
    ) -> Result<HostRequest, McpError> {
        match revision.tasks {
            TaskSupport::None | TaskSupport::Param => {}
            TaskSupport::Extension => check_declared(id, params)?,
        }
        let task = || match params.get("taskId") {
            Some(Value::String(task)) => Ok(task.clone()),
            other => Err(wrong_type("a string", id, "params.taskId", other)),
        };
        Ok(match self {
            Self::Get => HostRequest::GetJob { id: task()? },
            Self::Result => HostRequest::AwaitJob { id: task()? },
            Self::List => {
                let after = cursor::parse(id, params, |text| text.parse().ok())?;
                HostRequest::ListJobs { after }
            }
            Self::Update => match questions::parse_answers(id, params)? {
                Some(given) => HostRequest::AnswerJob { id: task()?, given },
                None => return Err(invalid_params(id, "`params.inputResponses` is missing")),
            },
            Self::Cancel => {
                HostRequest::CancelJob { id: task()?, if_ended: EndedJobCancelReply::Refusal }
            }
        })
    }
}

fn invalid_params(id: &RequestId, why: &str) -> McpError {
    McpError::invalid_params(Some(id.clone()), why)
}

/// Checks that a request about tasks declares the tasks extension.
pub(crate) fn check_declared(id: &RequestId, params: &RpcParams) -> Result<(), McpError> {
    if declares_extension(params) {
        return Ok(());
    }
    let why = format!("the request must declare the extension `{EXTENSION}`");
    Err(McpError::new(Some(id.clone()), MISSING_CAPABILITY, why)
        .with_data(json!({ "requiredCapabilities": required_capability() })))
}

/// Returns the client capability that tasks need.
pub(crate) fn required_capability() -> Value {
    json!({ "extensions": { EXTENSION: {} } })
}

/// Returns true if the request declares the tasks extension.
fn declares_extension(params: &RpcParams) -> bool {
    let capabilities = params.get("_meta").and_then(|meta| meta.get(META_CAPABILITIES));
    let extensions = capabilities.and_then(|capabilities| capabilities.get("extensions"));
    extensions.and_then(|extensions| extensions.get(EXTENSION)).is_some_and(Value::is_object)
}

/// Parses a number of milliseconds. `None` if it is invalid.
fn parse_millis(value: &Value) -> Option<Duration> {
    if let Some(whole) = value.as_u64() {
        return Some(Duration::from_millis(whole));
    }
    let some = value.as_f64().filter(|some| *some >= 0.0)?;
    Some(Duration::try_from_secs_f64(some / 1000.0).unwrap_or(Duration::MAX))
}

/// Creates the `_meta` that relates a message to `task`.
pub(crate) fn related_task_meta(task: JobId) -> Value {
    json!({ RELATED: { "taskId": task.to_string() } })
}

impl McpEncoder {
    /// Encodes the answer to a call that became an MCP task.
    pub(crate) fn task_created_reply(&self, job: &JobSnapshot) -> Reply {
        // The result and the questions are left to `tasks/get`.
        let TaskWithOutcome { task, stamp, .. } = self.task_details(job);
        match self.revision.tasks {
            TaskSupport::None | TaskSupport::Param => {
                success(&self.id, &json!({ "task": task, "_meta": related_task_meta(job.id) }))
            }
            TaskSupport::Extension => {
                let stamp = stamp.for_task_creation();
                success(&self.id, &TaskWithOutcome::without_outcome(task, stamp))
            }
        }
    }

    /// Encodes the answer to a request about the task that runs as `job`.
    pub(crate) fn task_reply(&self, about: TaskRequest, job: &JobSnapshot) -> Reply {
        match (about, self.revision.tasks) {
            (TaskRequest::Get, TaskSupport::None | TaskSupport::Param | TaskSupport::Extension)
            | (TaskRequest::Cancel, TaskSupport::None | TaskSupport::Param) => {
                success(&self.id, &self.task_details(job))
            }
            (TaskRequest::Cancel, TaskSupport::Extension) | (TaskRequest::Update, _) => {
                self.acknowledge_reply()
            }
            (TaskRequest::Result, _) if !job.state.is_terminal() => self.mismatched_answer_reply(),
            (TaskRequest::Result, _) => match self.job_outcome(job) {
                EncodedCallOutcome::Result(result) => success(&self.id, &result.with_task(job.id)),
                EncodedCallOutcome::Error(failure) => self.failure_reply(failure),
            },
            (TaskRequest::List, _) => self.mismatched_answer_reply(),
        }
    }

    /// Encodes a page of the list of tasks.
    pub(crate) fn task_list_reply(&self, page: &JobPage) -> Reply {
        /// Result of `tasks/list`.
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct TaskListResult<'a> {
            tasks: Vec<TaskWithOutcome<'a>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_cursor: Option<String>,
        }
        let tasks = page.jobs.iter().map(|job| self.task_details(job)).collect();
        success(
            &self.id,
            &TaskListResult { tasks, next_cursor: page.next.as_ref().map(cursor::encode) },
        )
    }

    /// Encodes the refusal of a request about MCP tasks.
    pub(crate) fn task_refusal(&self, about: TaskRequest, error: &CallError) -> Reply {
        match (error, about, self.revision.tasks) {
            // The task ended before it was cancelled, which is the result that the client wanted.
            (CallError::Conflict { .. }, TaskRequest::Cancel, TaskSupport::Extension) => {
                self.acknowledge_reply()
            }
            (
                CallError::Conflict { .. },
                TaskRequest::Cancel,
                TaskSupport::None | TaskSupport::Param,
            ) => self.failure_reply(invalid_params(
                &self.id,
                "the task has already ended and cannot be cancelled",
            )),
            (CallError::NotFound { .. }, TaskRequest::List, _) => self.failure_reply(
                invalid_params(&self.id, "the cursor has expired; list from the start"),
            ),
            (CallError::NotFound { .. }, _, _) => {
                self.failure_reply(invalid_params(&self.id, "unknown or expired task"))
            }
            (error, _, _) => self.protocol_error_reply(error),
        }
    }

    fn acknowledge_reply(&self) -> Reply {
        success(&self.id, &self.stamp(None))
    }

    /// Converts `job` to the task in a notification, encoded like the answer to `tasks/get`.
    pub(crate) fn detailed_task(&self, job: &JobSnapshot) -> Value {
        let mut task = exact_json::to_value(&self.task_details(job)).unwrap_or_default();
        if let Some(fields) = task.as_object_mut() {
            fields.retain(|name, _| name != "resultType" && name != "_meta");
        }
        task
    }

    fn task_details<'a>(&'a self, job: &'a JobSnapshot) -> TaskWithOutcome<'a> {
        let (status, result, error) = match (self.revision.tasks, job.state) {
            // In the extension, `failed` means a protocol error.
            (TaskSupport::Extension, JobState::Succeeded | JobState::Failed) => {
                match self.job_outcome(job) {
                    EncodedCallOutcome::Result(result) => ("completed", Some(result), None),
                    EncodedCallOutcome::Error(failure) => ("failed", None, Some(failure)),
                }
            }
            (TaskSupport::Extension, JobState::Queued | JobState::Running | JobState::Canceled)
            | (TaskSupport::None | TaskSupport::Param, _) => (job_status(job), None, None),
        };
        let input_requests = match self.revision.tasks {
            TaskSupport::Extension if has_questions(job) => {
                Some(questions::input_requests(&job.questions, self.revision))
            }
            TaskSupport::None | TaskSupport::Param | TaskSupport::Extension => None,
        };
        let task = McpTask::new(job, self.revision, status);
        let stamp = self.stamp(None);
        TaskWithOutcome { task, input_requests, result, error, stamp }
    }

    /// Encodes the outcome of an ended job as the result of the call.
    fn job_outcome<'a>(&'a self, job: &'a JobSnapshot) -> EncodedCallOutcome<'a> {
        match &job.outcome {
            Some(outcome) => self.encode_outcome(outcome.as_ref()),
            None => {
                let message = "the outcome of the task is unknown".into();
                self.encode_outcome(Err(&CallError::Failed { message, cause: String::new() }))
            }
        }
    }
}

/// Returns true if the job waits for answers to its questions.
fn has_questions(job: &JobSnapshot) -> bool {
    !job.questions.is_empty() && !job.state.is_terminal()
}

fn job_status(job: &JobSnapshot) -> &'static str {
    match job.state {
        JobState::Queued | JobState::Running if has_questions(job) => ASKING,
        JobState::Queued | JobState::Running => WORKING,
        JobState::Succeeded => "completed",
        JobState::Failed => "failed",
        JobState::Canceled => "cancelled",
    }
}

/// MCP's JSON for a task with its outcome.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskWithOutcome<'a> {
    #[serde(flatten)]
    task: McpTask<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_requests: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<McpCallResult<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<McpError>,
    #[serde(flatten)]
    stamp: CommonResultMembers<'a>,
}

impl<'a> TaskWithOutcome<'a> {
    /// Creates MCP's JSON for a task without its outcome.
    fn without_outcome(task: McpTask<'a>, stamp: CommonResultMembers<'a>) -> Self {
        Self { task, input_requests: None, result: None, error: None, stamp }
    }
}

/// MCP's JSON for a job as a task, without its outcome.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct McpTask<'a> {
    task_id: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_message: Option<Cow<'a, str>>,
    created_at: String,
    last_updated_at: String,
    #[serde(flatten)]
    times: TaskRetentionTimes,
}

/// The retention time of a task and its polling interval, in milliseconds, under the member names
/// of a protocol revision.
#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum TaskRetentionTimes {
    Param { ttl: u64, poll_interval: u64 },
    Extension { ttl_ms: u64, poll_interval_ms: u64 },
}

impl<'a> McpTask<'a> {
    fn new(job: &'a JobSnapshot, revision: &McpRevision, status: &'static str) -> Self {
        let ttl = u64::try_from(job.keep_for.as_millis()).unwrap_or(u64::MAX);
        let times = match revision.tasks {
            TaskSupport::None | TaskSupport::Param => {
                TaskRetentionTimes::Param { ttl, poll_interval: POLL_MS }
            }
            TaskSupport::Extension => {
                TaskRetentionTimes::Extension { ttl_ms: ttl, poll_interval_ms: POLL_MS }
            }
        };
        Self {
            task_id: job.id.to_string(),
            status,
            status_message: status_message(job),
            created_at: format!("{:.3}", job.created),
            last_updated_at: format!("{:.3}", job.updated),
            times,
        }
    }
}

/// Returns the status message of a job for its task.
fn status_message(job: &JobSnapshot) -> Option<Cow<'_, str>> {
    match (job.state, &job.outcome) {
        (JobState::Queued | JobState::Running, _) => job.message.as_deref().map(Cow::Borrowed),
        (JobState::Succeeded | JobState::Failed | JobState::Canceled, Some(Err(error))) => {
            Some(error_message(error).into())
        }
        (JobState::Failed, Some(Ok(output))) => {
            let note = output.text.note.as_deref();
            Some(note.unwrap_or("the program of the task failed").into())
        }
        (JobState::Succeeded | JobState::Failed | JobState::Canceled, Some(Ok(_)) | None) => None,
    }
}

/// The encoder for the events of a task, sent on the connection that created the task.
pub(crate) struct TaskEventEncoder {
    pub(crate) revision: &'static McpRevision,
    pub(crate) notifications: RequestedNotifications,
    /// The task's job as it was when the task was created.
    pub(crate) job: JobSnapshot,
}

impl TaskEventEncoder {
    /// Encodes a notification of a task's status at the time of `event`.
    fn encode_status(&self, status: &'static str, event: &JobEvent) -> Bytes {
        let job = JobSnapshot { updated: event.at, message: None, ..self.job.clone() };
        notification("notifications/tasks/status", &McpTask::new(&job, self.revision, status))
    }
}

impl JobEventEncoder for TaskEventEncoder {
    fn encode_start(&self, _job: Option<&JobSnapshot>) -> Option<Bytes> {
        // The answer to the call already contained the task.
        None
    }

    fn encode_item(&self, what: &JobStreamItem) -> Option<Bytes> {
        match what {
            JobStreamItem::Event(event) => match &event.kind {
                JobEventKind::Progress { fraction, message } => {
                    self.notifications.encode_progress(*fraction, Some(1.0), message.as_deref())
                }
                JobEventKind::Log { level, message } => {
                    self.notifications.encode_log(*level, None, &json!(message))
                }
                JobEventKind::Asks { open: 0 } => Some(self.encode_status(WORKING, event)),
                JobEventKind::Asks { .. } => Some(self.encode_status(ASKING, event)),
                // The status stays `working`, and the end is reported by `JobStreamItem::Ended`.
                JobEventKind::Queued
                | JobEventKind::Started { .. }
                | JobEventKind::Output { .. }
                | JobEventKind::Artefact(_)
                | JobEventKind::Finished { .. } => None,
            },
            JobStreamItem::Ended(job) => {
                let task = McpTask::new(job, self.revision, job_status(job));
                Some(notification("notifications/tasks/status", &task))
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
