//! Maps OAuth scopes to the tools that they allow.

use toolgate_contract::{Caller, CallerKind, Effects, ToolSpec};

use crate::policy::{KnownToolSet, ToolPattern, ToolRuleError};

/// An OAuth scope and the tools that it allows.
#[derive(Debug, Clone)]
pub struct TokenScope {
    /// Name of the scope as it appears in tokens.
    pub name: String,
    /// Patterns for the ids of the tools that the scope allows. A tool must match at least one of
    /// them.
    pub tools: Vec<String>,
    /// Strongest effects of a tool that the scope allows.
    pub effects: Effects,
}

/// All configured scopes. If there are none, scopes are not checked.
#[derive(Default)]
pub(crate) struct TokenScopes(Vec<TokenScopeGrant>);

/// Scope with the compiled patterns of the tools that it allows.
struct TokenScopeGrant {
    name: String,
    tools: Vec<ToolPattern>,
    effects: Effects,
}

/// Result of comparing the scopes of a token with the scope that a tool call needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ScopeCheck {
    /// The caller needs no further scope.
    Satisfied,
    /// The caller lacks this scope.
    Missing(String),
    /// No scope allows the tool.
    Unavailable,
}

impl TokenScopes {
    pub(crate) fn new(scopes: &[TokenScope]) -> Result<Self, ToolRuleError> {
        let granted = scopes.iter().map(|TokenScope { name, tools, effects }| {
            let tools = tools.iter().map(|pattern| ToolPattern::new("scopes.tools", pattern));
            let tools = tools.collect::<Result<_, _>>()?;
            Ok(TokenScopeGrant { name: name.clone(), tools, effects: *effects })
        });
        Ok(Self(granted.collect::<Result<_, _>>()?))
    }

    /// Checks that each tool pattern of the scopes matches one of the `known` tools.
    ///
    /// # Errors
    /// Returns the first pattern that matches nothing.
    pub(crate) fn check(&self, known: &KnownToolSet) -> Result<(), ToolRuleError> {
        self.0.iter().flat_map(|scope| &scope.tools).try_for_each(|rule| rule.check(known))
    }

    /// Checks if the token of `caller` has a scope that allows the tool. If several scopes would
    /// suffice, the result names the first one.
    pub(crate) fn check_scope(&self, caller: &Caller, spec: &ToolSpec) -> ScopeCheck {
        if self.0.is_empty() || caller.kind != CallerKind::Token {
            return ScopeCheck::Satisfied;
        }
        let mut enough = self.0.iter().filter(|scope| scope.covers(spec)).peekable();
        let Some(first) = enough.peek().map(|scope| scope.name.clone()) else {
            return ScopeCheck::Unavailable;
        };
        let has = |scope: &TokenScopeGrant| caller.scopes.iter().any(|has| **has == *scope.name);
        if enough.any(has) { ScopeCheck::Satisfied } else { ScopeCheck::Missing(first) }
    }
}

impl TokenScopeGrant {
    fn covers(&self, spec: &ToolSpec) -> bool {
        spec.effects <= self.effects && self.tools.iter().any(|rule| rule.matches(&spec.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes() -> TokenScopes {
        let scope = |name: &str, tools: &[&str], effects| TokenScope {
            name: name.to_owned(),
            tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
            effects,
        };
        TokenScopes::new(&[
            scope("files:read", &["files.*"], Effects::Reads),
            scope("files:write", &["files_*"], Effects::Changes),
            scope("exec", &["exec.run"], Effects::Runs),
        ])
        .expect("sound")
    }

    fn needed(kind: CallerKind, has: &[&str], tool: &str, effects: Effects) -> ScopeCheck {
        let has: Vec<std::sync::Arc<str>> = has.iter().map(|scope| (*scope).into()).collect();
        let caller = Caller { scopes: has.into(), ..Caller::new("id:ada", kind) };
        let id = toolgate_contract::ToolId::new(tool).expect("an id");
        scopes().check_scope(&caller, &ToolSpec::new(id, "title", "about", effects))
    }

    #[test]
    fn a_token_without_a_sufficient_scope_is_told_the_first_one() {
        let token = |has: &[&str], tool, effects| needed(CallerKind::Token, has, tool, effects);
        let needs = |scope: &str| ScopeCheck::Missing(scope.to_owned());
        assert_eq!(token(&[], "files.read", Effects::Reads), needs("files:read"));
        assert_eq!(token(&["files:read"], "files.read", Effects::Reads), ScopeCheck::Satisfied);
        assert_eq!(token(&["files:write"], "files.read", Effects::Reads), ScopeCheck::Satisfied);
        assert_eq!(token(&["files:read"], "files.write", Effects::Changes), needs("files:write"));
        assert_eq!(token(&["files:READ"], "files.read", Effects::Reads), needs("files:read"));
        assert_eq!(token(&["exec"], "git.log", Effects::Reads), ScopeCheck::Unavailable);
        assert_eq!(token(&["files:write"], "files.purge", Effects::Runs), ScopeCheck::Unavailable);
    }

    #[test]
    fn callers_without_a_token_need_no_scope() {
        for kind in [CallerKind::Local, CallerKind::Anonymous, CallerKind::Key] {
            assert_eq!(needed(kind, &[], "git.log", Effects::Reads), ScopeCheck::Satisfied);
        }
    }
}
