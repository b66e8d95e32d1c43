//! The web console: pages for the person who runs the server, at `/`.
//!
//! The server renders all pages. Names, descriptions and output of tools and upstreams are
//! untrusted, and the templates escape them. Each action passes the policy check and leaves an
//! audit record.

mod one_time_links;
mod console_sessions;
mod layout;
mod forms;
mod audit_queries;
mod job_views;
mod pin_changes;
mod reconnections;
mod upstream_calls;
mod pages;
mod actions;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http::{HeaderValue, Method};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;
use toolgate_contract::{BoxFuture, Caller, FrameMetadata, MessageFrame, Reply, ToolId};
use toolgate_host::{AuditArgumentDetail, Host};
use toolgate_transports::http::{OutgoingResponse, RequestSenderIdentity, ServerSentEvent};
use toolgate_upstream::Upstreams;

use crate::config::{Config, ConsoleMode, digest};
use crate::identity::Authenticator;
use crate::sessions::waiting_questions::WaitingQuestions;
use audit_queries::AuditIndexQueries;
use console_sessions::{ConsoleRole, ConsoleSession, ConsoleSessions, cookie_header};
use forms::FormFields;
pub use one_time_links::OneTimeLinkKey;
use one_time_links::OneTimeLinks;
use pin_changes::{PinCheckFn, PinComparisonCache};
pub(crate) use pin_changes::{UpstreamWithPinChanges, changes_digest};
use reconnections::UpstreamReconnections;

/// Path prefix of all console paths except `/`.
const PREFIX: &str = "/console/";
/// Tool ids of the actions at the console, for policy and audit records.
pub(crate) const ACTIONS: &[&str] = &[
    "console.answer_call",
    "console.answer_job",
    "console.approve_pins",
    "console.cancel_job",
    "console.restart_upstream",
];
/// Path of the sign-in page of the console.
pub const SIGN_IN_PATH: &str = "/console/sign-in";
/// Minimum time between two messages that tell an open console page about changed calls or jobs.
/// Applies if at most [`PAGES_PER_INTERVAL`] pages are open.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of open console pages that the server notifies within [`CHANGE_INTERVAL`]. If more pages
/// are open, the server notifies each of them less often, so that its load does not grow.
const PAGES_PER_INTERVAL: u32 = 8;
/// Time without calls after which the server tells an open console page to update its jobs.
const JOBS_INTERVAL: Duration = Duration::from_secs(2);

/// Function that returns the differences between an upstream's tools and their pins, as text. The
/// first argument is the name of the upstream. If the second argument is the digest of this text,
/// the function also approves the tools.
pub(crate) type PinReviewFn =
    Arc<dyn Fn(String, Option<String>) -> BoxFuture<'static, anyhow::Result<String>> + Send + Sync>;

/// Changes that a reload of the settings would make.
pub(crate) struct SettingsPreview {
    /// The settings that the configuration file and the environment contain now.
    pub(crate) next: Config,
    /// Names of the changed settings that a reload applies.
    pub(crate) applied: Vec<String>,
    /// Names of the changed settings that have no effect before a restart.
    pub(crate) waiting: Vec<String>,
    /// The server's own tools that a reload adds.
    pub(crate) added: Vec<ToolId>,
    /// The server's own tools that a reload removes.
    pub(crate) removed: Vec<ToolId>,
}

/// Function that compares the settings in force with the current configuration file. Returns `None`
/// if the server does not reload its settings.
pub(crate) type SettingsComparison =
    Arc<dyn Fn() -> anyhow::Result<Option<SettingsPreview>> + Send + Sync>;

/// Handle with which the console reads and changes a served workspace.
#[derive(Clone)]
pub(crate) struct ConsoleWorkspaceAccess {
    pub(crate) host: Arc<Host>,
    pub(crate) upstreams: Upstreams,
    /// Function that returns the settings in force.
    pub(crate) settings: Arc<dyn Fn() -> Config + Send + Sync>,
    pub(crate) review_pins: PinReviewFn,
    pub(crate) changed_pins: PinCheckFn,
    pub(crate) preview_settings: SettingsComparison,
    /// Path of the audit log, or `None` if the log is not written to a file.
    pub(crate) log: Option<PathBuf>,
    /// Folder of the workspace.
    pub(crate) root: PathBuf,
}

