//! Runs a search: files in order, in batches, each batch on several threads.
//!
//! The next batch is collected while the current one is searched. Batches start small, so that a
//! common word is found at once. Results are in path order, so equal searches give equal answers.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use toolgate_contract::ToolError;

use super::query::{Last, Query};
use super::{Input, Match, Named, Output};
use crate::grep::{Crew, Gathered, LINE_BYTES, Line, Outcome, Reach, Room, Scanner, gather};
use crate::world::Root;
use crate::world::root::{Found, Kind, Sight, Start, Walk, Watch};

const BATCH_MIN: usize = 32;
const BATCH_MAX: usize = 1024;
/// Most ignored entries that are counted.
const IGNORED_MAX: u64 = 10_000;

/// Runs the search in `input` beneath `root`.
pub(super) fn hunt(
    root: &Root,
    input: &Input,
    answer_bytes: u64,
    watch: &Watch,
) -> Result<Output, ToolError> {
    let query = Query::of(input, root.path())?;
    let mut answer = Answer::new(input.limit, answer_bytes);
    match root.start(&input.path)? {
        Start::File(file) => {
            let hunt = Hunt { root, input, query: &query, start: file.path.clone(), watch };
            if query.text.is_some() {
                answer.take(hunt.search(&[file], answer.room), watch)?;
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
            if answer.output.searched == 0 && !input.include_ignored {
                answer.output.skipped.ignored = hunt.ignored()?;
            }
        }
    }
    Ok(answer.finish(&query))
}

/// A running search.
struct Hunt<'h> {
    root: &'h Root,
    input: &'h Input,
    query: &'h Query,
    start: PathBuf,
    watch: &'h Watch,
}

impl Hunt<'_> {
    /// Collects entries by name alone.
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

    /// Collects matching lines.
    fn lines(&self, walk: &mut Walk<'_>, answer: &mut Answer) -> Result<(), ToolError> {
        let mut size = BATCH_MIN;
        let mut batch = self.next_batch(walk, size)?;
        while !batch.is_empty() && !answer.full {
            size = (size * 2).min(BATCH_MAX);
            let (found, next) = thread::scope(|scope| {
                let found = scope.spawn(|| self.search(&batch, answer.room));
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

    /// Searches the files of `batch` on several threads and returns each file's result, in order.
    ///
    /// Threads take files in order, and stop taking more once the finished ones fill `room`. A file
    /// that was taken is always searched to its end. The answer therefore does not depend on thread
    /// timing.
    fn search(&self, batch: &[Found], room: Room) -> Vec<(PathBuf, Gathered)> {
        let next = AtomicUsize::new(0);
        let found: Mutex<Done> = Mutex::default();
        let work = || {
            let mut scanner = Scanner::numbering(self.input.context, Reach::Line);
            while !found.lock().unwrap_or_else(PoisonError::into_inner).fills(room) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = batch.get(at) else { break };
                let gathered = self.search_one(&mut scanner, &file.path, room);
                let path_bytes = file.path.as_os_str().len();
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.take(at, gathered, path_bytes);
            }
        };
        Crew::hire(batch.len()).each(work);
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner).files;
        found.sort_unstable_by_key(|(at, _)| *at);
        found.into_iter().map(|(at, gathered)| (batch[at].path.clone(), gathered)).collect()
    }

    fn search_one(&self, scanner: &mut Scanner, path: &Path, room: Room) -> Gathered {
        let (Some(matcher), Ok(file)) = (&self.query.text, self.root.open_walked(path)) else {
            return Gathered::Not(Outcome::Unreadable);
        };
        let after = self.query.after.as_ref().filter(|last| last.path == path);
        gather(scanner, matcher, file, after.map_or(0, |last| last.line), room, self.watch)
    }

    /// Counts the entries that the search would cover if none were ignored.
    fn ignored(&self) -> Result<u64, ToolError> {
        let Start::Folder(folder) = self.root.start(&self.input.path)? else { return Ok(0) };
        let sight = Sight { ignored: true, hidden: self.input.hidden };
        let mut walk = Walk::new(self.root, folder, sight, None, self.watch)?;
        let mut seen = 0;
        let mut count = 0;
        while seen < IGNORED_MAX
            && let Some(found) = walk.next()?
        {
            seen += 1;
            let is_meant = self.query.text.is_none() || found.kind == Kind::File;
            count += u64::from(is_meant && self.query.names(&found.path, &self.start));
        }
        Ok(count)
    }
}

/// Results of the files of a batch that are finished.
#[derive(Default)]
struct Done {
    files: Vec<(usize, Gathered)>,
    lines: usize,
    bytes: usize,
}

impl Done {
    fn take(&mut self, at: usize, gathered: Gathered, path_bytes: usize) {
        if let Gathered::Lines(lines) = &gathered {
            self.lines += lines.len();
            self.bytes += lines.iter().map(|line| path_bytes + line.bytes()).sum::<usize>();
        }
        self.files.push((at, gathered));
    }

    fn fills(&self, room: Room) -> bool {
        room.is_filled_by(self.lines, self.bytes)
    }
}

/// The answer collected so far.
struct Answer {
    /// Lines and bytes that still fit.
    room: Room,
    /// Set once a match did not fit.
    full: bool,
    last: Option<Last>,
    output: Output,
}

impl Answer {
    fn new(limit: usize, bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let room = Room { lines: limit, bytes };
        Self { room, full: false, last: None, output: Output::default() }
    }

    fn take(&mut self, found: Vec<(PathBuf, Gathered)>, watch: &Watch) -> Result<(), ToolError> {
        // A cancelled call leaves files unread; they must not count as unreadable.
        watch.check()?;
        for (path, gathered) in found {
            if self.full {
                break;
            }
            self.output.searched += 1;
            match gathered {
                Gathered::Lines(lines) => {
                    for line in lines {
                        self.line(&path, line);
                    }
                }
                Gathered::Not(Outcome::Searched) => {}
                Gathered::Not(Outcome::Binary) => self.output.skipped.binary += 1,
                Gathered::Not(Outcome::Unreadable) => self.output.skipped.unreadable += 1,
                Gathered::Not(Outcome::TooLong) => self.output.skipped.long_lines += 1,
            }
        }
        Ok(())
    }

    fn line(&mut self, path: &Path, line: Line) {
        let shown = path.to_string_lossy();
        if self.admit(shown.len() + line.bytes()) {
            let Line { number, column, text, before, after } = line;
            self.last = Some(Last { path: path.to_owned(), line: number });
            let path = shown.into_owned();
            self.output.matches.push(Match { path, line: number, column, text, before, after });
        }
    }

    fn name(&mut self, found: Found) {
        let path = found.path.to_string_lossy().into_owned();
        if self.admit(path.len() + LINE_BYTES) {
            self.output.files.push(Named { path, kind: found.kind });
            self.last = Some(Last { path: found.path, line: 0 });
        }
    }

    /// Reserves room for `bytes`, and returns false if they do not fit. The first match always
    /// fits.
    fn admit(&mut self, bytes: usize) -> bool {
        let Room { lines, bytes: left } = self.room;
        self.full |= lines == 0 || (self.last.is_some() && bytes > left);
        if self.full {
            return false;
        }
        self.room = Room { lines: lines - 1, bytes: left.saturating_sub(bytes) };
        true
    }

    fn finish(mut self, query: &Query) -> Output {
        self.output.truncated = self.full;
        self.output.cursor = self.last.filter(|_| self.full).map(|last| query.cursor(&last));
        self.output
    }
}
