//! Parses a line of a `.gitignore` file as git does, and converts its pattern to a glob.
//!
//! The crate globset reads some patterns differently: braces, brackets, and asterisks beside other
//! characters.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::str::Chars;

/// A rule of an ignore file, such as `*.o`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IgnoreRule {
    /// The glob in globset's syntax, for paths relative to the directory of the file.
    pub(super) glob: String,
    /// True if the rule starts with `!`, so that a matching entry is not ignored.
    pub(super) negated: bool,
    /// True if the rule applies only to directories.
    pub(super) dirs_only: bool,
}

impl IgnoreRule {
    /// Parses a `line` of an ignore file. Returns `None` if it has no effect.
    pub(super) fn parse(line: &str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let line = trim_spaces(line.strip_suffix('\r').unwrap_or(line));
        let (negated, pattern) = strip(line, line.strip_prefix('!'));
        let (dirs_only, pattern) = strip(pattern, pattern.strip_suffix('/'));
        let is_name = !pattern.contains('/');
        let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
        if pattern.is_empty() {
            return None;
        }
        let mut glob = if is_name { "**/".to_owned() } else { String::new() };
        push_pattern(&mut glob, pattern, is_name)?;
        Some(Self { glob, negated, dirs_only })
    }

    /// Returns true if matching this rule takes more than an exact comparison of names.
    pub(super) fn has_wildcards(&self) -> bool {
        let name = self.glob.strip_prefix("**/").unwrap_or(&self.glob);
        name.strip_prefix("*.").unwrap_or(name).contains(['*', '?', '[', '{'])
    }
}

/// Returns true and the text in `stripped`, or false and `text` if `stripped` is `None`. `stripped`
/// is the result of removing a prefix or suffix from `text`.
fn strip<'t>(text: &'t str, stripped: Option<&'t str>) -> (bool, &'t str) {
    (stripped.is_some(), stripped.unwrap_or(text))
}

/// Removes the spaces at the end of `line`, but no other whitespace, and no space after a
/// backslash.
fn trim_spaces(line: &str) -> &str {
    let mut end = 0;
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            ' ' => {}
            '\\' => {
                // A backslash at the end keeps all the text before it.
                let Some((at, escaped)) = chars.next() else { return line };
                end = at + escaped.len_utf8();
            }
            c => end = at + c.len_utf8(),
        }
    }
    &line[..end]
}

/// Appends the `pattern` of an ignore rule to `glob`. `is_name` is true if the pattern is compared
/// with names instead of paths. Returns `None` if the pattern matches nothing.
fn push_pattern(glob: &mut String, pattern: &str, is_name: bool) -> Option<()> {
    let start = glob.len();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match c {
            '*' => {
                let after = rest.as_str().trim_start_matches('*');
                let is_run = after.len() < rest.as_str().len();
                let is_component = (glob.len() == start || glob.ends_with('/'))
                    && (after.is_empty() || after.starts_with('/'));
                glob.push_str(if is_run && is_component && !is_name { "**" } else { "*" });
                rest = after.chars();
            }
            '?' => glob.push('?'),
            '[' => {
                let (class, after) = GlobCharacterClass::parse(rest.as_str())?;
                class.push_to(glob)?;
                rest = after.chars();
            }
            '\\' => push_literal(glob, rest.next()?),
            c => push_literal(glob, c),
        }
    }
    Some(())
}

fn push_literal(glob: &mut String, c: char) {
    if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | ',' | '\\') {
        glob.push('\\');
    }
    glob.push(c);
}

/// A set of characters in brackets in an ignore rule, such as `[a-z]`.
#[derive(Debug, Default)]
struct GlobCharacterClass {
    negated: bool,
    /// ASCII characters of the class.
    ascii: BTreeSet<char>,
    /// Characters of the class that are not ASCII, and their ranges, as written in the pattern.
    /// Their bytes are matched one by one.
    others: String,
}

