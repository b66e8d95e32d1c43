//! Validates OAuth access tokens and derives callers from them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use toolgate_contract::{Caller, CallerKind};
use toolgate_toolsets::world::Fetch;

use super::issuer::Issuer;
use super::jwks::KeySet;
use super::jws::Token;
use crate::config::{Config, KeyDigest};
use crate::session::locked;

/// Allowed clock difference, in seconds.
const LEEWAY_S: f64 = 60.0;
/// Longest time for which a validated token is cached.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Most tokens in the cache.
const REMEMBERED_MAX: usize = 1024;
/// Longest subject, in bytes.
const SUBJECT_BYTES_MAX: usize = 255;
/// Most scopes, and most roles, of a token. [`WORD_BYTES_MAX`] is the longest one, in bytes.
const WORDS_MAX: usize = 64;
const WORD_BYTES_MAX: usize = 128;

/// Validator of tokens from all configured issuers.
pub(super) struct Tokens {
    issuers: Vec<Taken>,
    remembered: Mutex<HashMap<KeyDigest, Remembered>>,
}

/// Issuer with its accepted audiences.
struct Taken {
    issuer: Arc<Issuer>,
    /// Accepted values of `aud`.
    audience: Vec<String>,
}

struct Remembered {
    caller: Caller,
    until: Instant,
    issuer: Arc<Issuer>,
    /// Keys that verified the token. If the issuer has new keys, the token is verified again.
    keys: Arc<KeySet>,
}

impl Remembered {
    fn holds(&self) -> bool {
        let still = |keys| Arc::ptr_eq(&keys, &self.keys);
        self.until > Instant::now() && self.issuer.keys().is_some_and(still)
    }
}

/// Result of judging a token.
pub(super) enum Judged {
    /// Valid token of this caller.
    Good(Caller),
    /// Expired or not yet valid token. This is not a guess.
    OutOfTime,
    /// Token that cannot be judged, because the issuer's keys are unavailable.
    Unknowable,
    /// Rejected token, with the reason for the log.
    Bad(&'static str),
    /// Token to be judged again after its issuer's keys were fetched.
    Unjudged(Unjudged),
}

/// Token that waits for its issuer's keys.
pub(super) struct Unjudged(Arc<Issuer>);

impl Unjudged {
    /// Waits until the issuer's keys were fetched, or the fetch failed.
    pub(super) async fn learn(self) {
        self.0.learn().await;
    }
}

/// Claims of a token, not trusted before its signature is verified.
#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: Option<String>,
    aud: Option<OneOrMore>,
    exp: Option<f64>,
    nbf: Option<f64>,
    scope: Option<OneOrMore>,
    scp: Option<OneOrMore>,
    /// Proof-of-possession key, which cannot be checked here.
    cnf: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    fn all(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::More(more) => more,
        }
    }
}

impl Tokens {
    /// Creates the validator for `config`. Returns `None` if no issuer is configured.
    pub(super) fn of(config: &Config) -> Option<Self> {
        if config.oauth.is_empty() {
            return None;
        }
        let fetch = Fetch::default();
        let issuers = config.oauth.iter().map(|settings| {
            let audience = match (&settings.audience[..], &config.server.url) {
                // Without a trailing slash, as the resource metadata has it.
                ([], Some(url)) => vec![url.trim_end_matches('/').to_owned()],
                (audience, _) => audience.to_vec(),
            };
            Taken { issuer: Issuer::new(settings.clone(), fetch.clone()), audience }
        });
        Some(Self { issuers: issuers.collect(), remembered: Mutex::default() })
    }

