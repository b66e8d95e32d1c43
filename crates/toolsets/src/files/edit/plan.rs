//! Plans an edit: resolves the requested changes to byte ranges and replacements.

use memchr::memmem;
use toolgate_contract::ToolError;

use super::flat::{Flat, flattened};
use super::nearest;
use crate::world::root::{Watch, shown};

/// Most line numbers listed for an ambiguous text.
const PLACES_TOLD: usize = 10;

/// A validated change.
pub(super) enum Change<'c> {
    /// Replaces the text `old` as often as `times` requires.
    Text { old: &'c str, new: &'c str, times: Times },
    /// Replaces the lines from `first` up to `end`.
    Lines { first: u64, end: u64, new: &'c str },
}

/// Required number of occurrences of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Times {
    Once,
    Any,
    Just(u64),
}

/// Bytes of the file to replace, from `from` up to `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) new: Vec<u8>,
    /// Index of the change that this span belongs to.
    edit: usize,
}

/// Validated replacements for a file.
pub(super) struct Plan {
    /// Spans to replace, in order and without overlap.
    pub(super) spans: Vec<Span>,
    /// Set if a last line without a newline is deleted; the line before then loses its newline,
    /// too.
    unends: bool,
}

/// Returns true if every change names its place by text.
pub(super) fn are_by_text(changes: &[Change<'_>]) -> bool {
    changes.iter().all(|change| match change {
        Change::Text { .. } => true,
        Change::Lines { .. } => false,
    })
}

/// Validates `changes`.
pub(super) fn read(changes: &[super::Change]) -> Result<Vec<Change<'_>>, ToolError> {
    changes.iter().enumerate().map(|(at, change)| read_one(at, change)).collect()
}

fn read_one(at: usize, change: &super::Change) -> Result<Change<'_>, ToolError> {
    let invalid = |field: &str, message: &str| {
        Err(ToolError::invalid(format!("/edits/{at}{field}"), message))
    };
    let super::Change { old, new, replace_all, count, start_line, end_line } = change;
    match (old.as_deref(), *start_line) {
        (Some(_), Some(_)) => {
            invalid("", "it names both a text and lines; give old, or start_line and end_line")
        }
        (Some(_), None) if end_line.is_some() => invalid("/end_line", "there is no start_line"),
        (Some(""), None) => {
            invalid("/old", "it is empty; to insert, give start_line and end_line: start_line - 1")
        }
        (Some(old), None) if old == new => invalid("/new", "it is the same as old"),
        (Some(old), None) => {
            let times = match (replace_all, count) {
                (_, Some(count)) => Times::Just(*count),
                (true, None) => Times::Any,
                (false, None) => Times::Once,
            };
            Ok(Change::Text { old, new, times })
        }
        (None, Some(_)) if *replace_all || count.is_some() => {
            invalid("", "replace_all and count go with old, not with lines")
        }
        (None, Some(0)) => invalid("/start_line", "lines count from 1"),
        (None, Some(first)) => {
            let last = end_line.unwrap_or(first);
            if last < first - 1 {
                return invalid(
                    "/end_line",
                    "it is before start_line; to insert before start_line give start_line - 1",
                );
            }
            Ok(Change::Lines { first, end: last.saturating_add(1), new })
        }
        (None, None) => invalid("", "it names no place; give old, or start_line and end_line"),
    }
}

