//! Reserves names in a workspace that no program may create.
//!
//! A mount needs a mount point. While programs run, each reserved name therefore has a placeholder:
//! an empty, read-only folder, which git ignores. Each program holds a shared lock on it, also
//! programs of other servers. The last one removes the folder.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{Timespec, poll};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, mkdirat,
    openat, statat, unlinkat,
};
use rustix::io::Errno;

use super::plan::FileIdentity;
use crate::root::{PLACEHOLDER_MODE, is_placeholder, open_folder};

/// The maximum number of tries to lock a placeholder that another server removes meanwhile.
const TRIES: usize = 10;

/// The names that programs cannot create: placeholder folders by workspace and name.
#[derive(Clone, Default)]
pub(super) struct ReservedNames(Arc<Mutex<HashMap<ReservedNameKey, NamePlaceholder>>>);

type ReservedNameKey = (FileIdentity, String);

struct NamePlaceholder {
    /// The number of running programs that need the placeholder.
    count: usize,
    /// The open placeholder folder, with a shared lock.
    folder: OwnedFd,
}

/// Names that programs cannot create until this value is dropped.
pub(super) struct NameReservation {
    registry: ReservedNames,
    workspace: OwnedFd,
    names: Vec<ReservedNameKey>,
}

impl ReservedNames {
    /// Reserves the free names among `names` in `workspace`. Skips a name that the server cannot
    /// create, because a program cannot create it either.
    pub(super) fn reserve<'n>(
        &self,
        workspace: OwnedFd,
        identity: FileIdentity,
        names: impl IntoIterator<Item = &'n str>,
    ) -> NameReservation {
        let mut reserved = Vec::new();
        let mut all = self.lock_all();
        for name in names {
            let Some(folder) = lock_placeholder(workspace.as_fd(), name) else { continue };
            let key = (identity, name.to_owned());
            match all.entry(key.clone()) {
                Entry::Vacant(place) => _ = place.insert(NamePlaceholder { count: 1, folder }),
                Entry::Occupied(mut standing) => {
                    let standing = standing.get_mut();
                    // It may be a new folder if somebody removed the first.
                    (standing.count, standing.folder) = (standing.count + 1, folder);
                }
            }
            reserved.push(key);
        }
        drop(all);
        NameReservation { registry: self.clone(), workspace, names: reserved }
    }

    fn lock_all(&self) -> MutexGuard<'_, HashMap<ReservedNameKey, NamePlaceholder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates or opens the placeholder `name` and takes a shared lock on it. `None` if another entry
/// has this name.
fn lock_placeholder(workspace: BorrowedFd<'_>, name: &str) -> Option<OwnedFd> {
    for _ in 0..TRIES {
        let is_new = match mkdirat(workspace, name, PLACEHOLDER_MODE) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(_) => return None,
        };
        let folder = match open_folder(workspace, name) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => continue,
            Err(_) => return None,
        };
        let mut own = fstat(&folder).ok()?;
        if is_new && !is_placeholder(&own) {
            // The umask has changed the mode.
            fchmod(&folder, PLACEHOLDER_MODE).ok()?;
            own = fstat(&folder).ok()?;
        }
        if !is_placeholder(&own) {
            // Another server may be about to set its mode.
            if is_being_made(&own) {
                pause();
                continue;
            }
            return None;
        }
        if flock(&folder, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK) {
            // Another server is removing it.
            pause();
            continue;
        }
        if is_entry(workspace, name, &own) {
            return Some(folder);
        }
    }
    None
}

/// Waits 1 ms for another server to finish its change of a placeholder.
fn pause() {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
}

/// Returns `true` if `name` is the entry that `stat` describes.
fn is_entry(workspace: BorrowedFd<'_>, name: impl rustix::path::Arg, stat: &Stat) -> bool {
    let there = statat(workspace, name, AtFlags::SYMLINK_NOFOLLOW);
    there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino))
}

