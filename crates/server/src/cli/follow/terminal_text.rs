//! Prepares untrusted text for one line of a terminal.

use std::time::Duration;

use console::{measure_text_width, truncate_str};
use toolgate_contract::printable::is_active;

/// Longest incomplete line of program output that is kept, in bytes. A longer line is split.
const LINE_BYTES: usize = 16 << 10;
/// Width of a tab in terminal columns.
const TAB: usize = 8;

/// The incomplete last line of a program's output, whose end has not arrived yet.
#[derive(Debug, Default)]
pub(in crate::cli) struct IncompleteOutputLine(String);

impl IncompleteOutputLine {
    /// Appends `text` to the incomplete line. Calls `each` for each line that is now complete, and
    /// keeps the incomplete rest.
    pub(in crate::cli) fn take(&mut self, text: &str, mut each: impl FnMut(&str)) {
        for piece in text.split_inclusive('\n') {
            match piece.strip_suffix('\n') {
                Some(end) if self.0.is_empty() => each(end),
                Some(end) => {
                    self.0.push_str(end);
                    each(&self.0);
                    self.0.clear();
                }
                None => self.hold(piece, &mut each),
            }
        }
    }

    fn hold(&mut self, piece: &str, each: &mut impl FnMut(&str)) {
        self.0.push_str(piece);
        if self.0.len() > LINE_BYTES {
            // Text before the last carriage return was overwritten.
            if let Some(over) = self.0.trim_end_matches('\r').rfind('\r') {
                self.0.drain(..=over);
            }
        }
        if self.0.len() > LINE_BYTES {
            each(&self.0);
            self.0.clear();
        }
    }

    /// Returns the incomplete line of program output.
    pub(in crate::cli) fn text(&self) -> &str {
        &self.0
    }

    /// Drops the incomplete line of program output.
    pub(in crate::cli) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns `line` without control sequences and direction marks, and without text before a carriage
/// return, which a terminal would overwrite.
pub(in crate::cli) fn plain_line(line: &str) -> String {
    let line = line.trim_end_matches(['\r', '\n']);
    let line = line.rsplit('\r').next().unwrap_or_default();
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                Some('[') => skip_control(&mut chars),
                Some(']' | 'P' | 'X' | '^' | '_') => skip_string(&mut chars),
                Some('(' | ')' | '*' | '+' | '#' | '%' | ' ') => drop(chars.next()),
                Some(_) | None => {}
            },
            '\u{9b}' => skip_control(&mut chars),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => skip_string(&mut chars),
            '\t' => {
                let blanks = TAB - measure_text_width(&plain) % TAB;
                plain.extend(std::iter::repeat_n(' ', blanks));
            }
            '\n' => plain.push(' '),
            c if is_active(c) => {}
            c => plain.push(c),
        }
    }
    plain
}

/// Returns `text` with each line cleaned by [`plain_line`]. Line ends are kept.
pub(in crate::cli) fn plain_text(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        plain.push_str(&plain_line(line));
        if line.ends_with('\n') {
            plain.push('\n');
        }
    }
    plain
}

/// Returns true if the progress `message` repeats the start of the program's output line `raw`.
/// Some tools report the last line of a program as their progress.
pub(in crate::cli) fn repeats_line(message: &str, raw: &str) -> bool {
    let line = plain_line(raw.trim().rsplit('\r').next().unwrap_or_default());
    let message = plain_line(message);
    let message = message.trim();
    !message.is_empty() && line.trim().starts_with(message)
}

/// Skips the rest of a terminal control sequence, up to and including its final letter.
fn skip_control(chars: &mut std::str::Chars<'_>) {
    let _ = chars.find(|c| matches!(c, '\u{40}'..='\u{7e}'));
}

/// Skips the rest of a terminal control string, up to and including a bell or string terminator.
fn skip_string(chars: &mut std::str::Chars<'_>) {
    while let Some(c) = chars.next() {
        match c {
            '\u{7}' | '\u{9c}' => return,
            '\u{1b}' => {
                chars.next();
                return;
            }
            _ => {}
        }
    }
}

/// Cuts `text` to at most `columns` columns, ending with `…`.
pub(in crate::cli) fn cut_to_width(text: &str, columns: usize) -> String {
    truncate_str(text, columns, if columns > 0 { "…" } else { "" }).into_owned()
}

/// Formats a duration as a clock: `0:07` is 7 seconds, and `1:02:03` more than an hour.
pub(in crate::cli) fn format_clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let hours = seconds / 3600;
    let minutes = seconds / 60 % 60;
    let seconds = seconds % 60;
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// Formats a duration in words: `340 ms`, `1.3 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `4 d`.
pub(in crate::cli) fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let days = seconds / 86_400;
    let hours = seconds / 3600;
    let minutes = seconds / 60;
    let two = |large: u64, unit: &str, small: u64, below: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {below}"),
    };
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => two(minutes, "min", seconds % 60, "s"),
        3600..86_400 => two(hours, "h", minutes % 60, "min"),
        86_400.. => two(days, "d", hours % 24, "h"),
    }
}

