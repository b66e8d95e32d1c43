//! API keys from the configuration and from the key file, which is read again when it changes.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use toolgate_contract::{Caller, lock_mutex};
use toolgate_world::root::EntryFingerprint;

use crate::config::key_file::KeyFileContent;
use crate::config::{ApiKey, ApiKeyDigest, Config, key_file, parse_digest};
use crate::owned_files;

/// Shortest time between two checks whether the key file has changed. An arriving request causes a
/// check.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// All API keys that the server knows.
pub(super) struct ApiKeyRing {
    file: Option<PathBuf>,
    known: Mutex<Arc<KnownApiKeys>>,
    last_check: Mutex<KeyFileCheckState>,
    /// True once any key or key file existed. The value never becomes false again, so that deleting
    /// the file does not open the server to everyone.
    required: AtomicBool,
}

/// API keys of the settings and of the key file, and revoked keys.
#[derive(Clone, Default)]
struct KnownApiKeys {
    configured: Vec<KnownApiKey>,
    from_file: Vec<KnownApiKey>,
    /// Digests of API keys that earlier settings or an earlier key file contained. Such a key is
    /// invalid, unless the current settings or key file contain it.
    revoked: HashSet<ApiKeyDigest>,
}

/// API keys of a changed configuration. They are checked, but not in force yet.
pub(super) struct StagedApiKeys(Vec<KnownApiKey>);

impl StagedApiKeys {
    /// Parses the API keys of `config`.
    ///
    /// # Errors
    /// Fails if a digest is invalid.
    pub(super) fn parse(config: &Config) -> anyhow::Result<Self> {
        parse_keys(&config.keys).map(Self)
    }
}

/// Time of the last check of the key file, and the file's fingerprint at the last read, by which a
/// change is recognized.
struct KeyFileCheckState {
    checked_at: Instant,
    stamp: Option<EntryFingerprint>,
}

/// An API key with its caller and expiry.
#[derive(Clone)]
struct KnownApiKey {
    digest: ApiKeyDigest,
    caller: Caller,
    expires: Option<Timestamp>,
}

/// Result of looking up an API key.
pub(super) enum ApiKeyLookupResult {
    Owner(Caller),
    /// The API key is known, but was revoked or has expired.
    NotValidNow,
    Unknown,
}

impl ApiKeyRing {
    pub(super) fn from_config(config: &Config) -> anyhow::Result<Self> {
        let file = key_file::path(&config.server)?;
        let content = file.as_deref().map(key_file::read).transpose()?.flatten();
        let stamp = content.as_ref().map(|(_, stamp)| *stamp);
        let mut known =
            KnownApiKeys { configured: parse_keys(&config.keys)?, ..KnownApiKeys::default() };
        if let Some((content, _)) = content {
            known.replace_file_keys(&content)?;
        }
        let required = AtomicBool::new(!known.configured.is_empty() || stamp.is_some());
        let last_check = Mutex::new(KeyFileCheckState { checked_at: Instant::now(), stamp });
        Ok(Self { file, known: Mutex::new(Arc::new(known)), last_check, required })
    }

    /// Returns true if requests need a credential. First reads the key file again if it has
    /// changed.
    pub(super) fn are_required(&self) -> bool {
        self.reload_if_changed();
        self.required.load(Ordering::Relaxed)
    }

    /// Replaces the API keys from the settings by `next`. Keys that were removed count as revoked.
    pub(super) fn replace_configured(&self, next: StagedApiKeys) {
        let mut known = lock_mutex(&self.known);
        let mut changed = KnownApiKeys::clone(&known);
        changed.revoked.extend(known.configured.iter().map(|key| key.digest));
        changed.configured = next.0;
        let has_keys = !changed.configured.is_empty();
        *known = Arc::new(changed);
        drop(known);
        if has_keys {
            self.require();
        }
    }

    /// Makes every later request require a credential.
    pub(super) fn require(&self) {
        self.required.store(true, Ordering::Relaxed);
    }

    /// Looks up the API key with this `digest`. Compares the digest with that of every key in
    /// constant time.
    pub(super) fn find(&self, digest: &ApiKeyDigest) -> ApiKeyLookupResult {
        let known = lock_mutex(&self.known).clone();
        let mut found = match known.revoked.contains(digest) {
            true => ApiKeyLookupResult::NotValidNow,
            false => ApiKeyLookupResult::Unknown,
        };
        for key in known.configured.iter().chain(&known.from_file) {
            let pairs = key.digest.iter().zip(digest);
            let differs = pairs.fold(0, |differs, (a, b)| differs | (a ^ b));
            // Keeps the compiler from ending the comparison early.
            if std::hint::black_box(differs) == 0 {
                found = key.lookup();
            }
        }
        found
    }

    /// Reads the key file again if it has changed. If the file is invalid, the previous API keys
    /// stay in force.
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
        let read = key_file::read(file).and_then(|content| {
            let stamp = content.as_ref().map(|(_, stamp)| *stamp);
            let mut known = lock_mutex(&self.known);
            let mut changed = KnownApiKeys::clone(&known);
            changed.replace_file_keys(&content.map(|(keys, _)| keys).unwrap_or_default())?;
            let count = changed.from_file.len();
            *known = Arc::new(changed);
            Ok((count, stamp))
        });
        match read {
            Ok((count, stamp)) => {
                let unit = if count == 1 { "key" } else { "keys" };
                tracing::info!("{} was read again: {count} {unit}", file.display());
                last.stamp = stamp;
                if stamp.is_some() {
                    self.require();
                }
            }
            Err(err) => {
                tracing::error!("the keys are unchanged: {err:#}");
                // An invalid key file still means that the owner wants authentication.
                self.require();
            }
        }
    }
}

impl KnownApiKeys {
    /// Replaces the API keys that came from the key file by the keys in `content`. Keys that were
    /// removed count as revoked. Fails if a key is invalid.
    fn replace_file_keys(&mut self, content: &KeyFileContent) -> anyhow::Result<()> {
        let keys = parse_keys(&content.keys)?;
        self.revoked.extend(self.from_file.iter().map(|key| key.digest));
        self.revoked.extend(content.revoked.iter().filter_map(|digest| parse_digest(digest)));
        self.from_file = keys;
        Ok(())
    }
}

impl KnownApiKey {
    fn lookup(&self) -> ApiKeyLookupResult {
        match self.expires.is_none_or(|until| Timestamp::now() < until) {
            true => ApiKeyLookupResult::Owner(self.caller.clone()),
            false => ApiKeyLookupResult::NotValidNow,
        }
    }
}

fn parse_keys(keys: &[ApiKey]) -> anyhow::Result<Vec<KnownApiKey>> {
    let known = keys.iter().map(|key| {
        let digest = key
            .digest_key()
            .with_context(|| format!("the key `{}` has no valid digest", key.name))?;
        let roles: Vec<Arc<str>> = key.roles.iter().map(|role| role.as_str().into()).collect();
        let caller = Caller { roles: roles.into(), ..Caller::with_key(&key.name) };
        Ok(KnownApiKey { digest, caller, expires: key.expires })
    });
    known.collect()
}
