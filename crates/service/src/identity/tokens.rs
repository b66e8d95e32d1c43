//! Validates OAuth access tokens and derives callers from them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use toolgate_contract::{Caller, CallerKind, lock_mutex};
use toolgate_world::HttpFetcher;

use super::issuer::TokenIssuer;
use super::jwks::JwkSet;
use super::jws::{UnverifiedToken, is_present};
use crate::config::{ApiKeyDigest, Config};

/// Tolerated difference between the clocks of the token issuer and this server, in seconds.
const LEEWAY_S: f64 = 60.0;
/// Longest time for which a validated token is cached.
const CACHE_TIME: Duration = Duration::from_secs(60);
/// Maximum number of tokens in the cache.
const CACHED_TOKENS_MAX: usize = 1024;
/// Longest subject of a token, in bytes.
const SUBJECT_BYTES_MAX: usize = 255;
/// Maximum number of scopes of a token. The same limit applies to roles.
const WORDS_MAX: usize = 64;
/// Longest scope or role of a token, in bytes.
const WORD_BYTES_MAX: usize = 128;

/// Validates tokens of all configured issuers.
pub(super) struct TokenValidator {
    issuers: Vec<AcceptedTokenIssuer>,
    cache: Mutex<HashMap<ApiKeyDigest, CachedToken>>,
}

/// Token issuer with the audiences that its tokens may have.
struct AcceptedTokenIssuer {
    issuer: Arc<TokenIssuer>,
    /// Accepted values of the tokens' `aud` claim.
    audience: Vec<String>,
}

/// Caller of a verified token, and the time until which the token is valid.
struct CachedToken {
    caller: Caller,
    until: Instant,
    issuer: Arc<TokenIssuer>,
    /// Signing keys that verified the token. When the issuer has new keys, the token is verified
    /// again.
    keys: Arc<JwkSet>,
}

impl CachedToken {
    fn is_current(&self) -> bool {
        let is_same = |keys| Arc::ptr_eq(&keys, &self.keys);
        self.until > Instant::now() && self.issuer.keys().is_some_and(is_same)
    }
}

/// Result of examining a token.
pub(super) enum TokenCheckResult {
    /// The token is valid and belongs to this caller.
    Valid(Caller),
    /// The token has expired or is not valid yet. Such a token does not count as a failed attempt.
    NotValidNow,
    /// The token cannot be examined now, because the issuer's keys are unavailable.
    KeysUnavailable,
    /// The token is rejected. The text is the reason, which only the log contains.
    Rejected(&'static str),
    /// The token must be examined again after fetching the signing keys of its issuer.
    NeedsKeys(PendingToken),
}

/// Token that can be examined only after the signing keys of its issuer were fetched. Contains this
/// issuer.
pub(super) struct PendingToken(Arc<TokenIssuer>);

impl PendingToken {
    /// Fetches the signing keys of the token's issuer. Returns when the fetch has ended, even if it
    /// failed.
    pub(super) async fn refresh_keys(self) {
        self.0.refresh().await;
    }
}

/// Claims of a token. They are untrusted until the token's signature is verified.
#[derive(Deserialize)]
struct TokenClaims {
    iss: String,
    sub: Option<String>,
    aud: Option<StringOrList>,
    #[serde(default, deserialize_with = "parse_number")]
    exp: Option<f64>,
    #[serde(default, deserialize_with = "parse_number")]
    nbf: Option<f64>,
    scope: Option<StringOrList>,
    scp: Option<StringOrList>,
    /// True if the token is bound to a proof-of-possession key. Such tokens are refused, because
    /// the server cannot check the proof.
    #[serde(default, deserialize_with = "is_present")]
    cnf: bool,
}

/// Deserializes a number in a claim that may be missing. Fails for `null`, which an `Option` would
/// treat as missing.
fn parse_number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    f64::deserialize(value).map(Some)
}

/// Claim whose value is a string or a list of strings.
#[derive(Deserialize)]
#[serde(untagged)]
enum StringOrList {
    One(String),
    More(Vec<String>),
}

impl StringOrList {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::More(more) => more,
        }
    }
}

