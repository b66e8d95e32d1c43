//! A connection to an upstream, with the protocol revision on which both sides agreed.

pub(crate) mod checked_pins;
mod handshake;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolgate_contract::{LogLevel, QuestionSupport, exact_json, lock_mutex};
use toolgate_dialects::mcp::upstream::{
    McpRevision, SessionModel, UpstreamRequestMetadata, request_params,
};

use crate::message;
use crate::transport::{
    MessageReceiver, OutgoingMessage, TransportConnection, UpstreamRequestFailure,
};
use crate::world::UpstreamRefusedHost;
use checked_pins::ConnectionPinChecks;
use handshake::{NegotiatedRevision, UpstreamHandshake};

/// Time for which the list of an upstream's tools is valid if the upstream states no lifetime.
pub(crate) const LISTING_LIFETIME: Duration = Duration::from_secs(300);
/// Longest wait for an answer to `logging/setLevel`, a method that some servers do not know.
const LOG_LEVEL_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection to an upstream, on which both sides have agreed on a protocol revision.
pub(crate) struct UpstreamConnection {
    pub(crate) transport: Arc<dyn TransportConnection>,
    pub(crate) revision: &'static McpRevision,
    /// Members of the upstream's answer to the handshake: `capabilities`, `instructions`,
    /// `serverInfo`.
    pub(crate) server_info: Value,
    pub(crate) since: Instant,
    /// Receiver of the upstream's messages that belong to no call.
    pub(crate) receiver: Arc<dyn MessageReceiver>,
    ids: AtomicU64,
    /// Number of requests in flight that keep the connection from being idle.
    requests_in_use: AtomicUsize,
    /// True if the last request over the connection was not delivered, got lost or was not
    /// authorized.
    is_troubled: AtomicBool,
    /// Time at which the last request ended, in milliseconds after the connection began.
    last_used_ms: AtomicU64,
    /// Lowest log level that the upstream was asked to send. `None` if no level was requested.
    log_level: Mutex<Option<LogLevel>>,
    /// Tools whose definitions were compared with their pins over this connection.
    pub(crate) checked_pins: ConnectionPinChecks,
}

/// A request to an upstream.
pub(crate) struct UpstreamRequest<'a> {
    pub(crate) method: &'static str,
    pub(crate) params: Map<String, Value>,
    /// Target of the request: a tool, a prompt or a URI.
    pub(crate) target: Option<&'a str>,
    pub(crate) meta: UpstreamRequestMetadata<'a>,
    /// True if the caller wants progress notifications.
    pub(crate) wants_progress: bool,
    pub(crate) header_params: Vec<(String, String)>,
    /// True if the connection does not count as idle while the request is in flight.
    pub(crate) keeps_in_use: bool,
}

impl<'a> UpstreamRequest<'a> {
    /// Creates a request to an upstream of the method `method` with `params`.
    pub(crate) fn new(method: &'static str, params: Map<String, Value>) -> Self {
        let target = None;
        let header_params = Vec::new();
        let meta = UpstreamRequestMetadata::default();
        Self {
            method,
            params,
            target,
            meta,
            wants_progress: false,
            header_params,
            keeps_in_use: true,
        }
    }

    /// Returns the request, changed so that the connection may count as idle while the request is
    /// in flight.
    pub(crate) fn without_use(self) -> Self {
        Self { keeps_in_use: false, ..self }
    }

    /// Returns the request with `name` as its target: a tool, a prompt or a URI.
    pub(crate) fn with_target(self, name: &'a str) -> Self {
        Self { target: Some(name), ..self }
    }
}

impl UpstreamConnection {
    /// Agrees on a protocol revision over `transport`: `wanted`, or the newest that both sides
    /// support. The handshake offers `capabilities`.
    pub(crate) async fn negotiate(
        transport: Arc<dyn TransportConnection>,
        wanted: Option<&'static McpRevision>,
        capabilities: QuestionSupport,
        receiver: &Arc<dyn MessageReceiver>,
    ) -> Result<Self, UpstreamRequestFailure> {
        let new_connection = |revision, server_info| Self {
            transport: transport.clone(),
            revision,
            server_info,
            since: Instant::now(),
            receiver: receiver.clone(),
            ids: AtomicU64::new(10),
            requests_in_use: AtomicUsize::new(0),
            is_troubled: AtomicBool::new(false),
            last_used_ms: AtomicU64::new(0),
            log_level: Mutex::default(),
            checked_pins: ConnectionPinChecks::default(),
        };
        let handshake = UpstreamHandshake::new(&transport, capabilities, receiver);
        let NegotiatedRevision { revision, server_info } = handshake.agree(wanted).await?;
        transport.set_revision(Some(revision));
        let connection = new_connection(revision, server_info);
        if revision.era == SessionModel::Session {
            connection.begin_session().await?;
        }
        Ok(connection)
    }

