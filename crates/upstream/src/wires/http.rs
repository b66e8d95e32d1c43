//! Streamable HTTP, with and without sessions.

mod session;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use toolgate_contract::BoxFuture;
use toolgate_dialects::mcp::upstream::{Era, Revision};

use session::knows_no_session;

use super::brisk::Brisk;
use super::cut::Is;
use super::events::{Event, Events};
use super::in_flight::InFlight;
use super::pool::{Giving, Pool};
use super::site::Site;
use super::talk::{QUESTIONS_MAX, too_long};
use crate::hearing::VISITED;
use crate::message::{self, Message, RpcError};
use crate::wire::{Hears, Sent, Trouble, Wire};

/// Most bytes read of a response body that is not an answer.
pub(super) const SCRAP: usize = 64 << 10;
/// Default pause before a broken stream is resumed.
const RETRY: Duration = Duration::from_millis(500);
/// Most attempts to resume a stream without anything new.
const RETRIES: u32 = 5;
/// Timeout of notifications.
const PASSING: Duration = Duration::from_secs(2);
/// Timeout of answers to the server's requests.
const ANSWERING: Duration = Duration::from_secs(10);

/// A Streamable HTTP transport. Dropping it ends the session.
pub(crate) struct Http(Arc<Endpoint>, DropGuard);

struct Endpoint {
    site: Site,
    pool: Arc<Pool>,
    path: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    hears: Arc<dyn Hears>,
    /// Requests in flight, which receive messages from the notification stream.
    in_flight: Arc<InFlight<()>>,
    brisk: Brisk,
    /// Permits for open requests of the server, and for refusing further ones.
    questions: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    session: RwLock<Option<HeaderValue>>,
    revision: RwLock<Option<&'static Revision>>,
    gone: CancellationToken,
}

impl Http {
    /// Creates the transport for `site` without connecting.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or a header is invalid.
    pub(crate) fn new(site: Site, hears: Arc<dyn Hears>) -> Result<Self, String> {
        let (place, uri) = site.place()?;
        let said = site.said_always(&uri)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = path.parse().map_err(|err| format!("`{}` is no URL: {err}", site.url))?;
        let gone = CancellationToken::new();
        let ends = gone.clone().drop_guard();
        let pool = Pool::new(site.world.clone(), place);
        let session = RwLock::default();
        let revision = RwLock::default();
        let in_flight = Arc::new(InFlight::new(hears.clone()));
        let brisk = Brisk::new();
        let places = || Arc::new(Semaphore::new(QUESTIONS_MAX));
        let questions = places();
        let refusals = places();
        let headers = said;
        let endpoint = Endpoint {
            site,
            pool,
            path,
            headers,
            hears,
            in_flight,
            brisk,
            questions,
            refusals,
            session,
            revision,
            gone,
        };
        Ok(Self(Arc::new(endpoint), ends))
    }
}

/// The outcome of reading a stream.
enum Streamed {
    /// The answer to the request.
    Answered(Result<Box<RawValue>, Trouble>),
    /// The stream ended first: the last event's id, and the requested pause in milliseconds.
    Ended(Option<String>, Option<u64>),
}

impl Endpoint {
    fn request(
        &self,
        method: Method,
        message: Option<&Sent>,
    ) -> Result<Request<Full<Bytes>>, Trouble> {
        let body = message.map(|message| message.body.clone()).unwrap_or_default();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.path.clone();
        let headers = request.headers_mut();
        let plain = HeaderValue::from_static;
        headers.insert(USER_AGENT, plain(concat!("toolgate/", env!("CARGO_PKG_VERSION"))));
        match message {
            Some(_) => {
                headers.insert(CONTENT_TYPE, plain("application/json"));
                headers.insert(ACCEPT, plain("application/json, text/event-stream"));
            }
            None => drop(headers.insert(ACCEPT, plain("text/event-stream"))),
        }
        if let Some(session) = self.session.read().unwrap_or_else(PoisonError::into_inner).clone() {
            headers.insert("mcp-session-id", session);
        }
        if let Some(revision) = self.revision() {
            headers.insert("mcp-protocol-version", plain(revision.name));
            if let Some(message) = message.filter(|_| revision.era == Era::Stateless) {
                let said = |text: &str| {
                    let value = HeaderValue::try_from(sayable(text));
                    value.map_err(|err| Trouble::NotSent(err.to_string()))
                };
                headers.insert("mcp-method", said(&message.method)?);
                if let Some(name) = &message.name {
                    headers.insert("mcp-name", said(name)?);
                }
                for (name, value) in &message.mirrored {
                    let name = HeaderName::try_from(format!("mcp-param-{name}"));
                    let name = name.map_err(|err| Trouble::NotSent(err.to_string()))?;
                    headers.insert(name, said(value)?);
                }
            }
        }
        headers.extend(self.headers.iter().cloned());
        Ok(request)
    }

