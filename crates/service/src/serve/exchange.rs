//! Serves HTTP clients: passes requests to dialects by path, and keeps the sessions of clients.

mod call_event_stream;
mod responses;
mod eviction;
mod server_pages;
mod session_ids;
mod session_sharing;
mod session_slots;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method};
use tokio::sync::mpsc;
use toolgate_budget::InputMemoryReservation;
use toolgate_contract::{
    BoxFuture, Caller, FrameMetadata, HostRequest, MessageFrame, Reply, lock_mutex,
};
use toolgate_dialects::{
    AcceptedResponseMode, Dialect, DisconnectEffect, FrameRefusal, HttpSseRequestKind, ParsedFrame,
    PendingHostRequest, WebSocketPurpose,
};
use toolgate_host::SharedSessions;
use toolgate_transports::http::{
    HttpApplication, OutgoingResponse, ReceivedRequest, RequestSenderIdentity, ServerSentEvent,
    UnreadableRequestReason,
};

use crate::identity::Authenticator;
use crate::serve::duplex::DuplexConversations;
use crate::serve::lines::LineStreamLimits;
use crate::serve::routes::DialectRoutes;
use crate::serve::sockets::{ConversationWebSocket, JobWatchWebSocket, RejectionWebSocket};
use crate::sessions::client::{ClientPresenceGuard, random_id};
use crate::sessions::detachable::DetachableWork;
use crate::sessions::frame_actions::{FrameAction, FrameToolCalls, RequestedMessageStream};
use crate::sessions::server_state::ServerState;
use crate::sessions::session::{AcceptedCall, CallEventDestination, ClientSession};
use call_event_stream::{CallEventStream, StreamedCallState};
use responses::{
    batch_reply, event_feed, finished_response, notification_response, reply_or_accepted,
    resumable_response, stream_response,
};
pub(crate) use server_pages::ServerPages;
pub(crate) use session_ids::{SESSION_KEY_BYTES, SessionIdSealer};
use session_sharing::SharedSessionState;

/// Maximum number of events of a call that wait for a slow client. Further events are dropped.
const EVENTS_WAITING_MAX: usize = 64;

/// Limits of sessions over HTTP.
#[derive(Debug, Clone)]
pub struct HttpSessionLimits {
    /// Maximum number of open sessions.
    pub sessions_max: usize,
    /// Time after which the answer to a call becomes an event stream, if the client accepts one.
    pub stream_after: Duration,
    /// Limits of a client that is connected over a WebSocket.
    pub socket: LineStreamLimits,
}

/// HTTP endpoints of the dialects, and their open sessions.
pub struct HttpEndpoints {
    server: Arc<ServerState>,
    routes: DialectRoutes,
    identity: Arc<Authenticator>,
    sessions: Mutex<HashMap<String, OpenHttpSession>>,
    duplexes: DuplexConversations,
    sealer: Arc<SessionIdSealer>,
    /// Messages of sessions that this server shares with the other servers of a fleet, if any.
    shared_sessions: Option<Arc<SharedSessions>>,
    bounds: HttpSessionLimits,
    pages: ServerPages,
}

/// An open session with an HTTP client, with the time of the client's last activity.
struct OpenHttpSession {
    session: Arc<ClientSession>,
    last_used: Instant,
    shared: Arc<SharedSessionState>,
}

impl HttpEndpoints {
    /// Creates endpoints for callers that `identity` accepts, with each dialect at its own paths.
    pub(crate) fn new(
        server: Arc<ServerState>,
        dialects: Vec<Arc<dyn Dialect>>,
        identity: Arc<Authenticator>,
        sealer: Arc<SessionIdSealer>,
        bounds: HttpSessionLimits,
    ) -> Self {
        Self::with_routes(server, DialectRoutes::new(dialects), (identity, sealer), bounds)
    }

    /// Creates HTTP endpoints that serve only `dialect`, on its separate listener.
    pub(crate) fn for_dialect(
        server: Arc<ServerState>,
        dialect: Arc<dyn Dialect>,
        identity: Arc<Authenticator>,
        sealer: Arc<SessionIdSealer>,
        bounds: HttpSessionLimits,
    ) -> Self {
        let routes = DialectRoutes::with_paths(vec![dialect], |dialect| dialect.own_paths());
        Self::with_routes(server, routes, (identity, sealer), bounds)
    }

