//! Slots for connections. If there are more clients than slots, waiting connections lose their
//! slots.
//!
//! A connection keeps its slot while the server answers an authenticated request on it. Other
//! connections lose their slots to new ones: those that wait for their clients, the longest wait
//! first, and those with an unauthenticated request. Therefore silent clients and rejected requests
//! cannot block other clients. A new connection has a short grace period.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{Caller, lock_mutex};

use super::occupancy::{OpenConnectionCounter, OpenConnectionGuard};

/// Slots of a listener, which limit the numbers of connections and streams that are open at once.
pub(super) struct ConnectionSlots {
    bounds: ConnectionSlotLimits,
    opened: Instant,
    table: Mutex<ConnectionSlotTable>,
    /// Number of new connections that wait for a slot.
    waiting: AtomicUsize,
    /// Signal that a slot may have become available. Connections that wait for a slot receive it.
    changed: Notify,
}

/// Limits of a listener's connection slots.
#[derive(Debug, Clone)]
pub(super) struct ConnectionSlotLimits {
    /// Maximum number of connections at once, each of which takes a slot.
    pub(super) connections: usize,
    /// Maximum number of long-lived streams and WebSockets.
    pub(super) streams: usize,
    /// Maximum number of long-lived streams and WebSockets per authenticated caller.
    pub(super) streams_each: usize,
    /// Counter of the listener's current connections and streams.
    pub(super) occupancy: OpenConnectionCounter,
}

/// State of a listener's slots: an entry for each connection, and the numbers of streams.
#[derive(Default)]
struct ConnectionSlotTable {
    next_number: u64,
    slots: HashMap<u64, Arc<ConnectionSlotEntry>>,
    /// Number of long-lived streams by caller. Unauthenticated streams are under `None`.
    streams: HashMap<Option<Caller>, usize>,
}

/// Time for which a connection keeps its slot after it was opened or has sent part of a body.
const GRACE_PERIOD: Duration = Duration::from_secs(2);

/// The limit of streams divided by this number is the number of additional slots for
/// unauthenticated WebSockets. On these WebSockets, clients only receive the refusal.
const UNAUTHENTICATED_DIVISOR: usize = 8;

/// Activity of a connection, which decides whether it keeps its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionActivityKind {
    /// No complete request has arrived on the connection yet.
    Silent,
    /// The connection's current or last request was not authenticated.
    Unauthenticated,
    /// An authenticated request on the connection was answered.
    Idle,
    /// An authenticated client is sending a body on the connection.
    Sending,
    /// An authenticated request on the connection is being answered.
    Busy,
}

impl ConnectionActivityKind {
    /// Returns a connection's rank for losing its slot: the connection with the lowest rank loses
    /// its slot first. Returns `None` if the connection keeps its slot.
    fn eviction_rank(self, since: Duration, now: Duration) -> Option<(u8, Duration)> {
        let is_new = now.saturating_sub(since) < GRACE_PERIOD;
        match self {
            Self::Silent if is_new => Some((2, since)),
            Self::Sending if is_new => Some((3, since)),
            Self::Silent | Self::Sending | Self::Unauthenticated => Some((0, since)),
            Self::Idle => Some((1, since)),
            Self::Busy => None,
        }
    }
}

/// A connection's activity and its start time, packed into one atomic word, because each request
/// changes them several times.
#[derive(Clone, Copy)]
struct PackedConnectionActivity(u64);

/// Number of bits for the activity in the packed word. The other bits count microseconds since the
/// listener was opened.
const ACTIVITY_BITS: u32 = 3;

impl PackedConnectionActivity {
    /// Packed activity of a connection that has lost its slot.
    const GONE: Self = Self(u64::MAX);

    fn pack(activity: ConnectionActivityKind, since: Duration) -> Self {
        let since = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        Self((since << ACTIVITY_BITS) | activity as u64)
    }