    /// Notifies the upstream that the session has begun.
    async fn begin_session(&self) -> Result<(), UpstreamRequestFailure> {
        let begun = new_message(None, "notifications/initialized", None, &Value::Null);
        self.transport.send_notification(begun).await?;
        self.transport.start_listening();
        self.set_log_level(Some(LogLevel::Info)).await;
        Ok(())
    }

    /// Asks the upstream for log lines of the level `least` and above, unless the upstream sends
    /// them already. Each caller's own filter decides which lines the caller gets.
    pub(crate) async fn set_log_level(&self, least: Option<LogLevel>) {
        let Some(least) = least.filter(|_| self.has("logging")) else { return };
        {
            let mut logs = lock_mutex(&self.log_level);
            if logs.is_some_and(|logs| logs <= least) {
                return;
            }
            *logs = Some(least);
        }
        let level = Map::from_iter([("level".to_owned(), json!(least))]);
        // A server that refuses keeps its own log level.
        let request = UpstreamRequest::new("logging/setLevel", level);
        let _ =
            tokio::time::timeout(LOG_LEVEL_TIMEOUT, self.request(request, self.receiver.clone()))
                .await;
    }

    /// Returns true if the upstream declared `capability`.
    pub(crate) fn has(&self, capability: &str) -> bool {
        self.server_info["capabilities"].get(capability).is_some_and(Value::is_object)
    }

    /// Returns true if the upstream declared the option `option` of `capability`.
    pub(crate) fn has_option(&self, capability: &str, option: &str) -> bool {
        self.server_info["capabilities"][capability][option].as_bool().unwrap_or(false)
    }

    /// Sends a request to the upstream and returns its result.
    pub(crate) async fn request(
        &self,
        request: UpstreamRequest<'_>,
        receiver: Arc<dyn MessageReceiver>,
    ) -> Result<Value, UpstreamRequestFailure> {
        let UpstreamRequest {
            method,
            params,
            target,
            meta,
            wants_progress,
            header_params,
            keeps_in_use,
        } = request;
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let meta = UpstreamRequestMetadata { progress_token: wants_progress.then_some(id), ..meta };
        let params = request_params(params, &meta, self.revision);
        let message =
            OutgoingMessage { header_params, ..new_message(Some(id), method, target, &params) };
        let _busy = keeps_in_use.then(|| BusyConnectionGuard::new(self));
        let refused_before = self.transport.refused_hosts();
        let answered = self.transport.request(message, receiver.clone()).await;
        let refused_now = self.transport.refused_hosts();
        for refused in UpstreamRefusedHost::tries_since(&refused_before, refused_now) {
            receiver.record_refused_host(&refused);
        }
        let delivered = match &answered {
            Err(
                UpstreamRequestFailure::NotSent(why)
                | UpstreamRequestFailure::Lost(why)
                | UpstreamRequestFailure::Unauthorized(why),
            ) => Err(why.as_str()),
            Ok(_)
            | Err(UpstreamRequestFailure::Refused(_) | UpstreamRequestFailure::SessionGone(_)) => {
                Ok(())
            }
        };
        if self.is_troubled.load(Ordering::Relaxed) != delivered.is_err() {
            self.is_troubled.store(delivered.is_err(), Ordering::Relaxed);
            self.receiver.record_delivery(delivered);
        }
        let result = answered?;
        exact_json::parse(result.get()).map_err(|err| UpstreamRequestFailure::Lost(err.to_string()))
    }

    /// Returns true if the last request over the connection was not delivered, got lost or was not
    /// authorized.
    pub(crate) fn is_in_trouble(&self) -> bool {
        self.is_troubled.load(Ordering::Relaxed)
    }

    /// Returns the time for which the connection has been idle, or `None` while it is in use.
    pub(crate) fn idle_time(&self) -> Option<Duration> {
        if self.requests_in_use.load(Ordering::Acquire) > 0 {
            return None;
        }
        let used = Duration::from_millis(self.last_used_ms.load(Ordering::Acquire));
        Some(self.since.elapsed().saturating_sub(used))
    }
}

/// Guard that counts a request in flight on a connection until the guard is dropped.
struct BusyConnectionGuard<'a>(&'a UpstreamConnection);

impl<'a> BusyConnectionGuard<'a> {
    fn new(connection: &'a UpstreamConnection) -> Self {
        connection.requests_in_use.fetch_add(1, Ordering::AcqRel);
        Self(connection)
    }
}

impl Drop for BusyConnectionGuard<'_> {
    fn drop(&mut self) {
        let now = u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_used_ms.store(now, Ordering::Release);
        self.0.requests_in_use.fetch_sub(1, Ordering::AcqRel);
    }
}

fn new_message(
    id: Option<u64>,
    method: &str,
    name: Option<&str>,
    params: &Value,
) -> OutgoingMessage {
    let body = message::encode_message(id, method, params);
    let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
    let method = method.to_owned();
    OutgoingMessage { id, method, target: name, header_params: Vec::new(), body }
}
