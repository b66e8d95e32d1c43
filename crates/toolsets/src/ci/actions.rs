//! Runs a project's build, test or lint command and parses its output.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use toolgate_contract::{ToolContext, ToolError, ToolErrorKind, lock_mutex};

use super::CiContext;
use super::build_tool::{BuildTool, ProjectAction};
use super::output_parsers::OutputParserState;
use super::project_input::CiProjectInput;
use super::projects::{WorkspaceProject, find_nearest, join};
use super::registry::{NETWORK_SETTINGS, PackageRegistryAccess, host_sources};
use super::report::{CiFailure, CiReport, CiTestCounts, FailureSeverity, fit_failures};
use crate::exec::{
    self, OFFLINE_VARIABLES, ProgramInputFieldNames, StartFailureCause, TIMEOUT_MS_MAX,
};
use toolgate_world::Root;
use toolgate_world::root::quoted_path;

/// The default number of bytes from the end of a program's output that a result shows. The end
/// suffices, because the result also lists all findings.
const OUTPUT_BYTES: usize = 8 << 10;

/// The maximum number of failures in the result of a build or test run. The first failures usually
/// explain the others.
const FAILURES_MAX: usize = 50;

/// The maximum number of times that a dependency restore runs again after a person has allowed more
/// hosts.
const FURTHER_RUNS_MAX: usize = 3;

/// The maximum number of suffixes of one printed file path for which `ci` tools look for a file in
/// the workspace.
const SUFFIXES_MAX: usize = 20;

/// Environment variables of the server that build tools receive. They name folders of toolchains
/// and caches, without which build tools would download everything again. The setting
/// `exec.env_keep` adds further variables.
const KEPT_VARIABLES: [&str; 14] = [
    "CARGO_HOME",
    "CARGO_TARGET_DIR",
    "DOTNET_ROOT",
    "GOCACHE",
    "GOMODCACHE",
    "GOPATH",
    "GRADLE_USER_HOME",
    "JAVA_HOME",
    "NUGET_PACKAGES",
    "PYENV_ROOT",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
];

/// Environment variables that keep build tools from coloring, prompting and watching.
const QUIET_VARIABLES: [(&str, &str); 6] = [
    ("CI", "true"),
    ("CARGO_TERM_COLOR", "never"),
    ("FORCE_COLOR", "0"),
    ("NO_COLOR", "1"),
    ("PIP_NO_INPUT", "1"),
    ("DOTNET_CLI_TELEMETRY_OPTOUT", "1"),
];

/// A project's command for one action, such as a build, with the limits of its run.
#[derive(Clone, Copy)]
struct ProjectCommand<'p> {
    verb: ProjectAction,
    project: &'p WorkspaceProject,
    argv: &'p [String],
    timeout_ms: u64,
    output_bytes: usize,
}

