//! Lists the current tools of a workspace's upstreams, without serving them.

use std::path::Path;

use anyhow::bail;
use toolgate_contract::ChangeFeed;
use toolgate_upstream::UpstreamListing;
use toolgate_upstream::pins::one_line;
use toolgate_world::Root;

use crate::assembly::server_prep::ServerPrep;
use crate::config::Config;
use crate::{telemetry, upstreams};

/// Connects to the upstreams of `config` that are in `wanted`. If `wanted` is empty, connects to
/// all.
///
/// Returns each upstream's name with its listing or the reason for its failure.
///
/// # Errors
/// A wanted upstream does not exist or is not enabled.
pub async fn probe_upstreams(
    root: &Path,
    config: &Config,
    wanted: &[String],
) -> anyhow::Result<Vec<(String, Result<UpstreamListing, String>)>> {
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
    let processes = ServerPrep::prepare(root, config)?.processes;
    let opened =
        upstreams::open_upstreams(&Root::open(root)?, &processes, config, &ChangeFeed::default());
    let (upstreams, _) = opened?;
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    let listings = upstreams.list_each(is_wanted).await;
    upstreams.close();
    processes.close().await;
    // An upstream's error text is untrusted, so secrets and line breaks are removed.
    let clean = |why: String| one_line(&secrets.redact(&why));
    Ok(listings.into_iter().map(|(name, listing)| (name, listing.map_err(clean))).collect())
}
