//! Who calls over HTTP: known by a key or by a token, and told to wait who guesses.

mod keys;
mod tokens;
mod jws;
mod jwks;
mod issuer;
mod challenge;
mod throttle;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzzing;

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Instant;

use toolgate_contract::{Bearer, Caller, Head, Reply};
use toolgate_dialects::Dialect;
use toolgate_transports::http::Sender;

use crate::config::{Config, KeyDigest, digest};
use crate::session::locked;
use challenge::Challenge;
pub(crate) use issuer::place;
pub use jws::Algorithm;
use keys::{Found, Keys};
use throttle::{DELAY, Throttle, WINDOW, WRONG_MAX};
use tokens::{Judged, Tokens, Unjudged};

/// Where a key may always stand.
const KEY_HEADER: &str = "x-api-key";
/// What an address that guessed too often is taken for.
const GUESSER: Sender = Sender::Guesser { retry_after: WINDOW };

/// Who may call over HTTP; anybody, where nobody is asked who they are.
///
/// Keys are kept as digests: what a client says is hashed and compared whole, so neither the
/// memory of this process nor the time it takes tells a key.
pub(crate) struct Identity {
    keys: Keys,
    tokens: Option<Tokens>,
    challenge: Option<Challenge>,
    /// The headers that a key may stand in, beside `Authorization`.
    headers: Vec<String>,
    throttle: Mutex<Throttle>,
}

impl Identity {
    /// Those whom `config` knows.
    ///
    /// # Errors
    /// When the file of keys cannot be read, or others could have written it.
    pub(crate) fn of(config: &Config) -> anyhow::Result<Self> {
        let named = config.server.key_headers.iter().map(|name| name.to_ascii_lowercase());
        let mut headers = vec![KEY_HEADER.to_owned()];
        headers.extend(named.filter(|name| name != KEY_HEADER));
        Ok(Self {
            keys: Keys::of(config)?,
            tokens: Tokens::of(config),
            challenge: Challenge::of(config),
            headers,
            throttle: Mutex::default(),
        })
    }

    /// Whether who calls must say who they are.
    pub(crate) fn asks(&self) -> bool {
        // Looked at first: it is when the file is read again.
        self.keys.are_needed() || self.tokens.is_some()
    }

    /// What is said at `head`'s path of whose tokens are taken; to anybody.
    pub(crate) fn page(&self, head: &Head) -> Option<Reply> {
        let challenge = self.challenge.as_ref().filter(|it| it.is_at(head.path()))?;
        Some(challenge.said(head))
    }

    /// Whether something is said at `path`.
    pub(crate) fn has_page(&self, path: &str) -> bool {
        self.challenge.as_ref().is_some_and(|challenge| challenge.is_at(path))
    }

    /// Where to get a token is said by [`Identity::completed`].
    pub(crate) fn challenges(&self) -> bool {
        self.challenge.is_some()
    }

    /// `reply` to `head`, saying where to get a token if it says that one is needed.
    pub(crate) fn completed(&self, reply: Reply, head: &Head) -> Reply {
        match &self.challenge {
            Some(challenge) => challenge.completed(reply, head),
            None => reply,
        }
    }

    /// Who says `head` from `peer`, in `dialect` if that is said in one. That it is nobody known is not told at once, so
    /// that guessing takes its time, unless nothing was looked at.
    pub(crate) async fn identify(
        &self,
        dialect: Option<&dyn Dialect>,
        head: &Head,
        peer: IpAddr,
    ) -> Sender {
        if dialect.is_some_and(|dialect| dialect.is_open(head)) {
            return Sender::Anybody;
        }
        if !self.asks() {
            return Sender::Known(Caller::http());
        }
        let said = self.said(dialect, head);
        let mut verdict = self.judged(&said, peer, false);
        if let Verdict::Unjudged(token) = verdict {
            token.learn().await;
            verdict = self.judged(&said, peer, true);
        }
        match verdict {
            Verdict::Known(caller) => Sender::Known(caller),
            Verdict::Unseen => GUESSER,
            Verdict::Nobody(sender) => {
                tokio::time::sleep(DELAY).await;
                sender
            }
            // What was asked already is judged by what is known.
            Verdict::Unjudged(_) => Sender::Nobody { said: true },
        }
    }

