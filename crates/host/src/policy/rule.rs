//! One rule: whom and what it is about, and what comes of it.

use toolgate_contract::{Caller, Effects, ToolSpec};

use super::expression::{Bounds, When};
use super::pattern::{BadRule, KnownTools, Name, Pattern};
use super::{Of, RuleName};

/// The setting that rules stand in.
const SETTING: &str = "policy.rules";
/// How long a rule's name may be.
const NAME_CHARS_MAX: usize = 64;

/// A rule of policy as it is written. What is left out is not looked at; all that is said must fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    /// What it is called in the record and by `toolgate policy explain`.
    pub name: String,
    /// What comes of it where it fits.
    pub effect: Effect,
    /// Patterns over the names of callers, of which one must match.
    pub callers: Vec<String>,
    /// Patterns over roles, of which one must match one of the caller's.
    pub roles: Vec<String>,
    /// Patterns over tools, of which one must match.
    pub tools: Vec<String>,
    /// Tags, of which the tool must have one.
    pub tags: Vec<String>,
    /// Effects, of which the tool must have one.
    pub effects: Vec<Effects>,
    /// What must be true, in CEL.
    pub when: Option<String>,
    /// What a caller is told who is denied by it.
    pub message: Option<String>,
}

/// What comes of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call may go on.
    Allow,
    /// It may not.
    Deny,
    /// It may once a person has agreed.
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

/// Whether a rule fits a call, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Matched {
    No(Why),
    Yes,
    /// It cannot be told.
    Failed(String),
}

/// Why a rule does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Tool,
    Tags,
    Effects,
    Caller,
    Roles,
    When,
    /// It is over tools, and this is not one.
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

/// A rule, compiled.
pub(super) struct Rule {
    pub(super) name: RuleName,
    pub(super) effect: Effect,
    pub(super) over: Over,
    callers: Vec<Name>,
    roles: Vec<Name>,
    pub(super) when: Option<When>,
    pub(super) message: Option<String>,
}

/// Which tools a rule is about.
pub(super) enum Over {
    /// Those that fit all three, of which what is empty is not looked at.
    Those { tools: Vec<Pattern>, tags: Vec<String>, effects: Vec<Effects> },
    /// Those that do more.
    Beyond(Effects),
    /// Those that none matches.
    Outside(Vec<Pattern>),
}

impl Rule {
    /// A rule of the settings under `[tools]`, which no caller is beyond.
    pub(super) fn of_tools(name: String, effect: Effect, over: Over) -> Self {
        let (callers, roles) = (Vec::new(), Vec::new());
        Self { name: name.into(), effect, over, callers, roles, when: None, message: None }
    }

    /// `written`, compiled.
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

    /// Refuses patterns that match none of `tools`.
    pub(super) fn check(&self, known: &KnownTools) -> Result<(), BadRule> {
        match &self.over {
            Over::Those { tools: patterns, .. } | Over::Outside(patterns) => {
                patterns.iter().try_for_each(|pattern| pattern.check(known))
            }
            Over::Beyond(_) => Ok(()),
        }
    }

    /// Whether it fits what is asked.
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

    /// Whether the tool is one that it is about.
    ///
    /// What restricts a tool restricts what is ruled as that; what allows one allows no other.
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

    /// Whether the caller is one that it is about.
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
