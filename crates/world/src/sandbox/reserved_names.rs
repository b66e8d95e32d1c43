//! Reserves names in a workspace that no program may create.
//!
//! A mount needs a mount point. While programs run, each reserved name therefore has a placeholder:
//! an empty, read-only folder, which git ignores. Each server with such programs holds a shared
//! lock on the folder. The last server removes the folder.
//!
//! Creating and removing a folder changes the file system's journal. If programs follow each other
//! in a burst, their server therefore keeps the placeholders between them, for [`KEEP_TIME`].

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, mkdirat,
    openat, statat, unlinkat,
};
use rustix::io::Errno;
use tokio::runtime::Handle;
use toolgate_contract::lock_mutex;
use toolgate_net::spawn_blocking;

use super::plan::FileIdentity;
use crate::root::{PLACEHOLDER_MODE, is_placeholder, open_folder};

/// The maximum number of attempts to lock a placeholder, which another server may remove in the
/// meantime.
const TRIES: usize = 10;

/// The longest pause between two programs that belong to the same burst.
const BURST_PAUSE_MAX: Duration = Duration::from_millis(50);
/// The time for which placeholders stay after a program of a burst has ended.
const KEEP_TIME: Duration = Duration::from_millis(50);

/// The names in workspaces that programs cannot create, each with its placeholder folder. Clones
/// share them.
#[derive(Clone, Default)]
pub(super) struct ReservedFileNames(Arc<Mutex<ReservedNamesState>>);

#[derive(Default)]
struct ReservedNamesState {
    placeholders: HashMap<ReservedFileNameKey, ReservedNamePlaceholder>,
    /// The number of reservations that have not been dropped.
    reservation_count: usize,
    /// The time at which the last reservation was dropped.
    last_drop: Option<Instant>,
    /// `true` if the current reservations follow earlier reservations without a long pause.
    is_burst: bool,
    /// `true` while a task runs that removes the placeholders that are no longer needed.
    is_watched: bool,
}

/// The workspace and the name of a placeholder folder.
type ReservedFileNameKey = (FileIdentity, String);

/// A placeholder folder in a workspace, which keeps programs from creating an entry with its name.
struct ReservedNamePlaceholder {
    /// The number of running programs that need the placeholder.
    count: usize,
    /// The time since which no program needs the placeholder. `None` while a program needs it.
    unused_since: Option<Instant>,
    /// The open placeholder folder, with a shared lock. While the folder is open, no other file can
    /// have its device and inode number.
    folder: OwnedFd,
    identity: FileIdentity,
    workspace: Arc<OwnedFd>,
}

/// A reservation of names, which programs cannot create until this value is dropped.
pub(super) struct FileNameReservation {
    registry: ReservedFileNames,
    names: Vec<ReservedFileNameKey>,
}

impl ReservedFileNames {
    /// Reserves those of `names` that do not exist in `workspace`. Skips a name that the server
    /// cannot create, because a program cannot create it either.
    pub(super) fn reserve<'n>(
        &self,
        workspace: OwnedFd,
        identity: FileIdentity,
        names: impl IntoIterator<Item = &'n str>,
    ) -> FileNameReservation {
        let workspace = Arc::new(workspace);
        let mut reserved = Vec::new();
        let mut state = lock_mutex(&self.0);
        state.begin_reservation();
        for name in names {
            let key = (identity, name.to_owned());
            if state.reserve_name(&workspace, &key) {
                reserved.push(key);
            }
        }
        drop(state);
        FileNameReservation { registry: self.clone(), names: reserved }
    }

    /// Removes the placeholders that no program of this server needs, so that their names are free.
    pub(super) fn remove_unused(&self) {
        lock_mutex(&self.0).remove_unused(Duration::ZERO);
    }
}

impl ReservedNamesState {
    fn begin_reservation(&mut self) {
        if self.reservation_count == 0 {
            let pause = self.last_drop.map(|at| at.elapsed());
            self.is_burst = pause.is_some_and(|pause| pause < BURST_PAUSE_MAX);
        }
        self.reservation_count += 1;
    }

