//! Counts failed authentication attempts per client address.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Delay of the reply to an unknown credential, which slows down guessing.
pub(super) const REJECTION_DELAY: Duration = Duration::from_millis(100);
/// Number of failed authentications within [`FAILURE_WINDOW`] after which a client's address is
/// throttled.
pub(super) const FAILURES_MAX: usize = 10;
/// Time for which a failed authentication counts. The server tells a throttled client to wait for
/// this time.
pub(super) const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of client addresses whose failed authentications the server remembers. At this
/// number, the server forgets the address with the oldest last failure.
const ADDRESSES_MAX: usize = 4096;

/// Counts failed authentications: contains the times of the last [`FAILURES_MAX`] failures, by
/// client address. A valid credential is always accepted, even after failures from the same
/// address.
#[derive(Default)]
pub(super) struct AuthFailureThrottle(HashMap<IpAddr, VecDeque<Instant>>);

impl AuthFailureThrottle {
    /// Records a failed authentication from the address `peer`. Returns the number of recent
    /// failures, up to [`FAILURES_MAX`] + 1.
    pub(super) fn record_failure(&mut self, peer: IpAddr, now: Instant) -> usize {
        let peer = counted_address(peer);
        if self.0.len() >= ADDRESSES_MAX && !self.0.contains_key(&peer) {
            let last = |times: &VecDeque<Instant>| times.back().copied();
            self.0.retain(|_, times| last(times).is_some_and(|at| is_fresh(at, now)));
            let silent = self.0.iter().min_by_key(|(_, times)| last(times));
            let silent = silent.map(|(address, _)| *address);
            if let Some(silent) = silent.filter(|_| self.0.len() >= ADDRESSES_MAX) {
                self.0.remove(&silent);
            }
        }
        let times = self.0.entry(peer).or_default();
        times.retain(|at| is_fresh(*at, now));
        times.push_back(now);
        let count = times.len();
        // Older attempts do not change the result, so they are not kept.
        while times.len() > FAILURES_MAX {
            times.pop_front();
        }
        count
    }
}

/// Returns the address under which failed authentications of `peer` are counted. For IPv6, this is
/// the /64 network.
fn counted_address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Returns true if a failed authentication at the time `at` still counts.
fn is_fresh(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) <= FAILURE_WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(nth: u32) -> IpAddr {
        IpAddr::V4(nth.into())
    }

    #[test]
    fn failures_count_per_address_and_expire_after_a_minute() {
        let mut wrong = AuthFailureThrottle::default();
        let begun = Instant::now();
        for nth in 1..=12 {
            let counted = wrong.record_failure(peer(1), begun + Duration::from_secs(nth));
            assert_eq!(counted, usize::try_from(nth).expect("few").min(11), "{nth}");
        }
        assert_eq!(wrong.record_failure(peer(2), begun + Duration::from_secs(12)), 1);
        assert_eq!(wrong.record_failure(peer(1), begun + Duration::from_secs(73)), 1);
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        let mut wrong = AuthFailureThrottle::default();
        let begun = Instant::now();
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        wrong.record_failure(address("2001:db8::1"), begun);
        assert_eq!(wrong.record_failure(address("2001:db8::ffff:2"), begun), 2);
        assert_eq!(wrong.record_failure(address("2001:db8:0:1::1"), begun), 1);
        wrong.record_failure(address("::ffff:192.0.2.1"), begun);
        assert_eq!(wrong.record_failure(address("192.0.2.1"), begun), 2);
        assert_eq!(wrong.record_failure(address("192.0.2.2"), begun), 1);
    }

    #[test]
    fn the_addresses_silent_for_longest_are_forgotten_beyond_the_limit() {
        let mut wrong = AuthFailureThrottle::default();
        let begun = Instant::now();
        let limit = u32::try_from(ADDRESSES_MAX).expect("few");
        for nth in 0..limit + 10 {
            wrong.record_failure(peer(nth), begun + Duration::from_micros(nth.into()));
            assert!(wrong.0.len() <= ADDRESSES_MAX);
        }
        let now = begun + Duration::from_secs(1);
        assert_eq!(wrong.record_failure(peer(limit + 9), now), 2, "the newest is remembered");
        assert_eq!(
            wrong.record_failure(peer(0), now),
            1,
            "the address silent for longest was forgotten"
        );
    }
}
