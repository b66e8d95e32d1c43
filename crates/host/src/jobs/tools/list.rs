//! `jobs.list`: lists the caller's jobs, newest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{Effects, JobId, ResultText, Tool, ToolContext, ToolError};

use super::{JobView, JobsToolHandle, tool_error};

/// Number of jobs in one page.
const PAGE_SIZE: usize = 50;

/// Tool `jobs.list`, which lists the caller's jobs.
pub(super) struct ListJobs(pub(super) JobsToolHandle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListJobsInput {
    /// `next` value of the previous page.
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListJobsOutput {
    /// The jobs, newest first, without results.
    jobs: Vec<JobView>,
    /// Value of `cursor` for the next page; null on the last page.
    next: Option<String>,
}

impl Tool for ListJobs {
    const NAME: &'static str = "jobs.list";
    const TITLE: &'static str = "List jobs";
    const DESCRIPTION: &'static str = "List your jobs, newest first.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = ListJobsInput;
    type Output = ListJobsOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let after = input.cursor.map(|id| id.parse::<JobId>()).transpose();
        let after = after.map_err(|err| ToolError::invalid("/cursor", err.to_string()))?;
        let page = self.0.jobs()?.list(Some(&ctx.caller), after, PAGE_SIZE).await;
        let page = page.map_err(|err| tool_error(err, "/cursor"))?;
        Ok(ListJobsOutput {
            jobs: page.jobs.into_iter().map(JobView::from_job).collect(),
            next: page.next.map(|id| id.to_string()),
        })
    }

    fn result_text(output: &ListJobsOutput) -> ResultText {
        // A program chooses its message, which must not look like the line of another job.
        let line = |job: &JobView| escape_line(&job.summary_line()).into_owned();
        let lines: Vec<_> = output.jobs.iter().map(line).collect();
        let text = ResultText::from_body(lines.join("\n"));
        match &output.next {
            Some(next) => text.with_note(format!("more with `cursor`: `{next}`")),
            None if output.jobs.is_empty() => text.with_note("no jobs"),
            None => text,
        }
    }
}
