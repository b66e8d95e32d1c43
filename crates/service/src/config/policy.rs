//! Settings of policy rules.

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toolgate_contract::Effects;
use toolgate_host::{PolicyEffect, PolicyRule};

use super::ToolEffectLimit;

/// Rules that allow, deny or confirm calls by caller, tool and input. They cannot loosen
/// `tools.deny` or `tools.confirm`. See docs/guide/policy.md.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySection {
    /// Decision for calls that no rule matches: `allow`, `deny` or `confirm`.
    pub default: PolicyRuleEffect,
    /// Rules in order, with one `[[policy.rules]]` table for each. The first rule that matches a
    /// call decides.
    pub rules: Vec<PolicyRuleEntry>,
}

impl Default for PolicySection {
    fn default() -> Self {
        Self { default: PolicyRuleEffect::Allow, rules: Vec::new() }
    }
}

/// Policy rule. The rule matches a call if all of its conditions do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRuleEntry {
    /// Name of the rule in audit records and in `toolgate policy explain`.
    pub name: String,
    /// Decision: `allow`, `deny`, or `confirm` to ask a person first.
    pub effect: PolicyRuleEffect,
    /// Patterns for callers' names, such as `ci` or `okta:*`. At least one pattern must match the
    /// caller's name. `*` matches any text, and `?` matches one character.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<String>,
    /// Patterns for roles. At least one pattern must match one of the caller's roles.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Patterns for tools, such as `files.*` (or `files_*`). At least one pattern must match the
    /// tool's name.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Effects: `reads`, `adds`, `changes`, `runs`. The tool must have one of these effects.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<ToolEffectLimit>,
    /// CEL expression that must be true, such as `under(input.path, "infra")`. The expression can
    /// use `caller`, `tool` and `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Message that the caller gets if this rule denies a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Deserializes a list that is a condition of a policy rule. Fails if the list is empty, because an
/// empty condition would match everything.
fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::deserialize(from)?;
    match all.is_empty() {
        true => Err(D::Error::custom("the list is empty; remove the setting to match everything")),
        false => Ok(all),
    }
}

/// Decision of a policy rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyRuleEffect {
    /// Allow the call.
    Allow,
    /// Deny the call.
    Deny,
    /// Ask a person to confirm the call.
    Confirm,
}

impl From<PolicyRuleEffect> for PolicyEffect {
    fn from(effect: PolicyRuleEffect) -> Self {
        match effect {
            PolicyRuleEffect::Allow => Self::Allow,
            PolicyRuleEffect::Deny => Self::Deny,
            PolicyRuleEffect::Confirm => Self::Confirm,
        }
    }
}

impl From<&PolicyRuleEntry> for PolicyRule {
    fn from(rule: &PolicyRuleEntry) -> Self {
        let PolicyRuleEntry { name, effect, callers, roles, tools, effects, when, message } =
            rule.clone();
        let effects = effects.into_iter().map(|effects| match effects {
            ToolEffectLimit::Reads => Effects::Reads,
            ToolEffectLimit::Adds => Effects::Adds,
            ToolEffectLimit::Changes => Effects::Changes,
            ToolEffectLimit::Runs => Effects::Runs,
        });
        let effects = effects.collect();
        Self { name, effect: effect.into(), callers, roles, tools, effects, when, message }
    }
}
