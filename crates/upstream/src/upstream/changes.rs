//! Handles notifications that belong to no call: changes of lists and of watched resources.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use serde_json::{Map, Value, json};
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{
    KeepActiveGuard, ServerChange, ToolError, lock_mutex, lock_read, lock_write,
};
use toolgate_dialects::mcp::upstream::SessionModel;
use toolgate_net::RetryBackoff;

use super::{Upstream, UpstreamInstanceOwner};
use crate::connection::{LISTING_LIFETIME, UpstreamConnection, UpstreamRequest};
use crate::message::UpstreamRpcError;
use crate::server_requests::{ELICITATION_COMPLETE, RefusingMessageReceiver};
use crate::start_report::UpstreamStartReport;
use crate::transport::{AnswerFuture, LISTEN, MessageReceiver, UpstreamRequestFailure};

/// First pause before a stream of notifications is opened again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause before a stream of notifications is opened again.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Timeout of a subscription request.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of resource subscriptions that are renewed at once on a new connection.
const RENEWED_AT_ONCE: usize = 8;
/// Duration after which a stream of notifications counts as stable.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The request of the stateless protocol that listens for notifications.
pub(super) struct ChangeListenRequest {
    wanted: String,
    connection: Weak<UpstreamConnection>,
    task: AbortOnDropHandle<()>,
}

impl Upstream {
    /// Sends the request of the stateless protocol that listens for changes of lists and of watched
    /// resources.
    pub(super) fn listen(&self, link: &Arc<UpstreamConnection>) {
        // The lock is held so that the later of two requests knows all watched URIs.
        let mut listening = lock_mutex(&self.listening);
        let uris = self.watches.uris();
        let mut wanted = Map::new();
        for (capability, flag) in [
            ("tools", "toolsListChanged"),
            ("prompts", "promptsListChanged"),
            ("resources", "resourcesListChanged"),
        ] {
            if link.has_option(capability, "listChanged") {
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
            before.wanted == key && before.connection.ptr_eq(&link) && !before.task.is_finished()
        }) {
            return;
        }
        // A connection that is no longer in use is not kept for listening.
        if !self.live_connection().is_some_and(|live| link.ptr_eq(&Arc::downgrade(&live))) {
            return;
        }
        let task = AbortOnDropHandle::new(toolgate_net::spawn_task(keep_listening(
            this,
            link.clone(),
            params,
        )));
        *listening = Some(ChangeListenRequest { wanted: key, connection: link, task });
    }

    /// Ends the listening request over the connection `link`, which is being closed.
    pub(super) fn stop_listening(&self, link: &Arc<UpstreamConnection>) {
        let mut listening = lock_mutex(&self.listening);
        listening.take_if(|listening| listening.connection.ptr_eq(&Arc::downgrade(link)));
    }

    /// Watches the resource `uri` until the returned guard is dropped. Fails if the upstream
    /// refuses the subscription.
    pub(crate) async fn watch(&self, uri: &str) -> Result<KeepActiveGuard, ToolError> {
        // A second watcher waits for the outcome of the first subscription.
        let _lock = self.watches.request_lock(uri).lock_owned().await;
        let link = self.connection().await?;
        let first = self.watches.add_watcher(uri);
        let instance = (self.owner != UpstreamInstanceOwner::Shared).then(|| self.this());
        let counts = self.watches.clone();
        let watching = UpstreamResourceWatch { counts, uri: uri.to_owned(), _instance: instance };
        if first {
            self.subscribe(&link, uri, true).await?;
        }
        Ok(KeepActiveGuard::new(watching))
    }

    /// Returns true if any resource is watched.
    pub(super) fn is_watched(&self) -> bool {
        !lock_mutex(&self.watches.counts).is_empty()
    }

