//! Finds the commit of a file from git's own files, without running a program or reading an object.
//!
//! Git's index has the modification time, size and hash of each file when it was last added or
//! checked out. A file that still matches is unchanged in the checked-out commit or staged for the
//! next one. The two cases are not distinguished.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sha1::{Digest, Sha1};
use sha2::Sha256;

use crate::world::Root;
use crate::world::root::{File, Meta, Stamp, Watch};

/// The largest `HEAD` or loose ref that is read, in bytes.
const HEAD_BYTES_MAX: u64 = 4 << 10;
/// The largest list of packed refs that is read, in bytes.
const REFS_BYTES_MAX: u64 = 16 << 20;
/// The largest index of git that is read, in bytes. It fits a million files.
const FILES_BYTES_MAX: u64 = 128 << 20;

/// The longest time between git's update of its index and of `HEAD`. Usually it is half a
/// millisecond, and a few milliseconds on a busy machine.
const MOVES_WITHIN: Duration = Duration::from_millis(150);
/// The pause between two checks of `HEAD`.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The number of bytes that are kept of an object's name.
const NAME_BYTES: usize = 8;

/// The checkout of a folder, if the folder is a git repository.
pub(super) struct Checkout {
    root: Root,
    /// The entries of git's index when it had this stamp.
    known: Mutex<Option<(Stamp, Arc<Added>)>>,
}

/// The state of a checkout at one moment.
pub(super) struct Now {
    commit: String,
    added: Arc<Added>,
}

/// The files in git's index, by the hash of their paths.
#[derive(Debug, Default, PartialEq, Eq)]
struct Added(HashMap<u64, Seen>);

/// A file in git's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    state: State,
    /// The beginning of the object name of its content.
    name: [u8; NAME_BYTES],
    /// True if the file may have changed without a new modification time ("racy git").
    is_racy: bool,
}

/// The size and modification time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    modified: (u32, u32),
    size: u32,
}

impl Checkout {
    /// Creates the checkout of `root`. Reads nothing yet.
    pub(super) fn new(root: &Root) -> Self {
        Self { root: root.clone(), known: Mutex::default() }
    }

    /// Returns the current state. Returns `None` if there is no repository that this module can
    /// read, or while git changes the checkout.
    ///
    /// Git replaces its index first and moves `HEAD` later, without a lock in between. So a new
    /// index is read again until `HEAD` has had time to move.
    pub(super) fn now(&self, watch: &Watch) -> Option<Now> {
        let begun = Instant::now();
        loop {
            let commit = self.commit(watch)?;
            let (added, is_new) = self.added(commit.len() / 2, watch)?;
            let is_free = |path: &str| matches!(self.root.exists(path), Ok(None));
            let is_locked = !is_free(".git/index.lock") || !is_free(".git/HEAD.lock");
            if is_locked || self.commit(watch)? != commit {
                return None;
            }
            if !is_new {
                return Some(Now { commit, added });
            }
            if begun.elapsed() > MOVES_WITHIN {
                return None;
            }
            watch.check().ok()?;
            #[allow(clippy::disallowed_methods, reason = "git tells nobody when it is done")]
            sleep(LOOK_AGAIN);
        }
    }

    /// Returns the entries of git's index, and true if it is so new that `HEAD` may not have moved
    /// yet. Object names have `name_bytes` bytes.
    fn added(&self, name_bytes: usize, watch: &Watch) -> Option<(Arc<Added>, bool)> {
        let file = self.root.open_file(".git/index").ok()?;
        let stamp = file.meta().stamp();
        // The clock of another machine may be ahead.
        let age = Duration::try_from(Timestamp::now().duration_since(file.meta().mtime()));
        let is_new = age.is_ok_and(|age| age < MOVES_WITHIN);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, added)) = &*known
            && *before == stamp
        {
            return Some((added.clone(), is_new));
        }
        let written = State::of(file.meta())?.modified;
        let added = Added::read(&read(&file, FILES_BYTES_MAX, watch)?, name_bytes, written)?;
        let added = Arc::new(added);
        *known = Some((stamp, added.clone()));
        Some((added, is_new))
    }

    /// Returns the name of the commit at `HEAD`.
    fn commit(&self, watch: &Watch) -> Option<String> {
        let text = |path: &str, most: u64| {
            let file = self.root.open_file(path).ok()?;
            String::from_utf8(read(&file, most, watch)?).ok()
        };
        let head = text(".git/HEAD", HEAD_BYTES_MAX)?;
        let Some(name) = head.strip_prefix("ref: ") else { return object(&head) };
        let name = name.trim_end();
        if !name.starts_with("refs/") || name.split('/').any(|part| part == "..") {
            return None;
        }
        if let Some(loose) = text(&format!(".git/{name}"), HEAD_BYTES_MAX) {
            return object(&loose);
        }
        let packed = text(".git/packed-refs", REFS_BYTES_MAX)?;
        let mut lines = packed.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(_, named)| *named == name).and_then(|(commit, _)| object(commit))
    }
}

