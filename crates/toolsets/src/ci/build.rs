//! `ci.build`: builds a project with its own build tool (Cargo, npm, Go, make and so on).

use std::time::Duration;

use toolgate_contract::{AsJob, Ctx, Effects, Ending, Text, Tool, ToolError};

use super::Ci;
use super::kind::Verb;
use super::report::Report;
use super::verb::Input;

/// The `ci.build` tool.
pub(super) struct Build(pub(super) Ci);

impl Tool for Build {
    const NAME: &'static str = "ci.build";
    const TITLE: &'static str = "Build project";
    const ABOUT: &'static str = "Builds a project of the workspace with what it is built with (Cargo, npm, Go, make and so on) and tells what went wrong by file and line instead of pages of log.";
    const EFFECTS: Effects = Effects::Runs;
    const RULED_AS: Option<&'static str> = super::RULED_AS;
    const DEADLINE: Option<Duration> = super::DEADLINE;
    const JOB: AsJob = AsJob::Rather;
    type Input = Input;
    type Output = Report;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Report, ToolError> {
        self.0.work(ctx, Verb::Build, input, None).await
    }

    fn text(output: &Report) -> Text {
        output.text()
    }

    fn ending(output: &Report) -> Ending {
        output.ending()
    }
}
