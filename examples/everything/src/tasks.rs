//! Tools that run as jobs: some may, some rather do, some must.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;
use toolgate::ServerBuilder;
use toolgate_contract::{
    ClientQuestion, ClientQuestions, ContentOnly, Effects, JobSupport, NoInput, PersonChoice, Tool,
    ToolContext, ToolError,
};

use crate::rounds::{field, one_field};

pub(crate) fn add(offer: ServerBuilder) -> ServerBuilder {
    offer
        .tool(Greet)
        .tool(SlowCompute)
        .tool(FailingJob)
        .tool(ProtocolErrorJob)
        .tool(ConfirmDelete)
        .tool(MultiInput)
        .tool(WithTask)
}

struct Greet;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Named {
    /// Whom to greet.
    name: String,
}

impl Tool for Greet {
    const NAME: &'static str = "greet";
    const TITLE: &'static str = "Greet";
    const DESCRIPTION: &'static str = "Says hello, at once.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Never;
    type Input = Named;
    type Output = ContentOnly;

    async fn run(&self, _ctx: &ToolContext, input: Named) -> Result<ContentOnly, ToolError> {
        Ok(ContentOnly::text(format!("Hello, {}!", input.name)))
    }
}

struct SlowCompute;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Slow {
    /// How long it takes.
    #[schemars(range(min = 0, max = 3600))]
    seconds: f64,
    /// What to call it.
    #[serde(default)]
    label: String,
}

impl Tool for SlowCompute {
    const NAME: &'static str = "slow_compute";
    const TITLE: &'static str = "Slow computation";
    const DESCRIPTION: &'static str = "Takes as long as it is told to.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = Slow;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, input: Slow) -> Result<ContentOnly, ToolError> {
        tokio::select! {
            () = sleep(Duration::from_secs_f64(input.seconds)) => {}
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        }
        Ok(ContentOnly::text(format!("Computed {} in {} s", input.label, input.seconds)))
    }
}

struct FailingJob;

impl Tool for FailingJob {
    const NAME: &'static str = "failing_job";
    const TITLE: &'static str = "Failing job";
    const DESCRIPTION: &'static str = "Fails, after a while.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Required;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        tokio::select! {
            () = sleep(Duration::from_secs(1)) => {}
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        }
        Err(ToolError::failed("This job fails every time"))
    }
}

struct ProtocolErrorJob;

impl Tool for ProtocolErrorJob {
    const NAME: &'static str = "protocol_error_job";
    const TITLE: &'static str = "Protocol error";
    const DESCRIPTION: &'static str = "Ends with an error of the protocol's own.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        Err(ToolError::refused(-32603, "This job is refused by the protocol every time"))
    }
}

struct ConfirmDelete;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filename {
    /// Which file; nothing is deleted in truth.
    filename: String,
}

impl Tool for ConfirmDelete {
    const NAME: &'static str = "confirm_delete";
    const TITLE: &'static str = "Confirm a deletion";
    const DESCRIPTION: &'static str = "Asks whether a file is to be deleted, and deletes none.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = Filename;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, input: Filename) -> Result<ContentOnly, ToolError> {
        let Filename { filename } = input;
        let form = one_field("confirm", "boolean");
        let choice = ctx.ask_form("confirm", format!("Delete {filename}?"), form).await?;
        let done = match choice {
            PersonChoice::Accepted(content) if content["confirm"] == true => "Deleted",
            PersonChoice::Accepted(_) | PersonChoice::Declined | PersonChoice::Canceled => "Kept",
        };
        Ok(ContentOnly::text(format!("{done} {filename}")))
    }
}

struct MultiInput;

impl Tool for MultiInput {
    const NAME: &'static str = "multi_input";
    const TITLE: &'static str = "Two questions";
    const DESCRIPTION: &'static str = "Asks two things at once, which can be answered one by one.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        let name = ClientQuestion::Form {
            message: "What is your name?".to_owned(),
            schema: one_field("name", "string"),
        };
        let confirm = ClientQuestion::Form {
            message: "Shall it go on?".to_owned(),
            schema: one_field("confirm", "boolean"),
        };
        let questions =
            ClientQuestions::from([("name".to_owned(), name), ("confirm".to_owned(), confirm)]);
        let given = ctx.asker.ask(questions).await?;
        Ok(ContentOnly::text(format!("Answered: {}", given.len())))
    }
}

/// A tool that asks before its job is made, and goes on with the answer in the job.
struct WithTask;

impl WithTask {
    async fn name(ctx: &ToolContext) -> Result<String, ToolError> {
        let form = one_field("name", "string");
        let choice = ctx.ask_form("user_name", "What is your name?", form).await?;
        field(&choice, "name").ok_or_else(|| ToolError::failed("it needs a name to greet"))
    }
}

impl Tool for WithTask {
    const NAME: &'static str = "test_tool_with_task";
    const TITLE: &'static str = "Asks, then runs as a job";
    const DESCRIPTION: &'static str = "Asks for a name, and greets it in a job.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Required;
    const HAS_PREPARE: bool = true;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn prepare(&self, ctx: &ToolContext, _input: &NoInput) -> Result<(), ToolError> {
        Self::name(ctx).await.map(|_| ())
    }

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        let name = Self::name(ctx).await?;
        Ok(ContentOnly::text(format!("Hello, {name}!")))
    }
}
