//! Differences between texts, line by line.

use std::time::{Duration, Instant};

use similar::DiffOp;
use similar::algorithms::{Capture, Compact, IdentifyDistinct, Replace, myers};

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
}
