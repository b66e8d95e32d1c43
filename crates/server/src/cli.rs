//! Command line of `toolgate`, one file per command.

mod serve;
mod work;
mod stdio;
mod connect;
mod console;
mod terminal_questions;
mod call;
mod remote;
mod follow;
mod jobs;
mod tools;
mod index;
mod check_config;
mod trust;
mod envelope_options;
mod doctor;
mod fleet;
mod healthcheck;
mod import;
mod clients;
mod contract;
mod key;
mod audit;
mod policy;
mod login;
mod pins;
mod reference;
mod schema_fields;
mod secret_detection;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{CommandFactory, Parser, Subcommand};
use follow::terminal_text::plain_text;
use toolgate_contract::KeepActiveGuard;
use toolgate_service::ListenerSecurity;
use toolgate_service::assembly::wiring::{self, ServedWorkspace};
use toolgate_service::config::{self, Config, LoadedConfig, ToolEffectLimit};

const EXAMPLES: &str = "\
Examples:
  toolgate serve                               serve this folder at http://127.0.0.1:8000/mcp
  toolgate serve ~/src/app --read-only         serve another folder without changing it
  toolgate stdio ~/src/app                     serve the program that started this process
  toolgate connect cursor                      connect Cursor to this folder
  toolgate tools                               list the available tools
  toolgate call files_read '{\"path\":\"README.md\"}'
  toolgate call exec_run '{\"command\":\"cargo\",\"args\":[\"test\"]}'
  toolgate jobs                                list background calls and their progress

Every setting has a default. docs/reference/config.md lists them all.";

/// Serves a folder's files and commands to AI agents, and checks every call.
#[derive(Parser)]
#[command(name = "toolgate", version, after_help = EXAMPLES, max_term_width = 100)]
struct ToolgateCli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Serve a folder over HTTP until interrupted
    Serve(serve::ServeArgs),
    /// Run jobs that servers of a fleet accepted, without serving anything
    Work(work::WorkArgs),
    /// Serve a folder over standard input and output
    Stdio(stdio::StdioArgs),
    /// Connect an MCP client, or list the clients on this machine
    Connect(connect::ConnectArgs),
    /// Print a link that opens the console of a running server
    Console(console::ConsoleArgs),
    /// Call one tool and print its result
    Call(call::CallArgs),
    /// List the jobs of a folder, or watch one
    Jobs(jobs::JobsArgs),
    /// List the available tools
    Tools(tools::ToolsArgs),
    /// Build or update the search index
    Index(index::IndexCommandArgs),
    /// Import a program's commands, or MCP servers from your clients' settings
    Import(import::ImportArgs),
    /// Create, list, rotate and revoke API keys
    Key(key::KeyCommandArgs),
    /// Print or verify the audit log
    Audit(audit::AuditArgs),
    /// Explain a policy decision
    Policy(policy::PolicyArgs),
    /// Sign in to an upstream that uses OAuth
    Login(login::LoginArgs),
    /// Sign out of an upstream
    Logout(login::LogoutArgs),
    /// Approve the tools of upstreams, or show changes since the approval
    Pins(pins::PinsArgs),
    /// Check a configuration and print the effective settings
    CheckConfig(check_config::CheckConfigArgs),
    /// Trust the configuration in a folder
    Trust(trust::TrustArgs),
    /// Check which sandbox layers this system supports, and whether upstreams respond
    Doctor(doctor::DoctorArgs),
    /// Show and drain the servers that share a job database, or migrate its tables
    Fleet(fleet::FleetArgs),
    /// Check whether a running server responds
    Healthcheck(healthcheck::HealthcheckArgs),
    /// Check envelopes, their logs and schemas, and asset files of the older contracts
    Contract(contract::ContractArgs),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  toolgate completions bash > ~/.local/share/bash-completion/completions/toolgate"
    )]
    Completions {
        /// Name of the shell
        shell: clap_complete::Shell,
    },
    /// Print a page of the reference
    #[command(hide = true)]
    Reference(reference::ReferenceArgs),
}

