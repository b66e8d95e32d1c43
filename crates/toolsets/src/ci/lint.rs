//! `ci.lint`: runs a project's linter and reports its findings by file and line.

use std::time::Duration;

use toolgate_contract::{
    Effects, JobSupport, ResultText, Tool, ToolContext, ToolError, ToolRunStatus,
};

use super::CiContext;
use super::build_tool::ProjectAction;
use super::project_input::CiProjectInput;
use super::report::CiReport;

/// The `ci.lint` tool.
pub(super) struct LintProject(pub(super) CiContext);

impl Tool for LintProject {
    const NAME: &'static str = "ci.lint";
    const TITLE: &'static str = "Lint project";
    const DESCRIPTION: &'static str = "Run a project's linter. Returns findings by file and line.";
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
        self.0.run_action(ctx, ProjectAction::Lint, input, None).await
    }

    fn result_text(output: &CiReport) -> ResultText {
        output.text()
    }

    fn ending(output: &CiReport) -> ToolRunStatus {
        output.ending()
    }
}
