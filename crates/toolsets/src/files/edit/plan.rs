//! Plans an edit: converts the requested changes to byte ranges and their replacements.

use std::borrow::Cow;

use memchr::memmem;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::flat::{LfNormalizedText, normalize_newlines};
use super::nearest;
use crate::counted::counted;
use toolgate_world::root::{DiskWorkMonitor, quoted_path};

/// The maximum number of replacements in one file by one call, because each takes memory.
const PLACES_MAX: usize = 1_000_000;
/// The maximum number of line numbers that an error lists if the text to replace occurs several
/// times.
const PLACES_LISTED_MAX: usize = 10;

/// A change to a file that was validated but not yet located in the file.
pub(super) enum PlannedTextChange<'c> {
    /// Replaces the text `old` with `new`, if `old` occurs as often as `times` requires.
    Text { old: &'c str, new: &'c str, times: RequiredOccurrences },
    /// Replaces the lines from `first` up to, but not including, `end` with `new`. Lines count from
    /// 1.
    Lines { first: u64, end: u64, new: &'c str },
}

/// The number of times that the text to replace must occur in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequiredOccurrences {
    Once,
    Any,
    Exactly(u64),
}

/// A byte range of the file to replace, from `from` up to but not including `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplacedSpan<'c> {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The replacement. It is borrowed from the change, unless its line endings had to be
    /// converted.
    pub(super) new: Cow<'c, [u8]>,
    /// The index of the change in the call to which this span belongs.
    pub(super) edit: usize,
}

/// The validated replacements for a file.
pub(super) struct EditPlan<'c> {
    /// The ranges of the file to replace, in order and without overlap.
    pub(super) spans: Vec<ReplacedSpan<'c>>,
    /// True if the edit deletes the last line of a file that does not end with a newline. The new
    /// last line then also loses its newline.
    drops_final_newline: bool,
}

/// Returns true if every change identifies the text to replace by content, not by line numbers.
pub(super) fn all_by_text(changes: &[PlannedTextChange<'_>]) -> bool {
    changes.iter().all(|change| match change {
        PlannedTextChange::Text { .. } => true,
        PlannedTextChange::Lines { .. } => false,
    })
}

/// Validates `change`, which has the index `at` in the call, without reading the file.
pub(super) fn validate_change(
    at: usize,
    change: &super::FileEditChange,
) -> Result<PlannedTextChange<'_>, ToolError> {
    let invalid = |field: &str, message: &str| {
        Err(ToolError::invalid(format!("/edits/{at}{field}"), message))
    };
    let super::FileEditChange { old, new, replace_all, count, start_line, end_line, path: _ } =
        change;
    match (old.as_deref(), *start_line) {
        (Some(_), Some(_)) => invalid(
            "",
            "the edit has both old and start_line; give old, or start_line and \
             end_line",
        ),
        (Some(_), None) if end_line.is_some() => invalid("/end_line", "it requires start_line"),
        (Some(""), None) => {
            invalid("/old", "it is empty; to insert, give start_line and end_line: start_line - 1")
        }
        (Some(old), None) if old == new => invalid("/new", "it is the same as old"),
        (Some(old), None) => {
            let times = match (replace_all, count) {
                (_, Some(count)) => RequiredOccurrences::Exactly(*count),
                (true, None) => RequiredOccurrences::Any,
                (false, None) => RequiredOccurrences::Once,
            };
            Ok(PlannedTextChange::Text { old, new, times })
        }
        (None, Some(_)) if *replace_all || count.is_some() => {
            invalid("", "replace_all and count require old; they do not apply to lines")
        }
        (None, Some(0)) => invalid("/start_line", "line numbers start at 1"),
        (None, Some(first)) => {
            let last = end_line.unwrap_or(first);
            if last < first - 1 {
                return invalid(
                    "/end_line",
                    "it is before start_line; to insert before start_line give start_line - 1",
                );
            }
            Ok(PlannedTextChange::Lines { first, end: last.saturating_add(1), new })
        }
        (None, None) => invalid("", "the edit has neither old nor start_line; give one of them"),
    }
}

