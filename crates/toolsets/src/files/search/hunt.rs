//! The search itself: files in order, a batch at a time, each batch on all cores.
//!
//! While one batch is searched the next is walked to. Batches are small at first, so a
//! common word is found at once, and in order, so the same search gives the same answer.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use grep_searcher::Searcher;
use toolgate_contract::ToolError;

use super::gather::{Gathered, gather, searcher};
use super::query::{Last, Query};
use super::{Input, Match, Named, Output};
use crate::world::Root;
use crate::world::root::{Found, Kind, Sight, Start, Walk, Watch};

const BATCH_MIN: usize = 32;
const BATCH_MAX: usize = 1024;
const THREADS_MAX: usize = 8;
/// What a match costs in an answer beside its text.
const MATCH_BYTES: usize = 32;

/// Searches beneath `root` for what `input` asks.
pub(super) fn hunt(
    root: &Root,
    input: &Input,
    answer_bytes: u64,
    watch: &Watch,
) -> Result<Output, ToolError> {
    let query = Query::of(input)?;
    let mut answer = Answer::new(input.limit, answer_bytes);
    match root.start(&input.path)? {
        Start::File(file) => {
            let hunt = Hunt { root, input, query: &query, start: file.path.clone(), watch };
            if query.text.is_some() {
                answer.take(hunt.search(&[file]), watch)?;
            } else {
                hunt.name(file, &mut answer);
            }
        }
        Start::Folder(folder) => {
            let hunt = Hunt { root, input, query: &query, start: folder.path.clone(), watch };
            let sight = Sight { ignored: input.include_ignored, hidden: input.hidden };
            let from = query.after.as_ref().map(|last| last.path.clone());
            let mut walk = Walk::new(root, folder, sight, from, watch)?;
            if query.text.is_some() {
                hunt.lines(&mut walk, &mut answer)?;
            } else {
                hunt.names(&mut walk, &mut answer)?;
            }
            answer.output.skipped.unreadable += walk.unread;
        }
    }
    Ok(answer.finish(&query))
}

/// A search under way.
struct Hunt<'h> {
    root: &'h Root,
    input: &'h Input,
    query: &'h Query,
    start: PathBuf,
    watch: &'h Watch,
}

impl Hunt<'_> {
    /// Looks for names alone.
    fn names(&self, walk: &mut Walk<'_>, answer: &mut Answer) -> Result<(), ToolError> {
        while !answer.full
            && let Some(found) = walk.next()?
        {
            self.name(found, answer);
            self.watch.progress(answer.output.searched, None, "entries seen");
        }
        Ok(())
    }

    fn name(&self, found: Found, answer: &mut Answer) {
        answer.output.searched += 1;
        let passed = self.query.after.as_ref().is_some_and(|last| last.path == found.path);
        if !passed && self.query.names(&found.path, &self.start) {
            answer.name(found);
        }
    }

    /// Looks for lines.
    fn lines(&self, walk: &mut Walk<'_>, answer: &mut Answer) -> Result<(), ToolError> {
        let mut size = BATCH_MIN;
        let mut batch = self.next_batch(walk, size)?;
        while !batch.is_empty() && !answer.full {
            size = (size * 2).min(BATCH_MAX);
            let (found, next) = thread::scope(|scope| {
                let found = scope.spawn(|| self.search(&batch));
                let next = self.next_batch(walk, size);
                (found.join(), next)
            });
            answer.take(found.unwrap_or_else(|panic| resume_unwind(panic)), self.watch)?;
            batch = next?;
            self.watch.progress(answer.output.searched, None, "files searched");
        }
        Ok(())
    }

    fn next_batch(&self, walk: &mut Walk<'_>, size: usize) -> Result<Vec<Found>, ToolError> {
        let mut batch = Vec::with_capacity(size);
        while batch.len() < size
            && let Some(found) = walk.next()?
        {
            if found.kind == Kind::File && self.query.names(&found.path, &self.start) {
                batch.push(found);
            }
        }
        Ok(batch)
    }

    /// Searches the files of `batch` on all cores; what was found in each, in order.
    fn search(&self, batch: &[Found]) -> Vec<(PathBuf, Gathered)> {
        let next = AtomicUsize::new(0);
        let found: Mutex<Vec<(usize, Gathered)>> = Mutex::default();
        let work = || {
            let mut searcher = searcher(self.input.context);
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = batch.get(at) else { break };
                let gathered = self.search_one(&mut searcher, &file.path);
                found.lock().unwrap_or_else(PoisonError::into_inner).push((at, gathered));
            }
        };
        thread::scope(|scope| {
            let cores = thread::available_parallelism().map_or(1, NonZero::get);
            for _ in 1..cores.min(THREADS_MAX).min(batch.len()) {
                scope.spawn(work);
            }
            work();
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_unstable_by_key(|(at, _)| *at);
        found.into_iter().map(|(at, gathered)| (batch[at].path.clone(), gathered)).collect()
    }

    fn search_one(&self, searcher: &mut Searcher, path: &Path) -> Gathered {
        let (Some(matcher), Ok(file)) = (&self.query.text, self.root.open_walked(path)) else {
            return Gathered::Unreadable;
        };
        let after = self.query.after.as_ref().filter(|last| last.path == path);
        // One more than fits tells whether there is more.
        let limit = self.input.limit + 1;
        gather(searcher, matcher, file, after.map_or(0, |last| last.line), limit, self.watch)
    }
}

/// The answer as far as it is.
struct Answer {
    /// How many more matches it takes.
    room: usize,
    /// How many more bytes.
    bytes: usize,
    /// There is more than it takes.
    full: bool,
    last: Option<Last>,
    output: Output,
}

impl Answer {
    fn new(limit: usize, bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self { room: limit, bytes, full: false, last: None, output: Output::default() }
    }

    fn take(&mut self, found: Vec<(PathBuf, Gathered)>, watch: &Watch) -> Result<(), ToolError> {
        // What was not read because the call was cancelled is not unreadable.
        watch.check()?;
        for (path, gathered) in found {
            if self.full {
                break;
            }
            self.output.searched += 1;
            match gathered {
                Gathered::Matches(matches) => {
                    for found in matches {
                        self.line(&path, found);
                    }
                }
                Gathered::Binary => self.output.skipped.binary += 1,
                Gathered::Unreadable => self.output.skipped.unreadable += 1,
                Gathered::LongLine => self.output.skipped.long_lines += 1,
            }
        }
        Ok(())
    }

    fn line(&mut self, path: &Path, found: Match) {
        let around: usize =
            found.before.iter().chain(&found.after).map(|line| line.len() + MATCH_BYTES).sum();
        if self.admit(found.path.len() + found.text.len() + around) {
            self.last = Some(Last { path: path.to_owned(), line: found.line });
            self.output.matches.push(found);
        }
    }

    fn name(&mut self, found: Found) {
        let path = found.path.to_string_lossy().into_owned();
        if self.admit(path.len()) {
            self.output.files.push(Named { path, kind: found.kind });
            self.last = Some(Last { path: found.path, line: 0 });
        }
    }

    /// Whether something of `bytes` still fits; the first always does.
    fn admit(&mut self, bytes: usize) -> bool {
        let bytes = bytes + MATCH_BYTES;
        self.full |= self.room == 0 || (self.last.is_some() && bytes > self.bytes);
        if self.full {
            return false;
        }
        self.room -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        true
    }

    fn finish(mut self, query: &Query) -> Output {
        self.output.truncated = self.full;
        self.output.cursor = self.last.filter(|_| self.full).map(|last| query.cursor(&last));
        self.output
    }
}
