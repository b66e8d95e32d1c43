//! Lists the current tools of a workspace's upstreams without serving the tools.

use std::path::Path;

use anyhow::bail;
use toolgate_contract::ChangeFeed;
use toolgate_upstream::pins::one_line;
use toolgate_upstream::{UpstreamListing, split_error_output};
use toolgate_world::Root;

use crate::assembly::server_prep::PreparedWorkspace;
use crate::config::{Config, LogSection};
use crate::telemetry::{self, StagedLogLevel};
use crate::upstreams;

/// Outcome of listing the tools of one upstream. All texts are safe to print on a terminal.
pub struct UpstreamProbeResult {
    /// Name of the probed upstream.
    pub name: String,
    /// The upstream's tools and instructions, or the reason why they could not be listed.
    pub listing: Result<UpstreamListing, String>,
    /// Requests to the upstream and their answers, one line each.
    pub exchanges: Vec<String>,
    /// Redirects of the upstream's server, and text other than messages that the upstream's program
    /// printed, one line each.
    pub notes: Vec<String>,
    /// Last lines on the standard error of the upstream's program, if the listing failed.
    pub error_output: Vec<String>,
}

/// Lists the tools of the upstreams of `config` whose names are in `wanted`, or of all upstreams if
/// `wanted` is empty.
///
/// # Errors
/// A wanted upstream does not exist or is not enabled.
pub async fn probe_upstreams(
    root: &Path,
    config: &Config,
    wanted: &[String],
) -> anyhow::Result<Vec<UpstreamProbeResult>> {
    let enabled = config.upstream.iter().filter(|(_, upstream)| upstream.enabled);
    let enabled: Vec<_> = enabled.map(|(name, _)| name.as_str()).collect();
    if let Some(unknown) = wanted.iter().find(|name| !enabled.contains(&name.as_str())) {
        if config.upstream.contains_key(unknown) {
            bail!("the upstream `{unknown}` is disabled in toolgate.toml");
        }
        match enabled.is_empty() {
            true => bail!("toolgate.toml has no enabled upstream"),
            false => {
                bail!("no upstream is named `{unknown}`; the upstreams are {}", enabled.join(", "))
            }
        }
    }
    let secrets = telemetry::redacted_secrets(config)?;
    telemetry::redact_from_log(secrets.clone());
    let processes = PreparedWorkspace::prepare(root, config)?.processes;
    let opened =
        upstreams::open_upstreams(&Root::open(root)?, &processes, config, &ChangeFeed::default());
    let upstreams = opened?.upstreams;
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    let listings = upstreams.list_each(is_wanted).await;
    // An upstream's text is untrusted, so secrets and line breaks are removed.
    let clean = |text: String| one_line(&secrets.redact(&text));
    let probe = |(name, listing): (String, Result<UpstreamListing, String>)| {
        let report = upstreams.start_report(&name);
        let mut error_output = Vec::new();
        let listing = listing.map_err(|why| {
            // A secret may span several lines, so it is redacted first.
            let why = secrets.redact(&why);
            let (why, output) = split_error_output(&why);
            error_output = match output {
                Some(output) => output.lines().map(one_line).collect(),
                None => report.error_output().map(clean).collect(),
            };
            one_line(why)
        });
        let notes = report.output_lines().into_iter().chain(report.redirect_line()).map(clean);
        let notes = notes.collect();
        let exchanges = report.exchange_lines().into_iter().map(clean).collect();
        UpstreamProbeResult { name, listing, exchanges, notes, error_output }
    };
    let probes = listings.into_iter().map(probe).collect();
    upstreams.close();
    processes.close().await;
    Ok(probes)
}

/// Keeps the failures of upstreams out of this process's log, for commands that print these
/// failures themselves. Changes nothing if the user has chosen a log level.
///
/// # Errors
/// The log level of `config` is invalid.
pub fn hide_failures_from_log(config: &Config) -> anyhow::Result<()> {
    let level = &config.log.level;
    if *level == LogSection::default().level {
        StagedLogLevel::parse(&format!("{level},toolgate_upstream=error"))?.apply();
    }
    Ok(())
}
