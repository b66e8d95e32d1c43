//! Escapes untrusted text for people, terminals and models.
//!
//! A name or a message may contain escape sequences that a terminal executes, marks that change the
//! reading direction, and characters that a model reads and nobody sees.

use std::borrow::Cow;

use serde_json::Value;

/// Returns `text` on one line. Escapes each character that is invisible, or that has an effect
/// besides being displayed, such as a change of the reading direction, as `\u{…}`.
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

/// Escapes `text` like [`escape_line()`], and escapes characters without a visible form, too, even
/// where they join emoji.
pub fn escape_hidden(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' | '\r' => line.extend(c.escape_default()),
            c if is_hidden(c) => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    line
}

/// Returns the first `chars_max` characters of `text`, followed by `…` if any are missing.
pub fn shorten(text: &str, chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Returns the first character of `text` that has no visible form or has an effect besides being
/// displayed, such as a change of the reading direction, and its byte offset.
///
/// Line breaks, tabs, and a zero-width joiner between emoji are allowed.
pub fn find_hidden(text: &str) -> Option<(usize, char)> {
    let mut before = None;
    text.char_indices().find(|&(_, c)| {
        let is_joiner = c == '\u{200d}' && before.is_some_and(is_emoji);
        before = Some(c);
        is_hidden(c) && !matches!(c, '\n' | '\t' | '\r') && !is_joiner
    })
}

/// Checks that `text` has at most `bytes_max` bytes, and no character without a visible form or
/// with an effect besides being displayed, such as a change of the reading direction.
///
/// # Errors
///
/// Returns the end of a sentence, such as "has the hidden character U+202E at byte 12".
pub fn check_visible(text: &str, bytes_max: usize) -> Result<(), String> {
    if text.len() > bytes_max {
        return Err(format!("has {} bytes, and the limit is {bytes_max}", text.len()));
    }
    match find_hidden(text) {
        Some((at, c)) => {
            Err(format!("has the hidden character U+{:04X} at byte {at}", u32::from(c)))
        }
        None => Ok(()),
    }
}

/// Returns all object keys and strings in the JSON `value`.
pub fn json_texts(value: &Value) -> Vec<&str> {
    let mut texts = Vec::new();
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) => texts.push(text.as_str()),
            Value::Array(items) => left.extend(items),
            Value::Object(members) => {
                texts.extend(members.keys().map(String::as_str));
                left.extend(members.values());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    texts
}

fn is_emoji(c: char) -> bool {
    matches!(c, '\u{fe0f}' | '\u{2190}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}')
}

/// Returns true if `c` has no visible form, or has an effect besides being displayed, such as a
/// change of the reading direction. Variation selectors, which follow many emoji, are visible.
pub fn is_hidden(c: char) -> bool {
    is_active(c)
        || matches!(c,
            // Zero width.
            '\u{ad}' | '\u{34f}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            // Letters without a form.
            | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{2800}' | '\u{3164}'
            | '\u{ffa0}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}')
}

/// Returns true if `c` is a control character, or has another effect besides being displayed, such
/// as a change of the reading direction.
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Directional marks and Unicode line separators.
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Tags and selectors, which models read and people do not see.
            | '\u{e0000}'..='\u{e0fff}')
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

    #[test]
    fn control_and_invisible_characters_are_escaped_without_exception() {
        assert_eq!(escape_hidden("a\u{1b}]0;x\u{7}\r\n"), "a\\u{1b}]0;x\\u{7}\\r\\n");
        assert_eq!(
            escape_hidden("\u{202e}\u{200b}\u{e0041}\u{feff}"),
            "\\u{202e}\\u{200b}\\u{e0041}\\u{feff}"
        );
        assert_eq!(escape_hidden("größe 認証 مرحبا ⚠\u{fe0f}"), "größe 認証 مرحبا ⚠\u{fe0f}");
    }

    #[test]
    fn a_joiner_is_hidden_unless_it_joins_emoji() {
        assert_eq!(find_hidden("👩\u{200d}🔬\r\n"), None);
        assert_eq!(find_hidden("ig\u{200d}nore"), Some((2, '\u{200d}')));
        assert_eq!(find_hidden("é\u{200b}"), Some((2, '\u{200b}')));
    }

    #[test]
    fn a_text_that_is_too_long_or_has_a_hidden_character_is_refused_with_the_reason() {
        assert_eq!(check_visible("é\r\n\tb", 6), Ok(()));
        assert_eq!(check_visible("éb", 2), Err("has 3 bytes, and the limit is 2".to_owned()));
        for (text, fault) in [
            ("é\u{200b}", "has the hidden character U+200B at byte 2"),
            ("\u{1b}[2J", "has the hidden character U+001B at byte 0"),
            ("Adds.\u{e0041}", "has the hidden character U+E0041 at byte 5"),
        ] {
            assert_eq!(check_visible(text, 100), Err(fault.to_owned()));
        }
    }
}
