//! Who may use which tool.

use globset::{Glob, GlobMatcher};
use toolgate_contract::{CallError, Caller, Effects, ToolId, ToolSpec, fold};

/// Rules over tools: which are offered at all, and whether any may change things.
pub struct Policy {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    effects_max: Effects,
}

/// Proof that policy allowed a call. Only [`Policy::authorise`] makes one.
pub(crate) struct Permit(());

/// A pattern over tools, by id or as a dialect spells them: `exec.*` and `exec_*` are the same.
struct Rule {
    pattern: String,
    folded: GlobMatcher,
}

/// A rule that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub enum BadRule {
    /// It is not a pattern.
    #[error("`{pattern}` is not a pattern over tools such as `files.*`: {why}")]
    NoPattern {
        /// The rule as written.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// It matches no tool there is, so it would silently do nothing.
    #[error("`{pattern}` matches no tool{}", nearest.as_ref().map(|id| format!("; did you mean `{id}`?")).unwrap_or_default())]
    NoTool {
        /// The rule as written.
        pattern: String,
        /// The tool that was probably meant.
        nearest: Option<String>,
    },
}

impl Policy {
    /// Offers the tools that match `allow` and not `deny` and do no more than `effects_max`.
    pub fn new(allow: &[String], deny: &[String], effects_max: Effects) -> Result<Self, BadRule> {
        Ok(Self { allow: rules(allow)?, deny: rules(deny)?, effects_max })
    }

    /// Refuses rules that match none of `tools`: a misspelled one must not seem to hold.
    pub fn check(&self, tools: &[ToolId]) -> Result<(), BadRule> {
        for Rule { pattern, folded } in self.allow.iter().chain(&self.deny) {
            if !tools.iter().any(|id| folded.is_match(fold(id.as_str()))) {
                let near = |id: &ToolId| strsim::jaro_winkler(&fold(pattern), &fold(id.as_str()));
                let nearest = tools.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
                let nearest = nearest.filter(|id| near(id) > 0.7).map(ToString::to_string);
                return Err(BadRule::NoTool { pattern: pattern.clone(), nearest });
            }
        }
        Ok(())
    }

    /// Whether `caller` sees the tool: what one may not use, one does not see.
    pub(crate) fn shows(&self, _caller: &Caller, spec: &ToolSpec) -> bool {
        let name = fold(spec.id.as_str());
        let matched = |rules: &[Rule]| rules.iter().any(|rule| rule.folded.is_match(&name));
        spec.effects <= self.effects_max && matched(&self.allow) && !matched(&self.deny)
    }

    /// Allows the call or says why not.
    pub(crate) fn authorise(&self, caller: &Caller, spec: &ToolSpec) -> Result<Permit, CallError> {
        if self.shows(caller, spec) {
            return Ok(Permit(()));
        }
        Err(CallError::NotAllowed { message: format!("`{}` is not allowed here", spec.id) })
    }
}

fn rules(patterns: &[String]) -> Result<Vec<Rule>, BadRule> {
    let rules = patterns.iter().map(|pattern| match Glob::new(&fold(pattern)) {
        Ok(glob) => Ok(Rule { pattern: pattern.clone(), folded: glob.compile_matcher() }),
        Err(err) => {
            Err(BadRule::NoPattern { pattern: pattern.clone(), why: err.kind().to_string() })
        }
    });
    rules.collect()
}
