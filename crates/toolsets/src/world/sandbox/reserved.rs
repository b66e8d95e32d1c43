//! Names in a workspace that are not there, and that no program may take.
//!
//! A mount needs something to lie on: while programs run, an empty folder that nobody can write
//! stands at each such name. Git, which knows no empty folders, does not see it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, mkdirat, statat, unlinkat};
use rustix::io::Errno;

use super::plan::Identity;

/// What nobody else makes: by it one is known that a server has left which was killed.
const MODE: Mode = Mode::from_bits_retain(0o555);

/// How many programs need which name of which workspace.
#[derive(Clone, Default)]
pub(super) struct Reserved(Arc<Mutex<HashMap<Name, usize>>>);

type Name = (Identity, String);

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
        let mut counts = self.counts();
        for name in names {
            let key = (identity, name.to_owned());
            let count = counts.get(&key).copied().unwrap_or(0);
            let is_ours = match mkdirat(&workspace, name, MODE) {
                Ok(()) => true,
                Err(Errno::EXIST) => count > 0 || is_left(&workspace, name),
                Err(_) => false,
            };
            if is_ours {
                counts.insert(key.clone(), count + 1);
                taken.push(key);
            }
        }
        drop(counts);
        Reservation { of: self.clone(), workspace, names: taken }
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Name, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a server that is gone has left what is at `name`.
fn is_left(workspace: &OwnedFd, name: &str) -> bool {
    statat(workspace, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && Mode::from_raw_mode(stat.st_mode) == MODE
            && stat.st_uid == rustix::process::geteuid().as_raw()
    })
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        for key in &self.names {
            match counts.get_mut(key) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) | None => {
                    counts.remove(key);
                    // Only an empty folder is removed by this.
                    let _ = unlinkat(&self.workspace, &*key.1, AtFlags::REMOVEDIR);
                }
            }
        }
    }
}
