//! Shares sign-ins to upstreams among the servers of a fleet, because a refresh token works only
//! once.
//!
//! The credentials are in the database of the fleet, encrypted with a key that is derived from the
//! servers' session key.

use std::path::Path;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use toolgate_host::{FleetCredentialLock, FleetCredentialState, FleetCredentials};

use crate::config::Config;
use crate::owned_files::{self, OwnedFileSymlinkPolicy};

/// Context for the derivation of the encryption key of shared credentials from the session key.
const KEY_CONTEXT: &str = "toolgate 2026-11-28 sign-ins to upstreams that servers share";

/// Credentials for upstreams in the database of a fleet.
pub(super) struct SharedCredentials {
    stored: FleetCredentials,
    sealer: CredentialSealer,
}

/// Encrypts and decrypts credentials. An encrypted credential can be decrypted only under its own
/// name.
struct CredentialSealer(LessSafeKey);

impl SharedCredentials {
    /// Returns the credentials that servers of the workspace at `root` share. Returns `None` if
    /// `config` has no fleet database or no session key.
    pub(super) fn from_config(config: &Config, root: &Path) -> Option<Self> {
        let database = config.fleet.job_store(root).ok().flatten()?;
        let path = config.server.session_key.as_ref()?;
        // A key that cannot be used stops the server elsewhere.
        let (secret, _) =
            owned_files::read_owned(Path::new(path), OwnedFileSymlinkPolicy::Followed).ok()?;
        let sealer = CredentialSealer::new(&secret);
        Some(Self { stored: FleetCredentials::new(database), sealer })
    }

    /// Locks the credential `name` for all servers of the fleet, and returns the lock. Fails if the
    /// database is unavailable.
    pub(super) async fn lock(&self, name: &str) -> Result<FleetCredentialLock, String> {
        self.stored.lock(name).await.map_err(|err| err.to_string())
    }

    /// Returns the credential `name` that any server stored last, or an empty text if it was
    /// deleted. Returns `None` if no server has stored it, or if it cannot be read.
    pub(super) async fn read(&self, name: &str) -> Option<String> {
        match self.stored.read(name).await {
            Ok(FleetCredentialState::Stored(sealed)) => {
                let opened = self.sealer.open(name, sealed);
                if opened.is_none() {
                    tracing::warn!(
                        "the sign-in `{name}` of another server cannot be read, because that server \
                         has another `server.session_key`"
                    );
                }
                opened
            }
            Ok(FleetCredentialState::Deleted) => Some(String::new()),
            Ok(FleetCredentialState::Unknown) => None,
            Err(err) => {
                tracing::warn!("{err}; the sign-in `{name}` is not fetched from other servers");
                None
            }
        }
    }

    /// Stores `secret` as the credential `name` for all servers of the fleet, or deletes the
    /// credential if `secret` is `None`. Returns false if that fails.
    pub(super) async fn store(&self, name: &str, secret: Option<&str>) -> bool {
        let sealed = match secret {
            Some(secret) => match self.sealer.seal(name, secret) {
                Some(sealed) => Some(sealed),
                None => {
                    tracing::warn!("the system provides no random numbers");
                    return false;
                }
            },
            None => None,
        };
        match self.stored.write(name, sealed.as_deref()).await {
            Ok(()) => true,
            Err(err) => {
                tracing::warn!("{err}; other servers may have to sign in again (`{name}`)");
                false
            }
        }
    }
}

impl CredentialSealer {
    /// Creates a sealer whose encryption key is derived from `secret`, the session key.
    fn new(secret: &[u8]) -> Self {
        let key = blake3::derive_key(KEY_CONTEXT, secret);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).expect("a key of that length");
        Self(LessSafeKey::new(key))
    }

    /// Encrypts `secret` as the credential `name`. Returns `None` if encryption fails.
    fn seal(&self, name: &str, secret: &str) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let mut bytes = secret.as_bytes().to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(unique, Aad::from(name.as_bytes()), &mut bytes).ok()?;
        bytes.splice(0..0, nonce);
        Some(bytes)
    }

    /// Decrypts `sealed`, the encrypted credential `name`. Returns `None` if it was encrypted with
    /// a different key or under a different name.
    fn open(&self, name: &str, mut sealed: Vec<u8>) -> Option<String> {
        let (nonce, _) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let aad = Aad::from(name.as_bytes());
        let opened = self.0.open_in_place(nonce, aad, &mut sealed[NONCE_LEN..]).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_opens_only_under_its_name_with_its_key() {
        let sealer = CredentialSealer::new(b"one");
        let sealed = sealer.seal("a", "very-secret").unwrap();
        assert!(!sealed.windows(4).any(|part| part == b"very"));
        assert_eq!(sealer.open("a", sealed.clone()).as_deref(), Some("very-secret"));
        assert_eq!(sealer.open("b", sealed.clone()), None);
        assert_eq!(CredentialSealer::new(b"two").open("a", sealed), None);
        assert_eq!(sealer.open("a", Vec::new()), None);
    }
}
