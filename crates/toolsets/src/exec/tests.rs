//! What is promised of running programs.

mod arguments;
mod programs;
mod surroundings;
mod endings;
mod outputs;
mod events;
mod confirming;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate_contract::{
    AnyTool, CallEnding, Caller, ResultText, ToolContext, ToolError, ToolFault,
};

use super::{ExecSettings, tools};
use toolgate_world::{ProcessRunner, Root};

/// A workspace with a directory beside it that is none of its business.
struct Bench {
    tools: Vec<Arc<dyn AnyTool>>,
    processes: ProcessRunner,
    workspace: TempDir,
    outside: TempDir,
}

/// What a call gave back.
#[derive(Debug)]
struct Ran {
    value: Value,
    text: ResultText,
    ending: CallEnding,
}

impl Bench {
    fn new() -> Self {
        Self::with(&ExecSettings::default())
    }

    fn with(settings: &ExecSettings) -> Self {
        let secret: (OsString, OsString) = ("MCP_CANARY_SECRET".into(), "canary".into());
        let own = std::env::vars_os().chain([secret]);
        let processes = ProcessRunner::new(own).expect("programs can be started");
        let workspace = TempDir::new().expect("a temporary directory");
        let outside = TempDir::new().expect("a temporary directory");
        let root = Root::open(workspace.path()).expect("the workspace opens");
        Self { tools: tools(&root, &processes, settings), processes, workspace, outside }
    }

    async fn run(&self, input: Value) -> Result<Ran, ToolError> {
        self.call("exec.run", &ctx(), input).await
    }

    /// The result of a script that is expected to run.
    async fn sh(&self, script: &str) -> Ran {
        self.run(json!({"command": "sh", "args": ["-c", script]})).await.expect("the script runs")
    }

    async fn call(&self, tool: &str, ctx: &ToolContext, input: Value) -> Result<Ran, ToolError> {
        let tool = self.tools.iter().find(|known| known.spec().id.as_str() == tool);
        let output = tool.expect("the tool is there").run(ctx, input).await?;
        Ok(Ran { value: output.value, text: output.text, ending: output.ending })
    }

    /// Puts a file in the workspace, executable.
    fn put(&self, name: &str, content: &str) {
        let path = self.workspace.path().join(name);
        fs::write(&path, content).expect("the file is written");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode is set");
    }

    /// A path outside which nothing may touch.
    fn forbidden(&self) -> String {
        self.outside.path().join("touched").to_str().expect("it is UTF-8").to_owned()
    }
}

impl Ran {
    fn stdout(&self) -> &str {
        self.value["stdout"].as_str().expect("stdout is a string")
    }

    fn exit_code(&self) -> i64 {
        self.value["exit_code"].as_i64().expect("exit_code is an integer")
    }
}

fn ctx() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(610))
}

/// Where a refusal points, if it is about the input.
fn pointer(err: &ToolError) -> Option<&str> {
    match &err.fault {
        ToolFault::Invalid { pointer } => Some(pointer),
        ToolFault::NotAllowed
        | ToolFault::NotFound
        | ToolFault::Conflict(_)
        | ToolFault::TooLarge
        | ToolFault::Limited(_)
        | ToolFault::Unavailable
        | ToolFault::Canceled
        | ToolFault::Asks(_)
        | ToolFault::CannotAsk(_)
        | ToolFault::Refused { .. }
        | ToolFault::Failed => None,
    }
}

/// A length of sleep nobody else sleeps, to know a process by.
fn odd_sleep() -> String {
    format!("3600.{}", getrandom::u64().expect("random numbers") >> 1)
}

/// Whether a process with `word` on its command line is alive.
fn lives(word: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc can be read").flatten();
    processes.filter(|entry| entry.path().join("exe").exists()).any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let own = entry.file_name().to_str() == Some(&std::process::id().to_string());
        !own && String::from_utf8_lossy(&line).contains(word)
    })
}

/// Waits until `is_so`, but not for ever.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < give_up, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many dead children nobody has buried.
fn zombies() -> usize {
    let own = std::process::id();
    let children = fs::read_dir(format!("/proc/{own}/task")).expect("/proc can be read").flatten();
    let pids = children.flat_map(|task| {
        let pids = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        pids.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    pids.filter(|pid| {
        let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    })
    .count()
}
