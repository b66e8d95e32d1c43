//! Tests of the tools that run programs.

mod arguments;
mod programs;
mod environment;
mod endings;
mod outputs;
mod events;
mod confirmation;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate_contract::{
    AnyTool, Caller, ResultText, ToolContext, ToolError, ToolErrorKind, ToolRunStatus,
};

use super::{ExecSettings, tools};
use toolgate_world::{ProcessRunner, Root};

/// Test bench with the `exec` tools, a workspace, and a directory outside the workspace.
struct ExecTestBench {
    tools: Vec<Arc<dyn AnyTool>>,
    processes: ProcessRunner,
    workspace: TempDir,
    outside: TempDir,
}

/// The result of a tool call in a test.
#[derive(Debug)]
struct ToolCallResult {
    value: Value,
    text: ResultText,
    ending: ToolRunStatus,
}

impl ExecTestBench {
    fn new() -> Self {
        Self::with(&ExecSettings::default())
    }

    fn with(settings: &ExecSettings) -> Self {
        Self::with_path(settings, std::env::var_os("PATH").expect("PATH is set"))
    }

    /// Creates a test bench that looks up programs in the folders of `path`, a value of the
    /// variable PATH.
    fn with_path(settings: &ExecSettings, path: impl AsRef<OsStr>) -> Self {
        let secret: (OsString, OsString) = ("MCP_CANARY_SECRET".into(), "canary".into());
        let path = ("PATH".into(), path.as_ref().to_owned());
        let env = std::env::vars_os().filter(|(name, _)| name != "PATH").chain([secret, path]);
        let processes = ProcessRunner::new(env).expect("programs can be started");
        let workspace = TempDir::new().expect("a temporary directory");
        let outside = TempDir::new().expect("a temporary directory");
        let root = Root::open(workspace.path()).expect("the workspace opens");
        Self { tools: tools(&root, &processes, settings), processes, workspace, outside }
    }

    async fn run(&self, input: Value) -> Result<ToolCallResult, ToolError> {
        self.call("exec.run", &ctx(), input).await
    }

    /// Runs `script` with `sh`, and returns its result. Panics if the script cannot be started.
    async fn sh(&self, script: &str) -> ToolCallResult {
        self.run(json!({"command": "sh", "args": ["-c", script]})).await.expect("the script runs")
    }

    async fn call(
        &self,
        tool: &str,
        ctx: &ToolContext,
        input: Value,
    ) -> Result<ToolCallResult, ToolError> {
        let tool = self.tools.iter().find(|it| it.spec().id.as_str() == tool);
        let output = tool.expect("the tool exists").run(ctx, input).await?;
        Ok(ToolCallResult { value: output.value, text: output.text, ending: output.ending })
    }

    /// Writes the file `name` with `content` to the workspace, and makes it executable.
    fn put(&self, name: &str, content: &str) {
        let path = self.workspace.path().join(name);
        fs::write(&path, content).expect("the file is written");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode is set");
    }

    /// Returns a path outside the workspace. Tests fail if a program creates a file there.
    fn forbidden(&self) -> String {
        self.outside.path().join("touched").to_str().expect("it is UTF-8").to_owned()
    }
}

impl ToolCallResult {
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

/// Returns the JSON Pointer to the invalid input in `err`. Returns `None` for other errors.
fn pointer(err: &ToolError) -> Option<&str> {
    match &err.fault {
        ToolErrorKind::Invalid { pointer } => Some(pointer),
        ToolErrorKind::NotAllowed
        | ToolErrorKind::NotFound
        | ToolErrorKind::Conflict(_)
        | ToolErrorKind::TooLarge
        | ToolErrorKind::Limited(_)
        | ToolErrorKind::Unavailable
        | ToolErrorKind::Canceled
        | ToolErrorKind::Asks(_)
        | ToolErrorKind::CannotAsk(_)
        | ToolErrorKind::Refused { .. }
        | ToolErrorKind::Failed => None,
    }
}

/// Returns a unique sleep duration, by which the processes of a test can be found.
fn unique_sleep() -> String {
    format!("3600.{}", getrandom::u64().expect("random numbers") >> 1)
}

/// Returns true if a process with `word` on its command line is running.
fn is_alive(word: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc can be read").flatten();
    processes.filter(|entry| entry.path().join("exe").exists()).any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_self = entry.file_name().to_str() == Some(&std::process::id().to_string());
        !is_self && String::from_utf8_lossy(&line).contains(word)
    })
}

/// Waits until `condition` returns true. Panics with the message `what` after 10 s.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the number of ended child processes of the test that were not reaped.
fn zombies() -> usize {
    let pid = std::process::id();
    let children = fs::read_dir(format!("/proc/{pid}/task")).expect("/proc can be read").flatten();
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
