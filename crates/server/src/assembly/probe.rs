//! Lists the current tools of a workspace's upstreams, from a process that serves nothing.

use std::path::Path;

use anyhow::bail;
use toolgate_contract::ChangeFeed;
use toolgate_upstream::UpstreamListing;
use toolgate_upstream::pins::one_line;
use toolgate_world::Root;

use crate::assembly::server_prep::ServerPrep;
use crate::config::Config;
use crate::{telemetry, upstreams};

/// Connects to the upstreams of `config` that are in `wanted`, or to all if it is empty.
///
/// Returns each upstream's name with its listing or the reason for its failure.
///
/// # Errors
/// When a wanted upstream does not exist or is not enabled.
pub async fn probe_upstreams(
    root: &Path,
    config: &Config,
    wanted: &[String],
) -> anyhow::Result<Vec<(String, Result<UpstreamListing, String>)>> {
    let there = config.upstream.iter().filter(|(_, upstream)| upstream.enabled);
    let there: Vec<_> = there.map(|(name, _)| name.as_str()).collect();
    if let Some(unknown) = wanted.iter().find(|name| !there.contains(&name.as_str())) {
        if config.upstream.contains_key(unknown) {
            bail!("the upstream `{unknown}` is not enabled, as toolgate.toml says");
        }
        match there.is_empty() {
            true => bail!("there is no upstream: none is in toolgate.toml"),
            false => bail!("there is no upstream `{unknown}`; there are {}", there.join(", ")),
        }
    }
    let secrets = telemetry::redacted_secrets(config)?;
    let processes = ServerPrep::prepare(root, config)?.processes;
    let opened =
        upstreams::open_upstreams(&Root::open(root)?, &processes, config, &ChangeFeed::default());
    let (upstreams, _) = opened?;
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    let said = upstreams.list_each(is_wanted).await;
    upstreams.close();
    processes.close().await;
    // An upstream's error text is untrusted, so secrets and line breaks are removed.
    let clean = |why: String| one_line(&secrets.redact(&why));
    Ok(said.into_iter().map(|(name, listing)| (name, listing.map_err(clean))).collect())
}