    /// Unpacks the activity and its start time. Returns `None` if the connection has lost its slot.
    fn unpack(self) -> Option<(ConnectionActivityKind, Duration)> {
        let activity = match self.0 & ((1 << ACTIVITY_BITS) - 1) {
            0 => ConnectionActivityKind::Silent,
            1 => ConnectionActivityKind::Unauthenticated,
            2 => ConnectionActivityKind::Idle,
            3 => ConnectionActivityKind::Sending,
            4 => ConnectionActivityKind::Busy,
            _ => return None,
        };
        Some((activity, Duration::from_micros(self.0 >> ACTIVITY_BITS)))
    }
}

/// Entry of a connection in the table of all connection slots.
struct ConnectionSlotEntry {
    /// The connection's activity, as the bits of a [`PackedConnectionActivity`].
    activity: AtomicU64,
    evicted: CancellationToken,
}

impl ConnectionSlotEntry {
    fn new(PackedConnectionActivity(does): PackedConnectionActivity) -> Arc<Self> {
        Arc::new(Self { activity: does.into(), evicted: CancellationToken::new() })
    }

    fn activity(&self) -> PackedConnectionActivity {
        PackedConnectionActivity(self.activity.load(Ordering::SeqCst))
    }

    fn set_activity(&self, PackedConnectionActivity(word): PackedConnectionActivity) {
        self.activity.store(word, Ordering::SeqCst);
    }

    /// Makes the connection lose its slot. Returns false and changes nothing if the connection's
    /// activity is no longer `seen`.
    fn evict(&self, PackedConnectionActivity(seen): PackedConnectionActivity) -> bool {
        let PackedConnectionActivity(gone) = PackedConnectionActivity::GONE;
        let is_as_seen =
            self.activity.compare_exchange(seen, gone, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_as_seen {
            self.evicted.cancel();
        }
        is_as_seen
    }
}

/// Slot of one connection, which is released on drop.
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    entry: Arc<ConnectionSlotEntry>,
    _counted: OpenConnectionGuard,
}

impl ConnectionSlots {
    pub(super) fn new(bounds: ConnectionSlotLimits) -> Arc<Self> {
        let taken = Mutex::default();
        let waiting = AtomicUsize::default();
        Arc::new(Self {
            bounds,
            opened: Instant::now(),
            table: taken,
            waiting,
            changed: Notify::new(),
        })
    }

    /// Takes a slot for a new connection, possibly from another connection. Waits while all
    /// connections are busy.
    pub(super) async fn take(self: &Arc<Self>) -> ConnectionSlot {
        if let Some(seat) = self.try_take() {
            return seat;
        }
        // Counted before the next attempt, so that no change is missed.
        let _waiting = WaitingConnectionGuard::new(&self.waiting);
        loop {
            let changed = self.changed.notified();
            if let Some(seat) = self.try_take() {
                return seat;
            }
            changed.await;
        }
    }

    fn try_take(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut taken = lock_mutex(&self.table);
        while taken.slots.len() >= self.bounds.connections {
            let now = self.opened.elapsed();
            let going = taken.slots.iter().filter_map(|(number, place)| {
                let seen = place.activity();
                let (activity, since) = seen.unpack()?;
                Some((activity.eviction_rank(since, now)?, *number, seen))
            });
            let (_, longest, seen) = going.min_by_key(|(turn, number, _)| (*turn, *number))?;
            // Otherwise its activity has changed, and another connection is selected.
            if taken.slots[&longest].evict(seen) {
                taken.slots.remove(&longest);
            }
        }
        let number = taken.next_number;
        taken.next_number += 1;
        let place = ConnectionSlotEntry::new(PackedConnectionActivity::pack(
            ConnectionActivityKind::Silent,
            self.opened.elapsed(),
        ));
        taken.slots.insert(number, place.clone());
        let _counted = self.bounds.occupancy.count_connection();
        Some(ConnectionSlot { slots: self.clone(), number, entry: place, _counted })
    }

