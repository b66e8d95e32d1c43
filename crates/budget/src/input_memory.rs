//! Memory that client input takes: request bodies, WebSocket messages, the values parsed from them,
//! and the inputs of running jobs. If the memory limit is reached, a message that arrives is
//! dropped.
//!
//! Only received bytes count, so a silent client uses no memory. The first bytes of each message do
//! not count, so short messages never wait. The limit on connections bounds these bytes. A caller
//! that uses little memory can reserve more even if other callers have reached the limit.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use toolgate_contract::{Caller, lock_mutex};

/// Number of bytes at the start of each message that do not count against the memory limit.
pub const UNCOUNTED_BYTES: usize = 64 << 10;
/// Memory limit for all messages together, as a multiple of the maximum size of one message.
const MESSAGES_MAX: usize = 8;
/// Memory limit for the messages of one caller, as a multiple of the maximum size of one message.
const MESSAGES_EACH_MAX: usize = 6;
/// Divisor of the memory limit that gives the size of the reserve: 1/16 of the limit, in addition
/// to the limit. Only callers that use little memory may use the reserve.
const RESERVE_DIVISOR: usize = 16;
/// Divisor of the memory limit that gives the access to the reserve. A caller may use the reserve
/// if all its messages take at most 1/128 of the limit (2 MiB by default).
const SMALL_SHARE_DIVISOR: usize = 128;
/// Divisor of the memory limit that gives the allowance for evicted messages. Until they are
/// dropped, they may take 1/4 of the limit in addition to it.
const EVICTED_DIVISOR: usize = 4;
/// Minimum size of a released message, in bytes, after which freed memory is returned to the
/// operating system.
const LARGE_BYTES_MIN: usize = 4 << 20;
/// Longest wait for free memory before a message is dropped.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// Memory budget for the messages of clients, shared by all listeners and all clones.
#[derive(Clone)]
pub struct InputMemoryBudget(Arc<InputMemoryBudgetInner>);

struct InputMemoryBudgetInner {
    all_max: usize,
    each_max: usize,
    state: Mutex<InputMemoryState>,
    /// Signal that the memory of a message was released.
    freed: Notify,
    /// Signal that the memory of a large message was released.
    large_freed: Notify,
}

impl fmt::Debug for InputMemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputMemoryBudget")
            .field("bytes_max", &self.0.all_max)
            .finish_non_exhaustive()
    }
}

/// Owner of a client's message, to whom the message's memory is charged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum InputMemoryOwner {
    /// Authenticated caller who owns the message.
    Caller(Caller),
    /// Address of an unauthenticated client who owns the message.
    Address(IpAddr),
}

