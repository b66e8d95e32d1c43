//! Patterns over tools and over names, and why one cannot be meant.

use globset::{Glob, GlobMatcher};
use regex::Regex;
use toolgate_contract::{ToolId, ToolSpec, fold, odd_glob};

/// A pattern over tools, by id or as a dialect spells them: `exec.*` and `exec_*` are the same.
#[derive(Debug)]
pub(crate) struct Pattern {
    pattern: String,
    setting: &'static str,
    folded: GlobMatcher,
}

/// A rule that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub enum BadRule {
    /// It is not a pattern.
    #[error("in {setting}: `{pattern}` is not a pattern over tools such as `files.*`: {why}")]
    NoPattern {
        /// Where it stands.
        setting: &'static str,
        /// The rule as written.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// It matches no tool there is, so it would silently do nothing.
    #[error("in {setting}: `{pattern}` matches no tool{}", nearest.as_ref().map(|id| format!("; did you mean `{id}`?")).unwrap_or_default())]
    NoTool {
        /// Where it stands.
        setting: &'static str,
        /// The rule as written.
        pattern: String,
        /// The tool that was probably meant.
        nearest: Option<String>,
    },
    /// A rule of `[[policy.rules]]` says what cannot be meant.
    #[error("in policy.rules, `{name}`: {why}")]
    Policy {
        /// The rule's name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Pattern {
    /// The pattern written `pattern` in `setting`.
    pub(crate) fn new(setting: &'static str, pattern: &str) -> Result<Self, BadRule> {
        let pattern = pattern.to_owned();
        if let Some(why) = odd_glob(&pattern) {
            return Err(BadRule::NoPattern { setting, pattern, why });
        }
        match Glob::new(&fold(&pattern)) {
            Ok(glob) => Ok(Self { folded: glob.compile_matcher(), pattern, setting }),
            Err(err) => {
                let why = err.kind().to_string();
                Err(BadRule::NoPattern { setting, pattern, why })
            }
        }
    }

    /// Whether what it restricts is restricted of the tool: it matches that, or the one whose
    /// rules hold for it too.
    pub(crate) fn holds(&self, spec: &ToolSpec) -> bool {
        self.matches(&spec.id) || spec.ruled_as.as_ref().is_some_and(|id| self.matches(id))
    }

    /// Whether it matches the tool `id`.
    pub(crate) fn matches(&self, id: &ToolId) -> bool {
        self.folded.is_match(&*fold(id.as_str()))
    }

    /// Refuses it if it matches none of the tools that are `known` and could match none that come.
    pub(crate) fn check(&self, known: &KnownTools) -> Result<(), BadRule> {
        let KnownTools { tools, later } = known;
        if tools.iter().any(|id| self.matches(id)) || later.iter().any(|of| self.may_match(of)) {
            return Ok(());
        }
        let Self { pattern, setting, .. } = self;
        let near = |id: &ToolId| strsim::jaro_winkler(&fold(pattern), &fold(id.as_str()));
        let nearest = tools.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
        let nearest = nearest.filter(|id| near(id) > 0.7).map(ToString::to_string);
        Err(BadRule::NoTool { setting, pattern: pattern.clone(), nearest })
    }

    /// Whether it may match a tool whose id begins with `toolset`; with nothing, any.
    fn may_match(&self, toolset: &str) -> bool {
        let pattern = fold(&self.pattern).into_owned();
        let literal = pattern.split(['*', '?', '[', '{', '\\']).next().unwrap_or_default();
        let begins = match toolset {
            "" => String::new(),
            toolset => fold(&format!("{toolset}.")).into_owned(),
        };
        literal.starts_with(&begins)
            || (literal.len() < pattern.len() && begins.starts_with(literal))
    }
}

/// Refuses `pattern`, which `setting` has, where it is none, or is about no tool of those `known`.
///
/// # Errors
/// What is wrong with it.
pub fn check_pattern(
    setting: &'static str,
    pattern: &str,
    known: &KnownTools,
) -> Result<(), BadRule> {
    Pattern::new(setting, pattern)?.check(known)
}

/// What patterns over tools may be about.
#[derive(Debug, Clone, Default)]
pub struct KnownTools {
    /// The tools that there are.
    pub tools: Vec<ToolId>,
    /// The toolsets of those that may come; nothing for tools that are in none.
    pub later: Vec<String>,
}

/// A pattern over names of callers and of roles, in which `*` is anything and `?` one character:
/// most are a name alone.
pub(super) enum Name {
    Exact(Box<str>),
    Like(Regex),
}

impl Name {
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        if let Some(sign) = pattern.chars().find(|letter| r"[]{}\".contains(*letter)) {
            return Err(format!(
                "`{pattern}`: a pattern over names has no `{sign}`; `*` is anything in it and `?` \
                 one character"
            ));
        }
        if !pattern.contains(['*', '?']) {
            return Ok(Self::Exact(pattern.into()));
        }
        let like = Regex::new(&expression(pattern)).map_err(|err| format!("`{pattern}`: {err}"))?;
        Ok(Self::Like(like))
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *name,
            Self::Like(like) => like.is_match(name),
        }
    }
}

/// What matches what `pattern` does, a character at a time.
fn expression(pattern: &str) -> String {
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
    fn a_pattern_may_be_about_tools_that_come_and_not_about_any() {
        let tools = vec![ToolId::new("files.read").expect("an id")];
        let known = |later: &[&str]| KnownTools {
            tools: tools.clone(),
            later: later.iter().map(|of| (*of).to_owned()).collect(),
        };
        let is_sound = |pattern: &str, later: &[&str]| {
            Pattern::new("a test", pattern).expect("a pattern").check(&known(later)).is_ok()
        };
        for pattern in ["files.*", "a.*", "a_echo", "*.echo", "a*", "?.x", "*"] {
            assert!(is_sound(pattern, &["a"]), "{pattern}");
        }
        for pattern in ["filez.*", "b.*", "fils.read", "ab.*", "a"] {
            assert!(!is_sound(pattern, &["a"]), "{pattern}");
            assert!(is_sound(pattern, &["a", ""]), "{pattern}");
        }
    }
}
