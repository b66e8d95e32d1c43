//! A text cut into passages: at definitions, headings and blank lines, never through a line.

use super::definitions::{definition, is_lead};
use super::language::Kind;

/// A passage: whole lines that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Passage<'t> {
    /// Its first line, from 1.
    pub(super) first: u32,
    /// Its last line.
    pub(super) last: u32,
    /// Its text, without the end of the last line.
    pub(super) text: &'t str,
    /// The names it defines, or its heading.
    pub(super) names: Vec<String>,
}

/// How good a line is to begin a passage with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Beginning {
    None,
    /// What comes after a blank line.
    Paragraph,
    /// A definition inside another.
    Inner,
    /// A definition or a heading of its own.
    Outer,
}

/// A passage has no more lines.
const LINES_MAX: usize = 60;
/// Nor more bytes, if it has more than one line.
const BYTES_MAX: usize = 8 << 10;
/// A passage that is cut for its length keeps at least so many lines.
const LINES_MIN: usize = 20;
/// A passage remembers no more names.
const NAMES_MAX: usize = 8;

struct Line<'t> {
    text: &'t str,
    /// Where it begins.
    at: usize,
    beginning: Beginning,
    names: Vec<String>,
}

/// The passages of `text`, whose kind is `kind`, in order; lines between two are blank.
pub(super) fn passages(text: &str, kind: Kind) -> Vec<Passage<'_>> {
    let mut lines = lines(text);
    match kind {
        Kind::Docs => headings(&mut lines),
        Kind::Code => definitions(&mut lines),
        Kind::Config | Kind::Other => tables(&mut lines),
    }
    let mut passages = Vec::new();
    let mut from = 0;
    while from < lines.len() {
        let to = end(&lines, from);
        passages.extend(passage(text, &lines, from, to));
        from = to;
    }
    passages
}

