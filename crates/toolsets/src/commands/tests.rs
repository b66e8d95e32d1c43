//! What is promised of declared commands.

mod words;
mod names;
mod leaving;
mod ending;
mod loading;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tempfile::TempDir;
use toolgate_contract::{
    AnyTool, CallEvent, Caller, EventSink, ToolContext, ToolError, ToolFault, ToolOutput,
};

use super::{CommandSettings, DeclarationSource, DeclaredCommand, LoadError, load_commands, tools};
use crate::exec;
use toolgate_world::{ProcessRunner, Root};

/// A workspace with small programs and the commands that a configuration declares.
struct Bench {
    tools: Vec<Arc<dyn AnyTool>>,
    workspace: TempDir,
    events: Arc<Mutex<Vec<CallEvent>>>,
}

/// The commands that a configuration with the text `text` declares.
fn read(text: &str) -> Result<Vec<DeclaredCommand>, LoadError> {
    let source = DeclarationSource { file: PathBuf::from("toolgate.toml"), text: text.to_owned() };
    load_commands(&CommandSettings::default(), Some(&source))
}

/// One command, `x.y`, that runs `program` as `rest` says.
fn one(program: &str, rest: &str) -> String {
    format!("[command.\"x.y\"]\nabout = \"A test.\"\nprogram = \"{program}\"\n{rest}")
}

impl Bench {
    /// The command `x.y` in a workspace with a program of the text `script`.
    fn script(script: &str, rest: &str) -> Self {
        let workspace = TempDir::new().expect("a temporary directory");
        let program = workspace.path().join("program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("the script is written");
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("its mode is set");
        let declared = read(&one(program.to_str().expect("it is UTF-8"), rest));
        Self::with(workspace, declared.expect("the declaration is sound"))
    }

    fn with(workspace: TempDir, declared: Vec<DeclaredCommand>) -> Self {
        let secret: (OsString, OsString) = ("MCP_CANARY_SECRET".into(), "canary".into());
        let own = std::env::vars_os().chain([secret, ("KEPT".into(), "kept".into())]);
        let processes = ProcessRunner::new(own).expect("programs can be started");
        let root = Root::open(workspace.path()).expect("the workspace opens");
        let programs =
            exec::WorkspacePrograms::new(&root, &processes, &exec::ExecSettings::default());
        let tools = programs.tools().into_iter().chain(tools(&programs, declared)).collect();
        Self { tools, workspace, events: Arc::default() }
    }

    fn tool(&self, id: &str) -> &Arc<dyn AnyTool> {
        self.tools.iter().find(|tool| tool.spec().id.as_str() == id).expect("the tool is there")
    }

    async fn call(&self, input: Value) -> Result<ToolOutput, ToolError> {
        let heard = self.events.clone();
        let events = EventSink::new(move |event| heard.lock().expect("no panic").push(event));
        self.tool("x.y").run(&ToolContext { events, ..ctx() }, input).await
    }

    /// The files that were handed over, with what is in them.
    fn left(&self) -> Vec<(String, String)> {
        let mut left = Vec::new();
        for event in self.events.lock().expect("no panic").iter() {
            if let CallEvent::FileProduced(file) = event {
                let mut text = String::new();
                std::io::Read::read_to_string(&mut &*file.handle, &mut text).expect("it is read");
                left.push((file.path.clone(), text));
            }
        }
        left
    }
}

fn ctx() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(610))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other} is no object"),
    }
}

/// The words a result says were run, without the program.
fn words(output: &ToolOutput) -> Vec<String> {
    let argv = output.value["argv"].as_array().expect("argv is an array").iter().skip(1);
    argv.map(|word| word.as_str().expect("a word is a string").to_owned()).collect()
}

/// Where a refusal points, and what it says.
fn refusal(outcome: Result<ToolOutput, ToolError>) -> (String, String) {
    let err = outcome.expect_err("it is refused");
    match err.fault {
        ToolFault::Invalid { pointer } => (pointer, err.message),
        other => panic!("{other:?}: {}", err.message),
    }
}
