//! Runs a declared command as a tool: builds its command line from the arguments, and a result from
//! its exit.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use toolgate_contract::{
    AnyTool, LazySchema, ProducedFile, ToolContext, ToolError, ToolErrorKind, ToolFuture,
    ToolOutput, ToolSpec, exact_json,
};

use super::argument::{CommandArgumentValues, pointer};
use super::artefacts::{
    ArtefactFolders, ArtefactPattern, CollectedArtefacts, FilledArtefactPattern,
};
use super::declared_command::DeclaredCommand;
use crate::exec::{
    OutputProgressParser, ProgramRunResult, StartFailureCause, TIMEOUT_MS, WorkspaceProgramRunner,
    bounds, set_trace_variables,
};
use toolgate_world::processes::ProgramStartRequest;
use toolgate_world::programs::{ProgramLookupError, ResolvedProgram};
use toolgate_world::root::FileTime;

/// The difference between the deadline of a call and its program's timeout. The timeout is shorter,
/// so that it ends the program first.
const EXTRA_TIME: Duration = Duration::from_secs(10);

/// A tool that runs one declared command.
pub(super) struct DeclaredCommandTool {
    declared: DeclaredCommand,
    programs: WorkspaceProgramRunner,
    spec: ToolSpec,
}

/// The result of running a declared command.
#[derive(Debug, Serialize, JsonSchema)]
struct CommandRunResult {
    #[serde(flatten)]
    outcome: ProgramRunResult,
    /// The program and its arguments.
    argv: Vec<String>,
    /// Files that the command created or changed.
    artefacts: Vec<String>,
    /// Files outside the workspace that the command may have written, but that are not artefacts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
}

/// A call of a declared command, with its arguments inserted into the templates.
struct PreparedCommandCall {
    words: Vec<String>,
    stdin: Option<String>,
    artefacts: Vec<FilledArtefactPattern>,
}

impl DeclaredCommandTool {
    pub(super) fn new(declared: DeclaredCommand, programs: &WorkspaceProgramRunner) -> Self {
        let timeout = timeout(&declared);
        let spec = ToolSpec {
            // The owner declares the program, so the policy need not treat it like arbitrary
            // programs.
            ruled_as: None,
            paths: declared.paths(),
            idempotent: declared.idempotent,
            stores_output: true,
            deadline: Some(timeout + EXTRA_TIME),
            concurrency_max: declared.at_once,
            input_schema: declared.schema().into(),
            output_schema: Some(LazySchema::for_type::<CommandRunResult>()),
            ..ToolSpec::new(declared.id.clone(), &declared.title, &declared.about, declared.effects)
        };
        let programs = programs.for_tool(spec.id.as_str()).with_only_reads(declared.only_reads());
        Self { declared, programs, spec }
    }

    async fn call(&self, ctx: &ToolContext, input: Value) -> Result<ToolOutput, ToolError> {
        let Value::Object(input) = self.declared.normalised(input) else {
            return Err(ToolError::invalid("", "the arguments are not an object"));
        };
        let PreparedCommandCall { words, stdin, artefacts: queries } = self.prepare(&input)?;
        let start = self.prepare_start(ctx, &words, stdin).await?;
        let mut argv = vec![start.program.path.to_string_lossy().into_owned()];
        argv.extend(words);
        let to_error = |cause, message: String| match cause {
            StartFailureCause::Program => ToolError::new(ToolErrorKind::Unavailable, message),
            StartFailureCause::Arguments => ToolError::invalid("", message),
        };
        let meter = self.declared.progress.as_ref().and_then(OutputProgressParser::new);
        let started = FileTime::now();
        let outcome = self.programs.run(ctx, start, meter, to_error).await?;
        let collect =
            move |root: &_, watch: &_| CollectedArtefacts::collect(root, queries, started, watch);
        let CollectedArtefacts { files, left_out, notes, .. } =
            self.programs.root.run_blocking(ctx, collect).await?;
        let artefacts: Vec<String> = files.keys().cloned().collect();
        for (path, handle) in files {
            ctx.report_file(ProducedFile { path, handle });
        }
        let result = CommandRunResult { outcome, argv, artefacts, left_out };
        let mut text =
            result.outcome.text("set the `deadline_ms` of the command for more time", "");
        for note in notes.into_iter().chain(artefact_note(&result.artefacts)) {
            text.note = Some(text.note.map_or(note.clone(), |before| format!("{before}; {note}")));
        }
        let ending = result.outcome.ending(&self.declared.success);
        let value = exact_json::to_value(&result).map_err(|err| {
            ToolError::with_cause("the command's result cannot be written as JSON", err)
        })?;
        Ok(ToolOutput::new(value, text, ending))
    }

