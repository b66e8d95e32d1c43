//! Builds the unified diff of an edit.

use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

use memchr::{memchr, memchr_iter, memrchr};
use similar::group_diff_ops;
use similar::udiff::UnifiedHunkHeader;
use toolgate_contract::{ToolError, diff_lines, write_hunk_lines};

use super::plan::ReplacedSpan;
use toolgate_world::root::DiskWorkMonitor;

/// The time after which a comparison stops looking for a shorter diff.
const DIFF_SEARCH_TIME_MAX: Duration = Duration::from_millis(500);
/// The number of unchanged lines that a diff shows before and after a change.
const CONTEXT_LINES: usize = 3;

/// The maximum number of lines of each of two texts that are compared in one step. Each line takes
/// about 150 bytes of memory during the comparison.
const PART_LINES_MAX: usize = 100_000;
/// The minimum size to which the text for a diff is cut, in bytes. The text is only cut if the diff
/// would be far too long.
const PART_BYTES_MIN: usize = 1 << 20;

/// The byte ranges of the old and the new text that are compared in one step.
struct DiffRangePair {
    in_old: Range<usize>,
    in_new: Range<usize>,
}

/// Returns the unified diff from `old` to `new`, cut to `limit` bytes. The bool is true if the diff
/// was cut.
///
/// A diff takes many times the memory of its input, so only the text around the replaced `spans` is
/// compared.
pub(super) fn unified_diff(
    old: &[u8],
    new: &[u8],
    spans: &[ReplacedSpan<'_>],
    path: &str,
    limit: u64,
    watch: &DiskWorkMonitor,
) -> Result<(String, bool), ToolError> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (parts, mut whole) = changed_parts(old, new, spans, limit);
    let mut text = String::new();
    let mut lines = (0, 0);
    let mut counted = (0, 0);
    for DiffRangePair { in_old, in_new } in parts {
        let (same, tail) = common_ends(&old[in_old.clone()], &new[in_new.clone()]);
        let from = (in_old.start + same, in_new.start + same);
        lines.0 += memchr_iter(b'\n', &old[counted.0..from.0]).count();
        lines.1 += memchr_iter(b'\n', &new[counted.1..from.1]).count();
        counted = from;
        let old = String::from_utf8_lossy(&old[from.0..in_old.end - tail]);
        let new = String::from_utf8_lossy(&new[from.1..in_new.end - tail]);
        // `tokenize_lines` of similar would also split lines at a lone CR, which patch programs do
        // not do.
        let (old, all_old) = first_lines(&old);
        let (new, all_new) = first_lines(&new);
        whole &= all_old && all_new;
        let steps = diff_lines(&old, &new, Some(DIFF_SEARCH_TIME_MAX));
        for hunk in group_diff_ops(steps, CONTEXT_LINES) {
            watch.check_cancelled()?;
            if text.is_empty() {
                text = format!("--- a/{path}\n+++ b/{path}\n");
            }
            let header = UnifiedHunkHeader::new(&hunk).to_string();
            let _ = writeln!(text, "{}", shift_hunk_header(&header, lines));
            write_hunk_lines(&mut text, &hunk, &old, &new);
            if text.len() > limit {
                break;
            }
        }
        watch.check_cancelled()?;
        if text.len() > limit || !(all_old && all_new) {
            break;
        }
    }
    let end = text.floor_char_boundary(limit);
    let cut = end < text.len() || !whole;
    text.truncate(end);
    Ok((text, cut))
}

/// Returns the first lines of `text` that a diff compares, and true if these are all lines.
fn first_lines(text: &str) -> (Vec<&str>, bool) {
    let mut lines = text.split_inclusive('\n');
    let first: Vec<_> = lines.by_ref().take(PART_LINES_MAX).collect();
    let is_all = lines.next().is_none();
    (first, is_all)
}

