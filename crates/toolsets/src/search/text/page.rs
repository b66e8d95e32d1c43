//! Builds a page of a text search: counts the matches of all files, then reads the best files
//! again.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use grep_searcher::{Searcher, Sink, SinkContext, SinkContextKind, SinkMatch};
use toolgate_chunks::{Care, ChunkKind, Kind as FileKind, Sort, Symbol, symbols};
use toolgate_contract::{Fault, ToolError};

use super::count::Counted;
use super::query::Query;
use super::rank::{Rank, Role, role};
use super::{InFile, Input, LIMIT_MAX, Match, Output, PER_FILE, Within};
use crate::grep::{Crew, LINE_BYTES, Outcome, Scanner, clip, span, sweep};
use crate::world::Root;
use crate::world::root::{Found, Sight, Start, Watch};

/// The total size of shown files that are parsed, in bytes. In other files, definitions are guessed
/// line by line.
const PARSED_BYTES_MAX: u64 = 32 << 10;
/// The number of matching lines of a file whose role is determined.
const ROLES_MAX: u64 = 4096;
/// The number of lines that are shown of one match.
const MATCH_LINES_MAX: usize = 20;

/// Runs the text search `input` in `folder` of `root`, which is the searched namespace.
///
/// # Errors
///
/// If the input is invalid or the call is canceled.
pub(super) fn find(
    root: &Root,
    folder: &str,
    input: &Input,
    answer_bytes: usize,
    watch: &Watch,
) -> Result<Output, ToolError> {
    let start = root.start(if input.path == "." { folder } else { &input.path })?;
    let at = match &start {
        Start::Folder(start) => start.path.clone(),
        Start::File(start) => start.path.clone(),
    };
    beneath(root, folder, input, &at)?;
    let is_file = matches!(start, Start::File(_));
    let query = Query::of(input, root.path(), at)?;
    let counted = count(root, start, input, &query, watch)?;
    let Counted { matches, files, left, searched, skipped, .. } = counted;
    let per_file = match input.per_file {
        _ if input.counts_only => 0,
        Some(given) => given.min(input.limit),
        None if is_file => input.limit,
        None => PER_FILE.min(input.limit),
    };
    let page = Page { root, input, query: &query, per_file, answer_bytes, watch };
    let ranked = counted.ranked();
    let (shown, last) = page.read(&ranked)?;
    let has_more_files = (last as u64) < left;
    let cursor = ranked[..last].last().filter(|_| has_more_files).map(|last| query.cursor(last));
    let truncated = has_more_files || shown.iter().any(|file| file.left() > 0);
    Ok(Output {
        files: shown,
        matches_total: matches,
        files_total: files,
        searched,
        truncated,
        cursor,
        skipped,
    })
}

/// Checks that the path `at` is in the namespace.
fn beneath(root: &Root, folder: &str, input: &Input, at: &Path) -> Result<(), ToolError> {
    let Some(name) = input.namespace.as_deref().filter(|_| folder != ".") else { return Ok(()) };
    let inside = match root.start(folder)? {
        Start::Folder(folder) => at.starts_with(&folder.path),
        Start::File(file) => at == file.path,
    };
    if inside {
        return Ok(());
    }
    let message = format!("it is not in the namespace `{name}`, which is the folder `{folder}`");
    Err(ToolError::invalid("/path", message))
}

/// Counts the matches of all files.
fn count<'q>(
    root: &Root,
    start: Start,
    input: &Input,
    query: &'q Query,
    watch: &Watch,
) -> Result<Counted<'q>, ToolError> {
    // Each file that is shown has a match, so `limit` files are enough.
    let new = || Counted::new(query, input.limit.min(LIMIT_MAX));
    match start {
        Start::File(Found { path, .. }) => {
            let mut counted = new();
            match root.open_walked(&path) {
                Ok(file) => counted.take(&path, file, watch),
                Err(err) if err.fault == Fault::Canceled => return Err(err),
                Err(_) => counted.skipped.unreadable += 1,
            }
            watch.check()?;
            Ok(counted)
        }
        Start::Folder(folder) => {
            let sight = Sight { ignored: input.include_ignored, hidden: input.hidden };
            let wanted = |path: &Path| query.means(path);
            let progress = AtomicUsize::new(0);
            let swept = sweep(root, folder, sight, watch, wanted, new, |counted, path, file| {
                counted.take(path, file, watch);
                let done = progress.fetch_add(1, Ordering::Relaxed) as u64 + 1;
                watch.progress(done, None, "files searched");
            })?;
            let counted = swept.shown.into_iter().reduce(Counted::and);
            let mut counted = counted.unwrap_or_else(new);
            counted.skipped.unreadable += swept.unread;
            Ok(counted)
        }
    }
}

