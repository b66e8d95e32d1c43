//! Handles HTTP requests: checks them, reads the body and passes them to the application.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming as IncomingBody;
use tokio::time::timeout;
use toolgate_budget::{
    InputMemoryBudget, InputMemoryFull, InputMemoryOwner, InputMemoryReservation, UNCOUNTED_BYTES,
    parsed_json_bytes,
};
use toolgate_contract::{Caller, FrameMetadata, MessageFrame, Reply, lock_mutex};

use super::connection_slots::{
    ConnectionSlot, ConnectionSlotLimits, ConnectionSlots, OpenHttpRequest,
};
use super::cors::CorsRequestOrigin;
use super::head_checks::{AmbiguousRequestHeadReason, is_last_request};
use super::response_body::{ResponseBody, event_stream_response, reply_response, text_response};
use super::unsent::{UnsentByteCounter, UnsentBytesAccount};
use super::upgrade::{WebSocketRequest, switching_response};
use super::{
    HttpApplication, HttpServerLimits, OutgoingResponse, PendingWebSocket, ReceivedRequest,
    RequestOriginRules, RequestSenderIdentity, UnreadableRequestReason,
};

/// Largest request body whose JSON values are not counted, because their memory is small in any
/// case.
const SMALL_BODY_BYTES_MAX: usize = 4 << 10;

/// State that all connections of a listener share.
pub(super) struct RequestHandler {
    application: Arc<dyn HttpApplication>,
    admission: RequestOriginRules,
    pub(super) slots: Arc<ConnectionSlots>,
    /// Memory budget for request bodies. Each body keeps its reservation until the request is
    /// answered.
    input_memory: InputMemoryBudget,
    pub(super) unsent: Arc<UnsentByteCounter>,
    pub(super) bounds: HttpServerLimits,
}

/// Connection of one client, with the state of its requests.
pub(super) struct ClientConnection {
    pub(super) peer: SocketAddr,
    pub(super) slot: Arc<ConnectionSlot>,
    pub(super) unsent: Arc<UnsentBytesAccount>,
    pub(super) doubt: AmbiguousRequestHeadReason,
    /// WebSocket conversation to start after the last HTTP response.
    pub(super) pending_socket: Mutex<Option<PendingWebSocket>>,
}

impl RequestHandler {
    pub(super) fn new(
        application: Arc<dyn HttpApplication>,
        admission: RequestOriginRules,
        bounds: HttpServerLimits,
    ) -> Self {
        let input_memory = bounds.input_memory.clone();
        let unsent = UnsentByteCounter::new(bounds.unsent_bytes_max);
        let slots = ConnectionSlots::new(ConnectionSlotLimits {
            connections: bounds.connections_max,
            streams: bounds.streams_max,
            streams_each: bounds.streams_each,
            occupancy: bounds.occupancy.clone(),
        });
        Self { application, admission, slots, input_memory, unsent, bounds }
    }

