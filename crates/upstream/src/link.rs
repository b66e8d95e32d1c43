//! A connection to an upstream, on which both sides agreed on a protocol revision.

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

/// Longest wait for an answer to `server/discover` and `logging/setLevel`, which older servers do
/// not know.
const PROBE: Duration = Duration::from_secs(3);
/// Error code of an unsupported protocol version.
const UNSUPPORTED_VERSION: i64 = -32022;

/// A connection to an upstream that uses one protocol revision.
pub(crate) struct Link {
    pub(crate) wire: Arc<dyn Wire>,
    pub(crate) revision: &'static Revision,
    /// The server's description of itself: `capabilities`, `instructions`, `serverInfo`.
    pub(crate) said: Value,
    pub(crate) since: Instant,
    /// Receiver of messages that belong to no call.
    pub(crate) hears: Arc<dyn Hears>,
    ids: AtomicU64,
    /// Number of requests in flight that keep the connection in use.
    busy: AtomicUsize,
    /// True if the last request was not delivered, was lost or was not authorized.
    trouble: AtomicBool,
    /// End of the last request, in milliseconds after the connection began.
    used: AtomicU64,
    /// Lowest log level that the server was asked to send.
    logs: Mutex<Option<Level>>,
    /// Pinned tools that were checked over this connection.
    pub(crate) agreed: Agreed,
}

/// A request to an upstream.
pub(crate) struct Asks<'a> {
    pub(crate) method: &'static str,
    pub(crate) params: Map<String, Value>,
    /// Target of the request: a tool, a prompt or a URI.
    pub(crate) name: Option<&'a str>,
    pub(crate) beside: Beside<'a>,
    /// True if the caller wants progress notifications.
    pub(crate) tells: bool,
    pub(crate) mirrored: Vec<(String, String)>,
    /// True if the request keeps the connection in use.
    pub(crate) uses: bool,
}

impl<'a> Asks<'a> {
    /// Creates a request of `method` with `params`.
    pub(crate) fn of(method: &'static str, params: Map<String, Value>) -> Self {
        let name = None;
        let mirrored = Vec::new();
        let beside = Beside::default();
        Self { method, params, name, beside, tells: false, mirrored, uses: true }
    }

    /// Marks the request as one that does not keep the connection in use.
    pub(crate) fn unused(self) -> Self {
        Self { uses: false, ..self }
    }

    /// Sets the target of the request.
    pub(crate) fn about(self, name: &'a str) -> Self {
        Self { name: Some(name), ..self }
    }
}

impl Link {
    /// Agrees on a protocol revision over `wire`: `wanted`, or the newest that both sides support.
    /// The handshake offers the capabilities `can`.
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
                    // Some servers both refuse and list the revision in one answer. A second try
                    // decides.
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
                // Older servers answer an unknown method in many ways.
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

    /// Lowers the server's log level to `least` if it is higher. The caller's own filter decides
    /// which lines it gets.
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
        // A server that refuses logs at the level that it likes.
        let asks = Asks::of("logging/setLevel", level);
        let _ = tokio::time::timeout(PROBE, self.ask(asks, self.hears.clone())).await;
    }

    /// Returns true if the server declared `capability`.
    pub(crate) fn has(&self, capability: &str) -> bool {
        self.said["capabilities"].get(capability).is_some_and(Value::is_object)
    }

    /// Returns true if the server declared the option `more` of `capability`.
    pub(crate) fn does(&self, capability: &str, more: &str) -> bool {
        self.said["capabilities"][capability][more].as_bool().unwrap_or(false)
    }

    /// Sends a request and returns its result.
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

    /// Returns true if the last request was not delivered, was lost or was not authorized.
    pub(crate) fn is_in_trouble(&self) -> bool {
        self.trouble.load(Ordering::Relaxed)
    }

    /// Returns how long the connection has been idle, or `None` while it is in use.
    pub(crate) fn idle(&self) -> Option<Duration> {
        if self.busy.load(Ordering::Acquire) > 0 {
            return None;
        }
        let used = Duration::from_millis(self.used.load(Ordering::Acquire));
        Some(self.since.elapsed().saturating_sub(used))
    }
}

/// Counter guard of a request in flight.
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

/// Returns true if a refusal lists `revision` as supported.
fn names(error: &RpcError, revision: &Revision) -> bool {
    let all = error.data.as_ref().and_then(|data| data["supported"].as_array());
    all.is_some_and(|all| all.iter().any(|one| one == revision.name))
}

fn speaks_other(found: &Value) -> Trouble {
    let all = found.get("supportedVersions").or(found.get("supported"));
    let all = all.map_or_else(|| "others".to_owned(), Value::to_string);
    Trouble::Refused(RpcError::new(UNSUPPORTED_VERSION, format!("it speaks {all}")))
}