    /// Inserts the arguments in `input` into the command line, the standard input and the artefact
    /// patterns. Refuses invalid arguments.
    fn prepare(&self, input: &Map<String, Value>) -> Result<PreparedCommandCall, ToolError> {
        let declared = &self.declared;
        self.check_names(input)?;
        let given = CommandArgumentValues::new(&declared.arguments, input);
        let mut words = Vec::new();
        for item in &declared.argv {
            item.render(&given, &declared.rest, &mut words)?;
        }
        let stdin = match declared.stdin.and_then(|index| given.value(index)) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(other) => Some(other.to_string()),
            None => None,
        };
        let cwd = declared.cwd.as_deref().unwrap_or("");
        let mut queries = Vec::new();
        let folders = self.artefact_folders();
        let is_confined = self.programs.confinement().is_some();
        for pattern in &declared.artefacts {
            let filled = pattern.fill(&given, cwd, &folders)?;
            if is_confined {
                check_reachable(&filled, pattern, &given)?;
            }
            queries.extend(filled);
        }
        Ok(PreparedCommandCall { words, stdin, artefacts: queries })
    }

    /// Returns the folders in which the program may write artefacts.
    fn artefact_folders(&self) -> ArtefactFolders<'_> {
        let programs = &self.programs;
        let outside = match programs.confinement() {
            Some(confinement) if !confinement.may_write() => Vec::new(),
            Some(_) | None => programs.processes.writable_folders(),
        };
        ArtefactFolders { workspace: programs.root.path(), outside }
    }

    /// Refuses unknown arguments, two spellings of one argument, and missing arguments.
    fn check_names(&self, input: &Map<String, Value>) -> Result<(), ToolError> {
        let declared = &self.declared;
        if let Some(name) = input.keys().find(|name| !declared.has_argument(name)) {
            let shown = name.escape_debug();
            let message = match declared.find_alias(name) {
                Some(target) => format!(
                    "`{shown}` is an alias of `{target}`, which is also set; set only one of the \
                     two"
                ),
                None => {
                    let names = declared.arguments.iter().map(|argument| argument.name.as_str());
                    let suggestion = super::suggestion(name, names);
                    format!("`{shown}` is not an argument of `{}`{suggestion}", declared.id())
                }
            };
            return Err(ToolError::invalid(pointer(name), message));
        }
        let missing = declared
            .arguments
            .iter()
            .find(|argument| argument.note.required && !input.contains_key(&argument.name));
        match missing {
            Some(argument) => Err(ToolError::invalid(
                argument.pointer(),
                format!("`{}` is missing", argument.name),
            )),
            None => Ok(()),
        }
    }

    /// Prepares the start of the command's program with the command-line arguments `words` and the
    /// input `stdin`. Fails if the program is not found or its working directory cannot be opened.
    async fn prepare_start(
        &self,
        ctx: &ToolContext,
        words: &[String],
        stdin: Option<String>,
    ) -> Result<ProgramStartRequest, ToolError> {
        let Self { declared, programs, .. } = self;
        let path = programs.processes.search_path();
        let cwd = declared.cwd.clone().unwrap_or_else(|| ".".to_owned());
        let opened = programs.root.run_blocking(ctx, move |root, _| root.open_dir(&cwd)).await;
        let cwd = opened.map_err(|err| {
            if err.fault == ToolErrorKind::Canceled {
                return err;
            }
            let at = declared.cwd.as_deref().unwrap_or(".");
            ToolError::new(
                ToolErrorKind::Unavailable,
                format!(
                    "the command starts in the directory `{at}`, which cannot be opened: {}",
                    err.message
                ),
            )
        })?;
        let program = find_program(declared, programs, &cwd, &path)?;
        let mut keep = programs.settings.env_keep.clone();
        keep.extend(declared.env_keep.iter().cloned());
        let mut env = programs.processes.environment(&keep, &path);
        set_trace_variables(&mut env, ctx.trace.as_ref());
        env.extend(declared.env.iter().map(|(name, value)| (name.into(), value.into())));
        let mut confinement = programs.confinement();
        if let Some(confinement) = &mut confinement {
            // The program's file must be visible in the sandbox, because the owner declared it.
            confinement.visible_paths.extend(absolute_path(&program));
            if let Some(access) = &declared.hosts {
                confinement.limit_to_hosts(access);
            }
        }
        Ok(ProgramStartRequest {
            program,
            args: words.iter().map(OsString::from).collect(),
            cwd,
            env,
            stdin: stdin.map(String::into_bytes),
            bounds: bounds(&programs.settings, timeout(declared), None),
            confinement,
        })
    }
}

