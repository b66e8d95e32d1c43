//! Detects the encoding of a file, for all tools that read, search or edit text.

use std::fmt;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use memchr::{memchr, memchr_iter, memmem, memrchr_iter};

/// The maximum number of bytes at the start of a file from which its encoding is guessed.
const GUESSED_BYTES_MAX: usize = 64 << 10;
/// The escape sequences of 7-bit encodings that switch from ASCII to other characters, each with
/// the encoding's name.
const SHIFTS: [(&[u8], &str); 4] = [
    (b"\x1b$@", "ISO-2022-JP"),
    (b"\x1b$B", "ISO-2022-JP"),
    (b"\x1b$(", "ISO-2022-JP"),
    (b"\x1b$)", "ISO-2022-KR"),
];

/// The first code point after Latin, Greek, Cyrillic, Hebrew, Arabic, the scripts of India, and
/// their punctuation.
const LOW_SCRIPTS_END: char = '\u{2070}';
/// The first code point after the Unicode planes that contain almost all assigned characters.
const ASSIGNED_END: char = '\u{40000}';

/// The encoding of a text file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextEncoding {
    /// UTF-8, with or without a byte order mark.
    Utf8,
    /// UTF-16, with or without a byte order mark.
    Utf16(ByteOrder),
    /// UTF-32, with or without a byte order mark.
    Utf32(ByteOrder),
    /// A superset of ASCII that is not Unicode, with the name of the most likely encoding.
    Legacy(&'static str),
    /// Bytes that are not text in UTF-8, UTF-16, UTF-32 or a superset of ASCII.
    Binary,
}

/// The order of the bytes in a UTF-16 or UTF-32 code unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Little,
    Big,
}

impl TextEncoding {
    /// Returns the encoding of a file with the content `bytes`.
    pub(crate) fn detect(bytes: &[u8]) -> Self {
        if let Some(order) = utf32_mark(bytes) {
            return Self::Utf32(order);
        }
        if let Some(order) = ByteOrder::detect(bytes) {
            return Self::Utf16(order);
        }
        if let Some(order) = unmarked_utf32(bytes) {
            return Self::Utf32(order);
        }
        let is_utf8 = str::from_utf8(bytes).is_ok();
        let has_control = || bytes.iter().any(|byte| is_control(*byte));
        if memchr(0, bytes).is_some() || (!is_utf8 && has_control()) {
            Self::Binary
        } else if !is_utf8 {
            Self::Legacy(guess_legacy(bytes))
        } else {
            seven_bit_name(bytes).map_or(Self::Utf8, Self::Legacy)
        }
    }
}

impl fmt::Display for TextEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Utf8 => f.write_str("UTF-8"),
            Self::Utf16(order) => f.write_str(order.utf16_name()),
            Self::Utf32(ByteOrder::Little) => f.write_str("UTF-32LE"),
            Self::Utf32(ByteOrder::Big) => f.write_str("UTF-32BE"),
            Self::Legacy(name) => write!(f, "perhaps {name}"),
            Self::Binary => f.write_str("binary"),
        }
    }
}

impl ByteOrder {
    /// Returns the byte order of a UTF-16 file that begins with `head`. Returns `None` if the file
    /// is not UTF-16.
    ///
    /// A file without a byte order mark is UTF-16 if it contains no characters that are unusual in
    /// text, and if at least half of it is ASCII or all of it is in scripts such as Latin, Greek or
    /// Cyrillic.
    pub(crate) fn detect(head: &[u8]) -> Option<Self> {
        match head {
            [0xff, 0xfe, 0, 0, ..] => None,
            [0xff, 0xfe, ..] => Some(Self::Little),
            [0xfe, 0xff, ..] => Some(Self::Big),
            _ if memchr(0, head).is_none() => None,
            _ => [Self::Little, Self::Big].into_iter().find(|order| order.is_likely(head)),
        }
    }

