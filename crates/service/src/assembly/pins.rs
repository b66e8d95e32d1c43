//! Compares the approved tools of upstreams (pins) with their current tools.
#![allow(clippy::disallowed_methods, reason = "the owner's file, which tools may not change")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use toolgate_upstream::pins::{
    PinLock, ToolDefinition, UpstreamChanges, UpstreamPins, render_changes, summarize_changes,
};
use toolgate_upstream::{UpstreamListing, Upstreams};

use crate::assembly::probe::{self, UpstreamProbeResult};
use crate::config::Config;
use crate::console::{UpstreamWithPinChanges, changes_digest};
use crate::upstreams::pins::{LOCK_FILE_NAME, read_lock_file};

/// Comparison between the approved tools of a workspace's upstreams (pins) and their current tools.
pub struct PinComparison {
    file: PathBuf,
    lock: PinLock,
    /// Current tools and instructions of each upstream that answered, by the upstream's name.
    current: BTreeMap<String, UpstreamPins>,
    /// Names of the upstreams that did not answer, each with the reason.
    pub unanswered: Vec<(String, String)>,
    /// Pairs of an upstream and a tool name that the upstream lists twice. Tools with such a name
    /// are neither served nor approved.
    pub duplicates: Vec<(String, String)>,
}

impl PinComparison {
    /// Compares the approved tools with the current tools of the upstreams of `config` that are in
    /// `wanted`, or of all upstreams if `wanted` is empty.
    ///
    /// # Errors
    /// A wanted upstream does not exist, or the lock file cannot be read.
    pub async fn compare(root: &Path, config: &Config, wanted: &[String]) -> anyhow::Result<Self> {
        let probes = probe::probe_upstreams(root, config, wanted).await?;
        let listings =
            probes.into_iter().map(|UpstreamProbeResult { name, listing, .. }| (name, listing));
        let is_offered = |name: &str, tool: &str| {
            config.upstream.get(name).is_some_and(|settings| settings.offers_tool(tool))
        };
        Self::with_listings(root, listings, is_offered)
    }

    /// Compares the approved tools with `listings`: the current tools of each upstream, or the
    /// reason why the upstream did not answer. Leaves out each tool for which `is_offered` returns
    /// false for the names of the upstream and the tool, because only offered tools may be
    /// approved.
    fn with_listings(
        root: &Path,
        listings: impl Iterator<Item = (String, Result<UpstreamListing, String>)>,
        is_offered: impl Fn(&str, &str) -> bool,
    ) -> anyhow::Result<Self> {
        let file = root.join(LOCK_FILE_NAME);
        let lock = read_lock_file(&file).map_err(|why| anyhow!(why))?.unwrap_or_default();
        let mut current = BTreeMap::new();
        let mut unanswered = Vec::new();
        let mut duplicates = Vec::new();
        for (name, listing) in listings {
            match listing {
                Ok(mut listing) => {
                    listing.tools.retain(|tool| {
                        is_offered(&name, tool["name"].as_str().unwrap_or_default())
                    });
                    let (content, repeated) = approvable_content(listing);
                    duplicates.extend(repeated.into_iter().map(|tool| (name.clone(), tool)));
                    current.insert(name, content);
                }
                Err(why) => unanswered.push((name, why)),
            }
        }
        Ok(Self { file, lock, current, unanswered, duplicates })
    }

    /// Returns the changes of each upstream whose current tools or instructions differ from the
    /// approved tools or instructions.
    pub fn changes(&self) -> impl Iterator<Item = (&str, UpstreamChanges)> {
        let none = UpstreamPins::default();
        self.current.iter().filter_map(move |(name, now)| {
            let before = self.lock.upstreams.get(name).unwrap_or(&none);
            Some((name.as_str(), UpstreamChanges::between(before, now)?))
        })
    }

    /// Returns a summary of the changes of each upstream that differs from its approved state: one
    /// line with numbers, and one line per changed tool.
    pub fn summary(&self) -> String {
        let summarize = |(name, changes): (&str, UpstreamChanges)| {
            let tool_count = self.current.get(name).map_or(0, |now| now.tools.len());
            summarize_changes(name, tool_count, &changes)
        };
        self.changes().map(summarize).collect()
    }

