//! Runs a declared command as a tool: from arguments to a command line, and from its exit to a
//! result.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use toolgate_contract::{
    AnyTool, BoxFuture, Ctx, Effects, Fault, LeftFile, Output, Schema, ToolError, ToolSpec,
};

use super::argument::{Given, pointer};
use super::artefacts::{Left, Sought};
use super::declared::{Declared, PASSTHROUGH};
use super::template::text;
use crate::exec::{Blamed, Meter, Outcome, Programs, bounds, trace};
use crate::world::processes::{Missing, Program, Start};
use crate::world::root::Moment;

/// The extra time of a call beyond its program's timeout, so that the program's own timeout ends it
/// first.
const BEYOND: Duration = Duration::from_secs(10);

/// The tool of one declared command.
pub(super) struct Command {
    declared: Declared,
    programs: Programs,
    spec: ToolSpec,
}

/// The result of a command.
#[derive(Debug, Serialize, JsonSchema)]
struct Ran {
    #[serde(flatten)]
    outcome: Outcome,
    /// The program and its arguments.
    argv: Vec<String>,
    /// Files it created or changed in the workspace.
    artefacts: Vec<String>,
}

/// A call with its arguments filled into the templates.
struct Placed {
    words: Vec<String>,
    stdin: Option<String>,
    sought: Vec<Sought>,
}

impl Command {
    pub(super) fn new(declared: Declared, programs: &Programs) -> Self {
        let timeout = timeout(&declared, programs);
        let spec = ToolSpec {
            // The owner declares the program, so the policy need not treat it like arbitrary
            // programs.
            ruled_as: None,
            paths: declared.paths(),
            idempotent: declared.idempotent,
            deadline: Some(timeout + BEYOND),
            at_once: declared.at_once,
            priority: declared.priority,
            input_schema: declared.schema().into(),
            output_schema: Some(Schema::of::<Ran>()),
            ..ToolSpec::new(declared.id.clone(), &declared.title, &declared.about, declared.effects)
        };
        let only_reads = declared.effects == Effects::Reads;
        let programs = programs.of(spec.id.as_str()).reading(only_reads);
        Self { declared, programs, spec }
    }

    async fn called(&self, ctx: &Ctx, input: Value) -> Result<Output, ToolError> {
        let Value::Object(input) = self.declared.normalised(input) else {
            return Err(ToolError::invalid("", "the arguments are not an object"));
        };
        let Placed { words, stdin, sought } = self.placed(&input)?;
        let start = self.start(ctx, &words, stdin).await?;
        let mut argv = vec![start.program.path.to_string_lossy().into_owned()];
        argv.extend(words);
        let blamed = |blamed, message: String| match blamed {
            Blamed::Program => ToolError::new(Fault::Unavailable, message),
            Blamed::Arguments => ToolError::invalid("", message),
        };
        let meter = self.declared.progress.as_ref().and_then(Meter::new);
        let started = Moment::now();
        let outcome = self.programs.run(ctx, start, meter, blamed).await?;
        let gather = move |root: &_, watch: &_| Left::gather(root, sought, started, watch);
        let Left { files, notes, .. } = self.programs.root.work(ctx, gather).await?;
        let artefacts: Vec<String> = files.keys().cloned().collect();
        for (path, handle) in files {
            ctx.left(LeftFile { path, handle });
        }
        let ran = Ran { outcome, argv, artefacts };
        let mut text = ran.outcome.text("the `deadline_ms` of the command gives it longer");
        for note in notes.into_iter().chain(told(&ran.artefacts)) {
            text.note = Some(text.note.map_or(note.clone(), |before| format!("{before}; {note}")));
        }
        let ending = ran.outcome.ending(&self.declared.success);
        let value = serde_json::to_value(&ran)
            .map_err(|err| ToolError::because("the result is not JSON", err))?;
        Ok(Output::new(value, text, ending))
    }

