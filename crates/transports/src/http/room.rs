//! Memory budget of request bodies, and its release when it is exceeded.
//!
//! Only received bytes count, so a silent client takes nothing. The first bytes of each body are
//! free. That is bounded too, because connections are, and short messages never wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use toolgate_contract::Caller;

/// Free bytes of each body.
pub(super) const FREE_BYTES: usize = 64 << 10;
/// Budget, in bodies of the largest size.
const BODIES: usize = 8;
/// Budget of one caller, in bodies of the largest size.
const BODIES_EACH: usize = 6;
/// Wait for room before a body of the same caller is dropped.
const PATIENCE: Duration = Duration::from_secs(1);

/// Memory budget of a listener's request bodies.
pub(super) struct Room {
    all_max: usize,
    each_max: usize,
    held: Mutex<Held>,
    /// Notified when memory is released.
    freed: Notify,
}

/// Owner of a body.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// Authenticated caller.
    Caller(Caller),
    /// Address of an unauthenticated client.
    Address(IpAddr),
}

impl Holder {
    /// Returns `caller`, or the address if the caller has no credential.
    pub(super) fn of(caller: &Caller, peer: IpAddr) -> Self {
        match (*caller == Caller::http(), peer) {
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
struct Held {
    next: u64,
    all: usize,
    each: HashMap<Holder, usize>,
    bodies: HashMap<u64, Body>,
}

struct Body {
    holder: Holder,
    bytes: usize,
    /// True once the body is complete. It is then kept until it is answered.
    is_whole: bool,
    given_up: CancellationToken,
}

/// Memory of one body, released on drop.
pub(super) struct Share<'r> {
    room: &'r Room,
    number: u64,
    given_up: CancellationToken,
}

/// Error of a body that must be dropped for lack of memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Room {
    /// Creates a budget for bodies of up to `body_bytes_max` bytes.
    pub(super) fn new(body_bytes_max: usize) -> Self {
        Self {
            all_max: body_bytes_max.saturating_mul(BODIES),
            each_max: body_bytes_max.saturating_mul(BODIES_EACH),
            held: Mutex::default(),
            freed: Notify::new(),
        }
    }

    /// Starts the account of a new body of `holder`.
    pub(super) fn share(&self, holder: Holder) -> Share<'_> {
        let given_up = CancellationToken::new();
        let mut held = self.held();
        let number = held.next;
        held.next += 1;
        let body = Body { holder, bytes: 0, is_whole: false, given_up: given_up.clone() };
        held.bodies.insert(number, body);
        Share { room: self, number, given_up }
    }

