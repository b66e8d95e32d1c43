//! Ignore rules of a workspace: `.gitignore`, `.ignore` and `.git/info/exclude`.
//!
//! Only files of the repository are read, never the user's own settings, so that every caller sees
//! the same workspace.

mod above;
mod rule;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use memchr::memrchr;
use rustix::fs::{OFlags, fstat};
use rustix::io::pread;

use rule::IgnoreRule;

use super::beneath::{self, SymlinkPolicy};
use super::meta::{EntryKind, EntryMeta};

/// The maximum number of bytes to read of an ignore file. Rules cost time, and the author of the
/// file is not trusted.
const RULES_BYTES_MAX: u64 = 64 << 10;
/// The maximum number of lines to read of an ignore file.
const RULES_MAX: usize = 2000;

/// The maximum number of ignore rules in one compiled matcher. The cost of a matcher grows with the
/// square of this number.
const RULES_PER_MATCHER: usize = 64;
/// The maximum number of ignore rules with wildcards in the process. Above this number, only rules
/// without wildcards are added.
const WILDCARD_RULES_MAX: usize = 20_000;

/// The number of ignore rules with wildcards in this process.
static WILDCARD_RULES: AtomicUsize = AtomicUsize::new(0);

/// The ignore rules that apply in a directory: those of its own ignore files, and those of its
/// parent directories.
pub(super) struct IgnoreRules {
    /// The directory that these ignore rules apply to, relative to the root.
    dir: PathBuf,
    /// The directory's own rules. The last rules of its files come first, because the last match
    /// decides.
    own: Vec<IgnoreRuleSet>,
    wildcard_count: usize,
    parent: Option<Arc<IgnoreRules>>,
    /// The path of the root relative to the directory of the rules in `parent`. Empty unless these
    /// rules are above the root.
    root_in_parent: PathBuf,
}

/// Ignore rules in order, compiled together.
struct IgnoreRuleSet {
    globs: GlobSet,
    rules: Vec<IgnoreRule>,
}

impl Drop for IgnoreRules {
    fn drop(&mut self) {
        WILDCARD_RULES.fetch_sub(self.wildcard_count, Ordering::Relaxed);
    }
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
        let texts: Vec<String> =
            files.iter().filter_map(|file| read_rule_file(dir, file)).collect();
        let rules: Vec<IgnoreRule> = texts
            .iter()
            .flat_map(|text| text.trim_start_matches('\u{feff}').split('\n').take(RULES_MAX))
            .filter_map(IgnoreRule::parse)
            .collect();
        let wild = rules.iter().filter(|rule| rule.has_wildcards()).count();
        let active = WILDCARD_RULES.fetch_add(wild, Ordering::Relaxed);
        // From here on the count is released when this is dropped.
        let mut all = Self::empty(path, above);
        all.wildcard_count = wild;
        let too_many = active + wild > WILDCARD_RULES_MAX;
        if too_many {
            let path = path.display();
            tracing::warn!("too many ignore rules with wildcards: skipped those in `{path}`");
        }
        let active: Vec<IgnoreRule> =
            rules.into_iter().filter(|rule| !(too_many && rule.has_wildcards())).collect();
        all.own.extend(active.chunks(RULES_PER_MATCHER).rev().filter_map(IgnoreRuleSet::compile));
        if all.own.is_empty() { all.parent.take() } else { Some(Arc::new(all)) }
    }

    /// Returns the rules of the directory `dir` if it has no ignore files of its own: only the
    /// rules of `parent` apply.
    fn empty(dir: &Path, parent: Option<Arc<Self>>) -> Self {
        Self {
            dir: dir.to_owned(),
            own: Vec::new(),
            wildcard_count: 0,
            parent,
            root_in_parent: PathBuf::new(),
        }
    }
}

impl IgnoreRuleSet {
    /// Compiles the ignore `rules` to one matcher. Leaves out rules that are not globs, as git
    /// does.
    fn compile(rules: &[IgnoreRule]) -> Option<Self> {
        let mut globs = GlobSetBuilder::new();
        let mut compiled = Vec::with_capacity(rules.len());
        for rule in rules {
            let glob =
                GlobBuilder::new(&rule.glob).literal_separator(true).backslash_escape(true).build();
            if let Ok(glob) = glob {
                globs.add(glob);
                compiled.push(rule.clone());
            }
        }
        let globs = globs.build().ok().filter(|globs| !globs.is_empty())?;
        Some(Self { globs, rules: compiled })
    }

    /// Returns the last ignore rule that matches `candidate`.
    fn last_match(&self, candidate: &Candidate<'_>, kind: EntryKind) -> Option<&IgnoreRule> {
        let matched = self.globs.matches_candidate(candidate);
        let mut rules = matched.into_iter().rev().map(|at| &self.rules[at]);
        rules.find(|rule| kind == EntryKind::Dir || !rule.dirs_only)
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

    #[test]
    fn rules_with_wildcards_are_bounded_in_total_and_plain_rules_still_apply() {
        let list: String =
            (0..1500).map(|at| format!("w*{at}*x\n")).collect::<String>() + "plain\n";
        let held: Vec<_> =
            (0..WILDCARD_RULES_MAX / 1500 + 3).map(|_| rules(&list).unwrap()).collect();
        let ignores = |at: usize, path: &str| held[at].is_ignored(Path::new(path), EntryKind::File);
        assert!(ignores(0, "w--7--x"));
        let last = held.len() - 1;
        assert!(!ignores(last, "w--7--x") && ignores(last, "plain"));
        drop(held);
        assert!(rules(&list).unwrap().is_ignored(Path::new("w--7--x"), EntryKind::File));
    }
}
