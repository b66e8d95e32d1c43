//! Connects to an upstream and closes connections.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_contract::{Askable, Fault, ToolError};
use toolgate_dialects::mcp::upstream::{Era, REVISIONS, Revision};

use super::changes::OfNobody;
use super::failed::told;
use super::{State, Upstream};
use crate::link::Link;
use crate::oauth::Credentials;
use crate::settings::{Settings, Transport};
use crate::wire::{Hears, Trouble, Wire};
use crate::wires::http::Http;
use crate::wires::site::Site;
use crate::wires::{lines, sse, websocket};
use crate::world::Program;

/// First pause after a failed start, and the number of times it doubles.
const BACK_OFF: Duration = Duration::from_millis(500);
const BACK_OFF_DOUBLES: u32 = 6;
/// Duration after which a server counts as started.
const LIVED: Duration = Duration::from_secs(10);
/// Capabilities of a connection that several callers share.
const ANY: Askable = Askable { form: true, visit: true, sample: true, tools: true, roots: true };
/// Interval of the idle check.
const LOOK: Duration = Duration::from_secs(1);

/// Recent failures to connect.
#[derive(Default)]
pub(super) struct Failed {
    times: u32,
    not_before: Option<Instant>,
    why: String,
}

impl Failed {
    /// Records a failure and sets the next pause.
    fn again(&mut self, why: &str) {
        self.times += 1;
        let doubled = BACK_OFF * 2_u32.pow((self.times - 1).min(BACK_OFF_DOUBLES));
        self.not_before = Some(Instant::now() + doubled);
        why.clone_into(&mut self.why);
    }
}

