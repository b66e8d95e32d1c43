//! Finds the commit of a file from git's own files, without running a program or reading a git
//! object.
//!
//! Git's index contains the modification time, size and hash of each file when it was last added or
//! checked out. A file that still matches its index entry is unchanged in the checked-out commit,
//! or staged for the next commit. The two cases are not distinguished.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sha1::{Digest, Sha1};
use sha2::Sha256;
use toolgate_contract::lock_mutex;

use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, EntryFingerprint, EntryMeta, WorkspaceFile};

/// The maximum size of `HEAD` or a loose ref that is read, in bytes.
const HEAD_BYTES_MAX: u64 = 4 << 10;
/// The maximum size of the file `packed-refs` that is read, in bytes.
const REFS_BYTES_MAX: u64 = 16 << 20;
/// The maximum size of git's index that is read, in bytes. It suffices for a million files.
const INDEX_BYTES_MAX: u64 = 128 << 20;

/// The maximum time between git's updates of the index and of `HEAD`. Usually it is half a
/// millisecond, and a few milliseconds on a busy machine.
const HEAD_MOVE_MAX: Duration = Duration::from_millis(150);
/// The pause between two checks of `HEAD`.
const HEAD_CHECK_PAUSE: Duration = Duration::from_millis(2);

/// The number of bytes that are kept in memory of each git object id.
const NAME_BYTES: usize = 8;

/// Reader of the git state of a folder, if the folder is the top of a git repository.
pub(super) struct GitCheckoutReader {
    root: Root,
    /// The entries of git's index when it was last read, with the fingerprint of the index file.
    cached_index: Mutex<Option<(EntryFingerprint, Arc<GitIndex>)>>,
}

/// State of a git checkout at one moment: commit and index.
pub(super) struct GitCheckoutState {
    commit: String,
    index: Arc<GitIndex>,
}

/// The files in git's index, by the hash of each path.
#[derive(Debug, Default, PartialEq, Eq)]
struct GitIndex(HashMap<u64, GitIndexEntry>);

/// A file in git's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GitIndexEntry {
    stat: GitFileStat,
    /// The first bytes of the git object id of the file's content.
    name: [u8; NAME_BYTES],
    /// True if the file may have changed without a new modification time. Git calls such an entry
    /// "racy".
    is_racy: bool,
}

/// The size and modification time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GitFileStat {
    modified: (u32, u32),
    size: u32,
}

impl GitCheckoutReader {
    /// Creates the reader for the folder `root`. Reads nothing yet.
    pub(super) fn new(root: &Root) -> Self {
        Self { root: root.clone(), cached_index: Mutex::default() }
    }

    /// Returns the current state of the checkout. Returns `None` if there is no repository that
    /// this module can read, or while git changes the checkout.
    ///
    /// Git replaces its index first and updates `HEAD` later, without a lock in between. So a new
    /// index is read again until `HEAD` has had time to change.
    pub(super) fn current(&self, watch: &DiskWorkMonitor) -> Option<GitCheckoutState> {
        let start = Instant::now();
        loop {
            let commit = self.head_commit(watch)?;
            let (index, is_new) = self.read_index(commit.len() / 2, watch)?;
            let is_free = |path: &str| matches!(self.root.kind_at(path), Ok(None));
            let is_locked = !is_free(".git/index.lock") || !is_free(".git/HEAD.lock");
            if is_locked || self.head_commit(watch)? != commit {
                return None;
            }
            if !is_new {
                return Some(GitCheckoutState { commit, index });
            }
            if start.elapsed() > HEAD_MOVE_MAX {
                return None;
            }
            watch.check_cancelled().ok()?;
            #[allow(clippy::disallowed_methods, reason = "git does not report when it is done")]
            sleep(HEAD_CHECK_PAUSE);
        }
    }

    /// Returns the entries of git's index, and true if the index is so new that `HEAD` may not be
    /// updated yet. Object ids have `name_bytes` bytes.
    fn read_index(
        &self,
        name_bytes: usize,
        watch: &DiskWorkMonitor,
    ) -> Option<(Arc<GitIndex>, bool)> {
        let file = self.root.open_file(".git/index").ok()?;
        let stamp = file.meta().stamp();
        // The clock of another machine may be ahead.
        let age = Duration::try_from(Timestamp::now().duration_since(file.meta().mtime()));
        let is_new = age.is_ok_and(|age| age < HEAD_MOVE_MAX);
        let mut cached = lock_mutex(&self.cached_index);
        if let Some((cached_stamp, index)) = &*cached
            && *cached_stamp == stamp
        {
            return Some((index.clone(), is_new));
        }
        let written = GitFileStat::from_meta(file.meta())?.modified;
        let index =
            GitIndex::parse(&read_file(&file, INDEX_BYTES_MAX, watch)?, name_bytes, written)?;
        let index = Arc::new(index);
        *cached = Some((stamp, index.clone()));
        Some((index, is_new))
    }

