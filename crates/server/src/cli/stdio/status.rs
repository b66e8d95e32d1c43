//! Reports the status of a stdio server: lines on standard error, and a ready file while it serves.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::bail;
use toolgate_service::config::Config;
use toolgate_service::serve::ready::ServerReadyFile;
use toolgate_service::telemetry;

/// Path of the ready file that Synesthetic's clients expect.
const READY_FILE: &str = "/tmp/mcp.ready";
/// Default folder of Synesthetic's schemas.
const SCHEMAS_DIR: &str = "libs/synesthetic-schemas/jsonschema";
/// Values of `MCP_ENDPOINT` that select standard input and output.
const ENDPOINTS: [&str; 2] = ["stdio", "stdio://"];

/// Style of the status reports that a stdio server prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatusReportStyle {
    /// Prints plain messages. A ready file exists if the settings name a path for it.
    Plain,
    /// Prints the status lines that Synesthetic's clients parse, and always writes a ready file.
    Synesthetic,
}

impl StatusReportStyle {
    /// Returns the style of status reports for clients of `dialect`.
    pub(super) fn for_dialect(dialect: &str) -> Self {
        if dialect == "synesthetic" { Self::Synesthetic } else { Self::Plain }
    }

    /// In the Synesthetic style, holds back all log output, because the first printed line must
    /// report readiness or failure. In the plain style, does nothing.
    pub(super) fn hold_log(self) {
        match self {
            Self::Plain => {}
            Self::Synesthetic => telemetry::hold_log(),
        }
    }

    /// Changes `config` as the clients of the dialect require. Fails if `config` contradicts their
    /// requirements.
    pub(super) fn prepare_config(self, config: &mut Config) -> anyhow::Result<()> {
        match self {
            Self::Plain => Ok(()),
            Self::Synesthetic => {
                let endpoint = config.contracts.endpoint.as_deref().map(str::trim);
                if endpoint.is_some_and(|it| !it.is_empty() && !ENDPOINTS.contains(&it)) {
                    bail!("Only STDIO transport is supported");
                }
                // Synesthetic's tools are offered even without assets.
                config.assets.owner.always_offered = true;
                Ok(())
            }
        }
    }

    /// Reports that the server could not start because of `err`. The plain style returns `err`. The
    /// Synesthetic style prints a status line and returns the exit code 2.
    pub(super) fn report_failure(self, err: anyhow::Error) -> anyhow::Result<ExitCode> {
        match self {
            Self::Plain => Err(err),
            Self::Synesthetic => {
                let detail = format!("{err:#}").replace(['\n', '\r'], " ");
                print_line(&format!("mcp:error reason=setup_failed detail={detail}"));
                telemetry::release_log();
                Ok(ExitCode::from(2))
            }
        }
    }

    /// Reports that the server is ready, and writes the ready file. Called right before the server
    /// reads its first line.
    pub(super) fn report_ready(
        self,
        root: &Path,
        config: &Config,
        ready: &OnceLock<ServerReadyFile>,
    ) {
        let configured = config.contracts.ready_file.as_deref();
        let path = match self {
            Self::Plain => configured,
            Self::Synesthetic => Some(configured.unwrap_or(Path::new(READY_FILE))),
        };
        // The ready line still reports readiness if the file cannot be written.
        let failed = path.and_then(|path| match ServerReadyFile::create(path) {
            Ok(file) => {
                let _ = ready.set(file);
                None
            }
            Err(err) => Some((path, err)),
        });
        if self == Self::Synesthetic {
            let schemas = schemas_dir(root, config);
            print_line(&format!("mcp:ready mode=stdio schemas_dir={}", schemas.display()));
            telemetry::release_log();
        }
        if let Some((path, err)) = failed {
            tracing::warn!("cannot write the ready file {}: {err}", path.display());
        }
    }

    /// Reports that the server has ended. Prints nothing in the plain style.
    pub(super) fn report_end(self) {
        match self {
            Self::Plain => {}
            Self::Synesthetic => print_line("mcp:shutdown mode=stdio"),
        }
    }
}

/// Returns the folder of Synesthetic's schemas, even if it does not exist.
fn schemas_dir(root: &Path, config: &Config) -> PathBuf {
    let assets = &config.assets;
    let folder = match &assets.owner.schemas {
        Some(folder) => PathBuf::from(folder),
        None => root.join(assets.schemas.as_deref().unwrap_or(SCHEMAS_DIR)),
    };
    std::path::absolute(&folder).unwrap_or(folder)
}

/// Prints a status line to standard error. Ignores write errors.
fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
