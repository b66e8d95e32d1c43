//! `ci.lint`: runs a project's linter and reports its findings by file and line.

use std::time::Duration;

use toolgate_contract::{AsJob, Ctx, Effects, Ending, Text, Tool, ToolError};

use super::Ci;
use super::kind::Verb;
use super::report::Report;
use super::verb::Input;

/// The `ci.lint` tool.
pub(super) struct Lint(pub(super) Ci);

impl Tool for Lint {
    const NAME: &'static str = "ci.lint";
    const TITLE: &'static str = "Lint project";
    const ABOUT: &'static str =
        "Runs the linter of a project of the workspace and tells what it found by file and line.";
    const EFFECTS: Effects = Effects::Runs;
    const RULED_AS: Option<&'static str> = super::RULED_AS;
    const DEADLINE: Option<Duration> = super::DEADLINE;
    const JOB: AsJob = AsJob::Rather;
    type Input = Input;
    type Output = Report;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Report, ToolError> {
        self.0.work(ctx, Verb::Lint, input, None).await
    }

    fn text(output: &Report) -> Text {
        output.text()
    }

    fn ending(output: &Report) -> Ending {
        output.ending()
    }
}
