//! Logging on standard error. Standard output belongs to the protocol and to results.

mod told;
mod metrics;
mod upstreams;
mod page;
mod traces;
mod span;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Mutex, PoisonError, RwLock};

use anyhow::anyhow;
use toolgate_host::Secrets;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{Config, environment};

pub(crate) use metrics::Connected;
pub(crate) use page::Page;
pub(crate) use told::Told;

/// Starts logging at `level`: a minimum level or a filter.
///
/// # Errors
/// When `level` is neither.
pub fn start(level: &str) -> anyhow::Result<()> {
    let filter = filter(level).ok_or_else(|| {
        anyhow!(
            "log.level is `{level}`, which is neither a level (error, warn, info, debug, trace, off) \
             nor a filter such as `info,toolgate_host=debug`"
        )
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Log)
        .with_ansi(io::stderr().is_terminal());
    // An embedding program may have set up logging already.
    let _ = log.try_init();
    Ok(())
}

/// Secrets that are redacted from the log.
static SECRETS: LazyLock<RwLock<Secrets>> = LazyLock::new(|| RwLock::new(own(&environment(), &[])));

/// Returns the secrets of the environment and of `config`, and redacts them from the log from now
/// on.
///
/// # Errors
/// When a configured secret is missing or too short.
pub(crate) fn secrets(config: &Config) -> anyhow::Result<Secrets> {
    let variables = environment();
    let named = &config.secrets;
    let theirs = crate::upstreams::secrets(&config.upstream, &variables);
    let secrets = own(&variables, &named.names).and(&theirs);
    let secrets = secrets.and_everywhere(&named.values(&variables)?);
    *SECRETS.write().unwrap_or_else(PoisonError::into_inner) = secrets.clone();
    Ok(secrets)
}

/// Returns the values of variables with a secret-like name, or one that contains any of `names`.
fn own(variables: &[(OsString, OsString)], names: &[String]) -> Secrets {
    let texts =
        variables.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
    Secrets::among_named(texts, names)
}

/// Log output that is held back, if it is held back.
static HELD: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Holds back the log until [`let_go`], for clients that expect another line first.
pub fn hold() {
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
}

/// Prints the log that was held back, and logs directly from now on.
pub fn let_go() {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner).take();
    // A closed standard error is not a failure.
    let _ = io::stderr().write_all(&held.unwrap_or_default());
}

/// Log writer: standard error, or the buffer while the log is held back.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Each write is one complete line.
        let line = String::from_utf8_lossy(bytes);
        let secrets = SECRETS.read().unwrap_or_else(PoisonError::into_inner);
        let line = secrets.redacted(&line);
        match &mut *HELD.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(held) => held.write_all(line.as_bytes())?,
            None => io::stderr().write_all(line.as_bytes())?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Parses `level`. A single word must be a level: as a filter it would name a module and silence
/// the rest.
fn filter(level: &str) -> Option<EnvFilter> {
    if level.contains(['=', ',']) {
        return EnvFilter::builder().parse(level).ok();
    }
    Some(EnvFilter::default().add_directive(level.parse::<LevelFilter>().ok()?.into()))
}
