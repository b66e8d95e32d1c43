//! `jobs.cancel`: stops a job.

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::{JobView, JobsHandle, tool_error};

/// Tool that stops jobs.
pub(super) struct CancelJob(pub(super) JobsHandle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelJobInput {
    /// The job's id.
    job_id: String,
}

impl Tool for CancelJob {
    const NAME: &'static str = "jobs.cancel";
    const TITLE: &'static str = "Cancel job";
    const DESCRIPTION: &'static str = "Stop a job and all programs it runs, and return its state. A job \
        that has ended cannot be cancelled.";
    const EFFECTS: Effects = Effects::Changes;
    type Input = CancelJobInput;
    type Output = JobView;

    async fn run(&self, ctx: &ToolContext, input: CancelJobInput) -> Result<JobView, ToolError> {
        let job = self.0.jobs()?.cancel(&ctx.caller, &input.job_id).await;
        job.map(JobView::from_job).map_err(|err| tool_error(err, "/job_id"))
    }

    fn result_text(output: &JobView) -> ResultText {
        ResultText::from_body(output.summary_line())
    }
}
