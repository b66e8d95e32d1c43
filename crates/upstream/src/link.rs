//! A connection over which a revision is agreed on.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolgate_contract::{Askable, Level};
use toolgate_dialects::mcp::upstream::{
    Beside, Era, NEWEST_SESSION, Revision, discover, handshake, request,
};

use crate::message::{self, RpcError};
use crate::upstream::Agreed;
use crate::wire::{Hears, Sent, Trouble, Wire};

/// How long a server may think about a question that older ones do not know.
const PROBE: Duration = Duration::from_secs(3);
/// No refusal of ours: the revision is not spoken there.
const UNSUPPORTED_VERSION: i64 = -32022;

/// A connection to an upstream that speaks one revision.
pub(crate) struct Link {
    pub(crate) wire: Arc<dyn Wire>,
    pub(crate) revision: &'static Revision,
    /// What it said of itself: `capabilities`, `instructions`, `serverInfo`.
    pub(crate) said: Value,
    pub(crate) since: Instant,
    /// Who hears what belongs to no call.
    pub(crate) hears: Arc<dyn Hears>,
    ids: AtomicU64,
    /// How many requests are in flight that it is used for.
    busy: AtomicUsize,
    /// Whether the last one did not get there, was lost or was not let in.
    trouble: AtomicBool,
    /// When the last one ended, in milliseconds after it began.
    used: AtomicU64,
    /// The least level of a line that it was told to log.
    logs: Mutex<Option<Level>>,
    /// The tools that were seen to be as they were agreed to, as they are listed here.
    pub(crate) agreed: Agreed,
}

/// A request of ours.
pub(crate) struct Asks<'a> {
    pub(crate) method: &'static str,
    pub(crate) params: Map<String, Value>,
    /// What it is about: a tool, a prompt, a URI.
    pub(crate) name: Option<&'a str>,
    pub(crate) beside: Beside<'a>,
    /// Whether progress is to be told.
    pub(crate) tells: bool,
    pub(crate) mirrored: Vec<(String, String)>,
    /// Whether the connection is in use for it.
    pub(crate) uses: bool,
}

impl<'a> Asks<'a> {
    /// `method` with `params`.
    pub(crate) fn of(method: &'static str, params: Map<String, Value>) -> Self {
        let (name, mirrored) = (None, Vec::new());
        let beside = Beside::default();
        Self { method, params, name, beside, tells: false, mirrored, uses: true }
    }

    /// The same, for which alone no connection is kept.
    pub(crate) fn unused(self) -> Self {
        Self { uses: false, ..self }
    }

    /// The same, about `name`.
    pub(crate) fn about(self, name: &'a str) -> Self {
        Self { name: Some(name), ..self }
    }
}

impl Link {
    /// Agrees on a revision over `wire`: the newest that both know, or `wanted`; for whoever can be
    /// asked `can`.
    pub(crate) async fn agree(
        wire: Arc<dyn Wire>,
        wanted: Option<&'static Revision>,
        can: Askable,
        hears: &Arc<dyn Hears>,
    ) -> Result<Self, Trouble> {
        let link = |revision, said| Self {
            wire: wire.clone(),
            revision,
            said,
            since: Instant::now(),
            hears: hears.clone(),
            ids: AtomicU64::new(10),
            busy: AtomicUsize::new(0),
            trouble: AtomicBool::new(false),
            used: AtomicU64::new(0),
            logs: Mutex::default(),
            agreed: Agreed::default(),
        };
        let stateless = Revision::newest(Era::Stateless);
        if wanted.is_none_or(|wanted| wanted.era == Era::Stateless) {
            wire.agreed(Some(stateless));
            let probe = || sent(Some(1), "server/discover", None, &discover(stateless));
            let found = async {
                match wire.request(probe(), hears.clone()).await {
                    // The revision is refused and offered in one: another try tells which holds.
                    Err(Trouble::Refused(error))
                        if error.code == UNSUPPORTED_VERSION && names(&error, stateless) =>
                    {
                        wire.request(probe(), hears.clone()).await
                    }
                    found => found,
                }
            };
            match tokio::time::timeout(PROBE, found).await {
                Ok(Ok(found)) => {
                    let found = serde_json::from_str(found.get()).unwrap_or_default();
                    if speaks(&found, stateless) {
                        return Ok(link(stateless, found));
                    }
                    if wanted.is_some() {
                        return Err(speaks_other(&found));
                    }
                }
                Ok(Err(trouble))
                    if wanted.is_some()
                        || wire.gone().is_cancelled()
                        || matches!(trouble, Trouble::Unauthorized(_)) =>
                {
                    return Err(trouble);
                }
                // Who does not know what was asked answers it in all sorts of ways.
                Ok(Err(_)) => {}
                Err(_) if wanted.is_some() => {
                    return Err(Trouble::Lost("it does not answer `server/discover`".to_owned()));
                }
                Err(_) => {}
            }
            wire.agreed(None);
        }
        let revision = wanted.unwrap_or(&NEWEST_SESSION);
        let begin = sent(Some(2), "initialize", None, &handshake(can, revision));
        let said = match wire.request(begin, hears.clone()).await {
            Err(Trouble::Refused(error)) if error.code == UNSUPPORTED_VERSION => {
                return Err(speaks_other(error.data.as_ref().unwrap_or(&Value::Null)));
            }
            said => said?,
        };
        let said: Value = serde_json::from_str(said.get()).unwrap_or_default();
        let name = said["protocolVersion"].as_str().unwrap_or_default();
        let Some(revision) = Revision::named(name, Era::Session) else {
            return Err(Trouble::Refused(RpcError::new(
                -32603,
                format!("it speaks the revision `{name}`, which nobody here knows"),
            )));
        };
        wire.agreed(Some(revision));
        wire.say(sent(None, "notifications/initialized", None, &Value::Null)).await?;
        wire.listen();
        let link = link(revision, said);
        link.logs(Some(Level::Info)).await;
        Ok(link)
    }

