//! Authorizes requests to upstreams with OAuth: discovers, requests, stores and renews tokens.
//!
//! Tokens go to their upstream only. The credentials of our own clients are never forwarded.

mod settings;
mod steps;
mod challenge;
mod fetch;
mod discovery;
mod tokens;
mod assertion;
mod signing_in;
mod access;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Bearer, Hold};

pub use access::{Access, Pending};
pub(crate) use challenge::Challenge;
pub use settings::{Grant, OAuth};
pub use steps::Told;

use crate::wires::site::over_http;
use crate::world::World;
use assertion::Key;
use discovery::Found;
use fetch::Fetcher;
use steps::Steps;
use tokens::{Client, Denied, Proof, Tokens};

/// Pause after a failed token request.
const LEFT_ALONE: Duration = Duration::from_secs(5);
/// Interval at which the stored sign-in is checked for changes.
const LOOKS: Duration = Duration::from_secs(2);
/// Token type of both tokens in an exchange (RFC 8693).
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";

/// OAuth credentials for one upstream: of a person, of this server, or of one caller.
pub(crate) struct Credentials {
    upstream: String,
    url: String,
    settings: OAuth,
    /// Credential that proves the client's identity.
    proof: Proof,
    /// True if the settings have an `oauth` table.
    is_meant: bool,
    fetcher: Fetcher,
    world: Arc<dyn World>,
    /// Caller whose token is exchanged.
    caller: Option<Bearer>,
    now: RwLock<Option<Arc<Held>>>,
    /// True if the stored sign-in was read.
    has_looked: AtomicBool,
    /// Time of the last check of the stored sign-in.
    looked: Mutex<Option<Instant>>,
    /// True if the token in use could not be stored, so that storage is out of date.
    unkept: AtomicBool,
    /// State of token requests. The lock admits one request at a time.
    asking: tokio::sync::Mutex<Asking>,
}

/// A token in use.
struct Held {
    tokens: Tokens,
    header: HeaderValue,
}

/// Results of discovery and of failed requests.
#[derive(Default)]
struct Asking {
    found: Option<Found>,
    /// All scopes that the upstream has asked for.
    wanted: Vec<String>,
    failed: Option<(Instant, String)>,
}

/// A stored sign-in.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    found: Found,
    client: Client,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<Tokens>,
    /// Scopes that the upstream asked for beyond the token's.
    #[serde(default)]
    wanted: Vec<String>,
}

impl Credentials {
    /// Creates credentials for `upstream` at `url`, on behalf of `caller` if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or a key is invalid, or a variable is not set.
    pub(crate) fn new(
        (upstream, url, private_network): (&str, &str, bool),
        settings: Option<&OAuth>,
        world: Arc<dyn World>,
        caller: Option<Bearer>,
    ) -> Result<Self, String> {
        // The metadata of a WebSocket upstream is found at its HTTP URL.
        let url = over_http(url);
        let is_meant = settings.is_some();
        let mut settings = settings.cloned().unwrap_or_default();
        let OAuth { client_id, client_secret, client_key, client_key_id, .. } = &mut settings;
        let texts = [client_id, client_secret, client_key, client_key_id];
        for text in texts.into_iter().flatten() {
            *text = crate::upstream::filled(text, |name| world.variable(name))?;
        }
        let proof = match (&settings.client_secret, &settings.client_key) {
            (_, Some(pem)) => Proof::Key(Arc::new(Key::read(pem, settings.client_key_id.clone())?)),
            (Some(secret), None) => Proof::Secret(secret.clone()),
            (None, None) => Proof::Nothing,
        };
        let fetcher =
            Fetcher::of(world.clone(), &url, settings.issuer.as_deref(), private_network)?;
        let now = RwLock::default();
        let asking = tokio::sync::Mutex::default();
        let looked = Mutex::default();
        let unkept = AtomicBool::new(false);
        let has_looked = AtomicBool::new(settings.grant != Grant::AuthorizationCode);
        let upstream = upstream.to_owned();
        Ok(Self {
            upstream,
            url,
            settings,
            proof,
            is_meant,
            fetcher,
            world,
            caller,
            now,
            has_looked,
            looked,
            unkept,
            asking,
        })
    }

