//! What an upstream says to nobody in particular: that its lists or what is watched of it changed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;
use toolgate_contract::{BoxFuture, Change, Hold, ToolError};
use toolgate_dialects::mcp::upstream::Era;

use super::{Lasting, Upstream};
use crate::hearing::Deaf;
use crate::link::{Asks, Link};
use crate::listing::GOOD_FOR;
use crate::message::RpcError;
use crate::wire::{Hears, LISTEN, Trouble};

/// After how long what has ended is listened to again, and for how long at most where it ends again
/// and again.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// What lasted so long did not end at once.
const LASTED: Duration = Duration::from_secs(10);

/// What is listened to in the stateless era, over which connection.
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
    /// Hears, in the stateless era, when its lists or what is watched of it change.
    pub(super) fn listen(&self, link: &Arc<Link>) {
        let uris: Vec<_> = {
            let watched = self.lasting.watched.lock().unwrap_or_else(PoisonError::into_inner);
            watched.keys().cloned().collect()
        };
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
            return;
        }
        let params = Map::from_iter([("notifications".to_owned(), Value::Object(wanted))]);
        let key = params["notifications"].to_string();
        let (this, link) = (self.this.clone(), Arc::downgrade(link));
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        if listening.as_ref().is_some_and(|before| {
            before.wanted == key && before.over.ptr_eq(&link) && !before.task.is_finished()
        }) {
            return;
        }
        // What is not in use any more is kept for nobody who listens.
        if !self.live().is_some_and(|live| link.ptr_eq(&Arc::downgrade(&live))) {
            return;
        }
        let task = tokio::spawn(listens(this, link.clone(), params));
        *listening = Some(Listening { wanted: key, over: link, task });
    }

    /// Ends what is listened to over `link`, which is let go.
    pub(super) fn listens_no_more(&self, link: &Arc<Link>) {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        listening.take_if(|listening| listening.over.ptr_eq(&Arc::downgrade(link)));
    }

    /// Hears of what `uri` holds for as long as the result is held.
    pub(crate) async fn watch(&self, uri: &str) -> Result<Hold, ToolError> {
        let link = self.link().await?;
        let first = {
            let mut watched = self.lasting.watched.lock().unwrap_or_else(PoisonError::into_inner);
            let times = watched.entry(uri.to_owned()).or_default();
            *times += 1;
            *times == 1
        };
        let watching = Watching { of: self.lasting.clone(), uri: uri.to_owned() };
        if first {
            self.subscribe(&link, uri, true).await?;
        }
        Ok(Hold::of(watching))
    }

    /// Connects, where something is watched that was before its settings were others.
    pub(crate) fn goes_on_watching(&self) {
        if self.lasting.watched.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return;
        }
        let this = self.this();
        tokio::spawn(async move {
            if let Err(why) = this.link().await {
                tracing::warn!("{}", why.message);
            }
        });
    }

    /// Has `link`, which is new, tell of what is watched already.
    pub(super) fn watch_again(&self, link: &Arc<Link>) {
        // Without a session it is asked with all else that it is to tell.
        if link.revision.era == Era::Stateless {
            return;
        }
        let watched = self.lasting.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let uris: Vec<_> = watched.keys().cloned().collect();
        drop(watched);
        let (this, link) = (self.this(), link.clone());
        tokio::spawn(async move {
            for uri in uris {
                if let Err(why) = this.subscribe(&link, &uri, true).await {
                    tracing::warn!("`{uri}` is not told of any more: {}", why.message);
                }
            }
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
                let asked = link.ask(Asks::of(method, params).about(uri), Arc::new(Deaf)).await;
                asked.map(drop).map_err(|trouble| self.failed(method, trouble))
            }
        }
    }
}

/// Listens over `link` to what `params` say, again whenever that ends, until it is refused. What was
/// said meanwhile is seen by looking.
async fn listens(of: Weak<Upstream>, link: Weak<Link>, params: Map<String, Value>) {
    let mut pause = AGAIN;
    let mut is_again = false;
    loop {
        let Some(over) = link.upgrade() else { return };
        let hears: Arc<dyn Hears> = Arc::new(OfNobody(of.clone()));
        let (gone, begun) = (over.wire.gone().clone(), Instant::now());
        let look = async {
            if let Some(upstream) = of.upgrade().filter(|_| is_again) {
                upstream.look_again();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // It is said that we listen before it is looked at what there is.
            biased;
            ended = over.ask(Asks::of(LISTEN, params.clone()).unused(), hears) => {
                if matches!(ended, Err(Trouble::Refused(_))) {
                    // Then nothing is told, whatever it says that it tells.
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

/// A resource that is watched.
struct Watching {
    of: Arc<Lasting>,
    uri: String,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watched = self.of.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(times) = watched.get_mut(&self.uri) else { return };
        *times -= 1;
        if *times > 0 {
            return;
        }
        watched.remove(&self.uri);
        drop(watched);
        let Some(upstream) = self.of.upstream() else { return };
        let (Some(link), Ok(runtime)) = (upstream.live(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let uri = std::mem::take(&mut self.uri);
        runtime.spawn(async move {
            let _ = upstream.subscribe(&link, &uri, false).await;
        });
    }
}

/// Hears what an upstream says to nobody in particular.
pub(super) struct OfNobody(pub(super) Weak<Upstream>);

impl Hears for OfNobody {
    fn asks(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.asks.store(true, Ordering::Release);
        }
    }

    fn missed(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.look_again();
        }
    }

    fn said(&self, method: &str, params: &Value) {
        let Some(upstream) = self.0.upgrade() else { return };
        match method {
            "notifications/tools/list_changed" => upstream.has_changed(Change::Tools),
            "notifications/prompts/list_changed" => upstream.has_changed(Change::Prompts),
            "notifications/resources/list_changed" => upstream.has_changed(Change::Resources),
            "notifications/resources/updated" => {
                if let Some(uri) = params.get("uri").and_then(Value::as_str) {
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
