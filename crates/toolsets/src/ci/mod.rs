//! The `ci` toolset: builds, tests and lints projects with their own tools, and reports the
//! failures.

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

/// The deadline exceeds the longest timeout, so that a program ends by its own timeout.
const DEADLINE: Option<Duration> = Some(Duration::from_secs(610));
/// Policy treats these tools like `exec.run`: a caller can write the command line, or the project's
/// files.
const RULED_AS: Option<&'static str> = Some("exec.run");

/// Returns the tools of this toolset. They run in the workspace of `programs`, with its
/// permissions.
///
/// `version` is the server's version, which `ci.diagnostics` reports.
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

/// The state that all tools of this toolset share.
#[derive(Clone)]
struct Ci {
    programs: Programs,
    settings: Arc<Settings>,
}
