//! Logging on standard error. Standard output is reserved for protocol messages and results.

mod sinks;
mod metric_table;
mod metrics;
mod page;
mod traces;
mod span;
pub mod call_lines;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Mutex, OnceLock, RwLock};

use anyhow::anyhow;
use toolgate_contract::{lock_mutex, lock_read, lock_write};
use toolgate_host::SecretSet;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{Config, environment};

pub(crate) use metrics::ConnectionCounts;
pub use metrics::metrics_reference;
pub(crate) use page::MetricsPage;
pub(crate) use sinks::TelemetrySinks;

/// Starts logging in this process at `level`: a minimum level or a filter.
///
/// # Errors
/// `level` is neither a level nor a filter.
pub fn start_logging(level: &str) -> anyhow::Result<()> {
    let log = tracing_subscriber::fmt()
        .with_env_filter(parse_level(level)?)
        .with_writer(|| BufferedLogWriter)
        .with_ansi(io::stderr().is_terminal())
        .with_filter_reloading();
    let filter = log.reload_handle();
    // An embedding program may have set up logging already.
    if log.try_init().is_ok() {
        // A reload fails only without a subscriber, and the subscriber lives as long as the
        // process.
        let _ = REPLACE_FILTER.set(Box::new(move |next| drop(filter.reload(next))));
    }
    Ok(())
}

/// Function that replaces the filter of the log. Empty if this process has not started logging.
static REPLACE_FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Log level or filter that is parsed but not in force yet.
pub(crate) struct StagedLogLevel(EnvFilter);

impl StagedLogLevel {
    /// Parses `level`: a minimum log level or a log filter.
    ///
    /// # Errors
    /// Fails if `level` is neither a level nor a filter.
    pub(crate) fn parse(level: &str) -> anyhow::Result<Self> {
        parse_level(level).map(Self)
    }

    /// Makes the log use the parsed level from now on. Does nothing if this process has not started
    /// logging.
    pub(crate) fn apply(self) {
        if let Some(replace) = REPLACE_FILTER.get() {
            replace(self.0);
        }
    }
}

fn parse_level(level: &str) -> anyhow::Result<EnvFilter> {
    parse_filter(level).ok_or_else(|| {
        anyhow!(
            "log.level is `{level}`; write a level (error, warn, info, debug, trace, off) or a filter \
             such as `info,toolgate_host=debug`"
        )
    })
}

/// Secrets that are redacted from the log.
static SECRETS: LazyLock<RwLock<SecretSet>> =
    LazyLock::new(|| RwLock::new(secret_variables(&environment(), &[])));

/// Returns the secrets to redact from all output: the values of environment variables, and the
/// secrets that `config` names.
///
/// # Errors
/// A configured secret is missing or too short.
pub(crate) fn redacted_secrets(config: &Config) -> anyhow::Result<SecretSet> {
    let variables = environment();
    let configured = &config.secrets;
    let of_upstreams = crate::config::secrets::upstream_secrets(&config.upstream, &variables);
    let secrets = secret_variables(&variables, &configured.names).with_values(&of_upstreams);
    let mut hidden = configured.read_values(&variables)?;
    let kept = &config.exec.env_keep;
    let of_programs =
        crate::config::secrets::credential_secrets(&config.sandbox, kept, &variables)?;
    hidden.extend(of_programs);
    Ok(secrets.with_hidden_values(&hidden))
}

/// Replaces the secrets that are redacted from the log by `secrets`.
pub(crate) fn redact_from_log(secrets: SecretSet) {
    *lock_write(&SECRETS) = secrets;
}

/// Returns the values of the environment variables in `variables` whose names look like names of
/// secrets, or contain any of `names`.
fn secret_variables(variables: &[(OsString, OsString)], names: &[String]) -> SecretSet {
    let texts =
        variables.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
    SecretSet::from_named_variables(texts, names)
}

/// Log output that is held back. `None` while the log is printed directly.
static HELD_LOG: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Holds back the log until [`release_log`] is called, for clients that expect a status line first.
pub fn hold_log() {
    *lock_mutex(&HELD_LOG) = Some(Vec::new());
}

/// Prints the log output that was held back. Later log output is printed directly.
pub fn release_log() {
    let held = lock_mutex(&HELD_LOG).take();
    // A closed standard error is not a failure.
    let _ = io::stderr().write_all(&held.unwrap_or_default());
}

/// Prints one line to the log, regardless of the log level. Secrets are redacted.
pub(crate) fn print_line(line: &str) {
    // A closed standard error is not a failure.
    let _ = BufferedLogWriter.write_all(format!("{line}\n").as_bytes());
}

/// Writer of the log: to standard error, or to a buffer while the log is held back.
struct BufferedLogWriter;

impl Write for BufferedLogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Each write is one complete line.
        let line = String::from_utf8_lossy(bytes);
        let secrets = lock_read(&SECRETS);
        let line = secrets.redact(&line);
        match &mut *lock_mutex(&HELD_LOG) {
            Some(held) => held.write_all(line.as_bytes())?,
            None => io::stderr().write_all(line.as_bytes())?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Parses `level`, a log level or a filter. Returns `None` if it is invalid. A single word must be
/// a level, because as a filter it would name a module and silence all others.
fn parse_filter(level: &str) -> Option<EnvFilter> {
    if level.contains(['=', ',']) {
        return EnvFilter::builder().parse(level).ok();
    }
    Some(EnvFilter::default().add_directive(level.parse::<LevelFilter>().ok()?.into()))
}
