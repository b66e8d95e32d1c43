//! Runs a search: processes files in order and in batches, each batch on several threads.
//!
//! The next batch is collected while the current batch is searched. Batches start small, so that a
//! common word is found at once. Results are sorted by path, so equal searches give equal answers.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use toolgate_contract::{ToolError, lock_mutex};

use super::query::{FileSearchQuery, LastReturnedMatch};
use super::{EntryNameMatch, FileLineMatch, SearchFilesInput, SearchFilesOutput};
use crate::grep::{
    FileMatchOutcome, FileScanner, LINE_OVERHEAD_BYTES, MatchedLine, MultilineMatching,
    RemainingAnswerSpace, ReservedSearchThreads, SearchedFileLines, collect_lines,
};
use toolgate_world::Root;
use toolgate_world::root::{
    DiskWorkMonitor, EntryKind, TreeWalk, WalkEntry, WalkFilter, WalkStartPoint,
};

const BATCH_MIN: usize = 32;
const BATCH_MAX: usize = 1024;
/// The maximum number of entries that are examined for ignored files if a search covered no file.
const IGNORED_MAX: u64 = 10_000;

/// Runs the `files.search` call `input` in the workspace `root`. The answer has at most about
/// `answer_bytes` bytes.
pub(super) fn run_search(
    root: &Root,
    input: &SearchFilesInput,
    answer_bytes: u64,
    watch: &DiskWorkMonitor,
) -> Result<SearchFilesOutput, ToolError> {
    let query = FileSearchQuery::parse(input, root.path())?;
    let mut answer = PartialSearchAnswer::new(input.limit, answer_bytes);
    match root.walk_start(&input.path)? {
        WalkStartPoint::File(file) => {
            let run = FileSearchRun { root, input, query: &query, start: file.path.clone(), watch };
            if query.text.is_some() {
                answer.add_batch(run.search_batch(&[file], answer.room), watch)?;
            } else {
                run.check_name(file, &mut answer);
            }
        }
        WalkStartPoint::Folder(folder) => {
            let run =
                FileSearchRun { root, input, query: &query, start: folder.path.clone(), watch };
            let filter =
                WalkFilter { include_ignored: input.include_ignored, include_hidden: input.hidden };
            let from = query.after.as_ref().map(|last| last.path.clone());
            let mut walk = TreeWalk::new(root, folder, filter, from, watch)?;
            if query.text.is_some() {
                run.search_lines(&mut walk, &mut answer)?;
            } else {
                run.search_names(&mut walk, &mut answer)?;
            }
            answer.output.skipped.unreadable += walk.unread_folders;
            if answer.output.searched == 0 && !input.include_ignored {
                answer.output.skipped.ignored = run.count_ignored()?;
            }
        }
    }
    Ok(answer.finish(&query))
}

/// A running call of `files.search`.
struct FileSearchRun<'h> {
    root: &'h Root,
    input: &'h SearchFilesInput,
    query: &'h FileSearchQuery,
    start: PathBuf,
    watch: &'h DiskWorkMonitor,
}

