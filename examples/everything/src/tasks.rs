//! Example tools that run as jobs: never, if the client prefers a job, or always.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;
use toolgate_contract::{
    ClientQuestion, ClientQuestions, Effects, ElicitationAnswer, JobSupport, NoInput, Tool,
    ToolContext, ToolError, UnstructuredResult,
};
use toolgate_service::ServerBuilder;

use crate::rounds::{field, one_field};

/// Adds the tools of this module to `builder`.
pub(crate) fn add(builder: ServerBuilder) -> ServerBuilder {
    builder
        .tool(GreetTool)
        .tool(SlowComputeTool)
        .tool(FailingJobTool)
        .tool(ProtocolErrorJobTool)
        .tool(ConfirmDeleteTool)
        .tool(TwoQuestionsJobTool)
        .tool(QuestionBeforeTaskTool)
}

struct GreetTool;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GreetInput {
    /// Name of the person to greet.
    name: String,
}

impl Tool for GreetTool {
    const NAME: &'static str = "greet";
    const TITLE: &'static str = "Greet";
    const DESCRIPTION: &'static str = "Returns a greeting at once.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Never;
    type Input = GreetInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, input: GreetInput) -> Result<Self::Output, ToolError> {
        Ok(UnstructuredResult::text(format!("Hello, {}!", input.name)))
    }
}

struct SlowComputeTool;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SlowComputeInput {
    /// Duration in seconds.
    #[schemars(range(min = 0, max = 3600))]
    seconds: f64,
    /// Label in the result.
    #[serde(default)]
    label: String,
}

impl Tool for SlowComputeTool {
    const NAME: &'static str = "slow_compute";
    const TITLE: &'static str = "Slow computation";
    const DESCRIPTION: &'static str = "Takes the given time.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = SlowComputeInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        ctx.run_unless_canceled(sleep(Duration::from_secs_f64(input.seconds))).await?;
        Ok(UnstructuredResult::text(format!("Computed {} in {} s", input.label, input.seconds)))
    }
}

struct FailingJobTool;

impl Tool for FailingJobTool {
    const NAME: &'static str = "failing_job";
    const TITLE: &'static str = "Failing job";
    const DESCRIPTION: &'static str = "Fails after one second.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Required;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        ctx.run_unless_canceled(sleep(Duration::from_secs(1))).await?;
        Err(ToolError::failed("This job always fails"))
    }
}

struct ProtocolErrorJobTool;

impl Tool for ProtocolErrorJobTool {
    const NAME: &'static str = "protocol_error_job";
    const TITLE: &'static str = "Protocol error";
    const DESCRIPTION: &'static str = "Fails with a protocol error.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        Err(ToolError::refused(-32603, "This job always fails with a protocol error"))
    }
}

struct ConfirmDeleteTool;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConfirmDeleteInput {
    /// Path of the file. Nothing is really deleted.
    filename: String,
}

impl Tool for ConfirmDeleteTool {
    const NAME: &'static str = "confirm_delete";
    const TITLE: &'static str = "Confirm a deletion";
    const DESCRIPTION: &'static str =
        "Asks for confirmation to delete a file, and deletes nothing.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = ConfirmDeleteInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let ConfirmDeleteInput { filename } = input;
        let form = one_field("confirm", "boolean");
        let choice = ctx.ask_form("confirm", format!("Delete {filename}?"), form).await?;
        let done = match choice {
            ElicitationAnswer::Accepted(content) if content["confirm"] == true => "Deleted",
            ElicitationAnswer::Accepted(_)
            | ElicitationAnswer::Declined
            | ElicitationAnswer::Canceled => "Kept",
        };
        Ok(UnstructuredResult::text(format!("{done} {filename}")))
    }
}

struct TwoQuestionsJobTool;

impl Tool for TwoQuestionsJobTool {
    const NAME: &'static str = "multi_input";
    const TITLE: &'static str = "Two questions";
    const DESCRIPTION: &'static str =
        "Asks two questions at once, which can be answered one by one.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let name = ClientQuestion::Form {
            message: "What is your name?".to_owned(),
            schema: one_field("name", "string"),
        };
        let confirm = ClientQuestion::Form {
            message: "Continue?".to_owned(),
            schema: one_field("confirm", "boolean"),
        };
        let questions =
            ClientQuestions::from([("name".to_owned(), name), ("confirm".to_owned(), confirm)]);
        let answers = ctx.asker.ask(questions).await?;
        Ok(UnstructuredResult::text(format!("Answered: {}", answers.len())))
    }
}

/// Tool that asks a question before its job is created, and uses the answer in the job.
struct QuestionBeforeTaskTool;

impl QuestionBeforeTaskTool {
    /// Asks the person for a name. If the call already has an answer to this question, returns that
    /// answer.
    async fn ask_name(ctx: &ToolContext) -> Result<String, ToolError> {
        let form = one_field("name", "string");
        let choice = ctx.ask_form("user_name", "What is your name?", form).await?;
        field(&choice, "name").ok_or_else(|| ToolError::failed("no name was given to greet"))
    }
}

impl Tool for QuestionBeforeTaskTool {
    const NAME: &'static str = "test_tool_with_task";
    const TITLE: &'static str = "Asks, then runs as a job";
    const DESCRIPTION: &'static str = "Asks for a name, and returns a greeting in a job.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Required;
    const HAS_PREPARE: bool = true;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn prepare(&self, ctx: &ToolContext, _input: &NoInput) -> Result<(), ToolError> {
        Self::ask_name(ctx).await.map(|_| ())
    }

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let name = Self::ask_name(ctx).await?;
        Ok(UnstructuredResult::text(format!("Hello, {name}!")))
    }
}