    pub(super) async fn answer(
        &self,
        request: Request<IncomingBody>,
        client: &ClientConnection,
    ) -> Response<ResponseBody> {
        let turn = client.slot.begin_turn();
        let is_last = is_last_request(request.headers());
        let mut response = self.answer_unambiguous(request, client, &turn).await;
        let closes = is_last || client.doubt.get().is_some();
        if closes && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|sent| sent.with_turn(turn, client.unsent.clone()))
    }

    /// Answers an HTTP request unless its head is ambiguous.
    async fn answer_unambiguous(
        &self,
        request: Request<IncomingBody>,
        client: &ClientConnection,
        turn: &OpenHttpRequest,
    ) -> Response<ResponseBody> {
        if let Some(doubt) = client.doubt.get() {
            return text_response(StatusCode::BAD_REQUEST, &format!("{doubt}\n"));
        }
        if let Err(refusal) = self.admission.check(&request) {
            return text_response(refusal.status, &refusal.why);
        }
        let visitor = CorsRequestOrigin::from_request(&request);
        let mut response = match &visitor {
            Some(visitor) if visitor.is_preflight() => reply_response(Reply::empty(204)),
            Some(_) | None => self.answer_admitted(request, client, turn).await,
        };
        if let Some(visitor) = visitor {
            visitor.add_headers(response.headers_mut());
        }
        response
    }

    async fn answer_admitted(
        &self,
        mut request: Request<IncomingBody>,
        client: &ClientConnection,
        turn: &OpenHttpRequest,
    ) -> Response<ResponseBody> {
        let path = request.uri().path();
        if bare_path(path).unwrap_or(path) == "/healthz" && !self.application.answers_health() {
            return text_response(StatusCode::OK, "ok\n");
        }
        let Some(path) = self.served_path(path).map(str::to_owned) else {
            let nearest = self.application.nearest_path(path);
            let why = unknown_path_text(path, nearest, &self.application.paths());
            return text_response(StatusCode::NOT_FOUND, &why);
        };
        let websocket = match WebSocketRequest::from_request(&request) {
            Ok(websocket) => websocket,
            Err(invalid) => return invalid.refusal(),
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let (parts, body) = request.into_parts();
        let media_type = if self.application.accepts_form(&path) { FORM } else { JSON };
        let unsupported = unsupported_body(&parts.method, &parts.headers, media_type);
        let head = head(parts, path);
        let sender = self.application.authenticate(&head, client.peer).await;
        let caller = match &sender {
            RequestSenderIdentity::Known(caller) => {
                turn.mark_authenticated();
                caller.clone()
            }
            RequestSenderIdentity::Anonymous
            | RequestSenderIdentity::Unauthenticated { .. }
            | RequestSenderIdentity::MultipleCredentials
            | RequestSenderIdentity::Throttled { .. } => Caller::anonymous(),
        };
        let (body, share) = match (&sender, unsupported) {
            (
                RequestSenderIdentity::Known(_) | RequestSenderIdentity::Anonymous,
                Some(unsupported),
            ) => {
                return self.refuse(&head, &unsupported).await;
            }
            (RequestSenderIdentity::Known(_) | RequestSenderIdentity::Anonymous, None) => {
                let max = match needs_body(&head, &sender) {
                    true => self.bounds.body_bytes_max,
                    false => UNNEEDED_BODY_BYTES_MAX.min(self.bounds.body_bytes_max),
                };
                let holder = || InputMemoryOwner::for_client(&caller, client.peer.ip());
                match turn.while_sending(self.read_body(body, max, turn, holder)).await {
                    Ok((body, share)) => (body, share),
                    Err(unread) => return self.refuse(&head, &unread).await,
                }
            }
            (
                RequestSenderIdentity::Unauthenticated { .. }
                | RequestSenderIdentity::MultipleCredentials
                | RequestSenderIdentity::Throttled { .. },
                Some(_),
            ) => (Bytes::new(), None),
            (
                RequestSenderIdentity::Unauthenticated { .. }
                | RequestSenderIdentity::MultipleCredentials
                | RequestSenderIdentity::Throttled { .. },
                None,
            ) => (turn.while_sending(self.read_unauthenticated(body)).await, None),
        };
        let is_authenticated =
            matches!(sender, RequestSenderIdentity::Known(_) | RequestSenderIdentity::Anonymous);
        let frame = MessageFrame::new(head, body);
        let (upgrade_wanted, peer) = (websocket.is_some(), client.peer);
        let memory = share.map(Arc::new);
        let incoming = ReceivedRequest {
            frame,
            upgrade: upgrade_wanted,
            sender,
            peer,
            memory: memory.clone(),
        };
        let head = &incoming.frame.head;
        match (self.application.handle(&incoming).await, websocket) {
            (OutgoingResponse::Single(reply), _) => reply_response(reply),
            (OutgoingResponse::AnswerStream(events), _) => {
                event_stream_response(events, self.bounds.keep_alive, None, memory)
            }
            (OutgoingResponse::LongStream(events), _) => {
                match self.slots.reserve_stream(is_authenticated.then_some(&caller)) {
                    Some(stream_slot) => {
                        let slot = Some(stream_slot);
                        event_stream_response(events, self.bounds.keep_alive, slot, None)
                    }
                    None => self.refuse(head, &UnreadableRequestReason::TooManyStreams).await,
                }
            }
            (OutgoingResponse::Socket(talk), Some(websocket)) => {
                match self.slots.reserve_stream(is_authenticated.then_some(&caller)) {
                    Some(stream_slot) => {
                        let mut pending = lock_mutex(&client.pending_socket);
                        let owner = InputMemoryOwner::for_client(&caller, client.peer.ip());
                        *pending = Some(PendingWebSocket { talk, upgrade, stream_slot, owner });
                        switching_response(&websocket)
                    }
                    None => self.refuse(head, &UnreadableRequestReason::TooManyStreams).await,
                }
            }
            (OutgoingResponse::Socket(_), None) => {
                tracing::error!("a WebSocket was offered to a client that did not request one");
                text_response(StatusCode::INTERNAL_SERVER_ERROR, "internal server error\n")
            }
        }
    }

    /// Returns the served path for `path`, if there is one: `path` itself, or `path` without the
    /// slash at its end, which many clients add. A redirect would make some of these clients lose
    /// the body.
    fn served_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        let mut paths = bare_path(path).into_iter().chain([path]);
        paths.find(|path| self.application.serves(path))
    }

    async fn refuse(
        &self,
        head: &FrameMetadata,
        unread: &UnreadableRequestReason,
    ) -> Response<ResponseBody> {
        match self.application.answer_unread(head, unread).await {
            Some(reply) => reply_response(reply),
            None => {
                let mut refusal =
                    text_response(unread.status(), &format!("{}\n", unread.message()));
                if unread.status() == StatusCode::SERVICE_UNAVAILABLE {
                    refusal.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                }
                refusal
            }
        }
    }

    /// Reads a request body of at most `max` bytes. Its memory is charged to `holder`. The caller
    /// must keep the returned memory reservation until the request is answered.
    async fn read_body(
        &self,
        body: IncomingBody,
        max: usize,
        turn: &OpenHttpRequest,
        holder: impl Fn() -> InputMemoryOwner,
    ) -> Result<(Bytes, Option<InputMemoryReservation>), UnreadableRequestReason> {
        if body.size_hint().lower() > max as u64 {
            return Err(UnreadableRequestReason::TooLarge { limit: max });
        }
        let whole = self.read_pieces(body, max, turn, holder);
        timeout(self.bounds.body_time_max, whole)
            .await
            .unwrap_or(Err(UnreadableRequestReason::TimedOut))
    }

    async fn read_pieces(
        &self,
        mut body: IncomingBody,
        max: usize,
        turn: &OpenHttpRequest,
        holder: impl Fn() -> InputMemoryOwner,
    ) -> Result<(Bytes, Option<InputMemoryReservation>), UnreadableRequestReason> {
        let Some(first) = next_piece(&mut body).await? else { return Ok((Bytes::new(), None)) };
        if body.is_end_stream() && first.len() <= UNCOUNTED_BYTES.min(max) {
            let parsed = self.parsed_bytes(&first);
            if parsed == 0 {
                return Ok((first, None));
            }
            let share = self.input_memory.open_share(holder());
            share.mark_received();
            share.grow(parsed).await?;
            share.mark_complete()?;
            return Ok((first, Some(share)));
        }
        // Copied, because a one-byte piece keeps the whole read buffer alive.
        let mut whole = BytesMut::new();
        let mut share = None;
        let mut piece = first;
        loop {
            if whole.len() + piece.len() > max {
                return Err(UnreadableRequestReason::TooLarge { limit: max });
            }
            let beyond =
                (whole.len() + piece.len()).saturating_sub(UNCOUNTED_BYTES).min(piece.len());
            if beyond > 0 {
                let share = share.get_or_insert_with(|| self.input_memory.open_share(holder()));
                share.grow(beyond).await?;
            }
            whole.extend_from_slice(&piece);
            let next = match &share {
                None => next_piece(&mut body).await,
                Some(share) => tokio::select! {
                    biased;
                    () = share.wait_evicted() => Err(UnreadableRequestReason::NoBodyRoom),
                    next = next_piece(&mut body) => next,
                },
            };
            turn.note_data();
            match next? {
                Some(next) => piece = next,
                None => break,
            }
        }
        let parsed = self.parsed_bytes(&whole);
        if parsed > 0 {
            let share = share.get_or_insert_with(|| self.input_memory.open_share(holder()));
            share.mark_received();
            share.grow(parsed).await?;
        }
        share.as_ref().map_or(Ok(()), InputMemoryReservation::mark_complete)?;
        Ok((whole.freeze(), share))
    }

    /// Returns the number of bytes to charge for the JSON values of `body`. After parsing, these
    /// values exist in memory in addition to the body.
    fn parsed_bytes(&self, body: &[u8]) -> usize {
        if body.len() <= SMALL_BODY_BYTES_MAX {
            return 0;
        }
        parsed_json_bytes(body, self.bounds.body_bytes_max).saturating_sub(UNCOUNTED_BYTES)
    }

    /// Reads a short request body of an unauthenticated sender, outside of the memory budget.
    async fn read_unauthenticated(&self, body: IncomingBody) -> Bytes {
        let max = UNNEEDED_BODY_BYTES_MAX.min(self.bounds.body_bytes_max);
        if body.size_hint().lower() > max as u64 {
            return Bytes::new();
        }
        let whole = timeout(self.bounds.body_time_max, Limited::new(body, max).collect()).await;
        whole.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default()
    }
}

