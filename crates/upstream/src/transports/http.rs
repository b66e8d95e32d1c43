//! Streamable HTTP transport, with and without sessions.

mod event_stream;
mod request_guard;
mod session;

use std::sync::{Arc, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use toolgate_contract::{BoxFuture, lock_read, lock_write};
use toolgate_dialects::mcp::upstream::{McpRevision, SessionModel};
use toolgate_net::{AnswerBusyPollState, HttpClient, HttpUrl};

use super::conversation::QUESTIONS_MAX;
use super::in_flight::InFlightRequests;
use super::refusals::{RpcResponseError, is_session_unknown, names_session};
use super::site::{RedirectTarget, UpstreamEndpoint, describe_response};
use crate::message::{self, UpstreamMessage, UpstreamRpcError};
use crate::server_requests::ELICITATION_COMPLETE;
use crate::transport::{
    MessageReceiver, OutgoingMessage, TransportConnection, UpstreamRequestFailure,
};
use request_guard::HttpRequestGuard;

/// Maximum number of bytes that are read of the body of an HTTP response that contains no answer.
pub(super) const ERROR_BODY_BYTES_MAX: usize = 64 << 10;
/// Content type of an event stream.
const EVENT_STREAM: &[u8] = b"text/event-stream";
/// Maximum number of bytes of a response's body that an error message shows.
const SHOWN_BODY_BYTES: usize = 200;
/// Id that matches no request, for a stream that must not answer a request.
const NO_REQUEST: u64 = u64::MAX;
/// Timeout of an HTTP request that sends a notification.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of an HTTP request that sends an answer to the server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A Streamable HTTP transport. Dropping the transport ends the session.
pub(crate) struct HttpTransport(Arc<UpstreamHttpEndpoint>, DropGuard);

/// HTTP endpoint of an upstream with the state of its session.
struct UpstreamHttpEndpoint {
    site: UpstreamEndpoint,
    client: HttpClient,
    /// URL to which requests are sent. A redirect replaces it.
    url: RwLock<HttpUrl>,
    headers: Vec<(HeaderName, HeaderValue)>,
    receiver: Arc<dyn MessageReceiver>,
    /// Requests in flight. They also receive messages from the session's notification stream.
    in_flight: Arc<InFlightRequests<()>>,
    busy_poll: AnswerBusyPollState,
    /// Permits for requests of the server that toolgate is answering.
    questions: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    session: RwLock<Option<HeaderValue>>,
    revision: RwLock<Option<&'static McpRevision>>,
    gone: CancellationToken,
}

impl HttpTransport {
    /// Creates the transport for `site` without connecting.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or a header is invalid.
    pub(crate) fn new(
        site: UpstreamEndpoint,
        receiver: Arc<dyn MessageReceiver>,
    ) -> Result<Self, String> {
        let url = site.http_url()?;
        let headers = site.fixed_headers(&url)?;
        let url = RwLock::new(url);
        let gone = CancellationToken::new();
        let drop_guard = gone.clone().drop_guard();
        let client = site.http_client();
        let session = RwLock::default();
        let revision = RwLock::default();
        let in_flight = Arc::new(InFlightRequests::new(receiver.clone()));
        let busy_poll = AnswerBusyPollState::for_waiter();
        let semaphore = || Arc::new(Semaphore::new(QUESTIONS_MAX));
        let questions = semaphore();
        let refusals = semaphore();
        let endpoint = UpstreamHttpEndpoint {
            site,
            client,
            url,
            headers,
            receiver,
            in_flight,
            busy_poll,
            questions,
            refusals,
            session,
            revision,
            gone,
        };
        Ok(Self(Arc::new(endpoint), drop_guard))
    }
}

/// Position of a message in the response to a request: first or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseStreamPosition {
    /// The first message of the response. The server may not have read the request.
    Start,
    Later,
}

