//! Parses and fills the text of a prompt: messages by role, arguments and included files.

use toolgate_contract::{MessageRole, PromptArguments};

use crate::front_matter::FileErrorWithLine;

/// The text of a prompt with placeholders, in messages by role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PromptTemplate(Vec<(MessageRole, Vec<PromptTemplateLine>)>);

/// Line of a prompt template: text, or a file to include.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PromptTemplateLine {
    /// Line of text with placeholders.
    Text(Vec<PromptTextPiece>),
    /// A line that includes a workspace file. The path consists of these pieces and may contain
    /// placeholders.
    Include(Vec<PromptTextPiece>),
}

/// Piece of a line in a prompt template: fixed text or a placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PromptTextPiece {
    Literal(String),
    Argument(String),
}

/// A part of a filled prompt: text or a file to include.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FilledPromptPart {
    Text(String),
    /// Path of a file to include.
    File(String),
}

impl PromptTemplate {
    /// Parses the template `body` of a prompt with `arguments`. The body starts on line `first` of
    /// its file. Fails if the template has invalid markup or an unknown argument.
    pub(super) fn parse(
        body: &str,
        first: usize,
        arguments: &[&str],
    ) -> Result<Self, FileErrorWithLine> {
        let mut messages = vec![(MessageRole::User, Vec::new())];
        for (line, text) in (first..).zip(body.lines()) {
            if let Some(role) =
                parse_role(text).map_err(|why| FileErrorWithLine::at_line(line, why))?
            {
                messages.push((role, Vec::new()));
                continue;
            }
            let read =
                parse_line(text, arguments).map_err(|why| FileErrorWithLine::at_line(line, why))?;
            if let Some((_, lines)) = messages.last_mut() {
                lines.push(read);
            }
        }
        messages.retain(|(_, lines)| lines.iter().any(PromptTemplateLine::has_content));
        if messages.is_empty() {
            return Err(FileErrorWithLine::at_line(
                first,
                "the prompt is empty: there is no text besides the front matter",
            ));
        }
        Ok(Self(messages))
    }

    /// Returns `true` if a line of the template includes a file.
    pub(super) fn includes_files(&self) -> bool {
        let mut lines = self.0.iter().flat_map(|(_, lines)| lines);
        lines.any(|line| matches!(line, PromptTemplateLine::Include(_)))
    }

    /// Returns an upper bound, in bytes, for the size of the template filled with `arguments`. The
    /// included files do not count.
    pub(super) fn bytes_max(&self, arguments: &PromptArguments) -> usize {
        let lines = self.0.iter().flat_map(|(_, lines)| lines);
        let pieces = lines.flat_map(|line| match line {
            PromptTemplateLine::Text(pieces) | PromptTemplateLine::Include(pieces) => pieces,
        });
        let bytes = pieces.map(|piece| match piece {
            PromptTextPiece::Literal(words) => words.len(),
            PromptTextPiece::Argument(name) => arguments.get(name).map_or(0, String::len),
        });
        bytes.fold(0, usize::saturating_add)
    }

    /// Fills the template with `arguments`, and returns its parts by role. Markup in argument
    /// values has no effect.
    pub(super) fn fill(&self, arguments: &PromptArguments) -> Vec<(MessageRole, FilledPromptPart)> {
        let mut parts = Vec::new();
        for (role, lines) in &self.0 {
            let mut collector = PromptTextCollector::default();
            for line in lines {
                match line {
                    PromptTemplateLine::Text(pieces) => {
                        collector.add_line(fill_line(pieces, arguments));
                    }
                    PromptTemplateLine::Include(pieces) => {
                        if let Some(path) = fill_line(pieces, arguments) {
                            parts.extend(
                                collector
                                    .take_text()
                                    .map(|text| (*role, FilledPromptPart::Text(text))),
                            );
                            parts.push((*role, FilledPromptPart::File(path)));
                        }
                    }
                }
            }
            parts.extend(collector.take_text().map(|text| (*role, FilledPromptPart::Text(text))));
        }
        parts
    }
}

impl PromptTemplateLine {
    fn has_content(&self) -> bool {
        match self {
            Self::Include(_) => true,
            Self::Text(pieces) => pieces.iter().any(|piece| match piece {
                PromptTextPiece::Literal(words) => !words.trim().is_empty(),
                PromptTextPiece::Argument(_) => true,
            }),
        }
    }
}