    /// Reserves one of the long-lived streams that `caller` may open. Without `caller`, reserves an
    /// unauthenticated WebSocket. Returns `None` if the maximum number of streams is open.
    pub(super) fn reserve_stream(
        self: &Arc<Self>,
        caller: Option<&Caller>,
    ) -> Option<LongStreamSlot> {
        let mut taken = lock_mutex(&self.table);
        let known = taken.streams.iter().filter(|(caller, _)| caller.is_some());
        let all: usize = known.map(|(_, count)| count).sum();
        let own = taken.streams.get(&caller.cloned()).copied().unwrap_or_default();
        let has_room = match caller {
            // Separate from the others' limit, so that it takes none of their slots.
            None => own < self.bounds.streams.div_ceil(UNAUTHENTICATED_DIVISOR),
            // Without credentials, callers cannot be told apart.
            Some(caller) if *caller == Caller::anonymous() => all < self.bounds.streams,
            Some(_) => all < self.bounds.streams && own < self.bounds.streams_each,
        };
        if !has_room {
            return None;
        }
        taken.streams.insert(caller.cloned(), own + 1);
        let _counted = self.bounds.occupancy.count_stream();
        Some(LongStreamSlot { slots: self.clone(), caller: caller.cloned(), _counted })
    }
}

impl ConnectionSlot {
    /// Waits until this connection loses its slot to another connection.
    pub(super) async fn wait_evicted(&self) {
        self.entry.evicted.cancelled().await;
    }

    /// Records the start of a request on the connection. Its activity is `Unauthenticated` until
    /// the request is marked as authenticated.
    pub(super) fn begin_turn(self: &Arc<Self>) -> OpenHttpRequest {
        self.set_activity(ConnectionActivityKind::Unauthenticated);
        OpenHttpRequest { slot: self.clone(), is_authenticated: AtomicBool::new(false) }
    }

    fn set_activity(&self, activity: ConnectionActivityKind) {
        self.entry
            .set_activity(PackedConnectionActivity::pack(activity, self.slots.opened.elapsed()));
        if activity != ConnectionActivityKind::Busy && self.slots.waiting.load(Ordering::SeqCst) > 0
        {
            self.slots.changed.notify_one();
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        lock_mutex(&self.slots.table).slots.remove(&self.number);
        self.slots.changed.notify_one();
    }
}

/// Guard that counts a connection which waits for a slot, until the guard is dropped.
struct WaitingConnectionGuard<'a>(&'a AtomicUsize);

impl<'a> WaitingConnectionGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for WaitingConnectionGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Request on a connection that is not yet fully answered.
pub(super) struct OpenHttpRequest {
    slot: Arc<ConnectionSlot>,
    is_authenticated: AtomicBool,
}

impl OpenHttpRequest {
    /// Marks the request as authenticated, so that its connection keeps its slot.
    pub(super) fn mark_authenticated(&self) {
        self.is_authenticated.store(true, Ordering::Relaxed);
        self.slot.set_activity(ConnectionActivityKind::Busy);
    }

    /// Runs `reading`, which waits for data of the client. Meanwhile, the connection's activity is
    /// `Sending`.
    pub(super) async fn while_sending<T>(&self, reading: impl Future<Output = T>) -> T {
        self.note_data();
        let read = reading.await;
        if self.is_authenticated() {
            self.slot.set_activity(ConnectionActivityKind::Busy);
        }
        read
    }

    /// Records that the client has sent more data, so that its connection keeps its slot for a
    /// while.
    pub(super) fn note_data(&self) {
        if self.is_authenticated() {
            self.slot.set_activity(ConnectionActivityKind::Sending);
        }
    }

    fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }
}

impl Drop for OpenHttpRequest {
    fn drop(&mut self) {
        self.slot.set_activity(if self.is_authenticated() {
            ConnectionActivityKind::Idle
        } else {
            ConnectionActivityKind::Unauthenticated
        });
    }
}

/// Reservation for one long-lived stream, which counts towards the limit of streams until it is
/// dropped.
pub(super) struct LongStreamSlot {
    slots: Arc<ConnectionSlots>,
    caller: Option<Caller>,
    _counted: OpenConnectionGuard,
}

impl LongStreamSlot {
    /// Returns true if the caller of the stream is authenticated.
    pub(super) fn is_authenticated(&self) -> bool {
        self.caller.is_some()
    }
}

