//! What strangers wrote, for people and terminals to read: shown, and not obeyed.
//!
//! A name or a message may have escape sequences in it that a terminal acts on, marks that turn
//! the direction in which it is read, and characters that nobody sees.

use std::borrow::Cow;

/// `text` on one line, with each character that would do something else than be read as `\u{…}`.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// [`line()`], but line breaks and tabs stay.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let acts = |c: char| acts(c) && !stays(c);
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

/// Whether `c` does something else than be read.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // The direction of writing, and line breaks of another kind.
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Tags, which models read and people do not see.
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_shown() {
        assert_eq!(line("a\u{1b}]0;pwn\u{7}b"), "a\\u{1b}]0;pwn\\u{7}b");
        assert_eq!(line("a\r\n\tb\u{85}"), "a\\r\\n\\tb\\u{85}");
        assert_eq!(lines("a\r\n\tb"), "a\\r\n\tb");
        assert_eq!(
            line("x\u{202e}cod.exe\u{2066}\u{e0041}"),
            "x\\u{202e}cod.exe\\u{2066}\\u{e0041}"
        );
        for plain in ["größe", "認証", "👩\u{200d}🔬", "a \\ \"b\"", "مرحبا"] {
            assert!(matches!(line(plain), Cow::Borrowed(_)), "{plain}");
        }
    }
}