    /// Sends an authorized HTTP request. A request for a stream resumes it after the event `last`.
    async fn sent(
        &self,
        method: Method,
        message: Option<&Sent>,
        last: Option<&str>,
    ) -> Result<(Response<Incoming>, Giving), Trouble> {
        let last = last.map(HeaderValue::try_from).transpose();
        let last = last.map_err(|err| Trouble::Lost(err.to_string()))?;
        let make = || {
            let mut request = self.request(method.clone(), message)?;
            let last = last.clone().map(|last| (HeaderName::from_static("last-event-id"), last));
            request.headers_mut().extend(last);
            Ok(request)
        };
        self.site.send(&self.pool, make).await
    }

    fn is_stateless(&self) -> bool {
        self.revision().is_some_and(|revision| revision.era == Era::Stateless)
    }

    fn revision(&self) -> Option<&'static Revision> {
        *self.revision.read().unwrap_or_else(PoisonError::into_inner)
    }

    async fn exchange(
        self: &Arc<Self>,
        message: Sent,
        hears: Arc<dyn Hears>,
    ) -> Result<Box<RawValue>, Trouble> {
        let id = message.id.unwrap_or_default();
        let (response, giving) = self.sent(Method::POST, Some(&message), None).await?;
        if message.method == "initialize"
            && let Some(session) = response.headers().get("mcp-session-id")
        {
            *self.session.write().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        }
        let mut response = self.refused(response, id, &message).await?;
        let is_stream = response.headers().get(CONTENT_TYPE).is_some_and(|kind| {
            kind.to_str().is_ok_and(|kind| kind.trim_start().starts_with("text/event-stream"))
        });
        if !is_stream {
            let body = whole(&mut response, self.site.bytes_max).await.map_err(Trouble::Lost)?;
            giving.back();
            return self.answer_in(&body, id, &hears);
        }
        let mut streamed = self.streamed(response, Some(giving), id, &hears).await?;
        // A stream of a session may break off and be resumed over another connection.
        let mut tried = 0;
        loop {
            let (last, wait) = match streamed {
                Streamed::Answered(outcome) => return outcome,
                Streamed::Ended(Some(last), wait) if !self.is_stateless() => (last, wait),
                Streamed::Ended(..) => {
                    return Err(Trouble::Lost("the stream ended without an answer".to_owned()));
                }
            };
            if tried == RETRIES {
                return Err(Trouble::Lost("the stream ended, again and again".to_owned()));
            }
            tokio::time::sleep(wait.map_or(RETRY, Duration::from_millis)).await;
            streamed = match self.taken_up(&last, id, &hears).await? {
                Streamed::Ended(None, wait) => {
                    tried += 1;
                    Streamed::Ended(Some(last), wait)
                }
                Streamed::Ended(Some(new), wait) => {
                    tried = if new == last { tried + 1 } else { 0 };
                    Streamed::Ended(Some(new), wait)
                }
                answered @ Streamed::Answered(_) => answered,
            };
        }
    }

    /// Resumes the stream after its event `last`.
    async fn taken_up(
        self: &Arc<Self>,
        last: &str,
        id: u64,
        hears: &Arc<dyn Hears>,
    ) -> Result<Streamed, Trouble> {
        let (response, giving) = self.sent(Method::GET, None, Some(last)).await.map_err(lost)?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(Trouble::Lost(format!("the stream cannot be taken up: {status}")));
        }
        self.streamed(response, Some(giving), id, hears).await
    }

    async fn streamed(
        self: &Arc<Self>,
        mut response: Response<Incoming>,
        giving: Option<Giving>,
        id: u64,
        hears: &Arc<dyn Hears>,
    ) -> Result<Streamed, Trouble> {
        let mut events = Events::default();
        let mut last = None;
        let mut retry = None;
        while let Some(frame) = response.body_mut().frame().await {
            let Ok(frame) = frame else { break };
            let Ok(piece) = frame.into_data() else { continue };
            for Event { data, cut, id: event, retry: wait, .. } in
                events.take(&piece, self.site.bytes_max)
            {
                last = event.filter(|id| !id.is_empty()).or(last);
                retry = wait.or(retry);
                if cut.is_some_and(|cut| matches!(cut.is(), Is::Answer(Some(of)) if of == id)) {
                    return Ok(Streamed::Answered(Err(too_long(self.site.bytes_max))));
                }
                if let Some(outcome) = self.heard(data.as_bytes(), id, hears) {
                    // Nothing follows the answer. The connection is reused if the stream ends soon.
                    if let Some(giving) = giving {
                        tokio::spawn(async move {
                            let rest = whole(&mut response, SCRAP);
                            let rest = tokio::time::timeout(Duration::from_secs(1), rest).await;
                            if matches!(rest, Ok(Ok(_))) {
                                giving.back();
                            }
                        });
                    }
                    return Ok(Streamed::Answered(outcome));
                }
            }
        }
        Ok(Streamed::Ended(last, retry))
    }

    /// Handles the messages of an event. Returns the answer to `id` if it is among them.
    fn heard(
        self: &Arc<Self>,
        data: &[u8],
        id: u64,
        hears: &Arc<dyn Hears>,
    ) -> Option<Result<Box<RawValue>, Trouble>> {
        if data.is_empty() {
            return None;
        }
        let messages = match message::read(data) {
            Ok(messages) => messages,
            Err(why) => {
                tracing::debug!("an upstream's event is no message: {why}");
                return None;
            }
        };
        let mut answer = None;
        for message in messages {
            match message {
                Message::Answer(Some(of), outcome) if of == id => {
                    answer = Some(outcome.map_err(Trouble::Refused));
                }
                Message::Answer(..) => {}
                Message::Notification { method, params } => {
                    let of_a_request = matches!(
                        method.as_str(),
                        "notifications/progress" | "notifications/message"
                    );
                    if method == VISITED {
                        hears.said(&method, &params);
                    }
                    let hears = if of_a_request { hears } else { &self.hears };
                    hears.said(&method, &params);
                }
                Message::Request { id, method, params } => {
                    self.in_flight.is_asked(&method);
                    self.is_asked(id, method, params, hears.clone());
                }
            }
        }
        answer
    }

    /// Answers a request of the server in the background.
    ///
    /// If too many are open, it is refused. If too many refusals are open as well, it is dropped.
    fn is_asked(
        self: &Arc<Self>,
        id: Box<RawValue>,
        method: String,
        params: Value,
        hears: Arc<dyn Hears>,
    ) {
        let endpoint = self.clone();
        if let Ok(place) = self.questions.clone().try_acquire_owned() {
            tokio::spawn(async move {
                endpoint.answers(&id, method, params, hears).await;
                drop(place);
            });
        } else if let Ok(place) = self.refusals.clone().try_acquire_owned() {
            tokio::spawn(async move {
                let busy = RpcError::new(-32603, "too much is asked at once");
                endpoint.answered(&id, method, Err(busy)).await;
                drop(place);
            });
        }
    }

    /// Answers a request of the server.
    async fn answers(
        self: &Arc<Self>,
        id: &RawValue,
        method: String,
        params: Value,
        hears: Arc<dyn Hears>,
    ) {
        let outcome = match method.as_str() {
            "ping" => Ok(Value::Object(serde_json::Map::new())),
            _ => tokio::select! {
                outcome = hears.asked(method.clone(), params) => outcome,
                () = self.gone.cancelled() => return,
            },
        };
        self.answered(id, method, outcome).await;
    }

    /// Posts an answer.
    async fn answered(
        self: &Arc<Self>,
        id: &RawValue,
        method: String,
        outcome: Result<Value, RpcError>,
    ) {
        let body = message::answered(id, outcome);
        let answer = Sent { id: None, method, name: None, mirrored: Vec::new(), body };
        match tokio::time::timeout(ANSWERING, self.told(&answer)).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => tracing::debug!("an upstream does not take an answer: {why:?}"),
            Err(_) => tracing::debug!("an upstream does not take an answer in time"),
        }
    }

    /// Posts a message that has no answer.
    async fn told(self: &Arc<Self>, message: &Sent) -> Result<(), Trouble> {
        let (response, giving) = self.sent(Method::POST, Some(message), None).await?;
        let mut response = self.refused(response, 0, message).await?;
        if whole(&mut response, SCRAP).await.is_ok() {
            giving.back();
        }
        Ok(())
    }

    fn answer_in(
        self: &Arc<Self>,
        body: &[u8],
        id: u64,
        hears: &Arc<dyn Hears>,
    ) -> Result<Box<RawValue>, Trouble> {
        let none = || Err(Trouble::Lost("it answered with no JSON-RPC answer".to_owned()));
        self.heard(body, id, hears).unwrap_or_else(none)
    }

    /// Returns the response, or an error if its status is not a success.
    async fn refused(
        self: &Arc<Self>,
        mut response: Response<Incoming>,
        id: u64,
        message: &Sent,
    ) -> Result<Response<Incoming>, Trouble> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = whole(&mut response, SCRAP).await.unwrap_or_default();
        let error = error_in(&body, id);
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) && error.is_none() {
            let why = format!("it answers {status}: it does not believe who we are");
            return Err(Trouble::Unauthorized(why));
        }
        let in_session = self.session.read().unwrap_or_else(PoisonError::into_inner).is_some();
        let begins = message.method == "initialize";
        if in_session && !begins && knows_no_session(status, error.as_ref(), &body) {
            self.gone.cancel();
            return Err(Trouble::SessionGone);
        }
        if let Some(error) = error {
            return Err(Trouble::Refused(error));
        }
        let said = String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned();
        let why = match said.is_empty() {
            true => format!("it answered {status}"),
            false => format!("it answered {status}: {said}"),
        };
        // A status below 500 means that the server has done nothing.
        Err(if status.is_client_error() || status.is_redirection() {
            Trouble::NotSent(why)
        } else {
            Trouble::Lost(why)
        })
    }
}

