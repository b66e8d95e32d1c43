//! API keys from the configuration and from the key file, which is read again when it changes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use toolgate_contract::Caller;

use crate::config::{Config, Key, KeyDigest, key_file};
use crate::session::locked;
use crate::trusted::{self, Stamp};

/// Shortest time between two checks of the file, which occur when requests arrive.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// All known API keys.
pub(super) struct Keys {
    /// Keys of the configuration, which never change at run time.
    fixed: Vec<Known>,
    file: Option<PathBuf>,
    /// Keys of the file.
    filed: Mutex<Arc<[Known]>>,
    looked: Mutex<Looked>,
    /// Set once any key or key file existed. It stays set, so that deleting the file does not open
    /// the server.
    needed: AtomicBool,
}

/// Time of the last check of the file, and the stamp of the content that was read.
struct Looked {
    at: Instant,
    stamp: Option<Stamp>,
}

/// Key with its caller.
struct Known {
    digest: KeyDigest,
    caller: Caller,
    not_before: Option<Timestamp>,
    expires: Option<Timestamp>,
}

/// Result of looking up a key.
pub(super) enum Found {
    Owner(Caller),
    /// Known key that has expired or is not valid yet.
    OutOfTime,
    Nobody,
}

impl Keys {
    pub(super) fn of(config: &Config) -> anyhow::Result<Self> {
        let fixed = known(&config.keys)?;
        let file = key_file::path(&config.server)?;
        let found = file.as_deref().map(key_file::read).transpose()?.flatten();
        let (filed, stamp) = match found {
            Some((keys, stamp)) => (known(&keys)?, Some(stamp)),
            None => (Vec::new(), None),
        };
        let needed = AtomicBool::new(!fixed.is_empty() || stamp.is_some());
        let looked = Mutex::new(Looked { at: Instant::now(), stamp });
        Ok(Self { fixed, file, filed: Mutex::new(filed.into()), looked, needed })
    }

    /// Returns true if requests need a credential. Checks the key file first.
    pub(super) fn are_needed(&self) -> bool {
        self.look_again();
        self.needed.load(Ordering::Relaxed)
    }

    /// Finds the caller of the key with the digest `said`. Compares every key in full, in constant
    /// time.
    pub(super) fn find(&self, said: &KeyDigest) -> Found {
        let filed = locked(&self.filed).clone();
        let mut found = Found::Nobody;
        for known in self.fixed.iter().chain(filed.iter()) {
            let pairs = known.digest.iter().zip(said);
            let differs = pairs.fold(0, |differs, (a, b)| differs | (a ^ b));
            // Keeps the compiler from ending the comparison early.
            if std::hint::black_box(differs) == 0 {
                found = known.holds();
            }
        }
        found
    }

    /// Reads the key file again if it has changed. If it is invalid, the previous keys stay in
    /// force.
    fn look_again(&self) {
        let Some(file) = &self.file else { return };
        let Ok(mut looked) = self.looked.try_lock() else { return };
        if looked.at.elapsed() < LOOK_AGAIN {
            return;
        }
        looked.at = Instant::now();
        if trusted::stamp_of(file) == looked.stamp {
            return;
        }
        let read = key_file::read(file).and_then(|found| match found {
            Some((keys, stamp)) => Ok((known(&keys)?, Some(stamp))),
            None => Ok((Vec::new(), None)),
        });
        match read {
            Ok((keys, stamp)) => {
                tracing::info!("{} was read again: {} keys", file.display(), keys.len());
                *locked(&self.filed) = keys.into();
                looked.stamp = stamp;
                if stamp.is_some() {
                    self.needed.store(true, Ordering::Relaxed);
                }
            }
            Err(err) => {
                tracing::error!("the keys stay as they were: {err:#}");
                // An invalid key file still means that the owner wants authentication.
                self.needed.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Known {
    fn holds(&self) -> Found {
        if self.not_before.is_none() && self.expires.is_none() {
            return Found::Owner(self.caller.clone());
        }
        let now = Timestamp::now();
        let begun = self.not_before.is_none_or(|from| from <= now);
        match begun && self.expires.is_none_or(|until| now < until) {
            true => Found::Owner(self.caller.clone()),
            false => Found::OutOfTime,
        }
    }
}

fn known(keys: &[Key]) -> anyhow::Result<Vec<Known>> {
    let known = keys.iter().map(|key| {
        let digest = key.digest().with_context(|| format!("`{}` has no digest", key.name))?;
        let roles: Vec<Arc<str>> = key.roles.iter().map(|role| role.as_str().into()).collect();
        let caller = Caller { roles: roles.into(), ..Caller::named(&key.name) };
        Ok(Known { digest, caller, not_before: key.not_before, expires: key.expires })
    });
    known.collect()
}
