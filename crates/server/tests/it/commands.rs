//! Tests of the shipped pack of Zyra's commands: it is up to date, Zyra's own parser accepts its
//! arguments, and its commands run.

mod pack;
mod runs;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use toolgate_contract::{
    AnyTool, CallEvent, CallEventSink, Caller, ProducedFile, ToolContext, ToolError, ToolOutput,
};
use toolgate_toolsets::{commands, exec};
use toolgate_world::{ProcessRunner, Root};

/// Returns the path of the program `name` in the Python environment in which Zyra is installed.
fn program_path(name: &str) -> PathBuf {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let program = checkout.join(".tools/zyra/bin").join(name);
    assert!(program.exists(), "{} is missing: run `cargo xtask setup`", program.display());
    program
}

/// Returns the path of the file that declares Zyra's commands.
fn pack_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packs/zyra/zyra.toml")
}

/// Workspace in which the commands of a pack run.
struct CommandPackTestBench {
    tools: Vec<Arc<dyn AnyTool>>,
    workspace: TempDir,
}

impl CommandPackTestBench {
    /// Creates the tools of the pack, which run `program` as Zyra.
    fn with(program: &Path) -> Self {
        let settings = commands::CommandSettings {
            packs: vec![pack_path()],
            programs: [("zyra".to_owned(), program.display().to_string())].into(),
        };
        let declared = commands::load_commands(&settings, None).unwrap();
        let processes = ProcessRunner::new(std::env::vars_os()).unwrap();
        let workspace = TempDir::with_prefix("toolgate-zyra-").unwrap();
        let root = Root::open(workspace.path()).unwrap();
        let programs =
            exec::WorkspaceProgramRunner::new(&root, &processes, &exec::ExecSettings::default());
        Self { tools: commands::tools(&programs, declared), workspace }
    }

    /// Calls the tool `id` of the pack. Returns the result of the call and the files that the
    /// program produced.
    async fn call(
        &self,
        id: &str,
        input: Value,
    ) -> (Result<ToolOutput, ToolError>, Vec<ProducedFile>) {
        let files = Arc::new(Mutex::new(Vec::new()));
        let sink = files.clone();
        let events = CallEventSink::new(move |event| {
            if let CallEvent::FileProduced(file) = event {
                sink.lock().unwrap().push(file);
            }
        });
        let deadline = Instant::now() + Duration::from_secs(600);
        let ctx = ToolContext { events, ..ToolContext::detached(Caller::local(), deadline) };
        let tool = self.tools.iter().find(|tool| tool.spec().id.as_str() == id).unwrap();
        let output = tool.run(&ctx, tool.normalize_input(input)).await;
        let files = std::mem::take(&mut *files.lock().unwrap());
        (output, files)
    }
}
