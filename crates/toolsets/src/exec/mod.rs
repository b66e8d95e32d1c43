//! The `exec` toolset: runs programs in the workspace and returns their output.

mod run;
mod output;
mod settings;
mod programs;
mod start;
mod program;
mod confirm;
mod traced;
mod outcome;
mod shown;
mod kept;
mod echo;
mod meter;
mod encoding;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the workspace from outside")]
mod tests;

use std::sync::Arc;

use toolgate_contract::{AnyTool, erase};

use crate::world::{Processes, Root};

pub(crate) use echo::plain;
pub(crate) use meter::Meter;
pub(crate) use outcome::{Confined, Outcome};
pub(crate) use program::Words;
pub(crate) use programs::Blamed;
pub use programs::Programs;
pub(crate) use run::{Input, TIMEOUT_MS_MAX};
pub use settings::Settings;
pub(crate) use start::{PathVariable, bounds, refusal};
pub(crate) use traced::trace;

/// Returns the tools of this toolset, for programs that start in `root`.
pub fn tools(root: &Root, processes: &Processes, settings: &Settings) -> Vec<Arc<dyn AnyTool>> {
    Programs::new(root, processes, settings).tools()
}

impl Programs {
    /// Returns the tools of this toolset.
    pub fn tools(&self) -> Vec<Arc<dyn AnyTool>> {
        vec![erase(run::Run::new(self)), erase(output::ReadOutput::new(&self.kept))]
    }
}
