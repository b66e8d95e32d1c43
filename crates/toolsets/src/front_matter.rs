//! Parses the front matter of a Markdown file, which is the YAML before its text.

mod errors;

use std::fmt;

use serde::de::DeserializeOwned;
use serde_saphyr::Options;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use toolgate_contract::printable::check_visible;
use toolgate_contract::strip_byte_order_mark;

pub(crate) use errors::YamlValueRequirements;

/// The maximum number of YAML nodes that are read. Aliases can make a short text expand to many
/// nodes.
const NODES_MAX: usize = 10_000;
/// The maximum total size of texts in the YAML, in bytes, after aliases are expanded.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The maximum size of a single text in the front matter, in bytes, because models and people read
/// it.
const SHOWN_BYTES_MAX: usize = 64 << 10;

/// Checks that `text`, a value in a front matter, is not too long and has no hidden character.
///
/// # Errors
/// Returns the end of a sentence, such as "has the hidden character U+202E at byte 12".
pub(crate) fn check_text(text: &str) -> Result<(), String> {
    check_visible(text, SHOWN_BYTES_MAX)
}

/// The text of a Markdown file, split into its front matter and its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MarkdownFileParts<'t> {
    /// The YAML text between the two `---` lines.
    pub(crate) head: &'t str,
    /// The text after the front matter.
    pub(crate) body: &'t str,
    /// The number of the line in the file, from 1, on which the body starts.
    pub(crate) body_line: usize,
}

/// The number of the line in the file on which the YAML starts. The first line is `---`.
const HEAD_LINE: usize = 2;

/// An error in a file, with its line number from 1. Line 0 means the complete file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileErrorWithLine {
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl FileErrorWithLine {
    pub(crate) fn at_line(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }

    /// Creates an error that concerns the complete file. Its line number is 0.
    pub(crate) fn whole(message: impl Into<String>) -> Self {
        Self::at_line(0, message)
    }

    /// Converts the error to a report that `file` was skipped. `file` is its path, and `what` is
    /// the type of the item in it, such as `a prompt`.
    pub(crate) fn into_skipped(self, what: &'static str, file: &str) -> SkippedFile {
        let Self { line, message } = self;
        SkippedFile { item_kind: Some(what), file: file.to_owned(), line, message }
    }
}

/// A file or folder that was skipped because it is unusable, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkippedFile {
    /// The type of the item that the file contains, such as `a prompt`. `None` if the file defines
    /// no item.
    pub(crate) item_kind: Option<&'static str>,
    /// The path of the file, relative to the workspace root.
    pub(crate) file: String,
    /// The number of the line with the error, from 1. 0 means that the complete file is unusable.
    pub(crate) line: usize,
    /// A description of the error and its fix.
    pub(crate) message: String,
}

impl SkippedFile {
    /// Creates a report that `file` was skipped, without a line number. `what` is the type of the
    /// item in the file, such as `a prompt`.
    pub(crate) fn whole(what: &'static str, file: &str, message: impl Into<String>) -> Self {
        FileErrorWithLine::whole(message).into_skipped(what, file)
    }

    /// Creates a report that `file`, which defines no item, was skipped.
    pub(crate) fn file_only(file: &str, message: impl Into<String>) -> Self {
        Self { item_kind: None, ..Self::whole("", file, message) }
    }

    /// Returns the error message for a caller that requests the skipped file.
    pub(crate) fn error_message(&self) -> String {
        format!("`{}` cannot be used: {}", self.location(), self.message)
    }

    fn location(&self) -> String {
        match self.line {
            0 => self.file.clone(),
            line => format!("{}:{line}", self.file),
        }
    }
}

/// Displays the report about a skipped file as a log line.
impl fmt::Display for SkippedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.location();
        let message = &self.message;
        match self.item_kind {
            Some(what) => write!(f, "{what} is left out: {place}: {message}"),
            None => write!(f, "{place} is left out: {message}"),
        }
    }
}