/// The limits and inputs of a page.
struct Page<'p> {
    root: &'p Root,
    input: &'p Input,
    query: &'p Query,
    per_file: usize,
    answer_bytes: usize,
    watch: &'p Watch,
}

impl Page<'_> {
    /// Reads the matches of the files `ranked`. Also returns how many of these files the page
    /// covers.
    fn read(&self, ranked: &[Rank]) -> Result<(Vec<InFile>, usize), ToolError> {
        let mut room = self.input.limit;
        let fits = ranked.iter().take_while(|rank| {
            let taken = if self.input.counts_only { 1 } else { self.shown_of(rank) };
            let fits = taken <= room;
            room = room.saturating_sub(taken);
            fits
        });
        let meant = &ranked[..fits.count()];
        let mut files = self.read_all(meant)?;
        let mut shown = Vec::new();
        let mut last = 0;
        let mut bytes = 0;
        for at in 0..meant.len() {
            // Files that are gone or have no match any more are skipped.
            if let Some(mut file) = files.remove(&at) {
                if shown.is_empty() {
                    file.cut(self.answer_bytes);
                }
                bytes += file.bytes();
                if !shown.is_empty() && bytes > self.answer_bytes {
                    break;
                }
                shown.push(file);
            }
            last = at + 1;
        }
        Ok((shown, last))
    }

    fn shown_of(&self, rank: &Rank) -> usize {
        usize::try_from(rank.count()).unwrap_or(usize::MAX).min(self.per_file)
    }

    /// Reads the files `meant`, on several threads.
    fn read_all(&self, meant: &[Rank]) -> Result<BTreeMap<usize, InFile>, ToolError> {
        if self.input.counts_only {
            let counted = |(at, rank): (usize, &Rank)| {
                (at, InFile::new(&rank.path, rank.count(), Vec::new()))
            };
            return Ok(meant.iter().enumerate().map(counted).collect());
        }
        let next = AtomicUsize::new(0);
        let cares = self.cares(meant);
        let work = || {
            let mut scanner = Scanner::numbering(self.input.context, self.query.reach);
            let mut files = Vec::new();
            while self.watch.check().is_ok() {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(rank) = meant.get(at) else { break };
                let file = self.read_one(&mut scanner, &rank.path, cares[at]);
                files.extend(file.map(|file| (at, file)));
            }
            files
        };
        let read = Crew::hire(meant.len()).each(work);
        self.watch.check()?;
        Ok(read.into_iter().flatten().collect())
    }

    /// Decides which files are parsed. The result depends on the files alone, not on the load of
    /// the machine.
    fn cares(&self, meant: &[Rank]) -> Vec<Care> {
        let mut left = PARSED_BYTES_MAX;
        let care = |rank: &Rank| {
            let bytes = self.root.open_walked(&rank.path).map_or(0, |file| file.meta().size());
            if bytes > left {
                return Care::Guessed;
            }
            left -= bytes;
            Care::Parsed
        };
        meant.iter().map(care).collect()
    }

    fn read_one(&self, scanner: &mut Scanner, path: &Path, care: Care) -> Option<InFile> {
        let file = self.root.open_walked(path).ok()?;
        let is_code = Sort::of(&path.to_string_lossy()).kind == FileKind::Code;
        let mut shown = Shown::new(self.query, self.per_file, is_code);
        match scanner.scan(&self.query.matcher, file, self.watch, &mut shown) {
            Outcome::Searched => {}
            Outcome::Binary | Outcome::Unreadable | Outcome::TooLong => return None,
        }
        let count = shown.count;
        let mut matches = shown.chosen(self.per_file);
        if matches.is_empty() {
            return None;
        }
        let text = std::str::from_utf8(scanner.text()).unwrap_or_default();
        let symbols = symbols(&path.to_string_lossy(), text, care);
        for found in &mut matches {
            found.symbol = innermost(&symbols, found.line).map(Within::of);
        }
        Some(InFile::new(path, count, matches))
    }
}

