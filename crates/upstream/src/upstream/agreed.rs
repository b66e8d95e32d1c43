//! Checks a pinned tool against its definition on the very connection that it is called over.

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

/// Checked pins of the tools on one connection.
#[derive(Default)]
pub(crate) struct Agreed {
    seen: Mutex<Seen>,
    /// All tools of the connection and when they were listed. The lock admits one listing at a
    /// time.
    listed: tokio::sync::Mutex<Option<(Moment, Arc<[Value]>)>>,
}

/// Interval at which the pins are checked for changes.
const LOOK: Duration = Duration::from_secs(1);

/// The tools that match their pins, and since when.
#[derive(Default)]
struct Seen {
    since: Option<Moment>,
    names: HashSet<String>,
    /// The pins that were compared, and the time of the last look at them.
    by: Option<(Pinned, Instant)>,
}

/// A point in time: a count of announced changes, and the clock for changes that nobody announces.
#[derive(Clone, Copy)]
struct Moment {
    turn: u64,
    at: Instant,
}

impl Moment {
    /// Returns true if a check made then still holds in `turn`.
    fn holds(self, turn: u64) -> bool {
        self.turn == turn && self.at.elapsed() < GOOD_FOR
    }
}

impl Agreed {
    /// Locks the checked tools, cleared if they no longer hold in `turn`.
    fn seen(&self, turn: u64) -> MutexGuard<'_, Seen> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.since.is_some_and(|since| !since.holds(turn)) {
            *seen = Seen::default();
        }
        seen
    }

    /// Returns true if the tool `name` matched its pin and `pinned` has not changed since.
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
    /// Records that the tools may have changed, on all connections.
    pub(super) fn may_be_another(&self) {
        self.turn.fetch_add(1, Ordering::AcqRel);
    }

    /// Checks that the tool `name` on `link` matches its pin, if it has one.
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
                // The change may have been undone without a notification.
                let now = self.listed_at(link, begun, false).await?;
                self.judged(&pinned, &now, name)?;
            }
        }
        let mut seen = link.agreed.seen(turn);
        // A change during the check is checked again with the next call.
        if self.turn.load(Ordering::Acquire) == turn {
            seen.since.get_or_insert(begun);
            // Names that matched other pins are checked again.
            if !seen.by.as_ref().is_some_and(|(by, _)| by.is(&pinned)) {
                seen.names.clear();
                seen.by = Some((pinned, begun.at));
            }
            seen.names.insert(name.to_owned());
        }
        Ok(())
    }

    /// Checks the tool `name` in `tools` against its pin.
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

    /// Returns the tools on `link`, listed after `begun`, or earlier if `known` is true.
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
        // A change during the listing belongs to a later turn.
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
                let name = &self.name;
                let why = told(&trouble);
                let message = format!(
                    "the tools of the upstream `{name}` are pinned, and it does not list them: {why}"
                );
                Err(ToolError::new(Fault::Unavailable, message))
            }
        }
    }
}
