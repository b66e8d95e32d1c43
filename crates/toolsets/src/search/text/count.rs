//! The first pass of a text search: counts the matches of each file and ranks the files.

use std::collections::BinaryHeap;
use std::io;
use std::path::Path;

use grep_searcher::{Searcher, Sink, SinkMatch};
use toolgate_chunks::{Kind, Sort};

use super::Skipped;
use super::query::Query;
use super::rank::{Rank, Role, role};
use crate::grep::{Outcome, Scanner};
use crate::world::root::{File, Watch};

/// The number of matching lines of a file whose role is determined.
const ROLES_MAX: u64 = 256;

/// The counts of one thread.
pub(super) struct Counted<'q> {
    query: &'q Query,
    scanner: Scanner,
    /// The best files so far, at most `most`. The worst of them is on top.
    best: BinaryHeap<Rank>,
    most: usize,
    pub(super) matches: u64,
    pub(super) files: u64,
    /// The number of files with matches that rank after the previous page.
    pub(super) left: u64,
    pub(super) searched: u64,
    pub(super) skipped: Skipped,
}

impl<'q> Counted<'q> {
    /// Creates a counter for `query` that keeps the best `most` files.
    pub(super) fn new(query: &'q Query, most: usize) -> Self {
        Self {
            query,
            scanner: Scanner::counting(query.reach),
            best: BinaryHeap::new(),
            most,
            matches: 0,
            files: 0,
            left: 0,
            searched: 0,
            skipped: Skipped::default(),
        }
    }

    /// Counts the matches of the file at `path`.
    pub(super) fn take(&mut self, path: &Path, file: File, watch: &Watch) {
        self.searched += 1;
        let mut tally =
            Tally { query: self.query, path, is_code: None, lines: 0, role: Role::Says };
        match self.scanner.scan(&self.query.matcher, file, watch, &mut tally) {
            Outcome::Searched => {}
            Outcome::Binary => self.skipped.binary += 1,
            Outcome::Unreadable => self.skipped.unreadable += 1,
            Outcome::TooLong => self.skipped.too_long += 1,
        }
        let Tally { lines, role, .. } = tally;
        if lines == 0 {
            return;
        }
        self.matches += lines;
        self.files += 1;
        self.keep(Rank::of(path, &self.query.matcher, role, lines));
    }

    fn keep(&mut self, rank: Rank) {
        if self.query.after.as_ref().is_some_and(|after| rank <= *after) {
            return;
        }
        self.left += 1;
        self.put(rank);
    }

    fn put(&mut self, rank: Rank) {
        if self.best.len() < self.most {
            self.best.push(rank);
        } else if let Some(mut last) = self.best.peek_mut()
            && rank < *last
        {
            *last = rank;
        }
    }

    /// Returns the sum of both counts.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.matches += other.matches;
        self.files += other.files;
        self.left += other.left;
        self.searched += other.searched;
        self.skipped.binary += other.skipped.binary;
        self.skipped.unreadable += other.skipped.unreadable;
        self.skipped.too_long += other.skipped.too_long;
        for rank in other.best {
            self.put(rank);
        }
        self
    }

    /// Returns the best files in order.
    pub(super) fn ranked(self) -> Vec<Rank> {
        self.best.into_sorted_vec()
    }
}

/// The matches of one file.
struct Tally<'t> {
    query: &'t Query,
    path: &'t Path,
    /// True if the file is code; `None` before the first use.
    is_code: Option<bool>,
    lines: u64,
    role: Role,
}

impl Sink for Tally<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.lines += 1;
        let path = self.path;
        let is_code = || Sort::of(&path.to_string_lossy()).kind == Kind::Code;
        if self.role > Role::Defines
            && self.lines <= ROLES_MAX
            && *self.is_code.get_or_insert_with(is_code)
        {
            self.role = self.role.min(role(&self.query.matcher, found.bytes()));
        }
        Ok(true)
    }
}