impl CiContext {
    /// Runs the project's command for the action `verb`, such as a build, on the project that
    /// `input` names. `filter` selects tests by name.
    pub(super) async fn run_action(
        &self,
        ctx: &ToolContext,
        verb: ProjectAction,
        input: CiProjectInput,
        filter: Option<String>,
    ) -> Result<CiReport, ToolError> {
        let CiProjectInput { path, kind, args, timeout_ms, max_output_bytes } = input;
        if let Some(filter) = filter.as_ref().filter(|it| it.starts_with('-') || it.is_empty()) {
            let message = format!(
                "{} is not a test name: it is empty or begins with `-`",
                quoted_path(filter)
            );
            return Err(ToolError::invalid("/filter", message));
        }
        let root = &self.programs.root;
        let is_named = path.is_some();
        let folder = path.unwrap_or_else(|| ".".to_owned());
        let found =
            root.run_blocking(ctx, move |root, watch| find_nearest(root, &folder, watch)).await?;
        let virtual_env = self.virtual_env();
        let found = found.into_iter().map(|mut project| {
            project.facts.virtual_env.clone_from(&virtual_env);
            project
        });
        let (project, argv) = choose_project(found.collect(), kind, verb, is_named)?;
        let command = project.kind.with_call_args(argv, args, filter.clone(), &project.facts);
        let command = command.map_err(|reason| ToolError::invalid("/filter", reason))?;
        let WorkspaceProject { kind, folder, .. } = &project;
        let run = ProjectCommand {
            verb,
            project: &project,
            argv: &command,
            timeout_ms: timeout_ms.unwrap_or(TIMEOUT_MS_MAX),
            output_bytes: max_output_bytes.unwrap_or(OUTPUT_BYTES),
        };
        let (outcome, reader) = self.run_with_hosts(ctx, &run).await?;
        let (mut summary, mut failures, mut failures_left_out, output, is_all) = reader.finish();
        let ended_well = outcome.exit_code == 0 && !outcome.timed_out;
        if ended_well && verb != ProjectAction::Lint {
            // In a successful run, a line that looks like an error may come from a test.
            failures.retain(|failure| failure.severity == FailureSeverity::Failure);
            summary.errors = summary.errors.filter(|_| *kind == BuildTool::Cargo);
        }
        let unmatched = filter
            .filter(|_| !outcome.timed_out)
            .filter(|_| is_filter_unmatched(*kind, outcome.exit_code, &summary, &output));
        if let Some(filter) = &unmatched {
            let message = format!("no test matched the filter {}", quoted_path(filter));
            failures.push(CiFailure::new(FailureSeverity::Failure, message));
        }
        let ok = ended_well && unmatched.is_none();
        // The log of a test run without failures tells a caller nothing that the counts do not.
        let is_shown = !ok || verb != ProjectAction::Test || max_output_bytes.is_some();
        let output = if is_shown { output } else { String::new() };
        let is_offline = outcome.sandbox.is_offline() && !outcome.is_forwarded;
        if ok && verb == ProjectAction::Restore && !is_offline {
            let processes = self.programs.processes.clone();
            let sources = host_sources(*kind, &command);
            let keep = move |root: &_, _: &_| {
                processes.keep_caches(root, sources);
                Ok(())
            };
            root.run_blocking(ctx, keep).await?;
        }
        let needs_advice = !ok && verb == ProjectAction::Restore && is_offline;
        let network_note = outcome.offline_note().filter(|_| !needs_advice);
        let network_note = network_note.map(|note| match verb {
            ProjectAction::Restore => note,
            _ => format!("{FETCH_ADVICE}{note}"),
        });
        if needs_advice {
            let advice = format!("{OFFLINE_ADVICE}{NETWORK_SETTINGS}");
            failures.push(CiFailure::new(FailureSeverity::Failure, advice));
        }
        failures_left_out += fit_failures(&mut failures);
        let within = folder.clone();
        let failures = root
            .run_blocking(ctx, move |root, _| Ok(with_relative_paths(root, &within, failures)))
            .await?;
        Ok(CiReport {
            ok,
            exit_code: outcome.exit_code,
            timed_out: outcome.timed_out,
            kind: *kind,
            folder: folder.clone(),
            command,
            duration_ms: outcome.duration_ms,
            summary,
            failures,
            failures_left_out,
            output,
            output_id: outcome.output_id.filter(|_| !is_all),
            is_cut: !is_all,
            is_output_wanted: max_output_bytes.is_some(),
            sandbox: outcome.sandbox,
            refused_hosts: outcome.refused_hosts,
            network_note,
        })
    }

    /// Runs the command `run` to its end. A dependency restore may reach the hosts of its package
    /// registry, and runs again after a person has allowed more hosts.
    async fn run_with_hosts(
        &self,
        ctx: &ToolContext,
        run: &ProjectCommand<'_>,
    ) -> Result<(exec::ProgramRunResult, OutputParserState), ToolError> {
        let ProjectCommand { verb, project, argv, .. } = *run;
        let mut access = match verb {
            ProjectAction::Restore => self.registry_access(ctx, project, argv).await?,
            _ => None,
        };
        if verb == ProjectAction::Restore && access.is_none() {
            self.check_restore_network(ctx, project, argv).await?;
        }
        let first = Box::pin(self.run_command(ctx, run, access.as_ref()));
        let (mut outcome, mut reader) = first.await?;
        // A registry often points to a second host, whose files point to no further one.
        for _ in 0..FURTHER_RUNS_MAX {
            let Some(known) = access.as_ref().filter(|_| outcome.exit_code != 0) else { break };
            let refused = &outcome.refused_hosts;
            let wider = self.allow_refused_hosts(ctx, project, known, refused).await?;
            let Some(wider) = wider else { break };
            (outcome, reader) = Box::pin(self.run_command(ctx, run, Some(&wider))).await?;
            access = Some(wider);
        }
        Ok((outcome, reader))
    }

