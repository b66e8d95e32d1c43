//! Memory budget of request bodies. If bodies exceed it, one of them is dropped.
//!
//! Only received bytes count, so a silent client uses no budget. The first bytes of each body are
//! free, so short messages never wait. The number of connections limits these free bytes, too.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use toolgate_contract::Caller;

/// Bytes of each body that do not count.
pub(super) const UNCOUNTED_BODY_BYTES: usize = 64 << 10;
/// Budget of a listener, in bodies of the largest size.
const BODIES_MAX: usize = 8;
/// Budget of one caller, in bodies of the largest size.
const BODIES_EACH_MAX: usize = 6;
/// Longest wait for room before a body is dropped.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// Memory budget of a listener's request bodies.
pub(super) struct BodyBudget {
    all_max: usize,
    each_max: usize,
    state: Mutex<BudgetState>,
    /// Notified when memory is released.
    freed: Notify,
}

/// Owner of a body.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum BodyOwner {
    /// Authenticated caller.
    Caller(Caller),
    /// Address of an unauthenticated client.
    Address(IpAddr),
}

impl BodyOwner {
    /// Returns `caller`, or the address if the caller has no credential.
    pub(super) fn for_client(caller: &Caller, peer: IpAddr) -> Self {
        match (*caller == Caller::anonymous(), peer) {
            (false, _) => Self::Caller(caller.clone()),
            (true, IpAddr::V4(_)) => Self::Address(peer),
            // One client may own a whole /64 network.
            (true, IpAddr::V6(peer)) => {
                let [a, b, c, d, ..] = peer.segments();
                Self::Address(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
        }
    }
}

#[derive(Default)]
struct BudgetState {
    next_number: u64,
    bytes_total: usize,
    bytes_by_owner: HashMap<BodyOwner, usize>,
    bodies: HashMap<u64, BudgetedBody>,
}

struct BudgetedBody {
    owner: BodyOwner,
    bytes: usize,
    /// True once the body is complete. It is then kept until the request is answered.
    is_complete: bool,
    evicted: CancellationToken,
}

/// Memory of one body, released on drop.
pub(super) struct BodyShare<'r> {
    budget: &'r BodyBudget,
    number: u64,
    evicted: CancellationToken,
}

/// Error for a body that must be dropped for lack of memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BudgetExceeded;

impl BodyBudget {
    /// Creates a budget for bodies of up to `body_bytes_max` bytes.
    pub(super) fn new(body_bytes_max: usize) -> Self {
        Self {
            all_max: body_bytes_max.saturating_mul(BODIES_MAX),
            each_max: body_bytes_max.saturating_mul(BODIES_EACH_MAX),
            state: Mutex::default(),
            freed: Notify::new(),
        }
    }

    /// Starts the account of a new body of `holder`.
    pub(super) fn open_share(&self, holder: BodyOwner) -> BodyShare<'_> {
        let given_up = CancellationToken::new();
        let mut state = self.lock_state();
        let number = state.next_number;
        state.next_number += 1;
        let body =
            BudgetedBody { owner: holder, bytes: 0, is_complete: false, evicted: given_up.clone() };
        state.bodies.insert(number, body);
        BodyShare { budget: self, number, evicted: given_up }
    }

