//! Compiles the rules of an ignore file, and keeps the latest results.
//!
//! A walk reads each ignore file again, so a changed file applies at once. Compiling takes a
//! hundred times as long as reading, and most walks find the same files.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use toolgate_contract::lock_mutex;

use super::rule::IgnoreRule;
use crate::root::meta::EntryKind;

/// The maximum number of lines to read of an ignore file.
const RULES_MAX: usize = 2000;
/// The maximum number of ignore rules in one compiled matcher. The cost of a matcher grows with the
/// square of this number.
const RULES_PER_MATCHER: usize = 64;
/// The maximum number of ignore rules with wildcards in the process. Above this number, only rules
/// without wildcards are added.
const WILDCARD_RULES_MAX: usize = 20_000;
/// The maximum number of compiled files to keep for later walks.
const KEPT_FILES_MAX: usize = 64;
/// The maximum number of rules with wildcards in the compiled files that are kept for later walks.
const KEPT_WILDCARD_RULES_MAX: usize = 4000;

/// The number of ignore rules with wildcards in this process.
static WILDCARD_RULES: AtomicUsize = AtomicUsize::new(0);
/// The files that were compiled or used last. The latest one comes first.
static KEPT_FILES: Mutex<VecDeque<Arc<CompiledIgnoreFile>>> = Mutex::new(VecDeque::new());

/// The compiled rules of an ignore file.
pub(super) struct CompiledIgnoreFile {
    /// The hash (BLAKE3) of the file's text.
    text_hash: blake3::Hash,
    /// The last rules of the file come first, because the last match decides.
    matchers: Vec<IgnoreRuleSet>,
    wildcard_count: usize,
}

/// Ignore rules in order, compiled together.
struct IgnoreRuleSet {
    globs: GlobSet,
    rules: Vec<IgnoreRule>,
}

impl CompiledIgnoreFile {
    /// Compiles the rules in the text of an ignore file in the directory `dir`, unless the result is
    /// still kept. Leaves out rules with wildcards if the process has too many of them.
    pub(super) fn from_text(text: &str, dir: &Path) -> Arc<Self> {
        let text_hash = blake3::hash(text.as_bytes());
        if let Some(kept) = find_kept(text_hash) {
            return kept;
        }
        let lines = text.trim_start_matches('\u{feff}').split('\n').take(RULES_MAX);
        let mut rules: Vec<IgnoreRule> = lines.filter_map(IgnoreRule::parse).collect();
        let mut compiled = Self {
            text_hash,
            matchers: Vec::new(),
            wildcard_count: rules.iter().filter(|rule| rule.has_wildcards()).count(),
        };
        // From here on, the count is released when `compiled` is dropped.
        WILDCARD_RULES.fetch_add(compiled.wildcard_count, Ordering::Relaxed);
        let has_too_many = || WILDCARD_RULES.load(Ordering::Relaxed) > WILDCARD_RULES_MAX;
        if has_too_many() {
            lock_mutex(&KEPT_FILES).clear();
        }
        let is_cut = has_too_many();
        if is_cut {
            let dir = dir.display();
            tracing::warn!("too many ignore rules with wildcards: skipped those in `{dir}`");
            rules.retain(|rule| !rule.has_wildcards());
        }
        let chunks = rules.chunks(RULES_PER_MATCHER).rev();
        compiled.matchers = chunks.filter_map(IgnoreRuleSet::compile).collect();
        let compiled = Arc::new(compiled);
        if !is_cut {
            keep(&compiled);
        }
        compiled
    }

    /// Returns true if the file has no rules.
    pub(super) fn is_empty(&self) -> bool {
        self.matchers.is_empty()
    }

    /// Returns the last rule that matches `candidate`.
    pub(super) fn last_match(
        &self,
        candidate: &Candidate<'_>,
        kind: EntryKind,
    ) -> Option<&IgnoreRule> {
        self.matchers.iter().find_map(|rules| rules.last_match(candidate, kind))
    }
}

impl Drop for CompiledIgnoreFile {
    fn drop(&mut self) {
        WILDCARD_RULES.fetch_sub(self.wildcard_count, Ordering::Relaxed);
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

/// Returns the kept file whose text has the hash `text_hash`, and makes it the latest one.
fn find_kept(text_hash: blake3::Hash) -> Option<Arc<CompiledIgnoreFile>> {
    let mut kept = lock_mutex(&KEPT_FILES);
    let at = kept.iter().position(|file| file.text_hash == text_hash)?;
    let file = kept.remove(at)?;
    kept.push_front(file.clone());
    Some(file)
}

/// Keeps `file` for later walks, in place of the files that were not used for the longest time.
fn keep(file: &Arc<CompiledIgnoreFile>) {
    let mut kept = lock_mutex(&KEPT_FILES);
    kept.retain(|other| other.text_hash != file.text_hash);
    kept.push_front(file.clone());
    let mut wildcards = 0;
    let fitting = kept.iter().take(KEPT_FILES_MAX).take_while(|file| {
        wildcards += file.wildcard_count;
        wildcards <= KEPT_WILDCARD_RULES_MAX
    });
    let fitting = fitting.count();
    kept.truncate(fitting);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if a file with the rules in `file` ignores the file at `path`.
    fn ignores(file: &CompiledIgnoreFile, path: &str) -> bool {
        file.last_match(&Candidate::new(Path::new(path)), EntryKind::File).is_some()
    }

    // One test, because the kept files belong to the whole process.
    #[test]
    fn rules_are_compiled_once_and_bounded_in_total_and_plain_rules_always_apply() {
        let compile = |of: usize| {
            let rules = (0..1500).map(|at| format!("w{of}*{at}*x\n"));
            let list = rules.collect::<String>() + "plain\n";
            CompiledIgnoreFile::from_text(&list, Path::new(""))
        };
        let first = compile(0);
        assert!(Arc::ptr_eq(&first, &compile(0)));

        let mut held = vec![first];
        held.extend((1..WILDCARD_RULES_MAX / 1500 + 3).map(compile));
        assert!(ignores(&held[0], "w0--7--x"));
        let last = held.len() - 1;
        let cut = &held[last];
        assert!(!ignores(cut, &format!("w{last}--7--x")) && ignores(cut, "plain"));
        drop(held);
        let whole = compile(last);
        assert!(ignores(&whole, &format!("w{last}--7--x")));
        assert!(
            lock_mutex(&KEPT_FILES).iter().map(|file| file.wildcard_count).sum::<usize>()
                <= KEPT_WILDCARD_RULES_MAX
        );
    }
}
