//! Reads a program's progress from its output.

use grep_matcher::{Captures, Matcher};
use grep_regex::{RegexCaptures, RegexMatcher};

/// Parser that reads progress from a program's output. The regular expression has one group (a
/// percentage) or two groups (done and total).
pub(crate) struct OutputProgressParser<'m> {
    pattern: &'m RegexMatcher,
    captures: RegexCaptures,
    /// The fraction of the program's work that is done (0 to 1), as last read. The value never
    /// decreases.
    share: f64,
}

impl<'m> OutputProgressParser<'m> {
    /// Creates a parser that reads progress from the capture groups of `pattern`. Returns `None` if
    /// the matcher does not support capture groups. If the pattern has no groups, the parser never
    /// finds progress.
    pub(crate) fn new(pattern: &'m RegexMatcher) -> Option<Self> {
        let captures = pattern.new_captures().ok()?;
        Some(Self { pattern, captures, share: -1.0 })
    }

    /// Returns the done and total amounts from the last line of `text` that contains them. Returns
    /// `None` unless the done fraction has increased since the last read.
    pub(crate) fn read(&mut self, text: &str) -> Option<(f64, f64)> {
        let (done, total) =
            text.rsplit(['\n', '\r']).find_map(|line| self.last_match(line.as_bytes()))?;
        let is_valid = total > 0.0 && (0.0..=total).contains(&done);
        if !is_valid || done / total <= self.share {
            return None;
        }
        self.share = done / total;
        Some((done, total))
    }

    /// Returns the done and total amounts from the last match of the pattern in `line`.
    fn last_match(&mut self, line: &[u8]) -> Option<(f64, f64)> {
        let mut last = None;
        let number = |captures: &RegexCaptures, group| {
            let found = captures.get(group)?;
            std::str::from_utf8(&line[found]).ok()?.trim().parse::<f64>().ok()
        };
        let _ = self.pattern.captures_iter(line, &mut self.captures, |captures| {
            if let Some(done) = number(captures, 1) {
                last = Some((done, number(captures, 2).unwrap_or(100.0)));
            }
            true
        });
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, texts: &[&str]) -> Vec<Option<(f64, f64)>> {
        let pattern = RegexMatcher::new(pattern).unwrap();
        let mut meter = OutputProgressParser::new(&pattern).unwrap();
        texts.iter().map(|text| meter.read(text)).collect()
    }

    #[test]
    fn progress_is_the_last_match_and_never_decreases() {
        let read = check(r"(\d+)%", &["1% 5%\n", "a\rb 7%\rc", "3%", "", "100%", "200%"]);
        let percent = |done| Some((done, 100.0));
        assert_eq!(read, [percent(5.0), percent(7.0), None, None, percent(100.0), None]);
    }

    #[test]
    fn two_groups_are_done_and_total() {
        let read =
            check(r"frame (\d+) of (\d+)", &["frame 1 of 8", "frame 2 of 8", "frame 1 of 0"]);
        assert_eq!(read, [Some((1.0, 8.0)), Some((2.0, 8.0)), None]);
    }
}
