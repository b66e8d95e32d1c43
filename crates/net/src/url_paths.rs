//! Paths of URLs in host rules: patterns such as `/acme/*`, and the paths of requests that are
//! compared with them.

use std::fmt;

/// A pattern of URL paths: one path such as `/simple/index.json`, or all paths below a folder, such
/// as `/acme/*`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct UrlPathPattern {
    /// The path that the pattern matches, or the folder with its final `/` if the pattern ends with
    /// `/*`.
    start: String,
    is_folder: bool,
}

/// The path of a request, checked so that servers can differ only in how they read `%2F`, an
/// encoded `/`. A pattern therefore matches a path only if it matches both readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPath {
    /// The decoded path, with `/` for `%2F`.
    decoded: String,
    /// The decoded path, in which `%2F` stays encoded.
    with_encoded_slashes: String,
}

impl UrlPathPattern {
    /// Parses the pattern `text`, which starts with `/`.
    ///
    /// # Errors
    /// A sentence that explains why `text` is no pattern.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let odd = |why: &str| Err(why.to_owned());
        let (start, is_folder) = match text.strip_suffix('*') {
            Some(start) if start.ends_with('/') => (start, true),
            Some(_) => return odd("`*` in a path is only allowed after its last `/`"),
            None => (text, false),
        };
        if start == "/" {
            return odd("remove `/` and what follows it to allow all paths on the host");
        }
        let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && !"%*?#\\;".contains(c);
        if !start.chars().all(is_plain) {
            return odd(
                "write the path as plain text, without an encoding such as `%20` or a query",
            );
        }
        match ambiguous_segment(start) {
            Some(why) => Err(format!("its path {why}")),
            None => Ok(Self { start: start.to_owned(), is_folder }),
        }
    }

    /// Returns true if the pattern matches `path`.
    pub(crate) fn matches(&self, path: &RequestPath) -> bool {
        let is_match = |path: &str| match self.is_folder {
            true => path.starts_with(&self.start),
            false => path == self.start,
        };
        is_match(&path.decoded) && is_match(&path.with_encoded_slashes)
    }
}

impl fmt::Display for UrlPathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.start)?;
        f.write_str(if self.is_folder { "*" } else { "" })
    }
}

impl RequestPath {
    /// Parses `path`, the path of a request as the client sent it.
    ///
    /// # Errors
    /// The end of a sentence such as `its path has …`, if servers may read `path` in different
    /// ways.
    pub fn parse(path: &str) -> Result<Self, String> {
        if !path.starts_with('/') {
            return Err("does not start with `/`".to_owned());
        }
        let mut decoded = Vec::with_capacity(path.len());
        let mut with_encoded_slashes = Vec::with_capacity(path.len());
        let mut bytes = path.bytes();
        while let Some(byte) = bytes.next() {
            let byte = match byte {
                b'%' => {
                    let digits =
                        [bytes.next(), bytes.next()].map(|digit| digit.and_then(hex_value));
                    let [Some(high), Some(low)] = digits else {
                        return Err("has an invalid percent-encoding".to_owned());
                    };
                    match (high << 4) | low {
                        b'/' => {
                            decoded.push(b'/');
                            with_encoded_slashes.extend_from_slice(b"%2F");
                            continue;
                        }
                        b'%' | b'\\' => {
                            return Err("has an encoded `%` or `\\`".to_owned());
                        }
                        byte if byte.is_ascii_control() => {
                            return Err("has an encoded control character".to_owned());
                        }
                        byte => byte,
                    }
                }
                b'\\' => return Err("has a `\\`".to_owned()),
                byte if !byte.is_ascii_graphic() => {
                    return Err("has a character that must be percent-encoded".to_owned());
                }
                byte => byte,
            };
            decoded.push(byte);
            with_encoded_slashes.push(byte);
        }
        let text = |bytes| String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned());
        let decoded = text(decoded)?;
        match ambiguous_segment(&decoded) {
            Some(why) => Err(why.to_owned()),
            None => Ok(Self { decoded, with_encoded_slashes: text(with_encoded_slashes)? }),
        }
    }
}

/// Returns a description of the first segment of `path` that some servers ignore or resolve.
/// Returns `None` if there is no such segment.
fn ambiguous_segment(path: &str) -> Option<&'static str> {
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        // Some servers remove parameters such as `;x=1` from each segment.
        let name = segment.split(';').next().unwrap_or_default();
        // Some systems ignore dots and spaces at the end of a name.
        if !name.is_empty() && name.chars().all(|c| matches!(c, '.' | ' ')) {
            return Some("has a segment of dots, such as `..`");
        }
        let is_last = segments.peek().is_none();
        if name.is_empty() && !(is_last && segment.is_empty()) {
            return Some("has an empty segment, as in `//`");
        }
    }
    None
}