    /// Reconnects in the background while resources are watched, with growing pauses.
    pub(crate) fn reconnect_to_watch(&self) {
        if !self.is_watched() {
            return;
        }
        let this = self.this.clone();
        toolgate_net::spawn_task(async move {
            let mut backoff = RetryBackoff::new(RETRY_PAUSE, RETRY_PAUSE_MAX);
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
                match upstream.connection().await {
                    Ok(_) => return,
                    Err(why) => tracing::warn!("{}", why.message),
                }
                drop(upstream);
                tokio::time::sleep(backoff.next_pause()).await;
            }
        });
    }

    /// Subscribes to all watched resources over the new connection `link` and reports them as
    /// changed, because notifications may have been missed.
    pub(super) fn resubscribe_watches(&self, link: &Arc<UpstreamConnection>) {
        let uris = self.watches.uris();
        if uris.is_empty() {
            return;
        }
        let this = self.this();
        let link = link.clone();
        toolgate_net::spawn_task(async move {
            let renew = |uri: String| {
                let this = this.clone();
                let link = link.clone();
                async move {
                    let _lock = this.watches.request_lock(&uri).lock_owned().await;
                    match this.subscribe(&link, &uri, true).await {
                        Ok(()) => this.changes.publish(&ServerChange::Resource(uri.into())),
                        Err(why) => {
                            tracing::warn!("`{uri}` is no longer watched: {}", why.message);
                        }
                    }
                }
            };
            stream::iter(uris).for_each_concurrent(RENEWED_AT_ONCE, renew).await;
        });
    }

    async fn subscribe(
        &self,
        link: &Arc<UpstreamConnection>,
        uri: &str,
        subscribes: bool,
    ) -> Result<(), ToolError> {
        match link.revision.era {
            SessionModel::Stateless => {
                self.listen(link);
                Ok(())
            }
            SessionModel::Session => {
                let method =
                    if subscribes { "resources/subscribe" } else { "resources/unsubscribe" };
                let params = Map::from_iter([("uri".to_owned(), json!(uri))]);
                let request = UpstreamRequest::new(method, params).with_target(uri);
                let answered = tokio::time::timeout(
                    SUBSCRIBE_TIMEOUT,
                    link.request(request, Arc::new(RefusingMessageReceiver)),
                )
                .await;
                let late =
                    |_| Err(UpstreamRequestFailure::Lost("it did not answer in time".to_owned()));
                let answered = answered.unwrap_or_else(late);
                answered.map(drop).map_err(|trouble| self.tool_error(method, trouble))
            }
        }
    }
}

