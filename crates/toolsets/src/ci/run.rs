//! `ci.run`: runs one command line in a folder, with the rules of `exec.run`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{Ctx, Effects, Ending, Text, Tool, ToolError};

use super::Ci;
use super::command_line::{Line, read};
use crate::exec::{self, Blamed, Outcome, TIMEOUT_MS_MAX, Words};

/// The `ci.run` tool.
pub(super) struct Run(pub(super) Ci);

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// Command line, e.g. `cargo run -- --help`; with `args`, the program alone. Pipes,
    /// redirections, globs and variables are run by `sh`, if that is allowed.
    command: String,
    /// Arguments of the program, passed unchanged.
    #[serde(default)]
    args: Option<Vec<String>>,
    /// Folder to run in, inside the workspace; its root by default.
    #[serde(default)]
    folder: Option<String>,
    /// Time limit, after which it is stopped with all it started; 600000 unless the server is set
    /// otherwise.
    #[serde(default)]
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    timeout_ms: Option<u64>,
    /// Most bytes of each output in the result; longer output shows its beginning and end.
    #[serde(default)]
    #[schemars(range(min = 1))]
    max_output_bytes: Option<usize>,
}

impl Tool for Run {
    const NAME: &'static str = "ci.run";
    const TITLE: &'static str = "Run command line";
    const ABOUT: &'static str = "Runs one command line in a folder of the workspace, with the \
        build tools' own folders and caches at hand, and returns its exit code and what it \
        printed. For builds and tests of known kinds ci_build and ci_test tell more.";
    const EFFECTS: Effects = Effects::Runs;
    const RULED_AS: Option<&'static str> = super::RULED_AS;
    const DEADLINE: Option<Duration> = super::DEADLINE;
    const LOOKS_BEFORE: bool = true;
    type Input = Input;
    type Output = Outcome;

    async fn before(&self, ctx: &Ctx, input: &Input) -> Result<(), ToolError> {
        if self.0.programs.settings.confirm.is_empty() {
            return Ok(());
        }
        let asked = self.asked(input.clone());
        self.0.programs.found(ctx, asked, Words::Line).await.map(drop).map_err(told)
    }

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Outcome, ToolError> {
        let start =
            self.0.programs.found(ctx, self.asked(input), Words::Line).await.map_err(told)?;
        let blamed = |blamed, message: String| match blamed {
            Blamed::Program => ToolError::invalid("/command", message),
            Blamed::Arguments => ToolError::invalid("/args", message),
        };
        self.0.programs.run(ctx, start, None, blamed).await
    }

    fn text(output: &Outcome) -> Text {
        output.text(&format!("timeout_ms gives it longer, up to {TIMEOUT_MS_MAX}"))
    }

    fn ending(output: &Outcome) -> Ending {
        output.ending(&[0])
    }
}

impl Run {
    /// Converts the input to that of `exec.run`.
    fn asked(&self, input: Input) -> exec::Input {
        let Input { command, args, folder, timeout_ms, max_output_bytes } = input;
        let (command, args, shell) = match args {
            Some(args) => (command, args, false),
            None => match read(&command) {
                Line::Words(mut words) if !words.is_empty() => {
                    let program = words.remove(0);
                    (program, words, false)
                }
                Line::Words(_) => (command, Vec::new(), false),
                Line::Script => (command, Vec::new(), true),
            },
        };
        exec::Input {
            command,
            args,
            shell,
            cwd: folder,
            env: self.0.variables(),
            stdin: None,
            timeout_ms: Some(timeout_ms.unwrap_or(self.0.settings.timeout_ms)),
            max_output_bytes,
        }
    }
}

/// Converts an error of `exec` to name the fields of this tool's input.
fn told(err: ToolError) -> ToolError {
    let is_cwd = matches!(
        &err.fault,
        toolgate_contract::Fault::Invalid { pointer } if pointer == "/cwd"
    );
    if is_cwd { err.at("/folder") } else { err }
}
