//! Detects characters that are invisible or that a terminal acts on.

/// Returns true if `c` is not plain readable text. Line feeds and tabs are allowed.
pub(super) fn is_not_plain(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c,
            // Writing direction, and other line breaks.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
            // Zero width.
            | '\u{ad}' | '\u{34f}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}'
            | '\u{2060}'..='\u{2065}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            // Letters that are drawn as nothing.
            | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}'
            | '\u{1d173}'..='\u{1d17a}'
            // Tags and selectors, which models read and people do not see.
            | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the first invisible character of `text`.
///
/// A zero-width joiner between emoji is allowed.
pub(super) fn first_invisible(text: &str) -> Option<char> {
    let mut before = None;
    text.chars().find(|&c| {
        let joins = c == '\u{200d}' && before.replace(c).is_some_and(is_emoji);
        before = Some(c);
        is_not_plain(c) && c != '\r' && !joins
    })
}

fn is_emoji(c: char) -> bool {
    matches!(c, '\u{fe0f}' | '\u{2190}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}')
}

/// Returns `text` on one line, with invisible and control characters escaped as `\u{…}`.
pub fn escape_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' | '\r' => line.extend(c.escape_default()),
            c if is_not_plain(c) => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        assert_eq!(escape_line("a\u{1b}]0;x\u{7}\r\n"), "a\\u{1b}]0;x\\u{7}\\r\\n");
        assert_eq!(
            escape_line("\u{202e}\u{200b}\u{e0041}\u{feff}"),
            "\\u{202e}\\u{200b}\\u{e0041}\\u{feff}"
        );
        assert_eq!(escape_line("größe 認証 مرحبا ⚠\u{fe0f}"), "größe 認証 مرحبا ⚠\u{fe0f}");
    }

    #[test]
    fn a_joiner_is_invisible_unless_it_joins_emoji() {
        assert_eq!(first_invisible("👩\u{200d}🔬\r\n"), None);
        assert_eq!(first_invisible("ig\u{200d}nore"), Some('\u{200d}'));
    }
}