/// Resolves `changes` to spans of the file `bytes`.
///
/// # Errors
///
/// Fails if a text is missing or ambiguous, a line does not exist, or two changes overlap.
pub(super) fn plan(
    bytes: &[u8],
    changes: &[Change<'_>],
    path: &str,
    watch: &Watch,
) -> Result<Plan, ToolError> {
    let flat = Flat::of(bytes);
    let mut spans = Vec::new();
    let mut unends = false;
    for (edit, change) in changes.iter().enumerate() {
        watch.check()?;
        match change {
            Change::Text { old, new, times } => {
                let old = flattened(old.as_bytes());
                let places = places(&flat, &old, *times).map_err(|why| match why {
                    Why::Absent => {
                        let before = &changes[..edit];
                        let message = absent(&flat, &old, before, path);
                        ToolError::invalid(format!("/edits/{edit}/old"), message)
                    }
                    Why::Told(message) => ToolError::invalid(format!("/edits/{edit}/old"), message),
                })?;
                for from in places {
                    watch.check()?;
                    let to = from + old.len();
                    let new = flat.ended(from, to, new.as_bytes());
                    spans.push(Span { from: flat.real(from), to: flat.real(to), new, edit });
                }
            }
            Change::Lines { first, end, new } => {
                let (from, to) = lines(&flat, *first, *end, edit)?;
                unends |= new.is_empty() && from < to && to == flat.text.len() && flat.is_unended();
                let new = flat.ended(from, to, &flat.as_lines(from, to, new.as_bytes()));
                spans.push(Span { from: flat.real(from), to: flat.real(to), new, edit });
            }
        }
    }
    spans.sort_by_key(|span| (span.from, span.to, span.edit));
    for pair in spans.windows(2) {
        if pair[0].to > pair[1].from {
            let first = pair[0].edit.min(pair[1].edit);
            let second = pair[0].edit.max(pair[1].edit);
            let line = flat.line_of(flat.flat(pair[1].from));
            let message = format!("it overlaps edit {first} at line {line}; make them one edit");
            return Err(ToolError::invalid(format!("/edits/{second}"), message));
        }
    }
    Ok(Plan { spans, unends })
}

/// Returns the file `bytes` with `plan` applied.
pub(super) fn apply(bytes: &[u8], plan: &Plan) -> Vec<u8> {
    let Plan { spans, unends } = plan;
    let added: usize = spans.iter().map(|span| span.new.len()).sum();
    let mut new = Vec::with_capacity(bytes.len() + added);
    let mut at = 0;
    for span in spans {
        new.extend_from_slice(&bytes[at..span.from]);
        new.extend_from_slice(&span.new);
        at = span.to;
    }
    new.extend_from_slice(&bytes[at..]);
    if *unends && new.ends_with(b"\n") {
        let end = if new.ends_with(b"\r\n") { 2 } else { 1 };
        new.truncate(new.len() - end);
    }
    new
}

enum Why {
    Absent,
    Told(String),
}

/// Returns the positions of `old` in the flat text.
fn places(flat: &Flat<'_>, old: &[u8], times: Times) -> Result<Vec<usize>, Why> {
    let find = memmem::Finder::new(old);
    let Some(first) = find.find(&flat.text) else { return Err(Why::Absent) };
    match times {
        Times::Any => Ok(find.find_iter(&flat.text).collect()),
        Times::Just(count) => {
            let places: Vec<usize> = find.find_iter(&flat.text).collect();
            if places.len() as u64 == count {
                Ok(places)
            } else {
                Err(miscounted(flat, &places, count))
            }
        }
        // The search starts one byte later, to find overlapping occurrences, too.
        Times::Once => match find.find(&flat.text[first + 1..]) {
            None => Ok(vec![first]),
            Some(_) => Err(ambiguous(flat, &find)),
        },
    }
}

fn miscounted(flat: &Flat<'_>, places: &[usize], count: u64) -> Why {
    let told = places.iter().take(PLACES_TOLD).map(|&at| flat.line_of(at).to_string());
    let lines = told.collect::<Vec<_>>().join(", ");
    let more = places.len() > PLACES_TOLD;
    let more = if more { " …" } else { "" };
    Why::Told(match places.len() {
        1 => format!("it occurs once (line {lines}), not {count} times as count says"),
        times => {
            format!("it occurs {times} times (lines {lines}{more}), not {count} as count says")
        }
    })
}

fn ambiguous(flat: &Flat<'_>, find: &memmem::Finder<'_>) -> Why {
    let count = find.find_iter(&flat.text).count();
    let mut lines = Vec::new();
    let mut from = 0;
    while let Some(at) = find.find(&flat.text[from..])
        && lines.len() < PLACES_TOLD
    {
        lines.push(flat.line_of(from + at).to_string());
        from += at + 1;
    }
    let (count, more) = (count.max(lines.len()), if count > lines.len() { " …" } else { "" });
    let lines = lines.join(", ");
    let times = if count == 1 { "once, at line" } else { "times, at lines" };
    let count = if count == 1 { String::new() } else { format!("{count} ") };
    Why::Told(format!(
        "it occurs {count}{times} {lines}{more}; give more of the text around the one that is meant, or \
         set replace_all, or count to how often it is meant to occur"
    ))
}

fn absent(flat: &Flat<'_>, old: &[u8], before: &[Change<'_>], path: &str) -> String {
    let made = before.iter().position(|change| match change {
        Change::Text { new, .. } | Change::Lines { new, .. } => {
            memmem::find(&flattened(new.as_bytes()), old).is_some()
        }
    });
    if let Some(made) = made {
        return format!(
            "it is not in {}, only in what edit {made} puts there; edits refer to the file as it is now, so \
             make the two one",
            shown(path)
        );
    }
    nearest::explain(flat, old, path)
}

