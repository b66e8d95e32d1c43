//! Builds a page of a text search: counts the matches of all files, then reads the best files
//! again.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use grep_searcher::{Searcher, Sink, SinkContext, SinkContextKind, SinkMatch};
use toolgate_chunks::{
    ChunkKind, CodeSymbol, FileClassification, FilePurpose as FileKind, SymbolDetectionMethod,
    list_symbols,
};
use toolgate_contract::{ToolError, ToolErrorKind};

use super::count::TextMatchCounter;
use super::query::TextSearchQuery;
use super::rank::{MatchLineRole, MatchedFileSortKey, line_role};
use super::{
    EnclosingSymbol, LIMIT_MAX, MatchedTextFile, PER_FILE_DEFAULT, SearchTextInput,
    SearchTextOutput, TextMatch,
};
use crate::grep::{
    FileMatchOutcome, FileScanner, LINE_OVERHEAD_BYTES, ReservedSearchThreads, clip, find_span,
    sweep,
};
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, WalkEntry, WalkFilter, WalkStartPoint};

/// The maximum total size of shown files that are parsed, in bytes. In further files, definitions
/// are guessed line by line.
const PARSED_BYTES_MAX: u64 = 32 << 10;
/// The maximum number of matching lines in a shown file that are checked for definitions.
const ROLES_MAX: u64 = 4096;
/// The maximum number of lines of one match that are shown.
const MATCH_LINES_MAX: usize = 20;

/// Runs the text search `input` in `folder` of `root`. This folder is the searched namespace.
///
/// # Errors
/// Fails if the input is invalid or the call is canceled.
pub(super) fn search_text(
    root: &Root,
    folder: &str,
    input: &SearchTextInput,
    answer_bytes: usize,
    watch: &DiskWorkMonitor,
) -> Result<SearchTextOutput, ToolError> {
    let start = root.walk_start(if input.path == "." { folder } else { &input.path })?;
    let at = match &start {
        WalkStartPoint::Folder(start) => start.path.clone(),
        WalkStartPoint::File(start) => start.path.clone(),
    };
    check_in_namespace(root, folder, input, &at)?;
    let is_file = matches!(start, WalkStartPoint::File(_));
    let query = TextSearchQuery::parse(input, root.path(), at)?;
    let counted = count_matches(root, start, input, &query, watch)?;
    let TextMatchCounter { matches, files, remaining: left, searched, skipped, .. } = counted;
    let per_file = match input.per_file {
        _ if input.counts_only => 0,
        Some(given) => given.min(input.limit),
        None if is_file => input.limit,
        None => PER_FILE_DEFAULT.min(input.limit),
    };
    let page = TextSearchPageBuilder { root, input, query: &query, per_file, answer_bytes, watch };
    let ranked = counted.into_ranked();
    let (shown, last) = page.build(&ranked)?;
    let has_more_files = (last as u64) < left;
    let cursor = ranked[..last].last().filter(|_| has_more_files).map(|last| query.cursor(last));
    let truncated = has_more_files || shown.iter().any(|file| file.unshown_count() > 0);
    Ok(SearchTextOutput {
        files: shown,
        matches_total: matches,
        files_total: files,
        searched,
        truncated,
        cursor,
        skipped,
    })
}

/// Checks that the path `at` is in the searched namespace, whose folder is `folder`.
fn check_in_namespace(
    root: &Root,
    folder: &str,
    input: &SearchTextInput,
    at: &Path,
) -> Result<(), ToolError> {
    let Some(name) = input.namespace.as_deref().filter(|_| folder != ".") else { return Ok(()) };
    let inside = match root.walk_start(folder)? {
        WalkStartPoint::Folder(folder) => at.starts_with(&folder.path),
        WalkStartPoint::File(file) => at == file.path,
    };
    if inside {
        return Ok(());
    }
    let message = format!("it is outside the namespace `{name}`, which is the folder `{folder}`");
    Err(ToolError::invalid("/path", message))
}

/// Counts the matches of the query in all files below `start`. Fails if the call is canceled.
fn count_matches<'q>(
    root: &Root,
    start: WalkStartPoint,
    input: &SearchTextInput,
    query: &'q TextSearchQuery,
    watch: &DiskWorkMonitor,
) -> Result<TextMatchCounter<'q>, ToolError> {
    // Each file that is shown has a match, so `limit` files are enough.
    let new = || TextMatchCounter::new(query, input.limit.min(LIMIT_MAX));
    match start {
        WalkStartPoint::File(WalkEntry { path, .. }) => {
            let mut counted = new();
            match root.open_walked(&path) {
                Ok(file) => counted.count_file(&path, file, watch),
                Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
                Err(_) => counted.skipped.unreadable += 1,
            }
            watch.check_cancelled()?;
            Ok(counted)
        }
        WalkStartPoint::Folder(folder) => {
            let filter =
                WalkFilter { include_ignored: input.include_ignored, include_hidden: input.hidden };
            let covers = |path: &Path| query.covers(path);
            let progress = AtomicUsize::new(0);
            let swept = sweep(root, folder, filter, watch, covers, new, |counted, path, file| {
                counted.count_file(path, file, watch);
                let done = progress.fetch_add(1, Ordering::Relaxed) as u64 + 1;
                watch.report_progress(done, None, "files searched");
            })?;
            let counted = swept.results.into_iter().reduce(TextMatchCounter::merge);
            let mut counted = counted.unwrap_or_else(new);
            counted.skipped.unreadable += swept.unreadable;
            Ok(counted)
        }
    }
}

