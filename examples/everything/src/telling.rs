//! Tools that say something while they run, or of what changes.

use std::time::Duration;

use tokio::time::sleep;
use toolgate::Offer;
use toolgate_contract::{Change, Changes, Ctx, Effects, Level, NoInput, Shown, Tool, ToolError};

/// Long enough for a client to tell one thing from the next.
const MOMENT: Duration = Duration::from_millis(50);

pub(crate) fn add(offer: Offer, changes: &Changes) -> Offer {
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
    const ABOUT: &'static str = "Says three things while it runs.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        ctx.log(Level::Info, "Tool execution started");
        sleep(MOMENT).await;
        ctx.log(Level::Info, "Tool processing data");
        sleep(MOMENT).await;
        ctx.log(Level::Info, "Tool execution completed");
        Ok(Shown::text("Tool with logging executed successfully"))
    }
}

struct LogsOnce;

impl Tool for LogsOnce {
    const NAME: &'static str = "test_logging_tool";
    const TITLE: &'static str = "Logging to whoever asks";
    const ABOUT: &'static str = "Says one thing, to clients that want to hear it.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        ctx.log(Level::Info, "The logging tool was called");
        Ok(Shown::text("Logged, for whoever asked to hear it"))
    }
}

struct Progress;

impl Tool for Progress {
    const NAME: &'static str = "test_tool_with_progress";
    const TITLE: &'static str = "Progress";
    const ABOUT: &'static str = "Says how far it is.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        ctx.progress(0.0, Some(100.0), None);
        sleep(MOMENT).await;
        ctx.progress(50.0, Some(100.0), None);
        sleep(MOMENT).await;
        ctx.progress(100.0, Some(100.0), None);
        Ok(Shown::text("Tool with progress executed successfully"))
    }
}

/// A tool that lets its connection go: clients must come back for the answer.
struct Reconnection;

impl Tool for Reconnection {
    const NAME: &'static str = "test_reconnection";
    const TITLE: &'static str = "Reconnection";
    const ABOUT: &'static str = "Lets the connection go; the client comes back for the answer.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        ctx.let_go();
        sleep(2 * MOMENT).await;
        Ok(Shown::text("The client came back for this"))
    }
}

struct ToolChange(Changes);

impl Tool for ToolChange {
    const NAME: &'static str = "test_trigger_tool_change";
    const TITLE: &'static str = "Tools changed";
    const ABOUT: &'static str = "Tells whoever listens that there are other tools.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        self.0.tell(&Change::Tools);
        Ok(Shown::text("Told that tools changed"))
    }
}

struct PromptChange(Changes);

impl Tool for PromptChange {
    const NAME: &'static str = "test_trigger_prompt_change";
    const TITLE: &'static str = "Prompts changed";
    const ABOUT: &'static str = "Tells whoever listens that there are other prompts.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        self.0.tell(&Change::Prompts);
        Ok(Shown::text("Told that prompts changed"))
    }
}
