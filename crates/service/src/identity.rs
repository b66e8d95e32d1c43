//! Authenticates HTTP callers by API key or token, and throttles addresses with many failed
//! attempts.

mod keys;
mod tokens;
mod jws;
mod jwks;
mod issuer;
mod challenge;
mod client_address;
mod throttle;
#[cfg(any(fuzzing, test))]
pub(crate) mod fuzzing;
pub(crate) mod tls;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use toolgate_contract::{
    BearerToken, Caller, FrameMetadata, Reply, lock_mutex, lock_read, lock_write,
};
use toolgate_dialects::Dialect;
use toolgate_transports::http::RequestSenderIdentity;

use crate::config::{ApiKeyDigest, Config, digest};
use challenge::TokenChallenge;
use client_address::TrustedProxies;
use keys::{ApiKeyLookupResult, ApiKeyRing, StagedApiKeys};
use throttle::{AuthFailureThrottle, FAILURE_WINDOW, FAILURES_MAX, REJECTION_DELAY};
use tokens::{PendingToken, TokenCheckResult, TokenValidator};

/// Header that may always contain an API key, regardless of the settings.
const KEY_HEADER: &str = "x-api-key";
/// Identity of a sender with an unknown credential whose address has too many failed attempts.
const THROTTLED_SENDER: RequestSenderIdentity =
    RequestSenderIdentity::Throttled { retry_after: FAILURE_WINDOW };

/// Authenticates HTTP requests. If neither API keys nor issuers of tokens are configured, every
/// caller is accepted.
///
/// Keys are stored as digests. A received key is hashed and compared in full, so neither memory nor
/// timing reveals a key.
pub(crate) struct Authenticator {
    keys: ApiKeyRing,
    rules: RwLock<Arc<CredentialRules>>,
    throttle: Mutex<AuthFailureThrottle>,
}

/// Rules for finding a credential in a request and for verifying a token.
struct CredentialRules {
    tokens: Option<Arc<TokenValidator>>,
    challenge: Option<TokenChallenge>,
    /// Lower-case names of headers that may contain an API key, apart from `Authorization`.
    headers: Vec<String>,
    proxies: TrustedProxies,
}

/// API keys and credential rules of a changed configuration. They are checked, but not in force
/// yet.
pub(crate) struct StagedCredentials {
    keys: StagedApiKeys,
    rules: CredentialRules,
}

impl Authenticator {
    /// Loads the API keys and token issuers of `config`.
    ///
    /// # Errors
    /// The key file cannot be read, or other users could have written it.
    pub(crate) fn from_config(config: &Config) -> anyhow::Result<Self> {
        let keys = ApiKeyRing::from_config(config)?;
        let tokens = TokenValidator::from_config(config).map(Arc::new);
        let rules = CredentialRules::from_config(config, tokens)?;
        Ok(Self { keys, rules: RwLock::new(Arc::new(rules)), throttle: Mutex::default() })
    }

    /// Checks the API keys and token issuers of `config` without putting them into force. Cached
    /// tokens stay verified, unless `other_issuers` says that the issuers have changed.
    ///
    /// # Errors
    /// Fails if a key or an address of a proxy is invalid.
    pub(crate) fn prepare(
        &self,
        config: &Config,
        other_issuers: bool,
    ) -> anyhow::Result<StagedCredentials> {
        let tokens = match other_issuers {
            true => TokenValidator::from_config(config).map(Arc::new),
            false => self.rules().tokens.clone(),
        };
        let rules = CredentialRules::from_config(config, tokens)?;
        Ok(StagedCredentials { keys: StagedApiKeys::parse(config)?, rules })
    }

    /// Puts the API keys and credential rules `next` into force.
    pub(crate) fn replace(&self, next: StagedCredentials) {
        self.keys.replace_configured(next.keys);
        let mut rules = lock_write(&self.rules);
        if rules.tokens.is_some() {
            // If issuers are removed, requests still need a credential.
            self.keys.require();
        }
        *rules = Arc::new(next.rules);
    }

    fn rules(&self) -> Arc<CredentialRules> {
        lock_read(&self.rules).clone()
    }

    /// Returns true if HTTP requests need a credential.
    pub(crate) fn requires_credential(&self) -> bool {
        // Checked first, because this rereads the key file.
        self.keys.are_required() || self.rules().tokens.is_some()
    }

    /// Returns the OAuth protected resource metadata if the request `head` asks for the metadata,
    /// which needs no credential. Returns `None` for all other requests.
    pub(crate) fn metadata_page(&self, head: &FrameMetadata) -> Option<Reply> {
        let rules = self.rules();
        let challenge = rules.challenge.as_ref().filter(|it| it.serves_path(head.path()))?;
        Some(challenge.metadata_reply(head))
    }

    /// Returns true if `path` is a path of the OAuth protected resource metadata.
    pub(crate) fn has_metadata_at(&self, path: &str) -> bool {
        self.rules().challenge.as_ref().is_some_and(|challenge| challenge.serves_path(path))
    }

