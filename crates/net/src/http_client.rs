//! An HTTP/1.1 client that keeps idle connections.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

use crate::url::HttpUrl;
use toolgate_contract::BoxFuture;

/// Time for which an idle connection is kept. Servers close idle connections after five seconds or
/// more.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Two-way byte stream to a server, such as a TCP connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// An HTTP client that follows no redirects and ignores proxy variables. The client reuses a
/// connection after the response has been read to the end. Clones share their connections.
#[derive(Clone)]
pub struct HttpClient(Client<DialConnector, Full<Bytes>>);

/// The reason why an HTTP request has no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpRequestFailure {
    /// The connection failed before the request was sent, so the server did not receive the
    /// request. The text is the reason.
    NotSent(String),
    /// The connection broke after the request was sent. The server may have executed the request.
    /// The text is the reason.
    Lost(String),
}

impl fmt::Display for HttpRequestFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NotSent(why) | Self::Lost(why)) = self;
        out.write_str(why)
    }
}

impl std::error::Error for HttpRequestFailure {}

/// The outcome of opening a connection: a stream, or the reason why there is none.
type DialResult = Result<Box<dyn ByteStream>, String>;

impl HttpClient {
    /// Creates a client that keeps up to `idle_max` idle connections to each server. `dial` opens
    /// the connection to the server of a URL, with TLS if the URL is `https`. `dial` decides which
    /// addresses are allowed, and limits the time.
    pub fn new(
        idle_max: usize,
        dial: impl Fn(HttpUrl) -> BoxFuture<'static, DialResult> + Send + Sync + 'static,
    ) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_idle_timeout(IDLE_MAX).pool_max_idle_per_host(idle_max);
        Self(builder.build(DialConnector(Arc::new(dial))))
    }

    /// Sends `request` to the server in its URL. If the server closed an idle connection before any
    /// of the request was written, sends the request again. Otherwise, sends it once.
    ///
    /// # Errors
    /// No response arrives. This function has no time limit, so the caller must set one.
    pub async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, HttpRequestFailure> {
        let agent = HeaderValue::from_static(concat!("toolgate/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().entry(USER_AGENT).or_insert(agent);
        self.0.request(request).await.map_err(|err| {
            let why = innermost_cause(&err);
            match err.is_connect() {
                true => HttpRequestFailure::NotSent(why),
                false => HttpRequestFailure::Lost(why),
            }
        })
    }
}

/// Returns the message of the innermost cause of `err`. The outer errors only say that the
/// connection failed.
fn innermost_cause(err: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = err;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let why = cause.to_string();
    // In TLS 1.3, a server refuses a client without a certificate after the handshake.
    match why.strip_prefix("received fatal alert: ") {
        Some("CertificateRequired" | "BadCertificate") => {
            "the server requires a client certificate, which toolgate does not send".to_owned()
        }
        Some(alert) => format!("the server ended the TLS connection: {alert}"),
        None => why,
    }
}

/// Function that opens the connections of an HTTP client.
#[derive(Clone)]
struct DialConnector(Arc<dyn Fn(HttpUrl) -> BoxFuture<'static, DialResult> + Send + Sync>);

impl Service<Uri> for DialConnector {
    type Response = TokioIo<Box<dyn ByteStream>>;
    type Error = String;
    type Future = BoxFuture<'static, Result<Self::Response, String>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dial = self.0.clone();
        Box::pin(async move {
            let url = HttpUrl::try_from(uri).map_err(|why| format!("the URL {why}"))?;
            dial(url).await.map(TokioIo::new)
        })
    }
}

impl Connection for Box<dyn ByteStream> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    #[test]
    fn a_failure_names_its_first_cause_and_explains_alerts_of_tls() {
        /// Error that wraps the error of a connection, for a test.
        #[derive(Debug)]
        struct WrappedConnectionError(std::io::Error);
        impl fmt::Display for WrappedConnectionError {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("connection error")
            }
        }
        impl std::error::Error for WrappedConnectionError {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let cause = |why: &str| {
            innermost_cause(&WrappedConnectionError(std::io::Error::other(why.to_owned())))
        };
        assert_eq!(cause("broken pipe"), "broken pipe");
        let demanded = cause("received fatal alert: CertificateRequired");
        assert!(demanded.contains("requires a client certificate"), "{demanded}");
        let ended = cause("received fatal alert: UnknownCA");
        assert_eq!(ended, "the server ended the TLS connection: UnknownCA");
    }

    const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    /// Reads one HTTP request without a body in a test. Returns an empty text if the client hung
    /// up.
    async fn read_request(stream: &mut DuplexStream) -> String {
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut read).await.unwrap_or_default() == 0 {
                break;
            }
        }
        String::from_utf8(read).expect("text")
    }

    /// Creates a client for tests. Each script lists the answers on one connection, which the
    /// server then closes. Also returns the URLs to which the client connected, and the requests
    /// that it sent.
    #[allow(clippy::type_complexity, reason = "two lists")]
    fn scripted(
        idle_max: usize,
        scripts: Vec<Vec<&'static str>>,
    ) -> (HttpClient, Arc<Mutex<Vec<String>>>, Arc<Mutex<Vec<String>>>) {
        let dialled = Arc::<Mutex<Vec<String>>>::default();
        let received = Arc::<Mutex<Vec<String>>>::default();
        let scripts = Mutex::new(scripts.into_iter());
        let (urls, requests) = (dialled.clone(), received.clone());
        let client = HttpClient::new(idle_max, move |url| {
            urls.lock().expect("urls").push(url.to_string());
            let script = scripts.lock().expect("scripts").next();
            let requests = requests.clone();
            Box::pin(async move {
                let script = script.ok_or("nothing is listening")?;
                let (near, mut far) = tokio::io::duplex(4096);
                tokio::spawn(async move {
                    for answer in script {
                        let request = read_request(&mut far).await;
                        if request.is_empty() {
                            return;
                        }
                        requests.lock().expect("requests").push(request);
                        far.write_all(answer.as_bytes()).await.expect("a reader");
                    }
                });
                Ok(Box::new(near) as Box<dyn ByteStream>)
            })
        });
        (client, dialled, received)
    }

    /// Yields several times, so that a connection can return to the pool or notice that its server
    /// closed it.
    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    async fn get(client: &HttpClient, url: &str) -> Result<String, HttpRequestFailure> {
        let request = Request::get(url).body(Full::default()).expect("a request");
        let response = client.send(request).await?;
        let body = response.into_body().collect().await;
        let body = body.map_err(|err| HttpRequestFailure::Lost(err.to_string()))?.to_bytes();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn a_request_names_its_path_host_and_sender() {
        let (client, dialled, received) = scripted(1, vec![vec![ANSWER]]);
        assert_eq!(get(&client, "https://a.example:8443/b?c=d").await, Ok("ok".to_owned()));
        assert_eq!(*dialled.lock().expect("urls"), ["https://a.example:8443/"]);
        let request = received.lock().expect("requests")[0].clone();
        assert!(request.starts_with("GET /b?c=d HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("host: a.example:8443\r\n"), "{request}");
        assert!(request.contains("user-agent: toolgate/"), "{request}");
    }

    #[tokio::test]
    async fn a_connection_is_used_again_only_for_the_same_server() {
        let scripts = vec![vec![ANSWER, ANSWER], vec![ANSWER], vec![ANSWER]];
        let (client, dialled, _) = scripted(1, scripts);
        for url in ["http://a/1", "http://a/2", "http://b/", "https://a/"] {
            assert_eq!(get(&client, url).await, Ok("ok".to_owned()), "{url}");
            settle().await;
        }
        assert_eq!(*dialled.lock().expect("urls"), ["http://a/", "http://b/", "https://a/"]);
    }

    #[tokio::test]
    async fn a_client_without_idle_connections_opens_one_for_each_request() {
        let (client, dialled, _) = scripted(0, vec![vec![ANSWER, ANSWER], vec![ANSWER]]);
        for _ in 0..2 {
            assert_eq!(get(&client, "http://a/").await, Ok("ok".to_owned()));
            settle().await;
        }
        assert_eq!(dialled.lock().expect("urls").len(), 2);
    }

    #[tokio::test]
    async fn a_request_that_was_sent_is_not_sent_again() {
        let (client, dialled, received) = scripted(1, vec![vec![ANSWER, ""], vec![ANSWER]]);
        assert_eq!(get(&client, "http://a/1").await, Ok("ok".to_owned()));
        settle().await;
        let lost = get(&client, "http://a/2").await;
        assert!(matches!(lost, Err(HttpRequestFailure::Lost(_))), "{lost:?}");
        assert_eq!(dialled.lock().expect("urls").len(), 1);
        assert_eq!(received.lock().expect("requests").len(), 2);
    }

    #[tokio::test]
    async fn a_request_is_sent_over_a_new_connection_if_the_server_closed_the_idle_one() {
        let (client, dialled, received) = scripted(1, vec![vec![ANSWER], vec![ANSWER]]);
        for _ in 0..2 {
            assert_eq!(get(&client, "http://a/").await, Ok("ok".to_owned()));
            settle().await;
        }
        assert_eq!(dialled.lock().expect("urls").len(), 2);
        assert_eq!(received.lock().expect("requests").len(), 2);
    }

    #[tokio::test]
    async fn a_failed_connection_is_reported_with_its_reason() {
        let (client, ..) = scripted(1, Vec::new());
        let failed = get(&client, "http://a/").await;
        assert_eq!(failed, Err(HttpRequestFailure::NotSent("nothing is listening".to_owned())));
    }
}
