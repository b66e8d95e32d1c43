//! Tracks the files of the workspace closely enough to notice when the list changes.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use rustix::fs::fstat;

use super::places::{Keen, Places, Unwatched};
use crate::world::Root;
use crate::world::root::{Folder, Kind, Meta, Moment, Sight, Start, Watch};

/// The most folders to watch for new and removed files.
const FOLDERS_MAX: usize = 8192;
/// Includes everything but ignored entries.
const SIGHT: Sight = Sight { ignored: false, hidden: true };

/// The folders of the workspace, without ignored ones.
pub(super) struct Listing {
    folders: BTreeMap<PathBuf, Listed>,
    /// Folders in which names appeared or disappeared.
    stale: BTreeSet<PathBuf>,
    /// Folders that may have been replaced.
    replaced: BTreeSet<PathBuf>,
    /// `true` if everything must be read again, including the ignore rules.
    is_stale: bool,
    /// `true` if the warning about unwatched folders was logged.
    is_told: bool,
}

struct Listed {
    /// The folder, to be read again.
    folder: Folder,
    /// A hash of the file names. 0 if there are no files.
    names: u64,
}

impl Listing {
    /// Lists the workspace. The second value is `true` if a part of it changed since `since`.
    pub(super) fn of(root: &Root, places: &mut Places, since: Moment) -> (Self, bool) {
        let mut listing = Self {
            folders: BTreeMap::new(),
            stale: BTreeSet::new(),
            replaced: BTreeSet::new(),
            is_stale: false,
            is_told: false,
        };
        let is_recent = listing.add_all(root, places, Some(since));
        (listing, is_recent)
    }

