//! Example tools that send log messages, progress and notifications of changes.

use std::time::Duration;

use tokio::time::sleep;
use toolgate_contract::{
    ChangeFeed, Effects, LogLevel, NoInput, ServerChange, Tool, ToolContext, ToolError,
    UnstructuredResult,
};
use toolgate_service::ServerBuilder;

/// Pause between two messages, after which clients receive them separately.
const PAUSE: Duration = Duration::from_millis(50);

/// Adds the tools of this module to `builder`. The tools report changes through `changes`.
pub(crate) fn add(builder: ServerBuilder, changes: &ChangeFeed) -> ServerBuilder {
    builder
        .tool(LoggingTool)
        .tool(LogOnceTool)
        .tool(ProgressTool)
        .tool(ReconnectionTool)
        .tool(ToolChangeTool(changes.clone()))
        .tool(PromptChangeTool(changes.clone()))
}

struct LoggingTool;

impl Tool for LoggingTool {
    const NAME: &'static str = "test_tool_with_logging";
    const TITLE: &'static str = "Logging";
    const DESCRIPTION: &'static str = "Logs three messages while it runs.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        ctx.log(LogLevel::Info, "Tool execution started");
        sleep(PAUSE).await;
        ctx.log(LogLevel::Info, "Tool processing data");
        sleep(PAUSE).await;
        ctx.log(LogLevel::Info, "Tool execution completed");
        Ok(UnstructuredResult::text("Tool with logging executed successfully"))
    }
}

struct LogOnceTool;

impl Tool for LogOnceTool {
    const NAME: &'static str = "test_logging_tool";
    const TITLE: &'static str = "Logging on request";
    const DESCRIPTION: &'static str = "Logs one message, for clients that request the log.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        ctx.log(LogLevel::Info, "The logging tool was called");
        Ok(UnstructuredResult::text("Logged for clients that request the log"))
    }
}

struct ProgressTool;

impl Tool for ProgressTool {
    const NAME: &'static str = "test_tool_with_progress";
    const TITLE: &'static str = "Progress";
    const DESCRIPTION: &'static str = "Reports its progress.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        ctx.report_progress(0.0, Some(100.0), None);
        sleep(PAUSE).await;
        ctx.report_progress(50.0, Some(100.0), None);
        sleep(PAUSE).await;
        ctx.report_progress(100.0, Some(100.0), None);
        Ok(UnstructuredResult::text("Tool with progress executed successfully"))
    }
}

/// Tool that closes the connection of its call. Clients must reconnect to get the answer.
struct ReconnectionTool;

impl Tool for ReconnectionTool {
    const NAME: &'static str = "test_reconnection";
    const TITLE: &'static str = "Reconnection";
    const DESCRIPTION: &'static str =
        "Closes the connection. The client reconnects for the answer.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        ctx.release_connection();
        sleep(2 * PAUSE).await;
        Ok(UnstructuredResult::text("The client came back for this"))
    }
}

struct ToolChangeTool(ChangeFeed);

impl Tool for ToolChangeTool {
    const NAME: &'static str = "test_trigger_tool_change";
    const TITLE: &'static str = "Tools changed";
    const DESCRIPTION: &'static str = "Notifies clients that tools changed.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        self.0.publish(&ServerChange::Tools);
        Ok(UnstructuredResult::text("Notified clients that tools changed"))
    }
}

struct PromptChangeTool(ChangeFeed);

impl Tool for PromptChangeTool {
    const NAME: &'static str = "test_trigger_prompt_change";
    const TITLE: &'static str = "Prompts changed";
    const DESCRIPTION: &'static str = "Notifies clients that prompts changed.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        self.0.publish(&ServerChange::Prompts);
        Ok(UnstructuredResult::text("Notified clients that prompts changed"))
    }
}
