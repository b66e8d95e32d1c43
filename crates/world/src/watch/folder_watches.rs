//! The folders that inotify watches, and the events that it reports.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{
    CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch,
};
use rustix::io::Errno;

use crate::Root;

/// The maximum number of folders that are watched, for all subscribers together.
const WATCHES_MAX: usize = 16_384;

/// The folder of a git repository.
const GIT_FOLDER: &str = ".git";
/// The folder with the additional ignore rules of a git repository (`exclude`).
const GIT_INFO_FOLDER: &str = ".git/info";

/// The watched folders by path relative to the root.
pub(super) struct FolderWatches {
    queue: Arc<OwnedFd>,
    by_path: BTreeMap<PathBuf, i32>,
    /// The paths of each watched folder, by the number of its inotify watch. A folder may have
    /// several paths through symlinks.
    by_number: HashMap<i32, BTreeSet<PathBuf>>,
}

/// The events that inotify reports for a watched folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FolderWatchEventKinds {
    /// New and removed names, and files that were closed after writing.
    Names,
    /// The events of `Names`, and every change of a file's content or metadata.
    Content,
}

/// The reason why a folder is not watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FolderWatchError {
    /// The folder does not exist or cannot be opened.
    Absent,
    /// The system or this process has no free watch.
    Full,
}

/// The events of watched folders since the last read.
#[derive(Default)]
pub(super) struct FolderWatchEvents {
    /// The changed entries, by folder and name.
    pub(super) entries: BTreeSet<(PathBuf, OsString, WatchedEntryChange)>,
    /// Folders that were moved or removed.
    pub(super) gone: BTreeSet<PathBuf>,
    /// `true` if the kernel's queue overflowed and events were lost, so that any file may have
    /// changed.
    pub(super) has_overflowed: bool,
}

/// A change of an entry in a watched folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchedEntryChange {
    /// An entry with this name appeared or disappeared.
    Name,
    /// The content or metadata of the entry changed.
    Content,
}

impl FolderWatches {
    /// Opens an inotify queue without watches.
    pub(super) fn new() -> io::Result<Self> {
        let queue = Arc::new(init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?);
        Ok(Self { queue, by_path: BTreeMap::new(), by_number: HashMap::new() })
    }

    /// Returns the descriptor that becomes readable when an event of a watched folder arrives.
    pub(super) fn queue(&self) -> Arc<OwnedFd> {
        self.queue.clone()
    }

    /// Watches the folder at `path` below `root` and returns its handle. Adds no watch if the
    /// folder is watched already.
    pub(super) fn watch(
        &mut self,
        root: &Root,
        path: &Path,
        detail: FolderWatchEventKinds,
    ) -> Result<OwnedFd, FolderWatchError> {
        let opened = path.to_str().and_then(|shown| root.open_dir(&format!("./{shown}")).ok());
        let Some(folder) = opened else {
            self.unwatch(path);
            return Err(FolderWatchError::Absent);
        };
        self.watch_open(folder.as_fd(), path, detail)?;
        Ok(folder)
    }

    /// Watches the additional ignore rules of the git repository at `path`: its folder `.git/info`,
    /// or its folder `.git` if `.git/info` does not exist yet. Returns true if this watch is new, so
    /// that the rules may have changed after they were read.
    pub(super) fn watch_ignore_rules(&mut self, root: &Root, path: &Path) -> bool {
        let git = path.join(GIT_FOLDER);
        let info = path.join(GIT_INFO_FOLDER);
        let watched = |places: &Self| [&git, &info].map(|path| places.by_path.get(path).copied());
        let before = watched(self);
        let names = FolderWatchEventKinds::Names;
        // In a linked worktree, `.git` is a file.
        if self.watch(root, &info, names).is_err() && self.watch(root, &git, names).is_ok() {
            // The folder may have appeared before its parent was watched.
            let _ = self.watch(root, &info, names);
        }
        watched(self) != before
    }

    /// Watches the folder at `path`, which is open as `folder`.
    pub(super) fn watch_open(
        &mut self,
        folder: BorrowedFd<'_>,
        path: &Path,
        detail: FolderWatchEventKinds,
    ) -> Result<(), FolderWatchError> {
        let watched = self.try_watch(folder, path, detail);
        if watched.is_err() {
            self.unwatch(path);
        }
        watched
    }

