//! Ignore rules of a workspace: `.gitignore`, `.ignore` and `.git/info/exclude`.
//!
//! Only files below the root count, never the user's own settings, so that every caller sees the
//! same workspace.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use memchr::memrchr;
use rustix::fs::{OFlags, fstat};
use rustix::io::pread;

use super::beneath::{self, SymlinkPolicy};
use super::meta::{EntryKind, EntryMeta};

/// The most bytes to read of a rule file. Rules cost time, and the author of the file is not
/// trusted.
const RULES_BYTES_MAX: u64 = 64 << 10;
/// The most lines to read of a rule file.
const RULES_MAX: usize = 2000;

/// The number of rules in one matcher. The cost of a matcher grows with the square of this number.
const RULES_PER_MATCHER: usize = 64;
/// The most wildcard rules in the process. Above this number, only rules without wildcards are
/// added.
const WILDCARD_RULES_MAX: usize = 20_000;

/// The number of wildcard rules in this process.
static WILDCARD_RULES: AtomicUsize = AtomicUsize::new(0);

/// The ignore rules that apply in a directory: its own rules, then the rules of its parents.
pub(super) struct IgnoreRules {
    /// The directory's own rules. The last rules of its files come first, because the last match
    /// decides.
    own: Vec<Gitignore>,
    wildcard_count: usize,
    parent: Option<Arc<IgnoreRules>>,
}

impl Drop for IgnoreRules {
    fn drop(&mut self) {
        WILDCARD_RULES.fetch_sub(self.wildcard_count, Ordering::Relaxed);
    }
}

impl IgnoreRules {
    /// Returns `true` if the rules ignore the entry at `path`, which is relative to the root.
    pub(super) fn is_ignored(&self, path: &Path, kind: EntryKind) -> bool {
        let matches = self.own.iter().map(|own| own.matched(path, kind == EntryKind::Dir));
        match matches.into_iter().find(|matches| !matches.is_none()) {
            Some(matches) => matches.is_ignore(),
            None => self.parent.as_ref().is_some_and(|above| above.is_ignored(path, kind)),
        }
    }

    /// Reads the rules in the directory `dir` at `path`. `above` contains the rules of its parent.
    ///
    /// `names` lists the rule files that exist in the directory.
    pub(super) fn for_directory(
        dir: &OwnedFd,
        path: &Path,
        above: Option<Arc<Self>>,
        names: RuleFiles,
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
        let rules: Vec<&str> = texts
            .iter()
            .flat_map(|text| text.trim_start_matches('\u{feff}').lines().take(RULES_MAX))
            .filter(|line| is_rule(line))
            .collect();
        let wild = rules.iter().filter(|rule| has_wildcards(rule)).count();
        let active = WILDCARD_RULES.fetch_add(wild, Ordering::Relaxed);
        // From here on the count is released when this is dropped.
        let mut all = Self { own: Vec::new(), wildcard_count: wild, parent: above };
        let too_many = active + wild > WILDCARD_RULES_MAX;
        if too_many {
            let path = path.display();
            tracing::warn!("too many ignore rules with wildcards: skipped those in `{path}`");
        }
        let active: Vec<&str> =
            rules.into_iter().filter(|rule| !(too_many && has_wildcards(rule))).collect();
        for rules in active.chunks(RULES_PER_MATCHER).rev() {
            let mut builder = GitignoreBuilder::new(path);
            for rule in rules {
                // Git also skips lines that it cannot parse.
                let _ = builder.add_line(None, rule);
            }
            all.own.extend(builder.build().ok().filter(|own| !own.is_empty()));
        }
        if all.own.is_empty() { all.parent.take() } else { Some(Arc::new(all)) }
    }
}

/// Returns `true` if `line` is neither empty nor a comment.
fn is_rule(line: &str) -> bool {
    !line.starts_with('#') && !line.trim().is_empty()
}

/// Returns `true` if matching `rule` takes more than a comparison of names.
fn has_wildcards(rule: &str) -> bool {
    let rule = rule.strip_prefix('!').unwrap_or(rule);
    rule.strip_prefix("*.").unwrap_or(rule).contains(['*', '?', '[', '{'])
}

/// The rule files that a directory has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RuleFiles {
    pub(super) git: bool,
    pub(super) ignore: bool,
}

/// Reads a small regular file. Ignores symlinks, as git does.
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

    /// Returns the rules of a folder whose `.gitignore` contains `list`.
    #[allow(clippy::disallowed_methods, reason = "a test creates the files")]
    fn rules(list: &str) -> Option<Arc<IgnoreRules>> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".gitignore"), list).unwrap();
        let dir = fs::File::open(folder.path()).unwrap().into();
        IgnoreRules::for_directory(
            &dir,
            Path::new(""),
            None,
            RuleFiles { git: false, ignore: true },
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