/// Builder of a page of a text search, with the limits and inputs of the page.
struct TextSearchPageBuilder<'p> {
    root: &'p Root,
    input: &'p SearchTextInput,
    query: &'p TextSearchQuery,
    per_file: usize,
    answer_bytes: usize,
    watch: &'p DiskWorkMonitor,
}

impl TextSearchPageBuilder<'_> {
    /// Reads the matches of the files `ranked` until the page is full. Returns the files to show,
    /// and the number of `ranked` files that the page covers. Fails if the call is canceled.
    fn build(
        &self,
        ranked: &[MatchedFileSortKey],
    ) -> Result<(Vec<MatchedTextFile>, usize), ToolError> {
        let mut room = self.input.limit;
        let fits = ranked.iter().take_while(|rank| {
            let taken = if self.input.counts_only { 1 } else { self.shown_count(rank) };
            let fits = taken <= room;
            room = room.saturating_sub(taken);
            fits
        });
        let candidates = &ranked[..fits.count()];
        let mut files = self.read_all(candidates)?;
        let mut shown = Vec::new();
        let mut last = 0;
        let mut bytes = 0;
        for at in 0..candidates.len() {
            // Files that are gone or have no match any more are skipped.
            if let Some(mut file) = files.remove(&at) {
                if shown.is_empty() {
                    file.truncate(self.answer_bytes);
                }
                bytes += file.answer_bytes();
                if !shown.is_empty() && bytes > self.answer_bytes {
                    break;
                }
                shown.push(file);
            }
            last = at + 1;
        }
        Ok((shown, last))
    }

    fn shown_count(&self, rank: &MatchedFileSortKey) -> usize {
        usize::try_from(rank.count()).unwrap_or(usize::MAX).min(self.per_file)
    }

    /// Reads the matches in the files `ranks` on several threads. Returns them by index in `ranks`.
    /// Fails if the call is canceled.
    fn read_all(
        &self,
        ranks: &[MatchedFileSortKey],
    ) -> Result<BTreeMap<usize, MatchedTextFile>, ToolError> {
        if self.input.counts_only {
            let counted = |(at, rank): (usize, &MatchedFileSortKey)| {
                (at, MatchedTextFile::new(&rank.path, rank.count(), Vec::new()))
            };
            return Ok(ranks.iter().enumerate().map(counted).collect());
        }
        let next = AtomicUsize::new(0);
        let precisions = self.choose_precisions(ranks);
        let work = || {
            let mut scanner = FileScanner::with_line_numbers(self.input.context, self.query.span);
            let mut files = Vec::new();
            while self.watch.check_cancelled().is_ok() {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(rank) = ranks.get(at) else { break };
                let file = self.read_file(&mut scanner, &rank.path, precisions[at]);
                files.extend(file.map(|file| (at, file)));
            }
            files
        };
        let read = ReservedSearchThreads::reserve(ranks.len()).run_on_each(work);
        self.watch.check_cancelled()?;
        Ok(read.into_iter().flatten().collect())
    }

    /// Decides for each file if it is parsed to find definitions, or if they are guessed. The
    /// result depends only on the files, not on the load of the machine.
    fn choose_precisions(&self, ranks: &[MatchedFileSortKey]) -> Vec<SymbolDetectionMethod> {
        let mut left = PARSED_BYTES_MAX;
        let precision = |rank: &MatchedFileSortKey| {
            let bytes = self.root.open_walked(&rank.path).map_or(0, |file| file.meta().size());
            if bytes > left {
                return SymbolDetectionMethod::LineByLine;
            }
            left -= bytes;
            SymbolDetectionMethod::Grammar
        };
        ranks.iter().map(precision).collect()
    }

    fn read_file(
        &self,
        scanner: &mut FileScanner,
        path: &Path,
        precision: SymbolDetectionMethod,
    ) -> Option<MatchedTextFile> {
        let file = self.root.open_walked(path).ok()?;
        let is_code = FileClassification::for_path(&path.to_string_lossy()).kind == FileKind::Code;
        let mut shown = ShownFileMatches::new(self.query, self.per_file, is_code);
        match scanner.scan(&self.query.matcher, file, self.watch, &mut shown) {
            FileMatchOutcome::Searched => {}
            FileMatchOutcome::Binary | FileMatchOutcome::Unreadable | FileMatchOutcome::TooLong => {
                return None;
            }
        }
        let count = shown.count;
        let mut matches = shown.select(self.per_file);
        if matches.is_empty() {
            return None;
        }
        let text = std::str::from_utf8(scanner.text()).unwrap_or_default();
        let symbols = list_symbols(&path.to_string_lossy(), text, precision);
        for found in &mut matches {
            found.symbol = innermost_symbol(&symbols, found.line).map(EnclosingSymbol::from_symbol);
        }
        Some(MatchedTextFile::new(path, count, matches))
    }
}

