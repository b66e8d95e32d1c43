//! Which entries a workspace says are not its own: `.gitignore`, `.ignore` and `.git/info/exclude`.
//!
//! Only files beneath the root count, never the user's own settings, so everyone
//! sees the same workspace.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use memchr::memrchr;
use rustix::fs::{OFlags, fstat};
use rustix::io::pread;

use super::beneath::{self, Symlinks};
use super::meta::{Kind, Meta};

/// A longer list than this is cut: each rule costs, and whoever wrote it is a stranger.
const RULES_BYTES_MAX: u64 = 64 << 10;
/// A list of more lines is cut, too.
const RULES_MAX: usize = 2000;

/// The rules that hold in a directory: its own, then those of the ones above.
pub(super) struct Ignores {
    own: Gitignore,
    above: Option<Arc<Ignores>>,
}

impl Ignores {
    /// Whether the entry at `path`, relative to the root, is ignored.
    pub(super) fn ignore(&self, path: &Path, kind: Kind) -> bool {
        match self.own.matched(path, kind == Kind::Dir) {
            Match::Ignore(_) => true,
            Match::Whitelist(_) => false,
            Match::None => self.above.as_ref().is_some_and(|above| above.ignore(path, kind)),
        }
    }

    /// The rules in the directory `dir`, which is at `path`, where `above` hold in its parent.
    ///
    /// `names` says which of the files that hold rules are there.
    pub(super) fn of(
        dir: &OwnedFd,
        path: &Path,
        above: Option<Arc<Self>>,
        names: RuleFiles,
    ) -> Option<Arc<Self>> {
        let mut rules = above;
        if names.git {
            rules = Self::with(dir, path, rules, &[".git/info/exclude"]);
        }
        if names.ignore {
            rules = Self::with(dir, path, rules, &[".gitignore", ".ignore"]);
        }
        rules
    }

    fn with(
        dir: &OwnedFd,
        path: &Path,
        above: Option<Arc<Self>>,
        files: &[&str],
    ) -> Option<Arc<Self>> {
        let mut builder = GitignoreBuilder::new(path);
        for file in files {
            let text = read(dir, file).unwrap_or_default();
            for line in text.trim_start_matches('\u{feff}').lines().take(RULES_MAX) {
                // Git, too, passes over a line it cannot read.
                let _ = builder.add_line(None, line);
            }
        }
        match builder.build() {
            Ok(own) if !own.is_empty() => Some(Arc::new(Self { own, above })),
            Ok(_) | Err(_) => above,
        }
    }
}

/// Which files that hold rules a directory has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RuleFiles {
    pub(super) git: bool,
    pub(super) ignore: bool,
}

/// The text of a small regular file; a symlink counts for nothing, as with git.
fn read(dir: &OwnedFd, file: &str) -> Option<String> {
    let fd = beneath::open(dir.as_fd(), Path::new(file), OFlags::RDONLY, Symlinks::Refuse).ok()?;
    let meta = Meta::from(fstat(&fd).ok()?);
    if meta.kind() != Kind::File {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(meta.size().min(RULES_BYTES_MAX)).ok()?];
    let read = pread(&fd, &mut bytes[..], 0).ok()?;
    bytes.truncate(read);
    if meta.size() > RULES_BYTES_MAX {
        // Half a rule is another one: of `/build/*.log` there could be `/build/*`.
        bytes.truncate(memrchr(b'\n', &bytes).map_or(0, |at| at + 1));
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
