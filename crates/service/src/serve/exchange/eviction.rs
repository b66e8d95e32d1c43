//! Selects the session to end when there are too many sessions.

use std::cmp::Reverse;
use std::collections::HashMap;

use toolgate_contract::Caller;

use super::OpenHttpSession;

/// Ends a session of the caller with the most sessions: the idle one with the oldest last activity.
/// Returns false if every session is busy.
///
/// The client of the ended session gets an error at the next request, and can start a new session.
pub(super) fn evict_idle_session(sessions: &mut HashMap<String, OpenHttpSession>) -> bool {
    let mut counts: HashMap<&Caller, usize> = HashMap::new();
    for slot in sessions.values() {
        *counts.entry(&slot.session.caller).or_default() += 1;
    }
    let idle = sessions.iter().filter(|(_, slot)| slot.session.is_idle());
    let order = |slot: &OpenHttpSession| (Reverse(counts[&slot.session.caller]), slot.last_used);
    let silent = idle.min_by_key(|(_, slot)| order(slot)).map(|(id, _)| id.clone());
    silent
        .and_then(|id| sessions.remove(&id))
        .map(|slot| slot.session.end("the session was ended"))
        .is_some()
}
