//! Who may use which tool.

use std::sync::Arc;

use globset::{Glob, GlobMatcher};
use serde_json::Value;
use toolgate_contract::{CallError, Caller, Effects, ToolId, ToolSpec, fold};

use crate::scopes::{Needs, Scope, Scopes};

/// Rules over tools: which are offered at all, and whether any may change things.
pub struct Policy {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    confirm: Vec<Rule>,
    effects_max: Effects,
    scopes: Scopes,
}

/// What a rule is called in the record.
pub(crate) type RuleName = Arc<str>;

/// Proof that policy allowed a call. Only [`Policy::authorise`] makes one.
pub(crate) struct Permit {
    rule: RuleName,
    confirm: bool,
}

/// That policy does not allow a call, by which rule, and what the caller is told.
#[derive(Debug)]
pub(crate) struct Denied {
    rule: RuleName,
    message: String,
    /// The scope that would be enough for it.
    needs: Option<String>,
}

/// A pattern over tools, by id or as a dialect spells them: `exec.*` and `exec_*` are the same.
pub(crate) struct Rule {
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
}

impl Policy {
    /// Offers the tools that match `allow` and not `deny` and do no more than `effects_max`.
    pub fn new(allow: &[String], deny: &[String], effects_max: Effects) -> Result<Self, BadRule> {
        let (allow, deny) = (rules("tools.allow", allow)?, rules("tools.deny", deny)?);
        Ok(Self { allow, deny, confirm: Vec::new(), effects_max, scopes: Scopes::default() })
    }

    /// The same, with a person asked before each call of a tool that matches `confirm`.
    pub fn with_confirm(self, confirm: &[String]) -> Result<Self, BadRule> {
        Ok(Self { confirm: rules("tools.confirm", confirm)?, ..self })
    }

    /// The same, with callers that have a token held to what its scopes are for, if any are known.
    pub fn with_scopes(self, scopes: &[Scope]) -> Result<Self, BadRule> {
        Ok(Self { scopes: Scopes::new(scopes)?, ..self })
    }

    /// Refuses rules that match none of `tools`: a misspelled one must not seem to hold.
    pub fn check(&self, tools: &[ToolId]) -> Result<(), BadRule> {
        let mut all = self.allow.iter().chain(&self.deny).chain(&self.confirm);
        all.try_for_each(|rule| rule.check(tools))?;
        self.scopes.check(tools)
    }

    /// Whether `caller` sees the tool: what one may not use, one does not see. What another token
    /// would be enough for is seen: else nobody could ask for one.
    pub(crate) fn shows(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        if self.scopes.needed(caller, spec) == Needs::NoScope {
            return false;
        }
        let allowed = self.allow.iter().any(|rule| rule.matches(&spec.id));
        spec.effects <= self.effects_max
            && allowed
            && !self.deny.iter().any(|rule| rule.holds(spec))
    }

    /// Allows that a prompt be made that is words alone: rules are over tools.
    #[allow(clippy::unused_self, reason = "only a policy makes a permit")]
    pub(crate) fn authorise_prompt(&self) -> Permit {
        Permit { rule: "default".into(), confirm: false }
    }

    /// Allows the call of the tool with `input`, or says why not.
    pub(crate) fn authorise(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        _input: &Value,
    ) -> Result<Permit, Denied> {
        if !self.shows(caller, spec) {
            let message = format!("`{}` is not allowed here", spec.id);
            return Err(Denied { rule: "tools".into(), message, needs: None });
        }
        if let Needs::Scope(scope) = self.scopes.needed(caller, spec) {
            let message =
                format!("`{}` needs the scope {scope}, which this token does not have", spec.id);
            return Err(Denied { rule: "scopes".into(), message, needs: Some(scope) });
        }
        match self.confirm.iter().find(|rule| rule.holds(spec)) {
            Some(_) => Ok(Permit { rule: "tools.confirm".into(), confirm: true }),
            None => Ok(Permit { rule: "default".into(), confirm: false }),
        }
    }
}

impl Permit {
    /// The rule that allowed it.
    pub(crate) fn rule(&self) -> &RuleName {
        &self.rule
    }

    /// Whether a person is to be asked first.
    pub(crate) fn confirms(&self) -> bool {
        self.confirm
    }
}

impl Denied {
    /// The rule that did not allow it.
    pub(crate) fn rule(&self) -> &RuleName {
        &self.rule
    }
}

impl From<Denied> for CallError {
    fn from(Denied { message, needs, .. }: Denied) -> Self {
        match needs {
            None => Self::NotAllowed { message },
            Some(scope) => Self::Scope { message, needs: vec![scope] },
        }
    }
}

impl Rule {
    /// The rule written `pattern` in `setting`.
    pub(crate) fn new(setting: &'static str, pattern: &str) -> Result<Self, BadRule> {
        let pattern = pattern.to_owned();
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
        self.folded.is_match(fold(id.as_str()))
    }

    /// Refuses it if it matches none of `tools`.
    pub(crate) fn check(&self, tools: &[ToolId]) -> Result<(), BadRule> {
        if tools.iter().any(|id| self.matches(id)) {
            return Ok(());
        }
        let Self { pattern, setting, .. } = self;
        let near = |id: &ToolId| strsim::jaro_winkler(&fold(pattern), &fold(id.as_str()));
        let nearest = tools.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
        let nearest = nearest.filter(|id| near(id) > 0.7).map(ToString::to_string);
        Err(BadRule::NoTool { setting, pattern: pattern.clone(), nearest })
    }
}

fn rules(setting: &'static str, patterns: &[String]) -> Result<Vec<Rule>, BadRule> {
    patterns.iter().map(|pattern| Rule::new(setting, pattern)).collect()
}
