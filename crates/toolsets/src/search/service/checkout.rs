//! Which commit a file is of, as git's own files say: no program is run, and no object is read.
//!
//! Git keeps how each file was when it was last added or checked out: when it was modified, how
//! large it was, and the hash of what it said. One that is still so is as it is in the commit that
//! is checked out, or as it is staged for the next one: those two are not told apart.

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

/// More than `HEAD` and what it names ever have.
const HEAD_BYTES_MAX: u64 = 4 << 10;
/// How large a list of refs is looked through.
const REFS_BYTES_MAX: u64 = 16 << 20;
/// How large a list of files is; a million of them fit.
const FILES_BYTES_MAX: u64 = 128 << 20;

/// Git moves `HEAD` so soon after it has replaced its list of files: in half a millisecond mostly,
/// in some on a machine that is busy.
const MOVES_WITHIN: Duration = Duration::from_millis(150);
/// How often it is looked whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How much of an object's name is kept.
const NAME_BYTES: usize = 8;

/// What is checked out in a folder, if that is a repository of its own.
pub(super) struct Checkout {
    root: Root,
    /// What git keeps of files, as it was when that had this stamp.
    known: Mutex<Option<(Stamp, Arc<Added>)>>,
}

/// What is checked out at one moment.
pub(super) struct Now {
    commit: String,
    added: Arc<Added>,
}

/// How files were when git took them in, by the hash of their paths.
#[derive(Debug, Default, PartialEq, Eq)]
struct Added(HashMap<u64, Seen>);

/// How a file was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    state: State,
    /// The beginning of the name of what it said.
    name: [u8; NAME_BYTES],
    /// It may have been modified since though it looks as it did.
    is_racy: bool,
}

/// What a file looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    modified: (u32, u32),
    size: u32,
}

impl Checkout {
    /// What is checked out in `root`. Nothing is looked at yet.
    pub(super) fn new(root: &Root) -> Self {
        Self { root: root.clone(), known: Mutex::default() }
    }

    /// What is checked out now; `None` where there is no repository, or none that is understood, and
    /// while git changes what is checked out.
    ///
    /// Git replaces its list of files first and moves `HEAD` then, and holds no lock between. So a
    /// list that is new is looked at again until `HEAD` has had time to move.
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

    /// What git keeps of files, where names of objects have `name_bytes`, and whether that is so
    /// new that `HEAD` may not have moved yet.
    fn added(&self, name_bytes: usize, watch: &Watch) -> Option<(Arc<Added>, bool)> {
        let file = self.root.open_file(".git/index").ok()?;
        let stamp = file.meta().stamp();
        // One of another machine's clock may be of the future.
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

    /// The name of the commit that `HEAD` is at.
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
    /// The commit that the file at `path`, which is like `meta` and says `content`, is of, if it is
    /// as git has it.
    pub(super) fn commit_of(&self, path: &str, meta: &Meta, content: &[u8]) -> Option<String> {
        let seen = self.added.0.get(&hash(path.as_bytes()))?;
        let is_untouched = !seen.is_racy && State::of(meta)? == seen.state;
        let is_same = is_untouched || name(content, self.commit.len()) == seen.name;
        is_same.then(|| self.commit.clone())
    }
}

impl Added {
    /// What the list `bytes` says, in any of its formats, which was `written` then; names of
    /// objects have `name_bytes`. `None` where it cannot be understood.
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
                // The path is told by what of the last one stays.
                let (gone, name) = offset(name)?;
                path.truncate(path.len().checked_sub(gone)?);
                let end = memchr::memchr(0, name)?;
                path.extend_from_slice(&name[..end]);
                rest = &name[end + 1..];
            } else {
                let end = memchr::memchr(0, name)?;
                path.clear();
                path.extend_from_slice(&name[..end]);
                // With its path it fills whole eights, the last byte being a NUL.
                let padded = (entry.len() + more + end + 8) & !7;
                rest = rest.get(padded..)?;
            }
            let modified = (number(entry, 8)?, number(entry, 12)?);
            let (mode, size) = (number(entry, 24)?, number(entry, 36)?);
            let is_merged = said & 0x3000 == 0;
            if is_merged && mode >> 12 == 0o10 {
                let name = entry.get(40..40 + NAME_BYTES)?.try_into().ok()?;
                // What was modified while the list was written may have been modified after that.
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

/// The beginning of the name of a file that says `content`, where names have so many `digits`.
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

/// The name of an object, if `text` is one.
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

/// A number of as many bytes as it takes, and what is after it.
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
