//! The `exec` toolset: programs run in the workspace, and what they printed.

mod run;
mod output;
mod settings;
mod start;
mod program;
mod shown;
mod kept;
mod echo;
mod encoding;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the workspace from outside")]
mod tests;

use std::sync::Arc;

use toolgate_contract::{AnyTool, erase};

use crate::world::{Processes, Root};
use kept::Kept;

pub use settings::Settings;

/// The tools of this toolset, for programs that start in `root`.
pub fn tools(root: &Root, processes: &Processes, settings: &Settings) -> Vec<Arc<dyn AnyTool>> {
    let settings = Arc::new(settings.clone());
    let kept = Arc::new(Kept::new(settings.kept_runs_max, settings.kept_bytes_max));
    vec![
        erase(run::Run::new(root, processes, &settings, &kept)),
        erase(output::ReadOutput::new(&kept)),
    ]
}
