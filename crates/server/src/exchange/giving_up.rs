//! Which session gives its place to another.

use std::cmp::Reverse;
use std::collections::HashMap;

use toolgate_contract::Caller;

use super::Seat;

/// Ends the session that has been silent for longest, if any has nothing in flight, of the caller
/// that has most. Its client is told that it is gone and begins another.
pub(super) fn give_up_the_most_silent(sessions: &mut HashMap<String, Seat>) -> bool {
    let mut of: HashMap<&Caller, usize> = HashMap::new();
    for seat in sessions.values() {
        *of.entry(&seat.session.caller).or_default() += 1;
    }
    let idle = sessions.iter().filter(|(_, seat)| seat.session.is_idle());
    let order = |seat: &Seat| (Reverse(of[&seat.session.caller]), seat.heard);
    let silent = idle.min_by_key(|(_, seat)| order(seat)).map(|(id, _)| id.clone());
    silent
        .and_then(|id| sessions.remove(&id))
        .map(|seat| seat.session.end("the session was ended"))
        .is_some()
}
