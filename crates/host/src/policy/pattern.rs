//! Matches tool ids and names against patterns, and checks patterns for errors.

use globset::{Glob, GlobMatcher};
use regex::Regex;
use toolgate_contract::{ToolId, ToolSpec, fold_name, glob_problem};

/// A pattern of tool ids, in the spelling of any dialect: `exec.*` equals `exec_*`.
#[derive(Debug)]
pub(crate) struct ToolPattern {
    pattern: String,
    setting: &'static str,
    folded: GlobMatcher,
}

/// Minimum similarity of a misspelled toolset to a later toolset, whose tools are not known yet,
/// for suggesting the later one. The value is high, because a later toolset is suggested before any
/// tool.
const LATER_SIMILARITY_MIN: f64 = 0.85;

/// Error in a rule of the settings that is invalid or has no effect.
#[derive(Debug, thiserror::Error)]
pub enum ToolRuleError {
    /// The tool pattern of a rule is invalid.
    #[error("in {setting}: `{pattern}` is not a tool pattern such as `files.*`: {why}")]
    InvalidPattern {
        /// Name of the setting that contains the rule.
        setting: &'static str,
        /// The pattern as it is written in the settings.
        pattern: String,
        /// Description of the problem with the pattern.
        why: String,
    },
    /// The pattern of a rule matches no tool, so the rule would have no effect.
    #[error("in {setting}: `{pattern}` matches no tool{}", nearest.as_ref().map(|id| format!("; did you mean `{id}`?")).unwrap_or_default())]
    NoMatch {
        /// Name of the setting that contains the rule.
        setting: &'static str,
        /// The pattern as it is written in the settings.
        pattern: String,
        /// Most similar tool id, or the pattern of its toolset, as a suggestion.
        nearest: Option<String>,
    },
    /// A rule of `[[policy.rules]]` is invalid.
    #[error("in policy.rules, `{name}`: {why}")]
    InvalidRule {
        /// Name of the invalid rule.
        name: String,
        /// Description of the problem with the rule.
        why: String,
    },
}

impl ToolPattern {
    /// Parses the tool pattern `pattern`, which comes from `setting`.
    pub(crate) fn new(setting: &'static str, pattern: &str) -> Result<Self, ToolRuleError> {
        let pattern = pattern.to_owned();
        if let Some(why) = glob_problem(&pattern) {
            return Err(ToolRuleError::InvalidPattern { setting, pattern, why });
        }
        match Glob::new(&fold_name(&pattern)) {
            Ok(glob) => Ok(Self { folded: glob.compile_matcher(), pattern, setting }),
            Err(err) => {
                let why = err.kind().to_string();
                Err(ToolRuleError::InvalidPattern { setting, pattern, why })
            }
        }
    }

    /// Returns true if a restriction with this pattern applies to the tool: the pattern matches the
    /// tool's id, or the id `ruled_as` of the tool whose restrictions apply to it, too.
    pub(crate) fn restricts(&self, spec: &ToolSpec) -> bool {
        self.matches(&spec.id) || spec.ruled_as.as_ref().is_some_and(|id| self.matches(id))
    }

    /// Returns true if the pattern matches the tool `id`.
    pub(crate) fn matches(&self, id: &ToolId) -> bool {
        self.folded.is_match(&*fold_name(id.as_str()))
    }

    /// Checks that the pattern matches a `known` tool, or may match a tool that is added later.
    ///
    /// # Errors
    /// The pattern matches no such tool.
    pub(crate) fn check(&self, known: &KnownToolSet) -> Result<(), ToolRuleError> {
        let KnownToolSet { tools, later_toolsets: later } = known;
        if tools.iter().any(|id| self.matches(id))
            || later.iter().any(|toolset| self.may_match(toolset))
        {
            return Ok(());
        }
        let Self { pattern, setting, .. } = self;
        let similarity =
            |id: &ToolId| strsim::jaro_winkler(&fold_name(pattern), &fold_name(id.as_str()));
        let nearest = tools.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        let is_whole_toolset = pattern.ends_with(".*") || pattern.ends_with("_*");
        let nearest = nearest.filter(|id| similarity(id) > 0.7).map(|id| match is_whole_toolset {
            true => toolset_pattern(id.as_str()),
            false => id.to_string(),
        });
        let nearest = self.nearest_later(later).or(nearest);
        Err(ToolRuleError::NoMatch { setting, pattern: pattern.clone(), nearest })
    }

    /// Returns this pattern with its toolset replaced by the most similar of the `later` toolsets,
    /// if one is similar enough.
    fn nearest_later(&self, later: &[String]) -> Option<String> {
        let pattern = self.pattern.as_str();
        let (typed, rest) = pattern.split_once('.').or_else(|| pattern.rsplit_once('_'))?;
        let typed = fold_name(typed);
        let similarity = |toolset: &str| strsim::jaro_winkler(&typed, &fold_name(toolset));
        let names = later.iter().map(String::as_str).filter(|toolset| !toolset.is_empty());
        let nearest = names.max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
        (similarity(nearest) > LATER_SIMILARITY_MIN).then(|| format!("{nearest}.{rest}"))
    }