/// Converts `changes` to replacements in the file content `bytes`. The edited file may have at most
/// `bytes_max` bytes.
///
/// # Errors
/// Fails if a text is missing or ambiguous, a line does not exist, two changes overlap, or the
/// edited file would be too large. The size is checked before the edited text takes memory.
pub(super) fn plan_edit<'c>(
    bytes: &[u8],
    changes: &'c [PlannedTextChange<'_>],
    path: &str,
    bytes_max: u64,
    watch: &DiskWorkMonitor,
) -> Result<EditPlan<'c>, ToolError> {
    let flat = LfNormalizedText::new(bytes);
    let mut budget = EditMemoryBudget::new(bytes_max, path);
    let mut spans = Vec::new();
    let mut drops_final_newline = false;
    for (edit, change) in changes.iter().enumerate() {
        watch.check_cancelled()?;
        match change {
            PlannedTextChange::Text { old, new, times } => {
                let old = normalize_newlines(old.as_bytes());
                let places = find_places(&flat, &old, *times).map_err(|why| match why {
                    OldTextMatchError::Absent => {
                        let before = &changes[..edit];
                        let message = explain_absence(&flat, &old, before, path);
                        ToolError::invalid(format!("/edits/{edit}/old"), message)
                    }
                    OldTextMatchError::Mismatch(message) => {
                        ToolError::invalid(format!("/edits/{edit}/old"), message)
                    }
                })?;
                budget.take_places(places.len(), edit)?;
                for from in places {
                    watch.check_cancelled()?;
                    let to = from + old.len();
                    let new = flat.with_original_endings(from, to, new.as_bytes());
                    budget.take_bytes(new.len())?;
                    spans.push(ReplacedSpan {
                        from: flat.file_offset(from),
                        to: flat.file_offset(to),
                        new,
                        edit,
                    });
                }
            }
            PlannedTextChange::Lines { first, end, new } => {
                let (from, to) = line_range(&flat, *first, *end, edit)?;
                drops_final_newline |= new.is_empty()
                    && from < to
                    && to == flat.text.len()
                    && flat.lacks_final_newline();
                let lines = flat.as_lines(from, to, new.as_bytes());
                let new: Cow<'_, [u8]> =
                    Cow::Owned(flat.with_original_endings(from, to, &lines).into_owned());
                budget.take_bytes(new.len())?;
                spans.push(ReplacedSpan {
                    from: flat.file_offset(from),
                    to: flat.file_offset(to),
                    new,
                    edit,
                });
            }
        }
    }
    spans.sort_by_key(|span| (span.from, span.to, span.edit));
    for pair in spans.windows(2) {
        if pair[0].to > pair[1].from {
            let first = pair[0].edit.min(pair[1].edit);
            let second = pair[0].edit.max(pair[1].edit);
            let line = flat.line_of(flat.text_offset(pair[1].from));
            let message = format!("it overlaps edit {first} at line {line}; merge the two edits");
            return Err(ToolError::invalid(format!("/edits/{second}"), message));
        }
    }
    budget.check_size(bytes.len(), &spans)?;
    Ok(EditPlan { spans, drops_final_newline })
}

/// Budget for the number and size of all replacements in one file, which limits their memory.
struct EditMemoryBudget<'p> {
    path: &'p str,
    bytes_max: u64,
    /// The total size of the replacements that were counted so far, in bytes.
    bytes: u64,
    places: usize,
}

impl<'p> EditMemoryBudget<'p> {
    fn new(bytes_max: u64, path: &'p str) -> Self {
        Self { path, bytes_max, bytes: 0, places: 0 }
    }

    /// Adds `count` replacements of the change with the index `edit` to the budget, before they
    /// take memory.
    ///
    /// # Errors
    /// Fails if the call would make too many replacements.
    fn take_places(&mut self, count: usize, edit: usize) -> Result<(), ToolError> {
        self.places += count;
        if self.places <= PLACES_MAX {
            return Ok(());
        }
        let message = format!(
            "with this edit, the call would change {} places; at most {PLACES_MAX} are allowed",
            self.places
        );
        Err(ToolError::invalid(format!("/edits/{edit}/old"), message))
    }

    /// Adds a replacement of `bytes` bytes to the budget.
    ///
    /// # Errors
    /// Fails if all replacements together exceed the maximum size of the edited file.
    fn take_bytes(&mut self, bytes: usize) -> Result<(), ToolError> {
        self.bytes += bytes as u64;
        if self.bytes <= self.bytes_max {
            return Ok(());
        }
        Err(self.too_large(&format!("more than {}", self.bytes_max)))
    }