/// Returns the range of the lines from `first` up to `end`, in the flat text.
fn lines(flat: &Flat<'_>, first: u64, end: u64, edit: usize) -> Result<(usize, usize), ToolError> {
    let total = flat.lines();
    let (field, line) =
        if first > total + 1 { ("start_line", first) } else { ("end_line", end - 1) };
    if first > total + 1 || end > total + 1 {
        let message = format!("there is no line {line}; the file has {total} lines");
        return Err(ToolError::invalid(format!("/edits/{edit}/{field}"), message));
    }
    Ok((flat.start_of(first), flat.start_of(end)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::diff;
    use super::*;

    /// Texts of few letters and every kind of line ending, so that all cases come up.
    const FILE: &str = "(a|b|\t| |é|\n|\r\n){0,30}";

    fn edited(file: &str, changes: &[Change<'_>]) -> Result<Vec<u8>, String> {
        let plan = plan(file.as_bytes(), changes, "f", &Watch::default());
        Ok(apply(file.as_bytes(), &plan.map_err(|err| err.message)?))
    }

    fn flat(text: &str) -> String {
        text.replace("\r\n", "\n")
    }

    /// What is left of `file` when the lines numbered `first` to before `end` are put by `new`.
    fn by_lines(file: &str, first: usize, end: usize, new: &str) -> String {
        let lines: Vec<&str> = file.split_inclusive('\n').collect();
        lines[..first - 1].concat() + new + &lines[end - 1..].concat()
    }

    proptest! {
        #[test]
        fn replacing_all_of_a_text_is_what_the_standard_library_does(file in FILE, old in "(a|b|\n){1,3}", new in "(a|c|\n){0,4}") {
            prop_assume!(old != new);
            let change = Change::Text { old: &old, new: &new, times: Times::Any };
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
            let change = Change::Text { old: &old, new: &new, times: Times::Any };
            if let Ok(edited) = edited(&file, &[change]) {
                let edited = String::from_utf8(edited).unwrap();
                prop_assert_eq!(edited.matches(ending).count(), edited.matches('\n').count());
                prop_assert!(crlf || !edited.contains('\r'));
            }
        }

        #[test]
        fn what_is_not_named_stays_byte_for_byte(before in FILE, after in FILE, new in "(a|c|\n){0,4}") {
            // A file that ends in half a line ending is not what this is about.
            let file = format!("{before}<old>{after}");
            let change = Change::Text { old: "<old>", new: &new, times: Times::Once };
            let edited = edited(&file, &[change]).unwrap();
            prop_assert!(edited.starts_with(before.as_bytes()) && edited.ends_with(after.as_bytes()));
        }

        #[test]
        fn replacing_lines_is_what_splitting_and_joining_does(file in "(a|b|\n){1,20}\n", first in 1_usize..8, len in 0_usize..4, new in "((a|c){1,3}\n){0,3}") {
            let total = file.split_inclusive('\n').count();
            prop_assume!(first + len <= total + 1);
            let change = Change::Lines { first: first as u64, end: (first + len) as u64, new: &new };
            let edited = edited(&file, &[change]).unwrap();
            prop_assert_eq!(String::from_utf8(edited).unwrap(), by_lines(&file, first, first + len, &new));
        }

        #[test]
        fn a_text_that_is_missing_is_explained_without_failing(file in FILE, old in "(a|b|’|'| |\t|\n|é){1,12}") {
            let change = Change::Text { old: &old, new: "x", times: Times::Once };
            if let Err(message) = edited(&file, &[change]) {
                prop_assert!(!message.is_empty());
            }
        }

        #[test]
        fn applying_the_diff_of_an_edit_gives_the_edited_file(file in "((a|b|c){1,2}\n|d\n){0,80}[ab]{0,1}", new in "(x|y\n){0,2}", lines in prop::collection::btree_set(1_u64..60, 0..5)) {
            let by_text = Change::Text { old: "d\n", new: &new, times: Times::Any };
            let total = file.split_inclusive('\n').count() as u64;
            let by_line = |&first: &u64| Change::Lines { first, end: first + 1, new: &new };
            let by_lines: Vec<_> = lines.iter().filter(|line| **line <= total).map(by_line).collect();
            for changes in [vec![by_text], by_lines] {
                let Ok(plan) = plan(file.as_bytes(), &changes, "f", &Watch::default()) else { continue };
                let new = apply(file.as_bytes(), &plan);
                let (diff, cut) = diff::unified(file.as_bytes(), &new, &plan.spans, "f", 1 << 20, &Watch::default()).unwrap();
                prop_assert!(!cut);
                prop_assert_eq!(patched(&file, &diff), String::from_utf8(new).unwrap());
            }
        }

        #[test]
        fn applying_the_diff_to_the_old_file_gives_the_new_one(old in "((a|b|c){0,2}\n){0,30}[ab]{0,1}", new in "((a|b|c){0,2}\n){0,30}[ab]{0,1}") {
            let all = Span { from: 0, to: old.len(), new: new.clone().into(), edit: 0 };
            let (diff, cut) = diff::unified(old.as_bytes(), new.as_bytes(), &[all], "f", 1 << 20, &Watch::default()).unwrap();
            prop_assert!(!cut);
            prop_assert_eq!(patched(&old, &diff), new);
        }
    }

    /// `old` with a unified diff applied, the way patch does.
    fn patched(old: &str, diff: &str) -> String {
        let mut lines = old.split_inclusive('\n');
        let mut new = String::new();
        let mut at = 1;
        let mut hunks = diff.split_inclusive('\n').skip(2).peekable();
        while let Some(line) = hunks.next() {
            if let Some(header) = line.strip_prefix("@@ -") {
                let range = header.split(' ').next().unwrap();
                let (from, len) = range.split_once(',').unwrap_or((range, "1"));
                // An empty range names the line before it.
                let from = from.parse::<usize>().unwrap() + usize::from(len == "0");
                while at < from {
                    new += lines.next().unwrap();
                    at += 1;
                }
                continue;
            }
            let mut text = &line[1..];
            if hunks.peek().is_some_and(|next| next.starts_with('\\')) {
                hunks.next();
                text = text.strip_suffix('\n').unwrap();
            }
            if !line.starts_with('+') {
                assert_eq!(lines.next(), Some(text));
                at += 1;
            }
            if !line.starts_with('-') {
                new += text;
            }
        }
        new + &lines.collect::<String>()
    }
}
