//! `ci.run`: runs a single command line in a folder, under the policy of `exec.run`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError, ToolRunStatus};

use super::CiContext;
use super::command_line::{CiCommandLine, split_words};
use crate::exec::{
    self, MORE_OUTPUT, ProgramInputFieldNames, ProgramRunResult, StartFailureCause, TIMEOUT_MS_MAX,
};

/// The `ci.run` tool.
pub(super) struct RunCommandLine(pub(super) CiContext);

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommandLineInput {
    /// Command line, e.g. `cargo run -- --help`.
    command: String,
    /// Arguments of the program, passed unchanged.
    #[serde(default)]
    args: Option<Vec<String>>,
    /// Folder to run in.
    #[serde(default)]
    path: Option<String>,
    /// Time limit in milliseconds; 600000 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    timeout_ms: Option<u64>,
    /// Maximum bytes of each output in the result; longer output shows its beginning and end.
    #[serde(default)]
    #[schemars(range(min = 1))]
    max_output_bytes: Option<usize>,
}

impl Tool for RunCommandLine {
    const NAME: &'static str = "ci.run";
    const TITLE: &'static str = "Run command line";
    const DESCRIPTION: &'static str =
        "Run a command line in a folder, with the caches of the build tools.";
    const EFFECTS: Effects = Effects::Runs;
    const STORES_OUTPUT: bool = true;
    const ALIASES: &'static [(&'static str, &'static str)] = super::PROJECT_ALIASES;
    const RARE_ARGUMENTS: &'static [&'static str] = &["args", "timeout_ms", "max_output_bytes"];
    const RULED_AS: Option<&'static str> = super::RULED_AS;
    const DEADLINE: Option<Duration> = super::DEADLINE;
    const HAS_PREPARE: bool = true;
    type Input = RunCommandLineInput;
    type Output = ProgramRunResult;

    async fn prepare(
        &self,
        ctx: &ToolContext,
        input: &RunCommandLineInput,
    ) -> Result<(), ToolError> {
        if self.0.programs.settings.confirm.is_empty() {
            return Ok(());
        }
        let input = self.program_input(input.clone());
        self.0
            .programs
            .prepare(ctx, input, ProgramInputFieldNames::CommandLine)
            .await
            .map(drop)
            .map_err(with_folder_pointer)
    }

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let start = self
            .0
            .programs
            .prepare(ctx, self.program_input(input), ProgramInputFieldNames::CommandLine)
            .await
            .map_err(with_folder_pointer)?;
        let to_error = |cause, message: String| match cause {
            StartFailureCause::Program => ToolError::invalid("/command", message),
            StartFailureCause::Arguments => ToolError::invalid("/args", message),
        };
        self.0.programs.run(ctx, start, None, to_error).await
    }

    fn result_text(output: &ProgramRunResult) -> ResultText {
        output.text(&format!("set `timeout_ms` for more time, up to {TIMEOUT_MS_MAX}"), MORE_OUTPUT)
    }

    fn ending(output: &ProgramRunResult) -> ToolRunStatus {
        output.ending(&[0])
    }
}

impl RunCommandLine {
    /// Converts the input of `ci.run` to the input of `exec.run`.
    fn program_input(&self, input: RunCommandLineInput) -> exec::RunProgramInput {
        let RunCommandLineInput { command, args, path, timeout_ms, max_output_bytes } = input;
        let (command, args, shell) = match args {
            Some(args) => (command, args, false),
            None => match split_words(&command) {
                CiCommandLine::Words(mut words) if !words.is_empty() => {
                    let program = words.remove(0);
                    (program, words, false)
                }
                CiCommandLine::Words(_) => (command, Vec::new(), false),
                CiCommandLine::Script => (command, Vec::new(), true),
            },
        };
        exec::RunProgramInput {
            command,
            args,
            shell,
            cwd: path,
            env: self.0.variables(),
            stdin: None,
            timeout_ms: Some(timeout_ms.unwrap_or(TIMEOUT_MS_MAX)),
            max_output_bytes,
        }
    }
}

/// Changes `err`, an error of `exec.run`, to name the input field `path` of `ci.run` instead of
/// `cwd`.
fn with_folder_pointer(err: ToolError) -> ToolError {
    let is_cwd = matches!(
        &err.fault,
        toolgate_contract::ToolErrorKind::Invalid { pointer } if pointer == "/cwd"
    );
    if is_cwd { err.with_pointer("/path") } else { err }
}
