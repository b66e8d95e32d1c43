//! `jobs.cancel`: stops a job.

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::{Handle, Told, refusal};

/// Tool that stops jobs.
pub(super) struct Cancel(pub(super) Handle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// The job's id.
    job_id: String,
}

impl Tool for Cancel {
    const NAME: &'static str = "jobs.cancel";
    const TITLE: &'static str = "Cancel job";
    const ABOUT: &'static str = "Stops a job with every program it runs, and tells how it is then. \
        A job that has ended cannot be cancelled.";
    const EFFECTS: Effects = Effects::Changes;
    type Input = Input;
    type Output = Told;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Told, ToolError> {
        let job = self.0.jobs()?.cancel(&ctx.caller, &input.job_id).await;
        job.map(Told::of).map_err(|err| refusal(err, "/job_id"))
    }

    fn text(output: &Told) -> Text {
        Text::body(output.line())
    }
}