fn lost(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::NotSent(why) => Trouble::Lost(why),
        other => other,
    }
}

/// Returns the JSON-RPC error in a body, if there is one.
fn error_in(body: &[u8], _id: u64) -> Option<RpcError> {
    let Ok(messages) = message::read(body) else { return None };
    messages.into_iter().find_map(|message| match message {
        Message::Answer(_, Err(error)) => Some(error),
        _ => None,
    })
}

/// Returns `text` as a header value, in Base64 if it has other characters than a header allows.
fn sayable(text: &str) -> String {
    let plain = text.bytes().all(|b| (b' '..=b'~').contains(&b)) && text.trim() == text;
    match plain && !text.starts_with("=?base64?") {
        true => text.to_owned(),
        false => format!("=?base64?{}?=", STANDARD.encode(text)),
    }
}

pub(super) async fn whole(
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

/// A request that waits for its answer. Dropping it early sends a cancellation, if the protocol has
/// one.
struct Waiting {
    endpoint: Arc<Endpoint>,
    id: u64,
    cancellable: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let id = self.id;
        let endpoint = self.endpoint.clone();
        let says = self.cancellable && !endpoint.is_stateless();
        match says {
            true => endpoint.in_flight.abandon(id),
            false => endpoint.in_flight.end(id),
        };
        let Some(runtime) = tokio::runtime::Handle::try_current().ok().filter(|_| says) else {
            return;
        };
        runtime.spawn(async move {
            let reason = "nobody waits for the answer any more";
            let params = serde_json::json!({ "requestId": id, "reason": reason });
            let method = "notifications/cancelled".to_owned();
            let body = message::written(None, &method, &params);
            let said = Sent { id: None, method, name: None, mirrored: Vec::new(), body };
            let _ = tokio::time::timeout(PASSING, endpoint.told(&said)).await;
            endpoint.in_flight.is_done(id);
        });
    }
}