    /// Returns `true` if the folder at `path` belongs to the listing.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.folders.contains_key(path)
    }

    /// Returns `true` if the listing must be refreshed.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale || !self.stale.is_empty() || !self.replaced.is_empty()
    }

    /// Records that `name` appeared in or disappeared from `folder`.
    pub(super) fn named(&mut self, folder: &Path, name: &OsStr) {
        if !self.has(folder) {
            return;
        }
        self.written(folder, name);
        let path = folder.join(name);
        if self.has(&path) {
            self.replaced.insert(path);
        }
        self.stale.insert(folder.to_owned());
    }

    /// Records that the entry `name` in `folder` was written.
    pub(super) fn written(&mut self, folder: &Path, name: &OsStr) {
        self.is_stale |= self.has(folder) && (name == ".gitignore" || name == ".ignore");
    }

    /// Records that the folder at `path` was moved or removed.
    pub(super) fn gone(&mut self, path: &Path) {
        if self.has(path) {
            self.replaced.insert(path.to_owned());
        }
    }

    /// Records that events were lost.
    pub(super) fn lost(&mut self) {
        self.is_stale = true;
    }

    /// Refreshes the changed parts. Returns `true` if the file list differs.
    pub(super) fn look(&mut self, root: &Root, places: &mut Places) -> bool {
        let replaced = std::mem::take(&mut self.replaced);
        let stale = std::mem::take(&mut self.stale);
        if std::mem::take(&mut self.is_stale) {
            let before = self.names(Path::new(""));
            self.folders.clear();
            self.add_all(root, places, None);
            return self.names(Path::new("")) != before;
        }
        let mut changed = false;
        for path in replaced {
            let Some(Listed { folder, .. }) = self.folders.get(&path) else { continue };
            let folder = folder.clone();
            let before = self.names(&path);
            self.remove(&path);
            self.add(root, places, folder, None);
            changed |= self.names(&path) != before;
        }
        for path in stale {
            changed |= self.look_into(root, places, &path);
        }
        changed
    }

    /// Refreshes the folder at `path`. Returns `true` if its files differ.
    fn look_into(&mut self, root: &Root, places: &mut Places, path: &Path) -> bool {
        let Some(listed) = self.folders.get(path) else { return false };
        let Some((inner, names, folders)) = look(&listed.folder, root) else {
            let changed = self.has_files(path);
            self.remove(path);
            return changed;
        };
        let mut changed = names != listed.names;
        if let Some(listed) = self.folders.get_mut(path) {
            listed.names = names;
        }
        let is_child = |folder: &&PathBuf| folder.parent() == Some(path) && **folder != *path;
        let known = self.beneath(path).map(|(path, _)| path).filter(is_child);
        let gone: Vec<PathBuf> =
            known.filter(|folder| !folders.contains(*folder)).cloned().collect();
        for folder in gone {
            changed |= self.has_files(&folder);
            self.remove(&folder);
        }
        for folder in folders {
            if !self.has(&folder)
                && let Some(name) = folder.file_name()
            {
                self.add(root, places, inner.enter(&name.to_owned()), None);
                changed |= self.has_files(&folder);
            }
        }
        changed
    }

    /// Adds the whole workspace.
    fn add_all(&mut self, root: &Root, places: &mut Places, since: Option<Moment>) -> bool {
        match root.start(".") {
            Ok(Start::Folder(top)) => self.add(root, places, top, since),
            Ok(Start::File(_)) | Err(_) => false,
        }
    }

    /// Adds the folder `top` and everything below. Returns `true` if any folder changed since
    /// `since`.
    fn add(
        &mut self,
        root: &Root,
        places: &mut Places,
        top: Folder,
        since: Option<Moment>,
    ) -> bool {
        let mut is_recent = false;
        let mut waiting = vec![top];
        while let Some(folder) = waiting.pop() {
            if self.folders.len() >= FOLDERS_MAX {
                self.say_full();
                break;
            }
            // The watch is set before reading, so that no change is missed.
            let handle = match places.watch(root, &folder.path, Keen::Names) {
                Ok(handle) => handle,
                Err(Unwatched::Absent) => continue,
                Err(Unwatched::Full) => {
                    self.say_full();
                    break;
                }
            };
            let looked = look(&folder, root);
            // The time is checked after reading. An earlier change is part of the listing, and only
            // its time shows that it is new.
            let is_changed =
                |since| fstat(&handle).is_ok_and(|stat| Meta::from(stat).is_changed_since(since));
            is_recent |= since.is_some_and(is_changed);
            let Some((inner, names, folders)) = looked else { continue };
            let inside = folders.iter().filter_map(|folder| folder.file_name());
            waiting.extend(inside.map(|name| inner.enter(&name.to_owned())));
            self.folders.insert(folder.path.clone(), Listed { folder, names });
        }
        is_recent
    }

    /// Removes the folder at `path` and everything below. Other subscribers may need the watches,
    /// so [`Places::keep`] removes those later.
    fn remove(&mut self, path: &Path) {
        let paths: Vec<PathBuf> = self.beneath(path).map(|(path, _)| path.clone()).collect();
        for path in paths {
            self.folders.remove(&path);
        }
    }

    /// Returns a hash of the file names in the folder at `path` and below.
    fn names(&self, path: &Path) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (path, listed) in self.beneath(path).filter(|(_, listed)| listed.names != 0) {
            (path, listed.names).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn has_files(&self, path: &Path) -> bool {
        self.beneath(path).any(|(_, listed)| listed.names != 0)
    }

    fn beneath(&self, path: &Path) -> impl Iterator<Item = (&PathBuf, &Listed)> {
        let from = self.folders.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.take_while(move |(folder, _)| folder.starts_with(path))
    }

    fn say_full(&mut self) {
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(
                "the workspace has more folders than are watched ({}): files that come and go in \
                 the others are not told of",
                self.folders.len()
            );
        }
    }
}

/// Reads `folder`. Returns it for descending, a hash of its file names, and its subfolders. `None`
/// if it cannot be read.
fn look(folder: &Folder, root: &Root) -> Option<(Folder, u64, BTreeSet<PathBuf>)> {
    // Reading a folder adds its ignore rules, which must happen only once.
    let mut inner = folder.clone();
    let entries = inner.look(root, SIGHT, &Watch::default()).ok()?;
    let mut hasher = DefaultHasher::new();
    let mut files = 0_u64;
    let mut folders = BTreeSet::new();
    for (name, kind) in &entries {
        match kind {
            Kind::File => {
                name.hash(&mut hasher);
                files += 1;
            }
            Kind::Dir => {
                folders.insert(folder.path.join(name));
            }
            Kind::Symlink | Kind::Other => {}
        }
    }
    let names = if files == 0 { 0 } else { hasher.finish() | 1 };
    Some((inner, names, folders))
}
