//! Ignore rules of a workspace: `.gitignore`, `.ignore` and `.git/info/exclude`.
//!
//! Only files of the repository are read, never the user's own settings, so that every caller sees
//! the same workspace.

mod above;
mod compiled_file;
mod rule;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::Candidate;
use memchr::memrchr;
use rustix::fs::{OFlags, fstat};
use rustix::io::pread;

use compiled_file::CompiledIgnoreFile;

use super::beneath::{self, SymlinkPolicy};
use super::meta::{EntryKind, EntryMeta};

/// The maximum number of bytes to read of an ignore file. Rules cost time, and the author of the
/// file is not trusted.
const RULES_BYTES_MAX: u64 = 64 << 10;
/// The ignore rules that apply in a directory: those of its own ignore files, and those of its
/// parent directories.
pub(super) struct IgnoreRules {
    /// The directory that these ignore rules apply to, relative to the root.
    dir: PathBuf,
    /// The directory's own ignore files. The last file comes first, because the last match decides.
    own: Vec<Arc<CompiledIgnoreFile>>,
    parent: Option<Arc<IgnoreRules>>,
    /// The path of the root relative to the directory of the rules in `parent`. Empty unless these
    /// rules are above the root.
    root_in_parent: PathBuf,
}

impl IgnoreRules {
    /// Returns `true` if the rules ignore the entry at `path`, which is relative to the root.
    pub(super) fn is_ignored(&self, path: &Path, kind: EntryKind) -> bool {
        if !self.own.is_empty() {
            let candidate = Candidate::new(path.strip_prefix(&self.dir).unwrap_or(path));
            if let Some(rule) = self.own.iter().find_map(|own| own.last_match(&candidate, kind)) {
                return !rule.negated;
            }
        }
        let Some(parent) = &self.parent else { return false };
        if self.root_in_parent.as_os_str().is_empty() {
            return parent.is_ignored(path, kind);
        }
        parent.is_ignored(&self.root_in_parent.join(path), kind)
    }

    /// Reads the rules in the directory `dir` at `path`. `above` contains the rules of its parent
    /// directory.
    ///
    /// `names` lists the rule files that exist in the directory.
    pub(super) fn for_directory(
        dir: &OwnedFd,
        path: &Path,
        above: Option<Arc<Self>>,
        names: IgnoreRuleFiles,
    ) -> Option<Arc<Self>> {
        let mut rules = above;
        if names.git {
            rules = Self::with_files(dir, path, rules, &[".git/info/exclude"]);
        }
        if names.ignore {
            rules = Self::with_files(dir, path, rules, &[".gitignore", ".ignore"]);
        }
        rules
    }

    fn with_files(
        dir: &OwnedFd,
        path: &Path,
        above: Option<Arc<Self>>,
        files: &[&str],
    ) -> Option<Arc<Self>> {
        let texts = files.iter().rev().filter_map(|file| read_rule_file(dir, file));
        let compiled = texts.map(|text| CompiledIgnoreFile::from_text(&text, path));
        let own: Vec<_> = compiled.filter(|file| !file.is_empty()).collect();
        if own.is_empty() {
            above
        } else {
            Some(Arc::new(Self { own, ..Self::empty(path, above) }))
        }
    }

    /// Returns the rules of the directory `dir` if it has no ignore files of its own: only the
    /// rules of `parent` apply.
    fn empty(dir: &Path, parent: Option<Arc<Self>>) -> Self {
        Self { dir: dir.to_owned(), own: Vec::new(), parent, root_in_parent: PathBuf::new() }
    }
}

/// The ignore files that a directory has, such as `.gitignore`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IgnoreRuleFiles {
    pub(super) git: bool,
    pub(super) ignore: bool,
}

/// Reads a small ignore file. Ignores symlinks, as git does.
fn read_rule_file(dir: &OwnedFd, file: &str) -> Option<String> {
    let fd =
        beneath::open(dir.as_fd(), Path::new(file), OFlags::RDONLY, SymlinkPolicy::Refuse).ok()?;
    let meta = EntryMeta::from(fstat(&fd).ok()?);
    if meta.kind() != EntryKind::File {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(meta.size().min(RULES_BYTES_MAX)).ok()?];
    let read = pread(&fd, &mut bytes[..], 0).ok()?;
    bytes.truncate(read);
    if meta.size() > RULES_BYTES_MAX {
        // Half a rule can mean something else: `/build/*.log` could become `/build/*`.
        bytes.truncate(memrchr(b'\n', &bytes).map_or(0, |at| at + 1));
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the ignore rules of a folder whose `.gitignore` has the content `list`.
    #[allow(clippy::disallowed_methods, reason = "a test creates the files")]
    fn rules(list: &str) -> Option<Arc<IgnoreRules>> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".gitignore"), list).unwrap();
        let dir = fs::File::open(folder.path()).unwrap().into();
        IgnoreRules::for_directory(
            &dir,
            Path::new(""),
            None,
            IgnoreRuleFiles { git: false, ignore: true },
        )
    }

    #[test]
    fn the_last_matching_rule_of_many_decides() {
        let many: String = (0..500).map(|at| format!("*x{at}*/y*z\n")).collect();
        let list = format!("a*\n{many}!ab\n{many}abc\n{many}# of nothing\n\n");
        let rules = rules(&list).unwrap();
        for (path, expected) in [("a", true), ("ab", false), ("abc", true), ("b", false)] {
            assert_eq!(rules.is_ignored(Path::new(path), EntryKind::File), expected, "{path}");
        }
        assert!(rules.is_ignored(Path::new("ax7b/yz"), EntryKind::File));
    }

    #[test]
    fn a_line_that_git_skips_leaves_the_rules_above_it() {
        for line in ["!", "!/", "/", "!  \r", "[", "!["] {
            let rules = rules(&format!("a\nb/\n{line}\n")).unwrap();
            assert!(rules.is_ignored(Path::new("x/a"), EntryKind::File), "{line:?}");
            assert!(rules.is_ignored(Path::new("x/b"), EntryKind::Dir), "{line:?}");
            assert!(!rules.is_ignored(Path::new("x/b"), EntryKind::File), "{line:?}");
            assert!(!rules.is_ignored(Path::new("x/c"), EntryKind::Dir), "{line:?}");
        }
    }
}