    fn with_routes(
        server: Arc<ServerState>,
        routes: DialectRoutes,
        (identity, sealer): (Arc<Authenticator>, Arc<SessionIdSealer>),
        bounds: HttpSessionLimits,
    ) -> Self {
        let sessions = Mutex::default();
        let duplexes = DuplexConversations::default();
        let pages = ServerPages::default();
        let shared_sessions = None;
        Self {
            server,
            routes,
            identity,
            sessions,
            duplexes,
            sealer,
            shared_sessions,
            bounds,
            pages,
        }
    }

    /// Shares sessions with the other servers of a fleet by `shared_sessions`. They must have the
    /// same key for session ids.
    pub(crate) fn with_shared_sessions(self, shared_sessions: Option<Arc<SharedSessions>>) -> Self {
        Self { shared_sessions, ..self }
    }

    /// Adds the server's own pages, such as metrics and the console.
    pub(crate) fn with_pages(self, pages: ServerPages) -> Self {
        Self { pages, ..self }
    }

    async fn answer(&self, incoming: &ReceivedRequest) -> OutgoingResponse {
        let ReceivedRequest { frame, upgrade, sender, .. } = incoming;
        let Some(dialect) = self.routes.for_request(&frame.head) else {
            return OutgoingResponse::Single(Reply::empty(404));
        };
        let reject = |refusal| self.answer_rejected(dialect, frame, *upgrade, refusal);
        let caller = match sender {
            RequestSenderIdentity::Known(caller) => caller.clone(),
            RequestSenderIdentity::Anonymous => Caller::anonymous(),
            RequestSenderIdentity::Unauthenticated { had_credential } => {
                return reject(FrameRefusal::Unauthorized { had_credential: *had_credential })
                    .await;
            }
            RequestSenderIdentity::MultipleCredentials => {
                return reject(FrameRefusal::SeveralCredentials).await;
            }
            RequestSenderIdentity::Throttled { retry_after } => {
                return reject(FrameRefusal::Throttled { retry_after: *retry_after }).await;
            }
        };
        if *upgrade {
            return self.open_socket(dialect, dialect.upgrade(&frame.head), caller);
        }
        match dialect.duplex(&frame.head) {
            Some(HttpSseRequestKind::Open) => return self.open_duplex(dialect, caller),
            Some(HttpSseRequestKind::Message { id }) => {
                let reply = self.duplexes.receive(&id, &caller, incoming).await;
                return OutgoingResponse::Single(reply.unwrap_or_else(|| dialect.unknown_duplex()));
            }
            None => {}
        }
        let (id, session) = match dialect.session(&frame.head) {
            Some(id) => {
                let session = match &self.shared_sessions {
                    None => self
                        .find_session(id, &caller, dialect.name())
                        .or_else(|| self.resume_session(id, &caller, dialect)),
                    Some(_) => Box::pin(self.continue_session(id, &caller, dialect)).await,
                };
                match session {
                    Some(session) => (Some(id.to_owned()), session),
                    None => return OutgoingResponse::Single(dialect.unknown_session()),
                }
            }
            None => {
                (None, ClientSession::new(self.server.clone(), dialect.clone(), caller.clone()))
            }
        };
        let reading = session.read_frame(frame).await;
        if let Some(id) = &id
            && let Some(message) = self.message_to_share(&session, &reading, frame)
        {
            let acting =
                self.act(reading, (Some(id.clone()), Some(incoming)), session.clone(), &caller);
            let response = Box::pin(acting).await;
            Box::pin(self.share_message(id, &session.caller, message)).await;
            return response;
        }
        self.act(reading, (id, Some(incoming)), session, &caller).await
    }

