//! Patterns of schemas: their compiled size, which is estimated before they are compiled, and the
//! steps that a match may take.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;

use fancy_regex::{Regex, RegexBuilder};
use jsonschema::{Keyword, ValidationError};
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::Value;

use crate::work::is_time_over;

/// Largest compiled size of one pattern of a schema, in bytes.
pub(super) const PATTERN_BYTES_MAX: usize = 8 << 20;
/// Largest compiled size of all patterns of a schema, in bytes.
const ALL_PATTERN_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of different patterns in a schema.
const PATTERNS_MAX: usize = 256;
/// Largest compiled size of each sub-pattern of a pattern with look-around or back-references, in
/// bytes.
const PART_BYTES_MAX: usize = 256 << 10;
/// Longest pattern with look-around or back-references, in bytes.
const BACKTRACKING_TEXT_MAX: usize = 1_000;
/// Largest cache of a pattern's automaton states, per thread, in bytes.
pub(super) const DFA_BYTES_MAX: usize = 256 << 10;
/// Memory of one automaton state of a compiled pattern, in bytes.
const STATE_BYTES: u64 = 32;
/// Memory of a range of characters beyond ASCII in a compiled pattern, in bytes.
const UNICODE_RANGE_BYTES: u64 = 80;
/// Maximum number of steps of a pattern match without backtracking: bytes of the text times states.
const STEPS_MAX: u64 = 2_000_000_000;
/// Maximum number of steps of a pattern match with backtracking: bytes of the text times
/// backtracks.
const BACKTRACKING_STEPS_MAX: usize = 4_000_000;
/// Longest text, in bytes, that is matched with the backtracking pattern compiled in advance. For a
/// longer text, the pattern is compiled again with a lower limit of backtracks.
const SHORT_TEXT_BYTES: usize = 512;
/// Maximum number of steps for matching all property names of a value with patterns.
pub(super) const NAME_STEPS_MAX: u64 = STEPS_MAX;

thread_local! {
    /// True if a match of a schema's pattern on this thread was stopped at a limit.
    static UNFINISHED: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if a match of a schema's pattern on this thread was stopped at a limit since the
/// last call of this function.
pub(super) fn forget_unfinished() -> bool {
    UNFINISHED.replace(false)
}

/// Compiled size and number of the patterns in a schema.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PatternSizeTotals {
    /// Compiled size of all patterns of the schema, in bytes.
    pub(super) bytes: u64,
    /// Number of different patterns in the schema.
    pub(super) count: usize,
    /// True if a pattern of the schema has look-around or back-references.
    pub(super) backtracks: bool,
    /// Number of automaton states of all patterns for property names.
    pub(super) name_states: u64,
    /// Number of patterns with backtracking for property names.
    pub(super) backtracking_names: u64,
}

/// Counter of the patterns in a schema, which measures each pattern once.
#[derive(Default)]
pub(super) struct PatternSizeCounter<'s> {
    sizes: PatternSizeTotals,
    seen: HashSet<&'s str>,
    seen_names: HashSet<&'s str>,
}

/// Compiled size of one regular expression, and whether a match needs backtracking.
struct RegexPatternSize {
    bytes: u64,
    backtracks: bool,
}

impl PatternSizeTotals {
    /// Returns the maximum compiled size of a pattern for property names, in bytes. The maximum is
    /// lower if one of these patterns needs backtracking.
    pub(super) fn size_limit(&self) -> usize {
        if self.backtracking_names > 0 { PART_BYTES_MAX } else { PATTERN_BYTES_MAX }
    }
}

impl<'s> PatternSizeCounter<'s> {
    /// Adds the value of a schema's keyword `pattern`.
    ///
    /// # Errors
    /// The pattern is invalid, or the patterns exceed a limit.
    pub(super) fn add(&mut self, pattern: &'s str) -> Result<(), String> {
        if self.seen.insert(pattern) {
            self.count(pattern)?;
        }
        Ok(())
    }

