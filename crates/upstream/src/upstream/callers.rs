//! An upstream at which each caller is let in by a token of their own: each has their connection.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use blake3::Hash;
use toolgate_contract::{AnyTool, Caller, Changes, Fault, ToolError};

use super::{Keeps, Upstream};
use crate::listing::Listing;
use crate::oauth::Grant;
use crate::pins::{OnChange, Pinned};
use crate::settings::Settings;

/// Of how many callers connections are kept, for each upstream.
const CALLERS_MAX: usize = 256;
/// How long a caller's connection has nothing to do before it is let go, in milliseconds, unless
/// that is configured.
const IDLE_MS: u64 = 300_000;

/// An upstream as single callers are let in there, the last to call last: by a hash of what they
/// are let in here with, which may be for less than what they were let in with before.
#[derive(Default)]
pub(super) struct Callers(Mutex<VecDeque<(Hash, Arc<Upstream>)>>);

impl Callers {
    /// Lets go of all.
    pub(super) fn close(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        all.iter().for_each(|(_, theirs)| theirs.close());
    }
}

impl Upstream {
    /// The upstream as `caller` is let in there, if each caller is by themselves.
    pub(super) fn of(&self, caller: &Caller) -> Result<Option<Arc<Self>>, ToolError> {
        let exchanges = |oauth: &crate::oauth::OAuth| oauth.grant == Grant::TokenExchange;
        if self.caller.is_some() || !self.settings.oauth.as_ref().is_some_and(exchanges) {
            return Ok(None);
        }
        let Some(bearer) = &caller.bearer else {
            let message = format!(
                "the upstream `{}` is called in the name of whoever calls, who must be let in here \
                 by a token of an authorization server",
                self.name
            );
            return Err(ToolError::new(Fault::NotAllowed, message));
        };
        let key = blake3::hash(bearer.said().as_bytes());
        let mut all = self.callers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().position(|(of, _)| *of == key).and_then(|at| all.remove(at));
        let (_, theirs) = known.unwrap_or_else(|| {
            let idle_ms = if self.settings.idle_ms == 0 { IDLE_MS } else { self.settings.idle_ms };
            let settings = Settings { idle_ms, ..self.settings.clone() };
            let (results, claims) = (self.results.clone(), self.claims.clone());
            let handed = (self.world.clone(), Arc::new(Nothing) as _, results, claims);
            let of = (Some(self), Some(bearer));
            (key, Self::new(&self.name, settings, handed, Changes::default(), of))
        });
        all.push_back((key, theirs.clone()));
        if all.len() > CALLERS_MAX {
            all.pop_front();
        }
        Ok(Some(theirs))
    }
}

/// What belongs to one caller is neither kept nor offered.
pub(super) struct Nothing;

impl Keeps for Nothing {
    fn known(&self, _: &str) -> Option<Listing> {
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
