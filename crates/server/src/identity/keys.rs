//! The keys that are known: those of the configuration, and those of a file, which is read again
//! when it changes.

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

/// How often the file is looked at, at most: when somebody calls.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The keys that are known.
pub(super) struct Keys {
    /// Those of the configuration, which stay.
    fixed: Vec<Known>,
    file: Option<PathBuf>,
    /// Those of the file.
    filed: Mutex<Arc<[Known]>>,
    looked: Mutex<Looked>,
    /// Whether there ever was a key or a file of keys. Once needed they stay so: a file that is
    /// taken away opens no door.
    needed: AtomicBool,
}

/// When the file was last looked at, and what it was when it was read.
struct Looked {
    at: Instant,
    stamp: Option<Stamp>,
}

/// A key and whose it is.
struct Known {
    digest: KeyDigest,
    caller: Caller,
    not_before: Option<Timestamp>,
    expires: Option<Timestamp>,
}

/// Whose a key is.
pub(super) enum Found {
    Owner(Caller),
    /// Its time is over, or has not come.
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

    /// Whether whoever calls needs a key.
    pub(super) fn are_needed(&self) -> bool {
        self.look_again();
        self.needed.load(Ordering::Relaxed)
    }

    /// Whose key has the digest `said`. All are compared, each to its end.
    pub(super) fn find(&self, said: &KeyDigest) -> Found {
        let filed = locked(&self.filed).clone();
        let mut found = Found::Nobody;
        for known in self.fixed.iter().chain(filed.iter()) {
            let pairs = known.digest.iter().zip(said);
            let differs = pairs.fold(0, |differs, (a, b)| differs | (a ^ b));
            // The compiler is not to learn that what is left could be skipped.
            if std::hint::black_box(differs) == 0 {
                found = known.holds();
            }
        }
        found
    }

    /// Takes what the file is now, if it has changed. One that cannot be believed changes nothing:
    /// who is known stays known, and who is not stays out.
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
                // Something is there that is to be a file of keys.
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