    /// The one secret of `head` that is looked at: the first of all places that have one. A request
    /// is one guess, however much it says.
    fn said(&self, dialect: Option<&dyn Dialect>, head: &Head) -> Said {
        let plain = self.headers.iter().map(|name| one_of(head.header(name), Said::Key));
        let bearer = head.header("authorization").filter_map(|value| {
            let (scheme, secret) = value.split_at_checked("bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| secret.trim_ascii())
        });
        let own = dialect.and_then(|dialect| dialect.credential(head)).map(String::into_bytes);
        let own = one_of(own.as_deref().into_iter(), Said::Key);
        let mut first = Said::Nothing;
        for said in plain.chain([one_of(bearer, Said::Bearer), own]) {
            match (said, &first) {
                (Said::Several, _) => return Said::Several,
                (said @ (Said::Key(_) | Said::Bearer(_)), Said::Nothing) => first = said,
                (Said::Nothing | Said::Key(_) | Said::Bearer(_), _) => {}
            }
        }
        first
    }

    /// What comes of what was `said` from `peer`; `asked` is whether the issuer of a token was asked
    /// for its keys meanwhile.
    fn judged(&self, said: &Said, peer: IpAddr, asked: bool) -> Verdict {
        let secret = match said {
            // Who says nothing guesses nothing.
            Said::Nothing => return Verdict::Nobody(Sender::Nobody { said: false }),
            Said::Several => None,
            Said::Key(secret) | Said::Bearer(secret) => Some((secret, digest(secret))),
        };
        // Held while it is looked at: of many at once, no more are than may be.
        let mut throttle = locked(&self.throttle);
        let now = Instant::now();
        if !throttle.lets_look(peer, now) {
            return Verdict::Unseen;
        }
        if let Some((secret, digest)) = secret {
            match self.keys.find(&digest) {
                Found::Owner(caller) => return Verdict::Known(caller),
                // Whoever has it was given it once: that is no guess.
                Found::OutOfTime => return Verdict::Nobody(Sender::Nobody { said: true }),
                Found::Nobody => {}
            }
            match self.token(said, secret, &digest, asked) {
                Some(Judged::Good(caller)) => {
                    let bearer = std::str::from_utf8(secret).ok().map(Bearer::new);
                    return Verdict::Known(Caller { bearer, ..caller });
                }
                Some(Judged::OutOfTime | Judged::Unknowable) => {
                    return Verdict::Nobody(Sender::Nobody { said: true });
                }
                Some(Judged::Unjudged(token)) => return Verdict::Unjudged(token),
                Some(Judged::Bad(why)) => tracing::info!("a token from {peer} was refused: {why}"),
                None => {}
            }
        }
        let count = throttle.one_more(peer, now);
        drop(throttle);
        if count == WRONG_MAX {
            tracing::warn!("{peer} said {WRONG_MAX} wrong keys within a minute, and is to wait");
        }
        Verdict::Nobody(match count >= WRONG_MAX {
            true => GUESSER,
            false if secret.is_none() => Sender::Several,
            false => Sender::Nobody { said: true },
        })
    }

    /// What `secret` is as a token, if it can be one: one that stands in `Authorization`, and
    /// nowhere else.
    fn token(&self, said: &Said, secret: &[u8], digest: &KeyDigest, asked: bool) -> Option<Judged> {
        let tokens = self.tokens.as_ref()?;
        match said {
            Said::Bearer(_) if Tokens::are_such(secret) => {
                Some(tokens.judge(secret, digest, asked))
            }
            Said::Bearer(_) | Said::Key(_) | Said::Several | Said::Nothing => None,
        }
    }
}

/// What a request says of who sends it.
enum Said {
    Nothing,
    /// Where only keys stand.
    Key(Vec<u8>),
    /// In `Authorization`, where tokens stand too.
    Bearer(Vec<u8>),
    /// More than one secret in one place: none of them is looked at.
    Several,
}

/// What stands in one place.
fn one_of<'k>(keys: impl Iterator<Item = &'k [u8]>, one: fn(Vec<u8>) -> Said) -> Said {
    let mut keys = keys.filter(|key| !key.is_empty());
    match (keys.next(), keys.next()) {
        (None, _) => Said::Nothing,
        (Some(key), None) => one(key.to_owned()),
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
    /// Its token's issuer is to be asked first.
    Unjudged(Unjudged),
}