    /// Answers a frame of an unauthenticated sender. `upgrade` is true for a WebSocket request.
    async fn answer_rejected(
        &self,
        dialect: &Arc<dyn Dialect>,
        frame: &MessageFrame,
        upgrade: bool,
        refusal: FrameRefusal,
    ) -> OutgoingResponse {
        if upgrade {
            let upgrade = dialect.reject_socket(&frame.head, &refusal);
            return self.open_socket(dialect, upgrade, Caller::anonymous());
        }
        match dialect.reject_frame(frame, &refusal) {
            ParsedFrame::Request(request) => {
                OutgoingResponse::Single(self.refuse_unrecorded(dialect, request, &refusal))
            }
            reading => {
                let anonymous = Caller::anonymous();
                let session =
                    ClientSession::new(self.server.clone(), dialect.clone(), anonymous.clone());
                self.act(reading, (None, None), session, &anonymous).await
            }
        }
    }

    /// Returns the reply to an unauthenticated request. Writes no audit record and no log line, so
    /// that strangers cannot fill the disk.
    fn refuse_unrecorded(
        &self,
        dialect: &Arc<dyn Dialect>,
        request: PendingHostRequest,
        refusal: &FrameRefusal,
    ) -> Reply {
        let PendingHostRequest { request, encoder, origin, .. } = request;
        let reply = match (request, origin) {
            (HostRequest::Refuse(why) | HostRequest::RefuseCall { why, .. }, Some(origin)) => {
                let envelopes = self.server.host.envelopes();
                encoder.encode_envelope(&envelopes.build_unlogged(&origin, why))
            }
            (HostRequest::Refuse(why) | HostRequest::RefuseCall { why, .. }, None) => {
                encoder.encode_reply(Err(why))
            }
            // No other request is answered without authentication.
            _ => None,
        };
        reply.unwrap_or_else(|| dialect.refuse(refusal))
    }

    /// Performs the action that the parsed message `reading` requires. `id` is the id of the
    /// client's session, if there is one, and `incoming` the HTTP request with the message.
    async fn act(
        &self,
        reading: ParsedFrame,
        (id, incoming): (Option<String>, Option<&ReceivedRequest>),
        session: Arc<ClientSession>,
        caller: &Caller,
    ) -> OutgoingResponse {
        let frame = incoming.map(|incoming| &incoming.frame);
        let memory = incoming.and_then(|incoming| incoming.memory.clone());
        match session.handle(reading) {
            FrameAction::Reply(reply) => OutgoingResponse::Single(reply),
            // These occur only on line-based transports.
            FrameAction::ReplyAll(_) => OutgoingResponse::Single(Reply::empty(500)),
            FrameAction::OpenSession(reply) => {
                OutgoingResponse::Single(self.register_session(reply, frame, session))
            }
            FrameAction::CloseSession(reply) => {
                if let Some(id) = id {
                    self.sealer.end(&id);
                    lock_mutex(&self.sessions).remove(&id);
                }
                session.end("the session was ended");
                session.release();
                OutgoingResponse::Single(reply)
            }
            FrameAction::Run(FrameToolCalls::Single(request)) => {
                self.run_call(&session, request, memory, caller).await
            }
            FrameAction::Run(batch) => {
                let pending = batch.begin(&session, &CallEventDestination::Discard, caller);
                let work = Box::pin(async move { pending.answer(&session).await });
                let work = toolgate_net::spawn_task(self.server.spawn_large(memory, work));
                OutgoingResponse::Single(batch_reply(work.await))
            }
            FrameAction::Stream(RequestedMessageStream::Job(job)) => {
                let (out, messages) = mpsc::channel(EVENTS_WAITING_MAX);
                session.watch_job(job, out);
                event_feed(messages, ServerSentEvent::plain)
            }
            FrameAction::Stream(RequestedMessageStream::Changes(subscription)) => {
                let (out, messages) = mpsc::channel(EVENTS_WAITING_MAX);
                match session.listen(subscription, out, None, caller) {
                    Ok(()) => event_feed(messages, ServerSentEvent::message),
                    Err(refusal) => OutgoingResponse::Single(refusal),
                }
            }
            FrameAction::Stream(RequestedMessageStream::Notifications { after }) => {
                notification_response(&session, after.as_deref())
            }
        }
    }