    /// Has it log what is as grave as `least` from now on, where it does not already: which lines
    /// reach whom is decided here.
    pub(crate) async fn logs(&self, least: Option<Level>) {
        let Some(least) = least.filter(|_| self.has("logging")) else { return };
        {
            let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
            if logs.is_some_and(|logs| logs <= least) {
                return;
            }
            *logs = Some(least);
        }
        let level = Map::from_iter([("level".to_owned(), json!(least))]);
        // Who does not take it logs as it likes.
        let asks = Asks::of("logging/setLevel", level);
        let _ = tokio::time::timeout(PROBE, self.ask(asks, self.hears.clone())).await;
    }

    /// Whether it says that it has `capability`.
    pub(crate) fn has(&self, capability: &str) -> bool {
        self.said["capabilities"].get(capability).is_some_and(Value::is_object)
    }

    /// Whether it says that `capability` has `more`.
    pub(crate) fn does(&self, capability: &str, more: &str) -> bool {
        self.said["capabilities"][capability][more].as_bool().unwrap_or(false)
    }

    /// Makes a request, and gives its result.
    pub(crate) async fn ask(
        &self,
        asks: Asks<'_>,
        hears: Arc<dyn Hears>,
    ) -> Result<Value, Trouble> {
        let Asks { method, params, name, beside, tells, mirrored, uses } = asks;
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let beside = Beside { progress: tells.then_some(id), ..beside };
        let params = request(params, &beside, self.revision);
        let message = Sent { mirrored, ..sent(Some(id), method, name, &params) };
        let _busy = uses.then(|| Busy::of(self));
        let answered = self.wire.request(message, hears).await;
        let trouble = matches!(
            answered,
            Err(Trouble::NotSent(_) | Trouble::Lost(_) | Trouble::Unauthorized(_))
        );
        if self.trouble.load(Ordering::Relaxed) != trouble {
            self.trouble.store(trouble, Ordering::Relaxed);
        }
        let result = answered?;
        serde_json::from_str(result.get()).map_err(|err| Trouble::Lost(err.to_string()))
    }

    /// Whether what was asked last did not get there, was lost or was not let in.
    pub(crate) fn is_in_trouble(&self) -> bool {
        self.trouble.load(Ordering::Relaxed)
    }

    /// For how long it has had nothing to do; `None` while it has.
    pub(crate) fn idle(&self) -> Option<Duration> {
        if self.busy.load(Ordering::Acquire) > 0 {
            return None;
        }
        let used = Duration::from_millis(self.used.load(Ordering::Acquire));
        Some(self.since.elapsed().saturating_sub(used))
    }
}

/// A request in flight.
struct Busy<'a>(&'a Link);

impl<'a> Busy<'a> {
    fn of(link: &'a Link) -> Self {
        link.busy.fetch_add(1, Ordering::AcqRel);
        Self(link)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let now = u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.used.store(now, Ordering::Release);
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

fn sent(id: Option<u64>, method: &str, name: Option<&str>, params: &Value) -> Sent {
    let body = message::written(id, method, params);
    let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
    let method = method.to_owned();
    Sent { id, method, name, mirrored: Vec::new(), body }
}

fn speaks(found: &Value, revision: &Revision) -> bool {
    let all = found["supportedVersions"].as_array();
    all.is_some_and(|all| all.iter().any(|one| one == revision.name))
}

/// Whether a refusal says that `revision` is spoken.
fn names(error: &RpcError, revision: &Revision) -> bool {
    let all = error.data.as_ref().and_then(|data| data["supported"].as_array());
    all.is_some_and(|all| all.iter().any(|one| one == revision.name))
}

fn speaks_other(found: &Value) -> Trouble {
    let all = found.get("supportedVersions").or(found.get("supported"));
    let all = all.map_or_else(|| "others".to_owned(), Value::to_string);
    Trouble::Refused(RpcError::new(UNSUPPORTED_VERSION, format!("it speaks {all}")))
}
