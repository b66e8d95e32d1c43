//! HTTP+SSE transport of 2024-11-05: messages arrive on one stream and are sent by POST.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use toolgate_contract::{KeepActiveGuard, lock_read, lock_write};
use toolgate_net::{AnswerBusyPollState, HttpClient, HttpUrl, SseParser};

use super::conversation::{IncomingMessageReceiver, UpstreamConversation, run_until};
use super::http::{ERROR_BODY_BYTES_MAX, read_body};
use super::refusals::{RpcResponseError, is_session_unknown};
use super::site::{RedirectTarget, UpstreamEndpoint, describe_response};
use crate::message;
use crate::transport::describe_failure;
use crate::transport::{MessageReceiver, UpstreamRequestFailure};

/// Maximum number of messages that are sent concurrently by POST requests.
const POSTS_MAX: usize = 64;
/// Timeout of a POST request. Servers accept a message at once, and answer on the stream.
const POST_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens the event stream at `site` and starts a conversation over it.
pub(crate) async fn open(
    site: UpstreamEndpoint,
    receiver: Arc<dyn MessageReceiver>,
) -> Result<UpstreamConversation, String> {
    let url = site.http_url()?;
    let headers = site.fixed_headers(&url)?;
    let client = site.http_client();
    let bytes_max = site.bytes_max;
    let request = move |method: &str, body: Bytes| {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method.parse().unwrap_or_default();
        request.headers_mut().extend(headers.iter().cloned());
        request
    };
    let open = || {
        let mut open = request("GET", Bytes::new());
        open.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        Ok(open)
    };
    let opened = site.send(&client, url.clone(), open).await;
    let mut response = opened.map_err(|failure| describe_failure(&failure))?;
    let opened_at = match response.extensions().get() {
        Some(RedirectTarget(redirected)) => {
            receiver.record_redirect(&redirected.without_query());
            redirected.clone()
        }
        None => url,
    };
    if !response.status().is_success() {
        return Err(format!("it {}", describe_response(response.status(), response.headers())));
    }
    let mut events = SseParser::new(bytes_max);
    let endpoint = read_endpoint(&mut response, &mut events).await?;
    let endpoint = endpoint_url(&opened_at, &endpoint)?;
    let (conversation, messages, ends) = UpstreamConversation::start(
        receiver,
        KeepActiveGuard::none(),
        AnswerBusyPollState::for_waiter(),
    );
    let incoming = conversation.incoming();
    let reading = async move {
        let why = read_events(response, events, bytes_max, &incoming).await;
        incoming.shared.end(why);
    };
    toolgate_net::spawn_task(run_until(ends.clone(), reading));
    let post = move |body| {
        let mut post = request("POST", body);
        let json = HeaderValue::from_static("application/json");
        post.headers_mut().insert(CONTENT_TYPE, json);
        post
    };
    let posts = SseMessagePoster {
        site,
        client,
        request: post,
        endpoint: RwLock::new(endpoint),
        incoming: conversation.incoming(),
    };
    toolgate_net::spawn_task(run_until(ends, post_messages(posts, messages)));
    Ok(conversation)
}

/// Reads the first event of the stream, which names the URL for messages.
async fn read_endpoint(
    response: &mut Response<Incoming>,
    events: &mut SseParser,
) -> Result<String, String> {
    while let Some(frame) = response.body_mut().frame().await {
        let frame = frame.map_err(|err| err.to_string())?;
        let Ok(piece) = frame.into_data() else { continue };
        let first = events.parse(&piece).into_iter().find(|it| it.kind == "endpoint");
        if let Some(event) = first {
            return Ok(event.data);
        }
    }
    Err("the stream ended before it named the endpoint for messages".to_owned())
}

/// Returns the URL of `endpoint`, a reference in the stream at the URL `stream`. The endpoint must
/// be on the server of the stream, so that messages never go to another server.
fn endpoint_url(stream: &HttpUrl, endpoint: &str) -> Result<HttpUrl, String> {
    let invalid =
        |why: &str| format!("its endpoint for messages, `{endpoint}`, is invalid: it {why}");
    let url = stream.resolve(endpoint).map_err(|why| invalid(&why.to_string()))?;
    match stream.is_same_origin(&url) {
        true => Ok(url),
        false => Err(invalid("is on another server")),
    }
}

