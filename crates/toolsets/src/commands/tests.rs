//! Tests of declared commands.

mod argv;
mod names;
mod artefacts;
mod ending;
mod loading;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tempfile::TempDir;
use toolgate_contract::{
    AnyTool, CallEvent, CallEventSink, Caller, ToolContext, ToolError, ToolErrorKind, ToolOutput,
};

use super::{
    CommandDeclarationSource, CommandLoadError, CommandSettings, DeclaredCommand, load_commands,
    tools,
};
use crate::exec;
use toolgate_world::sandbox::{SandboxPaths, SandboxProfile, SandboxSettings};
use toolgate_world::{ProcessRunner, Root, Sandbox};

/// Test bench with commands that a configuration declares, and a workspace with a small program.
struct CommandTestBench {
    tools: Vec<Arc<dyn AnyTool>>,
    workspace: TempDir,
    events: Arc<Mutex<Vec<CallEvent>>>,
}

/// Loads the commands that the configuration `text` declares.
fn load(text: &str) -> Result<Vec<DeclaredCommand>, CommandLoadError> {
    let source =
        CommandDeclarationSource { file: PathBuf::from("toolgate.toml"), text: text.to_owned() };
    load_commands(&CommandSettings::default(), Some(&source))
}

/// Returns the TOML declaration of the command `x.y`, which runs `program`. `rest` contains further
/// lines of the declaration.
fn declaration(program: &str, rest: &str) -> String {
    format!("[command.\"x.y\"]\nabout = \"A test.\"\nprogram = \"{program}\"\n{rest}")
}

impl CommandTestBench {
    /// Creates the command `x.y`, whose program is the shell script `script`. `rest` contains
    /// further lines of the declaration.
    fn script(script: &str, rest: &str) -> Self {
        let workspace = TempDir::new().expect("a temporary directory");
        let program = workspace.path().join("program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("the script is written");
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("its mode is set");
        let declared = load(&declaration(program.to_str().expect("it is UTF-8"), rest));
        Self::with(workspace, declared.expect("the declaration is valid"))
    }

    /// Creates the command `x.y`, whose program is the shell script `script` and may also write to
    /// the folder `outside`.
    fn script_that_writes(outside: &Path, script: &str, rest: &str) -> Self {
        let write = vec![outside.to_str().expect("it is UTF-8").to_owned()];
        let profile = SandboxProfile::Off;
        let settings = SandboxSettings { profile, write, ..SandboxSettings::default() };
        let sandbox = Sandbox::new(&settings, SandboxPaths::default()).expect("it is valid");
        let bench = Self::script(script, rest);
        let declared = load(&declaration(bench.program().to_str().expect("it is UTF-8"), rest));
        Self::with_sandbox(bench.workspace, declared.expect("it is valid"), sandbox)
    }

    /// Returns the command `x.y` with its current program, in the sandbox profile `workspace`.
    /// `rest` contains further lines of the declaration.
    fn in_sandbox(self, rest: &str) -> Self {
        let profile = SandboxProfile::Workspace;
        let settings = SandboxSettings { profile, ..SandboxSettings::default() };
        let sandbox = Sandbox::new(&settings, SandboxPaths::default()).expect("it is valid");
        let declared = load(&declaration(self.program().to_str().expect("it is UTF-8"), rest));
        Self::with_sandbox(self.workspace, declared.expect("it is valid"), sandbox)
    }

    fn program(&self) -> PathBuf {
        self.workspace.path().join("program")
    }

    fn with(workspace: TempDir, declared: Vec<DeclaredCommand>) -> Self {
        Self::with_sandbox(workspace, declared, Sandbox::disabled())
    }

    fn with_sandbox(workspace: TempDir, declared: Vec<DeclaredCommand>, sandbox: Sandbox) -> Self {
        let secret: (OsString, OsString) = ("MCP_CANARY_SECRET".into(), "canary".into());
        let env = std::env::vars_os().chain([secret, ("KEPT".into(), "kept".into())]);
        let processes = ProcessRunner::with_sandbox(env, sandbox).expect("programs can be started");
        let root = Root::open(workspace.path()).expect("the workspace opens");
        let programs =
            exec::WorkspaceProgramRunner::new(&root, &processes, &exec::ExecSettings::default());
        let tools = programs.tools().into_iter().chain(tools(&programs, declared)).collect();
        Self { tools, workspace, events: Arc::default() }
    }

    fn tool(&self, id: &str) -> &Arc<dyn AnyTool> {
        self.tools.iter().find(|tool| tool.spec().id.as_str() == id).expect("the tool exists")
    }

    async fn call(&self, input: Value) -> Result<ToolOutput, ToolError> {
        let recorded = self.events.clone();
        let events =
            CallEventSink::new(move |event| recorded.lock().expect("no panic").push(event));
        self.tool("x.y").run(&ToolContext { events, ..ctx() }, input).await
    }

    /// Returns the names and contents of the files that the calls reported as artefacts.
    fn produced_files(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for event in self.events.lock().expect("no panic").iter() {
            if let CallEvent::FileProduced(file) = event {
                let mut text = String::new();
                std::io::Read::read_to_string(&mut &*file.handle, &mut text).expect("it is read");
                files.push((file.path.clone(), text));
            }
        }
        files
    }
}

fn ctx() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(610))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other} is not an object"),
    }
}

/// Returns the arguments in the `argv` field of a command's result, without the program.
fn argv_of(output: &ToolOutput) -> Vec<String> {
    let argv = output.value["argv"].as_array().expect("argv is an array").iter().skip(1);
    argv.map(|word| word.as_str().expect("a word is a string").to_owned()).collect()
}

/// Returns the JSON Pointer and the message of a refused call. Panics if the call succeeded.
fn refusal(outcome: Result<ToolOutput, ToolError>) -> (String, String) {
    let err = outcome.expect_err("it is refused");
    match err.fault {
        ToolErrorKind::Invalid { pointer } => (pointer, err.message),
        other => panic!("{other:?}: {}", err.message),
    }
}
