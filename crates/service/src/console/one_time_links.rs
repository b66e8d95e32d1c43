//! One-time links with which the person at this machine signs in to the console.
//!
//! A link contains a random number, its expiry and a seal. The key of the seal is a file in the
//! user's state folder, which no tool can read. With this key, `toolgate console` can make a link
//! for a server that is already running.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;

use anyhow::Context;
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use toolgate_contract::lock_mutex;

use crate::config::state_folder;
use crate::owned_files::{self, OwnedFileSymlinkPolicy};

/// Time for which a one-time link to the console is valid, in seconds.
const VALIDITY_S: i64 = 600;
/// Maximum time, in seconds, by which an accepted one-time link may be older than the server
/// process. `toolgate serve` prints a link before it listens.
const START_SLACK_S: i64 = 60;
/// Maximum number of used one-time links that are remembered. A link expires long before this
/// number is reached.
const USED_MAX: usize = 10_000;
/// Length of the key that seals one-time links, in bytes.
const KEY_BYTES: usize = 32;
/// Length of the random number in a one-time link, in bytes.
const NONCE_BYTES: usize = 16;
/// Context of the key derivation (BLAKE3) for seals of one-time links. Keys that were derived for
/// other purposes have other contexts.
const CONTEXT: &str = "toolgate console one-time link v1";

/// Key that seals one-time links to the console.
pub struct OneTimeLinkKey([u8; KEY_BYTES]);

impl OneTimeLinkKey {
    /// Reads the key of one-time links in the user's state folder, and creates it if it is missing.
    ///
    /// # Errors
    /// There is no state folder, or the key cannot be read, created or trusted.
    pub fn open_or_create() -> anyhow::Result<Self> {
        let folder = state_folder().context("the user has no home folder for the key of links")?;
        Self::open_in(&folder)
    }

    fn open_in(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("console.key");
        create_if_missing(folder, &path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let (bytes, _) = owned_files::read_owned(&path, OwnedFileSymlinkPolicy::Refused)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let key = bytes.try_into().ok();
        let key = key.with_context(|| format!("{} is not a key; delete it", path.display()))?;
        Ok(Self(key))
    }

    /// Creates a random key of one-time links that is valid only in this process. Fails if the
    /// system has no random numbers.
    pub(crate) fn random() -> anyhow::Result<Self> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key)?;
        Ok(Self(key))
    }

    /// Creates the token of a one-time link, which is valid for ten minutes.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new_token(&self) -> anyhow::Result<String> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce)?;
        let until = Timestamp::now().as_second() + VALIDITY_S;
        Ok(self.token(until, nonce))
    }

    fn token(&self, until: i64, nonce: [u8; NONCE_BYTES]) -> String {
        let content = [&until.to_be_bytes()[..], &nonce].concat();
        let seal = self.seal(&content);
        format!("{}{}", HEXLOWER.encode(&content), seal.to_hex())
    }

    fn seal(&self, content: &[u8]) -> blake3::Hash {
        let key = blake3::derive_key(CONTEXT, &self.0);
        blake3::keyed_hash(&key, content)
    }
}

/// Creates the file `path` in `folder` with a new key of one-time links, readable only by the user.
/// Does nothing if the file exists.
#[allow(clippy::disallowed_methods, reason = "the server's own file, outside every root")]
fn create_if_missing(folder: &Path, path: &Path) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::DirBuilderExt as _;
    if path.exists() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let OneTimeLinkKey(key) = OneTimeLinkKey::random()?;
    // Two servers may start at once: the complete file of one of them gets the name.
    let mut next = tempfile::Builder::new().prefix(".console.key").tempfile_in(folder)?;
    next.write_all(&key)?;
    next.as_file().sync_all()?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    next.as_file().set_permissions(mode)?;
    match next.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(err) if err.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(err) => Err(err.error.into()),
    }
}

/// Checks the one-time links that a server receives. Contains the key of their seal, and the tokens
/// that were already used.
pub(crate) struct OneTimeLinks {
    key: OneTimeLinkKey,
    /// Time at which the server started, in seconds since the Unix epoch. Older links are refused,
    /// because an earlier run of the server may have accepted them.
    started: i64,
    used: Mutex<VecDeque<String>>,
}

impl OneTimeLinks {
    pub(crate) fn new(key: OneTimeLinkKey) -> Self {
        Self { key, started: Timestamp::now().as_second(), used: Mutex::default() }
    }

    /// Marks the one-time link with `token` as used. Returns true if the link was valid and not
    /// used before.
    pub(crate) fn take(&self, token: &str) -> bool {
        let now = Timestamp::now().as_second();
        let Some(until) = self.expiry(token) else { return false };
        if until < now || until - VALIDITY_S < self.started - START_SLACK_S {
            return false;
        }
        let mut used = lock_mutex(&self.used);
        if used.iter().any(|one| one == token) {
            return false;
        }
        if used.len() == USED_MAX {
            used.pop_front();
        }
        used.push_back(token.to_owned());
        true
    }

    /// Returns the expiry of the one-time link with `token`, in seconds since the Unix epoch.
    /// Returns `None` if the seal is invalid.
    fn expiry(&self, token: &str) -> Option<i64> {
        // Only lower-case digits are accepted, so that each token has one spelling.
        let token = HEXLOWER.decode(token.as_bytes()).ok()?;
        let (content, seal) = token.split_at_checked(8 + NONCE_BYTES)?;
        // Hashes are compared in constant time.
        let is_valid = blake3::Hash::from_bytes(seal.try_into().ok()?) == self.key.seal(content);
        let until = content.first_chunk::<8>().filter(|_| is_valid)?;
        Some(i64::from_be_bytes(*until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_valid_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let links = OneTimeLinks::new(OneTimeLinkKey::open_in(folder.path()).expect("a key"));
        let token =
            OneTimeLinkKey::open_in(folder.path()).expect("the key").new_token().expect("a token");
        assert!(links.take(&token));
        assert!(!links.take(&token));
        assert!(links.take(&links.key.new_token().expect("a token")));
    }

    #[test]
    fn an_expired_forged_or_older_link_is_refused() {
        let links = OneTimeLinks::new(OneTimeLinkKey([1; 32]));
        let now = Timestamp::now().as_second();
        assert!(!links.take(&OneTimeLinkKey([1; 32]).token(now - 1, [0; 16])), "expired");
        assert!(
            !links.take(&OneTimeLinkKey([1; 32]).token(now + 10, [0; 16])),
            "made before the start"
        );
        assert!(
            !links.take(&OneTimeLinkKey([2; 32]).token(now + VALIDITY_S, [0; 16])),
            "another key"
        );
        let valid = OneTimeLinkKey([1; 32]).token(now + VALIDITY_S, [0; 16]);
        for wrong in ["", "x", &valid[1..], &valid.to_uppercase(), &valid.replace('0', "ä")] {
            assert!(!links.take(wrong), "{wrong}");
        }
        assert!(links.take(&valid));
    }
}
