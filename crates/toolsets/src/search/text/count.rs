//! The first pass of a text search: counts the matches of each file and ranks the files.

use std::collections::BinaryHeap;
use std::io;
use std::path::Path;

use grep_searcher::{Searcher, Sink, SinkMatch};
use toolgate_chunks::{FileClassification, FilePurpose};

use super::SkippedFileCounts;
use super::query::TextSearchQuery;
use super::rank::{MatchLineRole, MatchedFileSortKey, line_role};
use crate::grep::{FileMatchOutcome, FileScanner};
use toolgate_world::root::{DiskWorkMonitor, WorkspaceFile};

/// The maximum number of matching lines in a file for which the counting pass checks if they are
/// definitions.
const ROLES_MAX: u64 = 256;

/// Counter of the matches that one thread of a text search finds, with the best files so far.
pub(super) struct TextMatchCounter<'q> {
    query: &'q TextSearchQuery,
    scanner: FileScanner,
    /// The best files so far, at most `best_max`. The top of the heap is the file that ranks last.
    best: BinaryHeap<MatchedFileSortKey>,
    best_max: usize,
    pub(super) matches: u64,
    pub(super) files: u64,
    /// The number of files with matches that rank after the last file of the previous page.
    pub(super) remaining: u64,
    pub(super) searched: u64,
    pub(super) skipped: SkippedFileCounts,
}

impl<'q> TextMatchCounter<'q> {
    /// Creates a counter for `query` that stores the best `best_max` files.
    pub(super) fn new(query: &'q TextSearchQuery, best_max: usize) -> Self {
        Self {
            query,
            scanner: FileScanner::without_line_numbers(query.span),
            best: BinaryHeap::new(),
            best_max,
            matches: 0,
            files: 0,
            remaining: 0,
            searched: 0,
            skipped: SkippedFileCounts::default(),
        }
    }

    /// Counts the matches in the file at `path`, and stores the file if it is among the best.
    pub(super) fn count_file(&mut self, path: &Path, file: WorkspaceFile, watch: &DiskWorkMonitor) {
        self.searched += 1;
        let mut tally = FileMatchTally {
            query: self.query,
            path,
            is_code: None,
            lines: 0,
            role: MatchLineRole::Mentions,
        };
        match self.scanner.scan(&self.query.matcher, file, watch, &mut tally) {
            FileMatchOutcome::Searched => {}
            FileMatchOutcome::Binary => self.skipped.binary += 1,
            FileMatchOutcome::Unreadable => self.skipped.unreadable += 1,
            FileMatchOutcome::TooLong => self.skipped.too_long += 1,
        }
        let FileMatchTally { lines, role, .. } = tally;
        if lines == 0 {
            return;
        }
        self.matches += lines;
        self.files += 1;
        self.add_rank(MatchedFileSortKey::new(path, &self.query.matcher, role, lines));
    }

    fn add_rank(&mut self, rank: MatchedFileSortKey) {
        if self.query.after.as_ref().is_some_and(|after| rank <= *after) {
            return;
        }
        self.remaining += 1;
        self.push_best(rank);
    }

    fn push_best(&mut self, rank: MatchedFileSortKey) {
        if self.best.len() < self.best_max {
            self.best.push(rank);
        } else if let Some(mut last) = self.best.peek_mut()
            && rank < *last
        {
            *last = rank;
        }
    }

    /// Returns the combined counts and best files of `self` and `other`.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.matches += other.matches;
        self.files += other.files;
        self.remaining += other.remaining;
        self.searched += other.searched;
        self.skipped.binary += other.skipped.binary;
        self.skipped.unreadable += other.skipped.unreadable;
        self.skipped.too_long += other.skipped.too_long;
        for rank in other.best {
            self.push_best(rank);
        }
        self
    }

    /// Returns the best files, best first.
    pub(super) fn into_ranked(self) -> Vec<MatchedFileSortKey> {
        self.best.into_sorted_vec()
    }
}

/// Matches of one file while they are counted.
struct FileMatchTally<'t> {
    query: &'t TextSearchQuery,
    path: &'t Path,
    /// True if the file contains code. `None` before this is determined.
    is_code: Option<bool>,
    lines: u64,
    role: MatchLineRole,
}

impl Sink for FileMatchTally<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.lines += 1;
        let path = self.path;
        let is_code =
            || FileClassification::for_path(&path.to_string_lossy()).kind == FilePurpose::Code;
        if self.role > MatchLineRole::Defines
            && self.lines <= ROLES_MAX
            && *self.is_code.get_or_insert_with(is_code)
        {
            self.role = self.role.min(line_role(&self.query.matcher, found.bytes()));
        }
        Ok(true)
    }
}
