//! Which files the workspace has, as far as it takes to see that they are others.

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

/// How many folders are watched for files that come and go.
const FOLDERS_MAX: usize = 8192;
/// Everything that the workspace calls its own.
const SIGHT: Sight = Sight { ignored: false, hidden: true };

/// The folders of the workspace, without what it ignores.
pub(super) struct Listing {
    folders: BTreeMap<PathBuf, Listed>,
    /// Folders in which names came or went.
    stale: BTreeSet<PathBuf>,
    /// Folders that may be others by now.
    replaced: BTreeSet<PathBuf>,
    /// All of them may be, and what is ignored too.
    is_stale: bool,
    /// It was said that not all are watched.
    is_told: bool,
}

struct Listed {
    /// To be looked into again.
    folder: Folder,
    /// By which other names are told from these; 0 where there are no files.
    names: u64,
}

impl Listing {
    /// The listing of the workspace, and whether any of it changed since `since`.
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

    /// Whether the folder at `path` is one of it.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.folders.contains_key(path)
    }

    /// Whether it has to be looked at again.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale || !self.stale.is_empty() || !self.replaced.is_empty()
    }

    /// The name `name` came to `folder` or went from it.
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

    /// What `name` in `folder` names was written.
    pub(super) fn written(&mut self, folder: &Path, name: &OsStr) {
        self.is_stale |= self.has(folder) && (name == ".gitignore" || name == ".ignore");
    }

    /// The folder at `path` is not where it was.
    pub(super) fn gone(&mut self, path: &Path) {
        if self.has(path) {
            self.replaced.insert(path.to_owned());
        }
    }

    /// Anything may have happened.
    pub(super) fn lost(&mut self) {
        self.is_stale = true;
    }

    /// Looks again where something happened; whether there are other files.
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

    /// Looks at the names in the folder at `path`; whether there are other files.
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

    /// Adds the folder `top` and all beneath; whether any of them changed since `since`.
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
            // Watched before it is looked into, so nothing is missed between.
            let handle = match places.watch(root, &folder.path, Keen::Names) {
                Ok(handle) => handle,
                Err(Unwatched::Absent) => continue,
                Err(Unwatched::Full) => {
                    self.say_full();
                    break;
                }
            };
            let looked = look(&folder, root);
            // After it was looked into: what came before that is among what was seen, and only
            // the clock says that it is new.
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

    /// Removes the folder at `path` and all beneath. Whether they are watched for others is not
    /// known here, so they are left to [`Places::keep`].
    fn remove(&mut self, path: &Path) {
        let paths: Vec<PathBuf> = self.beneath(path).map(|(path, _)| path.clone()).collect();
        for path in paths {
            self.folders.remove(&path);
        }
    }

    /// By which other files in the folder at `path` and all beneath are told from these.
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

/// What is in `folder`: it, to go further; by which other names of files are told from these; the
/// folders in it. Nothing if it cannot be read.
fn look(folder: &Folder, root: &Root) -> Option<(Folder, u64, BTreeSet<PathBuf>)> {
    // A folder that is looked into takes on the rules in it: only once.
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