/// Listens for notifications over `link` with `params`. Repeats the request when it ends, until it
/// is refused. Refreshes the lists after each interruption.
async fn keep_listening(
    weak: Weak<Upstream>,
    link: Weak<UpstreamConnection>,
    params: Map<String, Value>,
) {
    let mut backoff = RetryBackoff::new(RETRY_PAUSE, RETRY_PAUSE_MAX);
    let mut is_repeated = false;
    loop {
        let Some(connection) = link.upgrade() else { return };
        let receiver: Arc<dyn MessageReceiver> = Arc::new(ConnectionMessageReceiver(weak.clone()));
        let gone = connection.transport.closed().clone();
        let begun = Instant::now();
        let refresh = async {
            if let Some(upstream) = weak.upgrade().filter(|_| is_repeated) {
                upstream.refresh();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // The listening request must start before the lists are refreshed.
            biased;
            ended = connection.request(UpstreamRequest::new(LISTEN, params.clone()).without_use(), receiver) => {
                if matches!(ended, Err(UpstreamRequestFailure::Refused(_))) {
                    // A refused request brings no notifications, even if the server declared them.
                    if let Some(upstream) = weak.upgrade() {
                        upstream.refresh_later(&connection, Some(LISTING_LIFETIME));
                    }
                    return;
                }
            }
            () = gone.cancelled() => return,
            () = refresh => {}
        }
        drop(connection);
        if begun.elapsed() > STABLE_AFTER {
            backoff.reset();
        }
        tokio::time::sleep(backoff.next_pause()).await;
        is_repeated = true;
    }
}

/// The number of watchers of each resource of an upstream, by URI. The counts survive a change of
/// the upstream's settings.
#[derive(Default)]
pub(super) struct ResourceWatchCounts {
    counts: Mutex<BTreeMap<String, usize>>,
    /// Locks that admit one subscription request per URI at a time, because their order matters.
    request_locks: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// The upstream that is served now. A change of the upstream's settings replaces it.
    upstream: RwLock<Weak<Upstream>>,
}

impl ResourceWatchCounts {
    pub(super) fn set_upstream(&self, upstream: &Arc<Upstream>) {
        *lock_write(&self.upstream) = Arc::downgrade(upstream);
    }

    /// Returns the lock for subscription requests of `uri`.
    fn request_lock(&self, uri: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = lock_mutex(&self.request_locks);
        if let Some(one) = all.get(uri).and_then(Weak::upgrade) {
            return one;
        }
        all.retain(|_, one| one.strong_count() > 0);
        let one = Arc::default();
        all.insert(uri.to_owned(), Arc::downgrade(&one));
        one
    }

    fn uris(&self) -> Vec<String> {
        lock_mutex(&self.counts).keys().cloned().collect()
    }

    /// Adds a watcher of the resource `uri`. Returns true if the resource had no watchers before.
    fn add_watcher(&self, uri: &str) -> bool {
        let mut all = lock_mutex(&self.counts);
        let times = all.entry(uri.to_owned()).or_default();
        *times += 1;
        *times == 1
    }

    /// Removes a watcher of the resource `uri`. Returns true if the resource has no watchers any
    /// more.
    fn remove_watcher(&self, uri: &str) -> bool {
        let mut all = lock_mutex(&self.counts);
        let Some(times) = all.get_mut(uri) else { return false };
        *times -= 1;
        *times == 0 && all.remove(uri).is_some()
    }

    fn upstream(&self) -> Option<Arc<Upstream>> {
        lock_read(&self.upstream).upgrade()
    }
}

/// A watch of a resource at the upstream. Dropping the value ends the watch.
struct UpstreamResourceWatch {
    counts: Arc<ResourceWatchCounts>,
    uri: String,
    /// The caller's own upstream instance, if any, which stays alive during the watch.
    _instance: Option<Arc<Upstream>>,
}

impl Drop for UpstreamResourceWatch {
    fn drop(&mut self) {
        if !self.counts.remove_watcher(&self.uri) {
            return;
        }
        let Some(upstream) = self.counts.upstream() else { return };
        let (Some(link), Ok(runtime)) =
            (upstream.live_connection(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let uri = std::mem::take(&mut self.uri);
        toolgate_net::spawn_task_on(&runtime, async move {
            let _lock = upstream.watches.request_lock(&uri).lock_owned().await;
            // Another caller may watch it by now.
            if !lock_mutex(&upstream.watches.counts).contains_key(&uri) {
                let _ = upstream.subscribe(&link, &uri, false).await;
            }
        });
    }
}

/// Receiver of an upstream's messages that belong to no call.
pub(super) struct ConnectionMessageReceiver(pub(super) Weak<Upstream>);

impl ConnectionMessageReceiver {
    fn change_report(&self, change: impl FnOnce(&mut UpstreamStartReport)) {
        if let Some(upstream) = self.0.upgrade() {
            change(&mut lock_mutex(&upstream.start_report));
        }
    }
}

impl MessageReceiver for ConnectionMessageReceiver {
    fn record_question(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.has_asked.store(true, Ordering::Release);
        }
    }

    fn record_missed(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.invalidate_checks();
            upstream.refresh();
        }
    }

    fn record_unheard(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.record_unheard();
        }
    }

    fn record_delivery(&self, delivered: Result<(), &str>) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.health.record(&upstream.name, delivered);
        }
    }

    fn record_exchange(&self, asked: &str, outcome: Option<&str>) {
        self.change_report(|report| report.record_exchange(asked, outcome));
    }

    fn record_output(&self, output: &[u8]) {
        self.change_report(|report| report.record_output(output));
    }

    fn record_error_output(&self, output: &[u8]) {
        self.change_report(|report| report.record_error_output(output));
    }

    fn record_redirect(&self, location: &str) {
        if let Some(upstream) = self.0.upgrade() {
            tracing::warn!(
                "the upstream `{}` redirects to `{location}`: set this address as its `url`",
                upstream.name
            );
        }
        self.change_report(|report| report.record_redirect(location));
    }

    fn notify(&self, method: &str, params: &Value) {
        let Some(upstream) = self.0.upgrade() else { return };
        match method {
            "notifications/tools/list_changed" => upstream.record_change(ServerChange::Tools),
            "notifications/prompts/list_changed" => upstream.record_change(ServerChange::Prompts),
            "notifications/resources/list_changed" => {
                upstream.record_change(ServerChange::Resources);
            }
            ELICITATION_COMPLETE => upstream.visit_completed.notify_waiters(),
            "notifications/resources/updated" => {
                let uri = params.get("uri").and_then(Value::as_str);
                // An upstream cannot announce changes of this server's own resources.
                let Some(served) = upstream.lasting.upstream() else { return };
                if let Some(uri) = uri.filter(|uri| !served.host.is_own_uri(uri)) {
                    upstream.changes.publish(&ServerChange::Resource(uri.into()));
                }
            }
            _ => {}
        }
    }

    fn answer_request(self: Arc<Self>, method: String, _params: Value) -> AnswerFuture {
        Box::pin(async move {
            let upstream = self.0.upgrade();
            let upstream = upstream
                .ok_or_else(|| UpstreamRpcError::new(-32603, "the server is shutting down"))?;
            match method.as_str() {
                "roots/list" => Ok(upstream.folders().unwrap_or_else(|| json!({ "roots": [] }))),
                _ => Err(UpstreamRpcError::new(
                    -32601,
                    format!("`{method}` is not supported outside a call"),
                )),
            }
        })
    }
}