impl TokenValidator {
    /// Creates the validator of tokens for `config`. Returns `None` if no issuer is configured.
    pub(super) fn from_config(config: &Config) -> Option<Self> {
        if config.oauth.is_empty() {
            return None;
        }
        let fetch = HttpFetcher::default();
        let issuers = config.oauth.iter().map(|settings| {
            let audience = match (&settings.audience[..], &config.server.url) {
                // Without a trailing slash, as the resource metadata has it.
                ([], Some(url)) => vec![url.trim_end_matches('/').to_owned()],
                (audience, _) => audience.to_vec(),
            };
            AcceptedTokenIssuer {
                issuer: TokenIssuer::new(settings.clone(), fetch.clone()),
                audience,
            }
        });
        Some(Self { issuers: issuers.collect(), cache: Mutex::default() })
    }

    /// Returns true if `text` looks like a token (JWS): three texts separated by periods.
    pub(super) fn is_token(text: &[u8]) -> bool {
        // A header starts with `{"`, which is `eyJ` in base64.
        text.starts_with(b"eyJ") && text.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// Examines the token `text`, whose digest is `digest`. `fetched` is true if the issuer's keys
    /// were already fetched for this token.
    pub(super) fn judge(
        &self,
        text: &[u8],
        digest: &ApiKeyDigest,
        fetched: bool,
    ) -> TokenCheckResult {
        if let Some(known) = lock_mutex(&self.cache).get(digest)
            && known.is_current()
        {
            return TokenCheckResult::Valid(known.caller.clone());
        }
        self.validate(text, digest, fetched).unwrap_or_else(TokenCheckResult::Rejected)
    }

    fn validate(
        &self,
        text: &[u8],
        digest: &ApiKeyDigest,
        fetched: bool,
    ) -> Result<TokenCheckResult, &'static str> {
        let token = UnverifiedToken::parse(text)?;
        let claims: TokenClaims =
            serde_json::from_slice(&token.claims).map_err(|_| "the token's claims are invalid")?;
        // Nothing is verified yet: the issuer claim only selects the keys for verification.
        let accepted =
            self.issuers.iter().find(|accepted| accepted.issuer.settings.issuer == claims.iss);
        let AcceptedTokenIssuer { issuer, audience } =
            accepted.ok_or("the token's issuer is not accepted")?;
        let Some(keys) = issuer.keys() else {
            let pending = || TokenCheckResult::NeedsKeys(PendingToken(issuer.clone()));
            return Ok(if fetched { TokenCheckResult::KeysUnavailable } else { pending() });
        };
        match keys.verify(&token) {
            Some(true) => {}
            Some(false) => return Err("the token's signature is invalid"),
            None if !fetched => {
                return Ok(TokenCheckResult::NeedsKeys(PendingToken(issuer.clone())));
            }
            None => return Err("the token's issuer has no such key"),
        }
        let is_for_us =
            claims.aud.iter().flat_map(StringOrList::as_slice).any(|aud| audience.contains(aud));
        if !is_for_us {
            return Err("the token's audience is another server");
        }
        if claims.cnf {
            return Err("the token is bound to a proof-of-possession key, which cannot be checked");
        }
        let expires = claims.exp.filter(|exp| exp.is_finite()).ok_or("the token has no expiry")?;
        let now = Timestamp::now().as_duration().as_secs_f64();
        if now >= expires + LEEWAY_S || claims.nbf.is_some_and(|from| now < from - LEEWAY_S) {
            return Ok(TokenCheckResult::NotValidNow);
        }
        let caller = token_caller(&issuer.settings, &claims, &token.claims)?;
        let remaining = Duration::try_from_secs_f64(expires + LEEWAY_S - now).unwrap_or_default();
        let until = Instant::now() + remaining.min(CACHE_TIME);
        let known = CachedToken { caller: caller.clone(), until, issuer: issuer.clone(), keys };
        self.remember(*digest, known);
        Ok(TokenCheckResult::Valid(caller))
    }

    fn remember(&self, digest: ApiKeyDigest, known: CachedToken) {
        let mut cache = lock_mutex(&self.cache);
        if cache.len() >= CACHED_TOKENS_MAX {
            cache.retain(|_, known| known.is_current());
        }
        if cache.len() < CACHED_TOKENS_MAX {
            cache.insert(digest, known);
        }
    }
}

