//! Authorizes requests to upstreams with OAuth: discovers, requests, stores and renews tokens.
//!
//! A token is sent only to its upstream. The credentials of toolgate's own clients are never
//! forwarded.

mod steps;
mod challenge;
mod fetch;
mod discovery;
mod tokens;
mod assertion;
mod sign_in;
mod access;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use toolgate_contract::{
    BearerToken, KeepActiveGuard, fill_variables, lock_mutex, lock_read, lock_write,
};

pub use access::{PendingSignIn, UpstreamOAuthAccess};
pub(crate) use challenge::{BearerChallenge, challenges};
pub use steps::AuthorizationStepCallback;

use crate::address::http_url;
use crate::settings::{OAuthGrant, OAuthSettings};
use crate::world::UpstreamSystemAccess;
use assertion::AssertionSigningKey;
use discovery::DiscoveredAuthorizationServer;
use fetch::OAuthRequestClient;
use steps::AuthorizationStepReporter;
use tokens::{OAuthClient, OAuthClientCredential, OAuthTokens, TokenRequestDenied};

/// Pause after a failed token request, before the next token request.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// Interval at which the stored sign-in is checked for changes.
const STORED_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Token type of both tokens in an exchange (RFC 8693).
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";

/// OAuth credentials for one upstream. They belong to a person, to this server, or to one caller.
pub(crate) struct UpstreamCredentials {
    upstream: String,
    url: String,
    settings: OAuthSettings,
    /// Credential that proves the client's identity.
    credential: OAuthClientCredential,
    /// True if the upstream's settings have an `oauth` table.
    is_configured: bool,
    fetcher: OAuthRequestClient,
    world: Arc<dyn UpstreamSystemAccess>,
    /// Token of the caller, if it is exchanged for a token of the upstream.
    caller: Option<BearerToken>,
    token_in_use: RwLock<Option<Arc<ActiveOAuthToken>>>,
    /// True if the stored result of a person's sign-in was read.
    has_read_stored: AtomicBool,
    /// Time of the last check of the stored sign-in for changes.
    stored_checked_at: Mutex<Option<Instant>>,
    /// True if the token in use could not be stored, so that the stored token is outdated.
    is_storage_stale: AtomicBool,
    /// State of token requests. The lock admits one request at a time.
    requests: tokio::sync::Mutex<TokenRequestState>,
}

/// An access token in use, with its header.
struct ActiveOAuthToken {
    tokens: OAuthTokens,
    header: HeaderValue,
}

/// State of token requests: results of discovery and of failed requests.
#[derive(Default)]
struct TokenRequestState {
    server: Option<DiscoveredAuthorizationServer>,
    /// All scopes that the upstream has asked for.
    scopes_wanted: Vec<String>,
    last_failure: Option<(Instant, String)>,
}

/// The stored result of a person's sign-in.
#[derive(Clone, Serialize, Deserialize)]
struct StoredSignIn {
    found: DiscoveredAuthorizationServer,
    client: OAuthClient,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<OAuthTokens>,
    /// Scopes that the upstream asked for and the stored token lacks.
    #[serde(default)]
    wanted: Vec<String>,
}

