//! The byte order mark that some programs write before UTF-8 text.

/// The byte order mark, as a character.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Returns `text` without the byte order mark at its start.
pub fn strip_byte_order_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// Returns the UTF-8 text in `bytes` without the byte order mark at its start.
pub fn strip_byte_order_mark_bytes(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_mark_at_the_start_is_removed() {
        for (text, rest) in
            [("", ""), ("a", "a"), ("\u{feff}", ""), ("\u{feff}a\u{feff}", "a\u{feff}")]
        {
            assert_eq!(strip_byte_order_mark(text), rest);
            assert_eq!(strip_byte_order_mark_bytes(text.as_bytes()), rest.as_bytes());
        }
        assert_eq!(strip_byte_order_mark_bytes(b"\xef\xbb"), b"\xef\xbb");
    }
}
