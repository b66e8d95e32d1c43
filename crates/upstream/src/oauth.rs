//! How we are let in at an upstream that asks for OAuth: tokens are found, kept and renewed here,
//! and said to that upstream alone. What a client of ours is let in with never goes there.

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

/// How long an authorization server that gave no token is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(5);
/// How often it is looked whether who has signed in still has.
const LOOKS: Duration = Duration::from_secs(2);
/// What a token is that is exchanged, and that it is exchanged for.
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";

/// What lets us in at one upstream: as a person, as this server, or as one caller.
pub(crate) struct Credentials {
    upstream: String,
    url: String,
    settings: OAuth,
    /// What shows who we are.
    proof: Proof,
    /// Whether it is said that it asks for OAuth.
    is_meant: bool,
    fetcher: Fetcher,
    world: Arc<dyn World>,
    /// Whose token is exchanged.
    caller: Option<Bearer>,
    now: RwLock<Option<Arc<Held>>>,
    /// Whether it was looked who has signed in.
    has_looked: AtomicBool,
    /// When it was looked whether who has signed in still has.
    looked: Mutex<Option<Instant>>,
    /// Whether the token in use could not be kept, so that nothing is known of it elsewhere.
    unkept: AtomicBool,
    /// One asks at a time.
    asking: tokio::sync::Mutex<Asking>,
}

/// A token that is in use.
struct Held {
    tokens: Tokens,
    header: HeaderValue,
}

/// What is known of who gives tokens, by who asks for them.
#[derive(Default)]
struct Asking {
    found: Option<Found>,
    /// What the upstream wanted a token for, over time.
    wanted: Vec<String>,
    failed: Option<(Instant, String)>,
}

/// What is kept of somebody who has signed in.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    found: Found,
    client: Client,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<Tokens>,
    /// What the upstream wanted a token for beyond what there is one for.
    #[serde(default)]
    wanted: Vec<String>,
}

impl Credentials {
    /// For the upstream called `upstream`, which is at `url`; where `caller` is said, for them.
    ///
    /// # Errors
    /// When the URL is none, or a variable is not set.
    pub(crate) fn new(
        (upstream, url, private_network): (&str, &str, bool),
        settings: Option<&OAuth>,
        world: Arc<dyn World>,
        caller: Option<Bearer>,
    ) -> Result<Self, String> {
        // A WebSocket is found where its request over HTTP goes.
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
        let (now, asking) = (RwLock::default(), tokio::sync::Mutex::default());
        let (looked, unkept) = (Mutex::default(), AtomicBool::new(false));
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

    /// What a request says, if we are let in by anything.
    ///
    /// # Errors
    /// Why not, where we should be, and what to do.
    pub(crate) async fn header(self: &Arc<Self>) -> Result<Option<HeaderValue>, String> {
        self.lets_go_of_what_is_not_kept();
        match self.held() {
            Some(held) if held.tokens.is_good() => return Ok(Some(held.header.clone())),
            // Whether there is more is looked at once the upstream has refused.
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

    /// Sees to it that the upstream, which refused `used` with `status` and `challenge`, is asked
    /// with something else.
    ///
    /// # Errors
    /// Why there is nothing else, and what to do.
    pub(crate) async fn refused(
        self: &Arc<Self>,
        used: Option<&HeaderValue>,
        status: u16,
        challenge: Challenge,
    ) -> Result<(), String> {
        let (this, used) = (self.clone(), used.cloned());
        let seen_to = async move { this.seen_to(used.as_ref(), status, &challenge).await };
        // Boxed, or each request would have room for it.
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
            // Somebody else was refused before, and has seen to it.
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
        // The token may be of a server that is not the one any more.
        if asking.found.is_none() || (used.is_some() && !wants_more) {
            self.rested(&asking)?;
            let steps = &mut Steps::default();
            let (fetcher, settings) = (&self.fetcher, &self.settings);
            let found = discovery::find(fetcher, &self.url, challenge, settings, steps).await;
            // Until another is known, the one that was is asked.
            asking.found = Some(found.map_err(|why| fails(&mut asking, why))?);
        }
        add(&mut wanted, asking.found.as_ref().map_or(&[], |found| &found.scopes));
        let before = std::mem::replace(&mut asking.wanted, wanted);
        let granted = self.granted(&mut asking, &mut Steps::default()).await;
        if granted.is_err() {
            // What nobody gets a token for is not asked for with the next one.
            asking.wanted = before;
        }
        granted.map(drop)
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets go of a token whose person has signed out, or in anew, by another process: that is
    /// looked at now and then.
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
            // Or another is in use by now.
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

    /// Refuses while the authorization server is left alone.
    fn rested(&self, asking: &Asking) -> Result<(), String> {
        match &asking.failed {
            Some((at, why)) if at.elapsed() < LEFT_ALONE => Err(why.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// A token for this server, or for the caller.
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
        let (fetcher, server) = (&self.fetcher, &found.server);
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

    /// What somebody who signed in may use: what is kept, unless it is `used` or over; then what it
    /// is renewed to.
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
        // Another server may be about to renew it, too, and what it was renewed by counts once.
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

    /// The tokens that `kept` is renewed to, which are kept in its place.
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
            // What shows that we are it is what the settings say now.
            kept.client = Client::known(&kept.found.server, kept.client.id, &self.proof);
        }
        if kept.client.lacks_its_key() {
            return Err(over("whoever signed in did so at another client than `oauth.client_id`"));
        }
        let server = &kept.found.server;
        let asked = tokens::ask(&self.fetcher, server, &kept.client, &fields, &[]).await;
        if asked.as_ref().is_err_and(|denied| denied.is_over) {
            // What is of no use is not kept; as whom we are known is.
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
            // What it was renewed by is spent: this is all there is.
            tracing::warn!("whoever is signed in at `{}` is not kept: {why}", self.upstream);
        }
        Ok(tokens)
    }

    /// Remembers that a token is wanted for `scopes`, too; what to do about it.
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

    /// What it is kept as: what lets in at one place says nothing of another.
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

/// What `work` comes to, which goes on when nobody waits for it any more: what a token is renewed by
/// may be good for once, and what came of it must be kept.
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

/// Of how many scopes a token is wanted for at most, whatever an upstream says.
const SCOPES_MAX: usize = 100;

/// Adds what of `more` is not among `all`.
fn add(all: &mut Vec<String>, more: &[String]) {
    for one in more {
        if all.len() < SCOPES_MAX && !all.contains(one) {
            all.push(one.clone());
        }
    }
}

/// `tokens` in a few words, of which none is a secret.
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
