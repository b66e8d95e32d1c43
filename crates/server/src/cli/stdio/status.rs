//! What whoever started a stdio server learns of it beside its answers: lines on standard error,
//! and a file that is there while it serves.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::bail;
use toolgate::config::Config;
use toolgate::ready::ReadyFile;
use toolgate::telemetry;

/// Where Synesthetic's clients look for the file.
const READY_FILE: &str = "/tmp/mcp.ready";
/// Where schemas are unless somebody says otherwise.
const SCHEMAS_DIR: &str = "libs/synesthetic-schemas/jsonschema";
/// How they say that they want standard streams.
const ENDPOINTS: [&str; 2] = ["stdio", "stdio://"];

/// How a server says how it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// As any command does, and by the file where one is asked for.
    Plain,
    /// In the lines that Synesthetic's clients read, and by the file.
    Synesthetic,
}

impl Status {
    /// How a server that speaks `dialect` says it.
    pub(super) fn of(dialect: &str) -> Self {
        if dialect == "synesthetic" { Self::Synesthetic } else { Self::Plain }
    }

    /// Before anything can be said: the first line is to be that it is ready, or why not.
    pub(super) fn begins(self) {
        match self {
            Self::Plain => {}
            Self::Synesthetic => telemetry::hold(),
        }
    }

    /// Whether `config` is one that its clients can be served under, and what they expect.
    pub(super) fn check(self, config: &mut Config) -> anyhow::Result<()> {
        match self {
            Self::Plain => Ok(()),
            Self::Synesthetic => {
                let wanted = config.contracts.endpoint.as_deref().map(str::trim);
                if wanted.is_some_and(|it| !it.is_empty() && !ENDPOINTS.contains(&it)) {
                    bail!("Only STDIO transport is supported");
                }
                // Its tools are there, whatever there is for them to list.
                config.assets.owner.always = true;
                Ok(())
            }
        }
    }

    /// It ends before it has begun.
    pub(super) fn not_set_up(self, err: anyhow::Error) -> anyhow::Result<ExitCode> {
        match self {
            Self::Plain => Err(err),
            Self::Synesthetic => {
                let detail = format!("{err:#}").replace(['\n', '\r'], " ");
                say(&format!("mcp:error reason=setup_failed detail={detail}"));
                telemetry::let_go();
                Ok(ExitCode::from(2))
            }
        }
    }

    /// It reads its first line next, and is told to stop by signals.
    pub(super) fn is_ready(self, root: &Path, config: &Config, ready: &OnceLock<ReadyFile>) {
        let asked = config.contracts.ready_file.as_deref();
        let path = match self {
            Self::Plain => asked,
            Self::Synesthetic => Some(asked.unwrap_or(Path::new(READY_FILE))),
        };
        // Without it there is still the line.
        let failed = path.and_then(|path| match ReadyFile::put(path) {
            Ok(file) => {
                let _ = ready.set(file);
                None
            }
            Err(err) => Some((path, err)),
        });
        if self == Self::Synesthetic {
            let schemas = schemas_dir(root, config);
            say(&format!("mcp:ready mode=stdio schemas_dir={}", schemas.display()));
            telemetry::let_go();
        }
        if let Some((path, err)) = failed {
            tracing::warn!("the ready file {} cannot be written: {err}", path.display());
        }
    }

    /// It has answered what it will.
    pub(super) fn ended(self) {
        match self {
            Self::Plain => {}
            Self::Synesthetic => say("mcp:shutdown mode=stdio"),
        }
    }
}

/// Where schemas are read from, whether or not there are any.
fn schemas_dir(root: &Path, config: &Config) -> PathBuf {
    let assets = &config.assets;
    let folder = match &assets.owner.schemas {
        Some(folder) => PathBuf::from(folder),
        None => root.join(assets.schemas.as_deref().unwrap_or(SCHEMAS_DIR)),
    };
    std::path::absolute(&folder).unwrap_or(folder)
}

/// A line on standard error, which nobody need read.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
