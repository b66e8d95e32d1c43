//! Escapes untrusted text for people and terminals.
//!
//! A name or a message may contain escape sequences that a terminal executes, marks that change the
//! reading direction, and invisible characters.

use std::borrow::Cow;

/// Returns `text` on one line, with each active or invisible character escaped as `\u{…}`.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape_if(text, |_| false)
}

/// Escapes `text` like [`escape_line()`], but keeps line breaks and tabs.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape_if(text, |c| matches!(c, '\n' | '\t'))
}

fn escape_if(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let acts = |c: char| is_active(c) && !stays(c);
    if !text.contains(acts) {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' | '\t' | '\r' if acts(c) => plain.extend(c.escape_default()),
            c if acts(c) => plain.extend(c.escape_unicode()),
            c => plain.push(c),
        }
    }
    plain.into()
}

/// Returns `true` if `c` has an effect besides being displayed.
fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Directional marks and Unicode line separators.
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Tag characters, which models read and people do not see.
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape_line("a\u{1b}]0;pwn\u{7}b"), "a\\u{1b}]0;pwn\\u{7}b");
        assert_eq!(escape_line("a\r\n\tb\u{85}"), "a\\r\\n\\tb\\u{85}");
        assert_eq!(escape_lines("a\r\n\tb"), "a\\r\n\tb");
        assert_eq!(
            escape_line("x\u{202e}cod.exe\u{2066}\u{e0041}"),
            "x\\u{202e}cod.exe\\u{2066}\\u{e0041}"
        );
        for plain in ["größe", "認証", "👩\u{200d}🔬", "a \\ \"b\"", "مرحبا"] {
            assert!(matches!(escape_line(plain), Cow::Borrowed(_)), "{plain}");
        }
    }
}
