//! `jobs.get`: returns one job, now or when it has ended.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::timeout;
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::{Handle, Told, refusal};

/// Longest wait of a call in milliseconds.
const WAIT_MS_MAX: u64 = 50_000;

/// Tool that returns jobs.
pub(super) struct Get(pub(super) Handle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// The job's id.
    job_id: String,
    /// Longest wait for its end in milliseconds; 0 by default.
    #[serde(default)]
    #[schemars(range(max = WAIT_MS_MAX))]
    wait_ms: u64,
}

impl Tool for Get {
    const NAME: &'static str = "jobs.get";
    const TITLE: &'static str = "Get job";
    const ABOUT: &'static str = "Tells how a job is: its state, how far it is, and once it has \
        ended its result or error and the files it left. Set `wait_ms` to wait for its end \
        instead of asking again and again.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = Input;
    type Output = Told;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Told, ToolError> {
        let jobs = self.0.jobs()?;
        let wait = Duration::from_millis(input.wait_ms);
        let ended = timeout(wait, jobs.ended(&ctx.caller, &input.job_id, &ctx.asker));
        let job = tokio::select! {
            ended = ended => match ended {
                Ok(ended) => ended,
                Err(_elapsed) => jobs.get(Some(&ctx.caller), &input.job_id).await,
            },
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        };
        job.map(Told::of).map_err(|err| refusal(err, "/job_id"))
    }

    fn text(output: &Told) -> Text {
        let result = output.result.as_ref().map(|result| format!("\n{result:#}"));
        Text::body(output.line() + &result.unwrap_or_default())
    }
}