    /// Returns the `Authorization` header, if there is a token.
    ///
    /// # Errors
    ///
    /// Returns the reason and the fix if there should be a token but is none.
    pub(crate) async fn header(self: &Arc<Self>) -> Result<Option<HeaderValue>, String> {
        self.lets_go_of_what_is_not_kept();
        match self.held() {
            Some(held) if held.tokens.is_good() => return Ok(Some(held.header.clone())),
            // Without a token, discovery starts only after the upstream has refused a request.
            None if self.has_looked.load(Ordering::Acquire) => return Ok(None),
            Some(_) | None => {}
        }
        let this = self.clone();
        Box::pin(to_its_end(async move { this.header_anew().await })).await
    }

    async fn header_anew(&self) -> Result<Option<HeaderValue>, String> {
        let mut asking = self.asking.lock().await;
        let held = self.held();
        if let Some(held) = held.as_ref().filter(|held| held.tokens.is_good()) {
            return Ok(Some(held.header.clone()));
        }
        match self.settings.grant {
            Grant::AuthorizationCode => {
                let kept = self.kept_or_renewed(None).await;
                self.has_looked.store(true, Ordering::Release);
                kept
            }
            Grant::ClientCredentials | Grant::TokenExchange => {
                self.granted(&mut asking, &mut Steps::default()).await.map(Some)
            }
        }
    }

    /// Obtains another token after the upstream refused `used` with `status` and `challenge`.
    ///
    /// # Errors
    ///
    /// Returns the reason and the fix if there is no other token.
    pub(crate) async fn refused(
        self: &Arc<Self>,
        used: Option<&HeaderValue>,
        status: u16,
        challenge: Challenge,
    ) -> Result<(), String> {
        let this = self.clone();
        let used = used.cloned();
        let seen_to = async move { this.seen_to(used.as_ref(), status, &challenge).await };
        // Boxed, because every request would otherwise reserve space for this future.
        Box::pin(to_its_end(seen_to)).await
    }