    /// Adds a schema's pattern for property names.
    ///
    /// # Errors
    /// The pattern is invalid, or the patterns exceed a limit.
    pub(super) fn add_name(&mut self, pattern: &'s str) -> Result<(), String> {
        if self.seen_names.insert(pattern) {
            let RegexPatternSize { bytes, backtracks } = self.count(pattern)?;
            self.sizes.name_states += bytes / STATE_BYTES + 1;
            self.sizes.backtracking_names += u64::from(backtracks);
        }
        Ok(())
    }

    /// Returns the total size of all patterns.
    pub(super) fn finish(self) -> PatternSizeTotals {
        self.sizes
    }

    fn count(&mut self, pattern: &str) -> Result<RegexPatternSize, String> {
        let size = RegexPatternSize::measure(pattern)?;
        self.sizes.bytes = self.sizes.bytes.saturating_add(size.bytes);
        self.sizes.count += 1;
        self.sizes.backtracks |= size.backtracks;
        if self.sizes.count > PATTERNS_MAX {
            return Err(format!("the schema has more than {PATTERNS_MAX} patterns"));
        }
        if self.sizes.bytes > ALL_PATTERN_BYTES_MAX {
            return Err(format!(
                "the patterns of the schema take more than {ALL_PATTERN_BYTES_MAX} bytes of \
                 memory in total; \
                 shorten repetitions such as `{{40}}`"
            ));
        }
        Ok(size)
    }
}

impl RegexPatternSize {
    /// Measures the compiled size of `pattern` without compiling it. Fails if the pattern is
    /// invalid or too large.
    fn measure(pattern: &str) -> Result<Self, String> {
        let translated = translate(pattern)?;
        let size = match regex_syntax::parse(&translated) {
            Ok(parsed) => Self { bytes: compiled_bytes(&parsed), backtracks: false },
            // Each part between look-arounds, groups and back-references is compiled by itself.
            Err(_) => {
                let parts = translated.matches(['(', '\\']).count() as u64 + 1;
                Self { bytes: parts.saturating_mul(PART_BYTES_MAX as u64 / 4), backtracks: true }
            }
        };
        let shown: String = pattern.chars().take(60).collect();
        if size.backtracks && translated.len() > BACKTRACKING_TEXT_MAX {
            return Err(format!(
                "the pattern `{shown}…` is longer than {BACKTRACKING_TEXT_MAX} bytes, the maximum \
                 for a pattern with look-around or back-references"
            ));
        }
        if size.bytes > PATTERN_BYTES_MAX as u64 {
            return Err(format!(
                "the pattern `{shown}` takes more than {PATTERN_BYTES_MAX} bytes of memory; \
                 shorten repetitions such as `{{40}}`"
            ));
        }
        Ok(size)
    }
}

/// Translates a pattern from the syntax of JSON Schema (ECMA-262) to that of the regex engine.
/// Fails if the pattern is invalid.
fn translate(pattern: &str) -> Result<Cow<'_, str>, String> {
    jsonschema_regex::to_rust_regex(pattern).map_err(|()| {
        let shown: String = pattern.chars().take(60).collect();
        format!("the pattern `{shown}` is not a regular expression")
    })
}

/// Estimates the compiled size of the pattern `parsed`, in which repetitions are not expanded yet.
fn compiled_bytes(parsed: &Hir) -> u64 {
    match parsed.kind() {
        HirKind::Empty => 0,
        HirKind::Look(_) => STATE_BYTES,
        HirKind::Literal(literal) => STATE_BYTES * literal.0.len() as u64,
        HirKind::Class(Class::Unicode(class)) => {
            let bytes = class.iter().map(|range| match range.end().is_ascii() {
                true => STATE_BYTES / 2,
                false => UNICODE_RANGE_BYTES,
            });
            STATE_BYTES + bytes.sum::<u64>()
        }
        HirKind::Class(Class::Bytes(class)) => STATE_BYTES * (1 + class.iter().count() as u64),
        HirKind::Repetition(repeated) => {
            let times = repeated.max.unwrap_or(repeated.min.saturating_add(1)).max(1);
            u64::from(times).saturating_mul(compiled_bytes(&repeated.sub) + STATE_BYTES)
        }
        HirKind::Capture(captured) => compiled_bytes(&captured.sub) + 2 * STATE_BYTES,
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().map(compiled_bytes).fold(STATE_BYTES, u64::saturating_add)
        }
    }
}