    /// Returns the names of the upstreams that answered and of which nothing is approved yet.
    pub fn unpinned(&self) -> impl Iterator<Item = &str> {
        let names = self.current.keys().map(String::as_str);
        names.filter(|name| !self.lock.upstreams.contains_key(*name))
    }

    /// Writes the current tools of each upstream that answered to the lock file as approved.
    /// Returns the path of the lock file.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn accept(&mut self) -> anyhow::Result<&Path> {
        let now = self.current.iter().map(|(name, now)| (name.clone(), now.clone()));
        self.lock.upstreams.extend(now);
        let write = || -> anyhow::Result<()> {
            let folder = self.file.parent().unwrap_or(Path::new("."));
            // A server may read the file at the same time, so it is replaced atomically.
            let mut next = tempfile::NamedTempFile::new_in(folder)?;
            next.write_all(self.lock.to_text().as_bytes())?;
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            next.as_file().set_permissions(readable)?;
            next.persist(&self.file)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", self.file.display()))?;
        Ok(&self.file)
    }
}

/// Returns the changes of the upstream `name` since its approval, as text. If `seen` is the digest
/// of this text, also writes the current tools to the lock file as approved.
///
/// # Errors
/// The upstream does not answer, the lock file cannot be read or written, or `seen` is the digest
/// of other changes.
pub(crate) async fn review(
    root: &Path,
    upstreams: &Upstreams,
    name: &str,
    seen: Option<&str>,
) -> anyhow::Result<String> {
    let listings = upstreams.list_each(|one| one == name).await;
    let mut comparison = PinComparison::with_listings(root, listings.into_iter(), |name, tool| {
        upstreams.offers_tool(name, tool)
    })?;
    if let Some((_, why)) = comparison.unanswered.first() {
        bail!("the upstream does not list its tools: {why}");
    }
    let changes = comparison.changes();
    let text: String = changes.map(|(name, changes)| render_changes(name, &changes)).collect();
    if let Some(seen) = seen {
        if seen != changes_digest(&text) {
            bail!(
                "the tools of `{name}` changed after the page was loaded; read the changes again"
            );
        }
        comparison.accept()?;
    }
    Ok(text)
}

/// Returns the pinned upstreams of the workspace `root` whose last known tools differ from their
/// pins. Sends no request to an upstream.
///
/// # Errors
/// The lock file cannot be read.
pub(crate) fn changed_upstreams(
    root: &Path,
    upstreams: &Upstreams,
) -> anyhow::Result<Vec<UpstreamWithPinChanges>> {
    // Most workspaces have no pins, and a copy of all listings is large.
    if !root.join(LOCK_FILE_NAME).exists() {
        return Ok(Vec::new());
    }
    let listings = upstreams.known_listings().into_iter();
    let listings = listings.map(|(name, listing)| (name, Ok(listing)));
    let comparison = PinComparison::with_listings(root, listings, |name, tool| {
        upstreams.offers_tool(name, tool)
    })?;
    let pinned = &comparison.lock.upstreams;
    let changed = comparison.changes().filter(|(name, _)| pinned.contains_key(*name));
    let describe = |(name, changes): (&str, UpstreamChanges)| {
        let tool_count = comparison.current.get(name).map_or(0, |now| now.tools.len());
        let summary = summarize_changes(name, tool_count, &changes);
        let digest = changes_digest(&render_changes(name, &changes));
        UpstreamWithPinChanges { name: name.to_owned(), summary, digest }
    };
    Ok(changed.map(describe).collect())
}

/// Returns the tools and instructions in `listing` that can be approved, and the tool names that
/// occur more than once. Tools with such a name cannot be approved.
fn approvable_content(listing: UpstreamListing) -> (UpstreamPins, Vec<String>) {
    let mut tools = BTreeMap::new();
    let mut duplicates = Vec::new();
    for tool in listing.tools.iter().filter_map(ToolDefinition::from_entry) {
        let name = tool.name.clone();
        if tools.insert(name.clone(), tool).is_some() && !duplicates.contains(&name) {
            duplicates.push(name);
        }
    }
    tools.retain(|name, _| !duplicates.contains(name));
    (UpstreamPins { instructions: listing.instructions, tools }, duplicates)
}