    /// Returns true if a token issuer is configured, so that [`Authenticator::add_challenge`] may
    /// add an OAuth challenge.
    pub(crate) fn has_challenge(&self) -> bool {
        self.rules().challenge.is_some()
    }

    /// Adds the URL of the OAuth metadata to the `WWW-Authenticate` header of a `reply` that
    /// demands a token. Returns any other reply unchanged.
    pub(crate) fn add_challenge(&self, reply: Reply, head: &FrameMetadata) -> Reply {
        match &self.rules().challenge {
            Some(challenge) => challenge.add_challenge(reply, head),
            None => reply,
        }
    }

    /// Returns true if the API key with this digest, which was accepted earlier, is still valid.
    /// Also returns true for the digest of a token, because the server does not store these
    /// digests.
    pub(crate) fn is_valid_now(&self, digest: &ApiKeyDigest) -> bool {
        match self.keys.find(digest) {
            ApiKeyLookupResult::Owner(_) => true,
            ApiKeyLookupResult::NotValidNow => false,
            ApiKeyLookupResult::Unknown => self.rules().tokens.is_some(),
        }
    }

    /// Authenticates the HTTP request `head` from the address `peer`. `dialect` serves the path of
    /// the request, if any does.
    ///
    /// A rejection of an unknown credential is delayed by 100 ms to slow down guessing.
    pub(crate) async fn authenticate(
        &self,
        dialect: Option<&dyn Dialect>,
        head: &FrameMetadata,
        peer: IpAddr,
    ) -> RequestSenderIdentity {
        if dialect.is_some_and(|dialect| dialect.is_public(head)) {
            return RequestSenderIdentity::Anonymous;
        }
        if !self.requires_credential() {
            return RequestSenderIdentity::Known(Caller::anonymous());
        }
        let rules = self.rules();
        let credential = rules.find_credential(dialect, head);
        let client = rules.proxies.client_address(peer, head);
        let mut verdict = self.judge(&rules, &credential, client, false);
        if let CredentialCheckResult::NeedsKeys(token) = verdict {
            token.refresh_keys().await;
            verdict = self.judge(&rules, &credential, client, true);
        }
        match verdict {
            CredentialCheckResult::Known(caller) => RequestSenderIdentity::Known(caller),
            CredentialCheckResult::Rejected(sender) => {
                tokio::time::sleep(REJECTION_DELAY).await;
                sender
            }
            // The issuer was asked already, so the token is judged by the keys at hand.
            CredentialCheckResult::NeedsKeys(_) => {
                RequestSenderIdentity::Unauthenticated { had_credential: true }
            }
        }
    }

    /// Examines `credential`, which the address `client` sent. `fetched` is true if the signing
    /// keys of the token's issuer were already fetched for this request.
    ///
    /// A valid credential is always accepted. Only an unknown credential counts as a failed attempt
    /// of `client`.
    fn judge(
        &self,
        rules: &CredentialRules,
        credential: &RequestCredential,
        client: IpAddr,
        fetched: bool,
    ) -> CredentialCheckResult {
        let (verdict, guess) = match credential {
            RequestCredential::Missing => {
                let sender = RequestSenderIdentity::Unauthenticated { had_credential: false };
                return CredentialCheckResult::Rejected(sender);
            }
            RequestCredential::Multiple => (None, RequestSenderIdentity::MultipleCredentials),
            RequestCredential::Key(secret) | RequestCredential::Bearer(secret) => (
                self.examine(rules, credential, secret, client, fetched),
                RequestSenderIdentity::Unauthenticated { had_credential: true },
            ),
        };
        verdict.unwrap_or_else(|| {
            CredentialCheckResult::Rejected(match self.is_throttled_after_guess(client) {
                true => THROTTLED_SENDER,
                false => guess,
            })
        })
    }

    /// Looks `secret` up among the API keys, and otherwise verifies the secret as a token. Returns
    /// `None` if the secret is neither a known key nor a properly signed token.
    fn examine(
        &self,
        rules: &CredentialRules,
        credential: &RequestCredential,
        secret: &[u8],
        client: IpAddr,
        fetched: bool,
    ) -> Option<CredentialCheckResult> {
        // A revoked or expired credential is not a guess, because the caller was once given it.
        let not_valid_now =
            CredentialCheckResult::Rejected(RequestSenderIdentity::Unauthenticated {
                had_credential: true,
            });
        let digest = digest(secret);
        match self.keys.find(&digest) {
            ApiKeyLookupResult::Owner(caller) => return Some(CredentialCheckResult::Known(caller)),
            ApiKeyLookupResult::NotValidNow => return Some(not_valid_now),
            ApiKeyLookupResult::Unknown => {}
        }
        match rules.check_bearer_token(credential, secret, &digest, fetched)? {
            TokenCheckResult::Valid(caller) => {
                let bearer = std::str::from_utf8(secret).ok().map(BearerToken::new);
                Some(CredentialCheckResult::Known(Caller { bearer, ..caller }))
            }
            TokenCheckResult::NotValidNow | TokenCheckResult::KeysUnavailable => {
                Some(not_valid_now)
            }
            TokenCheckResult::NeedsKeys(token) => Some(CredentialCheckResult::NeedsKeys(token)),
            TokenCheckResult::Rejected(why) => {
                tracing::info!("refused a token from {client}: {why}");
                None
            }
        }
    }

