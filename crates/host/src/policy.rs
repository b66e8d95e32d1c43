//! Decides which caller may use which tool with which input. The first matching rule decides.
//!
//! If a rule cannot be evaluated, the strict effect applies: a deny or confirm rule denies, and an
//! allow rule is skipped.

mod permit;
mod rule;
mod pattern;
mod expression;
mod binding;
mod plain_path;
mod text_comparison;
mod explain;
#[cfg(any(fuzzing, test))]
mod fuzzing;
#[cfg(test)]
mod tests;
pub(crate) mod scopes;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use foldhash::HashMap;
use serde_json::Value;
use toolgate_contract::{Caller, Effects, ToolId, ToolSpec};

use crate::policy::scopes::{ScopeCheck, TokenScope, TokenScopes};
use expression::{ExpressionSettings, PolicyCondition};
use rule::{CompiledPolicyRule, PolicyRuleMatch, PolicyRuleMismatch, RuleToolSelection};

pub use explain::{PolicyDecision, PolicyExplanation};
#[cfg(any(fuzzing, test))]
pub(crate) use fuzzing::{fuzz_paths, fuzz_patterns, fuzz_when};
pub(crate) use pattern::ToolPattern;
pub use pattern::{KnownToolSet, ToolRuleError, check_pattern};
pub(crate) use permit::{CallPermit, PolicyDenial};
pub use rule::{PolicyEffect, PolicyRule};

/// Name of a policy rule in the audit record.
pub(crate) type PolicyRuleName = Arc<str>;

/// Rule name in the audit record if no rule matches.
const DEFAULT: &str = "default";
/// Rule name in the audit record if a token lacks a scope.
const SCOPES: &str = "scopes";

/// Policy: rules that decide about calls by caller, tool and input.
pub struct ToolPolicy {
    /// Rules of the `[tools]` settings, which only deny, followed by those of `[[policy.rules]]`.
    rules: Vec<CompiledPolicyRule>,
    /// Number of leading rules that come from the `[tools]` settings. These rules depend on the
    /// tool alone.
    tools_rule_count: usize,
    /// True if `tools.allow`, the last rule of the `[tools]` settings, allows all tools.
    allows_all: bool,
    /// Rules of `tools.confirm`, which apply to allowed calls.
    confirm: Vec<CompiledPolicyRule>,
    default: PolicyEffect,
    default_name: PolicyRuleName,
    /// Rules that concern each known tool, so that a call skips all other rules.
    tool_rules: HashMap<ToolId, ToolRules>,
    bounds: ExpressionSettings,
    /// Scopes that callers with a token need in addition to the rules.
    scopes: TokenScopes,
}

/// Indexes of the policy rules that concern one tool, with the properties of the tool on which they
/// depend.
struct ToolRules {
    effects: Effects,
    ruled_as: Option<ToolId>,
    rules: Box<[usize]>,
}

/// A request for a policy decision.
pub(crate) struct PolicyRequest<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) spec: &'a ToolSpec,
    pub(crate) input: &'a Value,
    pub(crate) kind: PolicyRequestKind,
}

/// Type of a request to the policy: a tool call, another request to which the rules of a tool
/// apply, or a text-only prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PolicyRequestKind {
    Tool,
    Guarded,
    TextPrompt,
}

/// Result of checking one policy rule for a request.
pub(crate) struct PolicyRuleEvaluation {
    rule: PolicyRuleName,
    effect: PolicyEffect,
    matched: PolicyRuleMatch,
}

/// A policy decision and the name of the rule that made it.
struct PolicyVerdictWithRule<'p> {
    verdict: PolicyVerdict<'p>,
    rule: PolicyRuleName,
}

/// Answer of the policy to the question if one caller may see a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToolVisibility {
    /// The caller may see the tool.
    Shown,
    /// The tool is not available for this reason, which the caller may know.
    Unavailable(String),
    /// The caller must not learn that the tool exists.
    Hidden,
}

/// Decision of a policy rule about a call.
enum PolicyVerdict<'p> {
    Allowed,
    Confirm,
    Denied(Option<&'p str>),
    /// The call is denied, because a policy rule could not be evaluated.
    Failed,
}