/// Splits `text` into front matter and body. The front matter is a line `---`, YAML, and another
/// line `---`. Fails if there is no front matter.
pub(crate) fn split(text: &str) -> Result<MarkdownFileParts<'_>, FileErrorWithLine> {
    let text = strip_byte_order_mark(text);
    let first = text.split_inclusive('\n').next().unwrap_or_default();
    if first.strip_suffix('\n').map(str::trim_end) != Some("---") {
        let message = "the file does not begin with front matter: a line `---`, YAML, a line `---`";
        return Err(FileErrorWithLine::at_line(1, message));
    }
    let rest = &text[first.len()..];
    let mut at = 0;
    for (count, line) in rest.split_inclusive('\n').enumerate() {
        let end = at + line.len();
        if line.trim_end() == "---" {
            let body_line = HEAD_LINE + count + 1;
            return Ok(MarkdownFileParts { head: &rest[..at], body: &rest[end..], body_line });
        }
        at = end;
    }
    Err(FileErrorWithLine::at_line(1, "the front matter has no end; close it with a line `---`"))
}

/// Splits `text` into front matter and body, like [`split`]. If there is no front matter, all of
/// `text` is the body.
pub(crate) fn split_if_any(text: &str) -> Result<MarkdownFileParts<'_>, FileErrorWithLine> {
    let body = strip_byte_order_mark(text);
    // A `---` after blank lines was probably meant as front matter, so `split` reports it.
    if body.trim_start().lines().next().is_some_and(|line| line.trim_end() == "---") {
        return split(text);
    }
    Ok(MarkdownFileParts { head: "", body, body_line: 1 })
}

/// Parses the front matter `head` as YAML 1.2. If the value of a key is invalid, the error contains
/// the requirement for that key in `requirements`.
pub(crate) fn parse<T: DeserializeOwned>(
    head: &str,
    requirements: YamlValueRequirements,
) -> Result<T, FileErrorWithLine> {
    serde_saphyr::from_str_with_options(head, options()).map_err(|err| {
        let line = err.location().and_then(|place| usize::try_from(place.line()).ok());
        // An error about the whole, such as a missing key, has no location.
        let line = line.filter(|&line| line > 0).unwrap_or(1);
        FileErrorWithLine::at_line(
            line + HEAD_LINE - 1,
            errors::describe_error(&err, head, requirements),
        )
    })
}

/// A front matter in which invalid values were repaired.
pub(crate) struct RepairedFrontMatter {
    /// The YAML text after the repair. Each value has the line number that it had in the original
    /// text.
    pub(crate) head: String,
    /// The keys of the values that were repaired.
    pub(crate) keys: Vec<String>,
}

/// Quotes the values in `head` that are not valid YAML without quotes, such as `Fixes bugs: fast`,
/// and replaces tabs that indent a value. The values themselves do not change. Returns `None` if
/// nothing had to be repaired.
pub(crate) fn quote_broken_values(head: &str) -> Option<RepairedFrontMatter> {
    let mut quoted = RepairedFrontMatter { head: String::new(), keys: Vec::new() };
    let mut lines = head.lines().peekable();
    while let Some(line) = lines.next() {
        let mut entry = vec![line];
        while let Some(more) = lines.next_if(|line| line.starts_with([' ', '\t'])) {
            entry.push(more);
        }
        match quote_value(&entry).or_else(|| indent_with_spaces(&entry)) {
            Some((key, text)) => {
                // The lines after it keep their numbers.
                let line_ends = entry.len() - text.matches('\n').count();
                quoted.head += &text;
                quoted.head += &"\n".repeat(line_ends);
                quoted.keys.push(key.to_owned());
            }
            None => entry.iter().for_each(|line| quoted.head += &format!("{line}\n")),
        }
    }
    (!quoted.keys.is_empty()).then_some(quoted)
}

/// Returns the key of the front matter entry with the lines `entry`, and the entry as one line with
/// its value in quotes. Returns `None` if the entry is valid without quotes.
fn quote_value<'l>(entry: &[&'l str]) -> Option<(&'l str, String)> {
    let (key, value) = entry.first()?.split_once(':')?;
    let key = key.trim_end();
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if key.is_empty() || !key.chars().all(is_key) || !value.starts_with(char::is_whitespace) {
        return None;
    }
    let value = value.trim();
    if value.is_empty() || is_block_header(value) {
        return None;
    }
    parse::<serde_json::Value>(&entry.join("\n"), &[]).err()?;
    let more = entry.iter().skip(1).map(|line| line.trim());
    let text = std::iter::once(value).chain(more).collect::<Vec<_>>().join(" ");
    Some((key, format!("{key}: {}", serde_json::Value::from(text.trim_end()))))
}

