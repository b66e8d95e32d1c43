//! What of an upstream is served and told, by what was agreed to.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Change, Definition, Lock};

/// What follows where an upstream's tool, or what it says of its tools, is not as it was agreed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// It is served as it is now.
    Allow,
    /// It is served as it is now, and the log says what differs.
    Shadow,
    /// It is listed as it was agreed to, and calls of it are refused until someone has agreed to it as it is now. One that nobody agreed to is not listed. Instructions that are others are not told.
    #[default]
    Block,
}

/// What was agreed to of upstreams, as `toolgate pins accept` wrote it down.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pins {
    /// What follows where a tool of an upstream that has pins is another, or its instructions are: `allow`, `shadow` or `block`. One without pins is served as it is.
    pub on_change: OnChange,
}

/// What was agreed to, and what follows from a difference.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// What was agreed to: nothing where nobody ever did, or why that is not known.
    pub lock: Result<Option<Arc<Lock>>, String>,
    /// What follows.
    pub on_change: OnChange,
}

/// A tool as it is served.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judged {
    /// As it is listed.
    pub(crate) entry: Value,
    /// Why it is not called, if it is not.
    pub(crate) withheld: Option<String>,
}

impl Pinned {
    /// Whether `other` is of the same file as it was then.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (&self.lock, &other.lock) {
            (Ok(None), Ok(None)) => true,
            (Ok(Some(one)), Ok(Some(other))) => Arc::ptr_eq(one, other),
            (Ok(_) | Err(_), _) => false,
        }
    }

    /// Whether any tool of the upstream `name` may be withheld.
    pub(crate) fn may_withhold(&self, name: &str) -> bool {
        match (&self.lock, self.on_change) {
            (_, OnChange::Allow | OnChange::Shadow) | (Ok(None), OnChange::Block) => false,
            (Ok(Some(lock)), OnChange::Block) => lock.upstreams.contains_key(name),
            (Err(_), OnChange::Block) => true,
        }
    }

    /// What of `tools`, which the upstream `name` lists, is served.
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

    /// Whether clients are told that the upstream `name` says `now` of how its tools are used well.
    pub(crate) fn tells(&self, name: &str, now: &str) -> bool {
        self.on_change != OnChange::Block || self.agrees_to(name, Some(now)).is_ok()
    }

    /// Whether what the upstream `name` says of how its tools are used well is what was agreed to, if
    /// anything of it was.
    ///
    /// # Errors
    /// In what it is not, and what follows.
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
        // By itself, whatever else has its name.
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