    /// Runs the command `run` to its end. The program can reach package registries only if `access`
    /// is set. Returns the program's result and the parser of its output.
    async fn run_command(
        &self,
        ctx: &ToolContext,
        run: &ProjectCommand<'_>,
        access: Option<&PackageRegistryAccess>,
    ) -> Result<(exec::ProgramRunResult, OutputParserState), ToolError> {
        let ProjectCommand { verb, project, argv, timeout_ms, output_bytes } = *run;
        let (program, rest) = argv
            .split_first()
            .ok_or_else(|| ToolError::failed("the project has no command to run"))?;
        let mut env = self.variables();
        if access.is_some() {
            for (name, _) in OFFLINE_VARIABLES {
                env.remove(name);
            }
        }
        let run_input = exec::RunProgramInput {
            command: program.clone(),
            args: rest.to_vec(),
            shell: false,
            cwd: Some(project.folder.clone()),
            env,
            stdin: None,
            timeout_ms: Some(timeout_ms),
            max_output_bytes: Some(output_bytes),
        };
        let start = self.programs.prepare(ctx, run_input, ProgramInputFieldNames::Project).await;
        let mut start = start.map_err(|err| unavailable_program(program, err))?;
        if let Some(confinement) = &mut start.confinement {
            let has_network = access.is_some() || confinement.has_network();
            if verb == ProjectAction::Restore && has_network {
                confinement.cache_sources = host_sources(project.kind, argv).to_vec();
            }
            if let Some(access) = access {
                confinement.limit_to_hosts(&access.hosts);
            }
        }
        let reader =
            Mutex::new(OutputParserState::new(project.kind, verb, FAILURES_MAX, output_bytes));
        let lock = || lock_mutex(&reader);
        let show = |stream, bytes: &[u8]| lock().read(stream, bytes);
        let to_error = |cause, message: String| match cause {
            StartFailureCause::Program => ToolError::new(ToolErrorKind::Unavailable, message),
            StartFailureCause::Arguments => ToolError::invalid("/args", message),
        };
        let outcome = self.programs.run_filtered(ctx, start, to_error, &show).await?;
        Ok((outcome, reader.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Returns the path of the Python virtual environment in the server's variable `VIRTUAL_ENV`,
    /// if build tools receive this variable.
    pub(super) fn virtual_env(&self) -> Option<String> {
        self.variables().remove("VIRTUAL_ENV").filter(|venv| !venv.is_empty())
    }

    /// Returns the environment variables that build tools receive in addition to those of every
    /// program.
    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        let processes = &self.programs.processes;
        let kept = KEPT_VARIABLES.into_iter().filter_map(|name| {
            let value = processes.variable(name)?.to_str()?;
            Some((name.to_owned(), value.to_owned()))
        });
        let quiet =
            QUIET_VARIABLES.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        let confinement = self.programs.confinement();
        let is_offline = confinement.is_some_and(|confinement| !confinement.has_network());
        let offline = OFFLINE_VARIABLES.iter().filter(|_| is_offline);
        let offline = offline.map(|&(name, value)| (name.to_owned(), value.to_owned()));
        kept.chain(quiet).chain(offline).collect()
    }
}

/// The advice if a build or test without network access fails.
const FETCH_ADVICE: &str = "; to fetch missing dependencies first, run ci_restore";

/// The advice if a dependency restore without network access fails. The configuration lines that
/// allow the network are appended to this text.
const OFFLINE_ADVICE: &str = "the program ran without a network; the server's operator can \
    allow it with these lines in the configuration, or only the hosts of the project's registry \
    with `hosts = [\"HOST\"]` and `profile = \"workspace\"`:\n";

/// Returns true if a test runner reports that no test matched the filter.
///
/// Most test runners treat such a run as a success.
fn is_filter_unmatched(
    kind: BuildTool,
    exit_code: i32,
    summary: &CiTestCounts,
    output: &str,
) -> bool {
    let CiTestCounts { passed, failed, skipped, .. } = *summary;
    let none_ran = passed.unwrap_or(0) + failed.unwrap_or(0) == 0;
    let none_skipped = skipped.unwrap_or(0) == 0;
    match kind {
        // Without counts, the test harness is not Rust's own.
        BuildTool::Cargo => exit_code == 0 && passed.is_some() && none_ran && none_skipped,
        BuildTool::Go => exit_code == 0 && none_ran && none_skipped,
        // Exit code 5 means that no test was collected, 4 that an id is unknown. Tests excluded by
        // the filter count as skipped.
        BuildTool::Pytest => {
            let is_unknown_id = exit_code == 4 && output.contains("not found: ");
            exit_code == 5 && none_ran || is_unknown_id
        }
        // Tests that do not match count as skipped.
        BuildTool::Npm | BuildTool::Pnpm | BuildTool::Yarn => {
            exit_code == 0 && (passed.is_some() || skipped.is_some()) && none_ran
        }
        BuildTool::Dotnet => {
            none_ran && output.contains("No test matches the given testcase filter")
        }
        // Gradle and Maven fail by themselves. make takes no filter.
        BuildTool::Gradle | BuildTool::Maven | BuildTool::Make => false,
    }
}

/// Chooses a project from `found`, and returns it with its command for the action `verb`. If `kind`
/// is set, only projects with this build tool are considered.
fn choose_project(
    found: Vec<WorkspaceProject>,
    kind: Option<BuildTool>,
    verb: ProjectAction,
    is_named: bool,
) -> Result<(WorkspaceProject, Vec<String>), ToolError> {
    let list: Vec<String> = found
        .iter()
        .map(|project| format!("`{}` ({})", project.folder, project.kind.name()))
        .collect();
    let list = list.join(", ");
    if found.is_empty() {
        return Err(ToolError::not_found(
            "no project was found, by a Cargo.toml, package.json, go.mod, Makefile or a similar \
             file; name its folder in `path`, or run a program with ci_run",
        ));
    }
    let first = found.first().map(|project| project.folder.clone()).unwrap_or_default();
    if !is_named && first != "." && found.iter().any(|project| project.folder != first) {
        let message = format!("the workspace has several projects; name one of them: {list}");
        return Err(ToolError::invalid("/path", message));
    }
    let mut refusal = None;
    for project in found.into_iter().filter(|it| kind.is_none_or(|kind| it.kind == kind)) {
        match project.kind.argv(verb, &project.facts) {
            Ok(argv) => return Ok((project, argv)),
            // Another project in the same folder may support the action.
            Err(reason) => refusal = refusal.or(Some((project.kind, project.folder, reason))),
        }
    }
    Err(match (refusal, kind) {
        (Some((kind, folder, reason)), _) => ToolError::not_found(format!(
            "`{}` is not available for the {} project in {}: {reason}",
            verb.name(),
            kind.name(),
            quoted_path(&folder)
        )),
        (None, kind) => {
            let kind = kind.map_or("", BuildTool::name);
            ToolError::invalid("/kind", format!("there is no {kind} project; found {list}"))
        }
    })
}

/// Rephrases `err`, the refusal to run `program`, because the project and not the caller selected
/// the program.
fn unavailable_program(program: &str, err: ToolError) -> ToolError {
    match err.fault {
        ToolErrorKind::Invalid { .. } => {
            let message = format!("the project needs `{program}`: {}", err.message);
            ToolError::new(ToolErrorKind::Unavailable, message)
        }
        _ => err,
    }
}

/// Makes the file paths in `failures` relative to the workspace, if the files are in the workspace.
///
/// Programs print paths relative to their working directory `folder` or to one of its parents.
fn with_relative_paths(root: &Root, folder: &str, failures: Vec<CiFailure>) -> Vec<CiFailure> {
    let root_path = root.path().to_string_lossy();
    let place = |file: String| -> String {
        if file.starts_with('/') {
            let inside = file.strip_prefix(&*root_path).map(|rest| rest.trim_start_matches('/'));
            return inside.map(str::to_owned).unwrap_or(file);
        }
        let file = file.strip_prefix("./").unwrap_or(&file);
        let exists = |path: &String| matches!(root.kind_at(path), Ok(Some(_)));
        let mut ancestor = Some(folder);
        while let Some(at) = ancestor {
            let path = join(at, file);
            if exists(&path) {
                return path;
            }
            ancestor = at.rsplit_once('/').map(|(parent, _)| parent);
        }
        // Go prints package names, which end with the folder.
        let ends = file.match_indices('/').map(|(at, _)| join(folder, &file[at + 1..]));
        ends.take(SUFFIXES_MAX).find(exists).unwrap_or_else(|| join(folder, file))
    };
    let placed =
        failures.into_iter().map(|failure| CiFailure { file: failure.file.map(place), ..failure });
    placed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_which_no_test_matched_is_recognized() {
        let counts = |passed, failed, skipped| CiTestCounts {
            passed,
            failed,
            skipped,
            ..CiTestCounts::default()
        };
        let unmatched =
            |kind, exit_code, summary| is_filter_unmatched(kind, exit_code, &summary, "");
        assert!(unmatched(BuildTool::Cargo, 0, counts(Some(0), Some(0), Some(0))));
        assert!(!unmatched(BuildTool::Cargo, 0, counts(Some(0), Some(0), Some(1))), "ignored");
        assert!(!unmatched(BuildTool::Cargo, 0, counts(None, None, None)), "another test harness");
        assert!(unmatched(BuildTool::Go, 0, counts(None, None, None)));
        assert!(!unmatched(BuildTool::Go, 0, counts(Some(1), None, None)));
        assert!(unmatched(BuildTool::Pytest, 5, counts(None, None, Some(3))));
        let printed = "ERROR: not found: /w/test_a.py::test_b";
        assert!(is_filter_unmatched(BuildTool::Pytest, 4, &CiTestCounts::default(), printed));
        assert!(!is_filter_unmatched(BuildTool::Pytest, 4, &CiTestCounts::default(), "usage"));
        assert!(unmatched(BuildTool::Npm, 0, counts(Some(0), Some(0), Some(2))));
        assert!(!unmatched(BuildTool::Npm, 0, counts(None, None, None)));
        assert!(!unmatched(BuildTool::Npm, 1, counts(Some(0), Some(1), None)));
        let printed = "No test matches the given testcase filter `x` in t.dll";
        assert!(is_filter_unmatched(BuildTool::Dotnet, 0, &CiTestCounts::default(), printed));
    }
}
