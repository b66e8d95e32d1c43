//! API keys from the configuration and from the key file, which is read again when it changes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use toolgate_contract::Caller;

use crate::config::{ApiKey, Config, KeyDigest, key_file};
use crate::owned_files::{self, OwnedFileStamp};
use crate::sync::lock_mutex;

/// Shortest time between two checks of the key file. A check occurs when a request arrives.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// All known API keys.
pub(super) struct KeyRing {
    /// Keys of the configuration, which never change at run time.
    configured: Vec<KnownKey>,
    file: Option<PathBuf>,
    /// Keys of the file.
    from_file: Mutex<Arc<[KnownKey]>>,
    last_check: Mutex<KeyFileCheck>,
    /// True once any key or key file existed. It stays true, so that deleting the file does not
    /// open the server to everyone.
    required: AtomicBool,
}

/// Time of the last check of the file, and the stamp of the content that was read.
struct KeyFileCheck {
    checked_at: Instant,
    stamp: Option<OwnedFileStamp>,
}

/// Key with its caller.
struct KnownKey {
    digest: KeyDigest,
    caller: Caller,
    not_before: Option<Timestamp>,
    expires: Option<Timestamp>,
}

/// Result of looking up a key.
pub(super) enum KeyLookup {
    Owner(Caller),
    /// The key is known, but has expired or is not valid yet.
    NotValidNow,
    Unknown,
}

impl KeyRing {
    pub(super) fn from_config(config: &Config) -> anyhow::Result<Self> {
        let configured = parse_keys(&config.keys)?;
        let file = key_file::path(&config.server)?;
        let content = file.as_deref().map(key_file::read).transpose()?.flatten();
        let (from_file, stamp) = match content {
            Some((keys, stamp)) => (parse_keys(&keys)?, Some(stamp)),
            None => (Vec::new(), None),
        };
        let required = AtomicBool::new(!configured.is_empty() || stamp.is_some());
        let last_check = Mutex::new(KeyFileCheck { checked_at: Instant::now(), stamp });
        let from_file = Mutex::new(from_file.into());
        Ok(Self { configured, file, from_file, last_check, required })
    }

    /// Returns true if requests need a credential. Checks the key file first.
    pub(super) fn are_required(&self) -> bool {
        self.reload_if_changed();
        self.required.load(Ordering::Relaxed)
    }

    /// Finds the caller of the key with this `digest`. Compares every key in full, in constant time.
    pub(super) fn find(&self, digest: &KeyDigest) -> KeyLookup {
        let from_file = lock_mutex(&self.from_file).clone();
        let mut found = KeyLookup::Unknown;
        for known in self.configured.iter().chain(from_file.iter()) {
            let pairs = known.digest.iter().zip(digest);
            let differs = pairs.fold(0, |differs, (a, b)| differs | (a ^ b));
            // Keeps the compiler from ending the comparison early.
            if std::hint::black_box(differs) == 0 {
                found = known.lookup();
            }
        }
        found
    }

    /// Reads the key file again if it has changed. If it is invalid, the previous keys stay in
    /// force.
    fn reload_if_changed(&self) {
        let Some(file) = &self.file else { return };
        let Ok(mut last) = self.last_check.try_lock() else { return };
        if last.checked_at.elapsed() < CHECK_INTERVAL {
            return;
        }
        last.checked_at = Instant::now();
        if owned_files::stamp_of(file) == last.stamp {
            return;
        }
        let read = key_file::read(file).and_then(|content| match content {
            Some((keys, stamp)) => Ok((parse_keys(&keys)?, Some(stamp))),
            None => Ok((Vec::new(), None)),
        });
        match read {
            Ok((keys, stamp)) => {
                let unit = if keys.len() == 1 { "key" } else { "keys" };
                tracing::info!("{} was read again: {} {unit}", file.display(), keys.len());
                *lock_mutex(&self.from_file) = keys.into();
                last.stamp = stamp;
                if stamp.is_some() {
                    self.required.store(true, Ordering::Relaxed);
                }
            }
            Err(err) => {
                tracing::error!("the keys are unchanged: {err:#}");
                // An invalid key file still means that the owner wants authentication.
                self.required.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl KnownKey {
    fn lookup(&self) -> KeyLookup {
        if self.not_before.is_none() && self.expires.is_none() {
            return KeyLookup::Owner(self.caller.clone());
        }
        let now = Timestamp::now();
        let has_begun = self.not_before.is_none_or(|from| from <= now);
        match has_begun && self.expires.is_none_or(|until| now < until) {
            true => KeyLookup::Owner(self.caller.clone()),
            false => KeyLookup::NotValidNow,
        }
    }
}

fn parse_keys(keys: &[ApiKey]) -> anyhow::Result<Vec<KnownKey>> {
    let known = keys.iter().map(|key| {
        let digest = key
            .digest_key()
            .with_context(|| format!("the key `{}` has no valid digest", key.name))?;
        let roles: Vec<Arc<str>> = key.roles.iter().map(|role| role.as_str().into()).collect();
        let caller = Caller { roles: roles.into(), ..Caller::with_key(&key.name) };
        Ok(KnownKey { digest, caller, not_before: key.not_before, expires: key.expires })
    });
    known.collect()
}
