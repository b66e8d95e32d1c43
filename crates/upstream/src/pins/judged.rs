//! Decides which tools and instructions of a pinned upstream are served.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Change, Definition, Lock};

/// Reaction to a tool or instructions that differ from their pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// Serve the current definition.
    Allow,
    /// Serve the current definition and log the differences.
    Shadow,
    /// List the pinned definition and refuse calls until the change is approved. Tools without a
    /// pin are not listed. Changed instructions are not sent.
    #[default]
    Block,
}

/// Approved tools of upstreams, as recorded by `toolgate pins accept`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pins {
    /// Reaction to a change of a pinned upstream's tools or instructions: `allow`, `shadow` or
    /// `block`. Upstreams without pins are served as they are.
    pub on_change: OnChange,
}

/// The approved definitions and the reaction to a difference.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// The lock file: `None` if nothing was ever approved, or the reason why it cannot be read.
    pub lock: Result<Option<Arc<Lock>>, String>,
    /// Reaction to a difference.
    pub on_change: OnChange,
}

/// A tool as it is served.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judged {
    /// Entry of the tool list.
    pub(crate) entry: Value,
    /// Reason why calls are refused, if they are.
    pub(crate) withheld: Option<String>,
}

impl Pinned {
    /// Returns true if `other` is the same version of the lock file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (&self.lock, &other.lock) {
            (Ok(None), Ok(None)) => true,
            (Ok(Some(one)), Ok(Some(other))) => Arc::ptr_eq(one, other),
            (Ok(_) | Err(_), _) => false,
        }
    }

    /// Returns true if any tool of the upstream `name` may be withheld.
    pub(crate) fn may_withhold(&self, name: &str) -> bool {
        match (&self.lock, self.on_change) {
            (_, OnChange::Allow | OnChange::Shadow) | (Ok(None), OnChange::Block) => false,
            (Ok(Some(lock)), OnChange::Block) => lock.upstreams.contains_key(name),
            (Err(_), OnChange::Block) => true,
        }
    }

    /// Returns the tools of the upstream `name` that are served, out of `tools`.
    pub(crate) fn judge<'v>(
        &self,
        name: &str,
        tools: impl IntoIterator<Item = &'v Value>,
    ) -> Vec<Judged> {
        let tools: Vec<_> = tools.into_iter().collect();
        let as_it_is = |entry: &&Value| Judged { entry: (*entry).clone(), withheld: None };
        let lock = match (&self.lock, self.on_change) {
            (_, OnChange::Allow) | (Ok(None), _) => None,
            (Ok(Some(lock)), _) => lock.upstreams.get(name),
            (Err(why), OnChange::Shadow) => {
                tracing::warn!("{why}");
                None
            }
            (Err(why), OnChange::Block) => {
                let withheld = |judged: Judged| Judged { withheld: Some(why.clone()), ..judged };
                return tools.iter().map(as_it_is).map(withheld).collect();
            }
        };
        let Some(pinned) = lock else { return tools.iter().map(as_it_is).collect() };
        tools.iter().filter_map(|entry| self.judged(name, entry, &pinned.tools)).collect()
    }

    /// Returns true if clients get the instructions `now` of the upstream `name`.
    pub(crate) fn tells(&self, name: &str, now: &str) -> bool {
        self.on_change != OnChange::Block || self.agrees_to(name, Some(now)).is_ok()
    }

    /// Checks the instructions of the upstream `name` against their pin, if there is one.
    ///
    /// # Errors
    ///
    /// Returns the difference and how to approve it.
    pub(crate) fn agrees_to(&self, name: &str, now: Option<&str>) -> Result<(), String> {
        let lock = match (&self.lock, self.on_change) {
            (_, OnChange::Allow) | (Ok(None), _) => return Ok(()),
            (Err(why), OnChange::Shadow | OnChange::Block) => return Err(why.clone()),
            (Ok(Some(lock)), OnChange::Shadow | OnChange::Block) => lock,
        };
        match lock.upstreams.get(name) {
            Some(accepted) if accepted.instructions.as_deref() != now => {
                let until = match self.on_change {
                    OnChange::Block => "; until then clients are not told them",
                    OnChange::Allow | OnChange::Shadow => "",
                };
                Err(format!(
                    "the instructions of the upstream `{name}` are not as they were pinned: \
                     `toolgate pins diff {name}` shows them, `toolgate pins accept {name}` agrees \
                     to them{until}"
                ))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn judged(
        &self,
        upstream: &str,
        entry: &Value,
        pinned: &BTreeMap<String, Definition>,
    ) -> Option<Judged> {
        let as_it_is = Judged { entry: entry.clone(), withheld: None };
        let now = Definition::of(entry)?;
        let name = &now.name;
        // Each entry is judged alone, even if another has the same name.
        let Some(change) = Change::of(pinned.get(name), &now) else { return Some(as_it_is) };
        let class = change.class().word();
        let what = match change {
            Change::Added(_) => "is new".to_owned(),
            Change::Removed | Change::Changed(_) => format!("is not as it was pinned ({class})"),
        };
        let why = format!(
            "`{name}` of the upstream `{upstream}` {what}: `toolgate pins diff {upstream}` shows \
             it, `toolgate pins accept {upstream}` agrees to it"
        );
        match (self.on_change, pinned.get(name)) {
            (OnChange::Allow, _) => Some(as_it_is),
            (OnChange::Shadow, _) => {
                tracing::warn!("{why}");
                Some(as_it_is)
            }
            (OnChange::Block, None) => {
                tracing::warn!("{why}; until then it is not served");
                None
            }
            (OnChange::Block, Some(pinned)) => {
                tracing::warn!("{why}; until then it is not called");
                Some(Judged { entry: pinned.entry(), withheld: Some(why) })
            }
        }
    }
}
