//! Quotes file names as git does in its short formats.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Rules for the bytes that are escaped in addition to control characters, quotes and backslashes.
#[derive(Debug, Clone, Copy)]
pub(super) struct NameQuoting {
    /// `true` if bytes beyond ASCII are escaped (`core.quotePath`).
    pub(super) escapes_non_ascii: bool,
}

impl NameQuoting {
    /// Returns `name` as `git status --porcelain` prints it: quoted in C style if necessary. A
    /// space makes quotes necessary.
    pub(super) fn quote(self, name: &str) -> Cow<'_, str> {
        let is_plain = |byte: u8| {
            !byte.is_ascii_control()
                && !matches!(byte, b'"' | b'\\')
                && (byte < 0x80 || !self.escapes_non_ascii)
        };
        if name.bytes().all(|byte| is_plain(byte) && byte != b' ') {
            return name.into();
        }
        let mut quoted = vec![b'"'];
        for byte in name.bytes() {
            let short = match byte {
                0x07 => Some(b'a'),
                0x08 => Some(b'b'),
                b'\t' => Some(b't'),
                b'\n' => Some(b'n'),
                0x0b => Some(b'v'),
                0x0c => Some(b'f'),
                b'\r' => Some(b'r'),
                b'"' | b'\\' => Some(byte),
                _ => None,
            };
            match short {
                Some(short) => quoted.extend([b'\\', short]),
                None if is_plain(byte) => quoted.push(byte),
                None => {
                    let mut octal = String::new();
                    let _ = write!(octal, "\\{byte:03o}");
                    quoted.extend(octal.bytes());
                }
            }
        }
        quoted.push(b'"');
        String::from_utf8_lossy(&quoted).into_owned().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_only_if_necessary() {
        let quote = |name: &str, escapes_non_ascii| {
            NameQuoting { escapes_non_ascii }.quote(name).into_owned()
        };
        assert_eq!(quote("a/b-c.txt", true), "a/b-c.txt");
        assert_eq!(quote("a b", true), r#""a b""#);
        assert_eq!(quote("a\"b\\c\td\u{1}", true), r#""a\"b\\c\td\001""#);
        assert_eq!(quote("é", true), r#""\303\251""#);
        assert_eq!(quote("é x", false), r#""é x""#);
        assert_eq!(quote("é", false), "é");
    }
}