    /// Returns true if the pattern may match an id in `toolset`. An empty `toolset` stands for ids
    /// of any toolset.
    fn may_match(&self, toolset: &str) -> bool {
        let pattern = fold_name(&self.pattern).into_owned();
        let literal = pattern.split(['*', '?', '[', '{', '\\']).next().unwrap_or_default();
        let prefix = match toolset {
            "" => String::new(),
            toolset => fold_name(&format!("{toolset}.")).into_owned(),
        };
        literal.starts_with(&prefix)
            || (literal.len() < pattern.len() && prefix.starts_with(literal))
    }
}

/// Returns the pattern that matches all tools in the toolset of the tool `id`.
fn toolset_pattern(id: &str) -> String {
    id.split_once('.').map_or_else(|| id.to_owned(), |(toolset, _)| format!("{toolset}.*"))
}

/// Checks that the tool pattern `pattern` of `setting` is valid and matches one of the `known`
/// tools.
///
/// # Errors
/// The pattern is invalid, or matches none of the tools.
pub fn check_pattern(
    setting: &'static str,
    pattern: &str,
    known: &KnownToolSet,
) -> Result<(), ToolRuleError> {
    ToolPattern::new(setting, pattern)?.check(known)
}

/// Known tools, against which the patterns of settings are checked.
#[derive(Debug, Clone, Default)]
pub struct KnownToolSet {
    /// Tools that exist now.
    pub tools: Vec<ToolId>,
    /// Toolsets whose tools may be added later. An empty name means tools without a toolset.
    pub later_toolsets: Vec<String>,
}

/// A pattern of caller or role names, in which `*` matches any text and `?` one character.
pub(super) enum CallerNamePattern {
    Exact(Box<str>),
    Wildcard(Regex),
}

impl CallerNamePattern {
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        if let Some(sign) = pattern.chars().find(|letter| r"[]{}\".contains(*letter)) {
            return Err(format!(
                "`{pattern}`: `{sign}` is not supported in patterns of names; `*` matches any text \
                 and `?` one character"
            ));
        }
        if !pattern.contains(['*', '?']) {
            return Ok(Self::Exact(pattern.into()));
        }
        let like = Regex::new(&name_regex(pattern)).map_err(|err| format!("`{pattern}`: {err}"))?;
        Ok(Self::Wildcard(like))
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *name,
            Self::Wildcard(like) => like.is_match(name),
        }
    }
}

/// Converts a name `pattern` to a regular expression.
fn name_regex(pattern: &str) -> String {
    let letter = |letter: char| match letter {
        '*' => ".*".to_owned(),
        '?' => ".".to_owned(),
        letter => regex::escape(letter.encode_utf8(&mut [0; 4])),
    };
    format!(r"(?s)\A{}\z", pattern.chars().map(letter).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_pattern_gets_a_suggestion_of_the_same_form() {
        let tools = vec![ToolId::new("files.read").expect("an id")];
        let known = KnownToolSet { tools, later_toolsets: Vec::new() };
        for (typed, suggested) in
            [("filse.*", "`files.*`"), ("filse_*", "`files.*`"), ("files.raed", "`files.read`")]
        {
            let refusal = check_pattern("a test", typed, &known).expect_err(typed).to_string();
            assert!(refusal.ends_with(&format!("did you mean {suggested}?")), "{refusal}");
        }
    }

    #[test]
    fn a_misspelled_upstream_is_suggested_before_its_tools_are_known() {
        let tools = vec![ToolId::new("files.read").expect("an id")];
        let known = KnownToolSet { tools, later_toolsets: vec!["memory".to_owned()] };
        for (typed, suggested) in [
            ("memry.*", "`memory.*`"),
            ("memry_*", "`memory.*`"),
            ("memory2.read", "`memory.read`"),
            ("filse.*", "`files.*`"),
        ] {
            let refusal = check_pattern("a test", typed, &known).expect_err(typed).to_string();
            assert!(refusal.ends_with(&format!("did you mean {suggested}?")), "{refusal}");
        }
    }

    #[test]
    fn a_pattern_may_match_tools_of_later_toolsets_only() {
        let tools = vec![ToolId::new("files.read").expect("an id")];
        let known = |later: &[&str]| KnownToolSet {
            tools: tools.clone(),
            later_toolsets: later.iter().map(|toolset| (*toolset).to_owned()).collect(),
        };
        let is_accepted = |pattern: &str, later: &[&str]| {
            ToolPattern::new("a test", pattern).expect("a pattern").check(&known(later)).is_ok()
        };
        for pattern in ["files.*", "a.*", "a_echo", "*.echo", "a*", "?.x", "*"] {
            assert!(is_accepted(pattern, &["a"]), "{pattern}");
        }
        for pattern in ["filez.*", "b.*", "fils.read", "ab.*", "a"] {
            assert!(!is_accepted(pattern, &["a"]), "{pattern}");
            assert!(is_accepted(pattern, &["a", ""]), "{pattern}");
        }
    }
}
