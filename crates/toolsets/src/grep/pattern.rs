//! What is looked for in a text: an expression made ready.

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::ToolError;

/// Past this a compiled expression is refused.
const REGEX_BYTES_MAX: usize = 32 << 20;
/// How much a thread may remember of the states it came by; past this it is slower instead.
const STATES_BYTES_MAX: usize = 4 << 20;

/// Whether case matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Case {
    #[default]
    Smart,
    Sensitive,
    Insensitive,
}

/// Over how much of a text a match may go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    #[default]
    Line,
    Lines,
}

/// What a text is searched for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pattern<'p> {
    pub(crate) text: &'p str,
    /// It is taken as it is, not as an expression.
    pub(crate) literal: bool,
    /// It matches whole words only.
    pub(crate) word: bool,
    pub(crate) case: Case,
    pub(crate) reach: Reach,
}

impl Pattern<'_> {
    /// What finds it; a refusal is about `/text`.
    pub(crate) fn matcher(self) -> Result<RegexMatcher, ToolError> {
        let Self { text, literal, word, case, reach } = self;
        let mut builder = RegexMatcherBuilder::new();
        let across = (reach == Reach::Lines).then(|| across_lines(text, literal));
        let is_as_it_is = literal && across.is_none();
        builder.multi_line(true).fixed_strings(is_as_it_is).word(word).size_limit(REGEX_BYTES_MAX);
        builder.dfa_size_limit(STATES_BYTES_MAX);
        // Set off, `$` is before a `\r\n` too, and nothing matches the end of a line.
        builder.crlf(reach == Reach::Line);
        match case {
            Case::Smart => builder.case_smart(true),
            Case::Sensitive => &mut builder,
            Case::Insensitive => builder.case_insensitive(true),
        };
        builder.build(across.as_deref().unwrap_or(text)).map_err(|err| {
            // The crate draws the expression with a caret; the last line says it.
            let why = err.to_string();
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
            let way_out = if text.contains('\n') && reach == Reach::Line {
                "a match is within one line; search_text looks across lines with multiline: true"
            } else if literal {
                "a match is within one line"
            } else {
                "the syntax is that of Rust's regex crate; to search for the text as it is, set literal: true"
            };
            ToolError::invalid("/text", format!("it cannot be searched for: {why}; {way_out}"))
        })
    }
}

/// `text` as an expression over several lines, whichever way they end: `\n` is a `\r\n`, too, and
/// `$` is before it.
fn across_lines(text: &str, literal: bool) -> String {
    const END: &str = r"(?:\r?\n)";
    if literal {
        let lines = text.replace("\r\n", "\n");
        let lines: Vec<_> = lines.split('\n').map(regex::escape).collect();
        return lines.join(END);
    }
    let mut across = "(?R:".to_owned();
    let (mut classes, mut letters) = (0_usize, text.chars().peekable());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('n') if classes == 0 => across.push_str(END),
                escaped => across.extend(std::iter::once(letter).chain(escaped)),
            },
            '\n' if classes == 0 => across.push_str(END),
            _ => {
                match letter {
                    '[' => classes += 1,
                    ']' => classes = classes.saturating_sub(1),
                    _ => {}
                }
                across.push(letter);
            }
        }
    }
    across + ")"
}

/// Where in `text` the first match is, in bytes.
pub(crate) fn span(matcher: &RegexMatcher, text: &[u8]) -> Option<(usize, usize)> {
    let found = matcher.find(text).ok().flatten()?;
    Some((found.start(), found.end()))
}
