//! `ci.build`: builds a project with its own build tool (Cargo, npm, Go, make and so on).

use std::time::Duration;

use toolgate_contract::{
    Effects, JobSupport, ResultText, Tool, ToolContext, ToolError, ToolRunStatus,
};

use super::CiContext;
use super::build_tool::ProjectAction;
use super::project_input::CiProjectInput;
use super::report::CiReport;

/// The `ci.build` tool.
pub(super) struct BuildProject(pub(super) CiContext);

impl Tool for BuildProject {
    const NAME: &'static str = "ci.build";
    const TITLE: &'static str = "Build project";
    const DESCRIPTION: &'static str = "Build a project. Returns errors by file and line.";
    const EFFECTS: Effects = Effects::Runs;
    const STORES_OUTPUT: bool = true;
    const ALIASES: &'static [(&'static str, &'static str)] = super::PROJECT_ALIASES;
    const RARE_ARGUMENTS: &'static [&'static str] = &["kind", "timeout_ms", "max_output_bytes"];
    const RULED_AS: Option<&'static str> = super::RULED_AS;
    const DEADLINE: Option<Duration> = super::DEADLINE;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = CiProjectInput;
    type Output = CiReport;

    async fn run(&self, ctx: &ToolContext, input: CiProjectInput) -> Result<CiReport, ToolError> {
        self.0.run_action(ctx, ProjectAction::Build, input, None).await
    }

    fn result_text(output: &CiReport) -> ResultText {
        output.text()
    }

    fn ending(output: &CiReport) -> ToolRunStatus {
        output.ending()
    }
}