    /// Takes `bytes` more bytes for the body `number`. Returns `None` if the body has to wait.
    fn try_take(
        &self,
        number: u64,
        bytes: usize,
        waited: bool,
    ) -> Option<Result<(), BudgetExceeded>> {
        let mut state = self.lock_state();
        loop {
            let Some(BudgetedBody { owner: holder, .. }) = state.bodies.get(&number) else {
                return Some(Err(BudgetExceeded));
            };
            let own = state.owner_bytes(holder);
            let holder = holder.clone();
            let own_is_full = own + bytes > self.each_max;
            if !own_is_full && state.bytes_total + bytes <= self.all_max {
                state.grow(number, &holder, bytes);
                return Some(Ok(()));
            }
            // The largest owner loses a body. If that is the same owner, the body waits first.
            let (largest, largest_owner) =
                match state.largest(own_is_full.then_some(&holder), number) {
                    Some(largest) if waited || state.owner_bytes(&largest.1) > own => largest,
                    Some(_) | None => return waited.then_some(Err(BudgetExceeded)),
                };
            if largest == number
                || (largest_owner != holder && state.owner_bytes(&largest_owner) < own)
            {
                return Some(Err(BudgetExceeded));
            }
            state.evict(largest);
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BudgetState {
    fn owner_bytes(&self, holder: &BodyOwner) -> usize {
        self.bytes_by_owner.get(holder).copied().unwrap_or_default()
    }

    fn grow(&mut self, number: u64, holder: &BodyOwner, bytes: usize) {
        self.bytes_total += bytes;
        *self.bytes_by_owner.entry(holder.clone()).or_default() += bytes;
        if let Some(body) = self.bodies.get_mut(&number) {
            body.bytes += bytes;
        }
    }

    /// Returns the largest incomplete body of `holder`, or of the owner with the most memory.
    /// `asking` counts even if it is empty.
    fn largest(&self, holder: Option<&BodyOwner>, asking: u64) -> Option<(u64, BodyOwner)> {
        let coming = self.bodies.iter().filter(|(number, body)| {
            let holds = !body.is_complete && (body.bytes > 0 || **number == asking);
            holds && holder.is_none_or(|holder| body.owner == *holder)
        });
        let largest = coming.max_by_key(|(number, body)| {
            // Of two equal ones, the later is selected.
            (self.owner_bytes(&body.owner), body.bytes, **number)
        });
        largest.map(|(number, body)| (*number, body.owner.clone()))
    }

    fn evict(&mut self, number: u64) {
        if let Some(body) = self.remove(number) {
            body.evicted.cancel();
        }
    }

    fn remove(&mut self, number: u64) -> Option<BudgetedBody> {
        let body = self.bodies.remove(&number)?;
        self.bytes_total -= body.bytes;
        match self.bytes_by_owner.get_mut(&body.owner) {
            Some(own) if *own > body.bytes => *own -= body.bytes,
            Some(_) | None => drop(self.bytes_by_owner.remove(&body.owner)),
        }
        Some(body)
    }
}

impl BodyShare<'_> {
    /// Takes `bytes` more bytes. If there is no room for 1 s, drops an incomplete body.
    pub(super) async fn grow(&self, bytes: usize) -> Result<(), BudgetExceeded> {
        let until = Instant::now() + ROOM_WAIT_MAX;
        let mut waited = false;
        loop {
            let freed = self.budget.freed.notified();
            if let Some(taken) = self.budget.try_take(self.number, bytes, waited) {
                return taken;
            }
            let freed = async {
                tokio::select! { () = freed => {}, () = self.wait_evicted() => {} }
            };
            waited = timeout_at(until, freed).await.is_err();
        }
    }

    /// Waits until this body must be dropped.
    pub(super) async fn wait_evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Marks the body as complete, so that it is no longer dropped.
    pub(super) fn mark_complete(&self) -> Result<(), BudgetExceeded> {
        let mut state = self.budget.lock_state();
        let body = state.bodies.get_mut(&self.number).ok_or(BudgetExceeded)?;
        body.is_complete = true;
        Ok(())
    }
}

impl Drop for BodyShare<'_> {
    fn drop(&mut self) {
        self.budget.lock_state().remove(self.number);
        self.budget.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Returns a budget of eight bytes, of which one caller can take six.
    fn room() -> BodyBudget {
        BodyBudget::new(1)
    }

    fn named(name: &str) -> BodyOwner {
        BodyOwner::Caller(Caller::with_key(name))
    }

    fn try_grow(share: &BodyShare<'_>, bytes: usize) -> Option<Result<(), BudgetExceeded>> {
        share.grow(bytes).now_or_never()
    }

    fn is_evicted(share: &BodyShare<'_>) -> bool {
        share.wait_evicted().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_body_of_the_largest_owner_is_evicted() {
        let room = room();
        let one = room.open_share(named("one"));
        let two = room.open_share(named("one"));
        let other = room.open_share(named("other"));
        assert_eq!(
            [try_grow(&one, 2), try_grow(&two, 3), try_grow(&other, 3)],
            [const { Some(Ok(())) }; 3]
        );
        let small = room.open_share(named("third"));
        assert_eq!(try_grow(&small, 1), Some(Ok(())));
        assert_eq!([&one, &two, &other].map(is_evicted), [false, true, false]);
        assert_eq!(try_grow(&two, 1), Some(Err(BudgetExceeded)));
        assert_eq!(two.mark_complete(), Err(BudgetExceeded));
        drop((one, two, other, small));
        let state = room.lock_state();
        assert_eq!((state.bytes_total, state.bytes_by_owner.len(), state.bodies.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_cannot_take_all_and_waiting_bodies_do_not_deadlock() {
        let room = room();
        let shares: Vec<_> = (0..3).map(|_| room.open_share(named("one"))).collect();
        for share in &shares {
            assert_eq!(try_grow(share, 2), Some(Ok(())));
        }
        assert_eq!(try_grow(&shares[0], 1), None, "it waits");
        let grown = tokio::join!(shares[0].grow(1), shares[1].grow(1), shares[2].grow(1));
        assert_eq!(<[_; 3]>::from(grown), [Ok(()), Ok(()), Err(BudgetExceeded)]);
        let other = room.open_share(named("other"));
        assert_eq!(try_grow(&other, 2), Some(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_complete_body_is_not_evicted() {
        let room = room();
        let whole = room.open_share(named("one"));
        assert_eq!(try_grow(&whole, 6), Some(Ok(())));
        whole.mark_complete().expect("the body was not evicted");
        let other = room.open_share(named("other"));
        assert_eq!(try_grow(&other, 4), None);
        assert_eq!(other.grow(4).await, Err(BudgetExceeded));
        let (grown, ()) = tokio::join!(other.grow(4), async { drop(whole) });
        assert_eq!(grown, Ok(()));
    }

    #[test]
    fn an_anonymous_client_is_identified_by_its_network() {
        let of = |address: &str| {
            BodyOwner::for_client(&Caller::anonymous(), address.parse().expect("an address"))
        };
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        let ada = Caller::with_key("ada");
        assert_eq!(
            BodyOwner::for_client(&ada, ([10, 0, 0, 1], 1).0.into()),
            BodyOwner::Caller(ada)
        );
    }
}
