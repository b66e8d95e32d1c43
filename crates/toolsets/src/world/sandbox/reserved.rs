//! Names in a workspace that are not there, and that no program may take.
//!
//! A mount needs something to lie on: while programs run, an empty folder that nobody can write
//! stands at each such name. Git, which knows no empty folders, does not see it. Whoever needs one
//! holds a shared lock on it, of this server or another, and the last who does takes it away.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{Timespec, poll};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, mkdirat,
    openat, statat, unlinkat,
};
use rustix::io::Errno;

use super::plan::Identity;

/// What nobody else makes: by it one is known that a server has left which was killed.
const MODE: Mode = Mode::from_bits_retain(0o555);
/// How often it is tried to have a folder that another server takes away meanwhile.
const TRIES: usize = 10;

/// What stands at which name of which workspace.
#[derive(Clone, Default)]
pub(super) struct Reserved(Arc<Mutex<HashMap<Name, Standing>>>);

type Name = (Identity, String);

struct Standing {
    /// How many programs need it.
    count: usize,
    /// With a shared lock on it.
    folder: OwnedFd,
}

/// Names that are reserved while this lives.
pub(super) struct Reservation {
    of: Reserved,
    workspace: OwnedFd,
    names: Vec<Name>,
}

impl Reserved {
    /// Takes those of `names` in `workspace` where nothing is. What cannot be taken is left: a
    /// program cannot take it either.
    pub(super) fn take<'n>(
        &self,
        workspace: OwnedFd,
        identity: Identity,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Reservation {
        let mut taken = Vec::new();
        let mut all = self.all();
        for name in names {
            let Some(folder) = stood(workspace.as_fd(), name) else { continue };
            let key = (identity, name.to_owned());
            match all.entry(key.clone()) {
                Entry::Vacant(place) => _ = place.insert(Standing { count: 1, folder }),
                Entry::Occupied(mut standing) => {
                    let standing = standing.get_mut();
                    // It may be another, where somebody took the first away.
                    (standing.count, standing.folder) = (standing.count + 1, folder);
                }
            }
            taken.push(key);
        }
        drop(all);
        Reservation { of: self.clone(), workspace, names: taken }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Name, Standing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The folder at `name` for nobody to write, with a shared lock on it; `None` where there is
/// something else.
fn stood(workspace: BorrowedFd<'_>, name: &str) -> Option<OwnedFd> {
    for _ in 0..TRIES {
        let is_new = match mkdirat(workspace, name, MODE) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(_) => return None,
        };
        let folder = match open(workspace, name) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => continue,
            Err(_) => return None,
        };
        if is_new {
            // Whatever files are made with here.
            fchmod(&folder, MODE).ok()?;
        }
        let own = fstat(&folder).ok()?;
        if !is_placeholder(&own) {
            // It may be another server's that has not been made readable yet.
            if is_being_made(&own) {
                pause();
                continue;
            }
            return None;
        }
        if flock(&folder, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK) {
            // Another server is taking it away.
            pause();
            continue;
        }
        if is_at(workspace, name, &own) {
            return Some(folder);
        }
    }
    None
}

fn open(workspace: BorrowedFd<'_>, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(workspace, name, flags, Mode::empty())
}

/// Waits for another server to come to an end with what it does.
fn pause() {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
}

/// Whether what `stat` tells of stands at `name`.
fn is_at(workspace: BorrowedFd<'_>, name: impl rustix::path::Arg, stat: &Stat) -> bool {
    let there = statat(workspace, name, AtFlags::SYMLINK_NOFOLLOW);
    there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino))
}

