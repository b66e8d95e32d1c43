//! Whether a tool is what was agreed to where it is called: by what that connection lists, whatever
//! was known before.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use toolgate_contract::{Fault, ToolError};

use super::Upstream;
use super::failed::told;
use crate::link::Link;
use crate::listing::{self, GOOD_FOR};
use crate::pins::Pinned;
use crate::wire::Trouble;

/// What is known of the tools at one connection.
#[derive(Default)]
pub(crate) struct Agreed {
    seen: Mutex<Seen>,
    /// All of them, once they were asked for, and when. One asks at a time.
    listed: tokio::sync::Mutex<Option<(Moment, Arc<[Value]>)>>,
}

/// How often it is looked whether something else was agreed to.
const LOOK: Duration = Duration::from_secs(1);

/// The tools that were seen to be as they were agreed to, and when first.
#[derive(Default)]
struct Seen {
    since: Option<Moment>,
    names: HashSet<String>,
    /// By what was agreed to they were seen to be so, and when that was last looked at.
    by: Option<(Pinned, Instant)>,
}

/// When something was looked at: after how many changes that were told, and by the clock, for what
/// is never told.
#[derive(Clone, Copy)]
struct Moment {
    turn: u64,
    at: Instant,
}

impl Moment {
    /// Whether what was seen then holds in `turn`.
    fn holds(self, turn: u64) -> bool {
        self.turn == turn && self.at.elapsed() < GOOD_FOR
    }
}

impl Agreed {
    /// What was seen, as far as it holds in `turn`.
    fn seen(&self, turn: u64) -> MutexGuard<'_, Seen> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.since.is_some_and(|since| !since.holds(turn)) {
            *seen = Seen::default();
        }
        seen
    }

    /// Whether `name` was seen to be as it was agreed to, and nothing else was agreed to since, which
    /// `pinned` tells.
    fn is_seen(&self, turn: u64, name: &str, pinned: impl FnOnce() -> Option<Pinned>) -> bool {
        let mut seen = self.seen(turn);
        if !seen.names.contains(name) {
            return false;
        }
        if seen.by.as_ref().is_some_and(|(_, looked)| looked.elapsed() >= LOOK) {
            let is_same = |now: Pinned| seen.by.as_ref().is_some_and(|(by, _)| by.is(&now));
            if !pinned().is_some_and(is_same) {
                *seen = Seen::default();
                return false;
            }
            if let Some((_, looked)) = &mut seen.by {
                *looked = Instant::now();
            }
        }
        true
    }
}

impl Upstream {
    /// Its tools may be others, at any of its connections.
    pub(super) fn may_be_another(&self) {
        self.turn.fetch_add(1, Ordering::AcqRel);
    }

    /// Refuses the tool `name` at `link` where it is pinned and is listed there as another, or not.
    pub(crate) async fn is_as_agreed(&self, link: &Link, name: &str) -> Result<(), ToolError> {
        let turn = self.turn.load(Ordering::Acquire);
        let served = || self.lasting.upstream();
        if link.agreed.is_seen(turn, name, || Some(served()?.keeps.pinned())) {
            return Ok(());
        }
        let begun = Moment { turn, at: Instant::now() };
        let served = served().ok_or_else(|| {
            ToolError::new(Fault::Unavailable, "the upstream is not served any more")
        })?;
        let pinned = served.keeps.pinned();
        if pinned.may_withhold(&self.name) {
            let known = self.listed_at(link, begun, true).await?;
            if self.judged(&pinned, &known, name).is_err() {
                // It may be as it was again, and nobody said so.
                let now = self.listed_at(link, begun, false).await?;
                self.judged(&pinned, &now, name)?;
            }
        }
        let mut seen = link.agreed.seen(turn);
        // What has changed meanwhile is looked at again with the next call.
        if self.turn.load(Ordering::Acquire) == turn {
            seen.since.get_or_insert(begun);
            // Names that were seen by something else are looked at again.
            if !seen.by.as_ref().is_some_and(|(by, _)| by.is(&pinned)) {
                seen.names.clear();
                seen.by = Some((pinned, begun.at));
            }
            seen.names.insert(name.to_owned());
        }
        Ok(())
    }

    /// Refuses the tool `name` where it is not among `tools` as it was agreed to.
    fn judged(&self, pinned: &Pinned, tools: &[Value], name: &str) -> Result<(), ToolError> {
        let entries = tools.iter().filter(|entry| entry["name"] == name);
        let judged = pinned.judge(&self.name, entries);
        let withheld = judged.iter().find_map(|judged| judged.withheld.clone());
        let gone = || format!("`{name}` of the upstream `{}` is not there as it was", self.name);
        match withheld.or_else(|| judged.is_empty().then(gone)) {
            None => Ok(()),
            Some(why) => Err(ToolError::new(Fault::Unavailable, why)),
        }
    }

    /// The tools at `link`: as they were listed since it `begun` to be looked, or before if
    /// `known` will do.
    async fn listed_at(
        &self,
        link: &Link,
        begun: Moment,
        known: bool,
    ) -> Result<Arc<[Value]>, ToolError> {
        let mut listed = link.agreed.listed.lock().await;
        if let Some((then, tools)) = &*listed
            && if known { then.holds(begun.turn) } else { then.at >= begun.at }
        {
            return Ok(tools.clone());
        }
        // What changes while they are listed is of a later turn.
        let then = Moment { turn: self.turn.load(Ordering::Acquire), at: Instant::now() };
        let within = Duration::from_millis(self.settings.start_ms);
        let tools = tokio::time::timeout(within, listing::tools(&self.name, link)).await;
        let late = |_| Err(Trouble::Lost("it does not answer".to_owned()));
        match tools.unwrap_or_else(late) {
            Ok(tools) => {
                let tools: Arc<[Value]> = tools.into();
                *listed = Some((then, tools.clone()));
                Ok(tools)
            }
            Err(trouble) => {
                let (name, why) = (&self.name, told(&trouble));
                let message = format!(
                    "the tools of the upstream `{name}` are pinned, and it does not list them: {why}"
                );
                Err(ToolError::new(Fault::Unavailable, message))
            }
        }
    }
}
