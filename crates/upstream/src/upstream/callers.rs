//! Upstream instances for single callers or sessions, if each has its own token or connection.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blake3::{Hash, Hasher};
use toolgate_contract::{AnyTool, Bearer, Caller, Ctx, Fault, ToolError};

use super::{Keeps, State, Upstream};
use crate::listing::Listing;
use crate::oauth::Grant;
use crate::pins::{OnChange, Pinned};
use crate::settings::{Settings, SharedBy};

/// Most callers or sessions with their own connections, per upstream.
const CALLERS_MAX: usize = 256;
/// Idle time after which such a connection is closed, in milliseconds, unless `idle_ms` is set.
const IDLE_MS: u64 = 300_000;

/// Owner of an upstream instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whose {
    /// All callers.
    All,
    /// One caller or session, with the bearer token that is exchanged for it.
    One(Option<Bearer>),
}

impl Whose {
    /// Returns the bearer token that the connection is authorized for.
    pub(super) fn bearer(&self) -> Option<Bearer> {
        match self {
            Self::All => None,
            Self::One(bearer) => bearer.clone(),
        }
    }
}

/// The instances of single callers or sessions, most recently used last.
///
/// The key is a hash of the caller and, if that is exchanged, of the bearer token, because the next
/// token may allow less.
#[derive(Default)]
pub(super) struct Callers(Mutex<VecDeque<Theirs>>);

/// The instance of one caller or session.
struct Theirs {
    of: Hash,
    /// The session, if the instance belongs to one.
    session: Option<Arc<str>>,
    upstream: Arc<Upstream>,
}

impl Callers {
    /// Closes all instances.
    pub(super) fn close(&self) {
        let all = std::mem::take(&mut *self.all());
        all.iter().for_each(|theirs| theirs.upstream.close());
    }

    /// Returns the state of each instance.
    pub(super) fn states(&self) -> impl Iterator<Item = State> {
        let all: Vec<_> = self.all().iter().map(|theirs| theirs.upstream.clone()).collect();
        all.into_iter().map(|upstream| upstream.state())
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Theirs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upstream {
    /// Returns the caller's own instance, if callers do not share one.
    pub(crate) fn of(&self, ctx: &Ctx) -> Result<Option<Arc<Self>>, ToolError> {
        if self.whose != Whose::All {
            return Ok(None);
        }
        let bearer = self.bearer_of(&ctx.caller)?;
        let shared_by = self.settings.shared_by;
        let session = ctx.session.as_ref().filter(|_| shared_by == SharedBy::Session);
        let key = match (shared_by, bearer) {
            (SharedBy::All, None) => return Ok(None),
            (SharedBy::All, Some(bearer)) => vec![bearer.said()],
            (SharedBy::Caller | SharedBy::Session, bearer) => {
                let session = session.map_or("", |session| session);
                vec![&*ctx.caller.name, session, bearer.map_or("", Bearer::said)]
            }
        };
        let mut hasher = Hasher::new();
        for part in key {
            hasher.update(&part.len().to_le_bytes()).update(part.as_bytes());
        }
        let key = hasher.finalize();
        let mut all = self.callers.all();
        let known = all.iter().position(|theirs| theirs.of == key).and_then(|at| all.remove(at));
        let theirs = known.unwrap_or_else(|| {
            let idle_ms = if self.settings.idle_ms == 0 { IDLE_MS } else { self.settings.idle_ms };
            let settings = Settings { idle_ms, ..self.settings.clone() };
            let results = self.results.clone();
            let claims = self.claims.clone();
            let handed = (self.world.clone(), Arc::new(Nothing) as _, results, claims);
            let of = (Some(self), Whose::One(bearer.cloned()));
            let upstream = Self::new(&self.name, settings, handed, self.changes.clone(), of);
            Theirs { of: key, session: session.cloned(), upstream }
        });
        let upstream = theirs.upstream.clone();
        all.push_back(theirs);
        if all.len() > CALLERS_MAX {
            all.pop_front();
        }
        Ok(Some(upstream))
    }

    /// Closes the instances of `session`, which has ended.
    pub(crate) fn left(&self, session: &str) {
        let mut gone = Vec::new();
        self.callers.all().retain(|theirs| {
            let is_over = theirs.session.as_deref() == Some(session);
            gone.extend(is_over.then(|| theirs.upstream.clone()));
            !is_over
        });
        gone.iter().for_each(|upstream| upstream.let_go());
    }

    /// Returns the bearer token of `caller` if it is exchanged for this upstream.
    fn bearer_of<'a>(&self, caller: &'a Caller) -> Result<Option<&'a Bearer>, ToolError> {
        let exchanges = |oauth: &crate::oauth::OAuth| oauth.grant == Grant::TokenExchange;
        if !self.settings.oauth.as_ref().is_some_and(exchanges) {
            return Ok(None);
        }
        let none = || {
            let message = format!(
                "the upstream `{}` is called in the name of whoever calls, who must be let in here \
                 by a token of an authorization server",
                self.name
            );
            ToolError::new(Fault::NotAllowed, message)
        };
        caller.bearer.as_ref().ok_or_else(none).map(Some)
    }
}

/// Storage of an instance that belongs to one caller. It keeps and offers nothing.
pub(super) struct Nothing;

impl Keeps for Nothing {
    fn known(&self, _: &str) -> Option<(Listing, Duration)> {
        None
    }

    fn keep(&self, _: &str, _: &Listing) {}

    fn pinned(&self) -> Pinned {
        Pinned { lock: Ok(None), on_change: OnChange::default() }
    }

    fn is_own(&self, _: &str) -> bool {
        false
    }

    fn is_own_uri(&self, _: &str) -> bool {
        false
    }

    fn offer(&self, _: &str, _: Vec<Arc<dyn AnyTool>>) {}
}
