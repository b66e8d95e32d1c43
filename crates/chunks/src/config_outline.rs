//! Outline of a configuration file: its tables and keys.

use crate::lines::LineIndexedText;
use crate::outline::{OutlinePart, OutlinePartKind, PARTS_MAX, TextOutline};

/// Number of lines of a configuration key above which its nested keys are outlined, too.
const LONG_LINES: usize = 24;
/// Longest line of a configuration that is searched for a key, in bytes.
const LINE_BYTES_MAX: usize = 1 << 10;
/// Deepest level of nested configuration keys that are outlined.
const DEPTH_MAX: usize = 3;

/// Returns the outline of the configuration in `lines`, which is written in `lang`.
pub(crate) fn outline(lines: &LineIndexedText<'_>, lang: &str) -> TextOutline {
    let parts = match lang {
        "toml" | "ini" => tables(lines),
        "yaml" => keys(lines, yaml_key),
        "json" => keys(lines, json_key),
        "terraform" => blocks(lines),
        _other => Vec::new(),
    };
    TextOutline::new(parts, Vec::new())
}

/// Lists each `[table]` of a configuration with the lines up to the next table, and the keys before
/// the first table.
fn tables(lines: &LineIndexedText<'_>) -> Vec<OutlinePart> {
    let mut parts: Vec<OutlinePart> = Vec::new();
    let mut in_table = false;
    // Set inside a multi-line string: `"""`, `'''`.
    let mut quoted = false;
    for at in 0..lines.len() {
        let line = lines.line(at);
        let odd = |mark: &str| line.matches(mark).count() % 2 == 1;
        let was_quoted = quoted;
        if line.len() <= LINE_BYTES_MAX && (odd("\"\"\"") || odd("'''")) {
            quoted = !quoted;
        }
        if was_quoted || line.len() > LINE_BYTES_MAX || parts.len() >= PARTS_MAX {
            continue;
        }
        let name = match line.strip_prefix('[') {
            Some(rest) => rest.find(']').map(|end| rest[..end].trim_matches(['[', ' '])),
            None if in_table => None,
            None => {
                line.split_once(['=', ':']).map(|(key, _)| key.trim_end()).filter(|key| is_key(key))
            }
        };
        let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
        in_table |= line.starts_with('[');
        parts.push(OutlinePart::new(
            OutlinePartKind::Key,
            first_comment_line(lines, at),
            at,
            vec![name.to_owned()],
        ));
    }
    extend_to_next(lines, parts)
}

/// Lists each block `resource "kind" "name" {` with the lines up to the next block.
fn blocks(lines: &LineIndexedText<'_>) -> Vec<OutlinePart> {
    let mut parts: Vec<OutlinePart> = Vec::new();
    for at in 0..lines.len() {
        let line = lines.line(at);
        let looks = line.len() <= LINE_BYTES_MAX && parts.len() < PARTS_MAX;
        if !looks || !line.starts_with(char::is_alphabetic) {
            continue;
        }
        let Some(head) = line.trim_end().strip_suffix('{') else { continue };
        let words: Vec<&str> = head.split([' ', '"']).filter(|it| !it.is_empty()).collect();
        let names = words.iter().rev().map(|&it| it.to_owned()).collect();
        let mut part =
            OutlinePart::new(OutlinePartKind::Key, first_comment_line(lines, at), at, names);
        part.head = head.trim_end().to_owned();
        parts.push(part);
    }
    extend_to_next(lines, parts)
}

/// Lists the keys of a configuration with the lines that are indented below them. For long keys,
/// also lists the keys inside.
fn keys(lines: &LineIndexedText<'_>, key: impl Fn(&str) -> Option<&str>) -> Vec<OutlinePart> {
    let mut parts: Vec<OutlinePart> = Vec::new();
    // Ranges of lines still to search, each with its depth.
    let mut wanted = vec![(0, lines.len(), 0)];
    while let Some((from, to, depth)) = wanted.pop() {
        let indent = (from..to)
            .filter(|&at| lines.line(at).len() <= LINE_BYTES_MAX && key(lines.line(at)).is_some())
            .map(|at| lines.indent(at))
            .next();
        let Some(indent) = indent else { continue };
        let mut found: Vec<OutlinePart> = Vec::new();
        for at in from..to {
            let line = lines.line(at);
            if line.len() > LINE_BYTES_MAX || lines.indent(at) != indent {
                continue;
            }
            if let Some(name) = key(line) {
                let first = first_comment_line(lines, at).max(from);
                if let Some(last) = found.last_mut() {
                    last.last = first - 1;
                }
                if parts.len() + found.len() >= PARTS_MAX {
                    break;
                }
                found.push(OutlinePart::new(
                    OutlinePartKind::Key,
                    first,
                    to - 1,
                    vec![name.to_owned()],
                ));
            }
        }
        for mut part in found {
            if let Some((first, last)) = lines.trim_blank(part.first, part.last) {
                (part.first, part.last) = (first, last);
            }
            part.start = part.first;
            if part.line_count() > LONG_LINES && depth + 1 < DEPTH_MAX {
                let begins = (part.first..=part.last)
                    .find(|&at| lines.indent(at) == indent && key(lines.line(at)).is_some());
                wanted.push((begins.unwrap_or(part.first) + 1, part.last + 1, depth + 1));
            }
            parts.push(part);
        }
    }
    parts
}

fn yaml_key(line: &str) -> Option<&str> {
    let line = line.trim_start().trim_start_matches("- ");
    let (key, rest) = line.split_once(':')?;
    let key = key.trim_matches(['"', '\'']);
    (is_key(key) && (rest.is_empty() || rest.starts_with([' ', '\t']))).then_some(key)
}

fn json_key(line: &str) -> Option<&str> {
    let (key, rest) = line.trim_start().split_once(':')?;
    let is_value = !rest.starts_with("//");
    let key = key.trim_end().trim_matches(['"', '\'']);
    (is_key(key) && is_value).then_some(key)
}

/// Returns true if `text` may be a configuration key.
fn is_key(text: &str) -> bool {
    !text.is_empty() && text.len() <= 100 && !text.starts_with(['#', ';', '/', '{', ' ', '\t', '!'])
}

/// Returns the first of the comment lines directly above line `at`, or `at` if there are none.
fn first_comment_line(lines: &LineIndexedText<'_>, at: usize) -> usize {
    let is_comment = |&above: &usize| lines.line(above).trim_start().starts_with(['#', ';']);
    (0..at).rev().take_while(is_comment).last().unwrap_or(at)
}

/// Extends each of the `parts` of an outline to the line before the next part.
fn extend_to_next(lines: &LineIndexedText<'_>, mut parts: Vec<OutlinePart>) -> Vec<OutlinePart> {
    for at in 0..parts.len() {
        let next = parts.get(at + 1).map_or(lines.len(), |next| next.first);
        let last = next.saturating_sub(1).max(parts[at].first);
        parts[at].last = lines.trim_blank(parts[at].first, last).map_or(last, |(_, last)| last);
    }
    parts
}