/// Media type of JSON messages.
pub(super) const JSON: &str = "application/json";
/// Media type of forms of web pages.
const FORM: &str = "application/x-www-form-urlencoded";
/// Largest request body that is read if the sender is unauthenticated or the request needs no body,
/// in bytes. This size suffices to find the message id.
const UNNEEDED_BODY_BYTES_MAX: usize = 64 << 10;

/// Returns true if the application may need the complete body of the request.
fn needs_body(head: &FrameMetadata, sender: &RequestSenderIdentity) -> bool {
    *sender != RequestSenderIdentity::Anonymous
        && matches!(head, FrameMetadata::Http { method: Method::POST, .. })
}

/// Returns the next piece of the request `body`, or `None` at its end.
async fn next_piece(body: &mut IncomingBody) -> Result<Option<Bytes>, UnreadableRequestReason> {
    loop {
        match body.frame().await {
            // Trailers are ignored.
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
            Some(Err(_)) => return Err(UnreadableRequestReason::Incomplete),
            None => return Ok(None),
        }
    }
}

impl From<InputMemoryFull> for UnreadableRequestReason {
    fn from(_: InputMemoryFull) -> Self {
        Self::NoBodyRoom
    }
}

/// Returns the URL path `path` without the slash at its end, if it has one and is not `/`.
fn bare_path(path: &str) -> Option<&str> {
    path.strip_suffix('/').filter(|bare| !bare.is_empty())
}

