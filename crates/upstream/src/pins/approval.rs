//! Decides which tools and instructions of a pinned upstream are served.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::printable::escape_hidden;

use super::{PinLock, ToolDefinition, ToolDefinitionChange};
use crate::definition_texts::check_definition_texts;

/// Reaction to a tool or instructions that differ from their pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PinMismatchReaction {
    /// Serve the definition that the upstream sends now, without a check.
    Allow,
    /// Serve the definition that the upstream sends now, and only log how it differs from the
    /// approved one.
    Shadow,
    /// List the pinned definition, and refuse calls until the change is approved. Do not list tools
    /// without a pin, and do not send changed instructions.
    #[default]
    Block,
}

/// Approved tools of upstreams, as recorded by `toolgate pins accept`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PinSettings {
    /// Effect of a change to the tools or instructions of a pinned upstream. `block` refuses calls
    /// of changed tools, and hides new tools and changed instructions. `shadow` serves the current
    /// version and logs the differences. `allow` serves the current version without a check.
    /// toolgate does not check upstreams without pins.
    pub on_change: PinMismatchReaction,
}

/// The approved definitions of tools and the reaction to a difference.
#[derive(Debug, Clone)]
pub struct PinPolicy {
    /// The content of the lock file, or the reason why it cannot be read. `None` if nothing was
    /// ever approved.
    pub lock: Result<Option<Arc<PinLock>>, String>,
    /// Reaction to a tool or instructions that differ from their pins.
    pub on_change: PinMismatchReaction,
}

/// A tool of an upstream, as clients see it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServedUpstreamTool {
    /// Entry of the tool in the tool list.
    pub(crate) entry: Value,
    /// The reason why calls of the tool are refused, if they are.
    pub(crate) withheld: Option<String>,
}

impl PinPolicy {
    /// Returns true if `other` has the same version of the lock file.
    pub(crate) fn is_same_lock(&self, other: &Self) -> bool {
        match (&self.lock, &other.lock) {
            (Ok(None), Ok(None)) => true,
            (Ok(Some(one)), Ok(Some(other))) => Arc::ptr_eq(one, other),
            (Ok(_) | Err(_), _) => false,
        }
    }

    /// Returns true if a tool of the upstream `name` may be withheld because it differs from its
    /// pin.
    pub(crate) fn may_withhold(&self, name: &str) -> bool {
        match (&self.lock, self.on_change) {
            (_, PinMismatchReaction::Allow | PinMismatchReaction::Shadow)
            | (Ok(None), PinMismatchReaction::Block) => false,
            (Ok(Some(lock)), PinMismatchReaction::Block) => lock.upstreams.contains_key(name),
            (Err(_), PinMismatchReaction::Block) => true,
        }
    }

