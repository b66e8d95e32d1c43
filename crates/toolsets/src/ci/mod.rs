//! The `ci` toolset: what a folder is built, tested and linted with, run, and its failures read.

mod detect;
mod build;
mod test;
mod lint;
mod restore;
mod run;
mod diagnostics;
mod settings;
mod kind;
mod runner;
mod projects;
mod verb;
mod work;
mod report;
mod command_line;
mod reading;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the workspace from outside")]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::{AnyTool, erase};

use crate::exec::Programs;

pub use settings::Settings;

/// Longer than the longest timeout, so that a program is stopped by its own.
const DEADLINE: Option<Duration> = Some(Duration::from_secs(610));
/// A command line runs what its caller says, a project what its files say, which a caller can write.
const RULED_AS: Option<&'static str> = Some("exec.run");

/// The tools of this toolset, for the workspace of `programs`, which run what those may.
///
/// `version` is the server's own, told with those of other programs.
pub fn tools(programs: &Programs, settings: &Settings, version: &str) -> Vec<Arc<dyn AnyTool>> {
    let ci = Ci { programs: programs.clone(), settings: Arc::new(settings.clone()) };
    vec![
        erase(detect::Detect(ci.clone())),
        erase(build::Build(ci.clone())),
        erase(test::Test(ci.clone())),
        erase(lint::Lint(ci.clone())),
        erase(restore::Restore(ci.clone())),
        erase(run::Run(ci.clone())),
        erase(diagnostics::Diagnostics { ci, version: version.to_owned() }),
    ]
}

/// What every tool here is made of.
#[derive(Clone)]
struct Ci {
    programs: Programs,
    settings: Arc<Settings>,
}
