//! `exec.run`: runs one program to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::task::spawn_blocking;
use toolgate_contract::{Ctx, Effects, Ending, Text, Tool, ToolError};

use super::confirm::confirm;
use super::outcome::Outcome;
use super::program::Words;
use super::programs::{Blamed, Programs};
use super::start::start;
use crate::world::processes::Start;

/// The longest timeout that a call may set, in milliseconds.
pub(crate) const TIMEOUT_MS_MAX: u64 = 600_000;

/// The `exec.run` tool.
pub(super) struct Run {
    programs: Programs,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// Program: a name in PATH, or a path, relative to `cwd` or absolute. With `shell`, a script
    /// for `sh`.
    pub(crate) command: String,
    /// Arguments, passed unchanged: nothing is split, expanded or unquoted. With `shell`, the
    /// script's `$1`, `$2` and so on.
    #[serde(default)]
    pub(crate) args: Vec<String>,
    /// Runs `command` by `sh -c`, for pipes, redirections and globs.
    #[serde(default)]
    pub(crate) shell: bool,
    /// Directory to start in, inside the workspace; its root by default.
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// Variables to add to the environment, which is otherwise nearly empty.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Standard input; empty by default.
    #[serde(default)]
    pub(crate) stdin: Option<String>,
    /// Time limit, after which it is stopped with all it started; 60000 unless the server is set
    /// otherwise.
    #[serde(default)]
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    pub(crate) timeout_ms: Option<u64>,
    /// Most bytes of each output in the result; longer output shows its beginning and end. 32768
    /// unless the server is set otherwise, at most 1048576 or the server's setting.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub(crate) max_output_bytes: Option<usize>,
}

impl Tool for Run {
    const NAME: &'static str = "exec.run";
    const TITLE: &'static str = "Run program";
    const ABOUT: &'static str = "Runs one program in the workspace and returns its exit code and \
        what it printed. Give the program in `command` and each argument in `args`; set `shell` \
        only for pipes, redirections or globs. There is no terminal and nobody to answer \
        questions. When it ends or its time is over everything it started is ended too, so \
        nothing can be left running in the background. Long output is cut in the middle; read \
        the rest with exec_output. Programs read `.git` and do not write it: use the git tools. \
        They reach no network unless the server is set otherwise.";
    const EFFECTS: Effects = Effects::Runs;
    /// The deadline exceeds the longest timeout, so that a program ends by its own timeout.
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(610));
    const LOOKS_BEFORE: bool = true;
    type Input = Input;
    type Output = Outcome;

    async fn before(&self, ctx: &Ctx, input: &Input) -> Result<(), ToolError> {
        if self.programs.settings.confirm.is_empty() {
            return Ok(());
        }
        self.programs.found(ctx, input.clone(), Words::Program).await.map(drop)
    }

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Outcome, ToolError> {
        let start = self.programs.found(ctx, input, Words::Program).await?;
        let blamed = |blamed, message: String| match blamed {
            Blamed::Program => ToolError::invalid("/command", message),
            Blamed::Arguments => ToolError::invalid("/args", message),
        };
        self.programs.run(ctx, start, None, blamed).await
    }

    fn text(output: &Outcome) -> Text {
        output.text(&format!("timeout_ms gives it longer, up to {TIMEOUT_MS_MAX}"))
    }

    fn ending(output: &Outcome) -> Ending {
        output.ending(&[0])
    }
}

impl Run {
    pub(super) fn new(programs: &Programs) -> Self {
        Self { programs: programs.of(Self::NAME) }
    }
}

impl Programs {
    /// Looks up the program of `input`, and asks a person to confirm it if necessary. Errors refer
    /// to the fields in `words`.
    ///
    /// The program is opened before the question, so the confirmed file is the one that runs.
    pub(crate) async fn found(
        &self,
        ctx: &Ctx,
        input: Input,
        words: Words,
    ) -> Result<Start, ToolError> {
        let cwd = input.cwd.clone();
        let start = self.looked_up(ctx, input, words).await?;
        confirm(ctx, self, &start, cwd.as_deref()).await?;
        Ok(start)
    }

    /// Looks up the program of `input` without asking for confirmation. Use it only to query a
    /// program's version.
    pub(crate) async fn looked_up(
        &self,
        ctx: &Ctx,
        input: Input,
        words: Words,
    ) -> Result<Start, ToolError> {
        let programs = self.clone();
        let trace = ctx.trace.clone();
        spawn_blocking(move || start(input, words, trace.as_ref(), &programs))
            .await
            .map_err(|err| ToolError::because("the program could not be looked up", err))?
    }
}
