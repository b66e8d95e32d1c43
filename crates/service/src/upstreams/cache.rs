//! Stores the tool lists of upstreams, reads the approved tools, and adds upstreams' tools to the
//! catalog.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use toolgate_contract::{AnyTool, lock_mutex};
use toolgate_host::Host;
use toolgate_upstream::pins::{PinLock, PinMismatchReaction, PinPolicy};
use toolgate_upstream::{UpstreamHost, UpstreamListing, UpstreamSettings, UpstreamSettingsByName};
use toolgate_world::root::EntryFingerprint;

use super::log_refused_tools;
use crate::owned_files::stamp_of;
use crate::upstreams::pins;

/// Cache of upstreams' tool lists, connected to a host's catalog.
pub(crate) struct UpstreamListingCache {
    folder: Option<PathBuf>,
    /// Path of the lock file with the approved tools.
    lock_file: PathBuf,
    /// Result of the last read of the lock file with approved tools, and the file's fingerprint at
    /// that time.
    last_read: Mutex<Option<(EntryFingerprint, PinLockReadResult)>>,
    /// True once the lock file with the approved tools has existed.
    had_lock_file: AtomicBool,
    /// True if the last read of the lock file succeeded.
    lock_file_is_readable: AtomicBool,
    on_change: Mutex<PinMismatchReaction>,
    /// Names of the upstreams that have not listed their tools yet, each with the prefix of its
    /// tools' names.
    unlisted: Mutex<BTreeMap<String, String>>,
    host: OnceLock<Weak<Host>>,
}

#[allow(clippy::disallowed_methods, reason = "the server's own folder, outside the workspace")]
impl UpstreamHost for UpstreamListingCache {
    fn stored_listing(&self, name: &str) -> Option<(UpstreamListing, Duration)> {
        let path = self.folder.as_ref()?.join(format!("{name}.json"));
        let listing = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        let modified = fs::metadata(&path).and_then(|file| file.modified()).ok();
        // A modification time in the future gives no age.
        let age = modified.and_then(|modified| modified.elapsed().ok()).unwrap_or(Duration::MAX);
        Some((listing, age))
    }

    fn store_listing(&self, name: &str, listing: &UpstreamListing) {
        let Some(folder) = &self.folder else { return };
        let store = || -> anyhow::Result<()> {
            fs::create_dir_all(folder)?;
            // Replaced atomically, because another server may read it.
            let mut next = tempfile::NamedTempFile::new_in(folder)?;
            next.write_all(&serde_json::to_vec(listing)?)?;
            next.persist(folder.join(format!("{name}.json")))?;
            Ok(())
        };
        if let Err(why) = store() {
            tracing::debug!("cannot cache the listing of the upstream `{name}`: {why}");
        }
    }

    fn pins(&self) -> PinPolicy {
        // A file that appears while the server runs takes effect at the next check.
        let lock = match self.read_lock_file() {
            Ok(None) if self.had_lock_file.load(Ordering::Acquire) => Err(format!(
                "{} was removed while the server runs; restore it, or restart the server",
                self.lock_file.display()
            )),
            lock => lock,
        };
        if let Ok(Some(_)) = &lock {
            self.had_lock_file.store(true, Ordering::Release);
        }
        let is_readable = lock.is_ok();
        match (&lock, self.lock_file_is_readable.swap(is_readable, Ordering::AcqRel)) {
            (Err(why), true) => {
                tracing::error!("tools and instructions of upstreams are disabled: {why}");
            }
            (Ok(_), false) => tracing::info!("{} can be read again", self.lock_file.display()),
            _ => {}
        }
        PinPolicy { lock, on_change: *lock_mutex(&self.on_change) }
    }

    fn is_own_toolset(&self, toolset: &str) -> bool {
        let host = self.host.get().and_then(Weak::upgrade);
        toolset == "results" || host.is_some_and(|host| host.owns_toolset(toolset))
    }

