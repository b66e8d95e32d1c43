//! The log, on standard error: standard output belongs to the protocol and to results.

use std::io::IsTerminal;

use anyhow::anyhow;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A program that embeds us may log already.
    let _ = log.try_init();
    Ok(())
}

/// What `level` lets through. A word alone must be a level: as a filter it would name a module, and
/// silence all others.
fn filter(level: &str) -> Option<EnvFilter> {
    if level.contains(['=', ',']) {
        return EnvFilter::builder().parse(level).ok();
    }
    Some(EnvFilter::default().add_directive(level.parse::<LevelFilter>().ok()?.into()))
}
