//! Who may use which tool.

use globset::{Glob, GlobSet, GlobSetBuilder};
use toolgate_contract::{CallError, Caller, Effects, ToolSpec};

/// Rules over tools: which are offered at all, and whether any may change things.
pub struct Policy {
    allow: GlobSet,
    deny: GlobSet,
    effects_max: Effects,
}

/// Proof that policy allowed a call. Only [`Policy::authorise`] makes one.
pub(crate) struct Permit(());

/// A rule that is not a pattern over tool ids.
#[derive(Debug, thiserror::Error)]
#[error("`{pattern}` is not a pattern over tool ids such as `files.*`: {why}")]
pub struct BadRule {
    /// The rule as written.
    pub pattern: String,
    /// What is wrong with it.
    pub why: String,
}

impl Policy {
    /// Offers the tools that match `allow` and not `deny` and do no more than `effects_max`.
    pub fn new(allow: &[String], deny: &[String], effects_max: Effects) -> Result<Self, BadRule> {
        Ok(Self { allow: patterns(allow)?, deny: patterns(deny)?, effects_max })
    }

    /// Whether `caller` sees the tool: what one may not use, one does not see.
    pub(crate) fn shows(&self, _caller: &Caller, spec: &ToolSpec) -> bool {
        let id = spec.id.as_str();
        spec.effects <= self.effects_max && self.allow.is_match(id) && !self.deny.is_match(id)
    }

    /// Allows the call or says why not.
    pub(crate) fn authorise(&self, caller: &Caller, spec: &ToolSpec) -> Result<Permit, CallError> {
        if self.shows(caller, spec) {
            return Ok(Permit(()));
        }
        Err(CallError::NotAllowed { message: format!("`{}` is not allowed here", spec.id) })
    }
}

fn patterns(rules: &[String]) -> Result<GlobSet, BadRule> {
    let mut set = GlobSetBuilder::new();
    for pattern in rules {
        let bad = |err: globset::Error| BadRule { pattern: pattern.clone(), why: err.to_string() };
        set.add(Glob::new(pattern).map_err(bad)?);
    }
    let bad = |err: globset::Error| BadRule { pattern: rules.join(", "), why: err.to_string() };
    set.build().map_err(bad)
}
