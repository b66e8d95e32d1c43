//! Stores OAuth credentials for upstreams in the user's state folder, where only the user can read
//! them.
#![allow(
    clippy::disallowed_methods,
    reason = "the owner's own state folder, outside the workspace"
)]

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toolgate_contract::KeepActiveGuard;

use crate::config::state_folder;

/// Longest wait for the lock of an upstream's credential, which another process may hold.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(30);
/// Pause between two attempts to lock an upstream's credential.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the folder in which upstreams' credentials are stored, or `None` if this user has no
/// state folder.
pub(crate) fn credentials_folder() -> Option<PathBuf> {
    Some(state_folder()?.join("upstreams"))
}

/// Store of upstreams' credentials in this folder. `None` if this user has no state folder, so that
/// no credential can be stored.
pub(super) struct CredentialStore(Option<PathBuf>);

impl CredentialStore {
    pub(super) fn new() -> Self {
        Self(credentials_folder())
    }

    fn create_folder(&self) -> Result<&Path, String> {
        let missing = "cannot store credentials: neither XDG_STATE_HOME nor HOME is set";
        let folder = self.0.as_deref().ok_or(missing)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|err| format!("cannot create {}: {err}", folder.display()))?;
        Ok(folder)
    }

    /// Returns the stored credential `name`, or `None` if it does not exist or cannot be read.
    pub(super) fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.0.as_ref()?.join(format!("{name}.json"))).ok()
    }

    /// Stores `secret` as the upstream credential `name`, or deletes this credential if `secret` is
    /// `None`. Fails if the folder cannot be written.
    pub(super) fn store(&self, name: &str, secret: Option<&str>) -> Result<(), String> {
        let folder = self.create_folder()?;
        let file = folder.join(format!("{name}.json"));
        let stored = match secret {
            // Replaced atomically, because another process may read it. The file is private from
            // its creation.
            Some(secret) => tempfile::NamedTempFile::new_in(folder).and_then(|mut next| {
                next.write_all(secret.as_bytes())?;
                next.persist(&file)?;
                Ok(())
            }),
            None => match fs::remove_file(&file) {
                Err(err) if err.kind() != ErrorKind::NotFound => Err(err),
                Ok(()) | Err(_) => Ok(()),
            },
        };
        stored.map_err(|err| format!("cannot write {}: {err}", file.display()))
    }

    /// Records that other servers do not have the coming version of the credential `name`, before
    /// it changes. [`Self::mark_shared`] deletes this mark. The mark contains the digest of the
    /// last version that other servers have. Fails if the mark cannot be written.
    pub(super) fn mark_unshared(&self, name: &str) -> Result<(), String> {
        let file = self.create_folder()?.join(format!("{name}.unshared"));
        if file.exists() {
            return Ok(());
        }
        let before = digest_of(self.read(name).as_deref());
        fs::write(&file, before).map_err(|err| format!("cannot write {}: {err}", file.display()))
    }

    /// Deletes the mark of the credential `name`, because other servers have its current version
    /// now.
    pub(super) fn mark_shared(&self, name: &str) {
        let Some(folder) = &self.0 else { return };
        match fs::remove_file(folder.join(format!("{name}.unshared"))) {
            Err(err) if err.kind() != ErrorKind::NotFound => {
                tracing::warn!("the sign-in `{name}` stays marked as not shared: {err}");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Returns true if other servers may not have the credential `name` yet.
    pub(super) fn is_unshared(&self, name: &str) -> bool {
        self.unshared_since(name).is_some()
    }

    /// Returns true if this server changed the credential `name` after `shared`, the credential
    /// that other servers have.
    pub(super) fn is_newer_than(&self, name: &str, shared: Option<&str>) -> bool {
        self.unshared_since(name).is_some_and(|before| before == digest_of(shared))
    }

    /// Returns the digest of the last shared version of the credential `name`, or `None` if the
    /// current version is shared.
    fn unshared_since(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.0.as_ref()?.join(format!("{name}.unshared"))).ok()
    }

    /// Locks the stored credential `name` until the returned guard is dropped. Waits up to 30 s
    /// while another process holds the lock, and then fails.
    pub(super) async fn lock(&self, name: &str) -> Result<KeepActiveGuard, String> {
        let file = self.create_folder()?.join(format!("{name}.lock"));
        let failure = |err: std::io::Error| format!("cannot lock {}: {err}", file.display());
        let mut options = OpenOptions::new();
        let opened = options.create(true).truncate(false).write(true).mode(0o600).open(&file);
        let lock: File = opened.map_err(failure)?;
        let since = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(KeepActiveGuard::new(lock)),
                Err(TryLockError::Error(err)) => return Err(failure(err)),
                Err(TryLockError::WouldBlock) if since.elapsed() > LOCK_WAIT_MAX => {
                    return Err(format!("another process holds the lock {}", file.display()));
                }
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_POLL_INTERVAL).await,
            }
        }
    }
}

/// Returns the digest of the credential `secret`, or the text `none` if there is no credential.
fn digest_of(secret: Option<&str>) -> String {
    match secret {
        Some(secret) => blake3::hash(secret.as_bytes()).to_hex().to_string(),
        None => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_credential_that_was_not_shared_is_newer_unless_another_server_changed_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = CredentialStore(Some(folder.path().to_owned()));
        store.store("x", Some("old")).expect("stored");
        assert!(!store.is_unshared("x") && !store.is_newer_than("x", Some("old")));
        for next in [Some("new"), Some("newest")] {
            store.mark_unshared("x").expect("marked");
            store.store("x", next).expect("stored");
        }
        assert!(store.is_newer_than("x", Some("old")), "the others know the old one");
        assert!(!store.is_newer_than("x", Some("another")) && !store.is_newer_than("x", None));
        store.mark_shared("x");
        store.mark_shared("x");
        assert!(!store.is_unshared("x"));
        store.mark_unshared("y").expect("marked");
        store.store("y", Some("first")).expect("stored");
        assert!(store.is_newer_than("y", None), "the others know that it was deleted");
    }

    #[tokio::test]
    async fn credentials_are_private_and_locked_by_one_process_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().join("a/b");
        let store = CredentialStore(Some(at.clone()));
        assert_eq!(store.read("x"), None);
        store.store("x", Some("secret")).expect("stored");
        assert_eq!(store.read("x").as_deref(), Some("secret"));
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&at), mode(&at.join("x.json"))), (0o700, 0o600));
        let first = store.lock("x").await.expect("locked");
        let second = tokio::time::timeout(Duration::from_millis(100), store.lock("x")).await;
        assert!(second.is_err(), "the first lock is held");
        drop(first);
        store.lock("x").await.expect("locked again");
        store.store("x", None).expect("deleted");
        store.store("x", None).expect("nothing to delete");
        assert_eq!(store.read("x"), None);
    }
}
