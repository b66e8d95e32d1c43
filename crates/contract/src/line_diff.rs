//! Differences between texts, line by line.

use std::fmt::Write;
use std::time::{Duration, Instant};

use similar::algorithms::{Capture, Compact, IdentifyDistinct, Replace, myers};
use similar::udiff::UnifiedHunkHeader;
use similar::{DiffOp, group_diff_ops};

/// Returns the operations that turn the lines `old` into the lines `new`, from the first line to the
/// last. The search uses the algorithm of Myers, with shortcuts for very different texts. After the
/// time `time_max`, the search stops early, and the result may contain more changes.
///
/// Each crate that calls the generic functions of similar compiles them again, and `TextDiff` brings
/// all algorithms. So the crates share this function.
pub fn diff_lines(old: &[&str], new: &[&str], time_max: Option<Duration>) -> Vec<DiffOp> {
    let deadline = time_max.map(|time| Instant::now() + time);
    let lines = IdentifyDistinct::<u32>::new(old, 0..old.len(), new, 0..new.len());
    let old = lines.old_lookup();
    let new = lines.new_lookup();
    let mut steps = Compact::new(Replace::new(Capture::new()), old, new);
    myers::diff_deadline(&mut steps, old, lines.old_range(), new, lines.new_range(), deadline)
        .expect("capturing cannot fail");
    steps.into_inner().into_inner().into_ops()
}

/// Returns the unified diff from the text `old` to the text `new`, without the names of files. Only
/// LF ends a line. Each change has up to `context_lines` unchanged lines before and after it. Returns
/// an empty text if both texts are equal.
pub fn unified_diff(old: &str, new: &str, context_lines: usize) -> String {
    let [old, new] = [old, new].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let mut text = String::new();
    for hunk in group_diff_ops(diff_lines(&old, &new, None), context_lines) {
        _ = writeln!(text, "{}", UnifiedHunkHeader::new(&hunk));
        write_hunk_lines(&mut text, &hunk, &old, &new);
    }
    text
}

/// Appends the lines of `hunk` to `text`, in the format of a unified diff. `hunk` consists of steps
/// from the lines `old` to the lines `new`.
pub fn write_hunk_lines(text: &mut String, hunk: &[DiffOp], old: &[&str], new: &[&str]) {
    for change in hunk.iter().flat_map(|step| step.iter_changes(old, new)) {
        let tag = change.tag();
        let line = change.value();
        _ = write!(text, "{tag}{line}");
        if !line.ends_with('\n') {
            *text += "\n\\ No newline at end of file\n";
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_new_text_replace_those_of_the_old_one() {
        for time in [None, Some(Duration::ZERO)] {
            let steps = diff_lines(&["a\n", "b\n"], &["a\n", "c\n"], time);
            let replaced = DiffOp::Replace { old_index: 1, old_len: 1, new_index: 1, new_len: 1 };
            assert_eq!(steps, [DiffOp::Equal { old_index: 0, new_index: 0, len: 1 }, replaced]);
        }
    }

    #[test]
    fn a_unified_diff_has_hunks_with_context_and_marks_a_missing_newline() {
        let diff = unified_diff("a\nb\nc\nd\n", "a\nb\nc\nx", 1);
        assert_eq!(diff, "@@ -3,2 +3,2 @@\n c\n-d\n+x\n\\ No newline at end of file\n");
        assert_eq!(unified_diff("a\n", "a\n", 3), "");
    }
}