impl InputMemoryOwner {
    /// Returns the owner of a client's messages: `caller`, or the address if the caller has no
    /// credential.
    pub fn for_client(caller: &Caller, peer: IpAddr) -> Self {
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
struct InputMemoryState {
    next_number: u64,
    bytes_total: usize,
    /// Sizes in bytes of evicted messages that are not dropped yet, by message number.
    evicted: HashMap<u64, usize>,
    bytes_by_owner: HashMap<InputMemoryOwner, usize>,
    bodies: HashMap<u64, ReservedMessageMemory>,
}

/// Memory of one message that counts against the budget, with the message's owner.
struct ReservedMessageMemory {
    owner: InputMemoryOwner,
    bytes: usize,
    /// True once all bytes of the message have arrived. Among an owner's messages, those that are
    /// still arriving are evicted first.
    is_received: bool,
    /// True once the message can no longer be evicted. Its memory stays reserved until the request
    /// is answered.
    is_complete: bool,
    evicted: CancellationToken,
}

/// Reservation of the memory for one message of a client. Dropping this value releases the memory.
#[derive(Debug)]
pub struct InputMemoryReservation {
    memory: InputMemoryBudget,
    number: u64,
    evicted: CancellationToken,
}

/// Error for a message that must be dropped for lack of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputMemoryFull;

impl InputMemoryBudget {
    /// Creates a memory budget for messages of up to `message_bytes_max` bytes.
    pub fn new(message_bytes_max: usize) -> Self {
        Self(Arc::new(InputMemoryBudgetInner {
            all_max: message_bytes_max.saturating_mul(MESSAGES_MAX),
            each_max: message_bytes_max.saturating_mul(MESSAGES_EACH_MAX),
            state: Mutex::default(),
            freed: Notify::new(),
            large_freed: Notify::new(),
        }))
    }

    /// Creates a reservation of 0 bytes for a new message of `owner`.
    #[inline]
    pub fn open_share(&self, owner: InputMemoryOwner) -> InputMemoryReservation {
        let evicted = CancellationToken::new();
        let mut state = lock_mutex(&self.0.state);
        let number = state.next_number;
        state.next_number += 1;
        let message = ReservedMessageMemory {
            owner,
            bytes: 0,
            is_received: false,
            is_complete: false,
            evicted: evicted.clone(),
        };
        state.bodies.insert(number, message);
        InputMemoryReservation { memory: self.clone(), number, evicted }
    }

    /// Waits until `bytes` of memory are free for `owner`, and reserves them, up to the limit of
    /// one owner. To free memory, drops messages that still arrive and belong to owners that use
    /// more memory.
    pub async fn reserve_when_free(
        &self,
        owner: InputMemoryOwner,
        bytes: usize,
    ) -> InputMemoryReservation {
        let share = self.open_share(owner);
        // A new share is never evicted before this.
        let _ = share.mark_complete();
        let bytes = bytes.min(self.0.each_max);
        loop {
            let freed = self.0.freed.notified();
            if let Some(Ok(())) = self.0.try_take(share.number, bytes, false) {
                return share;
            }
            freed.await;
        }
    }

    /// Waits until the memory of a large message has been released since the previous call of this
    /// function.
    pub async fn wait_large_freed(&self) {
        self.0.large_freed.notified().await;
    }
}

impl InputMemoryBudgetInner {
    /// Reserves memory for `bytes` more bytes of the message `number`, and may evict incomplete
    /// messages for this. Returns `None` if the message must wait for memory, or an error if the
    /// message must be dropped. If the message has already `waited`, it does not wait again.
    #[inline]
    fn try_take(
        &self,
        number: u64,
        bytes: usize,
        waited: bool,
    ) -> Option<Result<(), InputMemoryFull>> {
        let mut state = lock_mutex(&self.state);
        loop {
            let Some(ReservedMessageMemory { owner: holder, .. }) = state.bodies.get(&number)
            else {
                return Some(Err(InputMemoryFull));
            };
            let own = state.owner_bytes(holder);
            let holder = holder.clone();
            if state.bytes_with_evicted() + bytes > self.all_max + self.all_max / EVICTED_DIVISOR {
                return waited.then_some(Err(InputMemoryFull));
            }
            let own_is_full = own + bytes > self.each_max;
            let all_max = self.all_max_for(own + bytes);
            if !own_is_full && state.bytes_total + bytes <= all_max {
                state.grow(number, &holder, bytes);
                return Some(Ok(()));
            }
            // The largest owner loses a body. If that is the same owner, the body waits first.
            let (largest, largest_owner) =
                match state.largest(own_is_full.then_some(&holder), number) {
                    Some(largest) if waited || state.owner_bytes(&largest.1) > own => largest,
                    Some(_) | None => return waited.then_some(Err(InputMemoryFull)),
                };
            if largest == number
                || (largest_owner != holder && state.owner_bytes(&largest_owner) < own)
            {
                return Some(Err(InputMemoryFull));
            }
            state.evict(largest);
        }
    }

    /// Returns the memory limit for all owners together, in bytes. The limit is higher for an owner
    /// that would use only a few bytes (`own`).
    #[inline]
    fn all_max_for(&self, own: usize) -> usize {
        match own <= self.all_max / SMALL_SHARE_DIVISOR {
            true => self.all_max + self.all_max / RESERVE_DIVISOR,
            false => self.all_max,
        }
    }
}

impl InputMemoryState {
    #[inline]
    fn owner_bytes(&self, holder: &InputMemoryOwner) -> usize {
        self.bytes_by_owner.get(holder).copied().unwrap_or_default()
    }

    #[inline]
    fn grow(&mut self, number: u64, holder: &InputMemoryOwner, bytes: usize) {
        self.bytes_total += bytes;
        *self.bytes_by_owner.entry(holder.clone()).or_default() += bytes;
        if let Some(body) = self.bodies.get_mut(&number) {
            body.bytes += bytes;
        }
    }

    /// Returns the largest incomplete message of `holder`, or of the owner with the most memory if
    /// `holder` is `None`. The message `asking`, which needs memory, counts even if it is empty.
    #[inline]
    fn largest(
        &self,
        holder: Option<&InputMemoryOwner>,
        asking: u64,
    ) -> Option<(u64, InputMemoryOwner)> {
        let coming = self.bodies.iter().filter(|(number, body)| {
            let holds = !body.is_complete && (body.bytes > 0 || **number == asking);
            holds && holder.is_none_or(|holder| body.owner == *holder)
        });
        let largest = coming.max_by_key(|(number, body)| {
            // Of two equal ones, the later is selected.
            (self.owner_bytes(&body.owner), !body.is_received, body.bytes, **number)
        });
        largest.map(|(number, body)| (*number, body.owner.clone()))
    }

    fn evict(&mut self, number: u64) {
        if let Some(body) = self.remove(number) {
            body.evicted.cancel();
            self.evicted.insert(number, body.bytes);
        }
    }

    /// Returns the memory of all messages in bytes, including evicted messages that are not yet
    /// dropped.
    #[inline]
    fn bytes_with_evicted(&self) -> usize {
        self.bytes_total + self.evicted.values().sum::<usize>()
    }

    #[inline]
    fn remove(&mut self, number: u64) -> Option<ReservedMessageMemory> {
        let body = self.bodies.remove(&number)?;
        self.bytes_total -= body.bytes;
        match self.bytes_by_owner.get_mut(&body.owner) {
            Some(own) if *own > body.bytes => *own -= body.bytes,
            Some(_) | None => drop(self.bytes_by_owner.remove(&body.owner)),
        }
        Some(body)
    }
}

impl InputMemoryReservation {
    /// Reserves memory for `bytes` more bytes of the message. If no memory is free after 1 s,
    /// evicts an incomplete message, which may be this message.
    ///
    /// # Errors
    /// Fails if this message must be dropped.
    pub async fn grow(&self, bytes: usize) -> Result<(), InputMemoryFull> {
        let until = Instant::now() + ROOM_WAIT_MAX;
        let mut waited = false;
        loop {
            let freed = self.memory.0.freed.notified();
            if let Some(taken) = self.memory.0.try_take(self.number, bytes, waited) {
                return taken;
            }
            let freed = async {
                tokio::select! { () = freed => {}, () = self.wait_evicted() => {} }
            };
            waited = timeout_at(until, freed).await.is_err();
        }
    }

    /// Reserves memory for `bytes` more bytes of the message. If no memory is free, evicts an
    /// incomplete message at once, which may be this message.
    ///
    /// # Errors
    /// Fails if this message must be dropped.
    #[inline]
    pub fn grow_at_once(&self, bytes: usize) -> Result<(), InputMemoryFull> {
        self.memory.0.try_take(self.number, bytes, true).unwrap_or(Err(InputMemoryFull))
    }

    /// Returns true if this message was evicted and must be dropped, because other messages need
    /// its memory.
    #[inline]
    pub fn is_evicted(&self) -> bool {
        self.evicted.is_cancelled()
    }

    /// Waits until this message is evicted and must be dropped, because other messages need its
    /// memory.
    pub async fn wait_evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Returns a future that completes when this message is evicted and must be dropped, because
    /// other messages need its memory.
    pub fn evicted_owned(&self) -> WaitForCancellationFutureOwned {
        self.evicted.clone().cancelled_owned()
    }

    /// Marks that all bytes of the message have arrived. If memory is needed, messages of the same
    /// owner that are still arriving are then dropped first.
    #[inline]
    pub fn mark_received(&self) {
        if let Some(body) = lock_mutex(&self.memory.0.state).bodies.get_mut(&self.number) {
            body.is_received = true;
        }
    }

    /// Marks the message as complete, so that it is no longer evicted.
    ///
    /// # Errors
    /// Fails if this message was evicted before and must be dropped.
    #[inline]
    pub fn mark_complete(&self) -> Result<(), InputMemoryFull> {
        let mut state = lock_mutex(&self.memory.0.state);
        let body = state.bodies.get_mut(&self.number).ok_or(InputMemoryFull)?;
        body.is_complete = true;
        Ok(())
    }
}

impl Drop for InputMemoryReservation {
    #[inline]
    fn drop(&mut self) {
        let mut state = lock_mutex(&self.memory.0.state);
        let bytes = match state.remove(self.number) {
            Some(body) => body.bytes,
            None => state.evicted.remove(&self.number).unwrap_or_default(),
        };
        drop(state);
        self.memory.0.freed.notify_waiters();
        if bytes >= LARGE_BYTES_MIN {
            self.memory.0.large_freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    /// Returns a budget of 8 bytes, of which one caller can use 6.
    fn room() -> InputMemoryBudget {
        InputMemoryBudget::new(1)
    }

    fn named(name: &str) -> InputMemoryOwner {
        InputMemoryOwner::Caller(Caller::with_key(name))
    }

    fn try_grow(
        share: &InputMemoryReservation,
        bytes: usize,
    ) -> Option<Result<(), InputMemoryFull>> {
        share.grow(bytes).now_or_never()
    }

    fn is_evicted(share: &InputMemoryReservation) -> bool {
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
        assert_eq!(try_grow(&two, 1), Some(Err(InputMemoryFull)));
        assert_eq!(two.mark_complete(), Err(InputMemoryFull));
        drop((one, two, other, small));
        let state = lock_mutex(&room.0.state);
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
        assert_eq!(<[_; 3]>::from(grown), [Ok(()), Ok(()), Err(InputMemoryFull)]);
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
        assert_eq!(other.grow(4).await, Err(InputMemoryFull));
        let (grown, ()) = tokio::join!(other.grow(4), async { drop(whole) });
        assert_eq!(grown, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_received_body_is_kept_while_another_one_of_its_owner_arrives() {
        let room = room();
        let arriving = room.open_share(named("one"));
        let received = room.open_share(named("one"));
        assert_eq!([try_grow(&arriving, 2), try_grow(&received, 3)], [const { Some(Ok(())) }; 2]);
        received.mark_received();
        assert_eq!(received.grow(3).await, Ok(()));
        assert_eq!([&arriving, &received].map(is_evicted), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_caller_finds_room_in_a_full_account() {
        let room = InputMemoryBudget::new(1 << 20);
        let shares = ["one", "two"].map(|name| room.open_share(named(name)));
        for share in &shares {
            assert_eq!(try_grow(share, 4 << 20), Some(Ok(())));
            share.mark_complete().expect("it was not evicted");
        }
        let small = room.open_share(named("third"));
        assert_eq!(try_grow(&small, 64 << 10), Some(Ok(())));
        assert_eq!(try_grow(&small, 1), None, "it uses too much for the reserve");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_waits_until_there_is_room() {
        let room = room();
        let first = room.reserve_when_free(named("one"), 100).await;
        assert_eq!(lock_mutex(&room.0.state).bytes_total, 6);
        let mut second = pin!(room.reserve_when_free(named("one"), 1));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        drop(second.await);
        assert_eq!(lock_mutex(&room.0.state).bytes_total, 0);
    }

    #[test]
    fn an_anonymous_client_is_identified_by_its_network() {
        let of = |address: &str| {
            InputMemoryOwner::for_client(&Caller::anonymous(), address.parse().expect("an address"))
        };
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        let ada = Caller::with_key("ada");
        assert_eq!(
            InputMemoryOwner::for_client(&ada, ([10, 0, 0, 1], 1).0.into()),
            InputMemoryOwner::Caller(ada)
        );
    }
}
