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
pub(crate) mod tls;

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Instant;

use toolgate_contract::{BearerToken, Caller, FrameHead, Reply};
use toolgate_dialects::Dialect;
use toolgate_transports::http::RequestSender;

use crate::config::{Config, KeyDigest, digest};
use crate::sync::lock_mutex;
use challenge::TokenChallenge;
use keys::{KeyLookup, KeyRing};
use throttle::{FAILURE_WINDOW, FAILURES_MAX, GuessThrottle, REJECTION_DELAY};
use tokens::{PendingToken, TokenValidator, TokenVerdict};

/// Header that may always contain a key.
const KEY_HEADER: &str = "x-api-key";
/// Sender for an address with too many failed attempts.
const THROTTLED_SENDER: RequestSender = RequestSender::Throttled { retry_after: FAILURE_WINDOW };

/// Authentication over HTTP. If neither keys nor issuers are configured, every caller is accepted.
///
/// Keys are stored as digests. A received key is hashed and compared in full, so neither memory nor
/// timing reveals a key.
pub(crate) struct Authenticator {
    keys: KeyRing,
    tokens: Option<TokenValidator>,
    challenge: Option<TokenChallenge>,
    /// Lower-case names of headers that may contain a key, apart from `Authorization`.
    headers: Vec<String>,
    throttle: Mutex<GuessThrottle>,
}

impl Authenticator {
    /// Loads the keys and issuers of `config`.
    ///
    /// # Errors
    /// The key file cannot be read, or other users could have written it.
    pub(crate) fn from_config(config: &Config) -> anyhow::Result<Self> {
        let named = config.server.key_headers.iter().map(|name| name.to_ascii_lowercase());
        let mut headers = vec![KEY_HEADER.to_owned()];
        headers.extend(named.filter(|name| name != KEY_HEADER));
        Ok(Self {
            keys: KeyRing::from_config(config)?,
            tokens: TokenValidator::from_config(config),
            challenge: TokenChallenge::from_config(config),
            headers,
            throttle: Mutex::default(),
        })
    }

    /// Returns true if requests need a credential.
    pub(crate) fn requires_credential(&self) -> bool {
        // Checked first, because this rereads the key file.
        self.keys.are_required() || self.tokens.is_some()
    }

    /// Returns the protected resource metadata if `head` requests it. This needs no credential.
    pub(crate) fn metadata_page(&self, head: &FrameHead) -> Option<Reply> {
        let challenge = self.challenge.as_ref().filter(|it| it.serves_path(head.path()))?;
        Some(challenge.metadata_reply(head))
    }

    /// Returns true if `path` is a path of the metadata.
    pub(crate) fn has_metadata_at(&self, path: &str) -> bool {
        self.challenge.as_ref().is_some_and(|challenge| challenge.serves_path(path))
    }

    /// Returns true if [`Authenticator::add_challenge`] may add a challenge.
    pub(crate) fn has_challenge(&self) -> bool {
        self.challenge.is_some()
    }

    /// Adds the location of the metadata to a `reply` that demands a token.
    pub(crate) fn add_challenge(&self, reply: Reply, head: &FrameHead) -> Reply {
        match &self.challenge {
            Some(challenge) => challenge.add_challenge(reply, head),
            None => reply,
        }
    }

    /// Authenticates the request `head` from the address `peer`.
    ///
    /// A rejection is delayed by 100 ms to slow down guessing, unless the credential was not
    /// examined.
    pub(crate) async fn authenticate(
        &self,
        dialect: Option<&dyn Dialect>,
        head: &FrameHead,
        peer: IpAddr,
    ) -> RequestSender {
        if dialect.is_some_and(|dialect| dialect.is_public(head)) {
            return RequestSender::Anonymous;
        }
        if !self.requires_credential() {
            return RequestSender::Known(Caller::anonymous());
        }
        let credential = self.find_credential(dialect, head);
        let mut verdict = self.judge(&credential, peer, false);
        if let CredentialVerdict::NeedsKeys(token) = verdict {
            token.refresh_keys().await;
            verdict = self.judge(&credential, peer, true);
        }
        match verdict {
            CredentialVerdict::Known(caller) => RequestSender::Known(caller),
            CredentialVerdict::Throttled => THROTTLED_SENDER,
            CredentialVerdict::Rejected(sender) => {
                tokio::time::sleep(REJECTION_DELAY).await;
                sender
            }
            // The issuer was asked already, so the token is judged by the keys at hand.
            CredentialVerdict::NeedsKeys(_) => {
                RequestSender::Unauthenticated { had_credential: true }
            }
        }
    }

