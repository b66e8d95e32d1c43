//! Slots for connections, and their reassignment when more clients come than there are slots.
//!
//! A connection keeps its slot while an authenticated request is being answered. A connection that
//! waits for its client loses the slot to a new one, starting with the longest wait. So does one
//! with a request that is not authenticated. Nobody can therefore block others by silence or by
//! rejected requests. A new connection gets a short grace period.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolgate_contract::Caller;

use super::occupancy::{Counted, Occupancy};

/// Connection slots of a listener.
pub(super) struct Seats {
    bounds: SeatBounds,
    opened: Instant,
    taken: Mutex<Taken>,
    /// Number of connections that wait for a slot.
    waiting: AtomicUsize,
    /// Notified when a slot may be available, while connections wait.
    changed: Notify,
}

/// Limits of connection slots.
#[derive(Debug, Clone)]
pub(super) struct SeatBounds {
    /// Most connections at once.
    pub(super) connections: usize,
    /// Most long-lived streams and WebSockets.
    pub(super) lasting: usize,
    /// Most long-lived streams and WebSockets per authenticated caller.
    pub(super) lasting_each: usize,
    /// Counter of taken slots.
    pub(super) occupancy: Occupancy,
}

#[derive(Default)]
struct Taken {
    next: u64,
    seats: HashMap<u64, Arc<Place>>,
    /// Number of long-lived streams by caller, with unauthenticated ones under `None`.
    lasting: HashMap<Option<Caller>, usize>,
}

/// Grace period of a connection that is new or has just sent part of a body.
const MOMENT: Duration = Duration::from_secs(2);

/// Divisor of the stream limit that gives additional slots for unauthenticated WebSockets, on which
/// they are refused.
const NOBODYS_SHARE: usize = 8;

/// Activity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Nothing complete has arrived yet.
    Silent,
    /// The current or last request was not authenticated.
    Unknown,
    /// An authenticated request was answered.
    Idle,
    /// An authenticated client is sending a body.
    Sending,
    /// An authenticated request is being answered.
    Busy,
}

impl Doing {
    /// Returns the rank for losing the slot, lowest first. Returns `None` if the connection keeps
    /// it.
    fn goes(self, since: Duration, now: Duration) -> Option<(u8, Duration)> {
        let is_new = now.saturating_sub(since) < MOMENT;
        match self {
            Self::Silent if is_new => Some((2, since)),
            Self::Sending if is_new => Some((3, since)),
            Self::Silent | Self::Sending | Self::Unknown => Some((0, since)),
            Self::Idle => Some((1, since)),
            Self::Busy => None,
        }
    }
}

/// Activity and its start packed into one atomic word, since each request changes it several times.
#[derive(Clone, Copy)]
struct Word(u64);

/// Bits for the activity. The others count microseconds since the listener was opened.
const DOING_BITS: u32 = 3;

impl Word {
    /// Marks a slot that was lost.
    const GONE: Self = Self(u64::MAX);

    fn of(doing: Doing, since: Duration) -> Self {
        let since = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        Self((since << DOING_BITS) | doing as u64)
    }

    /// Unpacks the activity and its start. Returns `None` if the slot was lost.
    fn read(self) -> Option<(Doing, Duration)> {
        let doing = match self.0 & ((1 << DOING_BITS) - 1) {
            0 => Doing::Silent,
            1 => Doing::Unknown,
            2 => Doing::Idle,
            3 => Doing::Sending,
            4 => Doing::Busy,
            _ => return None,
        };
        Some((doing, Duration::from_micros(self.0 >> DOING_BITS)))
    }
}

/// Connection as other connections see it.
struct Place {
    /// Packed [`Word`].
    does: AtomicU64,
    given_up: CancellationToken,
}

impl Place {
    fn of(Word(does): Word) -> Arc<Self> {
        Arc::new(Self { does: does.into(), given_up: CancellationToken::new() })
    }

    fn seen(&self) -> Word {
        Word(self.does.load(Ordering::SeqCst))
    }

    fn does(&self, Word(word): Word) {
        self.does.store(word, Ordering::SeqCst);
    }