impl Drop for LongStreamSlot {
    fn drop(&mut self) {
        let mut taken = lock_mutex(&self.slots.table);
        match taken.streams.get_mut(&self.caller) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(taken.streams.remove(&self.caller)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::advance;

    use super::*;

    fn slots(connections: usize) -> Arc<ConnectionSlots> {
        let occupancy = OpenConnectionCounter::default();
        ConnectionSlots::new(ConnectionSlotLimits {
            connections,
            streams: 2,
            streams_each: 1,
            occupancy,
        })
    }

    fn take_slot(slots: &Arc<ConnectionSlots>) -> Arc<ConnectionSlot> {
        Arc::new(slots.take().now_or_never().expect("a free slot"))
    }

    fn is_evicted(slot: &ConnectionSlot) -> bool {
        slot.wait_evicted().now_or_never().is_some()
    }

    fn finish_turn(slot: &Arc<ConnectionSlot>) {
        slot.begin_turn().mark_authenticated();
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_silent_for_longest_is_evicted_first() {
        let slots = slots(3);
        let idle = take_slot(&slots);
        finish_turn(&idle);
        let mut silent = Vec::new();
        for _ in 0..2 {
            advance(GRACE_PERIOD).await;
            silent.push(take_slot(&slots));
        }
        advance(GRACE_PERIOD).await;
        let third = take_slot(&slots);
        assert_eq!(
            [is_evicted(&idle), is_evicted(&silent[0]), is_evicted(&silent[1])],
            [false, true, false]
        );
        finish_turn(&third);
        let fourth = take_slot(&slots);
        assert_eq!([is_evicted(&idle), is_evicted(&silent[1])], [false, true]);
        finish_turn(&fourth);
        let _fifth = take_slot(&slots);
        assert!(is_evicted(&idle));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_is_evicted_last() {
        let slots = slots(4);
        let idle = take_slot(&slots);
        let unknown = take_slot(&slots);
        let stuck = take_slot(&slots);
        let stuck = stuck.begin_turn();
        stuck.mark_authenticated();
        stuck.while_sending(std::future::pending::<()>()).now_or_never();
        advance(GRACE_PERIOD).await;
        finish_turn(&idle);
        let _refused = unknown.begin_turn();
        let new = take_slot(&slots);
        let mut later = Vec::new();
        for next in [&stuck.slot, &unknown, &idle, &new] {
            assert!(!is_evicted(next));
            later.push(take_slot(&slots));
            assert!(is_evicted(next));
        }
    }

    #[tokio::test]
    async fn a_connection_in_a_turn_keeps_its_slot_until_it_is_sending() {
        let slots = slots(1);
        let slot = take_slot(&slots);
        let turn = slot.begin_turn();
        turn.mark_authenticated();
        assert!(slots.take().now_or_never().is_none());
        let waiting = tokio::spawn({
            let slots = slots.clone();
            async move { slots.take().await }
        });
        tokio::task::yield_now().await;
        turn.while_sending(std::future::pending::<()>()).now_or_never();
        let _other = waiting.await.unwrap();
        assert!(is_evicted(&slot));
        drop((turn, slot));
        assert_eq!(lock_mutex(&slots.table).slots.len(), 1);
    }

    #[tokio::test]
    async fn one_caller_cannot_take_all_stream_slots() {
        let slots = slots(4);
        let one = Caller::with_key("one");
        let two = Caller::with_key("two");
        let http = Caller::anonymous();
        let reserve = |caller: &Caller| slots.reserve_stream(Some(caller));
        let held = reserve(&one).unwrap();
        assert!(reserve(&one).is_none());
        let _two = reserve(&two).unwrap();
        assert!(reserve(&http).is_none());
        // An unauthenticated client takes no room from authenticated callers.
        let nobody = slots.reserve_stream(None).unwrap();
        assert!(slots.reserve_stream(None).is_none());
        drop(held);
        let _first = reserve(&http).unwrap();
        assert!(reserve(&one).is_none());
        drop(nobody);
        assert!(slots.reserve_stream(None).is_some());
    }
}
