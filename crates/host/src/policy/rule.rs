//! Matches one policy rule against callers and tools.

use toolgate_contract::{Caller, Effects, ToolSpec};

use super::expression::{Bounds, When};
use super::pattern::{BadRule, KnownTools, Name, Pattern};
use super::{Of, RuleName};

/// Setting that holds the rules.
const SETTING: &str = "policy.rules";
/// Longest name of a rule.
const NAME_CHARS_MAX: usize = 64;

/// A policy rule as written in the settings. Empty conditions always hold; all others must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    /// Name of the rule in the audit record and in `toolgate policy explain`.
    pub name: String,
    /// Effect of the rule if it matches.
    pub effect: Effect,
    /// Patterns of caller names, one of which must match.
    pub callers: Vec<String>,
    /// Patterns of roles, one of which must match a role of the caller.
    pub roles: Vec<String>,
    /// Patterns of tool ids, one of which must match.
    pub tools: Vec<String>,
    /// Tags, one of which the tool must have.
    pub tags: Vec<String>,
    /// Effects, one of which the tool must have.
    pub effects: Vec<Effects>,
    /// CEL expression that must be true.
    pub when: Option<String>,
    /// Message for a caller whom this rule denies.
    pub message: Option<String>,
}

/// Effect of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call may run.
    Allow,
    /// The call is refused.
    Deny,
    /// The call may run after a person confirms it.
    Confirm,
}

impl Effect {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Confirm => "confirm",
        }
    }
}

/// Outcome of matching a rule with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Matched {
    No(Why),
    Yes,
    /// The match could not be determined, with the reason.
    Failed(String),
}

/// Reason why a rule does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Tool,
    Tags,
    Effects,
    Caller,
    Roles,
    When,
    /// The rule concerns tools, and the request is a text-only prompt.
    Words,
}

impl Why {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Tool => "it is not about this tool",
            Self::Tags => "the tool has none of its tags",
            Self::Effects => "it is not about what this tool can do",
            Self::Caller => "it is not about this caller",
            Self::Roles => "the caller has none of its roles",
            Self::When => "`when` is false",
            Self::Words => "it is over tools",
        }
    }
}

/// A compiled rule.
pub(super) struct Rule {
    pub(super) name: RuleName,
    pub(super) effect: Effect,
    pub(super) over: Over,
    callers: Vec<Name>,
    roles: Vec<Name>,
    pub(super) when: Option<When>,
    pub(super) message: Option<String>,
}

/// Tools that a rule concerns.
pub(super) enum Over {
    /// Tools that meet all three conditions; an empty one always holds.
    Those { tools: Vec<Pattern>, tags: Vec<String>, effects: Vec<Effects> },
    /// Tools with stronger effects than this.
    Beyond(Effects),
    /// Tools that match none of these patterns.
    Outside(Vec<Pattern>),
}

impl Rule {
    /// Creates a rule of the `[tools]` settings, which applies to all callers.
    pub(super) fn of_tools(name: String, effect: Effect, over: Over) -> Self {
        let callers = Vec::new();
        let roles = Vec::new();
        Self { name: name.into(), effect, over, callers, roles, when: None, message: None }
    }

    /// Compiles a rule of `[[policy.rules]]`.
    pub(super) fn new(written: &PolicyRule, bounds: &Bounds) -> Result<Self, BadRule> {
        let PolicyRule { name, effect, callers, roles, tools, tags, effects, when, message } =
            written;
        let bad = |why: String| BadRule::Policy { name: name.clone(), why };
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(fits) {
            return Err(bad(format!(
                "a rule's name has 1 to {NAME_CHARS_MAX} letters, digits, `.`, `_` and `-`"
            )));
        }
        let names = |patterns: &[String]| patterns.iter().map(|one| Name::new(one)).collect();
        let callers: Result<_, String> = names(callers);
        let roles: Result<_, String> = names(roles);
        let tools = tools.iter().map(|pattern| Pattern::new(SETTING, pattern));
        Ok(Self {
            over: Over::Those {
                tools: tools.collect::<Result<_, _>>()?,
                tags: tags.clone(),
                effects: effects.clone(),
            },
            callers: callers.map_err(|why| bad(format!("in callers, {why}")))?,
            roles: roles.map_err(|why| bad(format!("in roles, {why}")))?,
            when: when.as_deref().map(|when| When::new(when, bounds)).transpose().map_err(bad)?,
            name: name.as_str().into(),
            effect: *effect,
            message: message.clone(),
        })
    }

    /// Checks that each pattern matches one of the `known` tools.
    pub(super) fn check(&self, known: &KnownTools) -> Result<(), BadRule> {
        match &self.over {
            Over::Those { tools: patterns, .. } | Over::Outside(patterns) => {
                patterns.iter().try_for_each(|pattern| pattern.check(known))
            }
            Over::Beyond(_) => Ok(()),
        }
    }

    /// Matches the rule with a request.
    pub(super) fn matched(&self, asked: &Of<'_>) -> Matched {
        if let Err(why) = self.covers(asked.spec) {
            return Matched::No(why);
        }
        if let Err(why) = self.is_about(asked.caller) {
            return Matched::No(why);
        }
        match &self.when {
            None => Matched::Yes,
            Some(when) => match when.is_true(asked) {
                Ok(true) => Matched::Yes,
                Ok(false) => Matched::No(Why::When),
                Err(why) => Matched::Failed(why),
            },
        }
    }

    /// Checks that the rule concerns the tool.
    ///
    /// A restriction of a tool also applies to tools that are `ruled_as` it. A permission applies
    /// to no other tool.
    pub(super) fn covers(&self, spec: &ToolSpec) -> Result<(), Why> {
        match &self.over {
            Over::Beyond(most) if spec.effects > *most => Ok(()),
            Over::Beyond(_) => Err(Why::Effects),
            Over::Outside(patterns) => {
                let inside = patterns.iter().any(|pattern| pattern.matches(&spec.id));
                if inside { Err(Why::Tool) } else { Ok(()) }
            }
            Over::Those { tools, tags, effects } => {
                let fits = |pattern: &Pattern| match self.effect {
                    Effect::Allow => pattern.matches(&spec.id),
                    Effect::Deny | Effect::Confirm => pattern.holds(spec),
                };
                if !tools.is_empty() && !tools.iter().any(fits) {
                    return Err(Why::Tool);
                }
                if !tags.is_empty() && !tags.iter().any(|tag| spec.tags.contains(tag)) {
                    return Err(Why::Tags);
                }
                if !effects.is_empty() && !effects.contains(&spec.effects) {
                    return Err(Why::Effects);
                }
                Ok(())
            }
        }
    }

    /// Checks that the rule concerns the caller.
    pub(super) fn is_about(&self, caller: &Caller) -> Result<(), Why> {
        let named = self.callers.iter().any(|name| name.matches(&caller.name));
        if !self.callers.is_empty() && !named {
            return Err(Why::Caller);
        }
        let has = |name: &Name| caller.roles.iter().any(|role| name.matches(role));
        if !self.roles.is_empty() && !self.roles.iter().any(has) {
            return Err(Why::Roles);
        }
        Ok(())
    }
}
