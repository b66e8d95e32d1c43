//! Rules over who may call what with which input.

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toolgate_contract::Effects;
use toolgate_host::{PolicyEffect, PolicyRule};

use super::EffectsMax;

/// Rules over who may call what with which input. What `[tools]` denies they do not allow, and what
/// it has confirmed they do not let go on without. docs/guide/policy.md.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// What comes of a call that no rule decides about: `allow`, `deny` or `confirm`.
    pub default: Effect,
    /// The rules, a table `[[policy.rules]]` for each. The first that fits a call decides.
    pub rules: Vec<Rule>,
}

impl Default for Policy {
    fn default() -> Self {
        Self { default: Effect::Allow, rules: Vec::new() }
    }
}

/// A rule. What is left out is not looked at; all that is said must fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What it is called in the record and by `toolgate policy explain`.
    pub name: String,
    /// What comes of it: `allow`, `deny` or `confirm`, which has a person agree first.
    pub effect: Effect,
    /// Patterns over names of callers, of which one must match, e.g. `ci` or `okta:*`: `*` is
    /// anything, `?` one character.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<String>,
    /// Patterns over roles, of which one must match one of the caller's.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Patterns over tools, of which one must match, e.g. `files.*` (or `files_*`).
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Tags, of which the tool must have one.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What the tool must be able to do, one of: `reads`, `adds`, `changes`, `runs`.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<EffectsMax>,
    /// What must be true, in CEL, of `caller`, `tool` and `input`, e.g. `under(input.path, "infra")`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// What a caller is told who is denied by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A list that is said: of nothing it would be about everything.
fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::deserialize(from)?;
    match all.is_empty() {
        true => Err(D::Error::custom("it is empty: leave it out where it is not to be looked at")),
        false => Ok(all),
    }
}

/// What comes of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// The call may go on.
    Allow,
    /// It may not.
    Deny,
    /// It may once a person has agreed.
    Confirm,
}

impl From<Effect> for PolicyEffect {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Allow => Self::Allow,
            Effect::Deny => Self::Deny,
            Effect::Confirm => Self::Confirm,
        }
    }
}

impl From<&Rule> for PolicyRule {
    fn from(rule: &Rule) -> Self {
        let Rule { name, effect, callers, roles, tools, tags, effects, when, message } =
            rule.clone();
        let effects = effects.into_iter().map(|effects| match effects {
            EffectsMax::Reads => Effects::Reads,
            EffectsMax::Adds => Effects::Adds,
            EffectsMax::Changes => Effects::Changes,
            EffectsMax::Runs => Effects::Runs,
        });
        let effects = effects.collect();
        Self { name, effect: effect.into(), callers, roles, tools, tags, effects, when, message }
    }
}
