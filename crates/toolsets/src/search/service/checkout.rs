//! Which commit a file is of, as git's own files say: no program is run, and no object is read.
//!
//! Git keeps how each file was when it was last added or checked out: when it was modified, how
//! large it was, and the hash of what it said. One that is still so is as it is in the commit that
//! is checked out, or as it is staged for the next one: those two are not told apart.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

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

    /// What is checked out now; `None` where there is no repository, or none that is understood.
    pub(super) fn now(&self, watch: &Watch) -> Option<Now> {
        let commit = self.commit(watch)?;
        let file = self.root.open_file(".git/index").ok()?;
        let stamp = file.meta().stamp();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, added)) = &*known
            && *before == stamp
        {
            return Some(Now { commit, added: added.clone() });
        }
        let written = State::of(file.meta())?.modified;
        // Names of objects are as long as that of the commit.
        let added = Added::read(&read(&file, FILES_BYTES_MAX, watch)?, commit.len() / 2, written)?;
        let added = Arc::new(added);
        *known = Some((stamp, added.clone()));
        Some(Now { commit, added })
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

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the repositories from outside")]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    fn git(folder: &Path, args: &[&str]) -> String {
        let none = ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"].map(|name| (name, "/dev/null"));
        let who = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"];
        let mut command = Command::new("git");
        let done = command.envs(none).args(who).args(args).current_dir(folder).output().unwrap();
        assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    fn put(folder: &Path, path: &str, text: &str) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn repository(init: &[&str]) -> (TempDir, String) {
        let folder = TempDir::new().unwrap();
        git(folder.path(), &[&["init", "-q"], init].concat());
        for path in ["a.rs", "src/deep/b.rs", "src/deep/bc.rs", "z.rs"] {
            put(folder.path(), path, "fn a() {}\n");
        }
        git(folder.path(), &["add", "."]);
        git(folder.path(), &["commit", "-q", "-m", "one"]);
        let commit = git(folder.path(), &["rev-parse", "HEAD"]);
        (folder, commit)
    }

    #[track_caller]
    fn check(checkout: &Checkout, path: &str, expected: Option<&str>) {
        let file = checkout.root.open_file(path).unwrap();
        let now = checkout.now(&Watch::default());
        let content = fs::read(checkout.root.path().join(path)).unwrap();
        let told = now.and_then(|now| now.commit_of(path, file.meta(), &content));
        assert_eq!(told.as_deref(), expected, "{path}");
    }

    #[test]
    fn a_file_is_of_the_commit_that_is_checked_out_until_it_is_changed() {
        for init in [&[][..], &["--object-format=sha256"]] {
            let (folder, first) = repository(init);
            let (folder, checkout) =
                (folder.path(), Checkout::new(&Root::open(folder.path()).unwrap()));
            put(folder, "new.rs", "fn new() {}\n");
            put(folder, "z.rs", "fn b() {}\n");
            for path in ["a.rs", "src/deep/b.rs", "src/deep/bc.rs"] {
                check(&checkout, path, Some(&first));
            }
            for path in ["new.rs", "z.rs"] {
                check(&checkout, path, None);
            }
            git(folder, &["commit", "-q", "-a", "-m", "two"]);
            let second = git(folder, &["rev-parse", "HEAD"]);
            check(&checkout, "z.rs", Some(&second));
            check(&checkout, "a.rs", Some(&second));
            check(&checkout, "new.rs", None);
            // Another form of the list, refs in one file, and no branch.
            for version in ["4", "3", "2"] {
                git(folder, &["update-index", "--index-version", version]);
                for path in ["a.rs", "src/deep/b.rs", "src/deep/bc.rs", "z.rs"] {
                    check(&checkout, path, Some(&second));
                }
            }
            git(folder, &["pack-refs", "--all"]);
            assert!(!folder.join(".git/refs/heads/main").exists());
            check(&checkout, "a.rs", Some(&second));
            git(folder, &["checkout", "-q", &first]);
            check(&checkout, "a.rs", Some(&first));
        }
    }

    #[test]
    fn a_file_that_was_only_touched_is_known_by_what_it_says() {
        let (folder, commit) = repository(&[]);
        let (folder, checkout) =
            (folder.path(), Checkout::new(&Root::open(folder.path()).unwrap()));
        // As long as before, and perhaps within the tick in which git wrote its list.
        for _ in 0..20 {
            put(folder, "a.rs", "fn b() {}\n");
            check(&checkout, "a.rs", None);
            put(folder, "a.rs", "fn a() {}\n");
            check(&checkout, "a.rs", Some(&commit));
            git(folder, &["checkout", "-q", "-f", "HEAD"]);
        }
    }

    #[test]
    fn a_file_changed_in_the_tick_in_which_git_looked_is_not_taken_for_the_same() {
        let (folder, commit) = repository(&[]);
        let (folder, checkout) =
            (folder.path(), Checkout::new(&Root::open(folder.path()).unwrap()));
        let modified = fs::metadata(folder.join("a.rs")).unwrap().modified().unwrap();
        let stamp = |path: &str| {
            let file = fs::OpenOptions::new().write(true).open(folder.join(path)).unwrap();
            file.set_modified(modified).unwrap();
        };
        stamp(".git/index");
        put(folder, "a.rs", "fn b() {}\n");
        stamp("a.rs");
        check(&checkout, "a.rs", None);
        put(folder, "a.rs", "fn a() {}\n");
        stamp("a.rs");
        check(&checkout, "a.rs", Some(&commit));
    }

    #[test]
    fn where_git_says_nothing_that_is_understood_no_commit_is_told() {
        let (folder, commit) = repository(&[]);
        let (folder, checkout) =
            (folder.path(), Checkout::new(&Root::open(folder.path()).unwrap()));
        check(&checkout, "a.rs", Some(&commit));
        let index = folder.join(".git/index");
        let whole = fs::read(&index).unwrap();
        for cut in [0, 3, 11, 12, 40, 73, 80, whole.len() / 3] {
            fs::write(&index, &whole[..cut]).unwrap();
            check(&checkout, "a.rs", None);
        }
        let mut endless = whole.clone();
        endless[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        fs::write(&index, &endless).unwrap();
        check(&checkout, "a.rs", None);
        fs::remove_file(&index).unwrap();
        check(&checkout, "a.rs", None);
        fs::write(&index, &whole).unwrap();
        for head in ["", "ref: ../../x", "ref: refs/heads/../../HEAD", "ref: refs/heads/none", "x"]
        {
            fs::write(folder.join(".git/HEAD"), head).unwrap();
            check(&checkout, "a.rs", None);
        }
        fs::remove_dir_all(folder.join(".git")).unwrap();
        check(&checkout, "a.rs", None);
    }
}
