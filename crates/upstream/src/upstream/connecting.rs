//! Connects to an upstream and closes connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_contract::{
    QuestionSupport, ToolError, ToolErrorKind, fill_variables, lock_mutex, lock_read, lock_write,
};
use toolgate_dialects::mcp::upstream::{McpRevision, SessionModel};

use super::changes::ConnectionMessageReceiver;
use super::failures::duration_text;
use super::{Upstream, UpstreamHealth, UpstreamState};
use crate::connection::UpstreamConnection;
use crate::oauth::UpstreamCredentials;
use crate::settings::{UpstreamSettings, UpstreamTransport, revision_named};
use crate::start_report::UpstreamStartReport;
use crate::transport::{
    MessageReceiver, TransportConnection, UpstreamRequestFailure, describe_failure,
};
use crate::transports::http::HttpTransport;
use crate::transports::site::UpstreamEndpoint;
use crate::transports::{lines, sse, websocket};
use crate::world::UpstreamProgramStart;

/// First pause after a failed start of an upstream.
const BACK_OFF: Duration = Duration::from_millis(500);
/// Number of times that the pause after a failed start of an upstream doubles.
const BACK_OFF_DOUBLES: u32 = 6;
/// Uptime after which the start of an upstream counts as successful.
const STARTED_AFTER: Duration = Duration::from_secs(10);
/// Client capabilities on a connection that several callers share.
const SHARED_CAPABILITIES: QuestionSupport =
    QuestionSupport { form: true, visit: true, sample: true, tools: true, roots: true };
/// Interval at which toolgate checks whether a connection is idle.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest message to accept from an upstream, in bytes. The complete message is in memory while
/// toolgate reads it.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Recent failures to connect to an upstream.
#[derive(Default)]
pub(super) struct RecentConnectFailures {
    count: u32,
    not_before: Option<Instant>,
    why: String,
}

impl RecentConnectFailures {
    /// Records a failure to connect with the reason `why`, and sets the next pause.
    fn record(&mut self, why: &str) {
        self.count += 1;
        let doubled = BACK_OFF * 2_u32.pow((self.count - 1).min(BACK_OFF_DOUBLES));
        self.not_before = Some(Instant::now() + doubled);
        why.clone_into(&mut self.why);
    }
}

impl Upstream {
    /// Closes the upstream's connections as soon as no call uses them, connects again and lists the
    /// upstream. Returns the number of tools that it offers.
    ///
    /// # Errors
    /// The reason why the upstream cannot be reached or listed, for people.
    pub(crate) async fn reconnect(&self) -> Result<usize, String> {
        self.close_when_unused();
        // A pause after earlier failures does not apply to a person's wish.
        self.connecting.lock().await.not_before = None;
        let listing = self.list().await?;
        let names = listing.tools.iter().filter_map(|tool| tool["name"].as_str());
        Ok(names.filter(|name| self.serves(name)).count())
    }