    /// Opens the WebSocket that the dialect selected in `upgrade`, or returns the reply in it.
    fn open_socket(
        &self,
        dialect: &Arc<dyn Dialect>,
        upgrade: Result<WebSocketPurpose, Reply>,
        caller: Caller,
    ) -> OutgoingResponse {
        let upgrade = match upgrade {
            Ok(upgrade) => upgrade,
            Err(refusal) => return OutgoingResponse::Single(refusal),
        };
        let session = ClientSession::with_transport(
            "websocket",
            self.server.clone(),
            dialect.clone(),
            caller,
        );
        // The client never sees this id. It separates the calls of conversations in records.
        if let Ok(id) = random_id() {
            session.set_id(&id);
        }
        OutgoingResponse::Socket(match upgrade {
            WebSocketPurpose::Converse => {
                Box::new(ConversationWebSocket { session, bounds: self.bounds.socket.clone() })
            }
            WebSocketPurpose::Watch(job) => Box::new(JobWatchWebSocket { session, job }),
            WebSocketPurpose::Close(message, code) => {
                Box::new(RejectionWebSocket { message, code })
            }
        })
    }

    /// Runs one call and returns the response. A client that accepts streams gets an event stream
    /// if the call takes long or has events. Otherwise the answer is one message.
    async fn run_call(
        &self,
        session: &Arc<ClientSession>,
        request: PendingHostRequest,
        memory: Option<Arc<InputMemoryReservation>>,
        caller: &Caller,
    ) -> OutgoingResponse {
        let (out, mut events) = mpsc::channel(EVENTS_WAITING_MAX);
        let on_disconnect = request.on_disconnect;
        let answer_form = request.answer_form;
        let AcceptedCall { work, cancel } =
            match session.begin_call(request, CallEventDestination::Stream(out), caller) {
                Ok(call) => call,
                Err(refusal) => return OutgoingResponse::Single(refusal),
            };
        let presence = ClientPresenceGuard::new(on_disconnect, cancel);
        let mut work = match DetachableWork::start(session.server.spawn_large(memory, work)).await {
            Ok(answer) => return finished_response(session, answer.reply, events, answer_form),
            Err(work) => work,
        };
        let first = match answer_form {
            AcceptedResponseMode::Message => {
                let reply = (&mut work).await.and_then(|answer| answer.reply);
                return OutgoingResponse::Single(reply_or_accepted(reply));
            }
            AcceptedResponseMode::Stream | AcceptedResponseMode::Resumable => tokio::select! {
                biased;
                answer = &mut work => {
                    let reply = answer.and_then(|answer| answer.reply);
                    return finished_response(session, reply, events, answer_form);
                }
                Some(event) = events.recv() => Some(event),
                () = tokio::time::sleep(self.bounds.stream_after) => None,
            },
        };
        match (answer_form, on_disconnect) {
            (AcceptedResponseMode::Resumable, DisconnectEffect::Continues) => resumable_response(
                session,
                first,
                events,
                StreamedCallState::Running(work.detach()),
            ),
            _ => {
                let state = StreamedCallState::Running(work.detach());
                stream_response(CallEventStream { first, events, state, _presence: Some(presence) })
            }
        }
    }

    /// Opens a duplex conversation (HTTP+SSE of MCP). Returns the event stream to the client.
    fn open_duplex(&self, dialect: &Arc<dyn Dialect>, caller: Caller) -> OutgoingResponse {
        let id = match random_id() {
            Ok(id) if self.duplexes.len() < self.bounds.sessions_max => id,
            Ok(_) => {
                let message = "too many HTTP+SSE conversations are open; close one, or try again \
                               later"
                    .to_owned();
                return OutgoingResponse::Single(dialect.refuse(&FrameRefusal::Busy { message }));
            }
            Err(err) => {
                let message = format!("cannot open an HTTP+SSE conversation: {err}");
                return OutgoingResponse::Single(dialect.refuse(&FrameRefusal::Busy { message }));
            }
        };
        let session = ClientSession::new(self.server.clone(), dialect.clone(), caller);
        session.set_id(&id);
        let first = ServerSentEvent {
            name: Some("endpoint"),
            ..ServerSentEvent::plain(dialect.duplex_endpoint(&id).into())
        };
        self.duplexes.open(id, session, first, &self.bounds.socket)
    }
}