/// The matches to show of one file.
struct Shown<'q> {
    query: &'q Query,
    is_code: bool,
    count: u64,
    /// The first matches of each role.
    by_role: BTreeMap<Role, Vec<Match>>,
    most: usize,
    before: Vec<String>,
    /// The role of the latest match, if it was kept.
    last: Option<Role>,
}

impl<'q> Shown<'q> {
    fn new(query: &'q Query, most: usize, is_code: bool) -> Self {
        let before = Vec::new();
        let by_role = BTreeMap::new();
        Self { query, is_code, count: 0, by_role, most, before, last: None }
    }

    /// Returns up to `most` matches in line order, preferring definitions.
    fn chosen(self, most: usize) -> Vec<Match> {
        let mut chosen: Vec<Match> = self.by_role.into_values().flatten().take(most).collect();
        chosen.sort_by_key(|found| found.line);
        chosen
    }
}

impl Sink for Shown<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.count += 1;
        let before = std::mem::take(&mut self.before);
        let matcher = &self.query.matcher;
        let bytes = found.bytes();
        let is_told = self.is_code && self.count <= ROLES_MAX;
        let role = if is_told { role(matcher, bytes) } else { Role::Says };
        let kept = self.by_role.entry(role).or_default();
        self.last = (kept.len() < self.most).then_some(role);
        if self.last.is_none() {
            return Ok(true);
        }
        let line = found.line_number().unwrap_or(0);
        let lines: Vec<&[u8]> = found.lines().collect();
        let at = span(matcher, bytes).map_or(0, |(at, _)| at);
        let many = lines.len() > 1;
        let text = match lines[..] {
            [line] => clip(line, at),
            _ => {
                let shown = lines.iter().take(MATCH_LINES_MAX).map(|line| clip(line, 0));
                shown.collect::<Vec<_>>().join("\n")
            }
        };
        kept.push(Match {
            line,
            line_end: many.then(|| line + lines.len() as u64 - 1),
            column: at as u64 + 1,
            text,
            definition: role < Role::Says,
            symbol: None,
            before,
            after: Vec::new(),
        });
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, around: &SinkContext<'_>) -> io::Result<bool> {
        let line = clip(around.bytes(), 0);
        match (around.kind(), self.last) {
            (SinkContextKind::After, Some(role)) => {
                let last = self.by_role.get_mut(&role).and_then(|kept| kept.last_mut());
                last.into_iter().for_each(|last| last.after.push(line.clone()));
            }
            (SinkContextKind::Before, _) => self.before.push(line),
            (SinkContextKind::After | SinkContextKind::Other, _) => {}
        }
        Ok(true)
    }
}

/// Returns the innermost definition that contains `line`.
fn innermost(symbols: &[Symbol], line: u64) -> Option<&Symbol> {
    let line = u32::try_from(line).ok()?;
    let holds = |it: &&Symbol| it.first <= line && line <= it.last;
    symbols.iter().filter(holds).min_by_key(|it| it.last - it.first)
}

impl InFile {
    fn new(path: &Path, count: u64, matches: Vec<Match>) -> Self {
        let path = path.to_string_lossy().into_owned();
        let sort = Sort::of(&path);
        Self { lang: sort.lang, tags: sort.tags(), path, count, matches }
    }

    /// Returns the size in an answer, in bytes.
    fn bytes(&self) -> usize {
        self.path.len() + LINE_BYTES + self.matches.iter().map(Match::bytes).sum::<usize>()
    }

    /// Drops the last matches until `bytes` suffice, but keeps at least one.
    fn cut(&mut self, bytes: usize) {
        while self.matches.len() > 1 && self.bytes() > bytes {
            self.matches.pop();
        }
    }
}

impl Match {
    fn bytes(&self) -> usize {
        let around = self.before.iter().chain(&self.after);
        2 * LINE_BYTES + self.text.len() + around.map(|line| LINE_BYTES + line.len()).sum::<usize>()
    }
}

impl Within {
    fn of(symbol: &Symbol) -> Self {
        let Symbol { line, kind, name, within, .. } = symbol;
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
