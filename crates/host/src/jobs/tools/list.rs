//! `jobs.list`: lists the caller's jobs, newest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, JobId, Text, Tool, ToolError};

use super::{Handle, Told, refusal};

/// Number of jobs in one page.
const PAGE: usize = 50;

/// Tool that lists jobs.
pub(super) struct List(pub(super) Handle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// Last job of the previous page; the newest by default.
    #[serde(default)]
    after: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Output {
    /// The jobs, newest first, without results.
    jobs: Vec<Told>,
    /// Value of `after` for the next page; null on the last page.
    next: Option<String>,
}

impl Tool for List {
    const NAME: &'static str = "jobs.list";
    const TITLE: &'static str = "List jobs";
    const ABOUT: &'static str = "Lists your jobs, newest first, fifty at a time.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let after = input.after.map(|id| id.parse::<JobId>()).transpose();
        let after = after.map_err(|err| ToolError::invalid("/after", err.to_string()))?;
        let page = self.0.jobs()?.list(Some(&ctx.caller), after, PAGE).await;
        let page = page.map_err(|err| refusal(err, "/after"))?;
        Ok(Output {
            jobs: page.jobs.into_iter().map(Told::of).collect(),
            next: page.next.map(|id| id.to_string()),
        })
    }

    fn text(output: &Output) -> Text {
        let lines: Vec<_> = output.jobs.iter().map(Told::line).collect();
        let text = Text::body(lines.join("\n"));
        match &output.next {
            Some(next) => text.with_note(format!("more with `after`: `{next}`")),
            None if output.jobs.is_empty() => text.with_note("no jobs"),
            None => text,
        }
    }
}