/// Returns true if `value` starts a YAML block scalar (`|`, `>-`, `>2`), whose lines may contain
/// any text.
fn is_block_header(value: &str) -> bool {
    let Some(rest) = value.strip_prefix(['|', '>']) else { return false };
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'));
    rest.is_empty() || rest.starts_with(char::is_whitespace) && rest.trim_start().starts_with('#')
}

/// Returns the key of the front matter entry with the lines `entry`, and the entry with two spaces
/// for each indenting tab. Returns `None` unless the tabs make the entry invalid YAML.
fn indent_with_spaces<'l>(entry: &[&'l str]) -> Option<(&'l str, String)> {
    let (key, _) = entry.first()?.split_once(':')?;
    if !entry.iter().any(|line| line.starts_with('\t')) {
        return None;
    }
    parse::<serde_json::Value>(&entry.join("\n"), &[]).err()?;
    let indented = entry.iter().map(|line| {
        let text = line.trim_start_matches('\t');
        format!("{}{text}", "  ".repeat(line.len() - text.len()))
    });
    let indented = indented.collect::<Vec<_>>().join("\n");
    parse::<serde_json::Value>(&indented, &[]).ok()?;
    Some((key, indented))
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: NODES_MAX,
            max_total_scalar_bytes: TEXT_BYTES_MAX,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        strict_booleans: true,
        underscored_numbers_as_strings: true,
        with_snippet: false,
    }
}

/// Returns the line number, in the Markdown file, of a value in its front matter.
pub(crate) fn line_number<T>(what: &serde_saphyr::Spanned<T>) -> usize {
    usize::try_from(what.referenced.line()).unwrap_or(1).max(1) + HEAD_LINE - 1
}

