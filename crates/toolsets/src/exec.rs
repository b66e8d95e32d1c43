//! The `exec` toolset: runs programs in the workspace and returns their output.

mod run;
mod output;
mod settings;
mod programs;
mod start;
mod program;
mod confirm;
mod trace_variables;
mod offline_variables;
mod outcome;
mod output_extent;
mod output_store;
mod output_forwarder;
mod meter;
mod encoding;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests access the workspace from outside")]
mod tests;

use std::sync::Arc;

use toolgate_contract::{AnyTool, erase_tool};

use toolgate_world::{ProcessRunner, Root};

pub(crate) use meter::OutputProgressParser;
pub(crate) use offline_variables::OFFLINE_VARIABLES;
pub(crate) use outcome::{ProgramRunResult, SandboxStatus, refusal_note};
pub(crate) use output_forwarder::strip_escapes;
pub(crate) use program::ProgramInputFieldNames;
pub(crate) use programs::StartFailureCause;
pub use programs::WorkspaceProgramRunner;
pub(crate) use run::{MORE_OUTPUT, RunProgramInput, TIMEOUT_MS, TIMEOUT_MS_MAX};
pub use settings::{ExecSettings, StoredOutputLimits};
pub(crate) use start::{bounds, variable_refusal};
pub(crate) use trace_variables::set_trace_variables;

/// Returns the tools of the `exec` toolset. Their programs start in `root` as child processes of
/// `processes`.
pub fn tools(
    root: &Root,
    processes: &ProcessRunner,
    settings: &ExecSettings,
) -> Vec<Arc<dyn AnyTool>> {
    WorkspaceProgramRunner::new(root, processes, settings).tools()
}

impl WorkspaceProgramRunner {
    /// Returns the tools of the `exec` toolset, which run programs with this runner.
    pub fn tools(&self) -> Vec<Arc<dyn AnyTool>> {
        vec![
            erase_tool(run::RunProgram::new(self)),
            erase_tool(output::ReadProgramOutput { store: self.outputs.clone() }),
        ]
    }
}
