//! `jobs.get`: returns one job, now or when it has ended.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::timeout;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::{JobView, JobsHandle, tool_error};

/// Longest wait of a call in milliseconds.
const WAIT_MS_MAX: u64 = 50_000;

/// Tool that returns jobs.
pub(super) struct GetJob(pub(super) JobsHandle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetJobInput {
    /// The job's id.
    job_id: String,
    /// Longest wait for its end in milliseconds; 0 by default.
    #[serde(default)]
    #[schemars(range(max = WAIT_MS_MAX))]
    wait_ms: u64,
}

impl Tool for GetJob {
    const NAME: &'static str = "jobs.get";
    const TITLE: &'static str = "Get job";
    const DESCRIPTION: &'static str = "Get a job's state and progress and, once it has ended, its result \
        or error and the files it left. Set `wait_ms` to wait for its end instead of polling.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = GetJobInput;
    type Output = JobView;

    async fn run(&self, ctx: &ToolContext, input: GetJobInput) -> Result<JobView, ToolError> {
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
        job.map(JobView::from_job).map_err(|err| tool_error(err, "/job_id"))
    }

    fn result_text(output: &JobView) -> ResultText {
        let result = output.result.as_ref().map(|result| format!("\n{result:#}"));
        ResultText::from_body(output.summary_line() + &result.unwrap_or_default())
    }
}
