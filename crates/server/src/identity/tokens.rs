//! Tokens that other servers gave: whether one is good here, and whose it is.

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

/// By how much clocks may differ, in seconds.
const LEEWAY_S: f64 = 60.0;
/// How long a token that was good is taken for good without another look.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How many are remembered.
const REMEMBERED_MAX: usize = 1024;
/// How long the name of whom a token is about may be.
const SUBJECT_BYTES_MAX: usize = 255;
/// How many scopes, and how many roles, are read of a token, and how long each may be.
const WORDS_MAX: usize = 64;
const WORD_BYTES_MAX: usize = 128;

/// Whose tokens are taken.
pub(super) struct Tokens {
    issuers: Vec<Taken>,
    remembered: Mutex<HashMap<KeyDigest, Remembered>>,
}

/// An issuer whose tokens are taken.
struct Taken {
    issuer: Arc<Issuer>,
    /// Whom they must be for.
    audience: Vec<String>,
}

struct Remembered {
    caller: Caller,
    until: Instant,
    issuer: Arc<Issuer>,
    /// Those it was held against: once the issuer has others, it is looked at again.
    keys: Arc<KeySet>,
}

impl Remembered {
    fn holds(&self) -> bool {
        let still = |keys| Arc::ptr_eq(&keys, &self.keys);
        self.until > Instant::now() && self.issuer.keys().is_some_and(still)
    }
}

/// What a token is.
pub(super) enum Judged {
    /// Good, and this caller's.
    Good(Caller),
    /// Good once, or not yet: that is no guess.
    OutOfTime,
    /// Perhaps good: its issuer does not say by which keys. Whoever has it cannot help that.
    Unknowable,
    /// None that is taken here; why, for the log.
    Bad(&'static str),
    /// To be judged again once its issuer was asked for its keys.
    Unjudged(Unjudged),
}

/// What a token waits for.
pub(super) struct Unjudged(Arc<Issuer>);

impl Unjudged {
    /// Waits until the issuer was asked, or is not.
    pub(super) async fn learn(self) {
        self.0.learn().await;
    }
}

/// What a token says, of which nothing is believed before its signature is.
#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: Option<String>,
    aud: Option<OneOrMore>,
    exp: Option<f64>,
    nbf: Option<f64>,
    scope: Option<OneOrMore>,
    scp: Option<OneOrMore>,
    /// What its sender must show beside it, and cannot here.
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
    /// Those that `config` takes; `None` where it takes none.
    pub(super) fn of(config: &Config) -> Option<Self> {
        if config.oauth.is_empty() {
            return None;
        }
        let fetch = Fetch::default();
        let issuers = config.oauth.iter().map(|settings| {
            let audience = match (&settings.audience[..], &config.server.url) {
                // As the client finds it in what is said of whose tokens are taken.
                ([], Some(url)) => vec![url.trim_end_matches('/').to_owned()],
                (audience, _) => audience.to_vec(),
            };
            Taken { issuer: Issuer::new(settings.clone(), fetch.clone()), audience }
        });
        Some(Self { issuers: issuers.collect(), remembered: Mutex::default() })
    }

    /// Whether `text` is to be read as a token.
    pub(super) fn are_such(text: &[u8]) -> bool {
        // `{"` in base 64, with which every header begins.
        text.starts_with(b"eyJ") && text.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// What the token `text` is, whose digest is `digest`. Only once, `asked` is whether its issuer
    /// was asked for keys already.
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
        // Until here it may have been written by anybody: what it says chooses whose keys it is
        // held against, and no more.
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

/// Whose a token is that says `claims`.
///
/// Its name has the issuer's before it and a colon between, which no key's name can have: nobody
/// is somebody else by what an issuer calls them.
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

/// `said`, each once.
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

/// Reads what a token may say, and sees that whoever it is about has a name that nobody else has.
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
