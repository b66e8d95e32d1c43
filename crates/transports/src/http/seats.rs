//! Who keeps a connection when more clients come than may be served at once.
//!
//! A connection keeps its seat while somebody known is being answered on it. One that waits for its
//! client, to say something at all, the rest of a body, or the next thing, gives it up to whoever
//! comes, the one that has waited longest first, and so does one that somebody speaks on who may
//! not. So nobody keeps others out by silence, nor by asking what is refused. Who has just come has
//! a moment to say something.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolgate_contract::Caller;

use super::occupancy::{Counted, Occupancy};

/// The seats of a listener.
pub(super) struct Seats {
    bounds: SeatBounds,
    taken: Mutex<Taken>,
    /// Told when a seat is free, or may be given up.
    changed: Notify,
}

/// How many there are.
#[derive(Debug, Clone)]
pub(super) struct SeatBounds {
    /// The most connections at once.
    pub(super) connections: usize,
    /// The most that may be kept by feeds and conversations.
    pub(super) lasting: usize,
    /// The most of these for one caller who said who it is.
    pub(super) lasting_each: usize,
    /// Where it is said how many are taken.
    pub(super) occupancy: Occupancy,
}

#[derive(Default)]
struct Taken {
    next: u64,
    seats: HashMap<u64, (Doing, CancellationToken)>,
    /// Of nobody known under `None`.
    lasting: HashMap<Option<Caller>, usize>,
}

/// How long a client may be silent that has just come, or has just said more of a body.
const MOMENT: Duration = Duration::from_secs(2);

/// Beside the room for feeds and conversations there is this part of it for sockets on which nobody
/// known is told so.
const NOBODYS_SHARE: usize = 8;

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// It has not said anything whole since it was opened then.
    Silent(Instant),
    /// Somebody asked something then, and it is not known that they may.
    Unknown(Instant),
    /// Somebody known was answered then.
    Idle(Instant),
    /// Somebody known said something of a body then.
    Sending(Instant),
    /// Somebody known is being answered.
    Busy,
}

impl Doing {
    /// When its turn is to go, the least first; `None` while it stays.
    fn goes(self, now: Instant) -> Option<(u8, Instant)> {
        let is_new = |since: Instant| now.saturating_duration_since(since) < MOMENT;
        match self {
            Self::Silent(since) if is_new(since) => Some((2, since)),
            Self::Sending(since) if is_new(since) => Some((3, since)),
            Self::Silent(since) | Self::Sending(since) | Self::Unknown(since) => Some((0, since)),
            Self::Idle(since) => Some((1, since)),
            Self::Busy => None,
        }
    }
}

/// One's place among the connections. Dropped, it is free.
pub(super) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    given_up: CancellationToken,
    _counted: Counted,
}

impl Seats {
    pub(super) fn new(bounds: SeatBounds) -> Arc<Self> {
        Arc::new(Self { bounds, taken: Mutex::default(), changed: Notify::new() })
    }

    /// A seat, for which another may have to go; waits while all are busy.
    pub(super) async fn take(self: &Arc<Self>) -> Seat {
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
        if taken.seats.len() >= self.bounds.connections {
            let now = Instant::now();
            let going = taken.seats.iter();
            let going = going.filter_map(|(seat, (doing, _))| Some((doing.goes(now)?, *seat)));
            let (_, longest) = going.min()?;
            let (_, given_up) = taken.seats.remove(&longest)?;
            given_up.cancel();
        }
        let number = taken.next;
        taken.next += 1;
        let given_up = CancellationToken::new();
        taken.seats.insert(number, (Doing::Silent(Instant::now()), given_up.clone()));
        let _counted = self.bounds.occupancy.connection();
        Some(Seat { seats: self.clone(), number, given_up, _counted })
    }

    /// Room for what `caller` keeps for as long as it likes, or for what nobody known is told on a
    /// socket; `None` if there is no more.
    pub(super) fn lasting(self: &Arc<Self>, caller: Option<&Caller>) -> Option<Lasting> {
        let mut taken = self.taken();
        let known = taken.lasting.iter().filter(|(caller, _)| caller.is_some());
        let all: usize = known.map(|(_, count)| count).sum();
        let own = taken.lasting.get(&caller.cloned()).copied().unwrap_or_default();
        let has_room = match caller {
            // Beside the others' places, so that they take none of them.
            None => own < self.bounds.lasting.div_ceil(NOBODYS_SHARE),
            // Who does not say who they are may be many.
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
    /// Ends when the seat was given to another.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// A request's head is there; its turn is over when the answer is sent.
    pub(super) fn turn(self: &Arc<Self>) -> Turn {
        self.does(Doing::Unknown(Instant::now()));
        Turn { seat: self.clone(), is_known: AtomicBool::new(false) }
    }

    fn does(&self, doing: Doing) {
        let mut taken = self.seats.taken();
        if let Some((done, _)) = taken.seats.get_mut(&self.number) {
            *done = doing;
        }
        drop(taken);
        if doing != Doing::Busy {
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

/// A request, until its answer is sent.
pub(super) struct Turn {
    seat: Arc<Seat>,
    is_known: AtomicBool,
}

impl Turn {
    /// It is of somebody known, and keeps its seat.
    pub(super) fn is_of_somebody(&self) {
        self.is_known.store(true, Ordering::Relaxed);
        self.seat.does(Doing::Busy);
    }

    /// Does `reading`, for which the client must say more.
    pub(super) async fn while_sending<T>(&self, reading: impl Future<Output = T>) -> T {
        self.goes_on();
        let read = reading.await;
        if self.is_known() {
            self.seat.does(Doing::Busy);
        }
        read
    }

    /// The client has said more.
    pub(super) fn goes_on(&self) {
        if self.is_known() {
            self.seat.does(Doing::Sending(Instant::now()));
        }
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = Instant::now();
        self.seat.does(if self.is_known() { Doing::Idle(now) } else { Doing::Unknown(now) });
    }
}

/// Room for a feed or a conversation, until it is dropped.
pub(super) struct Lasting {
    seats: Arc<Seats>,
    caller: Option<Caller>,
    _counted: Counted,
}

impl Lasting {
    /// Whether it is somebody known who has it.
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
        let (idle, unknown, stuck) = (taken(&seats), taken(&seats), taken(&seats));
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
        let (one, two, http) = (Caller::named("one"), Caller::named("two"), Caller::http());
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