    /// Returns the first credential in `head`. Only this one is examined, so that a request counts
    /// as one guess.
    fn find_credential(&self, dialect: Option<&dyn Dialect>, head: &FrameHead) -> Credential {
        let keys =
            self.headers.iter().map(|name| single_credential(head.header(name), Credential::Key));
        let bearer = head.header("authorization").filter_map(|value| {
            let (scheme, secret) = value.split_at_checked("bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| secret.trim_ascii())
        });
        let own = dialect.and_then(|dialect| dialect.credential(head)).map(String::into_bytes);
        let own = single_credential(own.as_deref().into_iter(), Credential::Key);
        let mut first = Credential::Missing;
        for credential in keys.chain([single_credential(bearer, Credential::Bearer), own]) {
            match (credential, &first) {
                (Credential::Multiple, _) => return Credential::Multiple,
                (found @ (Credential::Key(_) | Credential::Bearer(_)), Credential::Missing) => {
                    first = found;
                }
                (Credential::Missing | Credential::Key(_) | Credential::Bearer(_), _) => {}
            }
        }
        first
    }

    /// Examines `credential` from `peer`. `fetched` is true after the issuer's keys were fetched.
    fn judge(&self, credential: &Credential, peer: IpAddr, fetched: bool) -> CredentialVerdict {
        let secret = match credential {
            // A request without a credential is not a guess.
            Credential::Missing => {
                return CredentialVerdict::Rejected(RequestSender::Unauthenticated {
                    had_credential: false,
                });
            }
            Credential::Multiple => None,
            Credential::Key(secret) | Credential::Bearer(secret) => Some((secret, digest(secret))),
        };
        // The lock is held during the check, so that concurrent requests cannot exceed the limit.
        let mut throttle = lock_mutex(&self.throttle);
        let now = Instant::now();
        if !throttle.try_check(peer, now) {
            return CredentialVerdict::Throttled;
        }
        if let Some((secret, digest)) = secret {
            match self.keys.find(&digest) {
                KeyLookup::Owner(caller) => return CredentialVerdict::Known(caller),
                // An expired key was issued once, so it is not a guess.
                KeyLookup::NotValidNow => {
                    return CredentialVerdict::Rejected(RequestSender::Unauthenticated {
                        had_credential: true,
                    });
                }
                KeyLookup::Unknown => {}
            }
            match self.judge_token(credential, secret, &digest, fetched) {
                Some(TokenVerdict::Valid(caller)) => {
                    let bearer = std::str::from_utf8(secret).ok().map(BearerToken::new);
                    return CredentialVerdict::Known(Caller { bearer, ..caller });
                }
                Some(TokenVerdict::NotValidNow | TokenVerdict::KeysUnavailable) => {
                    return CredentialVerdict::Rejected(RequestSender::Unauthenticated {
                        had_credential: true,
                    });
                }
                Some(TokenVerdict::NeedsKeys(token)) => return CredentialVerdict::NeedsKeys(token),
                Some(TokenVerdict::Rejected(why)) => {
                    tracing::info!("refused a token from {peer}: {why}");
                }
                None => {}
            }
        }
        let count = throttle.record_failure(peer, now);
        drop(throttle);
        if count == FAILURES_MAX {
            tracing::warn!(
                "{peer} sent {FAILURES_MAX} invalid credentials within a minute; throttling it"
            );
        }
        CredentialVerdict::Rejected(match count >= FAILURES_MAX {
            true => THROTTLED_SENDER,
            false if secret.is_none() => RequestSender::MultipleCredentials,
            false => RequestSender::Unauthenticated { had_credential: true },
        })
    }

    /// Examines `secret` as a token, if it was in `Authorization` and has the form of a token.
    fn judge_token(
        &self,
        credential: &Credential,
        secret: &[u8],
        digest: &KeyDigest,
        fetched: bool,
    ) -> Option<TokenVerdict> {
        let tokens = self.tokens.as_ref()?;
        match credential {
            Credential::Bearer(_) if TokenValidator::is_token(secret) => {
                Some(tokens.judge(secret, digest, fetched))
            }
            Credential::Bearer(_)
            | Credential::Key(_)
            | Credential::Multiple
            | Credential::Missing => None,
        }
    }
}

/// A credential in a request.
enum Credential {
    Missing,
    /// Credential from a header that carries only keys.
    Key(Vec<u8>),
    /// Credential from `Authorization`, either a key or a token.
    Bearer(Vec<u8>),
    /// Several credentials in one header. None of them is examined.
    Multiple,
}

/// Returns the single credential of one header.
fn single_credential<'k>(
    keys: impl Iterator<Item = &'k [u8]>,
    one: fn(Vec<u8>) -> Credential,
) -> Credential {
    let mut keys = keys.filter(|key| !key.is_empty());
    match (keys.next(), keys.next()) {
        (None, _) => Credential::Missing,
        (Some(key), None) => one(key.to_owned()),
        (Some(_), Some(_)) => Credential::Multiple,
    }
}

/// Result of examining a credential.
enum CredentialVerdict {
    Known(Caller),
    /// The credential is rejected.
    Rejected(RequestSender),
    /// The address has too many failed attempts. The credential was not examined.
    Throttled,
    /// The credential is a token, and the keys of its issuer must be fetched first.
    NeedsKeys(PendingToken),
}