impl FileSearchRun<'_> {
    /// Adds the entries whose names match the search's glob to `answer`.
    fn search_names(
        &self,
        walk: &mut TreeWalk<'_>,
        answer: &mut PartialSearchAnswer,
    ) -> Result<(), ToolError> {
        while !answer.full
            && let Some(found) = walk.next_entry()?
        {
            self.check_name(found, answer);
            self.watch.report_progress(answer.output.searched, None, "entries seen");
        }
        Ok(())
    }

    fn check_name(&self, found: WalkEntry, answer: &mut PartialSearchAnswer) {
        answer.output.searched += 1;
        let passed = self.query.after.as_ref().is_some_and(|last| last.path == found.path);
        if !passed && self.query.matches_name(&found.path, &self.start) {
            answer.add_name(found);
        }
    }

    /// Adds the lines that match the search's text pattern to `answer`.
    fn search_lines(
        &self,
        walk: &mut TreeWalk<'_>,
        answer: &mut PartialSearchAnswer,
    ) -> Result<(), ToolError> {
        let mut size = BATCH_MIN;
        let mut batch = self.next_batch(walk, size)?;
        while !batch.is_empty() && !answer.full {
            size = (size * 2).min(BATCH_MAX);
            let (found, next) = thread::scope(|scope| {
                let found = scope.spawn(|| self.search_batch(&batch, answer.room));
                let next = self.next_batch(walk, size);
                (found.join(), next)
            });
            answer.add_batch(found.unwrap_or_else(|panic| resume_unwind(panic)), self.watch)?;
            batch = next?;
            self.watch.report_progress(answer.output.searched, None, "files searched");
        }
        Ok(())
    }

    fn next_batch(
        &self,
        walk: &mut TreeWalk<'_>,
        size: usize,
    ) -> Result<Vec<WalkEntry>, ToolError> {
        let mut batch = Vec::with_capacity(size);
        while batch.len() < size
            && let Some(found) = walk.next_entry()?
        {
            if found.kind == EntryKind::File && self.query.matches_name(&found.path, &self.start) {
                batch.push(found);
            }
        }
        Ok(batch)
    }

    /// Searches the files of `batch` on several threads, and returns each file's result, in order.
    ///
    /// Threads start files in order, and start no more files once the results of finished files
    /// fill the answer's remaining space `room`. The search of a started file is always finished.
    /// The answer therefore does not depend on thread timing.
    fn search_batch(
        &self,
        batch: &[WalkEntry],
        room: RemainingAnswerSpace,
    ) -> Vec<(PathBuf, SearchedFileLines)> {
        let next = AtomicUsize::new(0);
        let found: Mutex<FileBatchResults> = Mutex::default();
        let work = || {
            let mut scanner =
                FileScanner::with_line_numbers(self.input.context, MultilineMatching::SingleLine);
            while !lock_mutex(&found).fills(room) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = batch.get(at) else { break };
                let result = self.search_file(&mut scanner, &file.path, room);
                let path_bytes = file.path.as_os_str().len();
                let mut found = lock_mutex(&found);
                found.add(at, result, path_bytes);
            }
        };
        ReservedSearchThreads::reserve(batch.len()).run_on_each(work);
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner).files;
        found.sort_unstable_by_key(|(at, _)| *at);
        found.into_iter().map(|(at, result)| (batch[at].path.clone(), result)).collect()
    }

    fn search_file(
        &self,
        scanner: &mut FileScanner,
        path: &Path,
        room: RemainingAnswerSpace,
    ) -> SearchedFileLines {
        let (Some(matcher), Ok(file)) = (&self.query.text, self.root.open_walked(path)) else {
            return SearchedFileLines::Skipped(FileMatchOutcome::Unreadable);
        };
        let after = self.query.after.as_ref().filter(|last| last.path == path);
        collect_lines(scanner, matcher, file, after.map_or(0, |last| last.line), room, self.watch)
    }

    /// Counts the entries that the search would cover if none were ignored, and returns their
    /// number. Examines at most [`IGNORED_MAX`] entries.
    fn count_ignored(&self) -> Result<u64, ToolError> {
        let WalkStartPoint::Folder(folder) = self.root.walk_start(&self.input.path)? else {
            return Ok(0);
        };
        let filter = WalkFilter { include_ignored: true, include_hidden: self.input.hidden };
        let mut walk = TreeWalk::new(self.root, folder, filter, None, self.watch)?;
        let mut seen = 0;
        let mut count = 0;
        while seen < IGNORED_MAX
            && let Some(found) = walk.next_entry()?
        {
            seen += 1;
            let is_covered = self.query.text.is_none() || found.kind == EntryKind::File;
            count += u64::from(is_covered && self.query.matches_name(&found.path, &self.start));
        }
        Ok(count)
    }
}

