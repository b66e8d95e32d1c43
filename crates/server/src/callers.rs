//! Who calls over HTTP: callers known by their keys, and how often each address said a wrong one.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;
use toolgate_contract::{Caller, Head};
use toolgate_dialects::Dialect;
use toolgate_transports::http::Sender;

use crate::config::{Config, KeyDigest, digest};
use crate::session::locked;

/// Where a key may always stand.
const KEY_HEADER: &str = "x-api-key";
/// How long whoever has no good key waits to hear so, and after how long an address that guesses
/// is looked at again.
const DELAY: Duration = Duration::from_millis(100);
/// How many wrong keys an address may say within [`WINDOW`]; who says the last is to wait.
const WRONG_MAX: usize = 10;
/// How long a wrong key is remembered, and how long its address is told to wait.
const WINDOW: Duration = Duration::from_secs(60);
/// What an address that guessed too often is taken for.
const GUESSER: Sender = Sender::Guesser { retry_after: WINDOW };
/// How many addresses are remembered; for one more, the one silent for longest is forgotten.
const ADDRESSES_MAX: usize = 4096;

/// Who may call over HTTP; anybody, where there are no keys.
///
/// Keys are kept as digests: what a client says is hashed and compared whole, so neither the
/// memory of this process nor the time it takes tells a key.
pub(crate) struct Callers {
    known: Vec<(KeyDigest, Caller)>,
    /// The headers that a key may stand in, beside `Authorization`.
    headers: Vec<String>,
    wrong: Mutex<Wrong>,
}

impl Callers {
    /// Those whom `config` knows.
    pub(crate) fn of(config: &Config) -> anyhow::Result<Self> {
        let known = config.keys.iter().map(|key| {
            let digest = key.digest();
            let digest = digest.with_context(|| format!("the key `{}` has no digest", key.name))?;
            Ok((digest, Caller::named(&key.name)))
        });
        let named = config.server.key_headers.iter().map(|name| name.to_ascii_lowercase());
        let mut headers = vec![KEY_HEADER.to_owned()];
        headers.extend(named.filter(|name| name != KEY_HEADER));
        Ok(Self { known: known.collect::<anyhow::Result<_>>()?, headers, wrong: Mutex::default() })
    }

    /// Who says `head` from `peer`, in `dialect`. That it is nobody known is not told at once, so
    /// that guessing takes its time, unless nothing was looked at.
    pub(crate) async fn identify(
        &self,
        dialect: &dyn Dialect,
        head: &Head,
        peer: IpAddr,
    ) -> Sender {
        if self.known.is_empty() || dialect.is_open(head) {
            return Sender::Known(Caller::http());
        }
        let said = self.said(dialect, head);
        match self.judged(&said, peer) {
            Verdict::Known(caller) => Sender::Known(caller),
            Verdict::Unseen => GUESSER,
            Verdict::Nobody(sender) => {
                tokio::time::sleep(DELAY).await;
                sender
            }
        }
    }

    /// The one key of `head` that is looked at: the first of all places that have one. A request is
    /// one guess, however much it says.
    fn said(&self, dialect: &dyn Dialect, head: &Head) -> Said {
        let plain = self.headers.iter().map(|name| one_of(head.header(name)));
        let bearer = head.header("authorization").filter_map(|value| {
            let (scheme, key) = value.split_at_checked("bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
        });
        let own = dialect.credential(head).map(String::into_bytes);
        let own = one_of(own.as_deref().into_iter());
        let mut key = Said::Nothing;
        for said in plain.chain([one_of(bearer), own]) {
            match (said, &key) {
                (Said::Several, _) => return Said::Several,
                (said @ Said::Key(_), Said::Nothing) => key = said,
                (Said::Nothing | Said::Key(_), _) => {}
            }
        }
        key
    }

    /// What comes of what was `said` from `peer`.
    fn judged(&self, said: &Said, peer: IpAddr) -> Verdict {
        let digest = match said {
            // Who says nothing guesses nothing.
            Said::Nothing => return Verdict::Nobody(Sender::Nobody { said: false }),
            Said::Several => None,
            Said::Key(key) => Some(digest(key)),
        };
        // Held while the key is compared: of many at once, no more are looked at than may be.
        let mut wrong = locked(&self.wrong);
        let now = Instant::now();
        if !wrong.lets_look(peer, now) {
            return Verdict::Unseen;
        }
        if let Some(caller) = digest.and_then(|digest| self.known_by(&digest)) {
            return Verdict::Known(caller);
        }
        let count = wrong.one_more(peer, now);
        drop(wrong);
        if count == WRONG_MAX {
            tracing::warn!("{peer} said {WRONG_MAX} wrong keys within a minute, and is to wait");
        }
        Verdict::Nobody(match count >= WRONG_MAX {
            true => GUESSER,
            false => Sender::Nobody { said: true },
        })
    }

    /// Whose key has the digest `said`. All are compared, each to its end.
    fn known_by(&self, said: &KeyDigest) -> Option<Caller> {
        let mut found = None;
        for (known, caller) in &self.known {
            let differs = known.iter().zip(said).fold(0, |differs, (a, b)| differs | (a ^ b));
            if differs == 0 {
                found = Some(caller.clone());
            }
        }
        found
    }
}

/// What a request says of who sends it.
enum Said {
    Nothing,
    Key(Vec<u8>),
    /// More than one key in one place: none of them is looked at.
    Several,
}

/// What stands in one place.
fn one_of<'k>(keys: impl Iterator<Item = &'k [u8]>) -> Said {
    let mut keys = keys.filter(|key| !key.is_empty());
    match (keys.next(), keys.next()) {
        (None, _) => Said::Nothing,
        (Some(key), None) => Said::Key(key.to_owned()),
        (Some(_), Some(_)) => Said::Several,
    }
}