    /// Takes `bytes` more for the body `number`. Returns `None` if it has to wait.
    fn try_take(&self, number: u64, bytes: usize, waited: bool) -> Option<Result<(), Full>> {
        let mut held = self.held();
        loop {
            let Some(Body { holder, .. }) = held.bodies.get(&number) else {
                return Some(Err(Full));
            };
            let own = held.of(holder);
            let holder = holder.clone();
            let own_is_full = own + bytes > self.each_max;
            if !own_is_full && held.all + bytes <= self.all_max {
                held.grow(number, &holder, bytes);
                return Some(Ok(()));
            }
            // The largest owner loses a body. If that is the same owner, the body waits first.
            let (largest, whose) = match held.largest(own_is_full.then_some(&holder), number) {
                Some(largest) if waited || held.of(&largest.1) > own => largest,
                Some(_) | None => return waited.then_some(Err(Full)),
            };
            if largest == number || (whose != holder && held.of(&whose) < own) {
                return Some(Err(Full));
            }
            held.give_up(largest);
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn of(&self, holder: &Holder) -> usize {
        self.each.get(holder).copied().unwrap_or_default()
    }

    fn grow(&mut self, number: u64, holder: &Holder, bytes: usize) {
        self.all += bytes;
        *self.each.entry(holder.clone()).or_default() += bytes;
        if let Some(body) = self.bodies.get_mut(&number) {
            body.bytes += bytes;
        }
    }

    /// Returns the largest incomplete body of `holder`, or of the owner with the most memory.
    /// `asking` counts even if it is empty.
    fn largest(&self, holder: Option<&Holder>, asking: u64) -> Option<(u64, Holder)> {
        let coming = self.bodies.iter().filter(|(number, body)| {
            let holds = !body.is_whole && (body.bytes > 0 || **number == asking);
            holds && holder.is_none_or(|holder| body.holder == *holder)
        });
        let largest = coming.max_by_key(|(number, body)| {
            // Of two equal ones, the later is selected.
            (self.of(&body.holder), body.bytes, **number)
        });
        largest.map(|(number, body)| (*number, body.holder.clone()))
    }

    fn give_up(&mut self, number: u64) {
        if let Some(body) = self.remove(number) {
            body.given_up.cancel();
        }
    }

    fn remove(&mut self, number: u64) -> Option<Body> {
        let body = self.bodies.remove(&number)?;
        self.all -= body.bytes;
        match self.each.get_mut(&body.holder) {
            Some(own) if *own > body.bytes => *own -= body.bytes,
            Some(_) | None => drop(self.each.remove(&body.holder)),
        }
        Some(body)
    }
}

impl Share<'_> {
    /// Takes `bytes` more. If there is no room for 1 s, some body is dropped.
    pub(super) async fn grow(&self, bytes: usize) -> Result<(), Full> {
        let until = Instant::now() + PATIENCE;
        let mut waited = false;
        loop {
            let freed = self.room.freed.notified();
            if let Some(taken) = self.room.try_take(self.number, bytes, waited) {
                return taken;
            }
            let freed = async {
                tokio::select! { () = freed => {}, () = self.given_up() => {} }
            };
            waited = timeout_at(until, freed).await.is_err();
        }
    }

    /// Waits until this body must be dropped.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// Marks the body as complete, so that it is no longer dropped.
    pub(super) fn settle(&self) -> Result<(), Full> {
        let mut held = self.room.held();
        let body = held.bodies.get_mut(&self.number).ok_or(Full)?;
        body.is_whole = true;
        Ok(())
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.room.held().remove(self.number);
        self.room.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Room for eight bytes, six of them for one caller.
    fn room() -> Room {
        Room::new(1)
    }

    fn named(name: &str) -> Holder {
        Holder::Caller(Caller::named(name))
    }

    fn takes(share: &Share<'_>, bytes: usize) -> Option<Result<(), Full>> {
        share.grow(bytes).now_or_never()
    }

    fn gave_way(share: &Share<'_>) -> bool {
        share.given_up().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_of_whoever_holds_most_gives_way_to_another() {
        let room = room();
        let one = room.share(named("one"));
        let two = room.share(named("one"));
        let other = room.share(named("other"));
        assert_eq!([takes(&one, 2), takes(&two, 3), takes(&other, 3)], [const { Some(Ok(())) }; 3]);
        let small = room.share(named("third"));
        assert_eq!(takes(&small, 1), Some(Ok(())));
        assert_eq!([&one, &two, &other].map(gave_way), [false, true, false]);
        assert_eq!(takes(&two, 1), Some(Err(Full)));
        assert_eq!(two.settle(), Err(Full));
        drop((one, two, other, small));
        let held = room.held();
        assert_eq!((held.all, held.each.len(), held.bodies.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_takes_all_of_it_and_half_read_bodies_do_not_wait_for_each_other_for_ever() {
        let room = room();
        let shares: Vec<_> = (0..3).map(|_| room.share(named("one"))).collect();
        for share in &shares {
            assert_eq!(takes(share, 2), Some(Ok(())));
        }
        assert_eq!(takes(&shares[0], 1), None, "it waits");
        let grown = tokio::join!(shares[0].grow(1), shares[1].grow(1), shares[2].grow(1));
        assert_eq!(<[_; 3]>::from(grown), [Ok(()), Ok(()), Err(Full)]);
        let other = room.share(named("other"));
        assert_eq!(takes(&other, 2), Some(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_there_whole_is_waited_for() {
        let room = room();
        let whole = room.share(named("one"));
        assert_eq!(takes(&whole, 6), Some(Ok(())));
        whole.settle().expect("it is");
        let other = room.share(named("other"));
        assert_eq!(takes(&other, 4), None);
        assert_eq!(other.grow(4).await, Err(Full));
        let (grown, ()) = tokio::join!(other.grow(4), async { drop(whole) });
        assert_eq!(grown, Ok(()));
    }

    #[test]
    fn who_need_not_say_who_it_is_is_its_network() {
        let of = |address: &str| Holder::of(&Caller::http(), address.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        let ada = Caller::named("ada");
        assert_eq!(Holder::of(&ada, ([10, 0, 0, 1], 1).0.into()), Holder::Caller(ada));
    }
}
