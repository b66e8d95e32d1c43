//! `ci.restore`: fetches a project's dependencies.

use std::time::Duration;

use toolgate_contract::{AsJob, Ctx, Effects, Ending, Text, Tool, ToolError};

use super::Ci;
use super::kind::Verb;
use super::report::Report;
use super::verb::Input;

/// The `ci.restore` tool.
pub(super) struct Restore(pub(super) Ci);

impl Tool for Restore {
    const NAME: &'static str = "ci.restore";
    const TITLE: &'static str = "Restore project";
    const ABOUT: &'static str = "Fetches what a project of the workspace depends on, by its own \
        package manager. What pip installs goes into a virtual environment: the project's own \
        (`.venv`), or the one the server was started in; without either it is refused.";
    const EFFECTS: Effects = Effects::Runs;
    const RULED_AS: Option<&'static str> = super::RULED_AS;
    const DEADLINE: Option<Duration> = super::DEADLINE;
    const JOB: AsJob = AsJob::Rather;
    type Input = Input;
    type Output = Report;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Report, ToolError> {
        self.0.work(ctx, Verb::Restore, input, None).await
    }

    fn text(output: &Report) -> Text {
        output.text()
    }

    fn ending(output: &Report) -> Ending {
        output.ending()
    }
}
