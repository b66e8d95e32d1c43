//! Encodes program output in JSON without loss: UTF-8 as text, other bytes as base64.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Serialize;

/// Encoding of bytes in a string: base64 if they are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) enum OutputTextEncoding {
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

/// Encodes `bytes` as text if they are UTF-8, or else as base64. Returns the string and the
/// encoding.
pub(super) fn encode(bytes: Vec<u8>) -> (String, OutputTextEncoding) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, OutputTextEncoding::Utf8),
        Err(err) => (STANDARD.encode(err.as_bytes()), OutputTextEncoding::Base64),
    }
}

/// Decodes `text`, which has the encoding `encoding`, to bytes. Invalid base64 decodes to no bytes.
pub(super) fn decode(text: &str, encoding: OutputTextEncoding) -> Cow<'_, [u8]> {
    match encoding {
        OutputTextEncoding::Utf8 => text.as_bytes().into(),
        OutputTextEncoding::Base64 => STANDARD.decode(text).unwrap_or_default().into(),
    }
}

/// Returns the length of `bytes` without an incomplete UTF-8 character at the end.
pub(super) fn whole_chars_len(bytes: &[u8]) -> usize {
    let len = bytes.len();
    for back in 1..=len.min(3) {
        let needed = match bytes[len - back] {
            0x80..=0xBF => continue,
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => 1,
        };
        return if needed > back { len - back } else { len };
    }
    len
}

/// Returns the number of bytes at the start of `bytes` that continue a UTF-8 character, 0 to 3.
pub(super) fn continuation_len(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| matches!(byte, 0x80..=0xBF)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_is_cut_is_left_out() {
        let text = "aé€😀".as_bytes();
        let whole: Vec<usize> = (0..=text.len()).map(|end| whole_chars_len(&text[..end])).collect();
        assert_eq!(whole, [0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10]);
        let continued: Vec<usize> =
            (0..=text.len()).map(|from| continuation_len(&text[from..])).collect();
        assert_eq!(continued, [0, 0, 1, 0, 2, 1, 0, 3, 2, 1, 0]);
    }

    #[test]
    fn invalid_bytes_are_not_held_back_as_a_cut_character() {
        assert_eq!(whole_chars_len(b"\xff"), 1);
        assert_eq!(whole_chars_len(b"\x80\x80\x80\x80"), 4);
        assert_eq!(whole_chars_len(b"a\xc0"), 2);
    }
}
