//! Compiles the text or regular expression for which a tool searches files.

use std::convert::Infallible;
use std::sync::Mutex;

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, Span, Visitor, visit};
use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{ToolError, lock_mutex};

/// The maximum size of a compiled regular expression, in bytes. A search uses several times as much
/// memory.
const REGEX_BYTES_MAX: usize = 4 << 20;
/// The maximum length of a regular expression in a call, in bytes. A longer expression would make a
/// search slow, because the matcher tracks each alternative at each byte of the text.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// The maximum size of the DFA cache of one search thread, in bytes. Regular expressions that need
/// more are matched more slowly.
const DFA_BYTES_MAX: usize = 2 << 20;

/// The maximum length of a text or regular expression whose matcher is kept, in bytes.
const KEPT_TEXT_BYTES_MAX: usize = 1 << 10;

/// The pattern of the last search in this process, if it is not long. The next page of a search, and
/// the same search again, use its matcher. Compiling a pattern with `\w` takes 2 ms, a tenth of the
/// time in which 2,000 files are searched. Only one matcher is kept, because it can take some 20 MiB.
static LAST_COMPILED: Mutex<Option<CompiledPattern>> = Mutex::new(None);

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Compiles the pattern, or returns the matcher of the last search if its pattern is equal.
    /// Errors refer to the input field `/query`.
    pub(crate) fn compile(self) -> Result<RegexMatcher, ToolError> {
        let last = lock_mutex(&LAST_COMPILED).as_ref().and_then(|last| last.matcher_for(self));
        if let Some(matcher) = last {
            return Ok(matcher);
        }
        let matcher = self.build()?;
        if self.text.len() <= KEPT_TEXT_BYTES_MAX {
            let compiled = CompiledPattern::new(self, matcher.clone());
            let previous = lock_mutex(&LAST_COMPILED).replace(compiled);
            // Only now, because freeing a large matcher takes time.
            drop(previous);
        }
        Ok(matcher)
    }

    fn build(self) -> Result<RegexMatcher, ToolError> {
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

/// A pattern and its matcher.
struct CompiledPattern {
    text: String,
    /// The pattern without its text.
    options: TextPattern<'static>,
    matcher: RegexMatcher,
}

impl CompiledPattern {
    fn new(pattern: TextPattern<'_>, matcher: RegexMatcher) -> Self {
        let TextPattern { text, literal, word, case, span } = pattern;
        let options = TextPattern { text: "", literal, word, case, span };
        Self { text: text.to_owned(), options, matcher }
    }

    /// Returns the matcher if this is the pattern `wanted`. The clone shares the compiled
    /// expression, and begins with empty caches.
    fn matcher_for(&self, wanted: TextPattern<'_>) -> Option<RegexMatcher> {
        let own = TextPattern { text: &self.text, ..self.options };
        (own == wanted).then(|| self.matcher.clone())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matcher_is_only_used_again_for_an_equal_pattern() {
        let pattern = TextPattern {
            text: "Ab",
            literal: false,
            word: false,
            case: CaseSensitivity::Smart,
            span: MultilineMatching::SingleLine,
        };
        let compiled = CompiledPattern::new(pattern, pattern.build().unwrap());
        assert!(compiled.matcher_for(pattern).is_some());
        for other in [
            TextPattern { text: "ab", ..pattern },
            TextPattern { literal: true, ..pattern },
            TextPattern { word: true, ..pattern },
            TextPattern { case: CaseSensitivity::Sensitive, ..pattern },
            TextPattern { span: MultilineMatching::MultiLine, ..pattern },
        ] {
            assert!(compiled.matcher_for(other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn a_pattern_that_follows_another_uses_its_own_text_and_options() {
        let pattern = TextPattern {
            text: "a.c",
            literal: false,
            word: false,
            case: CaseSensitivity::Sensitive,
            span: MultilineMatching::SingleLine,
        };
        let cases = [
            (pattern, "xabcx\n", true),
            (TextPattern { text: "a.d", ..pattern }, "xabcx\n", false),
            (TextPattern { literal: true, ..pattern }, "xabcx\n", false),
            (TextPattern { word: true, ..pattern }, "xabcx\n", false),
            (TextPattern { case: CaseSensitivity::Insensitive, ..pattern }, "xABCx\n", true),
            (TextPattern { text: r"b\nc", ..pattern }, "b\r\nc\n", false),
        ];
        for (other, text, expected) in cases.repeat(2) {
            assert!(find_span(&pattern.compile().unwrap(), b"xabcx\n").is_some());
            let found = other.compile().is_ok_and(|it| find_span(&it, text.as_bytes()).is_some());
            assert_eq!(found, expected, "{other:?} in {text:?}");
        }
        let across = TextPattern { text: r"b\nc", span: MultilineMatching::MultiLine, ..pattern };
        assert!(TextPattern { span: MultilineMatching::SingleLine, ..across }.compile().is_err());
        assert!(find_span(&across.compile().unwrap(), b"b\r\nc\n").is_some());
    }
}