async fn read_events(
    mut response: Response<Incoming>,
    mut events: SseParser,
    bytes_max: usize,
    incoming: &IncomingMessageReceiver,
) -> String {
    while let Some(frame) = response.body_mut().frame().await {
        let piece = match frame.map(|frame| frame.into_data()) {
            Ok(Ok(piece)) => piece,
            Ok(Err(_)) => continue,
            Err(err) => return err.to_string(),
        };
        for event in events.parse(&piece) {
            match &event.cut {
                Some(cut) => incoming.fail_too_long(cut, bytes_max),
                None => incoming.handle(event.data.as_bytes()),
            }
        }
    }
    "the stream ended".to_owned()
}

/// Sends messages by POST. Messages of the handshake are sent one after another, later messages
/// concurrently.
async fn post_messages<P>(posts: SseMessagePoster<P>, mut messages: mpsc::Receiver<Bytes>)
where
    P: Fn(Bytes) -> Request<Full<Bytes>> + Send + Sync + 'static,
{
    let posts = Arc::new(posts);
    let permits = Arc::new(Semaphore::new(POSTS_MAX));
    let mut running = JoinSet::new();
    while let Some(message) = messages.recv().await {
        let (id, method) = message::id_and_method(&message);
        if matches!(method.as_str(), "initialize" | "notifications/initialized") {
            let is_accepted = posts.post(id, message).await;
            if !is_accepted && id.is_none() {
                // Nobody waits for this notification, and the server accepts nothing without it.
                return posts.incoming.shared.end("it did not accept the handshake".to_owned());
            }
            continue;
        }
        while running.try_join_next().is_some() {}
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let posts = posts.clone();
        running.spawn(async move {
            posts.post(id, message).await;
            drop(permit);
        });
    }
}

/// Sender of messages to an upstream by POST.
struct SseMessagePoster<P> {
    site: UpstreamEndpoint,
    client: HttpClient,
    request: P,
    /// URL to which messages are sent.
    endpoint: RwLock<HttpUrl>,
    incoming: IncomingMessageReceiver,
}

