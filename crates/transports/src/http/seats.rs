//! Who keeps a connection when more clients come than may be served at once.
//!
//! A connection that is being answered keeps its seat. One that waits for its client, to say
//! something at all, the rest of a body, or the next thing, gives it up to whoever comes, the one
//! that has waited longest first. So nobody keeps others out by silence.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    lasting: HashMap<Caller, usize>,
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    /// It has not said anything whole since then. (Who is least, and waits longest, goes first.)
    Silent(Instant),
    /// It was answered then.
    Idle(Instant),
    /// It has been sending a body since then.
    Sending(Instant),
    /// It is being answered.
    Busy,
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
            let waiting = taken.seats.iter().filter(|(_, (doing, _))| *doing != Doing::Busy);
            let longest = *waiting.min_by_key(|(_, (doing, _))| *doing)?.0;
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

    /// Room for what `caller` keeps for as long as it likes; `None` if there is no more.
    pub(super) fn lasting(self: &Arc<Self>, caller: &Caller) -> Option<Lasting> {
        let mut taken = self.taken();
        let all: usize = taken.lasting.values().sum();
        let own = taken.lasting.get(caller).copied().unwrap_or_default();
        // Who does not say who they are may be many.
        let own_max = match *caller == Caller::http() {
            true => self.bounds.lasting,
            false => self.bounds.lasting_each,
        };
        if all >= self.bounds.lasting || own >= own_max {
            return None;
        }
        taken.lasting.insert(caller.clone(), own + 1);
        let _counted = self.bounds.occupancy.stream();
        Some(Lasting { seats: self.clone(), caller: caller.clone(), _counted })
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

    /// A request's head is there, and it is answered until the last of these is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.does(Doing::Busy);
        Busy { seat: self.clone() }
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

/// A request that is being answered.
pub(super) struct Busy {
    seat: Arc<Seat>,
}

impl Busy {
    /// Does `reading`, for which the client must say more.
    pub(super) async fn while_sending<T>(&self, reading: impl Future<Output = T>) -> T {
        self.seat.does(Doing::Sending(Instant::now()));
        let read = reading.await;
        self.seat.does(Doing::Busy);
        read
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.seat.does(Doing::Idle(Instant::now()));
    }
}

/// Room for a feed or a conversation, until it is dropped.
pub(super) struct Lasting {
    seats: Arc<Seats>,
    caller: Caller,
    _counted: Counted,
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

    #[tokio::test(start_paused = true)]
    async fn the_one_silent_for_longest_goes_first() {
        let seats = seats(3);
        let idle = taken(&seats);
        drop(idle.busy());
        let mut silent = Vec::new();
        for _ in 0..2 {
            tokio::time::advance(std::time::Duration::from_millis(1)).await;
            silent.push(taken(&seats));
        }
        let _third = taken(&seats);
        assert_eq!(
            [has_gone(&idle), has_gone(&silent[0]), has_gone(&silent[1])],
            [false, true, false]
        );
        drop(_third.busy());
        let _fourth = taken(&seats);
        assert_eq!([has_gone(&idle), has_gone(&silent[1])], [false, true]);
        drop(_fourth.busy());
        let _fifth = taken(&seats);
        assert!(has_gone(&idle));
    }

    #[tokio::test]
    async fn who_is_answered_keeps_its_seat() {
        let seats = seats(1);
        let seat = taken(&seats);
        let busy = seat.busy();
        assert!(seats.take().now_or_never().is_none());
        let waiting = tokio::spawn({
            let seats = seats.clone();
            async move { seats.take().await }
        });
        tokio::task::yield_now().await;
        busy.while_sending(std::future::pending::<()>()).now_or_never();
        let _other = waiting.await.unwrap();
        assert!(has_gone(&seat));
        drop((busy, seat));
        assert_eq!(seats.taken().seats.len(), 1);
    }

    #[tokio::test]
    async fn nobody_takes_all_the_room_for_what_lasts() {
        let seats = seats(4);
        let (one, two) = (Caller::named("one"), Caller::named("two"));
        let held = seats.lasting(&one).unwrap();
        assert!(seats.lasting(&one).is_none());
        let _two = seats.lasting(&two).unwrap();
        assert!(seats.lasting(&Caller::http()).is_none());
        drop(held);
        let _first = seats.lasting(&Caller::http()).unwrap();
        assert!(seats.lasting(&one).is_none());
    }
}