    /// Records a failed authentication of `client`, and logs it. Returns true if `client` has too
    /// many failures and is throttled.
    fn is_throttled_after_guess(&self, client: IpAddr) -> bool {
        let count = lock_mutex(&self.throttle).record_failure(client, Instant::now());
        // After that, an address is throttled, so it cannot fill the log.
        match count {
            0..FAILURES_MAX => tracing::warn!(
                "refused an unknown key or token from {client} (attempt {count} of {FAILURES_MAX} \
                 within a minute)"
            ),
            FAILURES_MAX => tracing::warn!(
                "{client} sent {FAILURES_MAX} invalid credentials within a minute, so the server \
                 throttles this client"
            ),
            _ => {}
        }
        count >= FAILURES_MAX
    }
}

impl CredentialRules {
    fn from_config(config: &Config, tokens: Option<Arc<TokenValidator>>) -> anyhow::Result<Self> {
        let named = config.contracts.key_headers.iter().map(|name| name.to_ascii_lowercase());
        let mut headers = vec![KEY_HEADER.to_owned()];
        headers.extend(named.filter(|name| name != KEY_HEADER));
        let challenge = TokenChallenge::from_config(config);
        let proxies = TrustedProxies::from_config(&config.server)?;
        Ok(Self { tokens, challenge, headers, proxies })
    }

    /// Returns the first credential in the request `head`. The server examines only this
    /// credential, so that a request counts as one attempt.
    fn find_credential(
        &self,
        dialect: Option<&dyn Dialect>,
        head: &FrameMetadata,
    ) -> RequestCredential {
        let keys = self
            .headers
            .iter()
            .map(|name| single_credential(head.header(name), RequestCredential::Key));
        let bearer = head.header("authorization").filter_map(|value| {
            let (scheme, secret) = value.split_at_checked("bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| secret.trim_ascii())
        });
        let own = dialect.and_then(|dialect| dialect.credential(head)).map(String::into_bytes);
        let own = single_credential(own.as_deref().into_iter(), RequestCredential::Key);
        let mut first = RequestCredential::Missing;
        for credential in keys.chain([single_credential(bearer, RequestCredential::Bearer), own]) {
            match (credential, &first) {
                (RequestCredential::Multiple, _) => return RequestCredential::Multiple,
                (
                    found @ (RequestCredential::Key(_) | RequestCredential::Bearer(_)),
                    RequestCredential::Missing,
                ) => {
                    first = found;
                }
                (
                    RequestCredential::Missing
                    | RequestCredential::Key(_)
                    | RequestCredential::Bearer(_),
                    _,
                ) => {}
            }
        }
        first
    }

    /// Examines `secret` as a token. Returns `None` if the secret does not look like a token, or if
    /// `credential` does not come from the header `Authorization`.
    fn check_bearer_token(
        &self,
        credential: &RequestCredential,
        secret: &[u8],
        digest: &ApiKeyDigest,
        fetched: bool,
    ) -> Option<TokenCheckResult> {
        let tokens = self.tokens.as_ref()?;
        match credential {
            RequestCredential::Bearer(_) if TokenValidator::is_token(secret) => {
                Some(tokens.judge(secret, digest, fetched))
            }
            RequestCredential::Bearer(_)
            | RequestCredential::Key(_)
            | RequestCredential::Multiple
            | RequestCredential::Missing => None,
        }
    }
}

/// A credential in an HTTP request, which is not examined yet.
enum RequestCredential {
    Missing,
    /// Credential from a header that contains only API keys, such as `X-API-Key`.
    Key(Vec<u8>),
    /// Credential from the header `Authorization`, which is either an API key or a token.
    Bearer(Vec<u8>),
    /// Several credentials in one header. The server does not examine them.
    Multiple,
}

/// Returns the credential in `keys`, the values of one header, after `one` has converted it.
/// Returns [`RequestCredential::Multiple`] if there are several values.
fn single_credential<'k>(
    keys: impl Iterator<Item = &'k [u8]>,
    one: fn(Vec<u8>) -> RequestCredential,
) -> RequestCredential {
    let mut keys = keys.filter(|key| !key.is_empty());
    match (keys.next(), keys.next()) {
        (None, _) => RequestCredential::Missing,
        (Some(key), None) => one(key.to_owned()),
        (Some(_), Some(_)) => RequestCredential::Multiple,
    }
}

/// Result of examining a credential.
enum CredentialCheckResult {
    Known(Caller),
    /// The credential is rejected. The sender gets this identity.
    Rejected(RequestSenderIdentity),
    /// The credential is a token, and the signing keys of its issuer must be fetched first.
    NeedsKeys(PendingToken),
}