/// Returns the ranges of `old` and `new` that contain changes and their context lines. The bool is
/// true if the ranges cover all changes.
///
/// Two ranges are always separated by more lines than the context lines of both.
fn changed_parts(
    old: &[u8],
    new: &[u8],
    spans: &[ReplacedSpan<'_>],
    limit: usize,
) -> (Vec<DiffRangePair>, bool) {
    let most = limit.saturating_mul(4).max(PART_BYTES_MIN);
    let mut parts = Vec::new();
    // Start of the current part, and end of the previous span.
    let mut start = (0, 0);
    let mut last = (0, 0);
    for span in spans {
        let gap = &old[last.0..span.from];
        let mut newlines = memchr_iter(b'\n', gap);
        if let (Some(end), Some(_)) = (newlines.nth(CONTEXT_LINES), newlines.nth(CONTEXT_LINES)) {
            let old_end = last.0 + end + 1;
            let new_end = last.1 + end + 1;
            parts.push(DiffRangePair { in_old: start.0..old_end, in_new: start.1..new_end });
            let (begin, _) = common_ends(gap, gap);
            start = (last.0 + begin, last.1 + begin);
        } else if span.from - start.0 > most
            && let Some(newline) = memrchr(b'\n', gap)
        {
            // If the last line is deleted, the newline before it may be deleted with it.
            let end = (last.1 + newline + 1).min(new.len());
            parts.push(DiffRangePair {
                in_old: start.0..last.0 + newline + 1,
                in_new: start.1..end,
            });
            return (parts, false);
        }
        last = (span.to, last.1 + gap.len() + span.new.len());
    }
    parts.push(DiffRangePair { in_old: start.0..old.len(), in_new: start.1..new.len() });
    (parts, true)
}

/// Returns the lengths in bytes of the equal start and the equal end of `old` and `new`. Both
/// consist of complete lines, and exclude the lines that the diff shows as context.
fn common_ends(old: &[u8], new: &[u8]) -> (usize, usize) {
    let same = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let most = old.len().min(new.len()) - same;
    let ends = old.iter().rev().zip(new.iter().rev()).take(most);
    let same_tail = ends.take_while(|(old, new)| old == new).count();
    let mut from = same;
    for _ in 0..=CONTEXT_LINES {
        let Some(newline) = memrchr(b'\n', &old[..from]) else {
            return (0, whole_line_tail(old, same_tail));
        };
        from = newline;
    }
    (from + 1, whole_line_tail(old, same_tail))
}

/// Shortens the last `len` bytes of `text` to complete lines, and removes the lines that the diff
/// shows as context. Returns the remaining length in bytes.
fn whole_line_tail(text: &[u8], len: usize) -> usize {
    let mut rest = &text[text.len() - len..];
    for _ in 0..=CONTEXT_LINES {
        let Some(newline) = memchr(b'\n', rest) else { return 0 };
        rest = &rest[newline + 1..];
    }
    rest.len()
}

/// Returns the hunk header `header` (`@@ -1,3 +1,4 @@`) with its two line numbers increased by
/// `lines`, which contains the amounts for the old and the new text.
fn shift_hunk_header(header: &str, lines: (usize, usize)) -> String {
    let parts = header.split(' ').map(|part| {
        let (sign, range, lines) = match part.split_at_checked(1) {
            Some(("-", range)) => ('-', range, lines.0),
            Some(("+", range)) => ('+', range, lines.1),
            Some(_) | None => return part.to_owned(),
        };
        let (from, len) = range.split_once(',').map_or((range, None), |(a, b)| (a, Some(b)));
        let Ok(from) = from.parse::<usize>() else { return part.to_owned() };
        let len = len.map(|len| format!(",{len}")).unwrap_or_default();
        format!("{sign}{}{len}", from + lines)
    });
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::plan::{PlannedTextChange, RequiredOccurrences, apply, plan_edit};
    use super::*;

    #[test]
    fn a_lone_cr_does_not_end_a_diff_line() {
        for (file, lines) in [
            ("a\rb\nc\r", "-a\rb\n+a\rx\n c\r\n\\ No newline at end of file\n"),
            ("a\rb", "-a\rb\n\\ No newline at end of file\n+a\rx\n\\ No newline at end of file\n"),
        ] {
            let change =
                PlannedTextChange::Text { old: "b", new: "x", times: RequiredOccurrences::Once };
            let changes = [change];
            let plan = plan_edit(file.as_bytes(), &changes, "f", 100, &DiskWorkMonitor::default())
                .unwrap();
            let new = apply(file.as_bytes(), &plan);
            let result = unified_diff(
                file.as_bytes(),
                &new,
                &plan.spans,
                "f",
                1 << 20,
                &DiskWorkMonitor::default(),
            );
            let (diff, _) = result.unwrap();
            let (_, hunk) = diff.split_once(" @@\n").unwrap();
            assert_eq!(hunk, lines);
        }
    }
}
