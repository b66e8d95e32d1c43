//! Compiles the text or regular expression for which a tool searches files.

use std::convert::Infallible;

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, Span, Visitor, visit};
use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::ToolError;

/// The maximum size of a compiled regular expression, in bytes. A search uses several times as much
/// memory.
const REGEX_BYTES_MAX: usize = 4 << 20;
/// The maximum length of a regular expression in a call, in bytes. A longer expression would make a
/// search slow, because the matcher tracks each alternative at each byte of the text.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// The maximum size of the DFA cache of one search thread, in bytes. Regular expressions that need
/// more are matched more slowly.
const DFA_BYTES_MAX: usize = 2 << 20;

/// Case sensitivity of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CaseSensitivity {
    #[default]
    Smart,
    Sensitive,
    Insensitive,
}

/// The number of lines that one match may cover: a single line, or several lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum MultilineMatching {
    #[default]
    SingleLine,
    MultiLine,
}

/// The text or regular expression for which a tool searches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextPattern<'p> {
    pub(crate) text: &'p str,
    /// True to search for the text literally, not as a regular expression.
    pub(crate) literal: bool,
    /// True to match whole words only.
    pub(crate) word: bool,
    pub(crate) case: CaseSensitivity,
    pub(crate) span: MultilineMatching,
}

impl TextPattern<'_> {
    /// Compiles the pattern. Errors refer to the input field `/query`.
    pub(crate) fn compile(self) -> Result<RegexMatcher, ToolError> {
        let Self { text, literal, word, case, span } = self;
        if !literal && text.len() > TEXT_BYTES_MAX {
            let message = format!(
                "it has {} bytes, and an expression can have at most {TEXT_BYTES_MAX}; to search \
                 for the text itself, set literal: true",
                text.len()
            );
            return Err(ToolError::invalid("/query", message));
        }
        let mut builder = RegexMatcherBuilder::new();
        let across = (span == MultilineMatching::MultiLine).then(|| across_lines(text, literal));
        let is_fixed = literal && across.is_none();
        builder.multi_line(true).fixed_strings(is_fixed).word(word).size_limit(REGEX_BYTES_MAX);
        builder.dfa_size_limit(DFA_BYTES_MAX);
        // If this is off, `$` also matches before a `\r\n`, and nothing matches the end of a line.
        builder.crlf(span == MultilineMatching::SingleLine);
        match case {
            CaseSensitivity::Smart => builder.case_smart(true),
            CaseSensitivity::Sensitive => &mut builder,
            CaseSensitivity::Insensitive => builder.case_insensitive(true),
        };
        builder.build(across.as_deref().unwrap_or(text)).map_err(|err| {
            // The crate draws the expression with a caret. Only the last line names the error.
            let why = err.to_string();
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
            let advice = if text.contains('\n') && span == MultilineMatching::SingleLine {
                "a match cannot span lines; search_text can with multiline: true"
            } else if literal {
                "a match cannot span lines"
            } else {
                "the syntax is that of Rust's regex crate; to search for the text itself, set literal: true"
            };
            ToolError::invalid("/query", format!("it cannot be searched for: {why}; {advice}"))
        })
    }
}

/// Rewrites `text` as a regular expression for matches over several lines. In the result, `\n` also
/// matches `\r\n`, and `$` also matches before `\r\n`.
fn across_lines(text: &str, literal: bool) -> String {
    const END: &str = r"(?:\r?\n)";
    if literal {
        let lines = text.replace("\r\n", "\n");
        let lines: Vec<_> = lines.split('\n').map(regex::escape).collect();
        return lines.join(END);
    }
    // The matcher reports an invalid expression later.
    let Ok(ast) = Parser::new().parse(text) else { return text.to_owned() };
    let Ok(ends) = visit(&ast, LineEndVisitor::default());
    let mut across = "(?R)".to_owned();
    let mut at = 0;
    for end in ends {
        across.push_str(&text[at..end.start.offset]);
        across.push_str(END);
        at = end.end.offset;
    }
    across + &text[at..]
}

/// Collector of the positions of line ends in a parsed regular expression, except those in
/// character classes.
#[derive(Default)]
struct LineEndVisitor(Vec<Span>);

impl Visitor for LineEndVisitor {
    type Output = Vec<Span>;
    type Err = Infallible;

    fn finish(self) -> Result<Vec<Span>, Infallible> {
        Ok(self.0)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        if let Ast::Literal(literal) = ast
            && literal.c == '\n'
        {
            self.0.push(literal.span);
        }
        Ok(())
    }
}

/// Returns the start and end byte of the first match of `matcher` in `text`.
pub(crate) fn find_span(matcher: &RegexMatcher, text: &[u8]) -> Option<(usize, usize)> {
    let found = matcher.find(text).ok().flatten()?;
    Some((found.start(), found.end()))
}