    /// Reserves the name in `key` in `workspace`. Returns `false` if an entry with this name
    /// exists.
    fn reserve_name(&mut self, workspace: &Arc<OwnedFd>, key: &ReservedFileNameKey) -> bool {
        let name = &*key.1;
        let before = self.placeholders.get_mut(key);
        let count = before.as_ref().map_or(0, |placeholder| placeholder.count);
        if let Some(placeholder) = before
            && placeholder.is_at(name)
        {
            placeholder.count += 1;
            placeholder.unused_since = None;
            return true;
        }
        let Some((folder, identity)) = lock_placeholder(workspace.as_fd(), name) else {
            return false;
        };
        // It is a new folder if somebody removed the first.
        let placeholder = ReservedNamePlaceholder {
            count: count + 1,
            unused_since: None,
            folder,
            identity,
            workspace: workspace.clone(),
        };
        self.placeholders.insert(key.clone(), placeholder);
        true
    }

    /// Ends one reservation of `names`. With `keeps`, leaves placeholders in place that are no
    /// longer needed.
    fn end_reservation(&mut self, names: &[ReservedFileNameKey], keeps: bool) {
        self.reservation_count -= 1;
        let now = Instant::now();
        self.last_drop = Some(now);
        for key in names {
            let Some(placeholder) = self.placeholders.get_mut(key) else { continue };
            placeholder.count -= 1;
            if placeholder.count > 0 {
                continue;
            }
            placeholder.unused_since = Some(now);
            if !keeps && let Some(placeholder) = self.placeholders.remove(key) {
                placeholder.remove(&key.1);
            }
        }
    }

    /// Removes the placeholders that no program has needed for `min_age`. Returns `true` if other
    /// unneeded placeholders are left.
    fn remove_unused(&mut self, min_age: Duration) -> bool {
        let is_over = |since: Instant| since.elapsed() >= min_age;
        let ended = self.placeholders.extract_if(|_, it| it.unused_since.is_some_and(is_over));
        for ((_, name), placeholder) in ended {
            placeholder.remove(&name);
        }
        self.placeholders.values().any(|it| it.unused_since.is_some())
    }
}

impl Drop for ReservedNamesState {
    fn drop(&mut self) {
        // Every reservation holds this value, so no program needs a placeholder any longer.
        self.remove_unused(Duration::ZERO);
    }
}

impl ReservedNamePlaceholder {
    /// Returns `true` if the entry `name` in the workspace is still this placeholder, unchanged.
    fn is_at(&self, name: &str) -> bool {
        let there = statat(&*self.workspace, name, AtFlags::SYMLINK_NOFOLLOW);
        there.is_ok_and(|there| identity_of(&there) == self.identity && is_placeholder(&there))
    }

    fn remove(&self, name: &str) {
        remove_placeholder(self.workspace.as_fd(), name, &self.folder);
    }
}

fn identity_of(stat: &Stat) -> FileIdentity {
    (stat.st_dev, stat.st_ino)
}

/// Removes each placeholder once no program has needed it for [`KEEP_TIME`]. Returns when programs
/// need all placeholders that are left.
async fn remove_unused_in_time(names: Weak<Mutex<ReservedNamesState>>) {
    loop {
        tokio::time::sleep(KEEP_TIME).await;
        let Some(names) = names.upgrade() else { return };
        let is_done = spawn_blocking(move || {
            let mut state = lock_mutex(&names);
            state.is_watched = state.remove_unused(KEEP_TIME);
            !state.is_watched
        });
        if is_done.await.unwrap_or(true) {
            return;
        }
    }
}

/// Creates or opens the placeholder `name` and takes a shared lock on it. Returns the open folder
/// and its identity. Returns `None` if another entry has this name.
fn lock_placeholder(workspace: BorrowedFd<'_>, name: &str) -> Option<(OwnedFd, FileIdentity)> {
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
            return Some((folder, identity_of(&own)));
        }
    }
    None
}

/// Sleeps for 1 ms, in which another server may finish its change of a placeholder.
fn pause() {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
}

/// Returns `true` if the entry `name` in `workspace` is the file or folder that `stat` describes.
fn is_entry(workspace: BorrowedFd<'_>, name: impl rustix::path::Arg, stat: &Stat) -> bool {
    let there = statat(workspace, name, AtFlags::SYMLINK_NOFOLLOW);
    there.is_ok_and(|there| identity_of(&there) == identity_of(stat))
}

