//! Parses and fills the text of a prompt: messages by role, arguments and included files.

use toolgate_contract::{Arguments, Role};

use crate::front_matter::Wrong;

/// The text of a prompt with placeholders, in messages by role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<(Role, Vec<Line>)>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    /// A line of text.
    Said(Vec<Piece>),
    /// A line that includes the file at this path.
    Taken(Vec<Piece>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Words(String),
    Argument(String),
}

/// A part of a filled template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    /// The path of a file to include.
    File(String),
}

impl Template {
    /// Parses the template `body`, which starts on the line `first`, of a prompt with `arguments`.
    pub(super) fn read(body: &str, first: usize, arguments: &[&str]) -> Result<Self, Wrong> {
        let mut messages = vec![(Role::User, Vec::new())];
        for (line, text) in (first..).zip(body.lines()) {
            if let Some(role) = role(text).map_err(|why| Wrong::at(line, why))? {
                messages.push((role, Vec::new()));
                continue;
            }
            let read = read(text, arguments).map_err(|why| Wrong::at(line, why))?;
            if let Some((_, lines)) = messages.last_mut() {
                lines.push(read);
            }
        }
        messages.retain(|(_, lines)| lines.iter().any(Line::says_something));
        if messages.is_empty() {
            return Err(Wrong::at(
                first,
                "it says nothing: there is no text in it but front matter",
            ));
        }
        Ok(Self(messages))
    }

    /// Checks whether the template includes a file.
    pub(super) fn takes_in(&self) -> bool {
        let mut lines = self.0.iter().flat_map(|(_, lines)| lines);
        lines.any(|line| matches!(line, Line::Taken(_)))
    }

    /// Returns the most bytes of the text filled with `arguments`, without the included files.
    pub(super) fn bytes(&self, arguments: &Arguments) -> usize {
        let lines = self.0.iter().flat_map(|(_, lines)| lines);
        let pieces = lines.flat_map(|line| match line {
            Line::Said(pieces) | Line::Taken(pieces) => pieces,
        });
        let bytes = pieces.map(|piece| match piece {
            Piece::Words(words) => words.len(),
            Piece::Argument(name) => arguments.get(name).map_or(0, String::len),
        });
        bytes.fold(0, usize::saturating_add)
    }

    /// Fills the template with `arguments`. Markup in their values has no effect.
    pub(super) fn fill(&self, arguments: &Arguments) -> Vec<(Role, Part)> {
        let mut parts = Vec::new();
        for (role, lines) in &self.0 {
            let mut said = Said::default();
            for line in lines {
                match line {
                    Line::Said(pieces) => said.line(filled(pieces, arguments)),
                    Line::Taken(pieces) => {
                        if let Some(path) = filled(pieces, arguments) {
                            parts.extend(said.end().map(|text| (*role, Part::Text(text))));
                            parts.push((*role, Part::File(path)));
                        }
                    }
                }
            }
            parts.extend(said.end().map(|text| (*role, Part::Text(text))));
        }
        parts
    }
}

impl Line {
    fn says_something(&self) -> bool {
        match self {
            Self::Taken(_) => true,
            Self::Said(pieces) => pieces.iter().any(|piece| match piece {
                Piece::Words(words) => !words.trim().is_empty(),
                Piece::Argument(_) => true,
            }),
        }
    }
}

/// Lines that are collected into one text.
#[derive(Default)]
struct Said {
    lines: Vec<String>,
    /// Set if the line before was left out.
    left_out: bool,
}

impl Said {
    fn line(&mut self, line: Option<String>) {
        let Some(line) = line else {
            self.left_out = true;
            return;
        };
        // If a paragraph was left out, the blank line after it goes too.
        let after_blank = self.lines.last().is_none_or(|last| last.is_empty());
        if !(self.left_out && line.is_empty() && after_blank) {
            self.lines.push(line);
        }
        self.left_out = false;
    }

    /// Returns the collected text, if there is any, and starts a new one.
    fn end(&mut self) -> Option<String> {
        let text = std::mem::take(self).lines.join("\n");
        let text = text.trim_matches('\n');
        (!text.trim().is_empty()).then(|| text.to_owned())
    }
}

/// Returns the text of a line. `None` if it names an argument without a value.
fn filled(pieces: &[Piece], arguments: &Arguments) -> Option<String> {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Words(words) => text += words,
            // An empty argument counts as missing: a form sends it for a field that was not filled
            // in.
            Piece::Argument(name) => text += arguments.get(name).filter(|it| !it.is_empty())?,
        }
    }
    Some(text)
}

/// Returns the role whose message starts at `line`, if `line` is a role comment.
fn role(line: &str) -> Result<Option<Role>, String> {
    let comment = line.trim().strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
    let role = comment.and_then(|comment| comment.trim().strip_prefix("role:"));
    match role.map(str::trim) {
        None => Ok(None),
        Some("user") => Ok(Some(Role::User)),
        Some("assistant") => Ok(Some(Role::Assistant)),
        Some(other) => Err(format!("`{other}` is no role; there are `user` and `assistant`")),
    }
}

fn read(line: &str, arguments: &[&str]) -> Result<Line, String> {
    let whole = line.trim();
    if let Some(rest) = whole.strip_prefix("![[")
        && let Some(path) = rest.strip_suffix("]]")
    {
        if path.trim().is_empty() {
            return Err("`![[]]` names no file".to_owned());
        }
        return Ok(Line::Taken(pieces(path.trim(), arguments)?));
    }
    if whole.starts_with("![[") {
        let why = "`![[path]]` stands on a line of its own; write `\\![[` for the letters";
        return Err(why.to_owned());
    }
    if whole.starts_with("\\![[") {
        return Ok(Line::Said(pieces(&line.replacen("\\![[", "![[", 1), arguments)?));
    }
    Ok(Line::Said(pieces(line.trim_end(), arguments)?))
}

/// Splits `text` into words and placeholders.
fn pieces(text: &str, arguments: &[&str]) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut words = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("{{") {
        let before = &rest[..at];
        let after = &rest[at + 2..];
        if let Some(before) = before.strip_suffix('\\') {
            words += before;
            words += "{{";
            rest = after;
            continue;
        }
        let Some(end) = after.find("}}") else {
            return Err("`{{` is not closed; write `\\{{` for the letters".to_owned());
        };
        let name = after[..end].trim();
        if !arguments.contains(&name) {
            return Err(format!(
                "`{{{{{name}}}}}` is no argument{}; name it in the front matter, or write `\\{{{{` \
                 for the letters",
                meant(name, arguments)
            ));
        }
        words += before;
        if !words.is_empty() {
            pieces.push(Piece::Words(std::mem::take(&mut words)));
        }
        pieces.push(Piece::Argument(name.to_owned()));
        rest = &after[end + 2..];
    }
    words += rest;
    if !words.is_empty() {
        pieces.push(Piece::Words(words));
    }
    Ok(pieces)
}

/// Returns `, did you mean …?` if an argument is similar to `name`.
fn meant(name: &str, arguments: &[&str]) -> String {
    let near = |known: &&&str| strsim::normalized_damerau_levenshtein(name, known) > 0.55;
    let likeness = |known: &&str| strsim::normalized_damerau_levenshtein(name, known);
    let best = arguments.iter().filter(near).max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    best.map(|known| format!(", did you mean `{{{{{known}}}}}`?")).unwrap_or_default()
}
