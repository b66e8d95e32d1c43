//! `ci.test`: runs a project's tests and reports the failures with location and message.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{
    Effects, JobSupport, ResultText, Tool, ToolContext, ToolError, ToolRunStatus,
};

use super::CiContext;
use super::build_tool::{BuildTool, ProjectAction};
use super::project_input;
use super::report::CiReport;
use crate::exec::TIMEOUT_MS_MAX;

const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// The `ci.test` tool.
pub(super) struct RunProjectTests(pub(super) CiContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunProjectTestsInput {
    /// Project folder.
    #[serde(default)]
    path: Option<String>,
    /// Build tool, if a folder has several; ci_detect lists them.
    #[serde(default)]
    kind: Option<BuildTool>,
    /// Selects tests by name, in the syntax of the test tool.
    #[serde(default)]
    filter: Option<String>,
    /// Further arguments.
    #[serde(default)]
    args: Vec<String>,
    /// Time limit in milliseconds; 600000 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    timeout_ms: Option<u64>,
    /// Bytes to show from the end of the output; 8192 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = OUTPUT_BYTES_MAX))]
    max_output_bytes: Option<usize>,
}

impl Tool for RunProjectTests {
    const NAME: &'static str = "ci.test";
    const TITLE: &'static str = "Test project";
    const DESCRIPTION: &'static str = "Run a project's tests. Returns counts, and failures by \
         test, file, line and message.";
    const EFFECTS: Effects = Effects::Runs;
    const STORES_OUTPUT: bool = true;
    const ALIASES: &'static [(&'static str, &'static str)] = super::PROJECT_ALIASES;
    const RARE_ARGUMENTS: &'static [&'static str] = &["kind", "timeout_ms", "max_output_bytes"];
    const RULED_AS: Option<&'static str> = super::RULED_AS;
    const DEADLINE: Option<Duration> = super::DEADLINE;
    const JOB: JobSupport = JobSupport::Preferred;
    type Input = RunProjectTestsInput;
    type Output = CiReport;

    async fn run(
        &self,
        ctx: &ToolContext,
        input: RunProjectTestsInput,
    ) -> Result<CiReport, ToolError> {
        let RunProjectTestsInput { path, kind, filter, args, timeout_ms, max_output_bytes } = input;
        let input =
            project_input::CiProjectInput { path, kind, args, timeout_ms, max_output_bytes };
        self.0.run_action(ctx, ProjectAction::Test, input, filter).await
    }

    fn result_text(output: &CiReport) -> ResultText {
        output.text()
    }

    fn ending(output: &CiReport) -> ToolRunStatus {
        output.ending()
    }
}