impl Upstream {
    /// Closes all connections for good.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.lanes.close();
        self.callers.close();
        self.let_go();
    }

    /// Closes the connections as soon as no call uses them.
    pub(super) fn let_go(&self) {
        self.lanes.let_go();
        let now = self.now.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(self.listening.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(now);
    }

    pub(super) fn live(&self) -> Option<Arc<Link>> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.clone().filter(|link| !link.wire.gone().is_cancelled())
    }

    /// Returns the best state of this instance and of the callers' own instances.
    pub(crate) fn state(&self) -> State {
        let own = match self.live() {
            Some(link) if link.is_in_trouble() => State::Failing,
            Some(_) => State::Connected,
            None if self.failing.load(Ordering::Acquire) => State::Failing,
            None => State::Idle,
        };
        self.callers.states().fold(own, State::max)
    }

    /// Returns the current connection, or connects.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, ToolError> {
        if let Some(link) = self.live() {
            return Ok(link);
        }
        // Connecting continues even if the first caller stops waiting.
        let this = self.this();
        let connected = tokio::spawn(async move { this.linked().await }).await;
        connected.unwrap_or_else(|err| Err(self.away(&err.to_string())))
    }

    async fn linked(&self) -> Result<Arc<Link>, ToolError> {
        let mut failed = self.connecting.lock().await;
        if let Some(link) = self.live() {
            return Ok(link);
        }
        self.rested(&failed)?;
        self.unheard.store(false, Ordering::Release);
        let within = Duration::from_millis(self.settings.start_ms);
        let connected = match tokio::time::timeout(within, self.connect(ANY)).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("it did not begin within {} ms", within.as_millis())),
        };
        self.failing.store(connected.is_err(), Ordering::Release);
        match connected {
            Ok(_) if self.closed.load(Ordering::Acquire) => Err(self.away("the server stops")),
            Ok(link) => {
                let link = Arc::new(link);
                *self.now.write().unwrap_or_else(PoisonError::into_inner) = Some(link.clone());
                if self.closed.load(Ordering::Acquire) {
                    self.let_go();
                    return Err(self.away("the server stops"));
                }
                self.watch_over(&link);
                self.watch_again(&link);
                self.look_again();
                self.hurry.notify_one();
                Ok(link)
            }
            Err(why) => {
                failed.again(&why);
                self.is_not_listed();
                Err(self.away(&why))
            }
        }
    }

    fn away(&self, why: &str) -> ToolError {
        let message = format!("the upstream `{}` is away: {why}", self.name);
        ToolError::new(Fault::Unavailable, message)
    }

    /// Returns an error while the pause after a failure lasts.
    fn rested(&self, failed: &Failed) -> Result<(), ToolError> {
        let wait = failed.not_before.and_then(|at| at.checked_duration_since(Instant::now()));
        match wait.filter(|wait| !wait.is_zero()) {
            None => Ok(()),
            Some(wait) => {
                let ms = wait.as_millis();
                Err(self.away(&format!("{}; it is tried again in {ms} ms", failed.why)))
            }
        }
    }

    /// Opens a dedicated connection with the capabilities `can`.
    pub(crate) async fn another(&self, can: Askable) -> Result<Arc<Link>, ToolError> {
        // The shared connection shows if the server can start at all.
        self.link().await?;
        self.rested(&*self.connecting.lock().await)?;
        let within = Duration::from_millis(self.settings.start_ms);
        let connected = tokio::time::timeout(within, self.connect(can)).await;
        let connected = connected.unwrap_or_else(|_| Err("it did not begin in time".to_owned()));
        match connected {
            Ok(link) => {
                let link = Arc::new(link);
                self.watch_over(&link);
                Ok(link)
            }
            Err(why) => {
                self.connecting.lock().await.again(&why);
                let message =
                    format!("another of the upstream `{}` does not begin: {why}", self.name);
                Err(ToolError::new(Fault::Unavailable, message))
            }
        }
    }

    async fn connect(&self, can: Askable) -> Result<Link, String> {
        let can = Askable { roots: can.roots || !self.settings.roots.is_empty(), ..can };
        let hears: Arc<dyn Hears> = Arc::new(OfNobody(self.this.clone()));
        let wanted = match &self.settings.revision {
            None => None,
            Some(name) => Some(revision(name)?),
        };
        let wire = self.wire(hears.clone()).await?;
        match Link::agree(wire.clone(), wanted, can, &hears).await {
            Ok(link) => Ok(link),
            // A server that exits on an unknown method is started again with the older handshake.
            Err(Trouble::Lost(_) | Trouble::NotSent(_))
                if wanted.is_none() && wire.gone().is_cancelled() =>
            {
                let newest = Revision::newest(Era::Session);
                let wire = self.wire(hears.clone()).await?;
                let agreed = Link::agree(wire.clone(), Some(newest), can, &hears).await;
                agreed.map_err(|trouble| told(&trouble))
            }
            Err(trouble) => Err(told(&trouble)),
        }
    }

    /// Returns the configured roots as an answer to `roots/list`, if there are any.
    pub(crate) fn folders(&self) -> Option<Value> {
        let root = |path: &String| {
            let path = path.trim_end_matches('/');
            json!({ "uri": format!("file://{path}"), "name": path })
        };
        let roots: Vec<_> = self.settings.roots.iter().map(root).collect();
        (!roots.is_empty()).then(|| json!({ "roots": roots }))
    }

    async fn wire(&self, hears: Arc<dyn Hears>) -> Result<Arc<dyn Wire>, String> {
        let Settings { command, env, keep_env, cwd, url, headers, .. } = &self.settings;
        let bytes_max = self.settings.message_bytes;
        let values = |of: &BTreeMap<String, String>| {
            let value = |(name, value): (&String, &String)| {
                Ok((name.clone(), filled(value, |name| self.world.variable(name))?))
            };
            of.iter().map(value).collect::<Result<BTreeMap<_, _>, String>>()
        };
        if let Some(url) = url {
            let url = filled(url, |name| self.world.variable(name))?;
            let site = Site {
                world: self.world.clone(),
                private_network: self.settings.private_network,
                headers: values(headers)?,
                credentials: self.credentials(&url)?,
                url,
                bytes_max,
            };
            return match self.settings.transport {
                Transport::Http => Ok(Arc::new(Http::new(site, hears)?)),
                Transport::Sse => Ok(Arc::new(sse::open(site, hears).await?)),
                Transport::WebSocket => Ok(Arc::new(websocket::open(site, hears).await?)),
            };
        }
        let command = command.iter().map(|part| filled(part, |name| self.world.variable(name)));
        let program = Program {
            command: command.collect::<Result<_, _>>()?,
            env: values(env)?,
            keep_env: keep_env.clone(),
            cwd: cwd.clone(),
            sandbox: self.settings.sandbox.clone(),
        };
        let started = self.world.start(&program).await?;
        Ok(Arc::new(lines::open(started, bytes_max, hears)))
    }

    /// Returns the OAuth credentials for `url`, unless `headers` sets `Authorization`.
    fn credentials(&self, url: &str) -> Result<Option<Arc<Credentials>>, String> {
        if self.settings.says_authorization() {
            return Ok(None);
        }
        if let Some(known) = self.credentials.get() {
            return Ok(Some(known.clone()));
        }
        let at = (&*self.name, url, self.settings.private_network);
        let oauth = self.settings.oauth.as_ref();
        let world = self.world.clone();
        let made = Arc::new(Credentials::new(at, oauth, world, self.whose.bearer())?);
        Ok(Some(self.credentials.get_or_init(|| made).clone()))
    }

    /// Closes `link` when it is idle for too long, and reports when it breaks.
    fn watch_over(&self, link: &Arc<Link>) {
        let this = self.this.clone();
        let gone = link.wire.gone().clone();
        // Held weakly, so that the connection ends with its last user.
        let link = Arc::downgrade(link);
        let idle = self.settings.idle_ms;
        let lifetime = self.settings.lifetime_ms;
        tokio::spawn(async move {
            let over = |idle: u64, of: Duration| idle > 0 && of >= Duration::from_millis(idle);
            let done = async {
                loop {
                    tokio::time::sleep(LOOK).await;
                    let Some(link) = link.upgrade() else { return };
                    let Some(of) = link.idle() else { continue };
                    let Some(this) = this.upgrade() else { return };
                    // A connection that delivers notifications is never idle.
                    let is_idle = over(idle, of) && !this.tells_over(&link);
                    let is_over = is_idle || over(lifetime, link.since.elapsed());
                    // A dedicated connection is closed once its call returns it.
                    if is_over && this.lets_go(&link) {
                        this.goes_on_watching();
                        return;
                    }
                }
            };
            let broke = tokio::select! {
                () = gone.cancelled() => true,
                () = done, if idle > 0 || lifetime > 0 => false,
            };
            let (Some(this), Some(link)) = (this.upgrade(), link.upgrade()) else { return };
            if broke {
                this.lets_go(&link);
            }
            // The end of a remote session does not count as a failed start.
            let is_well = !broke || link.wire.tells_who_asks();
            if is_well || this.closed.load(Ordering::Acquire) {
                if broke {
                    this.goes_on_watching();
                }
                return;
            }
            let why = link.wire.why();
            tracing::warn!("the upstream `{}` is gone: {why}", this.name);
            let mut failed = this.connecting.lock().await;
            failed.times = if link.since.elapsed() < LIVED { failed.times + 1 } else { 0 };
            let doubles = failed.times.saturating_sub(1).min(BACK_OFF_DOUBLES);
            failed.not_before =
                (failed.times > 0).then(|| Instant::now() + BACK_OFF * 2_u32.pow(doubles));
            failed.why = why;
            this.failing.store(this.live().is_none(), Ordering::Release);
            drop(failed);
            this.goes_on_watching();
        });
    }

    /// Returns true if `link` delivers notifications of watched resources.
    fn tells_over(&self, link: &Arc<Link>) -> bool {
        self.is_watched() && self.live().is_some_and(|live| Arc::ptr_eq(&live, link))
    }

    /// Drops `link` unless a call uses it exclusively. Returns true if it was known.
    fn lets_go(&self, link: &Arc<Link>) -> bool {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        let was_now = now.take_if(|now| Arc::ptr_eq(now, link)).is_some();
        drop(now);
        self.listens_no_more(link);
        was_now || self.lanes.lets_go(link)
    }
}

pub(crate) fn revision(name: &str) -> Result<&'static Revision, String> {
    REVISIONS.iter().find(|revision| revision.name == name).ok_or_else(|| {
        let known: Vec<_> = REVISIONS.iter().map(|revision| revision.name).collect();
        format!("no revision is called `{name}`; there is {}", known.join(", "))
    })
}

/// Returns the names of the variables in `text`.
pub fn named(text: &str) -> impl Iterator<Item = &str> {
    text.split("${").skip(1).filter_map(|after| Some(after.split_once('}')?.0))
}

/// Replaces each `${NAME}` in `text` by the server's environment variable.
pub(crate) fn filled(
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, more)) = after.split_once('}') else { break };
        filled.push_str(before);
        let value = variable(name);
        filled.push_str(&value.ok_or_else(|| format!("the variable `{name}` is not set"))?);
        rest = more;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_stand_where_they_are_named() {
        let set = |name: &str| (name == "A").then(|| "1".to_owned());
        assert_eq!(filled("x${A}y${A}", set), Ok("x1y1".to_owned()));
        assert_eq!(filled("$A ${A", set), Ok("$A ${A".to_owned()));
        assert!(filled("${B}", set).is_err_and(|why| why.contains("`B`")));
    }
}