/// Returns the value of the hexadecimal digit `digit`.
fn hex_value(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, path: &str) -> Result<bool, String> {
        let pattern = UrlPathPattern::parse(pattern).expect("a valid pattern");
        RequestPath::parse(path).map(|path| pattern.matches(&path))
    }

    #[test]
    fn a_pattern_matches_its_path_or_the_paths_below_its_folder() {
        for (pattern, path, expected) in [
            ("/acme/*", "/acme/a", true),
            ("/acme/*", "/acme/", true),
            ("/acme/*", "/%61cme/a%20b/c", true),
            ("/acme/*", "/acme", false),
            ("/acme/*", "/acmeevil/a", false),
            ("/acme/*", "/ACME/a", false),
            ("/acme/*", "/acme;x/a", false),
            ("/acme/*", "/other/acme/a", false),
            ("/npm/*", "/npm/@scope%2fname", true),
            ("/npm/*", "/npm%2f@scope/name", false),
            ("/npm/@scope/*", "/npm/@scope%2Fname", false),
            ("/a/b.json", "/a/b.json", true),
            ("/a/b.json", "/a/b.json/", false),
            ("/a/b.json", "/a%2Fb.json", false),
            ("/köln/*", "/k%C3%B6ln/a", true),
        ] {
            assert_eq!(matches(pattern, path), Ok(expected), "{pattern} {path}");
        }
    }

    #[test]
    fn a_path_that_servers_read_in_different_ways_is_refused() {
        for (path, why) in [
            ("/acme/../other", "segment of dots"),
            ("/acme/..", "segment of dots"),
            ("/acme/./a", "segment of dots"),
            ("/acme/%2e%2e/other", "segment of dots"),
            ("/acme/.%2E/other", "segment of dots"),
            ("/acme/..%2fother", "segment of dots"),
            ("/acme/%2e%2e%2fother", "segment of dots"),
            ("/acme/..;/other", "segment of dots"),
            ("/acme/..%3bx/other", "segment of dots"),
            ("/acme/.. /other", "percent-encoded"),
            ("/acme/..%20/other", "segment of dots"),
            ("/acme/...", "segment of dots"),
            ("/acme//other", "empty segment"),
            ("//acme/a", "empty segment"),
            ("/acme/%2fother", "empty segment"),
            ("/acme/;x/other", "empty segment"),
            ("/acme\\..\\other", "`\\`"),
            ("/acme/..%5cother", "encoded `%` or `\\`"),
            ("/acme/%252e%252e/other", "encoded `%`"),
            ("/acme/%00", "control character"),
            ("/acme/%0d%0aHost:x", "control character"),
            ("/acme/%c0%ae%c0%ae/other", "not UTF-8"),
            ("/acme/%2", "invalid percent-encoding"),
            ("/acme/%zz", "invalid percent-encoding"),
            ("/acme/%+1", "invalid percent-encoding"),
            ("/acme/ä", "percent-encoded"),
            ("acme/a", "start with `/`"),
            ("*", "start with `/`"),
            ("", "start with `/`"),
        ] {
            let refusal = RequestPath::parse(path).expect_err(path);
            assert!(refusal.contains(why), "{path}: {refusal}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_refused_with_the_reason() {
        for (pattern, why) in [
            ("/", "all paths on the host"),
            ("/*", "all paths on the host"),
            ("/acme*", "after its last `/`"),
            ("/*/acme", "plain text"),
            ("/a b", "plain text"),
            ("/a%20b", "plain text"),
            ("/a?b", "plain text"),
            ("/a/../b", "segment of dots"),
            ("/a//b", "empty segment"),
            ("//*", "empty segment"),
        ] {
            let refusal = UrlPathPattern::parse(pattern).expect_err(pattern);
            assert!(refusal.contains(why), "{pattern}: {refusal}");
        }
        assert_eq!(UrlPathPattern::parse("/acme/*").expect("valid").to_string(), "/acme/*");
    }

    proptest! {
        #[test]
        fn no_accepted_path_leaves_the_folder_of_its_pattern(
            rest in "[a-z./;%0-9A-F\\\\ ]{0,16}",
        ) {
            let path = format!("/acme/{rest}");
            if matches("/acme/*", &path) == Ok(true) {
                let decoded = percent_decode(&path);
                let mut depth = 0_i32;
                for segment in decoded.split('/').skip(1) {
                    depth += if segment.split(';').next() == Some("..") { -1 } else { 1 };
                    prop_assert!(depth > 0, "{path}");
                }
            }
        }
    }

    /// Decodes percent-encoded bytes of `text` again and again until none are left, as a careless
    /// server might.
    fn percent_decode(text: &str) -> String {
        let mut text = text.to_owned();
        while let Some((at, byte)) = text.match_indices('%').find_map(|(at, _)| {
            let digits = text.get(at + 1..at + 3)?;
            Some((at, u8::from_str_radix(digits, 16).ok().filter(u8::is_ascii)?))
        }) {
            text.replace_range(at..at + 3, &char::from(byte).to_string());
        }
        text.replace('\\', "/")
    }
}