impl ToolPolicy {
    /// Creates a policy that allows a tool if its id matches `allow`, does not match `deny`, and
    /// has at most the effects `effects_max`.
    ///
    /// # Errors
    /// A pattern is invalid.
    pub fn new(
        allow: &[String],
        deny: &[String],
        effects_max: Effects,
    ) -> Result<Self, ToolRuleError> {
        let mut rules = single_pattern_rules("tools.deny", deny, PolicyEffect::Deny)?;
        if effects_max < Effects::Runs {
            let above = RuleToolSelection::AboveEffects(effects_max);
            rules.push(CompiledPolicyRule::for_tools(
                "tools.effects".to_owned(),
                PolicyEffect::Deny,
                above,
            ));
        }
        let allows_all = allow.iter().any(|pattern| pattern == "*");
        let allow: Vec<_> = allow
            .iter()
            .map(|pattern| ToolPattern::new("tools.allow", pattern))
            .collect::<Result<_, _>>()?;
        let others = RuleToolSelection::NotMatching(allow);
        rules.push(CompiledPolicyRule::for_tools(
            "tools.allow".to_owned(),
            PolicyEffect::Deny,
            others,
        ));
        Ok(Self {
            tools_rule_count: rules.len(),
            allows_all,
            rules,
            confirm: Vec::new(),
            default: PolicyEffect::Allow,
            default_name: DEFAULT.into(),
            tool_rules: HashMap::default(),
            bounds: ExpressionSettings::default(),
            scopes: TokenScopes::default(),
        })
    }

    /// Requires a confirmation for each call of a tool that matches `confirm`.
    ///
    /// # Errors
    /// A pattern is invalid.
    pub fn with_confirm(self, confirm: &[String]) -> Result<Self, ToolRuleError> {
        Ok(Self {
            confirm: single_pattern_rules("tools.confirm", confirm, PolicyEffect::Confirm)?,
            ..self
        })
    }

    /// Sets the path of the workspace. Policy rules see paths inside the workspace without this
    /// prefix.
    pub fn with_root(mut self, root: &Path) -> Self {
        self.bounds.root = root.to_str().map(|root| root.trim_end_matches('/').into());
        self
    }

    /// Adds the policy rules `rules` in their order, and sets the effect `default` for requests
    /// that none of them matches.
    ///
    /// # Errors
    /// A rule is invalid.
    pub fn with_rules(
        mut self,
        rules: &[PolicyRule],
        default: PolicyEffect,
    ) -> Result<Self, ToolRuleError> {
        let mut names = HashSet::new();
        for written in rules {
            let rule = CompiledPolicyRule::new(written, &self.bounds)?;
            if !names.insert(rule.name.clone()) {
                let why = "another rule has the same name; each rule needs its own name";
                return Err(ToolRuleError::InvalidRule {
                    name: written.name.clone(),
                    why: why.to_owned(),
                });
            }
            self.rules.push(rule);
        }
        Ok(Self { default, ..self })
    }

