//! `jobs.get`: returns one job, now or when it has ended.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;
use toolgate_contract::{
    ContentBlock, Effects, JobSnapshot, LazySchema, ResultText, Tool, ToolContext, ToolError,
    TypedToolResult, exact_json,
};

use super::{JOB_ID, JobView, JobsToolHandle, tool_error};

/// Longest time for which one call of `jobs.get` waits, in milliseconds.
const WAIT_MS_MAX: u64 = 50_000;

/// Tool `jobs.get`, which returns one job.
pub(super) struct GetJob(pub(super) JobsToolHandle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetJobInput {
    /// The job's id.
    job_id: String,
    /// Time to wait for the job's end.
    #[serde(default)]
    #[schemars(range(max = WAIT_MS_MAX))]
    wait_ms: u64,
}

impl Tool for GetJob {
    const NAME: &'static str = "jobs.get";
    const TITLE: &'static str = "Get job";
    const DESCRIPTION: &'static str = "Show a job's state, and its result if it has ended.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[("id", "job_id")];
    type Input = GetJobInput;
    type Output = JobWithResult;

    async fn run(&self, ctx: &ToolContext, input: GetJobInput) -> Result<JobWithResult, ToolError> {
        let jobs = self.0.jobs()?;
        let wait = Duration::from_millis(input.wait_ms);
        let ended = timeout(wait, jobs.wait_until_ended(&ctx.caller, &input.job_id, &ctx.asker));
        let job = tokio::select! {
            ended = ended => match ended {
                Ok(ended) => ended,
                Err(_elapsed) => jobs.get(Some(&ctx.caller), &input.job_id).await,
            },
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        };
        job.map(JobWithResult::from_job).map_err(|err| tool_error(err, JOB_ID))
    }
}

/// A job as `jobs.get` returns it, with the text and the content that a direct call of its tool
/// would have returned.
pub(super) struct JobWithResult {
    view: JobView,
    /// Text of the job's result, once the job has ended with a result.
    text: Option<ResultText>,
    content: Vec<ContentBlock>,
}

impl JobWithResult {
    fn from_job(job: JobSnapshot) -> Self {
        let (text, content) = match &job.outcome {
            Some(Ok(output)) => (Some(output.text.clone()), output.content.clone()),
            Some(Err(_)) | None => (None, Vec::new()),
        };
        Self { view: JobView::from_job(job), text, content }
    }
}

impl TypedToolResult for JobWithResult {
    fn schema() -> Option<LazySchema> {
        Some(LazySchema::for_type::<JobView>())
    }

    fn value(&self) -> Result<Value, serde_json::Error> {
        exact_json::to_value(&self.view)
    }

    fn text(&self) -> ResultText {
        let summary = self.view.summary_line();
        let Some(text) = &self.text else { return ResultText::from_body(summary) };
        let note = text.note.as_ref().map(|note| format!("{note}; {summary}"));
        ResultText::from_body(&text.body).with_note(note.unwrap_or(summary))
    }

    fn content(self) -> Vec<ContentBlock> {
        self.content
    }
}