    /// Returns the name of the UTF-16 encoding with this byte order.
    pub(crate) fn utf16_name(self) -> &'static str {
        match self {
            Self::Little => "UTF-16LE",
            Self::Big => "UTF-16BE",
        }
    }

    /// Converts `bytes` from UTF-16 with this byte order to text.
    ///
    /// # Errors
    /// Returns the offset of the first byte that is not part of a character.
    pub(crate) fn decode(self, bytes: &[u8]) -> Result<String, usize> {
        let mut text = String::with_capacity(bytes.len());
        for decoded in char::decode_utf16(self.units(bytes)) {
            // All characters before the invalid unit are valid.
            let Ok(character) = decoded else { return Err(2 * text.encode_utf16().count()) };
            text.push(character);
        }
        if bytes.len() % 2 == 1 { Err(bytes.len() - 1) } else { Ok(text) }
    }

    /// Converts `text` to UTF-16 with this byte order.
    pub(crate) fn encode(self, text: &str) -> Vec<u8> {
        let to_bytes = match self {
            Self::Little => u16::to_le_bytes,
            Self::Big => u16::to_be_bytes,
        };
        text.encode_utf16().flat_map(to_bytes).collect()
    }

    /// Returns true if `bytes` begin with the second half of a UTF-16 surrogate pair.
    pub(crate) fn begins_inside_char(self, bytes: &[u8]) -> bool {
        self.units(bytes).next().is_some_and(|unit| matches!(unit, 0xdc00..=0xdfff))
    }

    /// Returns the length of `bytes` without an incomplete UTF-16 character at the end.
    pub(crate) fn whole_chars_len(self, bytes: &[u8]) -> usize {
        let even = bytes.len() - bytes.len() % 2;
        let last = self.units(&bytes[even.saturating_sub(2)..even]).next();
        if last.is_some_and(|unit| matches!(unit, 0xd800..=0xdbff)) { even - 2 } else { even }
    }

    fn units(self, bytes: &[u8]) -> impl Iterator<Item = u16> {
        let (pairs, _) = bytes.as_chunks::<2>();
        pairs.iter().map(move |pair| match self {
            Self::Little => u16::from_le_bytes(*pair),
            Self::Big => u16::from_be_bytes(*pair),
        })
    }

    /// Returns true if `head`, decoded as UTF-16 with this byte order, looks like text. `head` has
    /// no byte order mark, and may end within a character.
    fn is_likely(self, head: &[u8]) -> bool {
        let mut units = 0;
        let mut ascii = 0;
        let mut low = 0;
        for decoded in char::decode_utf16(self.units(&head[..self.whole_chars_len(head)])) {
            let Ok(character) = decoded else { return false };
            if u8::try_from(character).is_ok_and(is_control) {
                return false;
            }
            units += 1;
            ascii += usize::from(character.is_ascii());
            low += usize::from(character < LOW_SCRIPTS_END);
        }
        head.len().is_multiple_of(2) && ascii > 0 && (2 * ascii >= units || low == units)
    }

    /// Returns the UTF-32 code unit in `bytes`, which are in this byte order.
    fn utf32_unit(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// Finder of the line ends in a file. The encoding is UTF-16 with this byte order, or an encoding
/// in which a line end is one byte.
///
/// All methods expect bytes that begin with a complete character.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineEndScanner(pub(crate) Option<ByteOrder>);

impl LineEndScanner {
    /// Returns the number of line ends in `bytes`.
    pub(crate) fn count(self, bytes: &[u8]) -> u64 {
        let count = match self.0 {
            None => memchr_iter(b'\n', bytes).count(),
            Some(_) => self.find_all(bytes).count(),
        };
        count as u64
    }

    /// Returns the offset after line end number `nth` (from 0) in `bytes`. Returns `None` if there
    /// are fewer line ends.
    pub(crate) fn nth(self, bytes: &[u8], nth: usize) -> Option<usize> {
        self.find_all(bytes).nth(nth)
    }

    /// Returns the offset after the last line end in `bytes`. Returns `None` if there is no line
    /// end.
    pub(crate) fn last(self, bytes: &[u8]) -> Option<usize> {
        self.find_all_reverse(bytes).next()
    }

    /// Returns true if `bytes` are empty or end with a line end.
    pub(crate) fn is_at_line_start(self, bytes: &[u8]) -> bool {
        bytes.is_empty()
            || self.last(&bytes[bytes.len().saturating_sub(2)..]) == Some(bytes.len().min(2))
    }

    /// Returns the offsets after all line ends in `bytes`, in reverse order.
    pub(crate) fn find_all_reverse(self, bytes: &[u8]) -> impl Iterator<Item = usize> {
        memrchr_iter(b'\n', bytes).filter_map(move |at| self.end(bytes, at))
    }

    fn find_all(self, bytes: &[u8]) -> impl Iterator<Item = usize> {
        memchr_iter(b'\n', bytes).filter_map(move |at| self.end(bytes, at))
    }

    /// Returns the offset after the line end to which the byte at offset `at` belongs. Returns
    /// `None` if the byte belongs to another character.
    fn end(self, bytes: &[u8], at: usize) -> Option<usize> {
        match self.0 {
            None => Some(at + 1),
            Some(ByteOrder::Little) => {
                (at.is_multiple_of(2) && bytes.get(at + 1) == Some(&0)).then_some(at + 2)
            }
            Some(ByteOrder::Big) => (at % 2 == 1 && bytes[at - 1] == 0).then_some(at + 1),
        }
    }
}

fn utf32_mark(bytes: &[u8]) -> Option<ByteOrder> {
    match bytes {
        [0xff, 0xfe, 0, 0, ..] => Some(ByteOrder::Little),
        [0, 0, 0xfe, 0xff, ..] => Some(ByteOrder::Big),
        _ => None,
    }
}

/// Returns the byte order of `bytes` if they are UTF-32 text without a byte order mark.
fn unmarked_utf32(bytes: &[u8]) -> Option<ByteOrder> {
    let (units, []) = bytes.as_chunks::<4>() else { return None };
    let is_text = |unit: u32| {
        char::from_u32(unit)
            .is_some_and(|it| it < ASSIGNED_END && !u8::try_from(it).is_ok_and(is_control))
    };
    let mut orders = [ByteOrder::Little, ByteOrder::Big].into_iter();
    let order = orders.find(|order| units.iter().all(|unit| is_text(order.utf32_unit(*unit))));
    order.filter(|_| !units.is_empty())
}

/// Returns true if `byte` is a control character that does not occur in text.
fn is_control(byte: u8) -> bool {
    matches!(byte, 0..=6 | 0x0e..=0x19 | 0x1c..=0x1f | 0x7f)
}

/// Returns the name of the most likely encoding of `bytes`, which are not UTF-8.
fn guess_legacy(bytes: &[u8]) -> &'static str {
    let start = bytes.iter().position(|byte| !byte.is_ascii()).unwrap_or(0);
    let end = bytes.len().min(start + GUESSED_BYTES_MAX);
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(&bytes[..end], end == bytes.len());
    detector.guess(None, Utf8Detection::Deny).name()
}