/// Returns `true` if `stat` describes a folder that another server has just created and not yet
/// completed as a placeholder: the umask has reduced its mode.
fn is_being_made(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        && PLACEHOLDER_MODE.contains(mode)
        && stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Removes the placeholder `folder` at `name`, unless another server needs it. Returns `false` if
/// another server needs it.
fn remove_placeholder(
    workspace: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    folder: &OwnedFd,
) -> bool {
    // If two servers release it at once, the later one removes it: an attempt to lock exclusively
    // gives up the shared lock.
    let is_ours = flock(folder, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK);
    // Somebody may have removed it, and another server may have created a new one.
    if is_ours && fstat(folder).is_ok_and(|stat| is_entry(workspace, name, &stat)) {
        // This call removes only empty folders.
        let _ = unlinkat(workspace, name, AtFlags::REMOVEDIR);
    }
    is_ours
}

impl Drop for FileNameReservation {
    fn drop(&mut self) {
        let mut state = lock_mutex(&self.registry.0);
        // Without a runtime, nothing would remove the placeholders later.
        let runtime = if state.is_burst { Handle::try_current().ok() } else { None };
        state.end_reservation(&self.names, runtime.is_some());
        if let Some(runtime) = runtime
            && !state.is_watched
        {
            state.is_watched = true;
            toolgate_net::spawn_task_on(
                &runtime,
                remove_unused_in_time(Arc::downgrade(&self.registry.0)),
            );
        }
    }
}

/// Placeholder folders that killed servers may have left in a workspace.
#[derive(Debug)]
pub(crate) struct LeftoverPlaceholders {
    pub(crate) workspace: OwnedFd,
    names: Vec<CString>,
}

impl LeftoverPlaceholders {
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

    /// Removes the placeholder folders that no running server needs.
    pub(crate) fn remove(&self) {
        self.remove_at(self.workspace.as_fd());
    }

    /// Removes the placeholders through the descriptor `workspace`, except those that a server
    /// needs. Returns `true` if no server needs any. Makes system calls only.
    pub(crate) fn remove_at(&self, workspace: BorrowedFd<'_>) -> bool {
        let mut is_none_needed = true;
        for name in &self.names {
            let name: &CStr = name;
            let Ok(folder) = open_folder(workspace, name) else { continue };
            if fstat(&folder).is_ok_and(|stat| is_placeholder(&stat)) {
                is_none_needed &= remove_placeholder(workspace, name, &folder);
            }
        }
        is_none_needed
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

    fn reserve_at(by: &ReservedFileNames, at: &Path) -> FileNameReservation {
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
        let one = ReservedFileNames::default();
        let other = ReservedFileNames::default();
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
        let leftovers = LeftoverPlaceholders::open(at, NAMES).expect("a folder");
        let reserved = ReservedFileNames::default();
        let needed = reserve_at(&reserved, at);
        leftovers.remove();
        assert_eq!(entry_count(at), 2);
        drop(needed);
        mkdirat(workspace(at), ".git", PLACEHOLDER_MODE).expect("the folder was created");
        fs::create_dir(at.join(".vscode")).expect("the folder was created");
        leftovers.remove();
        assert!(!at.join(".git").exists() && at.join(".vscode").exists());
    }

    /// Reserves names in the workspace `at` and drops the reservation, again and again until
    /// `names` keeps the placeholders.
    fn reserve_until_kept(names: &ReservedFileNames, at: &Path) {
        let is_kept = || {
            drop(reserve_at(names, at));
            entry_count(at) == NAMES.len()
        };
        assert!((0..1000).any(|_| is_kept()), "the names are never kept");
    }

    #[tokio::test]
    async fn names_are_kept_between_the_programs_of_a_burst_and_removed_after_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let names = ReservedFileNames::default();
        drop(reserve_at(&names, at));
        assert_eq!(entry_count(at), 0, "a single program is no burst");
        reserve_until_kept(&names, at);
        let needed = reserve_at(&names, at);
        names.remove_unused();
        assert_eq!(entry_count(at), 2, "a program needs them");
        drop(needed);
        for _ in 0..1000 {
            if entry_count(at) == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the names were never removed");
    }

    #[tokio::test]
    async fn kept_names_are_removed_on_request_but_not_what_replaced_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let names = ReservedFileNames::default();
        reserve_until_kept(&names, at);
        fs::remove_dir(at.join(".vscode")).expect("the placeholder is empty");
        fs::create_dir(at.join(".vscode")).expect("the name is free");
        drop(reserve_at(&names, at));
        names.remove_unused();
        assert!(!at.join(".git").exists() && at.join(".vscode").exists());
    }

    #[tokio::test]
    async fn kept_names_are_removed_when_the_server_drops_their_list() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ReservedFileNames::default();
        reserve_until_kept(&names, folder.path());
        drop(names);
        assert_eq!(entry_count(folder.path()), 0);
    }
}
