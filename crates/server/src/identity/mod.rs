//! Authenticates HTTP callers by API key or token, and throttles addresses that guess.

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

/// Header that always may carry a key.
const KEY_HEADER: &str = "x-api-key";
/// Result for an address that guessed too often.
const GUESSER: Sender = Sender::Guesser { retry_after: WINDOW };

/// Authentication over HTTP. If neither keys nor issuers are configured, every caller is accepted.
///
/// Keys are stored as digests. A received key is hashed and compared in full, so neither memory nor
/// timing reveals a key.
pub(crate) struct Identity {
    keys: Keys,
    tokens: Option<Tokens>,
    challenge: Option<Challenge>,
    /// Lower-case headers that may carry a key, apart from `Authorization`.
    headers: Vec<String>,
    throttle: Mutex<Throttle>,
}

impl Identity {
    /// Loads the keys and issuers of `config`.
    ///
    /// # Errors
    /// When the key file cannot be read, or other users could have written it.
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

    /// Returns true if requests need a credential.
    pub(crate) fn asks(&self) -> bool {
        // Checked first, because this rereads the key file.
        self.keys.are_needed() || self.tokens.is_some()
    }

    /// Returns the protected resource metadata if `head` requests it. It needs no credential.
    pub(crate) fn page(&self, head: &Head) -> Option<Reply> {
        let challenge = self.challenge.as_ref().filter(|it| it.is_at(head.path()))?;
        Some(challenge.said(head))
    }

    /// Returns true if `path` is a path of the metadata.
    pub(crate) fn has_page(&self, path: &str) -> bool {
        self.challenge.as_ref().is_some_and(|challenge| challenge.is_at(path))
    }

    /// Returns true if [`Identity::completed`] may add a challenge.
    pub(crate) fn challenges(&self) -> bool {
        self.challenge.is_some()
    }

    /// Adds the location of the metadata to a `reply` that demands a token.
    pub(crate) fn completed(&self, reply: Reply, head: &Head) -> Reply {
        match &self.challenge {
            Some(challenge) => challenge.completed(reply, head),
            None => reply,
        }
    }

    /// Authenticates the request `head` from the address `peer`.
    ///
    /// A rejection is delayed by 100 ms to slow down guessing, unless the credential was not
    /// examined.
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
            // The issuer was asked already, so the token is judged by the keys at hand.
            Verdict::Unjudged(_) => Sender::Nobody { said: true },
        }
    }

    /// Returns the one credential of `head` that is examined: the first found. A request counts as
    /// one guess.
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

    /// Judges the credential `said` from `peer`. `asked` is true after the issuer's keys were
    /// fetched.
    fn judged(&self, said: &Said, peer: IpAddr, asked: bool) -> Verdict {
        let secret = match said {
            // A request without a credential is not a guess.
            Said::Nothing => return Verdict::Nobody(Sender::Nobody { said: false }),
            Said::Several => None,
            Said::Key(secret) | Said::Bearer(secret) => Some((secret, digest(secret))),
        };
        // The lock is held during the check, so that concurrent requests cannot exceed the limit.
        let mut throttle = locked(&self.throttle);
        let now = Instant::now();
        if !throttle.lets_look(peer, now) {
            return Verdict::Unseen;
        }
        if let Some((secret, digest)) = secret {
            match self.keys.find(&digest) {
                Found::Owner(caller) => return Verdict::Known(caller),
                // An expired key was issued once, so it is not a guess.
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

    /// Judges `secret` as a token, if it came in `Authorization` and has the form of one.
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

/// Credential in a request.
enum Said {
    Nothing,
    /// Credential from a header that carries only keys.
    Key(Vec<u8>),
    /// Credential from `Authorization`, either a key or a token.
    Bearer(Vec<u8>),
    /// Several credentials in one header. None of them is examined.
    Several,
}

/// Returns the single credential of one header.
fn one_of<'k>(keys: impl Iterator<Item = &'k [u8]>, one: fn(Vec<u8>) -> Said) -> Said {
    let mut keys = keys.filter(|key| !key.is_empty());
    match (keys.next(), keys.next()) {
        (None, _) => Said::Nothing,
        (Some(key), None) => one(key.to_owned()),
        (Some(_), Some(_)) => Said::Several,
    }
}

/// Result of judging a request.
enum Verdict {
    Known(Caller),
    /// Unknown caller.
    Nobody(Sender),
    /// Address that guessed too often. The credential was not examined.
    Unseen,
    /// Token whose issuer's keys must be fetched first.
    Unjudged(Unjudged),
}
