//! Tools that say something while they run, or of what changes.

use std::time::Duration;

use tokio::time::sleep;
use toolgate::ServerBuilder;
use toolgate_contract::{
    ChangeFeed, ContentOnly, Effects, LogLevel, NoInput, ServerChange, Tool, ToolContext, ToolError,
};

/// Long enough for a client to tell one thing from the next.
const MOMENT: Duration = Duration::from_millis(50);

pub(crate) fn add(offer: ServerBuilder, changes: &ChangeFeed) -> ServerBuilder {
    offer
        .tool(Logging)
        .tool(LogsOnce)
        .tool(Progress)
        .tool(Reconnection)
        .tool(ToolChange(changes.clone()))
        .tool(PromptChange(changes.clone()))
}

struct Logging;

impl Tool for Logging {
    const NAME: &'static str = "test_tool_with_logging";
    const TITLE: &'static str = "Logging";
    const DESCRIPTION: &'static str = "Says three things while it runs.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        ctx.log(LogLevel::Info, "Tool execution started");
        sleep(MOMENT).await;
        ctx.log(LogLevel::Info, "Tool processing data");
        sleep(MOMENT).await;
        ctx.log(LogLevel::Info, "Tool execution completed");
        Ok(ContentOnly::text("Tool with logging executed successfully"))
    }
}

struct LogsOnce;

impl Tool for LogsOnce {
    const NAME: &'static str = "test_logging_tool";
    const TITLE: &'static str = "Logging to whoever asks";
    const DESCRIPTION: &'static str = "Says one thing, to clients that want to hear it.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        ctx.log(LogLevel::Info, "The logging tool was called");
        Ok(ContentOnly::text("Logged, for whoever asked to hear it"))
    }
}

struct Progress;

impl Tool for Progress {
    const NAME: &'static str = "test_tool_with_progress";
    const TITLE: &'static str = "Progress";
    const DESCRIPTION: &'static str = "Says how far it is.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        ctx.report_progress(0.0, Some(100.0), None);
        sleep(MOMENT).await;
        ctx.report_progress(50.0, Some(100.0), None);
        sleep(MOMENT).await;
        ctx.report_progress(100.0, Some(100.0), None);
        Ok(ContentOnly::text("Tool with progress executed successfully"))
    }
}

/// A tool that lets its connection go: clients must come back for the answer.
struct Reconnection;

impl Tool for Reconnection {
    const NAME: &'static str = "test_reconnection";
    const TITLE: &'static str = "Reconnection";
    const DESCRIPTION: &'static str =
        "Lets the connection go; the client comes back for the answer.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        ctx.release_connection();
        sleep(2 * MOMENT).await;
        Ok(ContentOnly::text("The client came back for this"))
    }
}

struct ToolChange(ChangeFeed);

impl Tool for ToolChange {
    const NAME: &'static str = "test_trigger_tool_change";
    const TITLE: &'static str = "Tools changed";
    const DESCRIPTION: &'static str = "Tells whoever listens that there are other tools.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        self.0.publish(&ServerChange::Tools);
        Ok(ContentOnly::text("Told that tools changed"))
    }
}

struct PromptChange(ChangeFeed);

impl Tool for PromptChange {
    const NAME: &'static str = "test_trigger_prompt_change";
    const TITLE: &'static str = "Prompts changed";
    const DESCRIPTION: &'static str = "Tells whoever listens that there are other prompts.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        self.0.publish(&ServerChange::Prompts);
        Ok(ContentOnly::text("Told that prompts changed"))
    }
}