/// Refuses a call whose arguments name an artefact outside the folders in which a sandboxed program
/// can write. The sandbox would discard the file although the call succeeds.
fn check_reachable(
    filled: &[FilledArtefactPattern],
    pattern: &ArtefactPattern,
    given: &CommandArgumentValues<'_>,
) -> Result<(), ToolError> {
    let outside = filled.iter().find_map(|query| match query {
        FilledArtefactPattern::Outside(path) => Some(path),
        FilledArtefactPattern::Within { .. } | FilledArtefactPattern::Impossible => None,
    });
    let arguments = pattern.arguments();
    let (Some(path), Some(index)) = (outside, arguments.first()) else { return Ok(()) };
    let message = format!(
        "{} is outside the workspace, so the file would be lost when the program ends; choose a \
         path in the workspace, or add its folder to `sandbox.write`",
        toolgate_world::root::quoted_path(path)
    );
    Err(ToolError::invalid(given.argument(*index).pointer(), message))
}

fn absolute_path(program: &ResolvedProgram) -> Option<PathBuf> {
    Some(program.path.clone()).filter(|path| path.is_absolute())
}

impl AnyTool for DeclaredCommandTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn normalize_input(&self, input: Value) -> Value {
        self.declared.normalised(input)
    }

    fn command_line(&self, input: &Value) -> Option<Vec<String>> {
        let declared = &self.declared;
        let normalised;
        let mut input = input.as_object()?;
        if !input.keys().all(|name| declared.has_argument(name)) {
            normalised = declared.normalised(Value::Object(input.clone()));
            input = normalised.as_object()?;
        }
        let given = CommandArgumentValues::new(&declared.arguments, input);
        let mut words = vec![declared.program.name.clone()];
        for item in &declared.argv {
            item.render(&given, &declared.rest, &mut words).ok()?;
        }
        Some(words)
    }

    fn settings_fingerprint(&self) -> String {
        let sandbox = self.programs.confinement();
        let sandbox = sandbox.map(|sandbox| (sandbox.profile, sandbox.read_only, sandbox.hosts));
        format!("{} sandbox={sandbox:?}", self.declared.fingerprint())
    }

    fn run<'a>(&'a self, ctx: &'a ToolContext, input: Value) -> ToolFuture<'a, ToolOutput> {
        Box::pin(self.call(ctx, input))
    }
}

fn timeout(declared: &DeclaredCommand) -> Duration {
    declared.deadline.unwrap_or(Duration::from_millis(TIMEOUT_MS))
}

/// Returns a note that lists the paths `artefacts`, for the text of a result. Returns `None` if
/// there are none.
fn artefact_note(artefacts: &[String]) -> Option<String> {
    const SHOWN: usize = 8;
    let shown = artefacts.iter().take(SHOWN).map(|path| toolgate_world::root::quoted_path(path));
    let shown: Vec<String> = shown.collect();
    let more = match artefacts.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!shown.is_empty()).then(|| format!("artefacts: {}{more}", shown.join(", ")))
}

/// Finds the program of a command. The environment variable has priority, then the settings, then
/// the declaration.
fn find_program(
    declared: &DeclaredCommand,
    programs: &WorkspaceProgramRunner,
    cwd: &std::os::fd::OwnedFd,
    path: &str,
) -> Result<ResolvedProgram, ToolError> {
    use std::os::fd::AsFd;
    let super::declared_command::CommandProgram { name, at, env } = &declared.program;
    let set = env.as_ref().and_then(|env| programs.processes.variable(env));
    let set = set.map(|at| at.to_string_lossy().into_owned()).filter(|at| !at.is_empty());
    let path_or_name = set.as_deref().unwrap_or(at);
    ResolvedProgram::find(path_or_name, cwd.as_fd(), path).map_err(|missing| {
        let reason = match missing {
            ProgramLookupError::Absent if path_or_name.contains('/') => {
                format!("there is no file `{path_or_name}`")
            }
            ProgramLookupError::Absent => format!("`{path_or_name}` is not in PATH ({path})"),
            ProgramLookupError::NotAFile => format!("`{path_or_name}` is not a file"),
            ProgramLookupError::NotExecutable => format!("`{path_or_name}` is not executable"),
        };
        let advice = match env {
            Some(env) if set.is_some() => format!("; correct the variable {env}"),
            Some(env) => {
                format!("; install it, or set its path in `commands.programs.{name}` or {env}")
            }
            None => format!("; install it, or set its path in `commands.programs.{name}`"),
        };
        let id = declared.id();
        let message =
            format!("`{id}` needs the program `{name}`, which is missing: {reason}{advice}");
        ToolError::new(ToolErrorKind::Unavailable, message)
    })
}