    /// Precomputes the rules that concern each of `tools`.
    pub(crate) fn with_tools<'t>(mut self, tools: impl Iterator<Item = &'t ToolSpec>) -> Self {
        for spec in tools {
            let concerns = |at: &usize| self.rules[*at].check_tool(spec).is_ok();
            let known = ToolRules {
                effects: spec.effects,
                ruled_as: spec.ruled_as.clone(),
                rules: (0..self.rules.len()).filter(concerns).collect(),
            };
            self.tool_rules.insert(spec.id.clone(), known);
        }
        self
    }

    /// Restricts callers with a token to the tools of their scopes, if there are any scopes.
    ///
    /// # Errors
    /// A pattern is invalid.
    pub fn with_scopes(self, scopes: &[TokenScope]) -> Result<Self, ToolRuleError> {
        Ok(Self { scopes: TokenScopes::new(scopes)?, ..self })
    }

    /// Checks that each policy rule matches one of the `known` tools, because a misspelled rule
    /// would have no effect.
    ///
    /// # Errors
    /// Returns the first rule that matches nothing.
    pub fn check(&self, known: &KnownToolSet) -> Result<(), ToolRuleError> {
        let (tools_rules, others) = self.rules.split_at(self.tools_rule_count);
        tools_rules.iter().chain(&self.confirm).try_for_each(|rule| rule.check(known))?;
        let text_prompts = ToolId::new("prompts");
        let tools = known.tools.iter().cloned().chain(text_prompts).collect();
        let all = KnownToolSet { tools, later_toolsets: known.later_toolsets.clone() };
        others.iter().try_for_each(|rule| rule.check(&all))?;
        self.scopes.check(known)
    }

    /// Decides if `caller` may call the tool `spec` with `input`. Returns a permit, or the denial.
    pub(crate) fn authorise(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        input: &Value,
    ) -> Result<CallPermit, PolicyDenial> {
        self.decide_permit(&PolicyRequest { caller, spec, input, kind: PolicyRequestKind::Tool })
    }

    /// Decides if `caller` may make a request for a resource or a prompt, to which the policy rules
    /// of the tool `spec` apply. Returns a permit, or the denial.
    pub(crate) fn authorise_guarded(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        input: &Value,
    ) -> Result<CallPermit, PolicyDenial> {
        self.decide_permit(&PolicyRequest { caller, spec, input, kind: PolicyRequestKind::Guarded })
    }

    /// Decides if `caller` may get a text-only prompt. `spec` is the common spec of all such
    /// prompts.
    pub(crate) fn authorise_text_prompt(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        input: &Value,
    ) -> Result<CallPermit, PolicyDenial> {
        self.decide_permit(&PolicyRequest {
            caller,
            spec,
            input,
            kind: PolicyRequestKind::TextPrompt,
        })
    }

    fn decide_permit(&self, request: &PolicyRequest<'_>) -> Result<CallPermit, PolicyDenial> {
        let PolicyVerdictWithRule { verdict, rule } = self.decide(request, None);
        let id = &request.spec.id;
        let denied =
            |message| Err(PolicyDenial { rule: rule.clone(), message, missing_scope: None });
        match verdict {
            PolicyVerdict::Allowed | PolicyVerdict::Confirm => {
                self.check_scopes(request)?;
                Ok(CallPermit { rule, confirm: matches!(verdict, PolicyVerdict::Confirm) })
            }
            PolicyVerdict::Denied(Some(message)) => denied(message.to_owned()),
            PolicyVerdict::Denied(None) => denied(format!("`{id}` is not allowed by policy")),
            PolicyVerdict::Failed => denied(format!(
                "`{id}` is not allowed: a policy rule could not be evaluated for this call"
            )),
        }
    }

    /// Refuses a request that the scopes of the caller's token do not cover.
    fn check_scopes(&self, request: &PolicyRequest<'_>) -> Result<(), PolicyDenial> {
        let PolicyRequest { caller, spec, kind, .. } = request;
        let denied = |message, needs| {
            Err(PolicyDenial { rule: SCOPES.into(), message, missing_scope: needs })
        };
        match self.scopes.check_scope(caller, spec) {
            _ if *kind == PolicyRequestKind::TextPrompt => Ok(()),
            ScopeCheck::Satisfied => Ok(()),
            ScopeCheck::Unavailable => {
                denied(format!("`{}` is not allowed by policy", spec.id), None)
            }
            ScopeCheck::Missing(scope) => denied(
                format!("`{}` needs the scope {scope}, which this token does not have", spec.id),
                Some(scope),
            ),
        }
    }

    /// Returns true if `caller` sees the tool. A tool is hidden if policy would deny every input.
    ///
    /// A tool that needs another scope is visible, so that the client can request that scope.
    pub(crate) fn shows(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        self.scopes.check_scope(caller, spec) != ScopeCheck::Unavailable
            && self.may_allow_some(&PolicyRequest {
                caller,
                spec,
                input: &Value::Null,
                kind: PolicyRequestKind::Tool,
            })
    }

    /// Returns the visibility of the tool for `caller`, with the reason if the caller may know it.
    pub(crate) fn visibility(&self, caller: &Caller, spec: &ToolSpec) -> ToolVisibility {
        if self.shows(caller, spec) {
            return ToolVisibility::Shown;
        }
        let why = self.unavailable_reason(caller, spec);
        why.map_or(ToolVisibility::Hidden, ToolVisibility::Unavailable)
    }

    /// Returns the reason why a tool is not available, if `caller` may know that the tool exists.
    ///
    /// The `[tools]` settings apply to all callers and hide nothing from a particular one. A rule
    /// of `[[policy.rules]]` hides the tool, unless it has a message for the caller.
    fn unavailable_reason(&self, caller: &Caller, spec: &ToolSpec) -> Option<String> {
        if self.scopes.check_scope(caller, spec) == ScopeCheck::Unavailable {
            return None;
        }
        let kind = PolicyRequestKind::Tool;
        let request = PolicyRequest { caller, spec, input: &Value::Null, kind };
        let message = match self.check_any_input(&request, self.tools_rule_count) {
            Ok(()) => None,
            Err(denied_by) => Some(denied_by?.message.clone()?),
        };
        let mut tools_rules = self.rules[..self.tools_rule_count].iter();
        let denied_by = tools_rules.find(|rule| rule.check_tool(spec).is_ok());
        denied_by.map(|rule| rule.describe_denial(spec)).or(message)
    }

    /// Returns true if `caller` sees text-only prompts.
    pub(crate) fn shows_text_prompts(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        self.may_allow_some(&PolicyRequest {
            caller,
            spec,
            input: &Value::Null,
            kind: PolicyRequestKind::TextPrompt,
        })
    }

    /// Returns true if the token of `caller` has the scope that is needed to list the entries of
    /// sources to which the policy rules of the tool `spec` apply.
    pub(crate) fn may_list(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        self.scopes.check_scope(caller, spec) == ScopeCheck::Satisfied
    }

    /// Returns true if the policy could allow some input of the request, as far as that is known
    /// without the input.
    fn may_allow_some(&self, request: &PolicyRequest<'_>) -> bool {
        self.check_any_input(request, 0).is_ok()
    }

    /// Checks if the policy could allow some input, by the rules from index `first` on.
    ///
    /// # Errors
    /// The rule that denies every input. `None` if the default denies it or a rule failed.
    fn check_any_input(
        &self,
        request: &PolicyRequest<'_>,
        first: usize,
    ) -> Result<(), Option<&CompiledPolicyRule>> {
        for at in self.rules_for(request.spec).filter(|at| *at >= first) {
            let rule = &self.rules[at];
            if self.skips_text_prompt(at, request) {
                continue;
            }
            if rule.when.as_ref().is_some_and(PolicyCondition::uses_input) {
                if rule.check_tool(request.spec).and(rule.check_caller(request.caller)).is_err() {
                    continue;
                }
                match rule.effect {
                    PolicyEffect::Allow | PolicyEffect::Confirm => return Ok(()),
                    // Other inputs may not match this rule.
                    PolicyEffect::Deny => continue,
                }
            }
            match (rule.match_request(request), rule.effect) {
                (PolicyRuleMatch::Yes, PolicyEffect::Allow | PolicyEffect::Confirm) => {
                    return Ok(());
                }
                (PolicyRuleMatch::Yes, PolicyEffect::Deny) => return Err(Some(rule)),
                (PolicyRuleMatch::Failed(_), PolicyEffect::Deny | PolicyEffect::Confirm) => {
                    return Err(None);
                }
                (PolicyRuleMatch::No(_), _) | (PolicyRuleMatch::Failed(_), PolicyEffect::Allow) => {
                }
            }
        }
        if self.default == PolicyEffect::Deny { Err(None) } else { Ok(()) }
    }

    /// Decides about a request. All policy decisions are made by this function. If given, `trace`
    /// receives each checked rule.
    fn decide(
        &self,
        request: &PolicyRequest<'_>,
        mut trace: Option<&mut Vec<PolicyRuleEvaluation>>,
    ) -> PolicyVerdictWithRule<'_> {
        let mut failed: Option<&PolicyRuleName> = None;
        let mut decided = None;
        // An explanation includes the rules about other tools.
        let indexes = if trace.is_some() { self.all_rules() } else { self.rules_for(request.spec) };
        for at in indexes {
            let rule = &self.rules[at];
            let matched = if self.skips_text_prompt(at, request) {
                PolicyRuleMatch::No(PolicyRuleMismatch::TextPrompt)
            } else {
                rule.match_request(request)
            };
            decided = match (&matched, rule.effect) {
                (PolicyRuleMatch::No(_), _) => None,
                (PolicyRuleMatch::Yes, PolicyEffect::Allow) => Some((PolicyVerdict::Allowed, rule)),
                (PolicyRuleMatch::Yes, PolicyEffect::Confirm) => {
                    Some((PolicyVerdict::Confirm, rule))
                }
                (PolicyRuleMatch::Yes, PolicyEffect::Deny) => {
                    Some((PolicyVerdict::Denied(rule.message.as_deref()), rule))
                }
                (PolicyRuleMatch::Failed(_), PolicyEffect::Deny | PolicyEffect::Confirm) => {
                    Some((PolicyVerdict::Failed, rule))
                }
                (PolicyRuleMatch::Failed(_), PolicyEffect::Allow) => {
                    failed = failed.or(Some(&rule.name));
                    None
                }
            };
            if let PolicyRuleMatch::Failed(why) = &matched
                && trace.is_none()
            {
                let tool = &request.spec.id;
                let caller = &request.caller.name;
                tracing::warn!(%tool, %caller, "the rule `{}` failed: {why}", rule.name);
            }
            if let Some(trace) = &mut trace {
                trace.push(PolicyRuleEvaluation {
                    rule: rule.name.clone(),
                    effect: rule.effect,
                    matched,
                });
            }
            if decided.is_some() {
                break;
            }
        }
        let ruling = match decided {
            Some((PolicyVerdict::Failed, rule)) => {
                let rule = format!("{} (failed)", rule.name).into();
                return PolicyVerdictWithRule { verdict: PolicyVerdict::Failed, rule };
            }
            Some((verdict, rule)) => PolicyVerdictWithRule { verdict, rule: rule.name.clone() },
            None => {
                let verdict = match self.default {
                    PolicyEffect::Allow => PolicyVerdict::Allowed,
                    PolicyEffect::Confirm => PolicyVerdict::Confirm,
                    PolicyEffect::Deny => PolicyVerdict::Denied(None),
                };
                PolicyVerdictWithRule { verdict, rule: self.default_name.clone() }
            }
        };
        let ruling = self.apply_confirm(request, ruling, trace);
        match failed {
            // The failed rule might have allowed the call.
            Some(name) => PolicyVerdictWithRule {
                rule: format!("{}, {name} (failed)", ruling.rule).into(),
                ..ruling
            },
            None => ruling,
        }
    }

    /// Turns the decision `ruling` into a required confirmation if the call is allowed and
    /// `tools.confirm` matches its tool.
    fn apply_confirm<'p>(
        &'p self,
        request: &PolicyRequest<'_>,
        ruling: PolicyVerdictWithRule<'p>,
        trace: Option<&mut Vec<PolicyRuleEvaluation>>,
    ) -> PolicyVerdictWithRule<'p> {
        if request.kind == PolicyRequestKind::TextPrompt
            || !matches!(ruling.verdict, PolicyVerdict::Allowed)
        {
            return ruling;
        }
        let mut confirm = self.confirm.iter();
        let Some(rule) = confirm.find(|rule| rule.check_tool(request.spec).is_ok()) else {
            return ruling;
        };
        if let Some(trace) = trace {
            let effect = rule.effect;
            let matched = PolicyRuleMatch::Yes;
            trace.push(PolicyRuleEvaluation { rule: rule.name.clone(), effect, matched });
        }
        PolicyVerdictWithRule { verdict: PolicyVerdict::Confirm, rule: rule.name.clone() }
    }

    /// Returns the indexes of the policy rules that concern the tool, in order.
    fn rules_for(&self, spec: &ToolSpec) -> PolicyRuleIndexes<'_> {
        let known = self.tool_rules.get(&spec.id).filter(|known| {
            // A guard may share its id with a tool that differs.
            known.effects == spec.effects && known.ruled_as == spec.ruled_as
        });
        match known {
            Some(known) => PolicyRuleIndexes::Some(known.rules.iter()),
            None => self.all_rules(),
        }
    }

    fn all_rules(&self) -> PolicyRuleIndexes<'_> {
        PolicyRuleIndexes::All(0..self.rules.len())
    }

    /// Returns true if the rule at the index `at` concerns only tools and the request is a
    /// text-only prompt.
    fn skips_text_prompt(&self, at: usize, request: &PolicyRequest<'_>) -> bool {
        request.kind == PolicyRequestKind::TextPrompt && at < self.tools_rule_count
    }
}

/// Indexes of the policy rules that concern a tool, in order.
enum PolicyRuleIndexes<'p> {
    All(std::ops::Range<usize>),
    Some(std::slice::Iter<'p, usize>),
}

impl Iterator for PolicyRuleIndexes<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match self {
            Self::All(places) => places.next(),
            Self::Some(places) => places.next().copied(),
        }
    }
}

/// Creates a policy rule for each of `patterns`, named after its pattern.
fn single_pattern_rules(
    setting: &'static str,
    patterns: &[String],
    effect: PolicyEffect,
) -> Result<Vec<CompiledPolicyRule>, ToolRuleError> {
    let rules = patterns.iter().map(|pattern| {
        let tools = vec![ToolPattern::new(setting, pattern)?];
        let matching = RuleToolSelection::Matching { tools, effects: Vec::new() };
        Ok(CompiledPolicyRule::for_tools(format!("{setting}: {pattern}"), effect, matching))
    });
    rules.collect()
}