    fn is_own_uri(&self, uri: &str) -> bool {
        let host = self.host.get().and_then(Weak::upgrade);
        let is_own = |host: Arc<Host>| host.library().may_own(uri);
        uri.starts_with("result:") || host.is_some_and(is_own)
    }

    fn set_tools(&self, name: &str, tools: Vec<Arc<dyn AnyTool>>) {
        let Some(host) = self.host.get().and_then(Weak::upgrade) else { return };
        let is_listed = !tools.is_empty();
        log_refused_tools(host.offer_tools(name, tools));
        if is_listed {
            self.check_rules_once_listed(&host, name);
        }
    }
}

/// Result of reading the lock file with approved tools: its content, `None` if the file is missing,
/// or an error.
type PinLockReadResult = Result<Option<Arc<PinLock>>, String>;

impl UpstreamListingCache {
    /// Returns the content of the lock file with approved tools. Reads the file only if it has
    /// changed.
    fn read_lock_file(&self) -> PinLockReadResult {
        let mut last_read = lock_mutex(&self.last_read);
        // The stamp is taken before reading, so that a concurrent write is noticed next time.
        let stamp = stamp_of(&self.lock_file);
        match &*last_read {
            Some((read_stamp, lock)) if Some(*read_stamp) == stamp => lock.clone(),
            _ => {
                let lock = pins::read_lock_file(&self.lock_file).map(|lock| lock.map(Arc::new));
                *last_read = stamp.map(|stamp| (stamp, lock.clone()));
                lock
            }
        }
    }

    /// Creates the cache for the upstreams in `tables`, stored in `folder`. The file `lock_file`
    /// contains the approved tools. `on_change` is the reaction if an upstream's tools differ from
    /// the approved tools.
    pub(super) fn new(
        folder: Option<PathBuf>,
        (lock_file, on_change): (PathBuf, PinMismatchReaction),
        tables: &UpstreamSettingsByName,
    ) -> Self {
        Self {
            folder,
            lock_file,
            last_read: Mutex::default(),
            had_lock_file: AtomicBool::new(false),
            lock_file_is_readable: AtomicBool::new(true),
            on_change: Mutex::new(on_change),
            unlisted: Mutex::new(prefixes(tables)),
            host: OnceLock::new(),
        }
    }

    /// Sets the reaction to tools that differ from the approved tools.
    pub(super) fn set_pin_reaction(&self, on_change: PinMismatchReaction) {
        *lock_mutex(&self.on_change) = on_change;
    }

    /// Records that the upstreams of `tables` that are not `served` yet will list their tools. The
    /// policy rules are checked again once they have done so.
    pub(super) fn expect_listings(&self, tables: &UpstreamSettingsByName, served: &[String]) {
        let mut expected = prefixes(tables);
        expected.retain(|name, _| !served.contains(name));
        lock_mutex(&self.unlisted).extend(expected);
    }

    /// Sets the host to whose catalog the upstreams' tools are added. Only the first call has an
    /// effect.
    pub(super) fn set_host(&self, host: &Arc<Host>) {
        let _ = self.host.set(Arc::downgrade(host));
    }

    /// Records that the upstream `name` has listed its tools. Then logs a warning if policy rules
    /// match no tool, except rules for tools of upstreams that have not listed theirs.
    fn check_rules_once_listed(&self, host: &Host, name: &str) {
        let mut unlisted = lock_mutex(&self.unlisted);
        if unlisted.remove(name).is_none() {
            return;
        }
        let later = unlisted.values().cloned().chain(["results".to_owned()]).collect();
        drop(unlisted);
        if let Err(why) = host.check_policy_rules(later) {
            tracing::warn!("{why}");
        }
    }
}

/// Returns the prefix of the tool names of each enabled upstream, by the name of the upstream.
fn prefixes(tables: &UpstreamSettingsByName) -> BTreeMap<String, String> {
    let enabled = tables.iter().filter(|(_, settings)| settings.enabled);
    let prefix = |(name, settings): (&String, &UpstreamSettings)| {
        (name.clone(), settings.prefix.clone().unwrap_or_else(|| name.clone()))
    };
    enabled.map(prefix).collect()
}
