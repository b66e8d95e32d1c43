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

use toolgate_contract::{AnyTool, Tool, erase};

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
    let settings = Arc::new(settings.clone());
    let ci = |tool| Ci { programs: programs.of(tool), settings: settings.clone() };
    vec![
        erase(detect::Detect(ci(detect::Detect::NAME))),
        erase(build::Build(ci(build::Build::NAME))),
        erase(test::Test(ci(test::Test::NAME))),
        erase(lint::Lint(ci(lint::Lint::NAME))),
        erase(restore::Restore(ci(restore::Restore::NAME))),
        erase(run::Run(ci(run::Run::NAME))),
        erase(diagnostics::Diagnostics {
            ci: ci(diagnostics::Diagnostics::NAME),
            version: version.to_owned(),
        }),
    ]
}

/// What every tool here is made of.
#[derive(Clone)]
struct Ci {
    programs: Programs,
    settings: Arc<Settings>,
}