    /// Returns the id of the commit at `HEAD`. `None` if there is no commit or `HEAD` is
    /// unreadable.
    fn head_commit(&self, watch: &DiskWorkMonitor) -> Option<String> {
        let text = |path: &str, bytes_max: u64| {
            let file = self.root.open_file(path).ok()?;
            String::from_utf8(read_file(&file, bytes_max, watch)?).ok()
        };
        let head = text(".git/HEAD", HEAD_BYTES_MAX)?;
        let Some(name) = head.strip_prefix("ref: ") else { return parse_object_name(&head) };
        let name = name.trim_end();
        if !name.starts_with("refs/") || name.split('/').any(|part| part == "..") {
            return None;
        }
        if let Some(loose) = text(&format!(".git/{name}"), HEAD_BYTES_MAX) {
            return parse_object_name(&loose);
        }
        let packed = text(".git/packed-refs", REFS_BYTES_MAX)?;
        let mut lines = packed.lines().filter_map(|line| line.split_once(' '));
        lines
            .find(|(_, ref_name)| *ref_name == name)
            .and_then(|(commit, _)| parse_object_name(commit))
    }
}

impl GitCheckoutState {
    /// Returns the id of the checked-out commit if the file at `path`, with the metadata `meta` and
    /// the content `content`, is unchanged in that commit.
    pub(super) fn commit_of(&self, path: &str, meta: &EntryMeta, content: &[u8]) -> Option<String> {
        let entry = self.index.0.get(&hash_path(path.as_bytes()))?;
        let is_untouched = !entry.is_racy && GitFileStat::from_meta(meta)? == entry.stat;
        let is_same = is_untouched || object_name(content, self.commit.len()) == entry.name;
        is_same.then(|| self.commit.clone())
    }
}

impl GitIndex {
    /// Parses git's index, version 2 to 4 (gitformat-index). `written` is its modification time in
    /// seconds and nanoseconds, and object ids have `name_bytes` bytes. Returns `None` if the index
    /// cannot be parsed.
    fn parse(bytes: &[u8], name_bytes: usize, written: (u32, u32)) -> Option<Self> {
        let (head, mut rest) = bytes.split_at_checked(12)?;
        let version = read_u32(head, 4)?;
        if !head.starts_with(b"DIRC") || !(2..=4).contains(&version) {
            return None;
        }
        let mut entries = HashMap::new();
        let mut path = Vec::new();
        for _ in 0..read_u32(head, 8)? {
            let flags_at = 40 + name_bytes;
            let (entry, after) = rest.split_at_checked(flags_at + 2)?;
            let flags = u16::from_be_bytes(entry[flags_at..].try_into().ok()?);
            let is_extended = version > 2 && flags & 0x4000 != 0;
            let extra = if is_extended { 2 } else { 0 };
            let name = after.get(extra..)?;
            if version == 4 {
                // Version 4 compresses a path to the part that differs from the previous path.
                let (removed, name) = read_varint(name)?;
                path.truncate(path.len().checked_sub(removed)?);
                let end = memchr::memchr(0, name)?;
                path.extend_from_slice(&name[..end]);
                rest = &name[end + 1..];
            } else {
                let end = memchr::memchr(0, name)?;
                path.clear();
                path.extend_from_slice(&name[..end]);
                // An entry with its path is padded with NULs to a multiple of eight bytes, with one
                // NUL at least.
                let padded = (entry.len() + extra + end + 8) & !7;
                rest = rest.get(padded..)?;
            }
            let modified = (read_u32(entry, 8)?, read_u32(entry, 12)?);
            let mode = read_u32(entry, 24)?;
            let size = read_u32(entry, 36)?;
            let is_merged = flags & 0x3000 == 0;
            if is_merged && mode >> 12 == 0o10 {
                let name = entry.get(40..40 + NAME_BYTES)?.try_into().ok()?;
                // A file that was modified while the index was written may have changed again after
                // that.
                let is_racy = modified >= written;
                entries.insert(
                    hash_path(&path),
                    GitIndexEntry { stat: GitFileStat { modified, size }, name, is_racy },
                );
            }
        }
        Some(Self(entries))
    }
}

impl GitFileStat {
    fn from_meta(meta: &EntryMeta) -> Option<Self> {
        let modified = meta.mtime();
        let seconds = u32::try_from(modified.as_second()).ok()?;
        let nanos = u32::try_from(modified.subsec_nanosecond()).ok()?;
        Some(Self { modified: (seconds, nanos), size: u32::try_from(meta.size()).ok()? })
    }
}

/// Returns the first bytes of the git object id of `content`. Object ids have 40 (SHA-1) or 64
/// (SHA-256) `digits`.
fn object_name(content: &[u8], digits: usize) -> [u8; NAME_BYTES] {
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

fn read_file(file: &WorkspaceFile, bytes_max: u64, watch: &DiskWorkMonitor) -> Option<Vec<u8>> {
    let size = file.meta().size();
    if size > bytes_max { None } else { file.read(0, size, watch).ok() }
}

/// Returns `text` if it is a git object id.
fn parse_object_name(text: &str) -> Option<String> {
    let name = text.trim_end();
    let is_name = matches!(name.len(), 40 | 64) && name.bytes().all(|it| it.is_ascii_hexdigit());
    is_name.then(|| name.to_owned())
}

fn hash_path(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses a variable-length integer of git's index. Returns the integer and the rest of `bytes`.
/// `None` if `bytes` end within the integer.
fn read_varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
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
