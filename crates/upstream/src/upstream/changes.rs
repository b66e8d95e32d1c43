//! Handles notifications that belong to no call: changes of lists and of watched resources.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;
use toolgate_contract::{BoxFuture, Change, Hold, ToolError};
use toolgate_dialects::mcp::upstream::Era;

use super::{Upstream, Whose};
use crate::hearing::{Deaf, VISITED};
use crate::link::{Asks, Link};
use crate::listing::GOOD_FOR;
use crate::message::RpcError;
use crate::wire::{Hears, LISTEN, Trouble};

/// First and longest pause before a listening stream is opened again.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// Timeout of a subscription request.
const WITHIN: Duration = Duration::from_secs(30);
/// Most subscriptions that are renewed at once on a new connection.
const AT_ONCE: usize = 8;
/// Duration after which a stream counts as stable.
const LASTED: Duration = Duration::from_secs(10);

/// The listening request of the stateless protocol.
pub(super) struct Listening {
    wanted: String,
    over: Weak<Link>,
    task: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Upstream {
    /// Opens a listening request for changes of lists and of watched resources (stateless
    /// protocol).
    pub(super) fn listen(&self, link: &Arc<Link>) {
        // The lock is held so that the later of two requests knows all watched URIs.
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        let uris = self.watched.uris();
        let mut wanted = Map::new();
        for (capability, flag) in [
            ("tools", "toolsListChanged"),
            ("prompts", "promptsListChanged"),
            ("resources", "resourcesListChanged"),
        ] {
            if link.does(capability, "listChanged") {
                wanted.insert(flag.into(), json!(true));
            }
        }
        if !uris.is_empty() {
            wanted.insert("resourceSubscriptions".into(), json!(uris));
        }
        if wanted.is_empty() {
            *listening = None;
            return;
        }
        let params = Map::from_iter([("notifications".to_owned(), Value::Object(wanted))]);
        let key = params["notifications"].to_string();
        let this = self.this.clone();
        let link = Arc::downgrade(link);
        if listening.as_ref().is_some_and(|before| {
            before.wanted == key && before.over.ptr_eq(&link) && !before.task.is_finished()
        }) {
            return;
        }
        // A connection that is no longer in use is not kept for listening.
        if !self.live().is_some_and(|live| link.ptr_eq(&Arc::downgrade(&live))) {
            return;
        }
        let task = tokio::spawn(listens(this, link.clone(), params));
        *listening = Some(Listening { wanted: key, over: link, task });
    }

    /// Ends the listening request over `link`, which is being closed.
    pub(super) fn listens_no_more(&self, link: &Arc<Link>) {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        listening.take_if(|listening| listening.over.ptr_eq(&Arc::downgrade(link)));
    }

    /// Watches the resource `uri` until the returned hold is dropped.
    pub(crate) async fn watch(&self, uri: &str) -> Result<Hold, ToolError> {
        // A second watcher waits for the outcome of the first subscription.
        let _one = self.watched.asking(uri).lock_owned().await;
        let link = self.link().await?;
        let first = self.watched.more(uri);
        let keeps = (self.whose != Whose::All).then(|| self.this());
        let of = self.watched.clone();
        let watching = Watching { of, uri: uri.to_owned(), _keeps: keeps };
        if first {
            self.subscribe(&link, uri, true).await?;
        }
        Ok(Hold::of(watching))
    }

    /// Returns true if any resource is watched.
    pub(super) fn is_watched(&self) -> bool {
        !self.watched.all().is_empty()
    }

    /// Reconnects in the background while resources are watched, with growing pauses.
    pub(crate) fn goes_on_watching(&self) {
        if !self.is_watched() {
            return;
        }
        let this = self.this.clone();
        tokio::spawn(async move {
            let mut pause = AGAIN;
            loop {
                let Some(upstream) = this.upgrade() else { return };
                // A caller's own instance may have been dropped for another caller's.
                let served = upstream.lasting.upstream();
                let is_closed = served.is_none_or(|served| served.closed.load(Ordering::Acquire));
                let is_over = is_closed
                    || upstream.closed.load(Ordering::Acquire)
                    || upstream.retired.load(Ordering::Acquire);
                if is_over || !upstream.is_watched() {
                    return;
                }
                match upstream.link().await {
                    Ok(_) => return,
                    Err(why) => tracing::warn!("{}", why.message),
                }
                drop(upstream);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(AGAIN_MAX);
            }
        });
    }

    /// Subscribes to all watched resources over the new connection `link` and reports them as
    /// changed, because notifications may have been missed.
    pub(super) fn watch_again(&self, link: &Arc<Link>) {
        let uris = self.watched.uris();
        if uris.is_empty() {
            return;
        }
        let this = self.this();
        let link = link.clone();
        tokio::spawn(async move {
            let again = |uri: String| {
                let this = this.clone();
                let link = link.clone();
                async move {
                    let _one = this.watched.asking(&uri).lock_owned().await;
                    match this.subscribe(&link, &uri, true).await {
                        Ok(()) => this.changes.tell(&Change::Resource(uri.into())),
                        Err(why) => {
                            tracing::warn!("`{uri}` is not told of any more: {}", why.message);
                        }
                    }
                }
            };
            stream::iter(uris).for_each_concurrent(AT_ONCE, again).await;
        });
    }

    async fn subscribe(&self, link: &Arc<Link>, uri: &str, is: bool) -> Result<(), ToolError> {
        match link.revision.era {
            Era::Stateless => {
                self.listen(link);
                Ok(())
            }
            Era::Session => {
                let method = if is { "resources/subscribe" } else { "resources/unsubscribe" };
                let params = Map::from_iter([("uri".to_owned(), json!(uri))]);
                let asks = Asks::of(method, params).about(uri);
                let asked = tokio::time::timeout(WITHIN, link.ask(asks, Arc::new(Deaf))).await;
                let late = |_| Err(Trouble::Lost("it does not answer".to_owned()));
                let asked = asked.unwrap_or_else(late);
                asked.map(drop).map_err(|trouble| self.failed(method, trouble))
            }
        }
    }
}

/// Listens over `link` with `params`, and again whenever the request ends, until it is refused.
/// Lists are refreshed after each gap.
async fn listens(of: Weak<Upstream>, link: Weak<Link>, params: Map<String, Value>) {
    let mut pause = AGAIN;
    let mut is_again = false;
    loop {
        let Some(over) = link.upgrade() else { return };
        let hears: Arc<dyn Hears> = Arc::new(OfNobody(of.clone()));
        let gone = over.wire.gone().clone();
        let begun = Instant::now();
        let look = async {
            if let Some(upstream) = of.upgrade().filter(|_| is_again) {
                upstream.look_again();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // The listening request must start before the lists are refreshed.
            biased;
            ended = over.ask(Asks::of(LISTEN, params.clone()).unused(), hears) => {
                if matches!(ended, Err(Trouble::Refused(_))) {
                    // A refused request brings no notifications, even if the server declared them.
                    if let Some(upstream) = of.upgrade() {
                        upstream.looks_later(&over, Some(GOOD_FOR));
                    }
                    return;
                }
            }
            () = gone.cancelled() => return,
            () = look => {}
        }
        drop(over);
        if begun.elapsed() > LASTED {
            pause = AGAIN;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN_MAX);
        is_again = true;
    }
}

/// Counts of the watchers of each URI. They outlive a change of the upstream's settings.
#[derive(Default)]
pub(super) struct Watched {
    counts: Mutex<BTreeMap<String, usize>>,
    /// Locks that admit one subscription request per URI at a time, because their order matters.
    asking: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// The upstream as it is served now.
    of: RwLock<Weak<Upstream>>,
}

impl Watched {
    pub(super) fn is_of(&self, upstream: &Arc<Upstream>) {
        *self.of.write().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(upstream);
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lock for subscription requests of `uri`.
    fn asking(&self, uri: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = all.get(uri).and_then(Weak::upgrade) {
            return one;
        }
        all.retain(|_, one| one.strong_count() > 0);
        let one = Arc::default();
        all.insert(uri.to_owned(), Arc::downgrade(&one));
        one
    }

    fn uris(&self) -> Vec<String> {
        self.all().keys().cloned().collect()
    }

    /// Adds a watcher of `uri`. Returns true if it is the first.
    fn more(&self, uri: &str) -> bool {
        let mut all = self.all();
        let times = all.entry(uri.to_owned()).or_default();
        *times += 1;
        *times == 1
    }

    /// Removes a watcher of `uri`. Returns true if it was the last.
    fn less(&self, uri: &str) -> bool {
        let mut all = self.all();
        let Some(times) = all.get_mut(uri) else { return false };
        *times -= 1;
        *times == 0 && all.remove(uri).is_some()
    }

    fn upstream(&self) -> Option<Arc<Upstream>> {
        self.of.read().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}

/// A watched resource. Dropping it ends the watch.
struct Watching {
    of: Arc<Watched>,
    uri: String,
    /// The caller's own instance, kept alive while it is watched.
    _keeps: Option<Arc<Upstream>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        if !self.of.less(&self.uri) {
            return;
        }
        let Some(upstream) = self.of.upstream() else { return };
        let (Some(link), Ok(runtime)) = (upstream.live(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let uri = std::mem::take(&mut self.uri);
        runtime.spawn(async move {
            let _one = upstream.watched.asking(&uri).lock_owned().await;
            // Another caller may watch it by now.
            if !upstream.watched.all().contains_key(&uri) {
                let _ = upstream.subscribe(&link, &uri, false).await;
            }
        });
    }
}

/// Receiver of messages that belong to no call.
pub(super) struct OfNobody(pub(super) Weak<Upstream>);

impl Hears for OfNobody {
    fn asks(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.asks.store(true, Ordering::Release);
        }
    }

    fn missed(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.may_be_another();
            upstream.look_again();
        }
    }

    fn unheard(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.is_unheard();
        }
    }

    fn said(&self, method: &str, params: &Value) {
        let Some(upstream) = self.0.upgrade() else { return };
        match method {
            "notifications/tools/list_changed" => upstream.has_changed(Change::Tools),
            "notifications/prompts/list_changed" => upstream.has_changed(Change::Prompts),
            "notifications/resources/list_changed" => upstream.has_changed(Change::Resources),
            VISITED => upstream.visited.notify_waiters(),
            "notifications/resources/updated" => {
                let uri = params.get("uri").and_then(Value::as_str);
                // An upstream cannot announce changes of this server's own resources.
                let Some(served) = upstream.lasting.upstream() else { return };
                if let Some(uri) = uri.filter(|uri| !served.keeps.is_own_uri(uri)) {
                    upstream.changes.tell(&Change::Resource(uri.into()));
                }
            }
            _ => {}
        }
    }

    fn asked(
        self: Arc<Self>,
        method: String,
        _params: Value,
    ) -> BoxFuture<'static, Result<Value, RpcError>> {
        Box::pin(async move {
            let upstream = self.0.upgrade();
            let upstream = upstream.ok_or_else(|| RpcError::new(-32603, "the server stops"))?;
            match method.as_str() {
                "roots/list" => Ok(upstream.folders().unwrap_or_else(|| json!({ "roots": [] }))),
                _ => Err(RpcError::new(-32601, format!("nobody can be asked `{method}` now"))),
            }
        })
    }
}