/// The results of the files of a batch that were already searched.
#[derive(Default)]
struct FileBatchResults {
    files: Vec<(usize, SearchedFileLines)>,
    lines: usize,
    bytes: usize,
}

impl FileBatchResults {
    fn add(&mut self, at: usize, result: SearchedFileLines, path_bytes: usize) {
        if let SearchedFileLines::Lines(lines) = &result {
            self.lines += lines.len();
            self.bytes += lines.iter().map(|line| path_bytes + line.answer_bytes()).sum::<usize>();
        }
        self.files.push((at, result));
    }

    fn fills(&self, room: RemainingAnswerSpace) -> bool {
        room.is_filled_by(self.lines, self.bytes)
    }
}

/// The answer of a search while matches are still added.
struct PartialSearchAnswer {
    /// The number of lines and bytes that still fit into the answer.
    room: RemainingAnswerSpace,
    /// True if a match did not fit into the answer.
    full: bool,
    last: Option<LastReturnedMatch>,
    output: SearchFilesOutput,
}

impl PartialSearchAnswer {
    fn new(limit: usize, bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let room = RemainingAnswerSpace { lines: limit, bytes };
        Self { room, full: false, last: None, output: SearchFilesOutput::default() }
    }

    fn add_batch(
        &mut self,
        found: Vec<(PathBuf, SearchedFileLines)>,
        watch: &DiskWorkMonitor,
    ) -> Result<(), ToolError> {
        // A cancelled call leaves files unread; they must not count as unreadable.
        watch.check_cancelled()?;
        for (path, result) in found {
            if self.full {
                break;
            }
            self.output.searched += 1;
            match result {
                SearchedFileLines::Lines(lines) => {
                    for line in lines {
                        self.add_line(&path, line);
                    }
                }
                SearchedFileLines::Skipped(FileMatchOutcome::Searched) => {}
                SearchedFileLines::Skipped(FileMatchOutcome::Binary) => {
                    self.output.skipped.binary += 1;
                }
                SearchedFileLines::Skipped(FileMatchOutcome::Unreadable) => {
                    self.output.skipped.unreadable += 1;
                }
                SearchedFileLines::Skipped(FileMatchOutcome::TooLong) => {
                    self.output.skipped.long_lines += 1;
                }
            }
        }
        Ok(())
    }

    fn add_line(&mut self, path: &Path, line: MatchedLine) {
        let shown = path.to_string_lossy();
        if self.reserve(shown.len() + line.answer_bytes()) {
            let MatchedLine { number, column, text, before, after } = line;
            self.last = Some(LastReturnedMatch { path: path.to_owned(), line: number });
            let path = shown.into_owned();
            self.output.matches.push(FileLineMatch {
                path,
                line: number,
                column,
                text,
                before,
                after,
            });
        }
    }

    fn add_name(&mut self, found: WalkEntry) {
        let path = found.path.to_string_lossy().into_owned();
        if self.reserve(path.len() + LINE_OVERHEAD_BYTES) {
            self.output.files.push(EntryNameMatch { path, kind: found.kind });
            self.last = Some(LastReturnedMatch { path: found.path, line: 0 });
        }
    }

    /// Reserves `bytes` for a match in the answer. Returns false if they do not fit. The first
    /// match always fits.
    fn reserve(&mut self, bytes: usize) -> bool {
        let RemainingAnswerSpace { lines, bytes: left } = self.room;
        self.full |= lines == 0 || (self.last.is_some() && bytes > left);
        if self.full {
            return false;
        }
        self.room = RemainingAnswerSpace { lines: lines - 1, bytes: left.saturating_sub(bytes) };
        true
    }

    fn finish(mut self, query: &FileSearchQuery) -> SearchFilesOutput {
        self.output.truncated = self.full;
        self.output.cursor = self.last.filter(|_| self.full).map(|last| query.cursor(&last));
        self.output
    }
}