/// Whether what `stat` tells of may become a placeholder in a moment: that which a mask of files
/// has left of one.
fn is_being_made(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        && MODE.contains(mode)
        && stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Whether what `stat` tells of is what a server of this user has made.
fn is_placeholder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        && Mode::from_raw_mode(stat.st_mode) == MODE
        && stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Whether what is called `name` in `folder` stands there for programs alone. It is nobody's, and so
/// in no list.
pub(in crate::world) fn is_reserved(folder: BorrowedFd<'_>, name: &OsStr) -> bool {
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| is_placeholder(&stat))
        && open(folder, name).and_then(Dir::new).is_ok_and(|mut entries| {
            entries.all(|entry| {
                entry.is_ok_and(|it| matches!(it.file_name().to_bytes(), b"." | b".."))
            })
        })
}

/// Takes `folder`, which stands at `name`, away unless another server needs it.
fn take_away(workspace: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy, folder: &OwnedFd) {
    // Of two that let go at once the later one has it: who asks for all of it gives up its share.
    let is_ours = flock(folder, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK);
    // Somebody may have removed it, and another server made one.
    if is_ours && fstat(folder).is_ok_and(|stat| is_at(workspace, name, &stat)) {
        // Only an empty folder is removed by this.
        let _ = unlinkat(workspace, name, AtFlags::REMOVEDIR);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut all = self.of.all();
        for key in &self.names {
            let Some(standing) = all.get_mut(key) else { continue };
            standing.count -= 1;
            if standing.count == 0
                && let Some(standing) = all.remove(key)
            {
                take_away(self.workspace.as_fd(), &*key.1, &standing.folder);
            }
        }
    }
}

/// What servers that were killed may have left in a workspace.
#[derive(Debug)]
pub(in crate::world) struct Leavings {
    pub(in crate::world) workspace: OwnedFd,
    names: Vec<CString>,
}

impl Leavings {
    /// At `names` in the folder `workspace`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn of<'n>(
        workspace: &Path,
        names: impl IntoIterator<Item = &'n str>,
    ) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let workspace = openat(CWD, workspace, flags, Mode::empty())?;
        let names = names.into_iter().filter_map(|name| CString::new(name).ok()).collect();
        Ok(Self { workspace, names })
    }

    /// Takes away what no server needs any more.
    pub(in crate::world) fn sweep(&self) {
        self.sweep_at(self.workspace.as_fd());
    }

    /// The same, where the workspace has another descriptor. System calls only.
    pub(in crate::world) fn sweep_at(&self, workspace: BorrowedFd<'_>) {
        for name in &self.names {
            let name: &CStr = name;
            let Ok(folder) = open(workspace, name) else { continue };
            if fstat(&folder).is_ok_and(|stat| is_placeholder(&stat)) {
                take_away(workspace, name, &folder);
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

    fn taken(by: &Reserved, at: &Path) -> Reservation {
        let meta = rustix::fs::stat(at).expect("there");
        by.take(workspace(at), (meta.st_dev, meta.st_ino), NAMES)
    }

    fn stands(at: &Path) -> usize {
        fs::read_dir(at).expect("readable").count()
    }

    #[test]
    fn what_another_server_needs_stays_and_the_last_takes_it_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let (one, other) = (Reserved::default(), Reserved::default());
        let (first, second) = (taken(&one, at), taken(&one, at));
        let theirs = taken(&other, at);
        drop(first);
        drop(second);
        assert_eq!(stands(at), 2, "the other server needs them");
        drop(taken(&one, at));
        assert_eq!(stands(at), 2);
        drop(theirs);
        assert_eq!(stands(at), 0);
    }

    #[test]
    fn what_was_left_is_swept_and_what_is_needed_or_anybody_else_s_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let leavings = Leavings::of(at, NAMES).expect("a folder");
        let reserved = Reserved::default();
        let needed = taken(&reserved, at);
        leavings.sweep();
        assert_eq!(stands(at), 2);
        drop(needed);
        mkdirat(workspace(at), ".git", MODE).expect("left");
        fs::create_dir(at.join(".vscode")).expect("somebody's own");
        leavings.sweep();
        assert!(!at.join(".git").exists() && at.join(".vscode").exists());
    }
}
