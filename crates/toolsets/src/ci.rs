//! The `ci` toolset: builds, tests and lints projects with their own tools, and reports the
//! failures.

mod detect;
mod build;
mod test;
mod lint;
mod restore;
mod run;
mod diagnostics;
mod pytest_options;
mod build_tool;
mod runner;
mod projects;
mod project_hosts;
mod project_input;
mod actions;
mod registry;
mod report;
mod command_line;
mod output_parsers;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests access the workspace from outside")]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::{AnyTool, Tool, erase_tool};

use crate::exec::WorkspaceProgramRunner;

pub use registry::OWN_REGISTRY_QUESTION;

/// Names that language models wrongly use for the input field `path`, with that field's name.
const PROJECT_ALIASES: &[(&str, &str)] = &[
    ("project", "path"),
    ("folder", "path"),
    ("dir", "path"),
    ("directory", "path"),
    ("root", "path"),
    ("cwd", "path"),
    ("repo", "path"),
];
/// The deadline of calls of `ci` tools. It exceeds the longest timeout of a program, so that a
/// timeout ends the program before the deadline ends the call.
const DEADLINE: Option<Duration> = Some(Duration::from_secs(610));
/// The tool whose policy rules also apply to the `ci` tools. Their callers can choose the command
/// line or change the project's files, so the rules of `exec.run` apply.
const RULED_AS: Option<&'static str> = Some("exec.run");

/// Returns the tools of the `ci` toolset. They run programs in the workspace of `programs`, with
/// its permissions.
///
/// `version` is the server's version, which `ci.diagnostics` reports.
pub fn tools(programs: &WorkspaceProgramRunner, version: &str) -> Vec<Arc<dyn AnyTool>> {
    let ci = |tool| CiContext { programs: programs.for_tool(tool) };
    vec![
        erase_tool(detect::DetectProjects(ci(detect::DetectProjects::NAME))),
        erase_tool(build::BuildProject(ci(build::BuildProject::NAME))),
        erase_tool(test::RunProjectTests(ci(test::RunProjectTests::NAME))),
        erase_tool(lint::LintProject(ci(lint::LintProject::NAME))),
        erase_tool(restore::RestoreProject(ci(restore::RestoreProject::NAME))),
        erase_tool(run::RunCommandLine(ci(run::RunCommandLine::NAME))),
        erase_tool(diagnostics::MachineDiagnostics {
            ci: ci(diagnostics::MachineDiagnostics::NAME),
            version: version.to_owned(),
        }),
    ]
}

/// The dependencies that all tools of the `ci` toolset share.
#[derive(Clone)]
struct CiContext {
    programs: WorkspaceProgramRunner,
}
