//! The requests of one connection that wait for their answers, and who hears what is said beside
//! them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use toolgate_contract::BoxFuture;

use crate::message::RpcError;
use crate::wire::Hears;

/// Requests in flight by their ids, each with what else is to be known of it.
pub(super) struct InFlight<T> {
    all: Mutex<All<T>>,
    /// What nobody waits for any more and may still be worked at.
    abandoned: Mutex<HashSet<u64>>,
    /// Who hears what belongs to no request.
    hears: Arc<dyn Hears>,
}

/// By id, who hears what is said beside its answer.
type All<T> = HashMap<u64, (Arc<dyn Hears>, T)>;

impl<T> InFlight<T> {
    pub(super) fn new(hears: Arc<dyn Hears>) -> Self {
        Self { all: Mutex::default(), abandoned: Mutex::default(), hears }
    }

    fn all(&self) -> MutexGuard<'_, All<T>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abandoned(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, id: u64, hears: Arc<dyn Hears>, more: T) {
        self.all().insert(id, (hears, more));
    }

    /// It has its answer, or nobody waits for one any more.
    pub(super) fn end(&self, id: u64) -> Option<T> {
        self.all().remove(&id).map(|(_, more)| more)
    }

    /// Whether there is one alone.
    pub(super) fn is_alone(&self) -> bool {
        self.all().len() == 1
    }

    pub(super) fn end_all(&self) -> Vec<T> {
        self.all().drain().map(|(_, (_, more))| more).collect()
    }

    /// Nobody waits for `id` any more, and it may still ask.
    pub(super) fn abandon(&self, id: u64) {
        self.abandoned().insert(id);
    }

    /// What was abandoned is worked at no more.
    pub(super) fn is_done(&self, id: u64) {
        self.abandoned().remove(&id);
    }

    /// `method` is asked by something that does not say for whom.
    pub(super) fn is_asked(&self, method: &str) {
        if !matches!(method, "ping" | "roots/list") && !self.all().is_empty() {
            self.hears.asks();
        }
    }

    /// Who is asked by a request that does not say for whom: the one call there is. Of several it
    /// could be any, and nobody is asked what another's call wants to know.
    fn who_is_asked(&self, method: &str) -> Option<Arc<dyn Hears>> {
        let sole = {
            let all = self.all();
            let mut all = all.values();
            match (all.next(), all.next()) {
                (Some((hears, _)), None) => Some(hears.clone()),
                (None, _) => Some(self.hears.clone()),
                (Some(_), Some(_)) => None,
            }
        };
        match sole.filter(|_| self.abandoned().is_empty()) {
            // Where it works is asked at any time, and there is an answer that is nobody's.
            None if method == "roots/list" => Some(self.hears.clone()),
            sole => sole,
        }
    }
}

impl<T: Send + 'static> Hears for InFlight<T> {
    /// Who hears what is said: whom its token names, else all who have a call, since lines of a
    /// log name nobody.
    fn said(&self, method: &str, params: &Value) {
        if method == "notifications/progress" {
            let token = params.get("progressToken").and_then(Value::as_u64);
            let hears = token.and_then(|id| Some(self.all().get(&id)?.0.clone()));
            if let Some(hears) = hears {
                hears.said(method, params);
            }
            return;
        }
        if method == "notifications/message" {
            let all: Vec<_> = self.all().values().map(|(hears, _)| hears.clone()).collect();
            all.iter().for_each(|hears| hears.said(method, params));
        }
        self.hears.said(method, params);
    }

    fn asked(
        self: Arc<Self>,
        method: String,
        params: Value,
    ) -> BoxFuture<'static, Result<Value, RpcError>> {
        Box::pin(async move {
            match self.who_is_asked(&method) {
                Some(hears) => hears.asked(method, params).await,
                None => Err(RpcError::new(
                    -32603,
                    "several calls may be meant, and nothing says which of them asks",
                )),
            }
        })
    }
}
