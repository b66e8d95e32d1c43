//! `exec.run`: runs one program to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError, ToolRunStatus};
use toolgate_net::spawn_blocking;

use super::confirm::confirm;
use super::outcome::ProgramRunResult;
use super::program::ProgramInputFieldNames;
use super::programs::{StartFailureCause, WorkspaceProgramRunner};
use super::start::prepare_start;
use toolgate_world::processes::ProgramStartRequest;

/// The default timeout of a program, in milliseconds. A caller that expects a longer run can set a
/// timeout.
pub(crate) const TIMEOUT_MS: u64 = 60_000;

/// The advice after a cut output, for a caller that cannot call `exec_output`.
pub(crate) const MORE_OUTPUT: &str = "set `max_output_bytes` for more of it";

/// The longest timeout that a call may set, in milliseconds.
pub(crate) const TIMEOUT_MS_MAX: u64 = 600_000;

/// The `exec.run` tool.
pub(super) struct RunProgram {
    programs: WorkspaceProgramRunner,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunProgramInput {
    /// A program; with `shell`, a script for `sh`.
    pub(crate) command: String,
    /// Arguments, passed unchanged.
    #[serde(default)]
    pub(crate) args: Vec<String>,
    /// Allow pipes, redirections and globs.
    #[serde(default)]
    pub(crate) shell: bool,
    /// Directory to start in.
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// Environment variables to add.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Standard input.
    #[serde(default)]
    pub(crate) stdin: Option<String>,
    /// Time limit in ms; 60000 by default, at most 600000.
    #[serde(default)]
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    pub(crate) timeout_ms: Option<u64>,
    /// Maximum bytes of each output in the result; longer output shows its beginning and end. 32768
    /// by default, at most 1048576.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub(crate) max_output_bytes: Option<usize>,
}

impl Tool for RunProgram {
    const NAME: &'static str = "exec.run";
    const TITLE: &'static str = "Run program";
    const DESCRIPTION: &'static str = "Run one program and return its exit code and output. There \
        is no terminal, and usually no network. When the program ends, everything that it started \
        is stopped. Programs cannot write `.git`: use the git tools.";
    const EFFECTS: Effects = Effects::Runs;
    const STORES_OUTPUT: bool = true;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("workdir", "cwd"), ("working_directory", "cwd")];
    const RARE_ARGUMENTS: &'static [&'static str] = &["max_output_bytes"];
    /// The deadline of calls. It exceeds the longest timeout of a program, so that a timeout ends
    /// the program before the deadline ends the call.
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(610));
    const HAS_PREPARE: bool = true;
    type Input = RunProgramInput;
    type Output = ProgramRunResult;

    async fn prepare(&self, ctx: &ToolContext, input: &RunProgramInput) -> Result<(), ToolError> {
        if self.programs.settings.confirm.is_empty() {
            return Ok(());
        }
        self.programs.prepare(ctx, input.clone(), ProgramInputFieldNames::Program).await.map(drop)
    }

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let start = self.programs.prepare(ctx, input, ProgramInputFieldNames::Program).await?;
        let to_error = |cause, message: String| match cause {
            StartFailureCause::Program => ToolError::invalid("/command", message),
            StartFailureCause::Arguments => ToolError::invalid("/args", message),
        };
        self.programs.run(ctx, start, None, to_error).await
    }

    fn result_text(output: &ProgramRunResult) -> ResultText {
        output.text(&format!("set `timeout_ms` for more time, up to {TIMEOUT_MS_MAX}"), MORE_OUTPUT)
    }

    fn ending(output: &ProgramRunResult) -> ToolRunStatus {
        output.ending(&[0])
    }
}

impl RunProgram {
    pub(super) fn new(programs: &WorkspaceProgramRunner) -> Self {
        Self { programs: programs.for_tool(Self::NAME) }
    }
}

impl WorkspaceProgramRunner {
    /// Looks up the program of `input`, and asks a person to confirm it if the settings require
    /// that. Errors refer to the input fields in `fields`.
    ///
    /// The program file is opened before the question, so the confirmed file is the file that runs.
    pub(crate) async fn prepare(
        &self,
        ctx: &ToolContext,
        input: RunProgramInput,
        fields: ProgramInputFieldNames,
    ) -> Result<ProgramStartRequest, ToolError> {
        let cwd = input.cwd.clone();
        let start = self.prepare_unconfirmed(ctx, input, fields).await?;
        confirm(ctx, self, &start, cwd.as_deref()).await?;
        Ok(start)
    }

    /// Looks up the program of `input` without asking for confirmation. Use this function only to
    /// query a program's version or settings.
    pub(crate) async fn prepare_unconfirmed(
        &self,
        ctx: &ToolContext,
        input: RunProgramInput,
        fields: ProgramInputFieldNames,
    ) -> Result<ProgramStartRequest, ToolError> {
        let programs = self.clone();
        let trace = ctx.trace.clone();
        spawn_blocking(move || prepare_start(input, fields, trace.as_ref(), &programs))
            .await
            .map_err(|err| ToolError::with_cause("the program could not be looked up", err))?
    }
}