    /// Closes all connections to the upstream permanently.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.dedicated.close();
        self.callers.close();
        self.close_when_unused();
    }

    /// Closes the upstream's connections as soon as no call uses them.
    pub(super) fn close_when_unused(&self) {
        self.dedicated.drop_idle();
        let now = lock_write(&self.shared_connection).take();
        drop(lock_mutex(&self.listening).take());
        drop(now);
    }

    pub(super) fn live_connection(&self) -> Option<Arc<UpstreamConnection>> {
        let now = lock_read(&self.shared_connection);
        now.clone().filter(|link| !link.transport.closed().is_cancelled())
    }

    /// Returns the best connection state among this instance and the instances of single callers.
    pub(crate) fn state(&self) -> UpstreamState {
        let own = match self.live_connection() {
            Some(link) if link.is_in_trouble() => UpstreamState::Failing,
            Some(_) => UpstreamState::Connected,
            None if self.failing.load(Ordering::Acquire) => UpstreamState::Failing,
            None => UpstreamState::Idle,
        };
        self.callers.states().fold(own, UpstreamState::max)
    }

    /// Returns the reachability of the upstream.
    pub(crate) fn health(&self) -> UpstreamHealth {
        self.health.current()
    }

    /// Returns the current connection to the upstream, or opens one. Fails if the upstream cannot
    /// be reached.
    pub(crate) async fn connection(&self) -> Result<Arc<UpstreamConnection>, ToolError> {
        if let Some(link) = self.live_connection() {
            return Ok(link);
        }
        // Connecting continues even if the first caller stops waiting.
        let this = self.this();
        let connected = toolgate_net::spawn_task(async move { this.connect_shared().await }).await;
        connected.unwrap_or_else(|err| Err(self.unavailable(&err.to_string())))
    }

    async fn connect_shared(&self) -> Result<Arc<UpstreamConnection>, ToolError> {
        let mut failed = self.connecting.lock().await;
        if let Some(link) = self.live_connection() {
            return Ok(link);
        }
        self.check_pause(&failed)?;
        self.is_unheard.store(false, Ordering::Release);
        let within = Duration::from_millis(self.settings.start_ms);
        let connected = match tokio::time::timeout(within, self.connect(SHARED_CAPABILITIES)).await
        {
            Ok(connected) => connected,
            Err(_) => {
                Err(format!("it did not respond within {} of starting", duration_text(within)))
            }
        };
        let is_closed = self.closed.load(Ordering::Acquire);
        // A server that shuts down ends the programs that it just started.
        if connected.is_ok() || !is_closed {
            self.failing.store(connected.is_err(), Ordering::Release);
            self.health.record(&self.name, connected.as_ref().map(|_| ()).map_err(String::as_str));
        }
        match connected {
            Ok(_) if is_closed => Err(self.unavailable("the server is shutting down")),
            Ok(link) => {
                let link = Arc::new(link);
                *lock_write(&self.shared_connection) = Some(link.clone());
                if self.closed.load(Ordering::Acquire) {
                    self.close_when_unused();
                    return Err(self.unavailable("the server is shutting down"));
                }
                self.supervise(&link);
                self.resubscribe_watches(&link);
                self.refresh();
                self.refresh_signal.notify_one();
                Ok(link)
            }
            Err(why) => {
                failed.record(&why);
                self.record_list_failure();
                Err(self.unavailable(&why))
            }
        }
    }

    fn unavailable(&self, why: &str) -> ToolError {
        let message = format!("the upstream `{}` is unavailable: {why}", self.name);
        ToolError::new(ToolErrorKind::Unavailable, message)
    }

    /// Returns an error while the pause after a failure to connect lasts.
    fn check_pause(&self, failed: &RecentConnectFailures) -> Result<(), ToolError> {
        let wait = failed.not_before.and_then(|at| at.checked_duration_since(Instant::now()));
        match wait.filter(|wait| !wait.is_zero()) {
            None => Ok(()),
            Some(wait) => {
                let ms = wait.as_millis();
                Err(self.unavailable(&format!("{}; toolgate can try again in {ms} ms", failed.why)))
            }
        }
    }

    /// Opens a connection for a single call. The handshake offers the client capabilities
    /// `capabilities`.
    pub(crate) async fn connect_dedicated(
        &self,
        capabilities: QuestionSupport,
    ) -> Result<Arc<UpstreamConnection>, ToolError> {
        // The shared connection shows if the server can start at all.
        self.connection().await?;
        self.check_pause(&*self.connecting.lock().await)?;
        let within = Duration::from_millis(self.settings.start_ms);
        let connected = tokio::time::timeout(within, self.connect(capabilities)).await;
        let connected = connected.unwrap_or_else(|_| {
            Err(format!("it did not respond within {} of starting", duration_text(within)))
        });
        match connected {
            Ok(link) => {
                let link = Arc::new(link);
                self.supervise(&link);
                Ok(link)
            }
            Err(why) => {
                self.connecting.lock().await.record(&why);
                let message =
                    format!("a new connection to the upstream `{}` failed: {why}", self.name);
                Err(ToolError::new(ToolErrorKind::Unavailable, message))
            }
        }
    }

    async fn connect(&self, capabilities: QuestionSupport) -> Result<UpstreamConnection, String> {
        let capabilities = QuestionSupport {
            roots: capabilities.roots || !self.settings.roots.is_empty(),
            ..capabilities
        };
        let receiver: Arc<dyn MessageReceiver> =
            Arc::new(ConnectionMessageReceiver(self.this.clone()));
        let wanted = match &self.settings.revision {
            None => None,
            Some(name) => Some(revision_named(name)?),
        };
        *lock_mutex(&self.start_report) = UpstreamStartReport::default();
        let transport = self.open_transport(receiver.clone()).await?;
        match UpstreamConnection::negotiate(transport.clone(), wanted, capabilities, &receiver)
            .await
        {
            Ok(link) => Ok(link),
            // A server that exits on an unknown method is started again with the older handshake.
            Err(
                UpstreamRequestFailure::Lost(_)
                | UpstreamRequestFailure::NotSent(_)
                | UpstreamRequestFailure::SessionGone(_),
            ) if wanted.is_none() && transport.closed().is_cancelled() => {
                let newest = McpRevision::newest(SessionModel::Session);
                let transport = self.open_transport(receiver.clone()).await?;
                let negotiated = UpstreamConnection::negotiate(
                    transport.clone(),
                    Some(newest),
                    capabilities,
                    &receiver,
                )
                .await;
                negotiated.map_err(|failure| describe_failure(&failure))
            }
            Err(failure) => Err(describe_failure(&failure)),
        }
    }

    /// Returns the configured roots of the upstream as an answer to `roots/list`, if there are any.
    pub(crate) fn folders(&self) -> Option<Value> {
        let root = |path: &String| {
            let path = path.trim_end_matches('/');
            json!({ "uri": format!("file://{path}"), "name": path })
        };
        let roots: Vec<_> = self.settings.roots.iter().map(root).collect();
        (!roots.is_empty()).then(|| json!({ "roots": roots }))
    }

    async fn open_transport(
        &self,
        receiver: Arc<dyn MessageReceiver>,
    ) -> Result<Arc<dyn TransportConnection>, String> {
        let UpstreamSettings { command, env, keep_env, cwd, url, headers, .. } = &self.settings;
        let bytes_max = MESSAGE_BYTES_MAX;
        let values = |of: &BTreeMap<String, String>| {
            let value = |(name, value): (&String, &String)| {
                Ok((name.clone(), fill_variables(value, |name| self.world.variable(name))?))
            };
            of.iter().map(value).collect::<Result<BTreeMap<_, _>, String>>()
        };
        if let Some(url) = url {
            let url = fill_variables(url, |name| self.world.variable(name))?;
            let site = UpstreamEndpoint {
                world: self.world.clone(),
                private_network: self.settings.private_network,
                headers: values(headers)?,
                credentials: self.credentials(&url)?,
                url,
                bytes_max,
            };
            return match self.settings.transport {
                UpstreamTransport::Http => Ok(Arc::new(HttpTransport::new(site, receiver)?)),
                UpstreamTransport::Sse => Ok(Arc::new(sse::open(site, receiver).await?)),
                UpstreamTransport::WebSocket => {
                    Ok(Arc::new(websocket::open(site, receiver).await?))
                }
            };
        }
        let command =
            command.iter().map(|part| fill_variables(part, |name| self.world.variable(name)));
        let program = UpstreamProgramStart {
            command: command.collect::<Result<_, _>>()?,
            env: values(env)?,
            keep_env: keep_env.clone(),
            cwd: cwd.clone(),
            sandbox: self.settings.sandbox.clone(),
            hosts: self.settings.hosts.clone(),
        };
        let started = self.world.start(&program).await?;
        Ok(Arc::new(lines::open(started, bytes_max, receiver)))
    }

    /// Returns the OAuth credentials for `url`. Returns `None` if the setting `headers` contains
    /// `Authorization`.
    fn credentials(&self, url: &str) -> Result<Option<Arc<UpstreamCredentials>>, String> {
        if self.settings.has_authorization() {
            return Ok(None);
        }
        if let Some(known) = self.credentials.get() {
            return Ok(Some(known.clone()));
        }
        let at = (&*self.name, url, self.settings.private_network);
        let oauth = self.settings.oauth.as_ref();
        let world = self.world.clone();
        let made = Arc::new(UpstreamCredentials::new(at, oauth, world, self.owner.bearer())?);
        Ok(Some(self.credentials.get_or_init(|| made).clone()))
    }

    /// Closes the connection `link` when it is idle for too long, and reports when it breaks.
    fn supervise(&self, link: &Arc<UpstreamConnection>) {
        let this = self.this.clone();
        let gone = link.transport.closed().clone();
        // Held weakly, so that the connection ends with its last user.
        let link = Arc::downgrade(link);
        let idle_max = self.settings.limits.idle;
        toolgate_net::spawn_task(async move {
            let done = async {
                let Some(idle_max) = idle_max else { return std::future::pending().await };
                loop {
                    tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
                    let Some(link) = link.upgrade() else { return };
                    let Some(idle_time) = link.idle_time() else { continue };
                    let Some(this) = this.upgrade() else { return };
                    // A connection that delivers notifications is never idle.
                    let is_idle = idle_time >= idle_max && !this.delivers_notifications(&link);
                    // A dedicated connection is closed once its call returns it.
                    if is_idle && this.forget_connection(&link) {
                        this.reconnect_to_watch();
                        return;
                    }
                }
            };
            let is_broken = tokio::select! {
                () = gone.cancelled() => true,
                () = done => false,
            };
            let (Some(this), Some(link)) = (this.upgrade(), link.upgrade()) else { return };
            if is_broken {
                this.forget_connection(&link);
            }
            // The end of a remote session does not count as a failed start.
            let is_expected = !is_broken || link.transport.has_lost_session();
            if is_expected || this.closed.load(Ordering::Acquire) {
                if is_broken {
                    this.reconnect_to_watch();
                }
                return;
            }
            let why = link.transport.closed_reason();
            tracing::warn!("the upstream `{}` disconnected: {why}", this.name);
            this.health.record_disconnected(&why);
            let mut failed = this.connecting.lock().await;
            failed.count = if link.since.elapsed() < STARTED_AFTER { failed.count + 1 } else { 0 };
            let doubles = failed.count.saturating_sub(1).min(BACK_OFF_DOUBLES);
            failed.not_before =
                (failed.count > 0).then(|| Instant::now() + BACK_OFF * 2_u32.pow(doubles));
            failed.why = why;
            this.failing.store(this.live_connection().is_none(), Ordering::Release);
            drop(failed);
            this.reconnect_to_watch();
        });
    }

    /// Returns true if the connection `link` must stay open to deliver notifications of watched
    /// resources.
    fn delivers_notifications(&self, link: &Arc<UpstreamConnection>) -> bool {
        self.is_watched() && self.live_connection().is_some_and(|live| Arc::ptr_eq(&live, link))
    }

    /// Removes the connection `link`, unless a call uses it exclusively. Returns true if the
    /// connection was the current one or an idle one.
    fn forget_connection(&self, link: &Arc<UpstreamConnection>) -> bool {
        let mut now = lock_write(&self.shared_connection);
        let was_now = now.take_if(|now| Arc::ptr_eq(now, link)).is_some();
        drop(now);
        self.stop_listening(link);
        was_now || self.dedicated.remove_idle(link)
    }
}