/// The web console of a server, for the person who runs it.
pub(crate) struct WebConsole {
    sources: ConsoleWorkspaceAccess,
    identity: Arc<Authenticator>,
    sessions: ConsoleSessions,
    links: OneTimeLinks,
    audit: AuditIndexQueries,
    pin_changes: PinComparisonCache,
    reconnections: Arc<UpstreamReconnections>,
    questions: Arc<WaitingQuestions>,
    /// Counter of open console pages: each open page holds a clone of this value.
    open_pages: Arc<()>,
    /// True if the server uses TLS.
    is_secure: bool,
}

impl WebConsole {
    /// Creates the console. `questions` are the open questions to connected clients. One-time links
    /// are sealed with the key in the state folder. If that key is unusable, only this process can
    /// make such links.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn new(
        sources: ConsoleWorkspaceAccess,
        identity: Arc<Authenticator>,
        questions: Arc<WaitingQuestions>,
        is_secure: bool,
    ) -> anyhow::Result<Self> {
        let key = OneTimeLinkKey::open_or_create().or_else(|err| {
            tracing::warn!("`toolgate console` cannot sign in to this server: {err:#}");
            OneTimeLinkKey::random()
        })?;
        let audit = AuditIndexQueries::new(sources.log.clone());
        let pin_changes = PinComparisonCache::new(sources.changed_pins.clone());
        let sessions = ConsoleSessions::default();
        let links = OneTimeLinks::new(key);
        let (reconnections, open_pages) = Default::default();
        Ok(Self {
            sources,
            identity,
            sessions,
            links,
            audit,
            pin_changes,
            reconnections,
            questions,
            open_pages,
            is_secure,
        })
    }

    /// Returns true if `path` belongs to the console.
    pub(crate) fn is_path(path: &str) -> bool {
        matches!(path, "/" | "/console") || path.starts_with(PREFIX)
    }

    /// Returns true if the console accepts submitted forms at `path`.
    pub(crate) fn takes_forms_at(path: &str) -> bool {
        path.starts_with(PREFIX)
    }

    /// Returns the identity of the sender of the request `head`, according to the console session.
    /// A sender who is not signed in is anonymous.
    pub(crate) fn authenticate(&self, head: &FrameMetadata) -> RequestSenderIdentity {
        match self.find_session(head) {
            Some(session) => RequestSenderIdentity::Known(session.caller.clone()),
            None => RequestSenderIdentity::Anonymous,
        }
    }

    /// Answers the console request `frame`, which the address `peer` sent.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        frame: &MessageFrame,
        peer: IpAddr,
    ) -> OutgoingResponse {
        let FrameMetadata::Http { method, path, query, .. } = &frame.head else {
            return OutgoingResponse::Single(Reply::empty(400));
        };
        if !is_own_page(&frame.head, self.is_secure) {
            return OutgoingResponse::Single(problem(403, "The request comes from another site."));
        }
        if path == "/" && !matches!(*method, Method::GET | Method::HEAD) {
            let why = "This path is the console. MCP clients connect to /mcp.";
            return single(problem(404, why));
        }
        if path == "/console" {
            return single(Reply::empty(308).with_header("location", "/"));
        }
        let path = path.strip_prefix(PREFIX).unwrap_or_default();
        if let Some(reply) = self.answer_anyone(path, (method, query), frame, peer).await {
            return single(reply);
        }
        let Some(session) = self.find_session(&frame.head) else {
            return single(Self::sign_in_first(method));
        };
        match (path, method) {
            ("events", &Method::GET) => self.changes(),
            (_, &Method::GET | &Method::HEAD) => {
                let query = FormFields::parse(query.as_bytes());
                single(pages::answer(self, &session, path, &query).await)
            }
            (_, &Method::POST) => single(self.answer_post(&session, path, frame).await),
            _ => single(problem(405, "This page accepts GET and POST.")),
        }
    }

    /// Answers requests for console paths that need no session, such as style sheets and the
    /// sign-in form. Returns `None` for all other paths.
    async fn answer_anyone(
        &self,
        path: &str,
        (method, query): (&Method, &str),
        frame: &MessageFrame,
        peer: IpAddr,
    ) -> Option<Reply> {
        let (media_type, content) = match path {
            "icon.svg" => ("image/svg+xml", include_str!("console/assets/icon.svg")),
            "style.css" => ("text/css; charset=utf-8", include_str!("console/assets/style.css")),
            "script.js" => {
                ("text/javascript; charset=utf-8", include_str!("console/assets/script.js"))
            }
            "sign-in" if *method == Method::POST => return Some(self.sign_in(frame, peer).await),
            "sign-in" => {
                let token = FormFields::parse(query.as_bytes()).get("token").map(str::to_owned);
                let has_keys = self.identity.requires_credential();
                let page = pages::sign_in::page(has_keys, token.as_deref(), None);
                return Some(layout::reply(200, page));
            }
            _ => return None,
        };
        Some(layout::asset(media_type, content))
    }

    async fn answer_post(
        &self,
        session: &Arc<ConsoleSession>,
        path: &str,
        frame: &MessageFrame,
    ) -> Reply {
        let form = FormFields::parse(&frame.body);
        let sent = form.get("csrf").unwrap_or_default();
        // Hashes are compared in constant time.
        if blake3::hash(sent.as_bytes()) != blake3::hash(session.csrf.as_bytes()) {
            return problem(403, "The form is outdated. Reload the page and try again.");
        }
        if path == "sign-out" {
            self.sessions.end(&frame.head);
            return layout::redirect(SIGN_IN_PATH)
                .with_header("set-cookie", cookie_header("", self.is_secure));
        }
        if !session.may_act() {
            let why = "You may only look: the key or token needs the role `admin` to act.";
            return problem(403, why);
        }
        actions::answer(self, session, path, &form).await
    }

    /// Returns the console session of the request `head`, or `None` if there is no session, or if
    /// the key or token that opened the session was revoked or has expired.
    fn find_session(&self, head: &FrameMetadata) -> Option<Arc<ConsoleSession>> {
        let is_use = head.header("x-console-refresh").next().is_none();
        let session = self.sessions.find(head, is_use)?;
        let is_valid = match &session.credential {
            Some(credential) => self.identity.is_valid_now(credential),
            // A link is for servers without keys only.
            None => !self.identity.requires_credential(),
        };
        is_valid.then_some(session)
    }

    /// Signs a person in: creates a console session for the one-time link, key or token in the form
    /// `frame`. Returns a redirect to the console, or the sign-in page with the reason of the
    /// failure.
    async fn sign_in(&self, frame: &MessageFrame, peer: IpAddr) -> Reply {
        let form = FormFields::parse(&frame.body);
        let has_keys = self.identity.requires_credential();
        let refuse = |status, why: &str| {
            layout::reply(status, pages::sign_in::page(has_keys, None, Some(why)))
        };
        let (caller, role, credential) = match (form.get("token"), form.get("key")) {
            (Some(token), _) if !has_keys => {
                if !self.links.take(token) {
                    let why = "The link was used already or has expired. Run `toolgate console` for \
                               a new one.";
                    return refuse(403, why);
                }
                (Caller::local(), ConsoleRole::Admin, None)
            }
            (_, Some(key)) if has_keys => {
                let key = key.trim();
                match self.authenticate_key(&frame.head, key, peer).await {
                    RequestSenderIdentity::Known(caller) => {
                        match ConsoleRole::for_caller(&caller) {
                            Some(role) => (caller, role, Some(digest(key.as_bytes()))),
                            None => {
                                let why = "The key or token is valid, but has neither the role \
                                       `console` (look) nor `admin` (act).";
                                return refuse(403, why);
                            }
                        }
                    }
                    RequestSenderIdentity::Throttled { .. } => {
                        return refuse(429, "Too many failed attempts. Wait a minute.");
                    }
                    _ => return refuse(401, "The key or token is unknown, expired or revoked."),
                }
            }
            _ => return refuse(400, "Enter a key or token, or open the link again."),
        };
        match self.sessions.open(caller, role, credential) {
            // A new cookie for each sign-in, so that nobody can know it before.
            Ok(cookie) => layout::redirect("/")
                .with_header("set-cookie", cookie_header(&cookie, self.is_secure)),
            Err(why) => refuse(503, &format!("No session can be opened: {why}")),
        }
    }

    /// Authenticates `key` as if the request had sent it in its `Authorization` header.
    async fn authenticate_key(
        &self,
        head: &FrameMetadata,
        key: &str,
        peer: IpAddr,
    ) -> RequestSenderIdentity {
        let Ok(value) = HeaderValue::from_str(&format!("Bearer {key}")) else {
            return RequestSenderIdentity::Unauthenticated { had_credential: true };
        };
        let mut head = head.clone();
        if let FrameMetadata::Http { headers, .. } = &mut head {
            headers.remove("x-api-key");
            headers.insert("authorization", value);
        }
        self.identity.authenticate(None, &head, peer).await
    }

    /// Returns the reply to a console request of a person who is not signed in: a redirect to the
    /// sign-in page, or an error for methods other than GET and HEAD.
    fn sign_in_first(method: &Method) -> Reply {
        match *method {
            Method::GET | Method::HEAD => layout::redirect(SIGN_IN_PATH),
            _ => problem(401, "The session has ended. Sign in again."),
        }
    }

    /// Returns an event stream for an open console page. An event names what may have changed:
    /// `calls` or `jobs`.
    fn changes(self: &Arc<Self>) -> OutgoingResponse {
        let records = self.sources.host.audit().subscribe();
        let begun = tokio::time::Instant::now();
        let state = (records, begun, self.open_pages.clone());
        let events = stream::unfold(state, |(mut records, last, page)| async move {
            // Progress of jobs leaves no record, so jobs are looked at regularly as well.
            let topic = match timeout(JOBS_INTERVAL, records.recv()).await {
                Ok(Ok(_) | Err(RecvError::Lagged(_))) => "calls",
                Ok(Err(RecvError::Closed)) => return None,
                Err(_) => "jobs",
            };
            tokio::time::sleep_until(last + change_interval(Arc::strong_count(&page))).await;
            // The page shows all changes at once.
            let records = records.resubscribe();
            let event =
                ServerSentEvent { name: Some("change"), ..ServerSentEvent::plain(topic.into()) };
            Some((event, (records, tokio::time::Instant::now(), page)))
        });
        OutgoingResponse::LongStream(Box::pin(events))
    }
}