/// Formats the time since an event: `just now`, `3 min ago`.
pub(in crate::cli) fn format_age(since: Duration) -> String {
    let seconds = since.as_secs();
    match seconds {
        0..3 => "just now".to_owned(),
        3..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        86_400.. => format!("{} d ago", seconds / 86_400),
    }
}

/// Formats a size: `812 B`, `1.4 kB`, `20.0 MB`.
pub(in crate::cli) fn format_size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_removed_from_a_line() {
        let lines = [
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}[2J\u{1b}[1;1Hcleared", "cleared"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}(Bset", "set"),
            ("\u{1b}creset", "reset"),
            ("\u{9b}31mshort", "short"),
            ("a\u{8}b\u{7}c\u{0}", "abc"),
            ("10 %\r20 %\r30 %", "30 %"),
            ("10 %\r20 %\r", "20 %"),
            ("a\tb", "a       b"),
            ("\u{202e}evil", "evil"),
            ("half\u{1b}[3", "half"),
            ("half\u{1b}", "half"),
        ];
        for (line, expected) in lines {
            assert_eq!(plain_line(line), expected, "{line:?}");
        }
    }

    #[test]
    fn a_text_keeps_its_lines_without_control_sequences() {
        let text = "one\r\n\u{1b}]52;c;eA==\u{7}two\n\nthree\u{202e}";
        assert_eq!(plain_text(text), "one\ntwo\n\nthree");
    }

    #[test]
    fn a_message_that_begins_the_last_line_repeats_it() {
        assert!(repeats_line("a red li", "\r a \u{1b}[31mred\u{1b}[0m line "));
        assert!(!repeats_line("linking", "compiling"));
        assert!(!repeats_line("", "compiling"));
    }

    #[test]
    fn text_is_cut_by_columns_not_by_characters() {
        let cases = [
            ("abc", 3, "abc"),
            ("abcd", 3, "ab…"),
            ("日本語", 6, "日本語"),
            ("日本語", 5, "日本…"),
            ("日本語", 4, "日…"),
            ("abc", 0, ""),
        ];
        for (text, columns, expected) in cases {
            assert_eq!(cut_to_width(text, columns), expected, "{text} {columns}");
        }
    }

    #[test]
    fn lines_are_complete_however_their_text_is_split() {
        let mut unfinished = IncompleteOutputLine::default();
        let mut lines = Vec::new();
        for text in ["a", "b\nc\n\nd", "", "e", "\n", "f"] {
            unfinished.take(text, |line| lines.push(line.to_owned()));
        }
        assert_eq!((lines.join("|").as_str(), unfinished.text()), ("ab|c||de", "f"));
    }

    #[test]
    fn an_incomplete_line_is_bounded() {
        let mut unfinished = IncompleteOutputLine::default();
        let mut bytes = 0;
        for _ in 0..100 {
            unfinished.take(&"x".repeat(1000), |line| bytes += line.len());
            assert!(unfinished.text().len() <= LINE_BYTES);
        }
        assert_eq!(bytes + unfinished.text().len(), 100_000);
        // A bar that overwrites itself is one line, whose last state counts.
        let mut unfinished = IncompleteOutputLine::default();
        for percent in 0..10_000 {
            unfinished.take(&format!("\r{percent} of 10000"), |line| panic!("{line}"));
        }
        assert_eq!(plain_line(unfinished.text()), "9999 of 10000");
    }

    #[test]
    fn times_and_sizes_are_formatted_for_people() {
        let seconds = Duration::from_secs;
        let clocks = [(7, "0:07"), (725, "12:05"), (3723, "1:02:03")];
        for (duration, expected) in clocks {
            assert_eq!(format_clock(seconds(duration)), expected);
        }
        let durations = [(12, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (345_600, "4 d")];
        for (duration, expected) in durations {
            assert_eq!(format_duration(seconds(duration)), expected);
        }
        assert_eq!(format_duration(Duration::from_millis(340)), "340 ms");
        assert_eq!(format_duration(Duration::from_millis(1340)), "1.3 s");
        let ages = [(0, "just now"), (42, "42 s ago"), (200, "3 min ago"), (90_000, "1 d ago")];
        for (duration, expected) in ages {
            assert_eq!(format_age(seconds(duration)), expected);
        }
        let sizes = [(0, "0 B"), (999, "999 B"), (1_450, "1.4 kB"), (20_000_000, "20.0 MB")];
        for (bytes, expected) in sizes {
            assert_eq!(format_size(bytes), expected);
        }
    }
}