    /// Takes the slot away. Returns false if the activity has changed since it was `seen`.
    fn give_up(&self, Word(seen): Word) -> bool {
        let Word(gone) = Word::GONE;
        let is_as_seen =
            self.does.compare_exchange(seen, gone, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_as_seen {
            self.given_up.cancel();
        }
        is_as_seen
    }
}

/// Slot of one connection, released on drop.
pub(super) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    place: Arc<Place>,
    _counted: Counted,
}

impl Seats {
    pub(super) fn new(bounds: SeatBounds) -> Arc<Self> {
        let taken = Mutex::default();
        let waiting = AtomicUsize::default();
        Arc::new(Self { bounds, opened: Instant::now(), taken, waiting, changed: Notify::new() })
    }

    /// Takes a slot, possibly from another connection. Waits while all are busy.
    pub(super) async fn take(self: &Arc<Self>) -> Seat {
        if let Some(seat) = self.try_take() {
            return seat;
        }
        // Counted before the next attempt, so that no change is missed.
        let _waiting = Waiting::of(&self.waiting);
        loop {
            let changed = self.changed.notified();
            if let Some(seat) = self.try_take() {
                return seat;
            }
            changed.await;
        }
    }

    fn try_take(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = self.taken();
        while taken.seats.len() >= self.bounds.connections {
            let now = self.opened.elapsed();
            let going = taken.seats.iter().filter_map(|(number, place)| {
                let seen = place.seen();
                let (doing, since) = seen.read()?;
                Some((doing.goes(since, now)?, *number, seen))
            });
            let (_, longest, seen) = going.min_by_key(|(turn, number, _)| (*turn, *number))?;
            // Otherwise its activity has changed, and another connection is selected.
            if taken.seats[&longest].give_up(seen) {
                taken.seats.remove(&longest);
            }
        }
        let number = taken.next;
        taken.next += 1;
        let place = Place::of(Word::of(Doing::Silent, self.opened.elapsed()));
        taken.seats.insert(number, place.clone());
        let _counted = self.bounds.occupancy.connection();
        Some(Seat { seats: self.clone(), number, place, _counted })
    }