/// Returns the caller of a token with the given claims. `json` contains the same claims as JSON.
/// The error is a reason for the log.
///
/// The name of the caller is the issuer's alias, a colon and the subject. Names of API keys cannot
/// contain a colon, so a token's caller never has the name of a key's caller.
fn token_caller(
    issuer: &crate::config::oauth::OAuthIssuerEntry,
    claims: &TokenClaims,
    json: &[u8],
) -> Result<Caller, &'static str> {
    let subject = claims.sub.as_deref().unwrap_or_default();
    let is_visible = subject.bytes().all(|byte| matches!(byte, 0x21..=0x7e));
    if subject.is_empty() || subject.len() > SUBJECT_BYTES_MAX || !is_visible {
        return Err("the token's subject is missing or invalid");
    }
    let scopes = claims.scope.iter().chain(&claims.scp).flat_map(StringOrList::as_slice);
    let scopes = distinct_words(scopes.flat_map(|scopes| scopes.split(' ')))?;
    let roles = match &issuer.roles_claim {
        None => Vec::new(),
        Some(claim) => {
            let claims: Value =
                serde_json::from_slice(json).map_err(|_| "the token's claims are invalid")?;
            let roles = match claims.get(claim) {
                None | Some(Value::Null) => Vec::new(),
                Some(roles) => StringOrList::deserialize(roles)
                    .map_err(|_| "the token's roles are not a list of names")?
                    .as_slice()
                    .to_vec(),
            };
            distinct_words(roles.iter().map(String::as_str))?
        }
    };
    let name = format!("{}:{subject}", issuer.alias());
    let caller = Caller::new(&name, CallerKind::Token);
    Ok(Caller { scopes: scopes.into(), roles: roles.into(), ..caller })
}

/// Returns the distinct `words`, which are scopes or roles of a token. The error is a reason for
/// the log: there are too many words, or a word is too long.
fn distinct_words<'w>(words: impl Iterator<Item = &'w str>) -> Result<Vec<Arc<str>>, &'static str> {
    let mut distinct: Vec<Arc<str>> = Vec::new();
    for word in words.filter(|word| !word.is_empty()) {
        if word.len() > WORD_BYTES_MAX || distinct.len() == WORDS_MAX {
            return Err("the token has too many or too long scopes or roles");
        }
        if !distinct.iter().any(|known| **known == *word) {
            distinct.push(word.into());
        }
    }
    Ok(distinct)
}

/// Fuzz target: parses token claims, and checks the name, scopes and roles of the derived caller.
#[cfg(any(fuzzing, test))]
pub(super) fn check_claims(json: &[u8]) {
    let Ok(claims) = serde_json::from_slice::<TokenClaims>(json) else { return };
    let issuer = crate::config::oauth::OAuthIssuerEntry {
        issuer: "https://issuer.example".to_owned(),
        audience: Vec::new(),
        alias: None,
        jwks_uri: None,
        roles_claim: Some("roles".to_owned()),
    };
    let Ok(caller) = token_caller(&issuer, &claims, json) else { return };
    let subject = caller.name.strip_prefix("issuer.example:").expect("the issuer's name is first");
    assert_eq!(Some(subject), claims.sub.as_deref());
    assert!(caller.scopes.len() <= WORDS_MAX && caller.roles.len() <= WORDS_MAX);
    assert!(caller.scopes.iter().chain(&*caller.roles).all(|word| word.len() <= WORD_BYTES_MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that claims of a wrong type do not count as missing, as in CVE-2026-25537
    /// (jsonwebtoken) and CVE-2020-26160 (jwt-go).
    #[test]
    fn claims_of_a_wrong_type_make_the_token_invalid() {
        let with = |claim: &str| format!(r#"{{"iss":"https://id.example","sub":"ada",{claim}}}"#);
        let parse = |claim: &str| serde_json::from_str::<TokenClaims>(&with(claim));
        for claim in [
            r#""exp":"9999999999""#,
            r#""exp":"never""#,
            r#""exp":null"#,
            r#""exp":[9999999999]"#,
            r#""exp":true"#,
            r#""exp":1e999"#,
            r#""nbf":"9999999999""#,
            r#""nbf":null"#,
            r#""nbf":{}"#,
            r#""aud":1"#,
            r#""aud":{"a":"b"}"#,
            r#""aud":["a",1]"#,
            r#""scope":7"#,
            r#""iss":"https://other.example""#,
            r#""exp":1,"exp":9999999999"#,
        ] {
            assert!(parse(claim).is_err(), "{claim}");
        }
        assert!(serde_json::from_str::<TokenClaims>(r#"{"iss":["https://id.example"]}"#).is_err());
        let claims = parse(r#""exp":1.5,"cnf":null"#).unwrap();
        assert!(claims.exp == Some(1.5) && claims.nbf.is_none() && claims.cnf);
    }
}
