//! An HTTP server in memory with scripted answers, for tests of transports.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::broadcast;
use toolgate_contract::{BoxFuture, KeepActiveGuard};
use toolgate_net::ByteStream;

use super::site::UpstreamEndpoint;
use crate::message;
use crate::server_requests::RefusingMessageReceiver;
use crate::transport::{MessageReceiver, OutgoingMessage};
use crate::world::{
    NetworkAddress, RunningUpstreamProgram, UpstreamProgramStart, UpstreamSystemAccess,
};

/// A request that the scripted test server received.
#[derive(Clone, Debug)]
pub(crate) struct ScriptedRequest {
    pub(crate) method: String,
    /// Path of the request's URL with its query.
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// Answer that the scripted test server gives.
pub(crate) enum ScriptedAnswer {
    /// A complete answer with this status and body.
    Whole(u16, String),
    /// A redirect with this status and location.
    Redirect(u16, String),
    /// An event stream that starts with this text, and continues with the messages that are sent to
    /// all streams.
    Stream(String),
    /// An event stream that ends after this text.
    Short(String),
    /// The server sends no answer.
    Silence,
}

/// Function that gives the answer to each request.
type ScriptedAnswers = dyn Fn(&ScriptedServer, &ScriptedRequest) -> ScriptedAnswer + Send + Sync;

/// A test server that gives scripted answers.
pub(crate) struct ScriptedServer {
    answers: Box<ScriptedAnswers>,
    requests: Mutex<Vec<ScriptedRequest>>,
    streams: broadcast::Sender<String>,
}

impl ScriptedServer {
    pub(crate) fn new(
        answers: impl Fn(&Self, &ScriptedRequest) -> ScriptedAnswer + Send + Sync + 'static,
    ) -> Arc<Self> {
        let streams = broadcast::Sender::new(1024);
        Arc::new(Self { answers: Box::new(answers), requests: Mutex::default(), streams })
    }

    /// Returns a network in which every address leads to the test server.
    pub(crate) fn world(self: &Arc<Self>) -> Arc<dyn UpstreamSystemAccess> {
        let server = self.clone();
        world(move |stream| {
            let served = server.clone().serve(stream);
            async move { drop(served.await) }
        })
    }

    /// Returns the test server's URL with settings for requests.
    pub(crate) fn site(self: &Arc<Self>) -> UpstreamEndpoint {
        UpstreamEndpoint {
            world: self.world(),
            url: "http://a.example/mcp".to_owned(),
            private_network: false,
            headers: Default::default(),
            credentials: None,
            bytes_max: 1 << 20,
        }
    }

    /// Returns all requests that the test server received.
    pub(crate) fn requests(&self) -> Vec<ScriptedRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of requests of `method` that the test server received.
    pub(crate) fn times(&self, method: &str) -> usize {
        self.requests().iter().filter(|one| one.body["method"] == method).count()
    }

    /// Sends `message` on all event streams of the test server.
    pub(crate) fn send_to_streams(&self, message: &Value) {
        // There may be no listener left.
        let _ = self.streams.send(event(message));
    }

    async fn serve(self: Arc<Self>, stream: DuplexStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if stream.read_line(&mut head).await? == 0 {
                    return Ok(());
                }
            }
            let lower = head.to_ascii_lowercase();
            let length = lower.split("content-length: ").nth(1);
            let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut body).await?;
            let mut words = head.split(' ').map(str::to_owned);
            let method = words.next().unwrap_or_default();
            let path = words.next().unwrap_or_default();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let request = ScriptedRequest { method, path, body };
            let mut streamed = self.streams.subscribe();
            self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
            match (self.answers)(&self, &request) {
                ScriptedAnswer::Whole(status, body) => {
                    let answer = format!(
                        "HTTP/1.1 {status} it\r\ncontent-type: application/json\r\n\
                         mcp-session-id: one\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    stream.write_all(answer.as_bytes()).await?;
                }
                ScriptedAnswer::Redirect(status, location) => {
                    let answer = format!(
                        "HTTP/1.1 {status} it\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
                    );
                    stream.write_all(answer.as_bytes()).await?;
                }
                ScriptedAnswer::Short(text) => {
                    return stream.write_all(format!("{STREAM}{text}").as_bytes()).await;
                }
                ScriptedAnswer::Stream(text) => {
                    stream.write_all(format!("{STREAM}{text}").as_bytes()).await?;
                    while let Ok(event) = streamed.recv().await {
                        stream.write_all(event.as_bytes()).await?;
                    }
                }
                ScriptedAnswer::Silence => std::future::pending::<()>().await,
            }
        }
    }
}

const STREAM: &str =
    "HTTP/1.1 200 it\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// Encodes `message` as a server-sent event.
pub(crate) fn event(message: &Value) -> String {
    format!("data: {message}\n\n")
}

/// Builds the answer to `request` with `result`.
pub(crate) fn result(request: &ScriptedRequest, result: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": request.body["id"], "result": result })
}

/// Creates a network that passes each connection to `serve`, regardless of the address.
pub(crate) fn world<F>(
    serve: impl Fn(DuplexStream) -> F + Send + Sync + 'static,
) -> Arc<dyn UpstreamSystemAccess>
where
    F: Future<Output = ()> + Send + 'static,
{
    Arc::new(ScriptedNetwork(Box::new(move |stream| drop(tokio::spawn(serve(stream))))))
}

/// A network that passes each connection to a function of a test.
struct ScriptedNetwork(Box<dyn Fn(DuplexStream) + Send + Sync>);

impl UpstreamSystemAccess for ScriptedNetwork {
    fn start<'a>(
        &'a self,
        _: &'a UpstreamProgramStart,
    ) -> BoxFuture<'a, Result<RunningUpstreamProgram, String>> {
        Box::pin(async { Err("this network starts no programs".to_owned()) })
    }

    fn dial<'a>(
        &'a self,
        _: &'a NetworkAddress,
    ) -> BoxFuture<'a, Result<Box<dyn ByteStream>, String>> {
        Box::pin(async {
            let (near, far) = tokio::io::duplex(64 << 10);
            self.0(far);
            Ok(Box::new(near) as Box<dyn ByteStream>)
        })
    }

    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn secret(&self, _: &str) -> Option<String> {
        None
    }

    fn keep_secret(&self, _: &str, _: Option<&str>) -> Result<(), String> {
        Ok(())
    }

    fn hold_secret<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<KeepActiveGuard, String>> {
        Box::pin(async { Ok(KeepActiveGuard::none()) })
    }

    fn front_matter(&self, _: &str) -> Result<Map<String, Value>, String> {
        Ok(Map::new())
    }
}

/// Creates a request for a test.
pub(crate) fn new_request(id: u64, method: &str) -> OutgoingMessage {
    let body = message::encode_message(Some(id), method, &json!({}));
    OutgoingMessage {
        id: Some(id),
        method: method.to_owned(),
        target: None,
        header_params: Vec::new(),
        body,
    }
}

/// Creates a receiver that ignores everything.
pub(crate) fn no_receiver() -> Arc<dyn MessageReceiver> {
    Arc::new(RefusingMessageReceiver)
}

/// Waits until the condition `is` returns true. Panics with `what` if that takes too long.
pub(crate) async fn until(what: &str, is: impl Fn() -> bool) {
    let waits = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waits).await.expect(what);
}