    /// Fills in the command line, the standard input and the artefact patterns of a call.
    fn placed(&self, input: &Map<String, Value>) -> Result<Placed, ToolError> {
        let declared = &self.declared;
        self.check_names(input)?;
        let given = Given::new(&declared.arguments, input);
        let mut words = Vec::new();
        for item in &declared.argv {
            item.render(&given, &declared.rest, &mut words)?;
        }
        if declared.passthrough {
            for (at, word) in
                input.get(PASSTHROUGH).and_then(Value::as_array).into_iter().flatten().enumerate()
            {
                words.push(text(word, &format!("/{PASSTHROUGH}/{at}"))?);
            }
        }
        let stdin = match declared.stdin.and_then(|index| given.value(index)) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(other) => Some(other.to_string()),
            None => None,
        };
        let cwd = declared.cwd.as_deref().unwrap_or("");
        let mut sought = Vec::new();
        for pattern in &declared.artefacts {
            sought.extend(pattern.sought(&given, cwd, self.programs.root.path())?);
        }
        Ok(Placed { words, stdin, sought })
    }

    /// Refuses unknown arguments, duplicate spellings of one argument, and missing arguments.
    fn check_names(&self, input: &Map<String, Value>) -> Result<(), ToolError> {
        let declared = &self.declared;
        for name in input.keys().filter(|name| !declared.has(name)) {
            let shown = name.escape_debug();
            if let Some(target) = declared.target(name) {
                let message = format!(
                    "`{shown}` is another name of `{target}`, which is given too; give one of them"
                );
                return Err(ToolError::invalid(pointer(name), message));
            }
            if !declared.ignore_extra {
                let names = declared.arguments.iter().map(|argument| argument.name.as_str());
                let near = super::nearest(name, names);
                let message = format!("no argument is called `{shown}`{near}");
                return Err(ToolError::invalid(pointer(name), message));
            }
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

    /// Prepares the program of a call with the arguments `words`.
    async fn start(
        &self,
        ctx: &Ctx,
        words: &[String],
        stdin: Option<String>,
    ) -> Result<Start, ToolError> {
        let Self { declared, programs, .. } = self;
        let path = programs.processes.path(programs.settings.path.as_deref());
        let cwd = declared.cwd.clone().unwrap_or_else(|| ".".to_owned());
        let opened = programs.root.work(ctx, move |root, _| root.open_dir(&cwd)).await;
        let cwd = opened.map_err(|err| {
            if err.fault == Fault::Canceled {
                return err;
            }
            let at = declared.cwd.as_deref().unwrap_or(".");
            ToolError::new(
                Fault::Unavailable,
                format!(
                    "the directory `{at}` that it starts in cannot be entered: {}",
                    err.message
                ),
            )
        })?;
        let program = find(declared, programs, &cwd, &path)?;
        let mut keep = programs.settings.env_keep.clone();
        keep.extend(declared.env_keep.iter().cloned());
        let mut env = programs.processes.environment(&keep, &path);
        trace(&mut env, ctx.trace.as_ref());
        env.extend(declared.env.iter().map(|(name, value)| (name.into(), value.into())));
        let mut inside = programs.inside();
        if let Some(inside) = &mut inside {
            // The program's file must be visible in the sandbox, because the owner declared it.
            inside.seen.extend(absolute(&program));
        }
        Ok(Start {
            program,
            args: words.iter().map(OsString::from).collect(),
            cwd,
            env,
            stdin: stdin.map(String::into_bytes),
            bounds: bounds(&programs.settings, timeout(declared, programs), None),
            inside,
        })
    }
}

fn absolute(program: &Program) -> Option<PathBuf> {
    Some(program.path.clone()).filter(|path| path.is_absolute())
}

impl AnyTool for Command {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn normalised(&self, input: Value) -> Value {
        self.declared.normalised(input)
    }

    fn run<'a>(&'a self, ctx: &'a Ctx, input: Value) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(self.called(ctx, input))
    }
}

fn timeout(declared: &Declared, programs: &Programs) -> Duration {
    declared.deadline.unwrap_or(Duration::from_millis(programs.settings.timeout_ms))
}

/// Returns a note for a reader that lists the artefacts.
fn told(artefacts: &[String]) -> Option<String> {
    const SHOWN: usize = 8;
    let shown = artefacts.iter().take(SHOWN).map(|path| crate::world::root::shown(path));
    let shown: Vec<String> = shown.collect();
    let more = match artefacts.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!shown.is_empty()).then(|| format!("left {}{more}", shown.join(", ")))
}

/// Finds the program of a command. The environment variable comes first, then the settings, then
/// the declaration.
fn find(
    declared: &Declared,
    programs: &Programs,
    cwd: &std::os::fd::OwnedFd,
    path: &str,
) -> Result<Program, ToolError> {
    use std::os::fd::AsFd;
    let super::declared::Program { name, at, env } = &declared.program;
    let set = env.as_ref().and_then(|env| programs.processes.variable(env));
    let set = set.map(|at| at.to_string_lossy().into_owned()).filter(|at| !at.is_empty());
    let sought = set.as_deref().unwrap_or(at);
    Program::find(sought, cwd.as_fd(), path).map_err(|missing| {
        let why = match missing {
            Missing::Absent if sought.contains('/') => format!("there is no file `{sought}`"),
            Missing::Absent => format!("no `{sought}` is in PATH ({path})"),
            Missing::NotAFile => format!("`{sought}` is not a file"),
            Missing::NotExecutable => format!("`{sought}` is not executable"),
        };
        let or = match env {
            Some(env) if set.is_some() => format!(", where the variable {env} says it is"),
            Some(env) => {
                format!("; install it, or say where it is: `commands.programs.{name}` or {env}")
            }
            None => format!("; install it, or say where it is in `commands.programs.{name}`"),
        };
        let id = declared.id();
        let message = format!("`{id}` needs the program `{name}`, which is missing: {why}{or}");
        ToolError::new(Fault::Unavailable, message)
    })
}
