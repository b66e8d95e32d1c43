//! Remembers the tools of upstreams and the approved ones, and offers tools in the catalog.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use toolgate_contract::AnyTool;
use toolgate_host::Host;
use toolgate_upstream::pins::{Lock, OnChange, Pinned};
use toolgate_upstream::{Keeps, Listing, Settings, Tables};

use super::told;
use crate::pins;
use crate::trusted::{Stamp, stamp_of};

/// Cache of upstream listings, connected to a host's catalog.
pub(crate) struct Memory {
    folder: Option<PathBuf>,
    /// Path of the lock file.
    pins: PathBuf,
    /// Result of the last read of the lock file, with the file's stamp.
    read_pins: Mutex<Option<(Stamp, Read)>>,
    /// Set once the lock file existed. `knows_pins` is set while it can be read.
    had_pins: AtomicBool,
    knows_pins: AtomicBool,
    on_change: OnChange,
    /// Upstreams that have not sent their tools yet, with the prefix of their tools' names.
    unlisted: Mutex<BTreeMap<String, String>>,
    host: OnceLock<Weak<Host>>,
}

#[allow(clippy::disallowed_methods, reason = "the server's own folder, outside of what is served")]
impl Keeps for Memory {
    fn known(&self, name: &str) -> Option<(Listing, Duration)> {
        let path = self.folder.as_ref()?.join(format!("{name}.json"));
        let known = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        let since = fs::metadata(&path).and_then(|file| file.modified()).ok();
        // A modification time in the future gives no age.
        let since = since.and_then(|since| since.elapsed().ok()).unwrap_or(Duration::MAX);
        Some((known, since))
    }

    fn keep(&self, name: &str, listing: &Listing) {
        let Some(folder) = &self.folder else { return };
        let kept = || -> anyhow::Result<()> {
            fs::create_dir_all(folder)?;
            // Replaced atomically, because another server may read it.
            let mut beside = tempfile::NamedTempFile::new_in(folder)?;
            beside.write_all(&serde_json::to_vec(listing)?)?;
            beside.persist(folder.join(format!("{name}.json")))?;
            Ok(())
        };
        if let Err(why) = kept() {
            tracing::debug!("what the upstream `{name}` has is not remembered: {why}");
        }
    }

    fn pinned(&self) -> Pinned {
        // A file that appears while the server runs takes effect at the next check.
        let lock = match self.lock() {
            Ok(None) if self.had_pins.load(Ordering::Acquire) => Err(format!(
                "{} is not there any more, and was when tools were last looked at: put it back, or \
                 start the server anew without it",
                self.pins.display()
            )),
            lock => lock,
        };
        if let Ok(Some(_)) = &lock {
            self.had_pins.store(true, Ordering::Release);
        }
        let is_known = lock.is_ok();
        match (&lock, self.knows_pins.swap(is_known, Ordering::AcqRel)) {
            (Err(why), true) => tracing::error!(
                "no tool of an upstream is called, and no instructions of one are told: {why}"
            ),
            (Ok(_), false) => tracing::info!("{} is read again", self.pins.display()),
            _ => {}
        }
        Pinned { lock, on_change: self.on_change }
    }

    fn is_own(&self, toolset: &str) -> bool {
        let host = self.host.get().and_then(Weak::upgrade);
        toolset == "results" || host.is_some_and(|host| host.has_own(toolset))
    }

    fn is_own_uri(&self, uri: &str) -> bool {
        let host = self.host.get().and_then(Weak::upgrade);
        let ours = |host: Arc<Host>| host.library().owns(uri);
        uri.starts_with("result:") || host.is_some_and(ours)
    }

    fn offer(&self, name: &str, tools: Vec<Arc<dyn AnyTool>>) {
        let Some(host) = self.host.get().and_then(Weak::upgrade) else { return };
        let is_listed = !tools.is_empty();
        told(host.offer(name, tools));
        if is_listed {
            self.holds_rules_against_all(&host, name);
        }
    }
}

/// Result of reading the lock file: its content, `None` if absent, or an error.
type Read = Result<Option<Arc<Lock>>, String>;

impl Memory {
    /// Returns the approved tools. Reads the lock file only if it has changed.
    fn lock(&self) -> Read {
        let mut read = self.read_pins.lock().unwrap_or_else(PoisonError::into_inner);
        // The stamp is taken before reading, so that a concurrent write is noticed next time.
        let stamp = stamp_of(&self.pins);
        match &*read {
            Some((then, lock)) if Some(*then) == stamp => lock.clone(),
            _ => {
                let lock = pins::read(&self.pins).map(|lock| lock.map(Arc::new));
                *read = stamp.map(|stamp| (stamp, lock.clone()));
                lock
            }
        }
    }

    /// Creates the cache for `tables` in `folder`. `pins` is the path of the lock file.
    pub(super) fn new(
        folder: Option<PathBuf>,
        (pins, on_change): (PathBuf, OnChange),
        tables: &Tables,
    ) -> Self {
        let enabled = tables.iter().filter(|(_, settings)| settings.enabled);
        let prefix = |(name, settings): (&String, &Settings)| {
            (name.clone(), settings.prefix.clone().unwrap_or_else(|| name.clone()))
        };
        Self {
            folder,
            pins,
            read_pins: Mutex::default(),
            had_pins: AtomicBool::new(false),
            knows_pins: AtomicBool::new(true),
            on_change,
            unlisted: Mutex::new(enabled.map(prefix).collect()),
            host: OnceLock::new(),
        }
    }

    /// Sets the host whose catalog gets the tools.
    pub(super) fn offers_in(&self, host: &Arc<Host>) {
        let _ = self.host.set(Arc::downgrade(host));
    }

    /// Warns about rules that match no tool, once the last upstream, `name`, has sent its tools.
    fn holds_rules_against_all(&self, host: &Host, name: &str) {
        let mut unlisted = self.unlisted.lock().unwrap_or_else(PoisonError::into_inner);
        if unlisted.remove(name).is_none() {
            return;
        }
        let later = unlisted.values().cloned().chain(["results".to_owned()]).collect();
        drop(unlisted);
        if let Err(why) = host.fits(later) {
            tracing::warn!("{why}");
        }
    }
}
