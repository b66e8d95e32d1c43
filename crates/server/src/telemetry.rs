//! The log, on standard error: standard output belongs to the protocol and to results.

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

/// Starts logging at `level`, a least level or a filter.
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
    // A program that embeds us may log already.
    let _ = log.try_init();
    Ok(())
}

/// What the log does not say.
static SECRETS: LazyLock<RwLock<Secrets>> = LazyLock::new(|| RwLock::new(own(&environment(), &[])));

/// What is to be said nowhere from now on, in the log either: the secrets among this process's
/// variables, and those that `config` names.
pub(crate) fn secrets(config: &Config) -> anyhow::Result<Secrets> {
    let (variables, named) = (environment(), &config.secrets);
    let theirs = crate::upstreams::secrets(&config.upstream, &variables);
    let secrets = own(&variables, &named.names).and(&theirs);
    let secrets = secrets.and_everywhere(&named.values(&variables)?);
    *SECRETS.write().unwrap_or_else(PoisonError::into_inner) = secrets.clone();
    Ok(secrets)
}

/// The values of these variables that are called a secret, by one of `names` too.
fn own(variables: &[(OsString, OsString)], names: &[String]) -> Secrets {
    let texts =
        variables.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
    Secrets::among_named(texts, names)
}

/// What was logged while it is held back.
static HELD: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Holds back what is logged until [`let_go`], for clients that wait for a line of their own first.
pub fn hold() {
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
}

/// Lets out what was held back.
pub fn let_go() {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Nobody need read the log.
    let _ = io::stderr().write_all(&held.unwrap_or_default());
}

/// Standard error, unless it is held back.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A line comes whole.
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

/// What `level` lets through. A word alone must be a level: as a filter it would name a module, and
/// silence all others.
fn filter(level: &str) -> Option<EnvFilter> {
    if level.contains(['=', ',']) {
        return EnvFilter::builder().parse(level).ok();
    }
    Some(EnvFilter::default().add_directive(level.parse::<LevelFilter>().ok()?.into()))
}