/// Returns the name of the 7-bit encoding of `bytes`, if `bytes` contain one of its escape
/// sequences.
pub(crate) fn seven_bit_name(bytes: &[u8]) -> Option<&'static str> {
    memchr(b'\x1b', bytes).filter(|_| bytes.is_ascii())?;
    let found = SHIFTS.iter().find(|(shift, _)| memmem::find(bytes, shift).is_some());
    found.map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_encoding_is_detected_from_marks_and_content() {
        use ByteOrder::{Big, Little};
        use TextEncoding::{Binary, Legacy, Utf8, Utf16, Utf32};
        let unmarked = |order: ByteOrder| order.encode("key = \u{e9}\r\n");
        let cyrillic = "\u{43c}\u{438}\u{440} \u{2014} \u{434}\u{43e}\u{43c}\n";
        let wide = |to_bytes: fn(u32) -> [u8; 4]| -> Vec<u8> {
            "ab\u{e9}\n".chars().flat_map(|c| to_bytes(u32::from(c))).collect()
        };
        for (bytes, expected) in [
            (&b""[..], Utf8),
            (b"plain\x1b[1m\n", Utf8),
            ("\u{feff}gr\u{fc}n".as_bytes(), Utf8),
            (&Little.encode("\u{feff}\u{4e2d}"), Utf16(Little)),
            (&Big.encode("\u{feff}\u{4e2d}"), Utf16(Big)),
            (&unmarked(Little), Utf16(Little)),
            (&unmarked(Big), Utf16(Big)),
            (&Little.encode(cyrillic), Utf16(Little)),
            (&Big.encode(cyrillic), Utf16(Big)),
            (&Little.encode("a\n"), Utf16(Little)),
            (&wide(u32::to_le_bytes), Utf32(Little)),
            (&wide(u32::to_be_bytes), Utf32(Big)),
            (b"\0\xd8", Binary),
            (b"\0\0\0\0", Binary),
            ("one\0gr\u{fc}n\0two\0".as_bytes(), Binary),
            (b"\xff\xfe\0\0a\0\0\0", Utf32(Little)),
            (b"\0\0\xfe\xff\0\0\0a", Utf32(Big)),
            (b"a\0b", Binary),
            (b"\x7fELF\x02\x01\x01\0\0\0", Binary),
            (b"\x89PNG\r\n\x1a\n\x05", Binary),
            (b"Stra\xdfe und Gr\xf6\xdfe\n", Legacy("windows-1252")),
            (b"\x83e\x83X\x83g\x82\xcc\x93\xfa\x96{\x8c\xea\n", Legacy("Shift_JIS")),
            (b"\xd5\xe2\xca\xc7\xd2\xbb\xb8\xf6\xd6\xd0\xce\xc4\xce\xc4\xbc\xfe\n", Legacy("GBK")),
            (b"\x1b$B4A;z\x1b(B\n", Legacy("ISO-2022-JP")),
        ] {
            assert_eq!(TextEncoding::detect(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn the_position_of_an_invalid_utf_16_unit_is_returned() {
        let lone = |tail: &[u8]| [b"a\0\x3d\xd8\0\xde".as_slice(), tail].concat();
        for (bytes, expected) in [
            (lone(b""), Ok("a\u{1f600}".to_owned())),
            (lone(b"b"), Err(6)),
            (lone(b"\x3d\xd8"), Err(6)),
            (lone(b"\0\xdeb\0"), Err(6)),
            (lone(b"b\0\x3d\xd8c\0"), Err(8)),
        ] {
            assert_eq!(ByteOrder::Little.decode(&bytes), expected, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn lines_of_utf_16_end_where_its_text_has_newlines(text in "(a|\u{a0a}|\u{10a}|\u{a00}|\n|\u{1f600}){0,20}", big: bool) {
            let order = if big { ByteOrder::Big } else { ByteOrder::Little };
            let bytes = order.encode(&text);
            let lines = LineEndScanner(Some(order));
            let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| order.encode(&text[..=at]).len()).collect();
            prop_assert_eq!(lines.count(&bytes), ends.len() as u64);
            prop_assert_eq!(lines.nth(&bytes, 0), ends.first().copied());
            prop_assert_eq!(lines.last(&bytes), ends.last().copied());
            prop_assert_eq!(lines.is_at_line_start(&bytes), text.is_empty() || text.ends_with('\n'));
            prop_assert_eq!(order.decode(&bytes), Ok(text));
        }
    }
}
