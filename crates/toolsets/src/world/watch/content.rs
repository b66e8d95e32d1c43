//! The files that are watched: what was last seen of each, and who is told.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::fstat;
use toolgate_contract::{Change, Changes};

use super::places::{Keen, Places, Unwatched};
use crate::world::Root;
use crate::world::root::{Meta, Moment, Start};

/// The watched files, by what they are called.
#[derive(Default)]
pub(super) struct Content {
    files: BTreeMap<Arc<str>, Watched>,
    /// What they are called, by where they are and where that leads.
    by_path: BTreeMap<PathBuf, BTreeSet<Arc<str>>>,
}

struct Watched {
    path: PathBuf,
    /// Where that leads by symlinks, if it does.
    real: Option<PathBuf>,
    seen: Seen,
    listeners: Vec<(u64, Changes)>,
}

/// What was seen of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    /// Nothing, if it was not there or could not be read.
    stamp: Option<Stamp>,
    /// It had changed so lately that the next change may bear the same stamp.
    is_fresh: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, i64),
}

impl Content {
    /// Tells `changes`, as number `number`, of the file at `path`, called `uri`.
    pub(super) fn add(
        &mut self,
        root: &Root,
        places: &mut Places,
        (number, changes): (u64, Changes),
        (path, uri): (&str, &Arc<str>),
    ) -> Result<(), Unwatched> {
        if let Some(file) = self.files.get_mut(uri) {
            file.listeners.push((number, changes));
            return Ok(());
        }
        let path = PathBuf::from(path);
        let file = Watched {
            path: path.clone(),
            real: None,
            seen: Seen::default(),
            listeners: vec![(number, changes)],
        };
        self.files.insert(uri.clone(), file);
        self.by_path.entry(path).or_default().insert(uri.clone());
        let looked = self.look(root, places, uri);
        if looked.is_err() {
            self.remove(number);
        }
        looked.map(drop)
    }

    /// Tells number `number` no more.
    pub(super) fn remove(&mut self, number: u64) {
        let mut unheard = Vec::new();
        for (uri, file) in &mut self.files {
            file.listeners.retain(|(listener, _)| *listener != number);
            if file.listeners.is_empty() {
                unheard.push(uri.clone());
            }
        }
        for uri in unheard {
            if let Some(Watched { path, real, .. }) = self.files.remove(&uri) {
                self.forget(&path, &uri);
                real.iter().for_each(|real| self.forget(real, &uri));
            }
        }
    }

    fn forget(&mut self, path: &Path, uri: &Arc<str>) {
        if let Some(uris) = self.by_path.get_mut(path) {
            uris.remove(uri);
            if uris.is_empty() {
                self.by_path.remove(path);
            }
        }
    }

    /// Who is told.
    pub(super) fn listeners(&self) -> BTreeSet<u64> {
        let files = self.files.values();
        files.flat_map(|file| file.listeners.iter().map(|(number, _)| *number)).collect()
    }

    /// Whether a file is in the folder at `path`, or further beneath.
    pub(super) fn needs(&self, path: &Path) -> bool {
        self.beneath(path).any(|(file, _)| file != path)
    }

    /// What the files are called that something happened to when it happened at `path`.
    pub(super) fn at(&self, path: &Path) -> BTreeSet<Arc<str>> {
        self.beneath(path).flat_map(|(_, uris)| uris.iter().cloned()).collect()
    }

    /// What all files are called.
    pub(super) fn all(&self) -> BTreeSet<Arc<str>> {
        self.files.keys().cloned().collect()
    }

    fn beneath(&self, path: &Path) -> impl Iterator<Item = (&PathBuf, &BTreeSet<Arc<str>>)> {
        // Paths compare name by name, so what is beneath one comes right after it.
        let from = self.by_path.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.take_while(move |(file, _)| file.starts_with(path))
    }

    /// Looks whether the file called `uri` has changed, and watches the folders on the way to it
    /// as they are now.
    pub(super) fn look(
        &mut self,
        root: &Root,
        places: &mut Places,
        uri: &Arc<str>,
    ) -> Result<bool, Unwatched> {
        let Some(file) = self.files.get_mut(uri) else { return Ok(false) };
        let mut enough = follow(root, places, &file.path);
        let real = real(root, &file.path).filter(|real| *real != file.path);
        if let Some(real) = &real {
            enough = enough.and(follow(root, places, real));
        }
        // Only now: what happens after this is heard of.
        let seen = Seen::of(root, &file.path);
        let changed = seen.stamp != file.seen.stamp || file.seen.is_fresh;
        file.seen = seen;
        if file.real != real {
            let before = std::mem::replace(&mut file.real, real.clone());
            before.iter().for_each(|before| self.forget(before, uri));
            if let Some(real) = real {
                self.by_path.entry(real).or_default().insert(uri.clone());
            }
        }
        enough.map(|()| changed)
    }

    /// Tells whoever listens that the file called `uri` has changed.
    pub(super) fn tell(&self, uri: &Arc<str>) {
        let Some(file) = self.files.get(uri) else { return };
        tell(file.listeners.iter().map(|(_, changes)| changes), &Change::Resource(uri.clone()));
    }
}

impl Seen {
    fn of(root: &Root, path: &Path) -> Self {
        let now = Moment::now();
        let path = path.to_str().unwrap_or_default();
        let stat = root.open_file(path).ok().and_then(|file| fstat(&file).ok());
        let Some(stat) = stat else { return Self::default() };
        let stamp = Stamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            changed: (stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
        };
        Self { stamp: Some(stamp), is_fresh: Meta::from(stat).is_changed_since(now) }
    }
}

/// Tells each of `listeners` once, also where several are one.
pub(super) fn tell<'c>(listeners: impl Iterator<Item = &'c Changes>, change: &Change) {
    let mut told: Vec<&Changes> = Vec::new();
    for changes in listeners {
        if !told.iter().any(|one| one.is(changes)) {
            changes.tell(change);
            told.push(changes);
        }
    }
}

/// Watches every folder that is on the way to `path`, so that its coming is seen too.
fn follow(root: &Root, places: &mut Places, path: &Path) -> Result<(), Unwatched> {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    for (below, folder) in above.iter().enumerate().rev() {
        let keen = if below == 0 { Keen::Content } else { Keen::Names };
        match places.watch(root, folder, keen) {
            Ok(_) => {}
            Err(Unwatched::Absent) => break,
            Err(Unwatched::Full) => return Err(Unwatched::Full),
        }
    }
    Ok(())
}

/// Where `path` leads, relative to the root, if a file is there.
fn real(root: &Root, path: &Path) -> Option<PathBuf> {
    match root.start(path.to_str()?) {
        Ok(Start::File(found)) => Some(found.path),
        Ok(Start::Folder(_)) | Err(_) => None,
    }
}