/// Where the passage that begins at `from` ends.
fn end(lines: &[Line<'_>], from: usize) -> usize {
    let mut best = (Beginning::None, 0);
    for (at, line) in lines.iter().enumerate().skip(from + 1) {
        let (count, bytes) = (at - from, line.at - lines[from].at);
        let least = match line.beginning {
            Beginning::Outer => 4,
            Beginning::Inner => 10,
            Beginning::Paragraph => LINES_MIN * 2,
            Beginning::None => LINES_MAX,
        };
        if count >= least {
            return at;
        }
        if count >= LINES_MIN && line.beginning >= best.0 {
            best = (line.beginning, at);
        }
        if bytes + line.text.len() > BYTES_MAX {
            return if best.0 > Beginning::None { best.1 } else { at };
        }
        // Rather a little too short than cut in the middle.
        if count + 1 == LINES_MAX && best.0 > Beginning::None {
            return best.1;
        }
    }
    lines.len()
}

fn passage<'t>(text: &'t str, lines: &[Line<'t>], from: usize, to: usize) -> Option<Passage<'t>> {
    let is_said = |line: &Line<'_>| !line.text.trim().is_empty();
    let first = from + lines[from..to].iter().position(is_said)?;
    let last = from + lines[from..to].iter().rposition(is_said)?;
    let mut names: Vec<String> = Vec::new();
    for name in lines[first..=last].iter().flat_map(|line| &line.names) {
        if names.len() < NAMES_MAX && !names.contains(name) {
            names.push(name.clone());
        }
    }
    let number = |at: usize| u32::try_from(at + 1).ok();
    Some(Passage {
        first: number(first)?,
        last: number(last)?,
        text: &text[lines[first].at..lines[last].at + lines[last].text.len()],
        names,
    })
}

fn lines(text: &str) -> Vec<Line<'_>> {
    let mut at = 0;
    let mut lines = Vec::new();
    for whole in text.split_inclusive('\n') {
        let line = whole.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
        let text = line.unwrap_or(whole);
        lines.push(Line { text, at, beginning: Beginning::None, names: Vec::new() });
        at += whole.len();
    }
    lines
}

/// Marks the lines after blank ones.
fn paragraphs(lines: &mut [Line<'_>]) {
    for at in 1..lines.len() {
        if lines[at - 1].text.trim().is_empty() && !lines[at].text.trim().is_empty() {
            lines[at].beginning = Beginning::Paragraph;
        }
    }
}

/// Marks headings: `# Title`, and a line of `===` or `---` below one.
fn headings(lines: &mut [Line<'_>]) {
    paragraphs(lines);
    let mut fence: Option<&str> = None;
    for at in 0..lines.len() {
        let line = lines[at].text.trim();
        let mark = ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark));
        if let Some(mark) = mark {
            fence = match fence {
                Some(open) if open == mark => None,
                Some(open) => Some(open),
                None => Some(mark),
            };
            continue;
        }
        if fence.is_some() {
            continue;
        }
        let level = line.len() - line.trim_start_matches('#').len();
        let marked = (1..=6).contains(&level).then(|| line[level..].strip_prefix(' ')).flatten();
        let marked = marked.or_else(|| line.strip_prefix("== "));
        let below = lines.get(at + 1).map(|next| next.text.trim());
        let is_rule =
            |below: &str, mark: char| below.len() >= 3 && below.chars().all(|c| c == mark);
        let is_underlined = below.is_some_and(|it| is_rule(it, '=') || is_rule(it, '-'));
        let is_alone = at == 0 || lines[at - 1].text.trim().is_empty();
        let title = match marked {
            Some(title) => Some(title.trim_matches(['#', '=', ' '])),
            None if is_underlined && is_alone && !line.is_empty() => Some(line),
            None => None,
        };
        if let Some(title) = title.filter(|title| !title.is_empty()) {
            let title = title.to_owned();
            lines[at].beginning = Beginning::Outer;
            lines[at].names.push(title);
        }
    }
}

/// Marks definitions, from the comments and attributes above them on.
fn definitions(lines: &mut [Line<'_>]) {
    paragraphs(lines);
    for at in 0..lines.len() {
        let Some(found) = definition(lines[at].text) else { continue };
        lines[at].names = found.names;
        if !found.is_large {
            continue;
        }
        let is_nested = lines[at].text.starts_with([' ', '\t']);
        let mut from = at;
        while from > 0 && is_lead(lines[from - 1].text.trim()) {
            from -= 1;
        }
        lines[from].beginning = if is_nested { Beginning::Inner } else { Beginning::Outer };
    }
}

/// Marks the beginnings of tables, `[name]`, and top-level keys that hold more than a value.
fn tables(lines: &mut [Line<'_>]) {
    paragraphs(lines);
    for at in 0..lines.len() {
        let line = lines[at].text;
        let head = line.strip_prefix('[').map(|rest| rest.trim_matches(['[', ']', ' ']));
        let holds = lines.get(at + 1).is_some_and(|next| next.text.starts_with([' ', '\t', '-']));
        let key = line.strip_suffix(':').filter(|key| holds && !key.starts_with([' ', '\t', '#']));
        let Some(name) = head.or(key).filter(|name| !name.is_empty()) else { continue };
        let name = name.to_owned();
        let mut from = at;
        while from > 0 && lines[from - 1].text.starts_with('#') {
            from -= 1;
        }
        lines[at].names.push(name);
        lines[from].beginning = Beginning::Outer;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, kind: Kind, wanted: &[(u32, u32, &[&str])]) {
        let found = passages(text, kind);
        let found: Vec<(u32, u32, Vec<&str>)> = found
            .iter()
            .map(|it| (it.first, it.last, it.names.iter().map(String::as_str).collect()))
            .collect();
        let wanted: Vec<_> = wanted.iter().map(|&(a, b, names)| (a, b, names.to_vec())).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn code_is_cut_at_its_definitions_with_what_stands_above_them() {
        let code = "use a;\nuse b;\nuse c;\n\n/// Reads.\n#[must_use]\nfn read() {\n    one();\n}\n\n\
                    // Writes.\nfn write() {\n    two();\n}\n";
        check(code, Kind::Code, &[(1, 3, &[]), (5, 9, &["read"]), (11, 14, &["write"])]);
    }

    #[test]
    fn small_definitions_share_a_passage() {
        check("fn a() {}\nfn b() {}\nfn c() {}\n", Kind::Code, &[(1, 3, &["a", "b", "c"])]);
    }

    #[test]
    fn documents_are_cut_at_their_headings() {
        let text =
            "# One\n\ntext\n\n```sh\n# no heading\n```\n\n## Two\n\ntext\n\nThree\n=====\n\nmore\n";
        check(text, Kind::Docs, &[(1, 7, &["One"]), (9, 11, &["Two"]), (13, 16, &["Three"])]);
    }

    #[test]
    fn settings_are_cut_at_their_tables() {
        let text =
            "a = 1\nb = 2\nc = 3\n\n# Where.\n[server]\nport = 1\nhost = 2\n\n[log]\nx = 1\n";
        check(text, Kind::Config, &[(1, 3, &[]), (5, 8, &["server"]), (10, 11, &["log"])]);
        check("on: push\njobs:\n  a: 1\n", Kind::Config, &[(1, 3, &["jobs"])]);
    }

    #[test]
    fn a_long_function_is_cut_at_a_blank_line() {
        let mut code = "fn long() {\n".to_owned();
        for at in 0..120 {
            code += if at % 10 == 9 { "\n" } else { "    step();\n" };
        }
        code += "}\n";
        let found = passages(&code, Kind::Code);
        assert!(found.len() > 1 && found.iter().all(|it| it.last - it.first < 60), "{found:?}");
        assert!(found[1..].iter().all(|it| (it.first - 2) % 10 == 0), "{found:?}");
    }

    proptest! {
        #[test]
        fn passages_are_lines_of_the_text_in_order_and_leave_out_only_blank_ones(
            text in "(fn a\\(\\) \\{|\\}|# T|\\[t\\]|k:| x|```|\r?\n|\n\n|\n|é){0,200}"
        ) {
            for kind in [Kind::Code, Kind::Docs, Kind::Config, Kind::Other] {
                let lines: Vec<&str> = text.lines().collect();
                let mut next = 1;
                for it in passages(&text, kind) {
                    let (first, last) = (it.first as usize, it.last as usize);
                    prop_assert!(next <= first && first <= last && last - first < LINES_MAX);
                    prop_assert!(lines[next - 1..first - 1].iter().all(|it| it.trim().is_empty()));
                    let said: Vec<&str> = it.text.lines().collect();
                    prop_assert_eq!(&said[..], &lines[first - 1..last]);
                    next = last + 1;
                }
                prop_assert!(lines[next.min(lines.len() + 1) - 1..].iter().all(|it| it.trim().is_empty()));
            }
        }
    }
}
