//! Fuzz target that compares an edit and its diff with a simple model.
//!
//! The input is a file and its changes, separated by the byte 0x1f. A change is `old`, the byte
//! 0x1e and `new`. A change by lines has a first and a last line (`2,3`) instead of `old`.

use super::diff;
use super::flat::BYTE_ORDER_MARK;
use super::plan::{
    EditPlan, PlannedTextChange, RequiredOccurrences, apply, plan_edit, validate_change,
};
use toolgate_world::root::DiskWorkMonitor;

/// Makes the edit that the fuzz input `bytes` describes, and applies its diff. Panics if the edited
/// text differs from the model or from the patched text.
pub(crate) fn check_edit(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let mut parts = text.split('\u{1f}');
    let file = parts.next().unwrap_or_default();
    let changes: Vec<super::FileEditChange> = parts.take(8).filter_map(parse_change).collect();
    let changes = changes.iter().enumerate().map(|(at, change)| validate_change(at, change));
    let Ok(changes) = changes.collect::<Result<Vec<_>, _>>() else { return };
    let Ok(plan) = plan_edit(file.as_bytes(), &changes, "f", u64::MAX, &DiskWorkMonitor::default())
    else {
        return;
    };
    let edited =
        String::from_utf8(apply(file.as_bytes(), &plan)).expect("a text edited with text is UTF-8");
    if let [change] = &changes[..] {
        compare_with_model(file, change, &edited);
    }
    check_patch(file, &edited, &plan);
}

/// Panics if `edited`, the result of the edit `change`, differs from that of a simple model. Does
/// nothing if the model does not cover the change.
fn compare_with_model(file: &str, change: &PlannedTextChange<'_>, edited: &str) {
    let flat = |text: &str| text.replace("\r\n", "\n");
    match change {
        PlannedTextChange::Text { old, new, times } => {
            let file = flat(file);
            let old = flat(old);
            match times {
                RequiredOccurrences::Once => assert_eq!(file.matches(&old).count(), 1),
                RequiredOccurrences::Exactly(count) => {
                    assert_eq!(file.matches(&old).count() as u64, *count);
                }
                RequiredOccurrences::Any => assert!(file.contains(&old)),
            }
            // A CR before the inserted text may merge with it into one line ending.
            if !file.contains('\r') && !new.contains('\r') {
                assert_eq!(flat(edited), replace_occurrences(&file, &old, new));
            }
        }
        PlannedTextChange::Lines { first, end, new } => {
            let plain = !file.contains('\r') && !new.contains('\r') && file.ends_with('\n');
            if plain
                && !file.as_bytes().starts_with(BYTE_ORDER_MARK)
                && (new.is_empty() || new.ends_with('\n'))
            {
                let lines: Vec<&str> = file.split_inclusive('\n').collect();
                let at = |line: u64| usize::try_from(line - 1).expect("the line exists");
                let model = lines[..at(*first)].concat() + new + &lines[at(*end)..].concat();
                assert_eq!(edited, model);
            }
        }
    }
}

/// Returns `file` with each occurrence of `old` replaced with `new`, without a second byte order
/// mark at the start.
fn replace_occurrences(file: &str, old: &str, new: &str) -> String {
    let mark_end = file.as_bytes().starts_with(BYTE_ORDER_MARK).then_some(BYTE_ORDER_MARK.len());
    let mut replaced = String::new();
    let mut at = 0;
    for (place, _) in file.match_indices(old) {
        replaced += &file[at..place];
        let is_first = mark_end == Some(place);
        replaced += if is_first { new.strip_prefix('\u{feff}').unwrap_or(new) } else { new };
        at = place + old.len();
    }
    replaced + &file[at..]
}

/// Panics unless the diff of `plan`, applied to `file`, gives `edited`.
fn check_patch(file: &str, edited: &str, plan: &EditPlan<'_>) {
    let result = diff::unified_diff(
        file.as_bytes(),
        edited.as_bytes(),
        &plan.spans,
        "f",
        1 << 20,
        &DiskWorkMonitor::default(),
    );
    let (diff, is_cut) = result.expect("the diff is never cancelled");
    if !is_cut {
        assert_eq!(apply_patch(file, &diff), edited, "{diff}");
    }
}

fn parse_change(text: &str) -> Option<super::FileEditChange> {
    let (place, new) = text.split_once('\u{1e}')?;
    let none = super::FileEditChange {
        path: None,
        old: None,
        new: new.to_owned(),
        replace_all: false,
        count: None,
        start_line: None,
        end_line: None,
    };
    let lines = place.split_once(',').and_then(|(first, last)| {
        Some((first.parse().ok()?, if last.is_empty() { None } else { Some(last.parse().ok()?) }))
    });
    if let Some((first, last)) = lines {
        return Some(super::FileEditChange { start_line: Some(first), end_line: last, ..none });
    }
    let (old, replace_all, count) = match place.as_bytes().first() {
        Some(b'*') => (&place[1..], true, None),
        Some(digit @ b'1'..=b'9') => (&place[1..], false, Some(u64::from(digit - b'0'))),
        _ => (place, false, None),
    };
    Some(super::FileEditChange { old: Some(old.to_owned()), replace_all, count, ..none })
}

/// Applies a unified diff to `old`, like the `patch` program.
pub(super) fn apply_patch(old: &str, diff: &str) -> String {
    let mut lines = old.split_inclusive('\n');
    let mut new = String::new();
    let mut at = 1;
    let mut hunks = diff.split_inclusive('\n').skip(2).peekable();
    while let Some(line) = hunks.next() {
        if let Some(header) = line.strip_prefix("@@ -") {
            let range = header.split(' ').next().unwrap_or_default();
            let (from, len) = range.split_once(',').unwrap_or((range, "1"));
            // An empty range names the line before it.
            let from = from.parse::<usize>().expect("a number") + usize::from(len == "0");
            while at < from {
                new += lines.next().expect("a line");
                at += 1;
            }
            continue;
        }
        let mut text = &line[1..];
        if hunks.peek().is_some_and(|next| next.starts_with('\\')) {
            hunks.next();
            text = text.strip_suffix('\n').expect("the marker follows a whole line");
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