/// Splits and parses the fuzz input `bytes`. Panics if text is lost or a line number is out of
/// range.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_fuzz_input(bytes: &[u8]) {
    /// The front matter that this fuzz target parses.
    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "the fields are only parsed")]
    struct FuzzedFrontMatter {
        name: String,
        tags: Option<Vec<String>>,
        wanted: Option<bool>,
        of: Option<std::collections::BTreeMap<String, serde_json::Value>>,
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(MarkdownFileParts { head, body, body_line }) = split_if_any(text) else { return };
    assert!(text.ends_with(body) && text.contains(head));
    if !body.is_empty() {
        let before = &text[..text.len() - body.len()];
        assert_eq!(before.matches('\n').count() + 1, body_line, "{body:?}");
    }
    // YAML, like most editors, also ends a line at a lone carriage return.
    let lines = text.replace("\r\n", "\n").matches(['\n', '\r']).count() + 1;
    let all = [
        parse::<FuzzedFrontMatter>(head, &[("tags", "must be a list")]).err(),
        parse::<serde_json::Value>(head, &[]).err(),
    ];
    for problem in all.iter().flatten() {
        assert!((1..=lines + 1).contains(&problem.line), "{problem:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn problem(head: &str) -> FileErrorWithLine {
        parse::<Value>(head, &[]).expect_err("the YAML is invalid")
    }

    #[test]
    fn a_file_is_split_at_its_two_lines_of_dashes() {
        let parts = split("\u{feff}---\r\na: 1\r\n---\r\none\ntwo").unwrap();
        assert_eq!(parts, MarkdownFileParts { head: "a: 1\r\n", body: "one\ntwo", body_line: 4 });
        assert_eq!(split("---\n---\n").unwrap().head, "");
        assert_eq!(split("--- \t\r\na: 1\n---  \n").unwrap().head, "a: 1\n");
        for text in ["", "text", "---", " ---\n---\n", "----\n---\n"] {
            assert_eq!(split(text).unwrap_err().line, 1, "{text:?}");
        }
        assert!(split("---\na: 1\n").unwrap_err().message.contains("no end"));
    }

    #[test]
    fn a_file_without_optional_front_matter_is_all_body() {
        let whole = MarkdownFileParts { head: "", body: "one\n---\n", body_line: 1 };
        assert_eq!(split_if_any("\u{feff}one\n---\n").unwrap(), whole);
        for meant in ["---\na: 1\n", " ---\na: 1\n---\n", "\n---\n---\n"] {
            assert_eq!(split_if_any(meant).unwrap_err().line, 1, "{meant:?}");
        }
        assert_eq!(split_if_any("---\na: 1\n---\nb").unwrap().head, "a: 1\n");
    }

    #[test]
    fn an_error_has_its_line_number_in_the_file() {
        assert_eq!(problem("a: 1\nb: [1\n").line, 3);
        assert_eq!(problem("a: 1\na: 2\n").line, 3);
        assert_eq!(problem("a: b: c\n").line, 2);
        assert!(!problem("a: b: c\n").message.contains("line"));
        assert!(problem("a: b: c\n").message.ends_with("; put the value in quotes"));
        assert_eq!(problem("a: 1\na: 2\n").message, "`a` appears twice");
    }

    #[test]
    fn a_value_that_is_not_yaml_is_quoted_as_it_stands() {
        let head = "name: x\ndescription: Use it: always # never\nhint: [a] [b]\nfor: @ann\n\
                    code: `run: it`\nfiles: *.md\nlong: one\n  two: three\n  four\nends: \\ \"1\": 2\n\
                    ok: \"a: b\"\nlist:\n  - a: 1\nblock: |\n  a: b: c\n";
        assert!(parse::<Value>(head, &[]).is_err());
        let RepairedFrontMatter { head: quoted, keys } = quote_broken_values(head).unwrap();
        assert_eq!(keys, ["description", "hint", "for", "code", "files", "long", "ends"]);
        let expected = json!({
            "name": "x", "description": "Use it: always # never", "hint": "[a] [b]",
            "for": "@ann", "code": "`run: it`", "files": "*.md", "long": "one two: three four",
            "ends": "\\ \"1\": 2", "ok": "a: b", "list": [{ "a": 1 }], "block": "a: b: c\n",
        });
        assert_eq!(parse::<Value>(&quoted, &[]).unwrap(), expected);
        assert_eq!(quoted.lines().count(), head.lines().count());
    }

    #[test]
    fn tabs_and_lone_block_characters_do_not_break_a_value() {
        let head = "name:\ttabs\ndescription:\tUse it: always\nversion : 1: 2\nmore: > 5 items: x\n\
                    metadata:\n\tauthor: me\n\ttags:\n\t\t- a\n";
        let RepairedFrontMatter { head: quoted, keys } = quote_broken_values(head).unwrap();
        assert_eq!(keys, ["description", "version", "more", "metadata"]);
        let expected = json!({
            "name": "tabs", "description": "Use it: always", "version": "1: 2",
            "more": "> 5 items: x", "metadata": { "author": "me", "tags": ["a"] },
        });
        assert_eq!(parse::<Value>(&quoted, &[]).unwrap(), expected);
        assert_eq!(quoted.lines().count(), head.lines().count());
    }

    #[test]
    fn yaml_that_is_broken_between_its_values_is_not_quoted() {
        for head in ["", "a: 1\n", "a: 1\na: 2\n", "- a: b: c\n", "a b: c: d\n", "a:\n  b: c: d\n"]
        {
            assert!(quote_broken_values(head).is_none(), "{head:?}");
        }
    }

    #[test]
    fn scalars_are_parsed_as_in_yaml_1_2() {
        let head = "a: yes\nb: 1_000\nc: true\n<<: {d: 1}\ne:\nf: 1.50\ng: 2024-01-02\n";
        let expected = json!({"a": "yes", "b": "1_000", "c": true, "<<": {"d": 1}, "e": null,
            "f": 1.5, "g": "2024-01-02"});
        assert_eq!(parse::<Value>(head, &[]).unwrap(), expected);
    }

    #[test]
    fn yaml_that_expands_beyond_the_budget_is_refused() {
        let mut head = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for n in 1..20 {
            let before = vec![format!("*a{}", n - 1); 10].join(",");
            head += &format!("a{n}: &a{n} [{before}]\n");
        }
        assert!(problem(&head).message.contains("budget"));
        assert!(parse::<Value>(&"[".repeat(100_000), &[]).is_err());
        // Few nodes, each of them long.
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 20].join(","));
        let parsed = parse::<Value>(&long, &[]).map(|value| value.to_string().len());
        assert!(parsed.is_err(), "{parsed:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "(---\n)?[-a-z:\\[\\]{}&*!|>'\"#%@,? \n\t\r]{0,200}(\n---\n)?.{0,50}") {
            if let Ok(parts) = split(&text) {
                let _ = parse::<Value>(parts.head, &[]);
                prop_assert!(text.ends_with(parts.body));
            }
            let _ = parse::<Value>(&text, &[]);
        }
    }
}
