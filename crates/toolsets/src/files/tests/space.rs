//! Workspace for one test, with the `files` tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{AnyTool, Caller, ToolContext, ToolError, ToolErrorKind, ToolOutput};
use toolgate_world::Root;

use crate::files::{self, FileSettings, FileToolLimits};

/// Workspace folder `ws`, next to a folder `ws_evil` that contains a secret.
pub(crate) struct TestWorkspace {
    _dir: Option<TempDir>,
    pub(crate) ws: PathBuf,
    pub(crate) evil: PathBuf,
    tools: Vec<Arc<dyn AnyTool>>,
}

/// Failure of a tool call: the reason as the contract spells it, and the message.
#[derive(Debug)]
pub(crate) struct ToolCallFailure {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) error: ToolError,
}

impl TestWorkspace {
    pub(crate) fn new() -> Self {
        Self::with(&FileSettings::default())
    }

    /// Creates a workspace in memory, for tests with very many files.
    pub(crate) fn in_memory() -> Self {
        let dir = TempDir::new_in("/dev/shm").unwrap_or_else(|_| TempDir::new().unwrap());
        let space = Self::at(dir.path(), &FileSettings::default());
        Self { _dir: Some(dir), ..space }
    }

    pub(crate) fn limited(limits: FileToolLimits) -> Self {
        Self::with(&FileSettings { limits, ..FileSettings::default() })
    }

    pub(crate) fn with(settings: &FileSettings) -> Self {
        let dir = TempDir::new().unwrap();
        let space = Self::at(dir.path(), settings);
        Self { _dir: Some(dir), ..space }
    }

    /// Creates a workspace in the directory `dir`, which the caller removes.
    pub(crate) fn at(dir: &Path, settings: &FileSettings) -> Self {
        let ws = dir.join("ws");
        let evil = dir.join("ws_evil");
        fs::create_dir(&ws).unwrap();
        fs::create_dir(&evil).unwrap();
        fs::write(evil.join("secret"), "canary").unwrap();
        let root = Root::open(&ws).unwrap();
        let tools = files::tools(&root, settings);
        Self { _dir: None, ws: root.path().to_owned(), evil, tools }
    }

    /// Writes `content` to the file `path` in the workspace directly, without a tool.
    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.ws.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns the content of `path` in the workspace.
    pub(crate) fn get(&self, path: &str) -> Vec<u8> {
        fs::read(self.ws.join(path)).unwrap()
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.ws.join(path).symlink_metadata().is_ok()
    }

    pub(crate) fn symlink(&self, target: impl AsRef<Path>, path: &str) {
        std::os::unix::fs::symlink(target, self.ws.join(path)).unwrap();
    }

    pub(crate) async fn run(
        &self,
        tool: &str,
        input: Value,
    ) -> Result<ToolOutput, ToolCallFailure> {
        self.run_until(tool, input, CancellationToken::new()).await
    }

    pub(crate) async fn run_until(
        &self,
        tool: &str,
        input: Value,
        cancel: CancellationToken,
    ) -> Result<ToolOutput, ToolCallFailure> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let ctx = ToolContext { cancel, ..ToolContext::detached(Caller::local(), deadline) };
        self.run_as(&ctx, tool, input).await
    }

    pub(crate) async fn run_as(
        &self,
        ctx: &ToolContext,
        tool: &str,
        input: Value,
    ) -> Result<ToolOutput, ToolCallFailure> {
        let tool = self.tools.iter().find(|each| each.spec().id.as_str() == tool).unwrap();
        tool.run(ctx, input).await.map_err(|error| ToolCallFailure {
            reason: toolgate_contract::CallError::from(error.clone()).reason(),
            message: error.message.clone(),
            error,
        })
    }

    /// Returns the input schema of `tool`.
    pub(crate) fn schema(&self, tool: &str) -> Value {
        let tool = self.tools.iter().find(|each| each.spec().id.as_str() == tool).unwrap();
        Value::clone(&tool.spec().input_schema)
    }

    /// Calls `tool` and returns its structured value. Panics if the call fails.
    pub(crate) async fn ok(&self, tool: &str, input: Value) -> Value {
        match self.run(tool, input.clone()).await {
            Ok(output) => output.value,
            Err(failed) => panic!("{tool} {input}: {failed:?}"),
        }
    }

    /// Calls `tool` and returns its text, with the note in brackets. Panics if the call fails.
    pub(crate) async fn text(&self, tool: &str, input: Value) -> String {
        match self.run(tool, input.clone()).await {
            Ok(output) => {
                let note = output.text.note.map(|note| format!("[{note}]")).unwrap_or_default();
                output.text.body + &note
            }
            Err(failed) => panic!("{tool} {input}: {failed:?}"),
        }
    }

    /// Calls `tool`, which must fail, and returns the failure. Checks that the message does not
    /// reveal the path of the workspace.
    pub(crate) async fn fails(&self, tool: &str, input: Value) -> ToolCallFailure {
        match self.run(tool, input.clone()).await {
            Ok(output) => panic!("{tool} {input} succeeded: {}", output.value),
            Err(failed) => {
                let place = self.ws.parent().unwrap().to_str().unwrap();
                if !input.to_string().contains(place) {
                    assert!(!failed.message.contains(place), "{failed:?}");
                }
                assert!(!failed.message.ends_with('.'), "{failed:?}");
                failed
            }
        }
    }

    /// Checks that nothing outside the workspace changed.
    pub(crate) fn assert_outside_unchanged(&self) {
        let names: Vec<_> =
            fs::read_dir(&self.evil).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"]);
        assert_eq!(fs::read(self.evil.join("secret")).unwrap(), b"canary");
    }
}

impl ToolCallFailure {
    pub(crate) fn details(&self) -> &Value {
        match &self.error.fault {
            ToolErrorKind::Conflict(details) => details,
            other => panic!("not a conflict: {other:?}"),
        }
    }

    pub(crate) fn pointer(&self) -> &str {
        match &self.error.fault {
            ToolErrorKind::Invalid { pointer } => pointer,
            other => panic!("not invalid input: {other:?}: {}", self.message),
        }
    }
}