impl UpstreamHttpEndpoint {
    fn request(
        &self,
        method: Method,
        message: Option<&OutgoingMessage>,
    ) -> Result<Request<Full<Bytes>>, UpstreamRequestFailure> {
        let body = message.map(|message| message.body.clone()).unwrap_or_default();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        let headers = request.headers_mut();
        let fixed = HeaderValue::from_static;
        match message {
            Some(_) => {
                headers.insert(CONTENT_TYPE, fixed("application/json"));
                headers.insert(ACCEPT, fixed("application/json, text/event-stream"));
            }
            None => drop(headers.insert(ACCEPT, fixed("text/event-stream"))),
        }
        if let Some(session) = lock_read(&self.session).clone() {
            headers.insert("mcp-session-id", session);
        }
        if let Some(revision) = self.revision() {
            headers.insert("mcp-protocol-version", fixed(revision.name));
            if let Some(message) = message.filter(|_| revision.era == SessionModel::Stateless) {
                let header_value = |text: &str| {
                    let value = HeaderValue::try_from(header_text(text));
                    value.map_err(|err| UpstreamRequestFailure::NotSent(err.to_string()))
                };
                headers.insert("mcp-method", header_value(&message.method)?);
                if let Some(name) = &message.target {
                    headers.insert("mcp-name", header_value(name)?);
                }
                for (name, value) in &message.header_params {
                    let name = HeaderName::try_from(format!("mcp-param-{name}"));
                    let name =
                        name.map_err(|err| UpstreamRequestFailure::NotSent(err.to_string()))?;
                    headers.insert(name, header_value(value)?);
                }
            }
        }
        headers.extend(self.headers.iter().cloned());
        Ok(request)
    }

    /// Sends an authorized HTTP request. If the request is for a stream, the stream resumes after
    /// the event `last`.
    async fn send(
        &self,
        method: Method,
        message: Option<&OutgoingMessage>,
        last: Option<&str>,
    ) -> Result<Response<Incoming>, UpstreamRequestFailure> {
        let last = last.map(HeaderValue::try_from).transpose();
        let last = last.map_err(|err| UpstreamRequestFailure::Lost(err.to_string()))?;
        let make = || {
            let mut request = self.request(method.clone(), message)?;
            let last = last.clone().map(|last| (HeaderName::from_static("last-event-id"), last));
            request.headers_mut().extend(last);
            Ok(request)
        };
        let url = lock_read(&self.url).clone();
        let response = self.site.send(&self.client, url, make).await?;
        if let Some(RedirectTarget(redirected)) = response.extensions().get() {
            self.receiver.record_redirect(&redirected.without_query());
            if response.status().is_success() {
                let mut url = lock_write(&self.url);
                *url = redirected.clone();
            }
        }
        Ok(response)
    }

    fn is_in_session(&self) -> bool {
        self.revision().is_some_and(|revision| revision.era == SessionModel::Session)
    }

    fn is_stateless(&self) -> bool {
        self.revision().is_some_and(|revision| revision.era == SessionModel::Stateless)
    }