/// What comes of a request.
enum Verdict {
    Known(Caller),
    /// It is nobody known.
    Nobody(Sender),
    /// Its address guesses, and was looked at a moment ago.
    Unseen,
}

/// What is remembered of an address that said wrong keys.
#[derive(Default)]
struct Guesses {
    /// When, the last [`WRONG_MAX`] times.
    times: VecDeque<Instant>,
    /// When one of its keys was looked at, once it was to wait.
    looked: Option<Instant>,
}

/// The addresses that said wrong keys of late.
#[derive(Default)]
struct Wrong(HashMap<IpAddr, Guesses>);

impl Wrong {
    /// Whether a key from `peer` is looked at `now`. One that guessed too often is looked at once
    /// in a while: behind a proxy all clients share an address, and a good key is to be taken.
    fn lets_look(&mut self, peer: IpAddr, now: Instant) -> bool {
        let Some(guesses) = self.0.get_mut(&peer) else { return true };
        guesses.times.retain(|at| is_fresh(*at, now));
        if guesses.times.len() < WRONG_MAX {
            return true;
        }
        let since = guesses.looked.map(|at| now.saturating_duration_since(at));
        let lets = since.is_none_or(|since| since >= DELAY);
        if lets {
            guesses.looked = Some(now);
        }
        lets
    }

    /// How many `peer` has said of late, with the one it says `now`.
    fn one_more(&mut self, peer: IpAddr, now: Instant) -> usize {
        if self.0.len() >= ADDRESSES_MAX && !self.0.contains_key(&peer) {
            let last = |guesses: &Guesses| guesses.times.back().copied();
            self.0.retain(|_, guesses| last(guesses).is_some_and(|at| is_fresh(at, now)));
            let silent = self.0.iter().min_by_key(|(_, guesses)| last(guesses));
            let silent = silent.map(|(address, _)| *address);
            if let Some(silent) = silent.filter(|_| self.0.len() >= ADDRESSES_MAX) {
                self.0.remove(&silent);
            }
        }
        let Guesses { times, .. } = self.0.entry(peer).or_default();
        times.retain(|at| is_fresh(*at, now));
        times.push_back(now);
        let count = times.len();
        // Beyond the most they are only counted, not kept.
        while times.len() > WRONG_MAX {
            times.pop_front();
        }
        count
    }
}

/// Whether what was said `at` that moment still counts.
fn is_fresh(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) <= WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(nth: u32) -> IpAddr {
        IpAddr::V4(nth.into())
    }

    #[test]
    fn an_address_is_counted_by_itself_and_forgiven_after_a_minute() {
        let (mut wrong, begun) = (Wrong::default(), Instant::now());
        for nth in 1..=12 {
            let counted = wrong.one_more(peer(1), begun + Duration::from_secs(nth));
            assert_eq!(counted, usize::try_from(nth).expect("few").min(11), "{nth}");
        }
        assert_eq!(wrong.one_more(peer(2), begun + Duration::from_secs(12)), 1);
        assert_eq!(wrong.one_more(peer(1), begun + Duration::from_secs(73)), 1);
    }

    #[test]
    fn an_address_that_guesses_is_looked_at_ten_times_a_second_and_others_always() {
        let (mut wrong, begun) = (Wrong::default(), Instant::now());
        for _ in 0..WRONG_MAX {
            assert!(wrong.lets_look(peer(1), begun));
            wrong.one_more(peer(1), begun);
        }
        let looks =
            (0..1000).filter(|ms| wrong.lets_look(peer(1), begun + Duration::from_millis(*ms)));
        assert_eq!(looks.count(), 10);
        assert!(wrong.lets_look(peer(2), begun));
        assert!(wrong.lets_look(peer(1), begun + Duration::from_secs(61)));
        assert!(wrong.lets_look(peer(1), begun + Duration::from_secs(61)), "it is forgiven");
    }

    #[test]
    fn only_so_many_addresses_are_remembered_and_the_silent_are_forgotten() {
        let (mut wrong, begun) = (Wrong::default(), Instant::now());
        let most = u32::try_from(ADDRESSES_MAX).expect("few");
        for nth in 0..most + 10 {
            wrong.one_more(peer(nth), begun + Duration::from_micros(nth.into()));
            assert!(wrong.0.len() <= ADDRESSES_MAX);
        }
        let now = begun + Duration::from_secs(1);
        assert_eq!(wrong.one_more(peer(most + 9), now), 2, "the newest is remembered");
        assert_eq!(wrong.one_more(peer(0), now), 1, "the most silent was forgotten");
    }
}
