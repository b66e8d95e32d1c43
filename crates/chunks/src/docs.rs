//! Extracts the text of doc comments, without comment marks.

/// Kind of a comment: documentation, an instruction for a program, or any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommentKind {
    /// A comment that documents the definition after it.
    Doc,
    /// A comment that documents the item that contains it.
    Inner,
    /// Comment that is neither documentation nor an instruction for a program.
    Plain,
    /// An instruction for a program, such as `#!/bin/sh`, `//go:build` or `// eslint-disable`.
    Directive,
}

/// Starts of comments that are instructions for programs.
const DIRECTIVES: [&str; 12] = [
    "#!",
    "//go:",
    "// +build",
    "// eslint",
    "/* eslint",
    "// prettier",
    "// @ts-",
    "//nolint",
    "# rubocop",
    "# frozen_string_literal",
    "# shellcheck",
    "// NOLINT",
];

impl CommentKind {
    /// Classifies the comment `text` by its purpose. If `inner` is set, `//!` documents the item
    /// that contains it.
    pub(crate) fn classify(text: &str, inner: bool) -> Self {
        let begins = |mark: &str| text.starts_with(mark);
        if DIRECTIVES.iter().any(|order| begins(order)) {
            Self::Directive
        } else if begins("//!") || begins("/*!") {
            if inner { Self::Inner } else { Self::Doc }
        } else if (begins("///") && !begins("////"))
            || (begins("/**") && !begins("/***") && !begins("/**/"))
        {
            Self::Doc
        } else {
            Self::Plain
        }
    }
}

/// Returns the text of a comment without its marks and without blank lines at both ends.
pub(crate) fn comment_text(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let is_block = text.trim_start().starts_with("/*");
    let is_begin = text.trim_start().starts_with("=begin");
    for line in text.lines() {
        let line = line.trim();
        let line = if is_block {
            let line = line.strip_suffix("*/").unwrap_or(line);
            let line = line.strip_prefix("/*").unwrap_or(line).trim_start_matches(['*', '!', '<']);
            line.trim_end_matches('*')
        } else if is_begin {
            line.trim_start_matches("=begin").trim_start_matches("=end")
        } else {
            line.trim_start_matches(['/', '#', '-']).trim_start_matches(['!', '<'])
        };
        lines.push(line.trim_end());
    }
    dedent(&lines).trim().to_owned()
}

/// Returns the text of the string `literal`, without quotes and common indentation.
pub(crate) fn string_text(literal: &str) -> String {
    let bare = literal.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let quotes = ["\"\"\"", "'''", "\"", "'"];
    let mark = quotes.into_iter().find(|mark| bare.starts_with(mark)).unwrap_or_default();
    let bare = bare.strip_prefix(mark).unwrap_or(bare);
    let bare = bare.strip_suffix(mark).unwrap_or(bare);
    let mut lines = bare.lines();
    let first = lines.next().unwrap_or_default().trim();
    let rest: Vec<&str> = lines.map(str::trim_end).collect();
    format!("{first}\n{}", dedent(&rest)).trim().to_owned()
}

/// Returns the text in a piece of a comment or of a docstring, without comment marks.
pub(crate) fn piece_text(piece: &str) -> String {
    let is_comment = ["//", "/*", "*", "#", "--", "=begin"];
    if is_comment.iter().any(|mark| piece.trim_start().starts_with(mark)) {
        comment_text(piece)
    } else {
        string_text(piece.trim_end().trim_end_matches(['"', '\'']))
    }
}

/// Removes the common indentation of `lines`.
fn dedent(lines: &[&str]) -> String {
    let blanks = |line: &&str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let filled = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = filled.map(blanks).min().unwrap_or(0);
    let lines: Vec<&str> =
        lines.iter().map(|line| line.get(indent..).unwrap_or_default()).collect();
    lines.join("\n")
}

/// Longest XML tag in a doc comment that is removed, in bytes.
const TAG_BYTES_MAX: usize = 200;

/// Removes the XML tags of C# doc comments from `text`. The name in `<see cref="Name"/>` stays.
pub(crate) fn without_tags(text: &str) -> String {
    const TAGS: [&str; 18] = [
        "summary",
        "param",
        "paramref",
        "returns",
        "remarks",
        "see",
        "seealso",
        "para",
        "c",
        "code",
        "exception",
        "typeparam",
        "typeparamref",
        "value",
        "example",
        "inheritdoc",
        "list",
        "item",
    ];
    if !text.contains("<summary>") && !text.contains("<inheritdoc") && !text.contains("<returns>") {
        return text.to_owned();
    }
    let mut bare = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        bare.push_str(before);
        let near = &after[..after.floor_char_boundary(TAG_BYTES_MAX)];
        let Some((tag, _)) = near.split_once('>') else {
            bare.push('<');
            rest = after;
            continue;
        };
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap_or_default();
        if TAGS.contains(&name) {
            let target =
                tag.split('"').nth(1).filter(|_| name.starts_with("see") || name.ends_with("ref"));
            bare.push_str(target.unwrap_or_default());
            rest = &after[tag.len() + 1..];
        } else {
            bare.push('<');
            rest = after;
        }
    }
    bare.push_str(rest);
    let lines: Vec<&str> = bare.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_marks_are_removed() {
        for (comment, expected) in [
            ("/// Reads.\n///   more", "Reads.\n  more"),
            ("//! Inner.", "Inner."),
            ("/** One.\n  * Two.\n  *\n  * @param x\n  */", "One.\nTwo.\n\n@param x"),
            ("/* plain */", "plain"),
            ("    # Shell.", "Shell."),
            ("/// <summary>\n/// Opens a <see cref=\"Door\"/>.\n/// </summary>", "Opens a Door."),
            ("/// Returns a `Vec<u8>`.", "Returns a `Vec<u8>`."),
        ] {
            assert_eq!(without_tags(&comment_text(comment)), expected, "{comment}");
        }
        assert_eq!(
            string_text("r\"\"\"One.\n\n    Two.\n      three\n    \"\"\""),
            "One.\n\nTwo.\n  three"
        );
        assert_eq!(string_text("'one'"), "one");
    }
}