/// The matches of one file that will be shown, while they are collected.
struct ShownFileMatches<'q> {
    query: &'q TextSearchQuery,
    is_code: bool,
    count: u64,
    /// The first matches for each role of a line, such as a definition.
    by_role: BTreeMap<MatchLineRole, Vec<TextMatch>>,
    per_role_max: usize,
    before: Vec<String>,
    /// The role of the line with the latest match, if that match was stored.
    last_role: Option<MatchLineRole>,
}

impl<'q> ShownFileMatches<'q> {
    fn new(query: &'q TextSearchQuery, per_role_max: usize, is_code: bool) -> Self {
        let before = Vec::new();
        let by_role = BTreeMap::new();
        Self { query, is_code, count: 0, by_role, per_role_max, before, last_role: None }
    }

    /// Returns up to `limit` matches in line order. Definitions are selected first.
    fn select(self, limit: usize) -> Vec<TextMatch> {
        let mut chosen: Vec<TextMatch> = self.by_role.into_values().flatten().take(limit).collect();
        chosen.sort_by_key(|found| found.line);
        chosen
    }
}

impl Sink for ShownFileMatches<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.count += 1;
        let before = std::mem::take(&mut self.before);
        let matcher = &self.query.matcher;
        let bytes = found.bytes();
        let has_role = self.is_code && self.count <= ROLES_MAX;
        let role = if has_role { line_role(matcher, bytes) } else { MatchLineRole::Mentions };
        let matches = self.by_role.entry(role).or_default();
        self.last_role = (matches.len() < self.per_role_max).then_some(role);
        if self.last_role.is_none() {
            return Ok(true);
        }
        let line = found.line_number().unwrap_or(0);
        let lines: Vec<&[u8]> = found.lines().collect();
        let at = find_span(matcher, bytes).map_or(0, |(at, _)| at);
        let spans_lines = lines.len() > 1;
        let text = match lines[..] {
            [line] => clip(line, at),
            _ => {
                let shown = lines.iter().take(MATCH_LINES_MAX).map(|line| clip(line, 0));
                shown.collect::<Vec<_>>().join("\n")
            }
        };
        matches.push(TextMatch {
            line,
            line_end: spans_lines.then(|| line + lines.len() as u64 - 1),
            column: at as u64 + 1,
            text,
            definition: role < MatchLineRole::Mentions,
            symbol: None,
            before,
            after: Vec::new(),
        });
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let line = clip(context.bytes(), 0);
        match (context.kind(), self.last_role) {
            (SinkContextKind::After, Some(role)) => {
                let last = self.by_role.get_mut(&role).and_then(|matches| matches.last_mut());
                last.into_iter().for_each(|last| last.after.push(line.clone()));
            }
            (SinkContextKind::Before, _) => self.before.push(line),
            (SinkContextKind::After | SinkContextKind::Other, _) => {}
        }
        Ok(true)
    }
}

/// Returns the innermost definition that contains `line`, if there is one.
fn innermost_symbol(symbols: &[CodeSymbol], line: u64) -> Option<&CodeSymbol> {
    let line = u32::try_from(line).ok()?;
    let contains_line = |it: &&CodeSymbol| it.first <= line && line <= it.last;
    symbols.iter().filter(contains_line).min_by_key(|it| it.last - it.first)
}

impl MatchedTextFile {
    fn new(path: &Path, count: u64, matches: Vec<TextMatch>) -> Self {
        let path = path.to_string_lossy().into_owned();
        let class = FileClassification::for_path(&path);
        Self { lang: class.lang, tags: class.tags(), path, count, matches }
    }

    /// Returns the size that the file and its matches have in an answer, in bytes.
    fn answer_bytes(&self) -> usize {
        self.path.len()
            + LINE_OVERHEAD_BYTES
            + self.matches.iter().map(TextMatch::answer_bytes).sum::<usize>()
    }

    /// Removes the last matches of the file until they fit into `bytes`, but keeps at least one.
    fn truncate(&mut self, bytes: usize) {
        while self.matches.len() > 1 && self.answer_bytes() > bytes {
            self.matches.pop();
        }
    }
}

impl TextMatch {
    fn answer_bytes(&self) -> usize {
        let context = self.before.iter().chain(&self.after);
        2 * LINE_OVERHEAD_BYTES
            + self.text.len()
            + context.map(|line| LINE_OVERHEAD_BYTES + line.len()).sum::<usize>()
    }
}

impl EnclosingSymbol {
    fn from_symbol(symbol: &CodeSymbol) -> Self {
        let CodeSymbol { line, kind, name, within, .. } = symbol;
        let kind = match kind {
            ChunkKind::Function => "function",
            ChunkKind::Type => "type",
            ChunkKind::Code => "code",
            ChunkKind::Section => "section",
            ChunkKind::Key => "key",
            ChunkKind::Text => "text",
        };
        Self { name: name.clone(), kind, container: within.clone(), line: *line }
    }
}