impl UpstreamCredentials {
    /// Creates OAuth credentials for `upstream` at `url`, on behalf of `caller` if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or a key is invalid, or a variable is not set.
    pub(crate) fn new(
        (upstream, url, private_network): (&str, &str, bool),
        settings: Option<&OAuthSettings>,
        world: Arc<dyn UpstreamSystemAccess>,
        caller: Option<BearerToken>,
    ) -> Result<Self, String> {
        // The metadata of a WebSocket upstream is found at its HTTP URL.
        let url = http_url(url);
        let is_configured = settings.is_some();
        let mut settings = settings.cloned().unwrap_or_default();
        let OAuthSettings { client_id, client_secret, client_key, client_key_id, .. } =
            &mut settings;
        let texts = [client_id, client_secret, client_key, client_key_id];
        for text in texts.into_iter().flatten() {
            *text = fill_variables(text, |name| world.variable(name))?;
        }
        let credential = match (&settings.client_secret, &settings.client_key) {
            (_, Some(pem)) => OAuthClientCredential::Key(Arc::new(AssertionSigningKey::read(
                pem,
                settings.client_key_id.clone(),
            )?)),
            (Some(secret), None) => OAuthClientCredential::Secret(secret.clone()),
            (None, None) => OAuthClientCredential::Nothing,
        };
        let fetcher = OAuthRequestClient::new(
            world.clone(),
            &url,
            settings.issuer.as_deref(),
            private_network,
        )?;
        let token_in_use = RwLock::default();
        let requests = tokio::sync::Mutex::default();
        let stored_checked_at = Mutex::default();
        let is_storage_stale = AtomicBool::new(false);
        let has_read_stored = AtomicBool::new(settings.grant != OAuthGrant::AuthorizationCode);
        let upstream = upstream.to_owned();
        Ok(Self {
            upstream,
            url,
            settings,
            credential,
            is_configured,
            fetcher,
            world,
            caller,
            token_in_use,
            has_read_stored,
            stored_checked_at,
            is_storage_stale,
            requests,
        })
    }

    /// Returns the `Authorization` header for requests to the upstream, if there is a token.
    ///
    /// # Errors
    ///
    /// Returns the reason and the fix if a token is needed but missing.
    pub(crate) async fn header(self: &Arc<Self>) -> Result<Option<HeaderValue>, String> {
        self.drop_if_not_stored();
        match self.token_in_use() {
            Some(in_use) if in_use.tokens.is_valid() => return Ok(Some(in_use.header.clone())),
            // Without a token, discovery starts only after the upstream has refused a request.
            None if self.has_read_stored.load(Ordering::Acquire) => return Ok(None),
            Some(_) | None => {}
        }
        let this = self.clone();
        Box::pin(run_to_completion(async move { this.obtain_header().await })).await
    }

    async fn obtain_header(&self) -> Result<Option<HeaderValue>, String> {
        let mut state = self.requests.lock().await;
        let in_use = self.token_in_use();
        if let Some(in_use) = in_use.as_ref().filter(|in_use| in_use.tokens.is_valid()) {
            return Ok(Some(in_use.header.clone()));
        }
        match self.settings.grant {
            OAuthGrant::AuthorizationCode => {
                let header = self.stored_or_renewed(None).await;
                self.has_read_stored.store(true, Ordering::Release);
                header
            }
            OAuthGrant::ClientCredentials | OAuthGrant::TokenExchange => self
                .request_token(&mut state, &mut AuthorizationStepReporter::default())
                .await
                .map(Some),
        }
    }

    /// Obtains another token after the upstream refused the header `used` with `status` and
    /// `challenge`.
    ///
    /// # Errors
    /// Returns the reason and the fix if there is no other token.
    pub(crate) async fn replace_refused(
        self: &Arc<Self>,
        used: Option<&HeaderValue>,
        status: u16,
        challenge: BearerChallenge,
    ) -> Result<(), String> {
        let this = self.clone();
        let used = used.cloned();
        let obtained = async move { this.obtain_other(used.as_ref(), status, &challenge).await };
        // Boxed, because every request would otherwise reserve space for this future.
        Box::pin(run_to_completion(obtained)).await
    }

