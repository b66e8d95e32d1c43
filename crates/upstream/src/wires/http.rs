//! Streamable HTTP, of sessions and without.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_util::sync::{CancellationToken, DropGuard};
use toolgate_contract::BoxFuture;
use toolgate_dialects::mcp::upstream::{Era, Revision};

use super::events::{Event, Events};
use super::pool::{Giving, Pool};
use crate::message::{self, Message, RpcError};
use crate::wire::{Hears, Sent, Trouble, Wire};
use crate::world::{Place, World};

/// How much of an answer that is none is looked at.
const SCRAP: usize = 64 << 10;
/// How long a stream that broke off is left alone before it is taken up again, unless it says.
const RETRY: Duration = Duration::from_millis(500);
/// How often a stream is taken up again without anything new.
const RETRIES: u32 = 5;

/// An endpoint.
pub(crate) struct Http(Arc<Endpoint>, DropGuard);

struct Endpoint {
    pool: Arc<Pool>,
    path: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    bytes_max: usize,
    hears: Arc<dyn Hears>,
    session: RwLock<Option<HeaderValue>>,
    revision: RwLock<Option<&'static Revision>>,
    gone: CancellationToken,
}

/// Where `url` is, and what is asked for there.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn place(url: &str, private_network: bool) -> Result<(Place, Uri), String> {
    let uri: Uri = url.trim().parse().map_err(|err| format!("`{url}` is no URL: {err}"))?;
    let secure = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        Some(_) | None => {
            return Err(format!("`{url}` begins neither with `http://` nor with `https://`"));
        }
    };
    let authority = uri.authority().ok_or_else(|| format!("`{url}` names no host"))?;
    if authority.as_str().contains('@') {
        return Err("the URL has a password in it; say it in `headers`".to_owned());
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
    Ok((Place { host, port, secure, private_network }, uri))
}

/// The headers of each request to `uri`: those that are configured, and the host.
///
/// # Errors
/// Which cannot be sent.
pub(crate) fn said_always(
    headers: &BTreeMap<String, String>,
    uri: &Uri,
) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let mut said = Vec::new();
    for (name, value) in headers {
        let odd = || format!("the header `{name}` cannot be sent");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| odd())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| odd())?;
        value.set_sensitive(true);
        said.push((name, value));
    }
    let host = uri.authority().map(|authority| authority.as_str().to_owned());
    let host = HeaderValue::try_from(host.unwrap_or_default()).map_err(|e| e.to_string())?;
    said.push((HOST, host));
    Ok(said)
}

impl Http {
    /// The endpoint at `url`, which is told `headers` with each request.
    ///
    /// # Errors
    /// What is wrong with the URL or a header.
    pub(crate) fn new(
        world: Arc<dyn World>,
        url: &str,
        private_network: bool,
        headers: &BTreeMap<String, String>,
        bytes_max: usize,
        hears: Arc<dyn Hears>,
    ) -> Result<Self, String> {
        let (place, uri) = place(url, private_network)?;
        let said = said_always(headers, &uri)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = path.parse().map_err(|err| format!("`{url}` is no URL: {err}"))?;
        let gone = CancellationToken::new();
        let ends = gone.clone().drop_guard();
        let pool = Pool::new(world, place);
        let (session, revision) = (RwLock::default(), RwLock::default());
        let endpoint =
            Endpoint { pool, path, headers: said, bytes_max, hears, session, revision, gone };
        Ok(Self(Arc::new(endpoint), ends))
    }
}