impl GlobCharacterClass {
    /// Parses a class of characters whose `[` was already read. Returns the class and the text
    /// after it. Returns `None` if the class is malformed, because git then matches nothing.
    fn parse(text: &str) -> Option<(Self, &str)> {
        let (negated, text) = strip(text, text.strip_prefix(['!', '^']));
        let mut class = Self { negated, ..Self::default() };
        let mut rest = text.chars();
        // The start of a range, if a `-` follows.
        let mut before = None;
        let mut c = rest.next()?;
        loop {
            let named = rest.as_str().strip_prefix(':').filter(|_| c == '[');
            match (c, before) {
                ('-', Some(first)) if !rest.as_str().starts_with(']') => {
                    let last = rest.next()?;
                    class.add_range(first..=unescaped(last, &mut rest)?);
                    before = None;
                }
                ('[', _) if named.is_some_and(is_class_name) => {
                    let (name, after) = named?.split_once(":]")?;
                    class.add_named(name)?;
                    rest = after.chars();
                    before = None;
                }
                (c, _) => {
                    let c = unescaped(c, &mut rest)?;
                    class.add_range(c..=c);
                    before = Some(c);
                }
            }
            c = rest.next()?;
            if c == ']' {
                return Some((class, rest.as_str()));
            }
        }
    }

    fn add_range(&mut self, range: RangeInclusive<char>) {
        if range.end().is_ascii() {
            self.ascii.extend(range);
            return;
        }
        let (first, last) = range.into_inner();
        self.others.push(first);
        if first != last {
            self.others.push('-');
            self.others.push(last);
        }
    }

    /// Adds a named class of characters such as `alpha`. Returns `None` for an unknown name.
    fn add_named(&mut self, name: &str) -> Option<()> {
        let contains: fn(&char) -> bool = match name {
            "alnum" => char::is_ascii_alphanumeric,
            "alpha" => char::is_ascii_alphabetic,
            "blank" => |c| matches!(c, ' ' | '\t'),
            "cntrl" => char::is_ascii_control,
            "digit" => char::is_ascii_digit,
            "graph" => char::is_ascii_graphic,
            "lower" => char::is_ascii_lowercase,
            "print" => |c| matches!(c, ' '..='~'),
            "punct" => char::is_ascii_punctuation,
            "space" => |c| matches!(c, ' ' | '\t' | '\n' | '\r'),
            "upper" => char::is_ascii_uppercase,
            "xdigit" => char::is_ascii_hexdigit,
            _ => return None,
        };
        self.ascii.extend(('\0'..='\x7f').filter(contains));
        Some(())
    }

    /// Appends this class of characters to `glob`, in which a backslash has no meaning in brackets.
    /// Returns `None` if the class matches nothing.
    fn push_to(mut self, glob: &mut String) -> Option<()> {
        // A class never matches the slash.
        if self.negated {
            self.ascii.insert('/');
        } else {
            self.ascii.remove(&'/');
        }
        let (placed, plain): (Vec<char>, Vec<char>) =
            self.ascii.into_iter().partition(|c| matches!(c, ']' | '-' | '^' | '!'));
        let plain: String = plain.into_iter().chain(self.others.chars()).collect();
        let has = |c| placed.contains(&c);
        if !self.negated && plain.is_empty() && !has(']') && !has('-') {
            // Without another character before them, `^` and `!` would negate the class.
            let choices: Vec<String> = placed.iter().map(|c| format!("\\{c}")).collect();
            glob.push_str(&format!("{{{}}}", choices.join(",")));
            return (!choices.is_empty()).then_some(());
        }
        glob.push_str(if self.negated { "[^" } else { "[" });
        // A bracket is literal only at the start, and a hyphen only at the start or the end.
        glob.push_str(match (has(']'), has('-')) {
            (true, _) => "]",
            (false, true) => "-",
            (false, false) => "",
        });
        glob.push_str(&plain);
        glob.extend(placed.iter().filter(|c| matches!(c, '^' | '!')));
        glob.push_str(if has(']') && has('-') { "-]" } else { "]" });
        Some(())
    }
}

/// Returns `c`. If `c` is a backslash, returns the next character of `rest` instead.
fn unescaped(c: char, rest: &mut Chars<'_>) -> Option<char> {
    if c == '\\' { rest.next() } else { Some(c) }
}

/// Returns true if `text`, which follows `[:`, is the name of a class of characters up to its `:]`.
fn is_class_name(text: &str) -> bool {
    // Without a `]`, the class around it is not closed either.
    text.split_once(']').is_none_or(|(name, _)| name.ends_with(':'))
}

#[cfg(test)]
mod tests {
    use globset::GlobBuilder;

    use super::*;