/// Returns `true` if `stat` describes a folder that another server is about to make a placeholder:
/// the umask has reduced its mode.
fn is_being_made(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        && PLACEHOLDER_MODE.contains(mode)
        && stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Removes the placeholder `folder` at `name`, unless another server needs it.
fn remove_placeholder(
    workspace: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    folder: &OwnedFd,
) {
    // If two servers release it at once, the later one removes it: an attempt to lock exclusively
    // gives up the shared lock.
    let is_ours = flock(folder, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK);
    // Somebody may have removed it, and another server may have created a new one.
    if is_ours && fstat(folder).is_ok_and(|stat| is_entry(workspace, name, &stat)) {
        // This call removes only empty folders.
        let _ = unlinkat(workspace, name, AtFlags::REMOVEDIR);
    }
}

impl Drop for NameReservation {
    fn drop(&mut self) {
        let mut all = self.registry.lock_all();
        for key in &self.names {
            let Some(standing) = all.get_mut(key) else { continue };
            standing.count -= 1;
            if standing.count == 0
                && let Some(standing) = all.remove(key)
            {
                remove_placeholder(self.workspace.as_fd(), &*key.1, &standing.folder);
            }
        }
    }
}

/// Placeholder folders that killed servers may have left in a workspace.
#[derive(Debug)]
pub(crate) struct SandboxLeftovers {
    pub(crate) workspace: OwnedFd,
    names: Vec<CString>,
}

impl SandboxLeftovers {
    /// Opens `workspace`, to remove placeholders with the names `names` later.
    ///
    /// # Errors
    /// The folder `workspace` cannot be opened.
    pub(super) fn open<'n>(
        workspace: &Path,
        names: impl IntoIterator<Item = &'n str>,
    ) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let workspace = openat(CWD, workspace, flags, Mode::empty())?;
        let names = names.into_iter().filter_map(|name| CString::new(name).ok()).collect();
        Ok(Self { workspace, names })
    }

    /// Removes the placeholder folders that no server needs any longer.
    pub(crate) fn remove(&self) {
        self.remove_at(self.workspace.as_fd());
    }

    /// Removes the placeholders through the descriptor `workspace`. Makes system calls only.
    pub(crate) fn remove_at(&self, workspace: BorrowedFd<'_>) {
        for name in &self.names {
            let name: &CStr = name;
            let Ok(folder) = open_folder(workspace, name) else { continue };
            if fstat(&folder).is_ok_and(|stat| is_placeholder(&stat)) {
                remove_placeholder(workspace, name, &folder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NAMES: [&str; 2] = [".git", ".vscode"];

    fn workspace(at: &Path) -> OwnedFd {
        openat(CWD, at, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("a folder")
    }

    fn reserve_at(by: &ReservedNames, at: &Path) -> NameReservation {
        let meta = rustix::fs::stat(at).expect("the folder exists");
        by.reserve(workspace(at), (meta.st_dev, meta.st_ino), NAMES)
    }

    fn entry_count(at: &Path) -> usize {
        fs::read_dir(at).expect("readable").count()
    }

    #[test]
    fn reserved_names_stay_until_the_last_server_releases_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let one = ReservedNames::default();
        let other = ReservedNames::default();
        let first = reserve_at(&one, at);
        let second = reserve_at(&one, at);
        let theirs = reserve_at(&other, at);
        drop(first);
        drop(second);
        assert_eq!(entry_count(at), 2, "the other server needs them");
        drop(reserve_at(&one, at));
        assert_eq!(entry_count(at), 2);
        drop(theirs);
        assert_eq!(entry_count(at), 0);
    }

    #[test]
    fn leftover_names_are_removed_but_not_reserved_ones_or_real_folders() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let leftovers = SandboxLeftovers::open(at, NAMES).expect("a folder");
        let reserved = ReservedNames::default();
        let needed = reserve_at(&reserved, at);
        leftovers.remove();
        assert_eq!(entry_count(at), 2);
        drop(needed);
        mkdirat(workspace(at), ".git", PLACEHOLDER_MODE).expect("the folder was created");
        fs::create_dir(at.join(".vscode")).expect("the folder was created");
        leftovers.remove();
        assert!(!at.join(".git").exists() && at.join(".vscode").exists());
    }
}