    async fn obtain_other(
        &self,
        used: Option<&HeaderValue>,
        status: u16,
        challenge: &BearerChallenge,
    ) -> Result<(), String> {
        let mut state = self.requests.lock().await;
        let in_use = self.token_in_use();
        if in_use
            .as_ref()
            .is_some_and(|in_use| in_use.tokens.is_valid() && Some(&in_use.header) != used)
        {
            // Another request was refused before and has already renewed the token.
            return Ok(());
        }
        let wants_more = status == 403 && challenge.lacks_scope();
        if status == 403 && !wants_more {
            return Err("toolgate's credentials do not permit this request".to_owned());
        }
        if self.settings.grant == OAuthGrant::AuthorizationCode {
            if wants_more {
                return Err(self.want_scopes(&challenge.scopes).await);
            }
            return match self.stored_or_renewed(used).await? {
                Some(_) => Ok(()),
                None if self.is_configured => Err(self.sign_in("it requires a sign-in")),
                None => Err(format!(
                    "it requires authentication: set a key in `headers`, or run `toolgate login \
                     {}`",
                    self.upstream
                )),
            };
        }
        let mut wanted = state.scopes_wanted.clone();
        add_scopes(&mut wanted, &challenge.scopes);
        if wants_more && wanted.len() == state.scopes_wanted.len() {
            return Err(format!("it requires more than the requested scopes {wanted:?}"));
        }
        // The upstream may have moved to another authorization server.
        if state.server.is_none() || (used.is_some() && !wants_more) {
            self.check_pause(&state)?;
            let steps = &mut AuthorizationStepReporter::default();
            let fetcher = &self.fetcher;
            let settings = &self.settings;
            let found = discovery::discover(fetcher, &self.url, challenge, settings, steps).await;
            // The old server remains in use until another is discovered.
            state.server = Some(found.map_err(|why| record_failure(&mut state, why))?);
        }
        add_scopes(&mut wanted, state.server.as_ref().map_or(&[], |found| &found.scopes));
        let before = std::mem::replace(&mut state.scopes_wanted, wanted);
        let granted =
            self.request_token(&mut state, &mut AuthorizationStepReporter::default()).await;
        if granted.is_err() {
            // Scopes that the server does not grant are not requested again.
            state.scopes_wanted = before;
        }
        granted.map(drop)
    }

    fn token_in_use(&self) -> Option<Arc<ActiveOAuthToken>> {
        lock_read(&self.token_in_use).clone()
    }

    /// Drops the token in use if another process has changed the stored sign-in of the person.
    /// Checks the stored sign-in at most every two seconds.
    fn drop_if_not_stored(&self) {
        let Some(in_use) = self.token_in_use() else { return };
        let is_sign_in = self.settings.grant == OAuthGrant::AuthorizationCode;
        if !is_sign_in || self.is_storage_stale.load(Ordering::Acquire) {
            return;
        }
        {
            let mut checked_at = lock_mutex(&self.stored_checked_at);
            if checked_at.is_some_and(|at| at.elapsed() < STORED_CHECK_INTERVAL) {
                return;
            }
            *checked_at = Some(Instant::now());
        }
        let stored = self.stored().and_then(|stored| stored.tokens);
        if stored.is_none_or(|stored| stored.access != in_use.tokens.access) {
            let mut current = lock_write(&self.token_in_use);
            // Another token may be in use by now.
            current.take_if(|current| Arc::ptr_eq(current, &in_use));
            self.has_read_stored.store(false, Ordering::Release);
        }
    }

    fn use_tokens(&self, tokens: OAuthTokens) -> Result<HeaderValue, String> {
        let header = tokens.header()?;
        let in_use = Arc::new(ActiveOAuthToken { tokens, header: header.clone() });
        *lock_write(&self.token_in_use) = Some(in_use);
        Ok(header)
    }