    /// Returns true if `text` has the form of a JWS token.
    pub(super) fn are_such(text: &[u8]) -> bool {
        // A header starts with `{"`, which is `eyJ` in base64.
        text.starts_with(b"eyJ") && text.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// Judges the token `text`. `asked` is true if its issuer's keys were fetched for it already.
    pub(super) fn judge(&self, text: &[u8], digest: &KeyDigest, asked: bool) -> Judged {
        if let Some(known) = locked(&self.remembered).get(digest)
            && known.holds()
        {
            return Judged::Good(known.caller.clone());
        }
        self.look(text, digest, asked).unwrap_or_else(Judged::Bad)
    }

    fn look(&self, text: &[u8], digest: &KeyDigest, asked: bool) -> Result<Judged, &'static str> {
        let token = Token::read(text)?;
        let claims: Claims =
            serde_json::from_slice(&token.claims).map_err(|_| "its claims cannot be read")?;
        // Nothing is verified yet: the issuer claim only selects the keys for verification.
        let taken = self.issuers.iter().find(|taken| taken.issuer.settings.issuer == claims.iss);
        let Taken { issuer, audience } = taken.ok_or("its issuer is none that is taken")?;
        if !issuer.settings.algorithms.contains(&token.algorithm) {
            return Err("its algorithm is none that its issuer is taken with");
        }
        let Some(keys) = issuer.keys() else {
            let unjudged = || Judged::Unjudged(Unjudged(issuer.clone()));
            return Ok(if asked { Judged::Unknowable } else { unjudged() });
        };
        match keys.signed(&token) {
            Some(true) => {}
            Some(false) => return Err("its signature is not its issuer's"),
            None if !asked => return Ok(Judged::Unjudged(Unjudged(issuer.clone()))),
            None => return Err("its issuer has no such key"),
        }
        let for_us = claims.aud.iter().flat_map(OneOrMore::all).any(|aud| audience.contains(aud));
        if !for_us {
            return Err("it is for somebody else");
        }
        if claims.cnf.is_some() {
            return Err("it is bound to a key that its sender cannot show here");
        }
        let expires = claims.exp.filter(|exp| exp.is_finite()).ok_or("it never expires")?;
        let now = Timestamp::now().as_duration().as_secs_f64();
        if now >= expires + LEEWAY_S || claims.nbf.is_some_and(|from| now < from - LEEWAY_S) {
            return Ok(Judged::OutOfTime);
        }
        let caller = caller(&issuer.settings, &claims, &token.claims)?;
        let left = Duration::try_from_secs_f64(expires + LEEWAY_S - now).unwrap_or_default();
        let until = Instant::now() + left.min(REMEMBERED);
        let known = Remembered { caller: caller.clone(), until, issuer: issuer.clone(), keys };
        self.remember(*digest, known);
        Ok(Judged::Good(caller))
    }

    fn remember(&self, digest: KeyDigest, known: Remembered) {
        let mut remembered = locked(&self.remembered);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.retain(|_, known| known.holds());
        }
        if remembered.len() < REMEMBERED_MAX {
            remembered.insert(digest, known);
        }
    }
}

/// Returns the caller of a token with the given claims.
///
/// The name is the issuer's alias, a colon and the subject. Names of keys cannot contain a colon,
/// so they never collide.
fn caller(
    issuer: &crate::config::oauth::Issuer,
    claims: &Claims,
    json: &[u8],
) -> Result<Caller, &'static str> {
    let subject = claims.sub.as_deref().unwrap_or_default();
    let visible = subject.bytes().all(|byte| matches!(byte, 0x21..=0x7e));
    if subject.is_empty() || subject.len() > SUBJECT_BYTES_MAX || !visible {
        return Err("it is about nobody who could have a name here");
    }
    let said = claims.scope.iter().chain(&claims.scp).flat_map(OneOrMore::all);
    let scopes = words(said.flat_map(|scopes| scopes.split(' ')))?;
    let roles = match &issuer.roles_claim {
        None => Vec::new(),
        Some(claim) => {
            let claims: Value =
                serde_json::from_slice(json).map_err(|_| "its claims cannot be read")?;
            let said = match claims.get(claim) {
                None | Some(Value::Null) => Vec::new(),
                Some(roles) => OneOrMore::deserialize(roles)
                    .map_err(|_| "its roles are no list of names")?
                    .all()
                    .to_vec(),
            };
            words(said.iter().map(String::as_str))?
        }
    };
    let name = format!("{}:{subject}", issuer.alias());
    let named = Caller::of(&name, CallerKind::Token);
    Ok(Caller { scopes: scopes.into(), roles: roles.into(), ..named })
}

/// Returns the distinct words of `said`, or an error if there are too many or too long ones.
fn words<'w>(said: impl Iterator<Item = &'w str>) -> Result<Vec<Arc<str>>, &'static str> {
    let mut words: Vec<Arc<str>> = Vec::new();
    for word in said.filter(|word| !word.is_empty()) {
        if word.len() > WORD_BYTES_MAX || words.len() == WORDS_MAX {
            return Err("it has more scopes or roles than are read");
        }
        if !words.iter().any(|known| **known == *word) {
            words.push(word.into());
        }
    }
    Ok(words)
}

/// Parses claims and checks that the caller's name is unique to its subject. Used by fuzzing.
#[cfg(any(fuzzing, test))]
pub(super) fn check_claims(json: &[u8]) {
    let Ok(claims) = serde_json::from_slice::<Claims>(json) else { return };
    let issuer = crate::config::oauth::Issuer {
        issuer: "https://issuer.example".to_owned(),
        audience: Vec::new(),
        alias: None,
        jwks_uri: None,
        algorithms: Vec::new(),
        roles_claim: Some("roles".to_owned()),
    };
    let Ok(caller) = caller(&issuer, &claims, json) else { return };
    let subject = caller.name.strip_prefix("issuer.example:").expect("the issuer's name is first");
    assert_eq!(Some(subject), claims.sub.as_deref());
    assert!(caller.scopes.len() <= WORDS_MAX && caller.roles.len() <= WORDS_MAX);
    assert!(caller.scopes.iter().chain(&*caller.roles).all(|word| word.len() <= WORD_BYTES_MAX));
}