/// Returns the request head for `path` with the method and headers in `parts`.
fn head(parts: Parts, path: String) -> FrameMetadata {
    let query = parts.uri.query().unwrap_or_default().to_owned();
    FrameMetadata::Http { method: parts.method, path, query, headers: parts.headers }
}

/// Returns the text of the error response for the URL path `path`, which is not served. `paths` are
/// the served paths, and `nearest` is a similar one.
pub(super) fn unknown_path_text(path: &str, nearest: Option<&str>, paths: &[&str]) -> String {
    match nearest {
        Some(nearest) => format!("nothing is served at {path}; did you mean {nearest}?\n"),
        None => format!("nothing is served at {path}; the paths are {}\n", paths.join(", ")),
    }
}

/// Returns the reason to reject a POST request that is compressed, or whose content type is not
/// `media_type`. Returns `None` for any other request.
pub(super) fn unsupported_body(
    method: &Method,
    headers: &HeaderMap,
    media_type: &str,
) -> Option<UnreadableRequestReason> {
    if method != Method::POST {
        return None;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let kind = text(CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case(media_type) {
        let why = format!("the content type is `{kind}`; send {media_type}");
        return Some(UnreadableRequestReason::Unsupported(why));
    }
    let encoding = text(CONTENT_ENCODING).unwrap_or("identity");
    (!encoding.eq_ignore_ascii_case("identity")).then(|| {
        UnreadableRequestReason::Unsupported(format!(
            "the content encoding is `{encoding}`; send the body without encoding"
        ))
    })
}
