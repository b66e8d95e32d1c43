//! `jobs.cancel`: stops a job.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toolgate_contract::{CallError, Effects, JobState, ResultText, Tool, ToolContext, ToolError};

use super::{JOB_ID, JobView, JobsToolHandle, tool_error};

/// Tool `jobs.cancel`, which stops a job.
pub(super) struct CancelJob(pub(super) JobsToolHandle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelJobInput {
    /// The job's id.
    job_id: String,
}

impl Tool for CancelJob {
    const NAME: &'static str = "jobs.cancel";
    const TITLE: &'static str = "Cancel job";
    const DESCRIPTION: &'static str = "Stop a job and all programs that it runs.";
    const EFFECTS: Effects = Effects::Changes;
    const ALIASES: &'static [(&'static str, &'static str)] = &[("id", "job_id")];
    type Input = CancelJobInput;
    type Output = JobView;

    async fn run(&self, ctx: &ToolContext, input: CancelJobInput) -> Result<JobView, ToolError> {
        let jobs = self.0.jobs()?;
        let mut job = jobs.cancel(&ctx.caller, &input.job_id).await;
        if let Err(CallError::Conflict { details, .. }) = &job
            && details["state"] == json!(JobState::Canceled)
        {
            // A repeated call has the result that the caller wanted.
            job = jobs.get(Some(&ctx.caller), &input.job_id).await;
        }
        job.map(JobView::from_job).map_err(|err| tool_error(err, JOB_ID))
    }

    fn result_text(output: &JobView) -> ResultText {
        ResultText::from_body(output.summary_line())
    }
}
