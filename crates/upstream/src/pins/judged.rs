//! What of an upstream is served, by what was agreed to.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Accepted, Change, Definition, Lock};

/// What follows where an upstream's tool is not as it was agreed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// It is served as it is now.
    Allow,
    /// It is served as it is now, and the log says what differs.
    Shadow,
    /// It is listed as it was agreed to, and calls of it are refused until someone has agreed to it as it is now. One that nobody agreed to is not listed.
    #[default]
    Block,
}

/// Which tools of upstreams were agreed to, as `toolgate pins accept` wrote them down.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pins {
    /// What follows where a tool of an upstream that has pins, or its instructions, are others: `allow`, `shadow` or `block`. One without pins is served as it is.
    pub on_change: OnChange,
}

/// What was agreed to, and what follows from a difference.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// What was agreed to: nothing where nobody ever did, or why that is not known.
    pub lock: Result<Option<Lock>, String>,
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

    /// The instructions of the upstream `name` that somebody agreed to, where that is what counts.
    pub(crate) fn agreed_instructions(&self, name: &str) -> Option<String> {
        match (&self.lock, self.on_change) {
            (Ok(Some(lock)), OnChange::Block) => lock.upstreams.get(name)?.instructions.clone(),
            _ => None,
        }
    }

    /// What of `now`, which the upstream `name` says of how it is used well, clients are told.
    pub(crate) fn instructions(&self, name: &str, now: Option<&str>) -> Option<String> {
        let as_it_is = now.map(str::to_owned);
        let accepted = match (&self.lock, self.on_change) {
            (_, OnChange::Allow) | (Ok(None), _) | (Err(_), OnChange::Shadow) => return as_it_is,
            (Err(_), OnChange::Block) => return None,
            (Ok(Some(lock)), OnChange::Shadow | OnChange::Block) => lock.upstreams.get(name),
        };
        let Some(Accepted { instructions: pinned, .. }) = accepted else { return as_it_is };
        if *pinned == as_it_is {
            return as_it_is;
        }
        let why = format!(
            "the instructions of the upstream `{name}` are not as they were pinned: `toolgate pins \
             diff {name}` shows them, `toolgate pins accept {name}` agrees to them"
        );
        if self.on_change == OnChange::Shadow {
            tracing::warn!("{why}");
            return as_it_is;
        }
        tracing::warn!("{why}; until then clients are told those that were pinned, if any");
        pinned.clone()
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