/// Options of every command that opens a folder.
#[derive(Clone, clap::Args)]
struct WorkspaceFolderArgs {
    /// Configuration file, instead of toolgate.toml in the folder
    #[arg(long, value_name = "FILE", env = "TOOLGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Offer only read-only tools
    #[arg(long, env = "TOOLGATE_READ_ONLY", value_parser = clap::builder::BoolishValueParser::new())]
    read_only: bool,
    /// Tools to offer, instead of the setting `tools.allow`: `core`, `all`, or names of toolsets
    /// and tools, such as files,git
    #[arg(long, value_name = "NAMES", env = "TOOLGATE_TOOLS", value_delimiter = ',')]
    tools: Vec<String>,
}

impl WorkspaceFolderArgs {
    /// Reloads the settings of `workspace` whenever its settings file changes, until the returned
    /// guard is dropped.
    ///
    /// `adapt` applies the other options of the command line. `security` is the security of the
    /// listeners, if the server has any.
    fn follow_settings(
        &self,
        workspace: &ServedWorkspace,
        root: &Path,
        adapt: impl Fn(&mut Config) -> anyhow::Result<()> + Send + Sync + 'static,
        security: Option<&ListenerSecurity>,
    ) -> KeepActiveGuard {
        let root = root.to_owned();
        let explicit = self.config.clone();
        let restrictions = self.clone();
        let file = explicit.clone().unwrap_or_else(|| root.join(config::SETTINGS_FILE_NAME));
        let load = move || {
            let mut loaded = config::load(&root, explicit.as_deref(), &config::environment())?;
            restrictions.restrict(&mut loaded.config);
            adapt(&mut loaded.config)?;
            Ok(loaded)
        };
        workspace.watch_config(file, load, security)
    }

    fn load_to_serve(&self, root: &Path) -> anyhow::Result<LoadedConfig> {
        let loaded = self.load(root)?;
        if let Some(file) = &loaded.config.server.tls_key
            && wiring::relative_to_root(&wiring::resolve_links(root), Path::new(file)).is_some()
        {
            bail!(
                "server.tls_key is {file}, which is in the workspace: tools could read it; move it \
                 elsewhere"
            );
        }
        let contains_home = |(name, value): (OsString, OsString)| {
            name == "HOME"
                && wiring::resolve_links(Path::new(&value)).starts_with(wiring::resolve_links(root))
        };
        if config::environment().into_iter().any(contains_home) {
            tracing::warn!(
                "the workspace is your home folder: tools can read everything in it, such as \
                 keys, mail and profiles; serve the folder that you work in"
            );
        }
        Ok(loaded)
    }

    /// Loads the settings for the workspace `root` and starts logging. Fails if the settings are
    /// invalid or not trusted.
    fn load(&self, root: &Path) -> anyhow::Result<LoadedConfig> {
        self.load_file(root, self.config.as_deref())
    }

    /// Loads the settings for the workspace `root`, even if the user does not trust the settings
    /// file yet. In that case, prints a message. Fails if a setting is invalid.
    fn load_to_check(&self, root: &Path) -> anyhow::Result<LoadedConfig> {
        let (loaded, trust_note) = self.load_with_trust_note(root)?;
        if let Some(note) = trust_note {
            complain(&note);
        }
        Ok(loaded)
    }

    /// Loads the settings for the workspace `root`, even if the user does not trust the settings
    /// file yet. In that case, the second value is a message for the user. Fails if a setting is
    /// invalid.
    fn load_with_trust_note(&self, root: &Path) -> anyhow::Result<(LoadedConfig, Option<String>)> {
        let file = root.join(config::SETTINGS_FILE_NAME);
        if self.config.is_some() || file.symlink_metadata().is_err() {
            return Ok((self.load(root)?, None));
        }
        let text = config::trust::read_settings_text(&file)
            .with_context(|| format!("cannot read the configuration {}", file.display()))?;
        let loaded = self.load_file(root, Some(&file))?;
        let owned = config::trust::owner_settings(&text);
        let is_refused = !owned.is_empty() && !config::trust::is_trusted(&file, &text);
        let note = is_refused.then(|| {
            format!(
                "{} is not trusted yet, and the server refuses it: it does more than restrict \
                 tools: {}. Read the file, then run `toolgate trust {}`",
                file.display(),
                config::trust::list_settings(&owned),
                root.display()
            )
        });
        Ok((loaded, note))
    }

    fn load_file(&self, root: &Path, file: Option<&Path>) -> anyhow::Result<LoadedConfig> {
        let mut loaded = config::load(root, file, &config::environment())?;
        self.restrict(&mut loaded.config);
        toolgate_service::telemetry::start_logging(&loaded.config.log.level)?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        Ok(loaded)
    }

