//! `ci.restore`: fetches a project's dependencies.

use std::time::Duration;

use toolgate_contract::{
    Effects, JobSupport, ResultText, Tool, ToolContext, ToolError, ToolRunStatus,
};

use super::CiContext;
use super::build_tool::ProjectAction;
use super::project_input::CiProjectInput;
use super::report::CiReport;

/// The `ci.restore` tool.
pub(super) struct RestoreProject(pub(super) CiContext);

impl Tool for RestoreProject {
    const NAME: &'static str = "ci.restore";
    const TITLE: &'static str = "Restore project";
    const DESCRIPTION: &'static str = "Fetch a project's dependencies with its package manager.";
    const EFFECTS: Effects = Effects::Runs;
    const STORES_OUTPUT: bool = true;
    const ALIASES: &'static [(&'static str, &'static str)] = super::PROJECT_ALIASES;
    const RARE_ARGUMENTS: &'static [&'static str] =
        &["kind", "timeout_ms", "max_output_bytes", "args"];
    const RULED_AS: Option<&'static str> = super::RULED_AS;
    const DEADLINE: Option<Duration> = super::DEADLINE;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = CiProjectInput;
    type Output = CiReport;

    async fn run(&self, ctx: &ToolContext, input: CiProjectInput) -> Result<CiReport, ToolError> {
        self.0.run_action(ctx, ProjectAction::Restore, input, None).await
    }

    fn result_text(output: &CiReport) -> ResultText {
        output.text()
    }

    fn ending(output: &CiReport) -> ToolRunStatus {
        output.ending()
    }
}