/// A compiled `pattern` of a schema whose matches take a bounded number of steps.
pub(super) struct BoundedRegexPattern {
    /// Pattern as it is written in the schema.
    source: String,
    /// Pattern in the syntax of the regex engine. `None` if a match needs no backtracking.
    backtracking: Option<String>,
    /// Number of automaton states of the compiled pattern.
    states: u64,
    regex: Regex,
}

impl BoundedRegexPattern {
    /// Compiles the schema's `pattern`.
    ///
    /// # Errors
    /// The pattern is invalid or too large.
    pub(super) fn compile(pattern: &str) -> Result<Self, String> {
        let size = RegexPatternSize::measure(pattern)?;
        let translated = translate(pattern)?.into_owned();
        let limit = if size.backtracks { PART_BYTES_MAX } else { PATTERN_BYTES_MAX };
        let backtracks = BACKTRACKING_STEPS_MAX / SHORT_TEXT_BYTES;
        let regex = build(&translated, backtracks, limit).map_err(|_| {
            let shown: String = pattern.chars().take(60).collect();
            format!("the pattern `{shown}` is invalid, or takes too much memory")
        })?;
        let backtracking = size.backtracks.then_some(translated);
        let states = size.bytes / STATE_BYTES + 1;
        Ok(Self { source: pattern.to_owned(), backtracking, states, regex })
    }

    /// Returns true if `text` matches the pattern.
    ///
    /// # Errors
    /// Describes the limit that the match would exceed.
    fn matches(&self, text: &str) -> Result<bool, &'static str> {
        let matched = self.matches_in_time(text);
        if matched.is_err() {
            UNFINISHED.set(true);
        }
        matched
    }

    fn matches_in_time(&self, text: &str) -> Result<bool, &'static str> {
        if is_time_over() {
            return Err("could not be matched in time against");
        }
        let too_long = "is too long to be matched against";
        let matched = match &self.backtracking {
            None if self.states.saturating_mul(text.len() as u64) > STEPS_MAX => {
                return Err(too_long);
            }
            None => self.regex.is_match(text),
            Some(_) if text.len() <= SHORT_TEXT_BYTES => self.regex.is_match(text),
            Some(pattern) => {
                // Each backtrack may look at the whole text.
                let backtracks = BACKTRACKING_STEPS_MAX / text.len();
                let regex = build(pattern, backtracks, PART_BYTES_MAX).map_err(|_| too_long)?;
                regex.is_match(text)
            }
        };
        matched.map_err(|_| "takes too many steps to be matched against")
    }
}

/// Compiles the regular expression `translated`. A match may backtrack at most `backtracks` times.
/// Each compiled sub-pattern may take at most `bytes_max` bytes.
fn build(
    translated: &str,
    backtracks: usize,
    bytes_max: usize,
) -> Result<Regex, Box<fancy_regex::Error>> {
    RegexBuilder::new(translated)
        .backtrack_limit(backtracks)
        .delegate_size_limit(bytes_max)
        .delegate_dfa_size_limit(DFA_BYTES_MAX)
        .build()
        .map_err(Box::new)
}

impl<'i> Keyword<'i> for BoundedRegexPattern {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        let Value::String(text) = instance else { return Ok(()) };
        let verb = match self.matches(text) {
            Ok(true) => return Ok(()),
            Ok(false) => "does not match",
            Err(verb) => verb,
        };
        Err(ValidationError::custom(format!("{instance} {verb} \"{}\"", self.source)))
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        match instance {
            Value::String(text) => self.matches(text).unwrap_or(false),
            _ => true,
        }
    }
}
