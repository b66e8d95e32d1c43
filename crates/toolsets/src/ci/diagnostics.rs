//! `ci.diagnostics`: describes the machine and lists its build tools with their versions.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::{
    Effects, NoInput, ResultText, Tool, ToolContext, ToolError, ToolErrorKind,
};

use super::CiContext;
use crate::exec::{self, ProgramInputFieldNames, StartFailureCause};

/// The build tools to look for: display name, program, and the arguments that print its version.
const PROGRAMS: [(&str, &str, &[&str]); 14] = [
    (".NET", "dotnet", &["--version"]),
    ("Rust", "rustc", &["--version"]),
    ("Cargo", "cargo", &["--version"]),
    ("Node.js", "node", &["--version"]),
    ("npm", "npm", &["--version"]),
    ("pnpm", "pnpm", &["--version"]),
    ("Yarn", "yarn", &["--version"]),
    ("Python", "python3", &["--version"]),
    ("pytest", "python3", &["-m", "pytest", "--version"]),
    ("Go", "go", &["version"]),
    ("Java", "java", &["-version"]),
    ("make", "make", &["--version"]),
    ("GCC", "gcc", &["--version"]),
    ("Git", "git", &["--version"]),
];
/// The timeout of a program that prints its version, in milliseconds.
const TIMEOUT_MS: u64 = 10_000;

/// The `ci.diagnostics` tool.
pub(super) struct MachineDiagnostics {
    pub(super) ci: CiContext,
    pub(super) version: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MachineDiagnosticsOutput {
    /// The report as lines of text.
    lines: Vec<String>,
    /// Operating system and version.
    os: String,
    /// True for a 64-bit system.
    is_64_bit: bool,
    /// Number of processors.
    processor_count: usize,
    /// Path of the workspace.
    working_directory: String,
    /// Version of this server.
    toolgate: String,
    /// The build tools.
    programs: Vec<ProgramVersion>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ProgramVersion {
    /// Name of the program.
    name: String,
    /// Version that the program printed; null if it is missing or may not be run.
    version: Option<String>,
}

impl Tool for MachineDiagnostics {
    const NAME: &'static str = "ci.diagnostics";
    const TITLE: &'static str = "Diagnostics";
    const DESCRIPTION: &'static str = "Describe the workspace's machine: system, processors and \
         versions of build tools.";
    const EFFECTS: Effects = Effects::Runs;
    const STORES_OUTPUT: bool = true;
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<Duration> = super::DEADLINE;
    type Input = NoInput;
    type Output = MachineDiagnosticsOutput;

    async fn run(&self, ctx: &ToolContext, _: NoInput) -> Result<Self::Output, ToolError> {
        let os = self.ci.programs.processes.kernel_version();
        let is_64_bit = cfg!(target_pointer_width = "64");
        let processor_count = std::thread::available_parallelism().map_or(1, usize::from);
        let working_directory = self.ci.programs.root.path().to_string_lossy().into_owned();
        let mut lines = vec![
            format!("OS: {os}"),
            format!("64-bit OS: {}", if is_64_bit { "True" } else { "False" }),
            format!("Processor Count: {processor_count}"),
            format!("Working Directory: {working_directory}"),
        ];
        let mut programs = Vec::new();
        for (name, program, args) in PROGRAMS {
            let version = self.query_version(ctx, program, args).await?;
            lines.push(format!("{name} Version: {}", version.text()));
            programs.push(ProgramVersion { name: name.to_owned(), version: version.into_option() });
        }
        lines.push(format!("toolgate Version: {}", self.version));
        Ok(MachineDiagnosticsOutput {
            lines,
            os,
            is_64_bit,
            processor_count,
            working_directory,
            toolgate: self.version.clone(),
            programs,
        })
    }

    fn result_text(output: &MachineDiagnosticsOutput) -> ResultText {
        ResultText::from_body(output.lines.join("\n"))
    }
}

/// The answer of a program that was asked for its version.
enum DetectedVersion {
    Known(String),
    /// The program is missing, or did not print its version.
    Unknown,
    /// The setting `exec.allow` excludes the program, so it was not run.
    Forbidden,
}

impl DetectedVersion {
    fn text(&self) -> &str {
        match self {
            Self::Known(version) => version,
            Self::Unknown => "not found",
            Self::Forbidden => "may not be run",
        }
    }

    fn into_option(self) -> Option<String> {
        match self {
            Self::Known(version) => Some(version),
            Self::Unknown | Self::Forbidden => None,
        }
    }
}

impl MachineDiagnostics {
    /// Runs `program` with `args`, and returns the first line of its output as the version.
    async fn query_version(
        &self,
        ctx: &ToolContext,
        program: &str,
        args: &[&str],
    ) -> Result<DetectedVersion, ToolError> {
        let input = exec::RunProgramInput {
            command: program.to_owned(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            shell: false,
            cwd: None,
            env: self.ci.variables(),
            stdin: None,
            timeout_ms: Some(TIMEOUT_MS),
            max_output_bytes: Some(4096),
        };
        let mut start = match self
            .ci
            .programs
            .prepare_unconfirmed(ctx, input, ProgramInputFieldNames::Program)
            .await
        {
            Ok(start) => start,
            Err(err) if err.fault == ToolErrorKind::NotAllowed => {
                return Ok(DetectedVersion::Forbidden);
            }
            Err(_) => return Ok(DetectedVersion::Unknown),
        };
        // A toolchain file in the folder could make rustup download another version just to report
        // it.
        start.env.insert("RUSTUP_AUTO_INSTALL".into(), "0".into());
        let to_error = |_: StartFailureCause, message: String| ToolError::failed(message);
        let printed = std::sync::Mutex::new(Vec::new());
        let collect = |_, bytes: &[u8]| {
            if let Ok(mut printed) = printed.lock() {
                printed.extend_from_slice(bytes);
            }
            Vec::new()
        };
        match self.ci.programs.run_filtered(ctx, start, to_error, &collect).await {
            Ok(outcome) if outcome.exit_code == 0 => {}
            Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
            Ok(_) | Err(_) => return Ok(DetectedVersion::Unknown),
        }
        let printed = printed.into_inner().unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let first = printed.lines().map(str::trim).find(|line| !line.is_empty());
        Ok(first.map_or(DetectedVersion::Unknown, |first| DetectedVersion::Known(first.to_owned())))
    }
}