impl Wire for Http {
    fn request(
        &self,
        message: Sent,
        hears: Arc<dyn Hears>,
    ) -> BoxFuture<'_, Result<Box<RawValue>, Trouble>> {
        Box::pin(async move {
            let id = message.id.unwrap_or_default();
            let cancellable = message.method != "initialize";
            self.0.in_flight.begin(&message, hears.clone(), ());
            let mut waiting = Waiting { endpoint: self.0.clone(), id, cancellable };
            let alone = self.0.in_flight.is_alone();
            let outcome = self.0.brisk.wait(alone, self.0.exchange(message, hears)).await;
            waiting.cancellable = false;
            outcome
        })
    }

    fn say(&self, message: Sent) -> BoxFuture<'_, Result<(), Trouble>> {
        Box::pin(async move { self.0.told(&message).await })
    }

    fn agreed(&self, revision: Option<&'static Revision>) {
        *self.0.revision.write().unwrap_or_else(PoisonError::into_inner) = revision;
    }

    fn listen(&self) {
        if !self.0.is_stateless() {
            let endpoint = self.0.clone();
            let gone = self.0.gone.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = gone.cancelled() => {}
                    () = endpoint.listens() => {}
                }
            });
        }
    }

    fn tells_who_asks(&self) -> bool {
        true
    }

    fn gone(&self) -> &CancellationToken {
        &self.0.gone
    }

    fn why(&self) -> String {
        "the session ended".to_owned()
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        let session = self.0.session.read().unwrap_or_else(PoisonError::into_inner).is_some();
        let gone = self.0.gone.is_cancelled();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !session || gone {
            return;
        }
        let endpoint = self.0.clone();
        runtime.spawn(async move {
            // A session that is not deleted stays in the server's memory.
            let sent = endpoint.sent(Method::DELETE, None, None);
            let _ = tokio::time::timeout(PASSING, sent).await;
        });
        let _ = &self.1;
    }
}

#[cfg(test)]
mod tests;
