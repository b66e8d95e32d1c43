//! Quotes file names as git does in its short formats.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns `name` as `git status --porcelain` prints it without `core.quotePath`. Quotes it in C
/// style if it contains a space, a control character, a quote or a backslash.
pub(super) fn quote_name(name: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| !byte.is_ascii_control() && !matches!(byte, b'"' | b'\\');
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_only_if_necessary() {
        for (name, expected) in [
            ("a/b-c.txt", "a/b-c.txt"),
            ("a b", r#""a b""#),
            ("a\"b\\c\td\u{1}", r#""a\"b\\c\td\001""#),
            ("é x", r#""é x""#),
            ("é", "é"),
        ] {
            assert_eq!(quote_name(name), expected);
        }
    }
}