    /// Fails if the file would be too large after the replacements `spans`. `len` is the size of
    /// the file before the edit, in bytes.
    fn check_size(&self, len: usize, spans: &[ReplacedSpan<'_>]) -> Result<(), ToolError> {
        let removed: usize = spans.iter().map(|span| span.to - span.from).sum();
        let size = (len - removed) as u64 + self.bytes;
        if size > self.bytes_max { Err(self.too_large(&size.to_string())) } else { Ok(()) }
    }

    fn too_large(&self, size: &str) -> ToolError {
        let message = format!(
            "after the edit, {} would have {size} bytes; at most {} can be edited",
            quoted_path(self.path),
            self.bytes_max
        );
        ToolError::new(ToolErrorKind::TooLarge, message)
    }
}

/// Returns the file content `bytes` with the replacements of `plan` made.
pub(super) fn apply(bytes: &[u8], plan: &EditPlan<'_>) -> Vec<u8> {
    let EditPlan { spans, drops_final_newline } = plan;
    let added: usize = spans.iter().map(|span| span.new.len()).sum();
    let mut new = Vec::with_capacity(bytes.len() + added);
    let mut at = 0;
    for span in spans {
        new.extend_from_slice(&bytes[at..span.from]);
        new.extend_from_slice(&span.new);
        at = span.to;
    }
    new.extend_from_slice(&bytes[at..]);
    if *drops_final_newline && new.ends_with(b"\n") {
        let end = if new.ends_with(b"\r\n") { 2 } else { 1 };
        new.truncate(new.len() - end);
    }
    new
}

/// The reason why a text to replace does not match the file.
enum OldTextMatchError {
    Absent,
    Mismatch(String),
}

/// Returns the byte offsets of `old` in `flat`. Fails if `old` does not occur as often as `times`
/// requires.
fn find_places(
    flat: &LfNormalizedText<'_>,
    old: &[u8],
    times: RequiredOccurrences,
) -> Result<Vec<usize>, OldTextMatchError> {
    let find = memmem::Finder::new(old);
    let Some(first) = find.find(&flat.text) else { return Err(OldTextMatchError::Absent) };
    match times {
        // One place beyond the limit is enough to refuse the change.
        RequiredOccurrences::Any => Ok(find.find_iter(&flat.text).take(PLACES_MAX + 1).collect()),
        RequiredOccurrences::Exactly(count) => {
            let total = find.find_iter(&flat.text).count();
            let places = find.find_iter(&flat.text);
            if total as u64 == count {
                Ok(places.take(PLACES_MAX + 1).collect())
            } else {
                let listed: Vec<usize> = places.take(PLACES_LISTED_MAX).collect();
                Err(miscount_error(flat, &listed, total, count))
            }
        }
        // The search starts one byte later, to find overlapping occurrences, too.
        RequiredOccurrences::Once => match find.find(&flat.text[first + 1..]) {
            None => Ok(vec![first]),
            Some(_) => Err(ambiguity_error(flat, &find)),
        },
    }
}

fn miscount_error(
    flat: &LfNormalizedText<'_>,
    listed: &[usize],
    total: usize,
    count: u64,
) -> OldTextMatchError {
    let lines = listed.iter().map(|&at| flat.line_of(at).to_string());
    let lines = lines.collect::<Vec<_>>().join(", ");
    let more = if total > listed.len() { " …" } else { "" };
    OldTextMatchError::Mismatch(match total {
        1 => format!("it occurs once (line {lines}), but count is {count}"),
        times => format!("it occurs {times} times (lines {lines}{more}), but count is {count}"),
    })
}

fn ambiguity_error(flat: &LfNormalizedText<'_>, find: &memmem::Finder<'_>) -> OldTextMatchError {
    let count = find.find_iter(&flat.text).count();
    let mut lines = Vec::new();
    let mut from = 0;
    while let Some(at) = find.find(&flat.text[from..])
        && lines.len() < PLACES_LISTED_MAX
    {
        lines.push(flat.line_of(from + at).to_string());
        from += at + 1;
    }
    let (count, more) = (count.max(lines.len()), if count > lines.len() { " …" } else { "" });
    let lines = lines.join(", ");
    let times = if count == 1 { "once, at line" } else { "times, at lines" };
    let count = if count == 1 { String::new() } else { format!("{count} ") };
    OldTextMatchError::Mismatch(format!(
        "it occurs {count}{times} {lines}{more}; include more surrounding text to name one, or set \
         replace_all, or set count to the number of occurrences you expect"
    ))
}

fn explain_absence(
    flat: &LfNormalizedText<'_>,
    old: &[u8],
    before: &[PlannedTextChange<'_>],
    path: &str,
) -> String {
    let inserting = before.iter().position(|change| match change {
        PlannedTextChange::Text { new, .. } | PlannedTextChange::Lines { new, .. } => {
            memmem::find(&normalize_newlines(new.as_bytes()), old).is_some()
        }
    });
    if let Some(inserting) = inserting {
        return format!(
            "it is not in {}, only in the text that edit {inserting} inserts; edits apply to the \
             current file, so merge the two edits",
            quoted_path(path)
        );
    }
    nearest::explain_missing(flat, old, path)
}

/// Returns the byte range in `flat` of the lines from `first` up to, but not including, `end`.
/// `edit` is the index of the change, for the error if a line does not exist.
fn line_range(
    flat: &LfNormalizedText<'_>,
    first: u64,
    end: u64,
    edit: usize,
) -> Result<(usize, usize), ToolError> {
    let total = flat.line_count();
    let (field, line) =
        if first > total + 1 { ("start_line", first) } else { ("end_line", end - 1) };
    if first > total + 1 || end > total + 1 {
        let total = counted(total, "line", "lines");
        let message = format!("there is no line {line}; the file has {total}");
        return Err(ToolError::invalid(format!("/edits/{edit}/{field}"), message));
    }
    Ok((flat.line_start(first), flat.line_start(end)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::diff;
    use super::super::fuzzing::apply_patch;
    use super::*;

    /// Pattern that generates files with few different letters and every line ending, so that all
    /// cases occur.
    const FILE: &str = "(a|b|\t| |é|\n|\r\n){0,30}";
    /// The maximum size of an edited file in the tests, in bytes.
    const BYTES_MAX: u64 = 1 << 20;

    fn edited(file: &str, changes: &[PlannedTextChange<'_>]) -> Result<Vec<u8>, String> {
        let plan = plan_edit(file.as_bytes(), changes, "f", BYTES_MAX, &DiskWorkMonitor::default());
        Ok(apply(file.as_bytes(), &plan.map_err(|err| err.message)?))
    }

    fn flat(text: &str) -> String {
        text.replace("\r\n", "\n")
    }

    /// Returns `file` with the lines from `first` up to, but not including, `end` replaced with
    /// `new`.
    fn by_lines(file: &str, first: usize, end: usize, new: &str) -> String {
        let lines: Vec<&str> = file.split_inclusive('\n').collect();
        lines[..first - 1].concat() + new + &lines[end - 1..].concat()
    }

    proptest! {
        #[test]
        fn replacing_every_occurrence_gives_the_result_of_the_standard_library(file in FILE, old in "(a|b|\n){1,3}", new in "(a|c|\n){0,4}") {
            prop_assume!(old != new);
            let change = PlannedTextChange::Text { old: &old, new: &new, times: RequiredOccurrences::Any };
            match edited(&file, &[change]) {
                Ok(edited) => {
                    let edited = String::from_utf8(edited).unwrap();
                    prop_assert_eq!(flat(&edited), flat(&file).replace(&old, &new));
                }
                Err(_) => prop_assert!(!flat(&file).contains(&old)),
            }
        }

        #[test]
        fn a_file_with_one_kind_of_ending_keeps_it(lines in prop::collection::vec("[ab]{0,3}", 1..8), crlf: bool, old in "(a|b|\n){1,3}", new in "(a|c|\n|\r\n){0,4}") {
            let ending = if crlf { "\r\n" } else { "\n" };
            let file = lines.join(ending) + ending;
            let change = PlannedTextChange::Text { old: &old, new: &new, times: RequiredOccurrences::Any };
            if let Ok(edited) = edited(&file, &[change]) {
                let edited = String::from_utf8(edited).unwrap();
                prop_assert_eq!(edited.matches(ending).count(), edited.matches('\n').count());
                prop_assert!(crlf || !edited.contains('\r'));
            }
        }

        #[test]
        fn bytes_around_the_replaced_text_stay_unchanged(before in FILE, after in FILE, new in "(a|c|\n){0,4}") {
            let file = format!("{before}<old>{after}");
            let change = PlannedTextChange::Text { old: "<old>", new: &new, times: RequiredOccurrences::Once };
            let edited = edited(&file, &[change]).unwrap();
            prop_assert!(edited.starts_with(before.as_bytes()) && edited.ends_with(after.as_bytes()));
        }

        #[test]
        fn replacing_lines_gives_the_result_of_splitting_and_joining(file in "(a|b|\n){1,20}\n", first in 1_usize..8, len in 0_usize..4, new in "((a|c){1,3}\n){0,3}") {
            let total = file.split_inclusive('\n').count();
            prop_assume!(first + len <= total + 1);
            let change = PlannedTextChange::Lines { first: first as u64, end: (first + len) as u64, new: &new };
            let edited = edited(&file, &[change]).unwrap();
            prop_assert_eq!(String::from_utf8(edited).unwrap(), by_lines(&file, first, first + len, &new));
        }

        #[test]
        fn a_missing_text_gets_an_explanation(file in FILE, old in "(a|b|’|'| |\t|\n|é){1,12}") {
            let change = PlannedTextChange::Text { old: &old, new: "x", times: RequiredOccurrences::Once };
            if let Err(message) = edited(&file, &[change]) {
                prop_assert!(!message.is_empty());
            }
        }

        #[test]
        fn applying_the_diff_of_an_edit_gives_the_edited_file(file in "((a|b|c){1,2}\n|d\n){0,80}[ab]{0,1}", new in "(x|y\n){0,2}", lines in prop::collection::btree_set(1_u64..60, 0..5)) {
            let by_text = PlannedTextChange::Text { old: "d\n", new: &new, times: RequiredOccurrences::Any };
            let total = file.split_inclusive('\n').count() as u64;
            let by_line = |&first: &u64| PlannedTextChange::Lines { first, end: first + 1, new: &new };
            let by_lines: Vec<_> = lines.iter().filter(|line| **line <= total).map(by_line).collect();
            for changes in [vec![by_text], by_lines] {
                let Ok(plan) = plan_edit(file.as_bytes(), &changes, "f", BYTES_MAX, &DiskWorkMonitor::default()) else { continue };
                let new = apply(file.as_bytes(), &plan);
                let (diff, cut) = diff::unified_diff(file.as_bytes(), &new, &plan.spans, "f", 1 << 20, &DiskWorkMonitor::default()).unwrap();
                prop_assert!(!cut);
                prop_assert_eq!(apply_patch(&file, &diff), String::from_utf8(new).unwrap());
            }
        }

        #[test]
        fn applying_the_diff_to_the_old_file_gives_the_new_one(old in "((a|b|c){0,2}\n){0,30}[ab]{0,1}", new in "((a|b|c){0,2}\n){0,30}[ab]{0,1}") {
            let all = ReplacedSpan { from: 0, to: old.len(), new: new.clone().into_bytes().into(), edit: 0 };
            let (diff, cut) = diff::unified_diff(old.as_bytes(), new.as_bytes(), &[all], "f", 1 << 20, &DiskWorkMonitor::default()).unwrap();
            prop_assert!(!cut);
            prop_assert_eq!(apply_patch(&old, &diff), new);
        }
    }

    #[test]
    fn an_edit_whose_result_is_too_large_is_refused_before_it_takes_memory() {
        let new = "y".repeat(1 << 20);
        let lines = "x\n".repeat(1 << 19);
        let newlines = "z\r\n".repeat(1 << 10);
        for (file, old, new, problem) in [
            (&"x".repeat(5000), "x", &new, "more than 1048576 bytes"),
            (&"x\r\n".repeat(5000), "x", &newlines, "more than 1048576 bytes"),
            (&"x".repeat(PLACES_MAX + 1), "x", &"yy".to_owned(), "at most 1000000"),
            (&lines, "x", &"yy".to_owned(), "have 1572864 bytes"),
        ] {
            let all = PlannedTextChange::Text { old, new, times: RequiredOccurrences::Any };
            let why = edited(file, &[all]).unwrap_err();
            assert!(why.contains(problem), "{why}");
        }
        let longer = PlannedTextChange::Lines { first: 1, end: 1, new: &lines };
        assert!(edited(&lines, &[longer]).unwrap_err().contains("have 2097152 bytes"));
    }
}