    fn try_watch(
        &mut self,
        folder: BorrowedFd<'_>,
        path: &Path,
        detail: FolderWatchEventKinds,
    ) -> Result<(), FolderWatchError> {
        if !self.by_path.contains_key(path) && self.by_path.len() >= WATCHES_MAX {
            return Err(FolderWatchError::Full);
        }
        let handle = format!("/proc/self/fd/{}", folder.as_raw_fd());
        let number = match add_watch(&self.queue, handle, detail.flags()) {
            Ok(number) => number,
            Err(Errno::NOSPC | Errno::NOMEM) => return Err(FolderWatchError::Full),
            Err(_) => return Err(FolderWatchError::Absent),
        };
        if self.by_path.get(path) != Some(&number) {
            self.unwatch(path);
            self.by_path.insert(path.to_owned(), number);
            self.by_number.entry(number).or_default().insert(path.to_owned());
        }
        Ok(())
    }

    /// Stops watching the folder at `path`.
    pub(super) fn unwatch(&mut self, path: &Path) {
        let Some(number) = self.by_path.remove(path) else { return };
        let Some(paths) = self.by_number.get_mut(&number) else { return };
        paths.remove(path);
        if paths.is_empty() {
            self.by_number.remove(&number);
            // The kernel may already have removed the watch.
            let _ = remove_watch(&self.queue, number);
        }
    }

    /// Keeps the watches of folders for which `needed` returns true, and removes all others.
    pub(super) fn retain(&mut self, needed: impl Fn(&Path) -> bool) {
        let rest = self.by_path.keys().filter(|path| !needed(path));
        for path in rest.cloned().collect::<Vec<_>>() {
            self.unwatch(&path);
        }
    }

    /// Reads all pending events of watched folders.
    pub(super) fn read_events(&mut self) -> FolderWatchEvents {
        let mut news = FolderWatchEvents::default();
        let mut dropped = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(&*self.queue, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let what = event.events();
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                news.has_overflowed = true;
                continue;
            }
            let Some(paths) = self.by_number.get(&event.wd()) else { continue };
            if what.contains(ReadFlags::IGNORED) {
                dropped.push(event.wd());
            }
            let is_gone = ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
            if what.intersects(is_gone) {
                news.gone.extend(paths.iter().cloned());
            } else if let Some(name) = event.file_name() {
                let name = OsStr::from_bytes(name.to_bytes());
                let happening = WatchedEntryChange::from_flags(what);
                let entries = paths.iter().map(|path| (path.clone(), name.to_owned(), happening));
                news.entries.extend(entries);
            }
        }
        for number in dropped {
            for path in self.by_number.remove(&number).unwrap_or_default() {
                self.by_path.remove(&path);
            }
        }
        for path in &news.gone {
            self.unwatch(path);
        }
        news
    }
}

impl FolderWatchEventKinds {
    fn flags(self) -> WatchFlags {
        let names = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR
            // If a folder is watched for two reasons, the events add up.
            | WatchFlags::MASK_ADD;
        match self {
            Self::Names => names,
            Self::Content => names | WatchFlags::MODIFY | WatchFlags::ATTRIB,
        }
    }
}

impl WatchedEntryChange {
    fn from_flags(what: ReadFlags) -> Self {
        let names =
            ReadFlags::CREATE | ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO;
        if what.intersects(names) { Self::Name } else { Self::Content }
    }
}

/// Returns the folder of the git repository whose additional ignore rules a watch of `folder`
/// reports. Returns `None` for all other folders.
pub(super) fn repository_of_ignore_rules(folder: &Path) -> Option<&Path> {
    match folder.ends_with(GIT_INFO_FOLDER) {
        true => folder.parent()?.parent(),
        false => folder.parent().filter(|_| folder.ends_with(GIT_FOLDER)),
    }
}

/// Returns true if the entry `name` of `folder`, for which [`repository_of_ignore_rules`] returns a
/// repository, is the file with the rules or contains it.
pub(super) fn contains_ignore_rules(folder: &Path, name: &OsStr) -> bool {
    name == if folder.ends_with(GIT_INFO_FOLDER) { "exclude" } else { "info" }
}