    /// Checks that the ignore rule in `line` matches those of `paths` that are in `expected`, and
    /// no others, as git does.
    #[track_caller]
    fn check(line: &str, paths: &[&str], expected: &[&str]) {
        let matcher = IgnoreRule::parse(line).map(|rule| {
            let mut builder = GlobBuilder::new(&rule.glob);
            let builder = builder.literal_separator(true).backslash_escape(true);
            builder.build().unwrap().compile_matcher()
        });
        let is_match = |path: &&&str| matcher.as_ref().is_some_and(|glob| glob.is_match(path));
        let matched: Vec<&str> = paths.iter().filter(is_match).copied().collect();
        assert_eq!(matched, expected, "{line:?}");
    }

    #[test]
    fn a_line_without_a_pattern_has_no_effect() {
        for line in ["", "!", "!   ", "/", "!/", "#a", "   ", "\r", "! \r", "a\\", "[", "x[]"] {
            assert_eq!(IgnoreRule::parse(line), None, "{line:?}");
        }
        check("//", &["a", "a/b", ""], &[]);
    }

    #[test]
    fn only_unescaped_spaces_at_the_end_are_removed() {
        let paths = ["a", "a ", "a  ", "a\t", "a\\", " a"];
        for (line, expected) in [
            ("a   ", "a"),
            ("a \r", "a"),
            ("a\\ ", "a "),
            ("a\\    ", "a "),
            ("a\\ \\   ", "a  "),
            ("a\t", "a\t"),
            ("a\t  ", "a\t"),
            ("a\\\\  ", "a\\"),
            (" a", " a"),
        ] {
            check(line, &paths, &[expected]);
        }
    }

    #[test]
    fn braces_and_commas_are_literal() {
        check("{a,b}", &["a", "b", "{a,b}"], &["{a,b}"]);
        check("a}{", &["a}{"], &["a}{"]);
        check("*.{js,ts}", &["x.js", "x.{js,ts}"], &["x.{js,ts}"]);
    }

    #[test]
    fn a_class_has_escapes_names_and_no_slash() {
        for (line, paths, expected) in [
            ("x[a", &["xa", "x[a"][..], &[][..]),
            ("[]-]", &["]", "-", "a"], &["]", "-"]),
            ("[a\\]b]", &["a", "]", "b", "\\"], &["a", "]", "b"]),
            ("[\\^]", &["^", "!", "\\"], &["^"]),
            ("[\\!^]", &["^", "!", "a"], &["^", "!"]),
            ("[!^a-]z", &["^z", "-z", "az", "!z", "bz"], &["!z", "bz"]),
            ("[[:digit:]x]", &["1", "x", "a", ":"], &["1", "x"]),
            ("[^[:alpha:]]", &["1", "a", "["], &["1", "["]),
            ("[[:nope:]]", &["n", ":", "["], &[]),
            ("[[:a]", &["[", ":", "a", "b"], &["[", ":", "a"]),
            ("[a-c-e]", &["b", "d", "-", "e"], &["b", "-", "e"]),
            ("[z-a]", &["a", "z", "-"], &["z"]),
            ("/a[^b]c", &["abc", "axc", "a/c"], &["axc"]),
            ("/a[+-9]c", &["a1c", "a/c", "a-c"], &["a1c", "a-c"]),
        ] {
            check(line, paths, expected);
        }
    }

    #[test]
    fn two_asterisks_span_folders_only_as_a_whole_component() {
        let paths = ["a/b", "a/x/b", "a/x/y/b", "a/xb", "a", "x/a/b"];
        check("a/**/b", &paths, &["a/b", "a/x/b", "a/x/y/b"]);
        check("a/***/b", &paths, &["a/b", "a/x/b", "a/x/y/b"]);
        check("a/**b", &paths, &["a/b", "a/xb"]);
        check("a/**", &paths, &["a/b", "a/x/b", "a/x/y/b", "a/xb"]);
        check("**/b", &paths, &["a/b", "a/x/b", "a/x/y/b", "x/a/b"]);
        check("**b", &paths, &["a/b", "a/x/b", "a/x/y/b", "a/xb", "x/a/b"]);
        check("/*/b", &paths, &["a/b"]);
    }

    #[test]
    fn an_escaped_character_is_literal() {
        check("\\!a", &["!a", "a"], &["!a"]);
        check("\\#a", &["#a", "a"], &["#a"]);
        check("a\\*b", &["a*b", "axb"], &["a*b"]);
        check("a\\b", &["ab"], &["ab"]);
        check("!\\#a", &["#a"], &["#a"]);
    }
}