    fn revision(&self) -> Option<&'static McpRevision> {
        *lock_read(&self.revision)
    }

    async fn exchange(
        self: &Arc<Self>,
        message: OutgoingMessage,
        receiver: Arc<dyn MessageReceiver>,
    ) -> Result<Box<RawValue>, UpstreamRequestFailure> {
        let id = message.id.unwrap_or_default();
        let response = self.send(Method::POST, Some(&message), None).await?;
        if message.method == "initialize"
            && let Some(session) = response.headers().get("mcp-session-id")
        {
            *lock_write(&self.session) = Some(session.clone());
        }
        let mut response = self.check_status(response).await?;
        let is_stream = response.headers().get(CONTENT_TYPE).is_some_and(is_event_stream);
        if !is_stream {
            let body = read_body(&mut response, self.site.bytes_max)
                .await
                .map_err(UpstreamRequestFailure::Lost)?;
            return self.answer_in_body(&body, id, &receiver);
        }
        self.answer_in_stream(response, id, &receiver).await
    }

    /// Handles the messages in a server-sent event. Returns the answer to the request `id` if one
    /// of the messages is this answer.
    fn handle_messages(
        self: &Arc<Self>,
        data: &[u8],
        id: u64,
        receiver: &Arc<dyn MessageReceiver>,
        position: ResponseStreamPosition,
    ) -> Option<Result<Box<RawValue>, UpstreamRequestFailure>> {
        if data.is_empty() {
            return None;
        }
        let messages = match message::parse_messages(data) {
            Ok(messages) => messages,
            Err(why) => {
                tracing::debug!(
                    "ignoring an event of an upstream, because it is not a message: {why}"
                );
                self.receiver.record_output(data);
                return None;
            }
        };
        let mut answer = None;
        let mut anonymous = None;
        for message in messages {
            match message {
                UpstreamMessage::Answer(Some(of), Err(error))
                    if of == id && position == ResponseStreamPosition::Start =>
                {
                    let refusal = RpcResponseError { error, is_anonymous: false };
                    answer = Some(Err(self.failure(StatusCode::OK, refusal, &[])));
                }
                UpstreamMessage::Answer(Some(of), outcome) if of == id => {
                    answer = Some(outcome.map_err(UpstreamRequestFailure::Refused));
                }
                // At the start of the response to a request, an error without an id concerns the
                // request.
                UpstreamMessage::Answer(None, Err(error))
                    if id != NO_REQUEST && position == ResponseStreamPosition::Start =>
                {
                    anonymous = Some(RpcResponseError { error, is_anonymous: true });
                }
                UpstreamMessage::Answer(..) => {}
                UpstreamMessage::Notification { method, params } => {
                    let belongs_to_request = matches!(
                        method.as_str(),
                        "notifications/progress" | "notifications/message"
                    );
                    if method == ELICITATION_COMPLETE {
                        receiver.notify(&method, &params);
                    }
                    let receiver = if belongs_to_request { receiver } else { &self.receiver };
                    receiver.notify(&method, &params);
                }
                UpstreamMessage::Request { id, method, params } => {
                    self.in_flight.note_server_request(&method);
                    self.answer_in_background(id, method, params, receiver.clone());
                }
            }
        }
        answer.or_else(|| Some(Err(self.failure(StatusCode::OK, anonymous?, &[]))))
    }

    /// Returns the failure of a request that `error` answers. If the server does not know the
    /// session, the session ends.
    fn failure(
        &self,
        status: StatusCode,
        error: RpcResponseError,
        body: &[u8],
    ) -> UpstreamRequestFailure {
        match self.is_session_gone(status, Some(&error), body) {
            true => self.end_session(error.error.message),
            false => UpstreamRequestFailure::Refused(error.error),
        }
    }

    /// Returns true if a response means that the server does not know toolgate's session.
    fn is_session_gone(
        &self,
        status: StatusCode,
        error: Option<&RpcResponseError>,
        body: &[u8],
    ) -> bool {
        let has_id = || lock_read(&self.session).is_some();
        // If toolgate has no session id, a refusal may have any reason.
        let names_it = || match error {
            Some(error) => names_session(&error.error.message),
            None => names_session(&String::from_utf8_lossy(body)),
        };
        self.is_in_session() && is_session_unknown(status, error, body) && (has_id() || names_it())
    }

    fn end_session(&self, why: String) -> UpstreamRequestFailure {
        self.gone.cancel();
        UpstreamRequestFailure::SessionGone(why)
    }

    /// Answers a request of the server in the background.
    ///
    /// If too many requests are open, sends an error as the answer. If too many such errors are
    /// being sent, ignores the request.
    fn answer_in_background(
        self: &Arc<Self>,
        id: Box<RawValue>,
        method: String,
        params: Value,
        receiver: Arc<dyn MessageReceiver>,
    ) {
        let endpoint = self.clone();
        if let Ok(permit) = self.questions.clone().try_acquire_owned() {
            toolgate_net::spawn_task(async move {
                endpoint.answer_request(&id, method, params, receiver).await;
                drop(permit);
            });
        } else if let Ok(permit) = self.refusals.clone().try_acquire_owned() {
            toolgate_net::spawn_task(async move {
                let busy = UpstreamRpcError::new(-32603, "too many requests at once");
                endpoint.post_answer(&id, method, Err(busy)).await;
                drop(permit);
            });
        }
    }

    /// Answers a request of the server.
    async fn answer_request(
        self: &Arc<Self>,
        id: &RawValue,
        method: String,
        params: Value,
        receiver: Arc<dyn MessageReceiver>,
    ) {
        let outcome = match method.as_str() {
            "ping" => Ok(Value::Object(serde_json::Map::new())),
            _ => tokio::select! {
                outcome = receiver.answer_request(method.clone(), params) => outcome,
                () = self.gone.cancelled() => return,
            },
        };
        self.post_answer(id, method, outcome).await;
    }

    /// Sends an answer to a request of the server by POST.
    async fn post_answer(
        self: &Arc<Self>,
        id: &RawValue,
        method: String,
        outcome: Result<Value, UpstreamRpcError>,
    ) {
        let body = message::encode_answer(id, outcome);
        let answer =
            OutgoingMessage { id: None, method, target: None, header_params: Vec::new(), body };
        match tokio::time::timeout(ANSWER_TIMEOUT, self.post(&answer)).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => tracing::debug!("an upstream did not accept an answer: {why:?}"),
            Err(_) => tracing::debug!("an upstream did not accept an answer in time"),
        }
    }

    /// Sends a message that has no answer, by POST.
    async fn post(
        self: &Arc<Self>,
        message: &OutgoingMessage,
    ) -> Result<(), UpstreamRequestFailure> {
        let response = self.send(Method::POST, Some(message), None).await?;
        let mut response = self.check_status(response).await?;
        // The connection is used again once the body was read.
        let _ = read_body(&mut response, ERROR_BODY_BYTES_MAX).await;
        Ok(())
    }

    fn answer_in_body(
        self: &Arc<Self>,
        body: &[u8],
        id: u64,
        receiver: &Arc<dyn MessageReceiver>,
    ) -> Result<Box<RawValue>, UpstreamRequestFailure> {
        self.handle_messages(body, id, receiver, ResponseStreamPosition::Start).unwrap_or_else(
            || {
                let shown = shown_start(body);
                Err(UpstreamRequestFailure::Lost(format!(
                    "it answered without a JSON-RPC message{shown}"
                )))
            },
        )
    }

    /// Returns the HTTP response, or an error if its status is not a success.
    async fn check_status(
        self: &Arc<Self>,
        mut response: Response<Incoming>,
    ) -> Result<Response<Incoming>, UpstreamRequestFailure> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = read_body(&mut response, ERROR_BODY_BYTES_MAX).await.unwrap_or_default();
        let error = RpcResponseError::in_body(&body);
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) && error.is_none() {
            let why = format!("it answered {status}: it did not accept toolgate's credentials");
            return Err(UpstreamRequestFailure::Unauthorized(why));
        }
        if let Some(error) = error {
            return Err(self.failure(status, error, &body));
        }
        let answered = describe_response(status, response.headers());
        let shown = if status.is_redirection() { String::new() } else { shown_start(&body) };
        let why = format!("it {answered}{shown}");
        if self.is_session_gone(status, None, &body) {
            return Err(self.end_session(why));
        }
        // A status below 500 means that the server has done nothing.
        Err(if status.is_client_error() || status.is_redirection() {
            UpstreamRequestFailure::NotSent(why)
        } else {
            UpstreamRequestFailure::Lost(why)
        })
    }
}