/// Returns true if a server with the settings `config` keeps the arguments and the results of
/// recent calls in memory, for the console.
pub(crate) fn keeps_recent_calls(config: &Config) -> bool {
    config.server.console == ConsoleMode::On
        && AuditArgumentDetail::from(config.audit.arguments) != AuditArgumentDetail::None
}

/// Returns the shortest time between two messages about changes to each of `count` open console
/// pages.
fn change_interval(count: usize) -> Duration {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    CHANGE_INTERVAL * count.div_ceil(PAGES_PER_INTERVAL).max(1)
}

/// Returns a console page with the HTTP `status` and the reason `why` a request was refused.
fn problem(status: u16, why: &str) -> Reply {
    layout::reply(status, pages::sign_in::problem(why))
}

fn single(reply: Reply) -> OutgoingResponse {
    OutgoingResponse::Single(reply)
}

/// Returns true if the request does not come from a page of another site: its `Origin` header is
/// missing or names this server.
fn is_own_page(head: &FrameMetadata, is_secure: bool) -> bool {
    let host = head.header("host").next().unwrap_or_default();
    let scheme: &[u8] = if is_secure { b"https://" } else { b"http://" };
    // Behind a proxy with TLS, the page has another scheme than this server.
    let schemes = [scheme, b"https://"];
    head.header("origin").all(|origin| {
        schemes.iter().any(|scheme| origin.strip_prefix(*scheme).is_some_and(|own| own == host))
    })
}