    /// Returns those of the `tools` of the upstream `name` that clients see.
    pub(crate) fn served_tools<'v>(
        &self,
        name: &str,
        tools: impl IntoIterator<Item = &'v Value>,
    ) -> Vec<ServedUpstreamTool> {
        let tools: Vec<_> = tools.into_iter().collect();
        let as_listed = |entry: &&Value| self.listed_tool(name, entry);
        let lock = match (&self.lock, self.on_change) {
            (_, PinMismatchReaction::Allow) | (Ok(None), _) => None,
            (Ok(Some(lock)), _) => lock.upstreams.get(name),
            (Err(why), PinMismatchReaction::Shadow) => {
                tracing::warn!("{why}");
                None
            }
            (Err(why), PinMismatchReaction::Block) => {
                let withheld = |tool: ServedUpstreamTool| ServedUpstreamTool {
                    withheld: Some(why.clone()),
                    ..tool
                };
                return tools.iter().filter_map(as_listed).map(withheld).collect();
            }
        };
        let Some(pinned) = lock else { return tools.iter().filter_map(as_listed).collect() };
        tools.iter().filter_map(|entry| self.served_tool(name, entry, &pinned.tools)).collect()
    }

    /// Returns true if clients get the current instructions `now` of the upstream `name`.
    pub(crate) fn passes_instructions(&self, name: &str, now: &str) -> bool {
        self.on_change != PinMismatchReaction::Block
            || self.check_instructions(name, Some(now)).is_ok()
    }

    /// Compares the current instructions of the upstream `name` against their pin, if there is one.
    ///
    /// # Errors
    ///
    /// Returns the difference and how to approve it.
    pub(crate) fn check_instructions(&self, name: &str, now: Option<&str>) -> Result<(), String> {
        let lock = match (&self.lock, self.on_change) {
            (_, PinMismatchReaction::Allow) | (Ok(None), _) => return Ok(()),
            (Err(why), PinMismatchReaction::Shadow | PinMismatchReaction::Block) => {
                return Err(why.clone());
            }
            (Ok(Some(lock)), PinMismatchReaction::Shadow | PinMismatchReaction::Block) => lock,
        };
        match lock.upstreams.get(name) {
            Some(pins) if pins.instructions.as_deref() != now => {
                let until = match self.on_change {
                    PinMismatchReaction::Block => "; until then they are not sent to clients",
                    PinMismatchReaction::Allow | PinMismatchReaction::Shadow => "",
                };
                Err(format!(
                    "the instructions of the upstream `{name}` differ from their pin: `toolgate \
                     pins diff {name}` shows the change, `toolgate pins accept {name}` approves \
                     it{until}"
                ))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the tool as the upstream lists it. Returns `None` if one of the tool's texts is too
    /// long or has a hidden character, unless this definition is approved.
    fn listed_tool(&self, upstream: &str, entry: &Value) -> Option<ServedUpstreamTool> {
        let listed = ServedUpstreamTool { entry: entry.clone(), withheld: None };
        let Err(fault) = check_definition_texts(entry) else { return Some(listed) };
        if self.is_approved(upstream, entry) {
            return Some(listed);
        }
        let name: String = entry["name"].as_str().unwrap_or_default().chars().take(64).collect();
        tracing::warn!(
            "the tool `{}` of the upstream `{upstream}` is not listed: {fault}; fix the upstream, \
             or approve the tools with `toolgate pins accept {upstream}`",
            escape_hidden(&name)
        );
        None
    }

    /// Returns true if the listed `entry` of a tool equals its pin.
    fn is_approved(&self, upstream: &str, entry: &Value) -> bool {
        let Ok(Some(lock)) = &self.lock else { return false };
        let Some(now) = ToolDefinition::from_entry(entry) else { return false };
        let pins = lock.upstreams.get(upstream);
        pins.and_then(|pins| pins.tools.get(&now.name)) == Some(&now)
    }

    fn served_tool(
        &self,
        upstream: &str,
        entry: &Value,
        pinned: &BTreeMap<String, ToolDefinition>,
    ) -> Option<ServedUpstreamTool> {
        let as_it_is = ServedUpstreamTool { entry: entry.clone(), withheld: None };
        let now = ToolDefinition::from_entry(entry)?;
        let name = &now.name;
        // Each entry is checked alone, even if another has the same name.
        let Some(change) = ToolDefinitionChange::between(pinned.get(name), &now) else {
            return Some(as_it_is);
        };
        let class = change.class().as_str();
        let what = match change {
            ToolDefinitionChange::Added(_) => "is new".to_owned(),
            ToolDefinitionChange::Removed | ToolDefinitionChange::Changed(_) => {
                format!("differs from its pin ({class})")
            }
        };
        let why = format!(
            "`{name}` of the upstream `{upstream}` {what}: `toolgate pins diff {upstream}` shows \
             it, `toolgate pins accept {upstream}` approves it"
        );
        match (self.on_change, pinned.get(name)) {
            (PinMismatchReaction::Allow, _) => self.listed_tool(upstream, entry),
            (PinMismatchReaction::Shadow, _) => {
                tracing::warn!("{why}");
                self.listed_tool(upstream, entry)
            }
            (PinMismatchReaction::Block, None) => {
                tracing::warn!("{why}; until then, tool lists leave the tool out");
                None
            }
            (PinMismatchReaction::Block, Some(pinned)) => {
                tracing::warn!("{why}; until then calls are refused");
                Some(ServedUpstreamTool { entry: pinned.to_entry(), withheld: Some(why) })
            }
        }
    }
}