/// Returns true if the content type `kind` is `text/event-stream`, regardless of case.
fn is_event_stream(kind: &HeaderValue) -> bool {
    let kind = kind.as_bytes().trim_ascii_start();
    kind.get(..EVENT_STREAM.len()).is_some_and(|it| it.eq_ignore_ascii_case(EVENT_STREAM))
}

/// Returns `: ` and the beginning of a response's body for an error message, if the body is not
/// blank.
fn shown_start(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BODY_BYTES)]);
    match text.trim() {
        "" => String::new(),
        text => format!(": {text}"),
    }
}

/// Returns `text` as a header value. Uses Base64 if it contains characters that a header does not
/// allow.
fn header_text(text: &str) -> String {
    let plain = text.bytes().all(|b| (b' '..=b'~').contains(&b)) && text.trim() == text;
    match plain && !text.starts_with("=?base64?") {
        true => text.to_owned(),
        false => format!("=?base64?{}?=", STANDARD.encode(text)),
    }
}

pub(super) async fn read_body(
    response: &mut Response<Incoming>,
    bytes_max: usize,
) -> Result<Bytes, String> {
    let mut body = BytesMut::new();
    while let Some(frame) = response.body_mut().frame().await {
        let frame = frame.map_err(|err| err.to_string())?;
        if let Ok(piece) = frame.into_data() {
            if body.len() + piece.len() > bytes_max {
                return Err(format!("it answered with more than {bytes_max} bytes"));
            }
            body.extend_from_slice(&piece);
        }
    }
    Ok(body.freeze())
}