impl HttpApplication for HttpEndpoints {
    fn serves(&self, path: &str) -> bool {
        let is_page = self.identity.has_metadata_at(path) || self.pages.serve(path);
        is_page || self.routes.for_path(path).is_some()
    }

    fn paths(&self) -> Vec<&str> {
        self.routes.paths()
    }

    fn nearest_path(&self, path: &str) -> Option<&str> {
        self.routes.nearest_path(path)
    }

    fn authenticate<'a>(
        &'a self,
        head: &'a FrameMetadata,
        peer: SocketAddr,
    ) -> BoxFuture<'a, RequestSenderIdentity> {
        Box::pin(async move {
            if let Some(sender) = self.pages.authenticate(&self.identity, head, peer.ip()).await {
                return sender;
            }
            match self
                .routes
                .for_request(head)
                .filter(|_| !self.identity.has_metadata_at(head.path()))
            {
                Some(dialect) => {
                    self.identity.authenticate(Some(dialect.as_ref()), head, peer.ip()).await
                }
                None => RequestSenderIdentity::Anonymous,
            }
        })
    }

    fn handle<'a>(&'a self, incoming: &'a ReceivedRequest) -> BoxFuture<'a, OutgoingResponse> {
        Box::pin(async move {
            if let Some(page) = self.identity.metadata_page(&incoming.frame.head) {
                return OutgoingResponse::Single(page);
            }
            let head = &incoming.frame.head;
            let sessions = || lock_mutex(&self.sessions).len() + self.duplexes.len();
            if let Some(page) = self.pages.answer(&self.identity, incoming, sessions).await {
                return page;
            }
            if !self.identity.has_challenge() {
                return self.answer(incoming).await;
            }
            match self.answer(incoming).await {
                OutgoingResponse::Single(reply) => {
                    OutgoingResponse::Single(self.identity.add_challenge(reply, head))
                }
                outgoing => outgoing,
            }
        })
    }

    fn answer_unread<'a>(
        &'a self,
        head: &'a FrameMetadata,
        reason: &'a UnreadableRequestReason,
    ) -> BoxFuture<'a, Option<Reply>> {
        Box::pin(async move {
            let dialect = self.routes.for_request(head)?;
            let reading = match reason {
                UnreadableRequestReason::TooLarge { limit } => {
                    let frame = MessageFrame { head: head.clone(), body: Bytes::new() };
                    dialect.reject_frame(&frame, &FrameRefusal::TooLarge { limit: *limit })
                }
                UnreadableRequestReason::TimedOut
                | UnreadableRequestReason::Incomplete
                | UnreadableRequestReason::Unsupported(_) => {
                    dialect.reject_unreadable(head, &reason.message())?
                }
                UnreadableRequestReason::TooManyStreams | UnreadableRequestReason::NoBodyRoom => {
                    return Some(dialect.refuse(&FrameRefusal::Busy { message: reason.message() }));
                }
            };
            let anonymous = Caller::anonymous();
            let session =
                ClientSession::new(self.server.clone(), dialect.clone(), anonymous.clone());
            match self.act(reading, (None, None), session, &anonymous).await {
                OutgoingResponse::Single(reply) => Some(reply),
                OutgoingResponse::AnswerStream(_)
                | OutgoingResponse::LongStream(_)
                | OutgoingResponse::Socket(_) => None,
            }
        })
    }

    fn accepts_form(&self, path: &str) -> bool {
        self.pages.accepts_form_at(path)
    }

    fn answers_health(&self) -> bool {
        let head = FrameMetadata::Http {
            method: Method::GET,
            path: "/healthz".to_owned(),
            query: String::new(),
            headers: HeaderMap::new(),
        };
        self.routes.for_request(&head).is_some_and(|dialect| dialect.is_public(&head))
    }
}
