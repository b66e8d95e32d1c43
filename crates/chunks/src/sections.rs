//! Finds the headings of a document, as its outline.

use crate::lines::LineIndexedText;
use crate::outline::{OutlinePart, OutlinePartKind, PARTS_MAX, TextOutline};

/// Longest line of a document that may be a heading, in bytes.
const LINE_BYTES_MAX: usize = 512;

/// Heading of a document, with its level and line.
struct DocumentHeading {
    /// First line of the heading (from 0), which may be a line of equal characters above the title.
    first: usize,
    level: usize,
    title: String,
}

/// Returns the outline of the document in `lines`, which is written in `lang`.
pub(crate) fn outline(lines: &LineIndexedText<'_>, lang: &str) -> TextOutline {
    let headings = match lang {
        "restructuredtext" => underlined_headings(lines, &mut Vec::new(), |_| true),
        "asciidoc" => marked_headings(lines, '='),
        "org" => marked_headings(lines, '*'),
        _markdown => markdown_headings(lines),
    };
    let mut parts: Vec<OutlinePart> = Vec::with_capacity(headings.len());
    // Sections that have not ended yet.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for heading in headings.into_iter().take(PARTS_MAX) {
        while let Some(&(part, level)) = open.last()
            && level >= heading.level
        {
            parts[part].last = heading.first - 1;
            open.pop();
        }
        open.push((parts.len(), heading.level));
        let last = lines.len() - 1;
        parts.push(OutlinePart::new(
            OutlinePartKind::Section,
            heading.first,
            last,
            vec![heading.title],
        ));
    }
    TextOutline::new(parts, Vec::new())
}

/// Finds headings of a document that begin with `mark`, repeated once per level, and a space.
fn marked_headings(lines: &LineIndexedText<'_>, mark: char) -> Vec<DocumentHeading> {
    let heading = |at| {
        let line: &str = lines.line(at);
        let (level, title) = parse_title(line, mark)?;
        (line.len() <= LINE_BYTES_MAX).then_some(DocumentHeading { first: at, level, title })
    };
    (0..lines.len()).filter_map(heading).collect()
}

fn parse_title(line: &str, mark: char) -> Option<(usize, String)> {
    let title = line.trim_start_matches(mark);
    let level = line.len() - title.len();
    let title = title.strip_prefix([' ', '\t'])?.trim_end_matches([mark, ' ', '\t']).trim();
    ((1..=6).contains(&level) && !title.is_empty()).then(|| (level, title.to_owned()))
}

/// Finds Markdown headings: `# Title` outside of code fences, and `Title` above a line of `===` or
/// `---`.
fn markdown_headings(lines: &LineIndexedText<'_>) -> Vec<DocumentHeading> {
    let mut fence: Option<&str> = None;
    let mut fenced = vec![false; lines.len()];
    let mut headings = Vec::new();
    let from = front_matter(lines);
    fenced[..from].fill(true);
    for (at, fenced) in fenced.iter_mut().enumerate().skip(from) {
        let line = lines.line(at).trim();
        let mark = ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark));
        *fenced = fence.is_some() || mark.is_some();
        match (fence, mark) {
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, Some(mark)) => fence = Some(mark),
            (Some(_) | None, _) => {}
        }
        let shallow = lines.indent(at) < 4 && line.len() <= LINE_BYTES_MAX;
        if !*fenced
            && shallow
            && let Some((level, title)) = parse_title(line, '#')
        {
            headings.push(DocumentHeading { first: at, level, title });
        }
    }
    let mut levels = vec!['=', '-'];
    headings.extend(underlined_headings(lines, &mut levels, |at| !fenced[at]));
    headings.sort_by_key(|heading| heading.first);
    headings
}

/// Returns the number of lines of a document's front matter: the block between two lines of `---`.
fn front_matter(lines: &LineIndexedText<'_>) -> usize {
    if lines.len() == 0 || lines.line(0).trim_end() != "---" {
        return 0;
    }
    let end = (1..lines.len().min(200)).find(|&at| lines.line(at).trim_end() == "---");
    end.map_or(0, |end| end + 1)
}

/// Finds titles with a line of equal characters (a rule) below, and possibly another rule above.
/// The level of a heading is the position of the rule's character in `levels`. Unknown characters
/// are appended to `levels`. Skips lines for which `is_read` returns false.
fn underlined_headings(
    lines: &LineIndexedText<'_>,
    levels: &mut Vec<char>,
    is_read: impl Fn(usize) -> bool,
) -> Vec<DocumentHeading> {
    let is_markdown = !levels.is_empty();
    let mut headings = Vec::new();
    for at in 0..lines.len().saturating_sub(1) {
        let title = lines.line(at);
        let Some(mark) =
            rule_character(lines.line(at + 1)).filter(|_| is_read(at) && is_read(at + 1))
        else {
            continue;
        };
        let is_alone = at == 0 || lines.is_blank(at - 1);
        let is_ruled = at > 0 && rule_character(lines.line(at - 1)) == Some(mark) && !is_markdown;
        let is_long =
            lines.line(at + 1).trim_end().chars().count() + 1 >= title.trim().chars().count();
        let is_text = title.chars().any(char::is_alphanumeric)
            && title.len() <= LINE_BYTES_MAX
            && !title.starts_with(['#', '|', '>'])
            && (is_ruled || !title.starts_with([' ', '\t']));
        if !is_text || !(is_alone || is_ruled) || !(is_markdown || is_long) {
            continue;
        }
        let known = levels.iter().position(|known| *known == mark);
        let Some(level) = known.or_else(|| {
            levels.push(mark);
            (!is_markdown).then(|| levels.len() - 1)
        }) else {
            continue;
        };
        let first = if is_ruled { at - 1 } else { at };
        headings.push(DocumentHeading { first, level: level + 1, title: title.trim().to_owned() });
    }
    headings
}

/// Returns the character that `line` repeats, if the line is a rule below or above a title.
fn rule_character(line: &str) -> Option<char> {
    let line = line.trim_end();
    let first = line.chars().next().filter(char::is_ascii_punctuation)?;
    (line.len() >= 3 && line.len() <= LINE_BYTES_MAX && line.chars().all(|c| c == first))
        .then_some(first)
}
