//! Tests of the `git` tools in real repositories, compared with git itself.

mod reading;
mod changing;
mod hostile;
mod submodules;
mod outside;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate_contract::{AnyTool, Caller, ToolContext, ToolError, ToolErrorKind, ToolOutput};

use super::{GitProgram, GitSettings, OutsideRepositoryAccess, tools};
use crate::exec::{self, WorkspaceProgramRunner};
use toolgate_world::{ProcessRunner, Root};

/// Test bench with the `git` tools, a workspace that is a repository on the branch `main`, and the
/// folder that contains the workspace.
struct GitTestBench {
    tools: Vec<Arc<dyn AnyTool>>,
    folder: TempDir,
}

impl GitTestBench {
    /// Creates a test bench whose repository has one commit.
    fn new() -> Self {
        let bench = Self::with(&GitSettings::default());
        bench.put("a.txt", "one\ntwo\n");
        bench.git(&["add", "."]);
        bench.git(&["commit", "-qm", "first"]);
        bench
    }

    /// Creates a test bench whose repository has no commits.
    fn with(settings: &GitSettings) -> Self {
        Self::with_exec(settings, &exec::ExecSettings::default())
    }

    fn with_exec(settings: &GitSettings, exec: &exec::ExecSettings) -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        fs::create_dir(folder.path().join("home")).expect("a folder");
        fs::create_dir(folder.path().join("workspace")).expect("a folder");
        let bench = Self::serve(folder, settings, exec);
        bench.git(&["init", "-q", "-b", "main", "."]);
        let mut settings = OpenOptions::new().append(true).open(bench.root().join(".git/config"));
        let user = "[user]\n\tname = Ada\n\temail = ada@example.org\n";
        settings.as_mut().expect("a repository").write_all(user.as_bytes()).expect("a user");
        bench
    }

    /// Creates a test bench for the existing folder `workspace` inside `folder`.
    fn serve(folder: TempDir, settings: &GitSettings, exec: &exec::ExecSettings) -> Self {
        let home: (OsString, OsString) = ("HOME".into(), folder.path().join("home").into());
        let path = std::env::var_os("PATH").expect("there is a PATH");
        let processes = ProcessRunner::new([home, ("PATH".into(), path)]);
        let root = Root::open(&folder.path().join("workspace")).expect("the workspace opens");
        let programs =
            WorkspaceProgramRunner::new(&root, &processes.expect("programs start"), exec);
        Self { tools: tools(&programs, settings), folder }
    }

    fn root(&self) -> std::path::PathBuf {
        self.folder.path().join("workspace")
    }

    /// Returns a path outside the workspace. Tests fail if a program creates a file there.
    fn trap(&self) -> std::path::PathBuf {
        self.folder.path().join("trapped")
    }

    fn put(&self, name: &str, content: &str) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
        fs::write(path, content).expect("the file is written");
    }

    /// Runs the git program with `args`, and returns its output. Panics if git fails.
    fn git(&self, args: &[&str]) -> String {
        git_in(&self.root(), &self.folder.path().join("home"), args)
    }

    async fn call(&self, tool: &str, input: Value) -> Result<ToolOutput, ToolError> {
        let ctx = ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60));
        let found = self.tools.iter().find(|it| it.spec().id.as_str() == tool);
        found.expect("the tool exists").run(&ctx, input).await
    }

    /// Calls `tool` with `input`, and returns the result. Panics if the call fails.
    #[track_caller]
    fn done(&self, tool: &str, input: Value) -> impl Future<Output = ToolOutput> {
        let call = format!("{tool} {input}");
        async move {
            match self.call(tool, input).await {
                Ok(output) => output,
                Err(err) => panic!("{call}: {err:?}"),
            }
        }
    }

    /// Calls `tool` with `input`, and returns the error. Panics if the call succeeds.
    async fn refused(&self, tool: &str, input: Value) -> ToolError {
        let call = format!("{tool} {input}");
        match self.call(tool, input).await {
            Ok(output) => panic!("{call}: {}", output.value),
            Err(err) => err,
        }
    }
}

fn git_in(folder: &Path, home: &Path, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(args).current_dir(folder).env_clear().env("HOME", home).env("LC_ALL", "C.UTF-8");
    git.env("PATH", std::env::var_os("PATH").expect("there is a PATH"));
    // Without the sample hooks of the installed git.
    git.env("GIT_TEMPLATE_DIR", "");
    let done = git.output().expect("git runs");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "git {args:?}: {stderr}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[tokio::test]
async fn every_tool_is_unavailable_without_git() {
    let folder = TempDir::new().unwrap();
    let processes = ProcessRunner::new([("PATH".into(), folder.path().into())]).unwrap();
    let root = Root::open(folder.path()).unwrap();
    let programs = WorkspaceProgramRunner::new(&root, &processes, &exec::ExecSettings::default());
    let ctx = ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60));
    for tool in tools(&programs, &GitSettings::default()) {
        let input = match tool.spec().id.as_str() {
            "git.blame" => json!({ "path": "a" }),
            "git.add" | "git.restore" => json!({ "paths": ["a"] }),
            "git.commit" => json!({ "message": "a" }),
            "git.checkout" => json!({ "ref": "a" }),
            _ => json!({}),
        };
        let refused = tool.run(&ctx, input).await.unwrap_err();
        assert_eq!(refused.fault, ToolErrorKind::Unavailable, "{}: {refused:?}", tool.spec().id);
    }
}