impl TransportConnection for HttpTransport {
    fn request(
        &self,
        message: OutgoingMessage,
        receiver: Arc<dyn MessageReceiver>,
    ) -> BoxFuture<'_, Result<Box<RawValue>, UpstreamRequestFailure>> {
        Box::pin(async move {
            let id = message.id.unwrap_or_default();
            let cancellable = message.method != "initialize";
            self.0.in_flight.insert(&message, receiver.clone(), ());
            let mut waiting = HttpRequestGuard { endpoint: self.0.clone(), id, cancellable };
            let alone = self.0.in_flight.is_sole_request();
            let outcome = self.0.busy_poll.wait(alone, self.0.exchange(message, receiver)).await;
            waiting.cancellable = false;
            outcome
        })
    }

    fn send_notification(
        &self,
        message: OutgoingMessage,
    ) -> BoxFuture<'_, Result<(), UpstreamRequestFailure>> {
        Box::pin(async move { self.0.post(&message).await })
    }

    fn set_revision(&self, revision: Option<&'static McpRevision>) {
        *lock_write(&self.0.revision) = revision;
    }

    fn start_listening(&self) {
        if !self.0.is_stateless() {
            let endpoint = self.0.clone();
            let gone = self.0.gone.clone();
            toolgate_net::spawn_task(async move {
                tokio::select! {
                    () = gone.cancelled() => {}
                    () = endpoint.keep_listening() => {}
                }
            });
        }
    }

    fn may_lose_session(&self) -> bool {
        true
    }

    fn has_lost_session(&self) -> bool {
        self.0.gone.is_cancelled()
    }

    fn closed(&self) -> &CancellationToken {
        &self.0.gone
    }

    fn closed_reason(&self) -> String {
        "the session ended".to_owned()
    }
}

impl Drop for HttpTransport {
    fn drop(&mut self) {
        let session = lock_read(&self.0.session).is_some();
        let gone = self.0.gone.is_cancelled();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !session || gone {
            return;
        }
        let endpoint = self.0.clone();
        toolgate_net::spawn_task_on(&runtime, async move {
            // A session that is not deleted stays in the server's memory.
            let sent = endpoint.send(Method::DELETE, None, None);
            let _ = tokio::time::timeout(NOTIFY_TIMEOUT, sent).await;
        });
        let _ = &self.1;
    }
}

#[cfg(test)]
mod tests;
