//! Instances of an upstream for single callers or sessions, for upstreams at which each has its own
//! token or connection.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blake3::{Hash, Hasher};
use toolgate_contract::{
    AnyTool, BearerToken, Caller, ToolContext, ToolError, ToolErrorKind, lock_mutex,
};

use super::{Upstream, UpstreamHost, UpstreamState};
use crate::listing::UpstreamListing;
use crate::pins::{PinMismatchReaction, PinPolicy};
use crate::settings::{ConnectionSharing, OAuthGrant};

/// Maximum number of callers or sessions with their own connections, per upstream.
const CALLERS_MAX: usize = 256;
/// Idle time after which the connection of a single caller is closed. That caller may never return.
const IDLE: Duration = Duration::from_secs(300);

/// Owner of an upstream instance, which has its own connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UpstreamInstanceOwner {
    /// All callers share the upstream instance.
    Shared,
    /// The instance belongs to one caller or session. The value is the bearer token of the caller,
    /// if it is exchanged for one of the upstream.
    Caller(Option<BearerToken>),
}

impl UpstreamInstanceOwner {
    /// Returns the caller's bearer token for which the connection is authorized.
    pub(super) fn bearer(&self) -> Option<BearerToken> {
        match self {
            Self::Shared => None,
            Self::Caller(bearer) => bearer.clone(),
        }
    }
}

/// The upstream instances of single callers or sessions, most recently used last.
///
/// The key is a hash of the caller. If the bearer token is exchanged, the hash covers the token,
/// too, because the next token may allow less.
#[derive(Default)]
pub(super) struct CallerUpstreamInstances(Mutex<VecDeque<CallerUpstreamInstance>>);

/// The upstream instance of one caller or session.
struct CallerUpstreamInstance {
    key: Hash,
    /// The id of the session, if the instance belongs to a session.
    session: Option<Arc<str>>,
    upstream: Arc<Upstream>,
}

impl CallerUpstreamInstances {
    /// Closes the upstream instances of all callers and sessions.
    pub(super) fn close(&self) {
        let all = std::mem::take(&mut *lock_mutex(&self.0));
        all.iter().for_each(|instance| instance.upstream.close());
    }

    /// Returns the state of each caller's or session's instance.
    pub(super) fn states(&self) -> impl Iterator<Item = UpstreamState> {
        let all: Vec<_> =
            lock_mutex(&self.0).iter().map(|instance| instance.upstream.clone()).collect();
        all.into_iter().map(|upstream| upstream.state())
    }
}

impl Upstream {
    /// Returns the upstream instance for the caller or session of `ctx`, or `None` if all callers
    /// share this instance. Fails if the caller has no token but needs one.
    pub(crate) fn instance_for(&self, ctx: &ToolContext) -> Result<Option<Arc<Self>>, ToolError> {
        if self.owner != UpstreamInstanceOwner::Shared {
            return Ok(None);
        }
        let bearer = self.exchanged_bearer(&ctx.caller)?;
        let shared_by = self.settings.shared_by;
        let session = ctx.session.as_ref().filter(|_| shared_by == ConnectionSharing::Session);
        let key = match (shared_by, bearer) {
            (ConnectionSharing::All, None) => return Ok(None),
            (ConnectionSharing::All, Some(bearer)) => vec![bearer.as_str()],
            (ConnectionSharing::Caller | ConnectionSharing::Session, bearer) => {
                let session = session.map_or("", |session| session);
                vec![&*ctx.caller.name, session, bearer.map_or("", BearerToken::as_str)]
            }
        };
        let mut hasher = Hasher::new();
        for part in key {
            hasher.update(&part.len().to_le_bytes()).update(part.as_bytes());
        }
        let key = hasher.finalize();
        let mut all = lock_mutex(&self.callers.0);
        let known =
            all.iter().position(|instance| instance.key == key).and_then(|at| all.remove(at));
        let instance = known.unwrap_or_else(|| {
            let mut settings = self.settings.clone();
            settings.limits.idle.get_or_insert(IDLE);
            let results = self.results.clone();
            let claims = self.claims.clone();
            let handed =
                (self.world.clone(), Arc::new(CallerInstanceUpstreamHost) as _, results, claims);
            let origin = (Some(self), UpstreamInstanceOwner::Caller(bearer.cloned()));
            let upstream = Self::new(&self.name, settings, handed, self.changes.clone(), origin);
            CallerUpstreamInstance { key, session: session.cloned(), upstream }
        });
        let upstream = instance.upstream.clone();
        all.push_back(instance);
        if all.len() > CALLERS_MAX {
            all.pop_front();
        }
        Ok(Some(upstream))
    }

    /// Closes the upstream instances of `session`, which has ended.
    pub(crate) fn end_session(&self, session: &str) {
        let mut ended = Vec::new();
        lock_mutex(&self.callers.0).retain(|instance| {
            let is_over = instance.session.as_deref() == Some(session);
            ended.extend(is_over.then(|| instance.upstream.clone()));
            !is_over
        });
        ended.iter().for_each(|upstream| upstream.close_when_unused());
    }

    /// Returns true if callers' tokens are exchanged for tokens of this upstream.
    pub(super) fn exchanges_tokens(&self) -> bool {
        let oauth = self.settings.oauth.as_ref();
        oauth.is_some_and(|oauth| oauth.grant == OAuthGrant::TokenExchange)
    }

    /// Returns the bearer token of `caller` if callers' tokens are exchanged for tokens of this
    /// upstream, and `None` otherwise. Fails if the caller has no token to exchange.
    fn exchanged_bearer<'a>(
        &self,
        caller: &'a Caller,
    ) -> Result<Option<&'a BearerToken>, ToolError> {
        if !self.exchanges_tokens() {
            return Ok(None);
        }
        let none = || {
            let message = format!(
                "the upstream `{}` needs a token of the caller: authenticate here with a token \
                 of an authorization server",
                self.name
            );
            ToolError::new(ToolErrorKind::NotAllowed, message)
        };
        caller.bearer.as_ref().ok_or_else(none).map(Some)
    }
}

/// Host of an upstream instance that belongs to one caller. It stores no listings and adds no tools
/// to the catalog.
pub(super) struct CallerInstanceUpstreamHost;

impl UpstreamHost for CallerInstanceUpstreamHost {
    fn stored_listing(&self, _: &str) -> Option<(UpstreamListing, Duration)> {
        None
    }

    fn store_listing(&self, _: &str, _: &UpstreamListing) {}

    fn pins(&self) -> PinPolicy {
        PinPolicy { lock: Ok(None), on_change: PinMismatchReaction::default() }
    }

    fn is_own_toolset(&self, _: &str) -> bool {
        false
    }

    fn is_own_uri(&self, _: &str) -> bool {
        false
    }

    fn set_tools(&self, _: &str, _: Vec<Arc<dyn AnyTool>>) {}
}
