//! Matches one policy rule against callers and tools.

use serde_json::Value;
use toolgate_contract::{Caller, Effects, ToolSpec};

use super::expression::{ExpressionSettings, PolicyCondition};
use super::pattern::{CallerNamePattern, KnownToolSet, ToolPattern, ToolRuleError};
use super::{PolicyRequest, PolicyRuleName};

/// Name of the setting with the policy rules.
const SETTING: &str = "policy.rules";
/// Longest name of a policy rule, in characters.
const NAME_CHARS_MAX: usize = 64;

/// A policy rule of the settings, which matches if all its conditions hold. An empty condition
/// always holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    /// Name of the rule in the audit record and in `toolgate policy explain`.
    pub name: String,
    /// Effect of the rule on calls that match.
    pub effect: PolicyEffect,
    /// Patterns for caller names. At least one must match the caller's name.
    pub callers: Vec<String>,
    /// Patterns for roles. At least one pattern must match one of the caller's roles.
    pub roles: Vec<String>,
    /// Patterns for tool ids. At least one must match the tool's id.
    pub tools: Vec<String>,
    /// Effects of tools. The tool must have one of these effects.
    pub effects: Vec<Effects>,
    /// CEL expression about the call that must be true.
    pub when: Option<String>,
    /// Message for a caller whose call this rule denies.
    pub message: Option<String>,
}

/// Effect of a policy rule on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyEffect {
    /// The call may run.
    Allow,
    /// The call is refused.
    Deny,
    /// The call may run after a person confirms it.
    Confirm,
}

impl PolicyEffect {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Confirm => "confirm",
        }
    }
}

/// Outcome of matching a policy rule with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PolicyRuleMatch {
    No(PolicyRuleMismatch),
    Yes,
    /// The rule could not be evaluated, for this reason.
    Failed(String),
}

/// Reason why a policy rule does not match a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PolicyRuleMismatch {
    Tool,
    Effects,
    Caller,
    Roles,
    When,
    /// The rule concerns tools, and the request is a text-only prompt.
    TextPrompt,
}

impl PolicyRuleMismatch {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Tool => "it does not apply to this tool",
            Self::Effects => "it does not apply to this tool's effects",
            Self::Caller => "it does not apply to this caller",
            Self::Roles => "the caller has none of the roles that the rule lists",
            Self::When => "`when` is false",
            Self::TextPrompt => "it applies only to tools",
        }
    }
}

/// A policy rule whose patterns and expression are compiled.
pub(super) struct CompiledPolicyRule {
    pub(super) name: PolicyRuleName,
    pub(super) effect: PolicyEffect,
    pub(super) tools: RuleToolSelection,
    callers: Vec<CallerNamePattern>,
    roles: Vec<CallerNamePattern>,
    pub(super) when: Option<PolicyCondition>,
    pub(super) message: Option<String>,
}

/// Tools that a policy rule concerns.
pub(super) enum RuleToolSelection {
    /// Selects the tools that match one of the patterns and have one of the effects. An empty list
    /// matches all tools.
    Matching { tools: Vec<ToolPattern>, effects: Vec<Effects> },
    /// Selects all tools whose effects are stronger than these.
    AboveEffects(Effects),
    /// Selects the tools that match none of these patterns.
    NotMatching(Vec<ToolPattern>),
}

impl CompiledPolicyRule {
    /// Creates a rule of the `[tools]` settings, which applies to all callers.
    pub(super) fn for_tools(name: String, effect: PolicyEffect, tools: RuleToolSelection) -> Self {
        let callers = Vec::new();
        let roles = Vec::new();
        Self { name: name.into(), effect, tools, callers, roles, when: None, message: None }
    }

    /// Compiles a rule of `[[policy.rules]]`.
    pub(super) fn new(
        written: &PolicyRule,
        bounds: &ExpressionSettings,
    ) -> Result<Self, ToolRuleError> {
        let PolicyRule { name, effect, callers, roles, tools, effects, when, message } = written;
        let bad = |why: String| ToolRuleError::InvalidRule { name: name.clone(), why };
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(fits) {
            return Err(bad(format!(
                "a rule's name has 1 to {NAME_CHARS_MAX} letters, digits, `.`, `_` and `-`"
            )));
        }
        let names =
            |patterns: &[String]| patterns.iter().map(|one| CallerNamePattern::new(one)).collect();
        let callers: Result<_, String> = names(callers);
        let roles: Result<_, String> = names(roles);
        let tools = tools.iter().map(|pattern| ToolPattern::new(SETTING, pattern));
        Ok(Self {
            tools: RuleToolSelection::Matching {
                tools: tools.collect::<Result<_, _>>()?,
                effects: effects.clone(),
            },
            callers: callers.map_err(|why| bad(format!("in callers, {why}")))?,
            roles: roles.map_err(|why| bad(format!("in roles, {why}")))?,
            when: when
                .as_deref()
                .map(|when| PolicyCondition::new(when, bounds))
                .transpose()
                .map_err(bad)?,
            name: name.as_str().into(),
            effect: *effect,
            message: message.clone(),
        })
    }

    /// Checks that each tool pattern of the rule matches one of the `known` tools.
    ///
    /// # Errors
    /// Returns the first pattern that matches nothing.
    pub(super) fn check(&self, known: &KnownToolSet) -> Result<(), ToolRuleError> {
        match &self.tools {
            RuleToolSelection::Matching { tools: patterns, .. }
            | RuleToolSelection::NotMatching(patterns) => {
                patterns.iter().try_for_each(|pattern| pattern.check(known))
            }
            RuleToolSelection::AboveEffects(_) => Ok(()),
        }
    }