    /// Returns the error of the last failed token request, while the pause after this request
    /// lasts.
    fn check_pause(&self, state: &TokenRequestState) -> Result<(), String> {
        match &state.last_failure {
            Some((at, why)) if at.elapsed() < FAILURE_PAUSE => Err(why.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// Requests a token for this server, or exchanges the caller's token for a token of the
    /// upstream. Fails with the reason and the fix.
    async fn request_token(
        &self,
        state: &mut TokenRequestState,
        steps: &mut AuthorizationStepReporter<'_>,
    ) -> Result<HeaderValue, String> {
        self.check_pause(state)?;
        let OAuthSettings { client_id, audience, .. } = &self.settings;
        let found = state.server.as_ref().ok_or("the authorization server is unknown")?;
        let id = client_id.clone().unwrap_or_default();
        let client = OAuthClient::with_id(&found.server, id, &self.credential);
        let mut fields = match &self.caller {
            None => vec![("grant_type", "client_credentials")],
            Some(caller) => vec![
                ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
                ("subject_token", caller.as_str()),
                ("subject_token_type", ACCESS_TOKEN),
                ("requested_token_type", ACCESS_TOKEN),
            ],
        };
        fields.push(("resource", &found.resource));
        if let (Some(_), Some(audience)) = (&self.caller, audience) {
            fields.push(("audience", audience));
        }
        let fetcher = &self.fetcher;
        let server = &found.server;
        let asked =
            tokens::request_tokens(fetcher, server, &client, &fields, &state.scopes_wanted).await;
        let outcome = match &asked {
            Ok(tokens) => Ok(describe_tokens(tokens)),
            Err(denied) => Err(denied.reason.clone()),
        };
        steps.report("token", &outcome);
        match asked {
            Ok(tokens) => {
                state.last_failure = None;
                self.use_tokens(tokens)
            }
            Err(denied) => Err(record_failure(state, denied.reason)),
        }
    }

    /// Returns the stored token of a person, renewed if it is expired or equals the refused token
    /// `used`.
    async fn stored_or_renewed(
        &self,
        used: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>, String> {
        let usable = |stored: &StoredSignIn| -> Option<(OAuthTokens, HeaderValue)> {
            let tokens = stored.tokens.clone().filter(OAuthTokens::is_valid)?;
            let header = tokens.header().ok().filter(|header| Some(header) != used)?;
            Some((tokens, header))
        };
        if self.stored().is_none() {
            // A person may have signed in at another server.
            self.world.fetch_secret(&self.storage_key()).await;
        }
        let Some(stored) = self.stored() else { return Ok(None) };
        if let Some((tokens, _)) = usable(&stored) {
            return self.use_tokens(tokens).map(Some);
        }
        // Another server may renew it at the same time, and a refresh token may work only once.
        let _lock = self.lock_stored().await?;
        let Some(stored) = self.stored() else { return Ok(None) };
        if let Some((tokens, _)) = usable(&stored) {
            return self.use_tokens(tokens).map(Some);
        }
        match self.renew(stored).await {
            Ok(tokens) => self.use_tokens(tokens).map(Some),
            Err(TokenRequestDenied { is_grant_invalid: false, reason: why }) => Err(why),
            Err(TokenRequestDenied { is_grant_invalid: true, reason: why }) => {
                Err(self.sign_in(&why))
            }
        }
    }

    /// Requests new tokens with the refresh token of `stored`, stores them, and returns them. Fails
    /// if the authorization server refuses.
    async fn renew(&self, mut stored: StoredSignIn) -> Result<OAuthTokens, TokenRequestDenied> {
        let expired =
            |why: &str| TokenRequestDenied { is_grant_invalid: true, reason: why.to_owned() };
        let before = stored.tokens.take().ok_or_else(|| expired("not signed in"))?;
        let Some(refresh) = before.refresh else {
            return Err(expired("the token has expired and cannot be renewed"));
        };
        let fields = [
            ("grant_type", "refresh_token"),
            ("refresh_token", &refresh),
            ("resource", &stored.found.resource),
        ];
        let OAuthSettings { issuer, client_id, .. } = &self.settings;
        if issuer
            .as_ref()
            .is_some_and(|issuer| !discovery::is_same_issuer(issuer, &stored.found.server.issuer))
        {
            return Err(expired("the configured authorization server has changed"));
        }
        if client_id.as_ref() == Some(&stored.client.id) {
            // The settings may hold a new secret or key for the client.
            stored.client =
                OAuthClient::with_id(&stored.found.server, stored.client.id, &self.credential);
        }
        if stored.client.lacks_its_key() {
            return Err(expired("the sign-in belongs to another client than `oauth.client_id`"));
        }
        let server = &stored.found.server;
        let response =
            tokens::request_tokens(&self.fetcher, server, &stored.client, &fields, &[]).await;
        if response.as_ref().is_err_and(|denied| denied.is_grant_invalid) {
            // The spent token is dropped, but the client registration is kept.
            let _ = self.store(&stored).await;
        }
        let mut tokens = response?;
        tokens.refresh = tokens.refresh.or(Some(refresh));
        if tokens.scopes.is_empty() {
            tokens.scopes = before.scopes;
        }
        stored.tokens = Some(tokens.clone());
        let saved = self.store(&stored).await;
        self.is_storage_stale.store(saved.is_err(), Ordering::Release);
        if let Err(why) = saved {
            // The refresh token is spent, so these tokens are all there is.
            tracing::warn!("the renewed sign-in to `{}` could not be stored: {why}", self.upstream);
        }
        Ok(tokens)
    }

    /// Stores that the next sign-in must also request `scopes`. Returns an instruction to sign in,
    /// for the error.
    async fn want_scopes(&self, scopes: &[String]) -> String {
        if let Ok(_lock) = self.lock_stored().await
            && let Some(mut stored) = self.stored()
        {
            add_scopes(&mut stored.wanted, scopes);
            let _ = self.store(&stored).await;
        }
        self.sign_in(&format!("it also requires the scopes `{}`", scopes.join(" ")))
    }

    fn sign_in(&self, why: &str) -> String {
        format!("{why}: run `toolgate login {}`", self.upstream)
    }

    /// Returns the key under which the sign-in is stored. The key includes the upstream's URL, so
    /// that a token is never sent to a different URL.
    fn storage_key(&self) -> String {
        let at = blake3::hash(self.url.as_bytes()).to_hex();
        format!("{}-{}", self.upstream, &at[..16])
    }

    fn stored(&self) -> Option<StoredSignIn> {
        serde_json::from_str(&self.world.secret(&self.storage_key())?).ok()
    }

    /// Stores `sign_in` and passes it to other servers that share it. The caller must hold the lock
    /// of the stored sign-in.
    async fn store(&self, sign_in: &StoredSignIn) -> Result<(), String> {
        let text = serde_json::to_string(sign_in).map_err(|err| err.to_string())?;
        let key = self.storage_key();
        self.world.keep_secret(&key, Some(&text))?;
        self.world.share_secret(&key).await;
        Ok(())
    }

    async fn lock_stored(&self) -> Result<KeepActiveGuard, String> {
        self.world.hold_secret(&self.storage_key()).await
    }
}

/// Runs `work` to its end even if the caller stops waiting. A refresh token may work only once, so
/// the result must be stored.
async fn run_to_completion<T: Send + 'static>(
    work: impl Future<Output = Result<T, String>> + Send + 'static,
) -> Result<T, String> {
    let done = toolgate_net::spawn_task(work).await;
    done.unwrap_or_else(|err| Err(format!("the token request was aborted: {err}")))
}

fn record_failure(state: &mut TokenRequestState, why: String) -> String {
    state.last_failure = Some((Instant::now(), why.clone()));
    why
}

/// Maximum number of scopes that are requested for one upstream.
const SCOPES_MAX: usize = 100;

/// Adds the scopes in `more` that are not yet in `all`.
fn add_scopes(all: &mut Vec<String>, more: &[String]) {
    for one in more {
        if all.len() < SCOPES_MAX && !all.contains(one) {
            all.push(one.clone());
        }
    }
}

/// Describes `tokens` in a few words without secrets.
fn describe_tokens(tokens: &OAuthTokens) -> String {
    let left = match tokens.remaining() {
        Some(left) => format!("valid for {} s", left.as_secs()),
        None => "valid until the server refuses it".to_owned(),
    };
    let renewed = if tokens.refresh.is_some() { ", then renewed" } else { "" };
    let scopes = match tokens.scopes.is_empty() {
        true => String::new(),
        false => format!(", with the scopes `{}`", tokens.scopes.join(" ")),
    };
    format!("{left}{renewed}{scopes}")
}