    /// Reserves a long-lived stream for `caller`, or for an unauthenticated WebSocket. Returns
    /// `None` at the limit.
    pub(super) fn lasting(self: &Arc<Self>, caller: Option<&Caller>) -> Option<Lasting> {
        let mut taken = self.taken();
        let known = taken.lasting.iter().filter(|(caller, _)| caller.is_some());
        let all: usize = known.map(|(_, count)| count).sum();
        let own = taken.lasting.get(&caller.cloned()).copied().unwrap_or_default();
        let has_room = match caller {
            // Separate from the others' limit, so that it takes none of their slots.
            None => own < self.bounds.lasting.div_ceil(NOBODYS_SHARE),
            // Without credentials, callers cannot be told apart.
            Some(caller) if *caller == Caller::http() => all < self.bounds.lasting,
            Some(_) => all < self.bounds.lasting && own < self.bounds.lasting_each,
        };
        if !has_room {
            return None;
        }
        taken.lasting.insert(caller.cloned(), own + 1);
        let _counted = self.bounds.occupancy.stream();
        Some(Lasting { seats: self.clone(), caller: caller.cloned(), _counted })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Waits until the slot is taken away.
    pub(super) async fn given_up(&self) {
        self.place.given_up.cancelled().await;
    }

    /// Starts a request, whose turn ends when its answer is sent.
    pub(super) fn turn(self: &Arc<Self>) -> Turn {
        self.does(Doing::Unknown);
        Turn { seat: self.clone(), is_known: AtomicBool::new(false) }
    }

    fn does(&self, doing: Doing) {
        self.place.does(Word::of(doing, self.seats.opened.elapsed()));
        if doing != Doing::Busy && self.seats.waiting.load(Ordering::SeqCst) > 0 {
            self.seats.changed.notify_one();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken().seats.remove(&self.number);
        self.seats.changed.notify_one();
    }
}

/// Counts a waiting connection until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Request that is not yet fully answered.
pub(super) struct Turn {
    seat: Arc<Seat>,
    is_known: AtomicBool,
}

impl Turn {
    /// Marks the request as authenticated, so that it keeps its slot.
    pub(super) fn is_of_somebody(&self) {
        self.is_known.store(true, Ordering::Relaxed);
        self.seat.does(Doing::Busy);
    }

    /// Runs `reading` while the client still has to send data.
    pub(super) async fn while_sending<T>(&self, reading: impl Future<Output = T>) -> T {
        self.goes_on();
        let read = reading.await;
        if self.is_known() {
            self.seat.does(Doing::Busy);
        }
        read
    }

    /// Records that the client has sent more data.
    pub(super) fn goes_on(&self) {
        if self.is_known() {
            self.seat.does(Doing::Sending);
        }
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.seat.does(if self.is_known() { Doing::Idle } else { Doing::Unknown });
    }
}

/// Reserved long-lived stream, released on drop.
pub(super) struct Lasting {
    seats: Arc<Seats>,
    caller: Option<Caller>,
    _counted: Counted,
}

impl Lasting {
    /// Returns true if the caller is authenticated.
    pub(super) fn is_of_somebody(&self) -> bool {
        self.caller.is_some()
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        match taken.lasting.get_mut(&self.caller) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(taken.lasting.remove(&self.caller)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::advance;

    use super::*;

    fn seats(connections: usize) -> Arc<Seats> {
        let occupancy = Occupancy::default();
        Seats::new(SeatBounds { connections, lasting: 2, lasting_each: 1, occupancy })
    }

    fn taken(seats: &Arc<Seats>) -> Arc<Seat> {
        Arc::new(seats.take().now_or_never().expect("a seat"))
    }

    fn has_gone(seat: &Seat) -> bool {
        seat.given_up().now_or_never().is_some()
    }

    fn answered(seat: &Arc<Seat>) {
        seat.turn().is_of_somebody();
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_silent_for_longest_goes_first() {
        let seats = seats(3);
        let idle = taken(&seats);
        answered(&idle);
        let mut silent = Vec::new();
        for _ in 0..2 {
            advance(MOMENT).await;
            silent.push(taken(&seats));
        }
        advance(MOMENT).await;
        let third = taken(&seats);
        assert_eq!(
            [has_gone(&idle), has_gone(&silent[0]), has_gone(&silent[1])],
            [false, true, false]
        );
        answered(&third);
        let fourth = taken(&seats);
        assert_eq!([has_gone(&idle), has_gone(&silent[1])], [false, true]);
        answered(&fourth);
        let _fifth = taken(&seats);
        assert!(has_gone(&idle));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_just_come_stays_while_there_is_another_to_go() {
        let seats = seats(4);
        let idle = taken(&seats);
        let unknown = taken(&seats);
        let stuck = taken(&seats);
        let stuck = stuck.turn();
        stuck.is_of_somebody();
        stuck.while_sending(std::future::pending::<()>()).now_or_never();
        advance(MOMENT).await;
        answered(&idle);
        let _refused = unknown.turn();
        let new = taken(&seats);
        let mut later = Vec::new();
        for gone in [&stuck.seat, &unknown, &idle, &new] {
            assert!(!has_gone(gone));
            later.push(taken(&seats));
            assert!(has_gone(gone));
        }
    }

    #[tokio::test]
    async fn who_is_answered_keeps_its_seat() {
        let seats = seats(1);
        let seat = taken(&seats);
        let turn = seat.turn();
        turn.is_of_somebody();
        assert!(seats.take().now_or_never().is_none());
        let waiting = tokio::spawn({
            let seats = seats.clone();
            async move { seats.take().await }
        });
        tokio::task::yield_now().await;
        turn.while_sending(std::future::pending::<()>()).now_or_never();
        let _other = waiting.await.unwrap();
        assert!(has_gone(&seat));
        drop((turn, seat));
        assert_eq!(seats.taken().seats.len(), 1);
    }

    #[tokio::test]
    async fn nobody_takes_all_the_room_for_what_lasts() {
        let seats = seats(4);
        let one = Caller::named("one");
        let two = Caller::named("two");
        let http = Caller::http();
        let lasting = |caller: &Caller| seats.lasting(Some(caller));
        let held = lasting(&one).unwrap();
        assert!(lasting(&one).is_none());
        let _two = lasting(&two).unwrap();
        assert!(lasting(&http).is_none());
        // Who is told that nobody knows them takes no room from those who are known.
        let nobody = seats.lasting(None).unwrap();
        assert!(seats.lasting(None).is_none());
        drop(held);
        let _first = lasting(&http).unwrap();
        assert!(lasting(&one).is_none());
        drop(nobody);
        assert!(seats.lasting(None).is_some());
    }
}