    /// Restricts the tools in `config` as the options `--read-only` and `--tools` demand.
    fn restrict(&self, config: &mut Config) {
        if self.read_only {
            config.tools.effects = ToolEffectLimit::Reads;
        }
        if !self.tools.is_empty() {
            config.tools.allow.clone_from(&self.tools);
        }
    }
}

/// Runs the command that the arguments of this process name, and returns the exit code of the
/// process: 2 if the command fails.
pub fn main() -> ExitCode {
    let done = match ToolgateCli::parse_from(command_line_words()).command {
        CliCommand::Serve(args) => serve::run(&args),
        CliCommand::Work(args) => work::run(&args),
        CliCommand::Stdio(args) => stdio::run(&args),
        CliCommand::Connect(args) => connect::run(&args),
        CliCommand::Console(args) => console::run(&args),
        CliCommand::Call(args) => call::run(&args),
        CliCommand::Jobs(args) => jobs::run(&args),
        CliCommand::Tools(args) => tools::run(&args),
        CliCommand::Index(args) => index::run(&args),
        CliCommand::Import(args) => import::run(&args),
        CliCommand::Key(args) => key::run(&args),
        CliCommand::Audit(args) => audit::run(&args),
        CliCommand::Policy(args) => policy::run(&args),
        CliCommand::Login(args) => login::log_in(&args),
        CliCommand::Logout(args) => login::log_out(&args),
        CliCommand::Pins(args) => pins::run(&args),
        CliCommand::CheckConfig(args) => check_config::run(&args),
        CliCommand::Trust(args) => trust::run(&args),
        CliCommand::Doctor(args) => doctor::run(&args),
        CliCommand::Fleet(args) => fleet::run(&args),
        CliCommand::Healthcheck(args) => healthcheck::run(&args),
        CliCommand::Contract(args) => contract::run(&args),
        CliCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut ToolgateCli::command(), "toolgate", &mut script);
            print(&String::from_utf8_lossy(&script)).map(|()| ExitCode::SUCCESS)
        }
        CliCommand::Reference(args) => reference::run(&args),
    };
    done.unwrap_or_else(|err| {
        complain(&format!("{err:#}"));
        ExitCode::from(2)
    })
}

/// Returns the command-line arguments of this process. Replaces the older form `--validate PATH`,
/// which Synesthetic uses, by `contract validate PATH`.
fn command_line_words() -> impl Iterator<Item = OsString> {
    let mut words: Vec<_> = std::env::args_os().collect();
    if let Some(first) = words.get(1).and_then(|word| word.to_str()) {
        let path = first.strip_prefix("--validate=").map(OsString::from);
        if first == "--validate" || path.is_some() {
            words
                .splice(1..2, ["contract", "validate"].map(OsString::from).into_iter().chain(path));
        }
    }
    words.into_iter()
}

/// Prints the error `message` to standard error.
#[allow(clippy::print_stderr, reason = "messages of a command go to the person who ran it")]
fn complain(message: &str) {
    match std::io::stderr().is_terminal() {
        true => eprintln!("toolgate: {}", plain_text(message)),
        false => eprintln!("toolgate: {message}"),
    }
}

/// Prints `text` to standard output. A closed pipe is not an error. If the output is a terminal,
/// control sequences are removed, because the text may come from a program or another server.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let plain = out.is_terminal().then(|| plain_text(text));
    let text = plain.as_deref().unwrap_or(text);
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(err) if err.kind() != std::io::ErrorKind::BrokenPipe => Err(err.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Creates a single-threaded async runtime, which avoids switches between threads.
fn small_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Runs `work` to its end on `runtime`. Then waits up to 200 ms for blocking operations that cannot
/// be cancelled, such as a read from the terminal.
fn run_to_end<T>(runtime: tokio::runtime::Runtime, work: impl Future<Output = T>) -> T {
    let mut output = None;
    // The compiler generates the main loop of a runtime for each kind of future. Box the future, so
    // that all commands share one.
    let work: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(async {
        output = Some(work.await);
    });
    runtime.block_on(work);
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    output.expect("the work has ended")
}

/// Returns the effective settings `config` as TOML text.
fn as_toml(config: &Config) -> anyhow::Result<String> {
    Ok(toml::to_string(config)?)
}

#[cfg(test)]
mod tests;
