//! The log, on standard error: standard output belongs to the protocol and to results.

use std::io::IsTerminal;

use anyhow::anyhow;
use tracing_subscriber::EnvFilter;

/// Starts logging at `level`, a least level or a filter.
pub fn start(level: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().parse(level).map_err(|_| {
        anyhow!(
            "log.level is `{level}`, which is neither a level (error, warn, info, debug, trace) \
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