    /// Matches the rule with the request. If the rule does not match, the result contains the
    /// reason.
    pub(super) fn match_request(&self, request: &PolicyRequest<'_>) -> PolicyRuleMatch {
        if let Err(why) = self.check_tool(request.spec) {
            return PolicyRuleMatch::No(why);
        }
        if let Err(why) = self.check_caller(request.caller) {
            return PolicyRuleMatch::No(why);
        }
        let Some(when) = &self.when else { return PolicyRuleMatch::Yes };
        // A condition that does not use the input has one result for all paths.
        let paths = if when.uses_input() { several_paths(request) } else { Vec::new() };
        let result = match paths.is_empty() {
            true => when.evaluate(request),
            false => self.evaluate_for_each(when, request, paths),
        };
        match result {
            Ok(true) => PolicyRuleMatch::Yes,
            Ok(false) => PolicyRuleMatch::No(PolicyRuleMismatch::When),
            Err(why) => PolicyRuleMatch::Failed(why),
        }
    }

    /// Evaluates the rule's `when` expression for each of `paths` as the argument `path`. A
    /// restriction holds if it holds for any path, and a permission if it holds for all.
    fn evaluate_for_each(
        &self,
        when: &PolicyCondition,
        request: &PolicyRequest<'_>,
        paths: Vec<String>,
    ) -> Result<bool, String> {
        let mut input = request.input.clone();
        let mut results = Vec::with_capacity(paths.len());
        for path in paths {
            input["path"] = path.into();
            results.push(when.evaluate(&PolicyRequest { input: &input, ..*request })?);
        }
        Ok(match self.effect {
            PolicyEffect::Allow => results.into_iter().all(|holds| holds),
            PolicyEffect::Deny | PolicyEffect::Confirm => results.contains(&true),
        })
    }

    /// Checks that the rule concerns the tool `spec`.
    ///
    /// A restriction of a tool also applies to tools that are `ruled_as` this tool. A permission
    /// applies to no other tool.
    ///
    /// # Errors
    /// The condition of the rule that the tool does not meet.
    pub(super) fn check_tool(&self, spec: &ToolSpec) -> Result<(), PolicyRuleMismatch> {
        match &self.tools {
            RuleToolSelection::AboveEffects(most) if spec.effects > *most => Ok(()),
            RuleToolSelection::AboveEffects(_) => Err(PolicyRuleMismatch::Effects),
            RuleToolSelection::NotMatching(patterns) => {
                let inside = patterns.iter().any(|pattern| pattern.matches(&spec.id));
                if inside { Err(PolicyRuleMismatch::Tool) } else { Ok(()) }
            }
            RuleToolSelection::Matching { tools, effects } => {
                let fits = |pattern: &ToolPattern| match self.effect {
                    PolicyEffect::Allow => pattern.matches(&spec.id),
                    PolicyEffect::Deny | PolicyEffect::Confirm => pattern.restricts(spec),
                };
                if !tools.is_empty() && !tools.iter().any(fits) {
                    return Err(PolicyRuleMismatch::Tool);
                }
                if !effects.is_empty() && !effects.contains(&spec.effects) {
                    return Err(PolicyRuleMismatch::Effects);
                }
                Ok(())
            }
        }
    }

    /// Describes why this rule, which comes from the `[tools]` settings, denies the tool `spec`.
    pub(super) fn describe_denial(&self, spec: &ToolSpec) -> String {
        match &self.tools {
            RuleToolSelection::Matching { .. } => {
                format!("the rule `{}` denies the tool", self.name)
            }
            RuleToolSelection::AboveEffects(Effects::Reads) => {
                "this server is read-only".to_owned()
            }
            RuleToolSelection::AboveEffects(most) => format!(
                "it needs the effect `{}`, but `tools.effects` is `{}`",
                spec.effects.as_str(),
                most.as_str()
            ),
            RuleToolSelection::NotMatching(_) => {
                "`tools.allow` does not include the tool".to_owned()
            }
        }
    }

    /// Checks that the rule concerns the caller of a request.
    ///
    /// # Errors
    /// The names or the roles of the rule do not match the caller.
    pub(super) fn check_caller(&self, caller: &Caller) -> Result<(), PolicyRuleMismatch> {
        let named = self.callers.iter().any(|name| name.matches(&caller.name));
        if !self.callers.is_empty() && !named {
            return Err(PolicyRuleMismatch::Caller);
        }
        let has = |name: &CallerNamePattern| caller.roles.iter().any(|role| name.matches(role));
        if !self.roles.is_empty() && !self.roles.iter().any(has) {
            return Err(PolicyRuleMismatch::Roles);
        }
        Ok(())
    }
}

/// Returns the files of a call that may name several: those in `paths`, and those in `edits`. Empty
/// if the call names at most one, in `path`.
fn several_paths(request: &PolicyRequest<'_>) -> Vec<String> {
    let PolicyRequest { spec, input, .. } = request;
    let list = |name| input.get(name).and_then(Value::as_array);
    let (paths, edits) = (list("paths"), list("edits"));
    if paths.is_none() && edits.is_none() {
        return Vec::new();
    }
    let listed = paths.into_iter().flatten().filter_map(Value::as_str);
    let edited = edits.into_iter().flatten().filter_map(|edit| edit.get("path")?.as_str());
    let mut paths: Vec<&str> = listed.chain(edited).collect();
    // Other tools, such as those of git, have rules about `paths` itself.
    let has_path = || spec.input_schema.pointer("/properties/path").is_some();
    if paths.is_empty() || !has_path() {
        return Vec::new();
    }
    paths.extend(input.get("path").and_then(Value::as_str));
    paths.sort_unstable();
    paths.dedup();
    paths.into_iter().map(str::to_owned).collect()
}