impl Now {
    /// Returns the commit if it has the file at `path`, with this `meta` and `content`, unchanged.
    pub(super) fn commit_of(&self, path: &str, meta: &Meta, content: &[u8]) -> Option<String> {
        let seen = self.added.0.get(&hash(path.as_bytes()))?;
        let is_untouched = !seen.is_racy && State::of(meta)? == seen.state;
        let is_same = is_untouched || name(content, self.commit.len()) == seen.name;
        is_same.then(|| self.commit.clone())
    }
}

impl Added {
    /// Parses git's index, version 2 to 4 (gitformat-index). `written` is its modification time,
    /// and object names have `name_bytes` bytes. Returns `None` if it cannot be parsed.
    fn read(bytes: &[u8], name_bytes: usize, written: (u32, u32)) -> Option<Self> {
        let (head, mut rest) = bytes.split_at_checked(12)?;
        let version = number(head, 4)?;
        if !head.starts_with(b"DIRC") || !(2..=4).contains(&version) {
            return None;
        }
        let mut added = HashMap::new();
        let mut path = Vec::new();
        for _ in 0..number(head, 8)? {
            let flags = 40 + name_bytes;
            let (entry, after) = rest.split_at_checked(flags + 2)?;
            let said = u16::from_be_bytes(entry[flags..].try_into().ok()?);
            let is_extended = version > 2 && said & 0x4000 != 0;
            let more = if is_extended { 2 } else { 0 };
            let name = after.get(more..)?;
            if version == 4 {
                // Version 4 compresses a path to the part that differs from the previous path.
                let (gone, name) = offset(name)?;
                path.truncate(path.len().checked_sub(gone)?);
                let end = memchr::memchr(0, name)?;
                path.extend_from_slice(&name[..end]);
                rest = &name[end + 1..];
            } else {
                let end = memchr::memchr(0, name)?;
                path.clear();
                path.extend_from_slice(&name[..end]);
                // An entry with its path is padded with NULs to a multiple of eight bytes, with one
                // NUL at least.
                let padded = (entry.len() + more + end + 8) & !7;
                rest = rest.get(padded..)?;
            }
            let modified = (number(entry, 8)?, number(entry, 12)?);
            let mode = number(entry, 24)?;
            let size = number(entry, 36)?;
            let is_merged = said & 0x3000 == 0;
            if is_merged && mode >> 12 == 0o10 {
                let name = entry.get(40..40 + NAME_BYTES)?.try_into().ok()?;
                // A file that was modified while the index was written may have changed again after
                // that.
                let is_racy = modified >= written;
                added.insert(hash(&path), Seen { state: State { modified, size }, name, is_racy });
            }
        }
        Some(Self(added))
    }
}

impl State {
    fn of(meta: &Meta) -> Option<Self> {
        let modified = meta.mtime();
        let seconds = u32::try_from(modified.as_second()).ok()?;
        let nanos = u32::try_from(modified.subsec_nanosecond()).ok()?;
        Some(Self { modified: (seconds, nanos), size: u32::try_from(meta.size()).ok()? })
    }
}

/// Returns the beginning of git's object name of `content`. Names have 40 (SHA-1) or 64 (SHA-256)
/// `digits`.
fn name(content: &[u8], digits: usize) -> [u8; NAME_BYTES] {
    let head = format!("blob {}\0", content.len());
    let mut name = [0; NAME_BYTES];
    if digits == 64 {
        let whole = Sha256::new().chain_update(head).chain_update(content).finalize();
        name.copy_from_slice(&whole[..NAME_BYTES]);
    } else {
        let whole = Sha1::new().chain_update(head).chain_update(content).finalize();
        name.copy_from_slice(&whole[..NAME_BYTES]);
    }
    name
}

fn read(file: &File, most: u64, watch: &Watch) -> Option<Vec<u8>> {
    let size = file.meta().size();
    if size > most { None } else { file.read(0, size, watch).ok() }
}

/// Returns `text` if it is the name of an object.
fn object(text: &str) -> Option<String> {
    let name = text.trim_end();
    let is_name = matches!(name.len(), 40 | 64) && name.bytes().all(|it| it.is_ascii_hexdigit());
    is_name.then(|| name.to_owned())
}

fn hash(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses a variable-length integer of git's index. Returns it with the rest of `bytes`.
fn offset(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let mut value = usize::from(first & 0x7f);
    let mut last = *first;
    while last & 0x80 != 0 {
        let (next, after) = rest.split_first()?;
        value = value.checked_add(1)?.checked_mul(0x80)?.checked_add(usize::from(next & 0x7f))?;
        (last, rest) = (*next, after);
    }
    Some((value, rest))
}