/// What a stream came to.
enum Streamed {
    /// It had the answer in it.
    Answered(Result<Box<RawValue>, Trouble>),
    /// It ended before; the last event's id and when to come back.
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
        let request = self.request(Method::POST, Some(&message))?;
        let (response, giving) = self.pool.send(request).await?;
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
            let body = whole(&mut response, self.bytes_max).await.map_err(Trouble::Lost)?;
            giving.back();
            return self.answer_in(&body, id, &hears);
        }
        let mut streamed = self.streamed(response, Some(giving), id, &hears).await?;
        // A stream of a session may break off, or be broken off, and go on elsewhere.
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

    /// The stream after its event `last`.
    async fn taken_up(
        self: &Arc<Self>,
        last: &str,
        id: u64,
        hears: &Arc<dyn Hears>,
    ) -> Result<Streamed, Trouble> {
        let mut request = self.request(Method::GET, None)?;
        let last = HeaderValue::try_from(last).map_err(|err| Trouble::Lost(err.to_string()))?;
        request.headers_mut().insert("last-event-id", last);
        let (response, giving) = self.pool.send(request).await.map_err(lost)?;
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
        let (mut last, mut retry) = (None, None);
        while let Some(frame) = response.body_mut().frame().await {
            let Ok(frame) = frame else { break };
            let Ok(piece) = frame.into_data() else { continue };
            let all = events.take(&piece, self.bytes_max).map_err(Trouble::Lost)?;
            for Event { data, id: event, retry: wait, .. } in all {
                last = event.filter(|id| !id.is_empty()).or(last);
                retry = wait.or(retry);
                if let Some(outcome) = self.heard(data.as_bytes(), id, hears) {
                    // What follows the answer is nothing; the connection is good if it ends soon.
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

    /// Hears what an event says; the answer to `id`, if it is that.
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
                    hears.said(&method, &params);
                    if method != "notifications/progress" && method != "notifications/message" {
                        self.hears.said(&method, &params);
                    }
                }
                Message::Request { id, method, params } => {
                    if !matches!(method.as_str(), "ping" | "roots/list") {
                        self.hears.asks();
                    }
                    let (endpoint, hears) = (self.clone(), hears.clone());
                    tokio::spawn(async move { endpoint.answers(&id, method, params, hears).await });
                }
            }
        }
        answer
    }

    /// Answers a request of the other side's, in a request of its own.
    async fn answers(
        self: &Arc<Self>,
        id: &RawValue,
        method: String,
        params: Value,
        hears: Arc<dyn Hears>,
    ) {
        let outcome = match method.as_str() {
            "ping" => Ok(Value::Object(serde_json::Map::new())),
            _ => hears.asked(method.clone(), params).await,
        };
        let body = message::answered(id, outcome);
        let answer = Sent { id: None, method, name: None, mirrored: Vec::new(), body };
        if let Err(why) = self.told(&answer).await {
            tracing::debug!("an upstream does not take an answer: {why:?}");
        }
    }

    /// Says what has no answer.
    async fn told(self: &Arc<Self>, message: &Sent) -> Result<(), Trouble> {
        let request = self.request(Method::POST, Some(message))?;
        let (response, giving) = self.pool.send(request).await?;
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

    /// The response, unless it refuses.
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
        let challenge = response.headers().get(WWW_AUTHENTICATE);
        let challenge = challenge.and_then(|it| Some(it.to_str().ok()?.to_owned()));
        let body = whole(&mut response, SCRAP).await.unwrap_or_default();
        let error = error_in(&body, id);
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) && error.is_none() {
            return Err(Trouble::Unauthorized { status: status.as_u16(), challenge });
        }
        let in_session = self.session.read().unwrap_or_else(PoisonError::into_inner).is_some();
        if status == StatusCode::NOT_FOUND && in_session && message.method != "initialize" {
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
        // What refuses with less than a 500 has done nothing.
        Err(if status.is_client_error() || status.is_redirection() {
            Trouble::NotSent(why)
        } else {
            Trouble::Lost(why)
        })
    }

    /// Hears what is said to the session and to no request, for as long as there is a stream.
    async fn listens(self: Arc<Self>) {
        let mut last: Option<String> = None;
        let mut failed = 0;
        while failed < RETRIES {
            let Ok(mut request) = self.request(Method::GET, None) else { return };
            if let Some(last) = last.as_deref().and_then(|last| HeaderValue::try_from(last).ok()) {
                request.headers_mut().insert("last-event-id", last);
            }
            let Ok((response, _)) = self.pool.send(request).await else {
                failed += 1;
                tokio::time::sleep(RETRY * failed).await;
                continue;
            };
            if response.status() != StatusCode::OK {
                return;
            }
            failed = 0;
            let nothing = u64::MAX;
            let streamed = self.streamed(response, None, nothing, &self.hears).await;
            let Ok(Streamed::Ended(new, wait)) = streamed else { return };
            last = new.or(last);
            tokio::time::sleep(wait.map_or(RETRY, Duration::from_millis)).await;
        }
    }
}

fn lost(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::NotSent(why) => Trouble::Lost(why),
        other => other,
    }
}

/// The refusal in a body, if it is one.
fn error_in(body: &[u8], _id: u64) -> Option<RpcError> {
    let Ok(messages) = message::read(body) else { return None };
    messages.into_iter().find_map(|message| match message {
        Message::Answer(_, Err(error)) => Some(error),
        _ => None,
    })
}

/// `text` as a header says it: as it is, or in Base64 where no header could.
fn sayable(text: &str) -> String {
    let plain = text.bytes().all(|b| (b' '..=b'~').contains(&b)) && text.trim() == text;
    match plain && !text.starts_with("=?base64?") {
        true => text.to_owned(),
        false => format!("=?base64?{}?=", STANDARD.encode(text)),
    }
}

async fn whole(response: &mut Response<Incoming>, bytes_max: usize) -> Result<Bytes, String> {
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

/// A request that is waited for; who stops waiting says so, where silence does not.
struct Waiting {
    endpoint: Arc<Endpoint>,
    id: Option<u64>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(id) = self.id.filter(|_| !self.endpoint.is_stateless()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let endpoint = self.endpoint.clone();
        runtime.spawn(async move {
            let reason = "nobody waits for the answer any more";
            let params = serde_json::json!({ "requestId": id, "reason": reason });
            let method = "notifications/cancelled".to_owned();
            let body = message::written(None, &method, &params);
            let said = Sent { id: None, method, name: None, mirrored: Vec::new(), body };
            let _ = endpoint.told(&said).await;
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
            let id = message.id.filter(|_| message.method != "initialize");
            let mut waiting = Waiting { endpoint: self.0.clone(), id };
            let outcome = self.0.exchange(message, hears).await;
            waiting.id = None;
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
            let (endpoint, gone) = (self.0.clone(), self.0.gone.clone());
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
            // A session that is not ended stays in the other side's memory.
            if let Ok(request) = endpoint.request(Method::DELETE, None) {
                let sent = endpoint.pool.send(request);
                let _ = tokio::time::timeout(Duration::from_secs(2), sent).await;
            }
        });
        let _ = &self.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_header_can_say_is_said_in_base64() {
        assert_eq!(sayable("plain text"), "plain text");
        assert_eq!(sayable("é"), "=?base64?w6k=?=");
        assert_eq!(sayable(" x"), "=?base64?IHg=?=");
        assert_eq!(sayable("=?base64?eA==?="), "=?base64?PT9iYXNlNjQ/ZUE9PT89?=");
    }

    #[test]
    fn a_url_says_where_to_connect() {
        let (place, uri) = place("https://[::1]:8443/mcp?a=b", false).expect("a place");
        assert_eq!((place.host.as_str(), place.port, place.secure), ("::1", 8443, true));
        assert_eq!(uri.path_and_query().map(|it| it.as_str()), Some("/mcp?a=b"));
        for odd in ["ftp://a", "a", "http://u:p@a/"] {
            assert!(super::place(odd, false).is_err(), "{odd}");
        }
    }
}