impl<P: Fn(Bytes) -> Request<Full<Bytes>>> SseMessagePoster<P> {
    /// Sends `message` by POST. Returns false if the server does not accept the message. In that
    /// case, fails the request `id`, if the message is a request.
    async fn post(&self, id: Option<u64>, message: Bytes) -> bool {
        let sent = async {
            let endpoint = lock_read(&self.endpoint).clone();
            let make = || Ok((self.request)(message.clone()));
            let mut response = self.site.send(&self.client, endpoint, make).await?;
            if let Some(RedirectTarget(redirected)) = response.extensions().get() {
                let mut endpoint = lock_write(&self.endpoint);
                *endpoint = redirected.clone();
            }
            let status = response.status();
            let why = format!("it {}", describe_response(status, response.headers()));
            let body = read_body(&mut response, ERROR_BODY_BYTES_MAX).await.unwrap_or_default();
            if is_session_unknown(status, RpcResponseError::in_body(&body).as_ref(), &body) {
                let why = format!("{why}, because the session has ended");
                self.incoming.shared.end_lost_session(id, why.clone());
                return Err(UpstreamRequestFailure::SessionGone(why));
            }
            match status {
                _ if status.is_success() => Ok(()),
                // The request may have been executed nevertheless.
                _ if status.is_server_error() => Err(UpstreamRequestFailure::Lost(why)),
                _ => Err(UpstreamRequestFailure::NotSent(why)),
            }
        };
        let late = |_| {
            let why = format!("it did not accept a message within {} s", POST_TIMEOUT.as_secs());
            Err(UpstreamRequestFailure::Lost(why))
        };
        let Err(failure) = tokio::time::timeout(POST_TIMEOUT, sent).await.unwrap_or_else(late)
        else {
            return true;
        };
        match id {
            Some(id) => self.incoming.fail(id, failure),
            None => tracing::debug!(
                "an upstream did not accept a notification: {}",
                describe_failure(&failure)
            ),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::scripted::{
        ScriptedAnswer, ScriptedRequest, ScriptedServer, new_request, no_receiver, result,
    };
    use super::*;
    use crate::transport::TransportConnection;

    /// Creates a test server that answers a POST request with the result of `posted`. If that is
    /// `None`, the server accepts the message and answers it on the stream.
    fn server(
        posted: impl Fn(&ScriptedRequest) -> Option<ScriptedAnswer> + Send + Sync + 'static,
    ) -> Arc<ScriptedServer> {
        ScriptedServer::new(move |server, request| {
            if request.method == "GET" {
                return ScriptedAnswer::Stream("event: endpoint\ndata: /post\n\n".to_owned());
            }
            posted(request).unwrap_or_else(|| {
                server.send_to_streams(&result(request, &json!({})));
                ScriptedAnswer::Whole(202, String::new())
            })
        })
    }

    #[tokio::test]
    async fn a_message_that_is_not_accepted_fails_alone() {
        let server = server(|request| match request.body["method"].as_str() {
            Some("tools/call") => Some(ScriptedAnswer::Whole(500, "x".repeat(1 << 20))),
            _ => None,
        });
        let conversation = open(server.site(), no_receiver()).await.expect("a stream");
        conversation.request(new_request(1, "initialize"), no_receiver()).await.expect("it begins");
        let call = conversation.request(new_request(2, "tools/call"), no_receiver()).await;
        assert!(
            matches!(&call, Err(UpstreamRequestFailure::Lost(why)) if why.contains("500")),
            "{call:?}"
        );
        assert!(!conversation.closed().is_cancelled());
        conversation
            .request(new_request(3, "tools/list"), no_receiver())
            .await
            .expect("it goes on");
    }

    #[tokio::test]
    async fn a_message_without_a_response_does_not_block_others() {
        let server = server(|request| match request.body["method"].as_str() {
            Some("tools/call") => Some(ScriptedAnswer::Silence),
            _ => None,
        });
        let conversation = open(server.site(), no_receiver()).await.expect("a stream");
        tokio::select! {
            _ = conversation.request(new_request(2, "tools/call"), no_receiver()) => unreachable!("it has no response"),
            listed = conversation.request(new_request(3, "tools/list"), no_receiver()) => drop(listed.expect("a list")),
        }
    }

    #[tokio::test]
    async fn a_404_response_ends_the_conversation() {
        let server = server(|_| Some(ScriptedAnswer::Whole(404, String::new())));
        let conversation = open(server.site(), no_receiver()).await.expect("a stream");
        let listed = conversation.request(new_request(2, "tools/list"), no_receiver()).await;
        assert!(matches!(listed, Err(UpstreamRequestFailure::SessionGone(_))), "{listed:?}");
        assert!(conversation.closed().is_cancelled() && conversation.has_lost_session());
    }

    #[tokio::test]
    async fn a_400_response_ends_the_conversation_if_it_is_about_the_session() {
        let server = server(|request| {
            let refusal = match request.body["method"].as_str() {
                Some("tools/list") => "No transport found for sessionId",
                _ => "the header is too long",
            };
            Some(ScriptedAnswer::Whole(400, refusal.to_owned()))
        });
        let conversation = open(server.site(), no_receiver()).await.expect("a stream");
        let call = conversation.request(new_request(2, "tools/call"), no_receiver()).await;
        assert!(matches!(call, Err(UpstreamRequestFailure::NotSent(_))), "{call:?}");
        assert!(!conversation.closed().is_cancelled());
        let listed = conversation.request(new_request(3, "tools/list"), no_receiver()).await;
        assert!(matches!(listed, Err(UpstreamRequestFailure::SessionGone(_))), "{listed:?}");
        assert!(conversation.closed().is_cancelled() && conversation.has_lost_session());
    }

    #[tokio::test]
    async fn an_overlong_answer_fails_its_own_call_only() {
        let server = ScriptedServer::new(|server, request| {
            if request.method == "GET" {
                return ScriptedAnswer::Stream("event: endpoint\ndata: /post\n\n".to_owned());
            }
            let long = if request.body["method"] == "tools/call" { 2 << 20 } else { 1 };
            server.send_to_streams(&result(request, &json!({ "text": "x".repeat(long) })));
            ScriptedAnswer::Whole(202, String::new())
        });
        let conversation = open(server.site(), no_receiver()).await.expect("a stream");
        let call = conversation.request(new_request(2, "tools/call"), no_receiver()).await;
        assert!(
            matches!(&call, Err(UpstreamRequestFailure::Refused(why)) if why.message.contains("longer than"))
        );
        conversation
            .request(new_request(3, "tools/list"), no_receiver())
            .await
            .expect("it goes on");
    }

    #[test]
    fn messages_are_posted_only_to_the_server_of_the_stream() {
        let stream = HttpUrl::parse("http://a.example:1/sse").expect("a URL");
        let url = |endpoint| endpoint_url(&stream, endpoint).map(|url| url.to_string());
        for (endpoint, expected) in [
            ("/messages?id=1", "http://a.example:1/messages?id=1"),
            ("http://a.example:1/m", "http://a.example:1/m"),
            ("messages?id=1", "http://a.example:1/messages?id=1"),
            (" ?id=1", "http://a.example:1/sse?id=1"),
        ] {
            assert_eq!(url(endpoint), Ok(expected.to_owned()), "{endpoint}");
        }
        for other in ["http://b.example/m", "https://a.example:1/m", "http://a.example:2/m"] {
            assert!(url(other).is_err(), "{other}");
        }
    }
}