/// Collector that joins lines of a prompt template into one text.
#[derive(Default)]
struct PromptTextCollector {
    lines: Vec<String>,
    /// `true` if the previous line was left out because an argument had no value.
    left_out: bool,
}

impl PromptTextCollector {
    fn add_line(&mut self, line: Option<String>) {
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

    /// Returns the collected text without surrounding blank lines, and clears the collector.
    /// Returns `None` if there is no text.
    fn take_text(&mut self) -> Option<String> {
        let text = std::mem::take(self).lines.join("\n");
        let text = text.trim_matches('\n');
        (!text.trim().is_empty()).then(|| text.to_owned())
    }
}

/// Returns a template line filled with `arguments`. Returns `None` if the line names an argument
/// without a value.
fn fill_line(pieces: &[PromptTextPiece], arguments: &PromptArguments) -> Option<String> {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            PromptTextPiece::Literal(words) => text += words,
            // An empty argument counts as missing: a form sends it for a field that was not filled
            // in.
            PromptTextPiece::Argument(name) => {
                text += arguments.get(name).filter(|it| !it.is_empty())?;
            }
        }
    }
    Some(text)
}

/// Returns the role that `line` sets, if `line` is a role comment such as `<!-- role: user -->`.
/// Fails if the role is unknown.
fn parse_role(line: &str) -> Result<Option<MessageRole>, String> {
    let comment = line.trim().strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
    let role = comment.and_then(|comment| comment.trim().strip_prefix("role:"));
    match role.map(str::trim) {
        None => Ok(None),
        Some("user") => Ok(Some(MessageRole::User)),
        Some("assistant") => Ok(Some(MessageRole::Assistant)),
        Some(other) => Err(format!("unknown role `{other}`; the roles are `user` and `assistant`")),
    }
}

fn parse_line(line: &str, arguments: &[&str]) -> Result<PromptTemplateLine, String> {
    let whole = line.trim();
    if let Some(rest) = whole.strip_prefix("![[")
        && let Some(path) = rest.strip_suffix("]]")
    {
        if path.trim().is_empty() {
            return Err("`![[]]` has no path".to_owned());
        }
        return Ok(PromptTemplateLine::Include(split_pieces(path.trim(), arguments)?));
    }
    if whole.starts_with("![[") {
        let why = "`![[path]]` must be on a line of its own; write `\\![[` for the literal text";
        return Err(why.to_owned());
    }
    if whole.starts_with("\\![[") {
        return Ok(PromptTemplateLine::Text(split_pieces(
            &line.replacen("\\![[", "![[", 1),
            arguments,
        )?));
    }
    Ok(PromptTemplateLine::Text(split_pieces(line.trim_end(), arguments)?))
}

/// Splits a line of a prompt template into fixed text and placeholders. Fails if a placeholder is
/// malformed or names an unknown argument.
fn split_pieces(text: &str, arguments: &[&str]) -> Result<Vec<PromptTextPiece>, String> {
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
            return Err("`{{` is not closed; write `\\{{` for the literal text".to_owned());
        };
        let name = after[..end].trim();
        if !arguments.contains(&name) {
            return Err(format!(
                "unknown argument `{{{{{name}}}}}`{}; declare it in the front matter, or write \
                 `\\{{{{` for the literal text",
                suggestion(name, arguments)
            ));
        }
        words += before;
        if !words.is_empty() {
            pieces.push(PromptTextPiece::Literal(std::mem::take(&mut words)));
        }
        pieces.push(PromptTextPiece::Argument(name.to_owned()));
        rest = &after[end + 2..];
    }
    words += rest;
    if !words.is_empty() {
        pieces.push(PromptTextPiece::Literal(words));
    }
    Ok(pieces)
}

/// Returns `, did you mean …?` if an argument is similar to `name`, or else an empty text.
fn suggestion(name: &str, arguments: &[&str]) -> String {
    let near = |known: &&&str| strsim::normalized_damerau_levenshtein(name, known) > 0.55;
    let similarity = |known: &&str| strsim::normalized_damerau_levenshtein(name, known);
    let best = arguments.iter().filter(near).max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    best.map(|known| format!(", did you mean `{{{{{known}}}}}`?")).unwrap_or_default()
}