    async fn seen_to(
        &self,
        used: Option<&HeaderValue>,
        status: u16,
        challenge: &Challenge,
    ) -> Result<(), String> {
        let mut asking = self.asking.lock().await;
        let held = self.held();
        if held.as_ref().is_some_and(|held| held.tokens.is_good() && Some(&held.header) != used) {
            // Another request was refused before and has already renewed the token.
            return Ok(());
        }
        let wants_more = status == 403 && challenge.wants_more();
        if status == 403 && !wants_more {
            return Err("it does not allow this to us".to_owned());
        }
        if self.settings.grant == Grant::AuthorizationCode {
            if wants_more {
                return Err(self.wants(&challenge.scopes).await);
            }
            return match self.kept_or_renewed(used).await? {
                Some(_) => Ok(()),
                None if self.is_meant => Err(self.sign_in("it wants somebody to sign in")),
                None => Err(format!(
                    "it wants a key, which `headers` says, or somebody to sign in, by `toolgate \
                     login {}`",
                    self.upstream
                )),
            };
        }
        let mut wanted = asking.wanted.clone();
        add(&mut wanted, &challenge.scopes);
        if wants_more && wanted.len() == asking.wanted.len() {
            return Err(format!("it wants a token for more than it was said: {wanted:?}"));
        }
        // The upstream may have moved to another authorization server.
        if asking.found.is_none() || (used.is_some() && !wants_more) {
            self.rested(&asking)?;
            let steps = &mut Steps::default();
            let fetcher = &self.fetcher;
            let settings = &self.settings;
            let found = discovery::find(fetcher, &self.url, challenge, settings, steps).await;
            // The old server remains in use until another is discovered.
            asking.found = Some(found.map_err(|why| fails(&mut asking, why))?);
        }
        add(&mut wanted, asking.found.as_ref().map_or(&[], |found| &found.scopes));
        let before = std::mem::replace(&mut asking.wanted, wanted);
        let granted = self.granted(&mut asking, &mut Steps::default()).await;
        if granted.is_err() {
            // Scopes that the server does not grant are not requested again.
            asking.wanted = before;
        }
        granted.map(drop)
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drops the token if another process has signed the person out or in again. Storage is checked
    /// every two seconds.
    fn lets_go_of_what_is_not_kept(&self) {
        let Some(held) = self.held() else { return };
        let is_a_persons = self.settings.grant == Grant::AuthorizationCode;
        if !is_a_persons || self.unkept.load(Ordering::Acquire) {
            return;
        }
        {
            let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
            if looked.is_some_and(|at| at.elapsed() < LOOKS) {
                return;
            }
            *looked = Some(Instant::now());
        }
        let kept = self.kept().and_then(|kept| kept.tokens);
        if kept.is_none_or(|kept| kept.access != held.tokens.access) {
            let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
            // Another token may be in use by now.
            now.take_if(|now| Arc::ptr_eq(now, &held));
            self.has_looked.store(false, Ordering::Release);
        }
    }

    fn holds(&self, tokens: Tokens) -> Result<HeaderValue, String> {
        let header = tokens.header()?;
        let held = Arc::new(Held { tokens, header: header.clone() });
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Some(held);
        Ok(header)
    }

    /// Returns the last error while the pause after a failure lasts.
    fn rested(&self, asking: &Asking) -> Result<(), String> {
        match &asking.failed {
            Some((at, why)) if at.elapsed() < LEFT_ALONE => Err(why.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// Requests a token for this server, or exchanges the caller's.
    async fn granted(
        &self,
        asking: &mut Asking,
        steps: &mut Steps<'_>,
    ) -> Result<HeaderValue, String> {
        self.rested(asking)?;
        let OAuth { client_id, audience, .. } = &self.settings;
        let found = asking.found.as_ref().ok_or("it is not known who gives tokens")?;
        let id = client_id.clone().unwrap_or_default();
        let client = Client::known(&found.server, id, &self.proof);
        let mut fields = match &self.caller {
            None => vec![("grant_type", "client_credentials")],
            Some(caller) => vec![
                ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
                ("subject_token", caller.said()),
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
        let asked = tokens::ask(fetcher, server, &client, &fields, &asking.wanted).await;
        let told = match &asked {
            Ok(tokens) => Ok(shown(tokens)),
            Err(denied) => Err(denied.why.clone()),
        };
        steps.done("a token", &told);
        match asked {
            Ok(tokens) => {
                asking.failed = None;
                self.holds(tokens)
            }
            Err(denied) => Err(fails(asking, denied.why)),
        }
    }

    /// Returns the stored token of a person, renewed if it is expired or equals `used`.
    async fn kept_or_renewed(
        &self,
        used: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>, String> {
        let usable = |kept: &Kept| -> Option<(Tokens, HeaderValue)> {
            let tokens = kept.tokens.clone().filter(Tokens::is_good)?;
            let header = tokens.header().ok().filter(|header| Some(header) != used)?;
            Some((tokens, header))
        };
        let Some(kept) = self.kept() else { return Ok(None) };
        if let Some((tokens, _)) = usable(&kept) {
            return self.holds(tokens).map(Some);
        }
        // Another server may renew it at the same time, and a refresh token may work only once.
        let _held = self.hold().await?;
        let Some(kept) = self.kept() else { return Ok(None) };
        if let Some((tokens, _)) = usable(&kept) {
            return self.holds(tokens).map(Some);
        }
        match self.renewed(kept).await {
            Ok(tokens) => self.holds(tokens).map(Some),
            Err(Denied { is_over: false, why }) => Err(why),
            Err(Denied { is_over: true, why }) => Err(self.sign_in(&why)),
        }
    }

    /// Renews the tokens of `kept` and stores the new ones.
    async fn renewed(&self, mut kept: Kept) -> Result<Tokens, Denied> {
        let over = |why: &str| Denied { is_over: true, why: why.to_owned() };
        let before = kept.tokens.take().ok_or_else(|| over("nobody is signed in"))?;
        let Some(refresh) = before.refresh else {
            return Err(over("the token is not good any more, and cannot be renewed"));
        };
        let fields = [
            ("grant_type", "refresh_token"),
            ("refresh_token", &refresh),
            ("resource", &kept.found.resource),
        ];
        let OAuth { issuer, client_id, .. } = &self.settings;
        if issuer
            .as_ref()
            .is_some_and(|issuer| !discovery::is_same(issuer, &kept.found.server.issuer))
        {
            return Err(over("the authorization server that is meant is another now"));
        }
        if client_id.as_ref() == Some(&kept.client.id) {
            // The settings may hold a new secret or key for the client.
            kept.client = Client::known(&kept.found.server, kept.client.id, &self.proof);
        }
        if kept.client.lacks_its_key() {
            return Err(over("whoever signed in did so at another client than `oauth.client_id`"));
        }
        let server = &kept.found.server;
        let asked = tokens::ask(&self.fetcher, server, &kept.client, &fields, &[]).await;
        if asked.as_ref().is_err_and(|denied| denied.is_over) {
            // The spent token is dropped, but the client registration is kept.
            let _ = self.keep(&kept);
        }
        let mut tokens = asked?;
        tokens.refresh = tokens.refresh.or(Some(refresh));
        if tokens.scopes.is_empty() {
            tokens.scopes = before.scopes;
        }
        kept.tokens = Some(tokens.clone());
        let is_kept = self.keep(&kept);
        self.unkept.store(is_kept.is_err(), Ordering::Release);
        if let Err(why) = is_kept {
            // The refresh token is spent, so these tokens are all there is.
            tracing::warn!("whoever is signed in at `{}` is not kept: {why}", self.upstream);
        }
        Ok(tokens)
    }

    /// Stores that a token needs `scopes`, too. Returns the instruction to sign in.
    async fn wants(&self, scopes: &[String]) -> String {
        if let Ok(_held) = self.hold().await
            && let Some(mut kept) = self.kept()
        {
            add(&mut kept.wanted, scopes);
            let _ = self.keep(&kept);
        }
        self.sign_in(&format!("it wants a token for `{}`, too", scopes.join(" ")))
    }

    fn sign_in(&self, why: &str) -> String {
        format!("{why}: run `toolgate login {}`", self.upstream)
    }

    /// Returns the storage key. It includes the URL, so that a token never goes to another place.
    fn kept_as(&self) -> String {
        let at = blake3::hash(self.url.as_bytes()).to_hex();
        format!("{}-{}", self.upstream, &at[..16])
    }

    fn kept(&self) -> Option<Kept> {
        serde_json::from_str(&self.world.secret(&self.kept_as())?).ok()
    }

    fn keep(&self, kept: &Kept) -> Result<(), String> {
        let text = serde_json::to_string(kept).map_err(|err| err.to_string())?;
        self.world.keep_secret(&self.kept_as(), Some(&text))
    }

    async fn hold(&self) -> Result<Hold, String> {
        self.world.hold_secret(&self.kept_as()).await
    }
}

/// Runs `work` to its end even if the caller stops waiting. A refresh token may work only once, so
/// the result must be stored.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, String>> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|err| Err(format!("asking for a token broke off: {err}")))
}

fn fails(asking: &mut Asking, why: String) -> String {
    asking.failed = Some((Instant::now(), why.clone()));
    why
}

/// Most scopes that are requested for one upstream.
const SCOPES_MAX: usize = 100;

/// Adds those of `more` that are not in `all`.
fn add(all: &mut Vec<String>, more: &[String]) {
    for one in more {
        if all.len() < SCOPES_MAX && !all.contains(one) {
            all.push(one.clone());
        }
    }
}

/// Describes `tokens` without secrets.
fn shown(tokens: &Tokens) -> String {
    let left = match tokens.left() {
        Some(left) => format!("good for {} s", left.as_secs()),
        None => "good until it is refused".to_owned(),
    };
    let renewed = if tokens.refresh.is_some() { ", then renewed" } else { "" };
    let scopes = match tokens.scopes.is_empty() {
        true => String::new(),
        false => format!(", for `{}`", tokens.scopes.join(" ")),
    };
    format!("{left}{renewed}{scopes}")
}
