//! HTTP client for tools: one request, one response, within a time limit.
//!
//! The client follows no redirect, does not retry, keeps no connection open, and ignores proxy
//! variables.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, TRANSFER_ENCODING,
};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;
use toolgate_net::{HttpClient, HttpUrl};

use crate::dial::dial_url;

/// The time limit for opening a connection, and for the TLS handshake after that.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The default time limit of a request, from name lookup to the last byte of the response.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The default limit of a response body, in bytes. The rest of a longer body is not read.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Creates an HTTP client over TCP and TLS that keeps no idle connections.
pub fn open_http_client() -> HttpClient {
    HttpClient::new(0, |url| Box::pin(async move { dial_url(&url, CONNECT_TIMEOUT).await }))
}

/// An HTTP client for single requests. Clones are cheap.
#[derive(Clone)]
pub struct HttpFetcher(HttpClient);

impl Default for HttpFetcher {
    fn default() -> Self {
        Self(open_http_client())
    }
}

/// A POST request with a JSON body. The type does not implement `Debug`, because a request contains
/// a secret key.
pub struct JsonPostRequest<'a> {
    /// The JSON text to send as the body of the request.
    pub json: Vec<u8>,
    /// The secret for the `Authorization: Bearer` header. With `None`, the request has no such
    /// header.
    pub key: Option<&'a str>,
    /// The time limit, from name lookup to the last byte of the response.
    pub timeout: Duration,
    /// The limit of the response body, in bytes. The rest of a longer body is not read.
    pub answer_bytes_max: usize,
}

/// The status and body of an HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedHttpResponse {
    /// The HTTP status code.
    pub status: u16,
    /// The body of the response, or its first bytes if it is longer than the limit.
    pub body: Vec<u8>,
}

/// An HTTP response with the headers that concern retries and caching.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheableHttpResponse {
    /// The status and body of the response.
    pub response: FetchedHttpResponse,
    /// The value of the `Retry-After` header: a number of seconds, or a date.
    pub retry_after: Option<String>,
    /// The value of the `Cache-Control` header.
    pub cache_control: Option<String>,
}

impl HttpFetcher {
    /// Sends a GET request to `target`. The request may take the time `within`, and at most
    /// `answer_bytes_max` bytes of the response body are read.
    ///
    /// # Errors
    /// A sentence that explains why there is no response.
    pub async fn get(
        &self,
        target: &HttpUrl,
        within: Duration,
        answer_bytes_max: usize,
    ) -> Result<CacheableHttpResponse, String> {
        let request = Request::get(target.uri().clone()).body(Full::default());
        let request = request.map_err(|err| err.to_string())?;
        self.exchange(request, within, answer_bytes_max).await
    }

    /// Posts `json` to `target` within the default limits and without a key.
    ///
    /// # Errors
    /// A sentence for the log that explains why there is no response.
    pub async fn post(
        &self,
        target: &HttpUrl,
        json: Vec<u8>,
    ) -> Result<FetchedHttpResponse, String> {
        let answer_bytes_max = RESPONSE_BYTES_MAX;
        let request =
            JsonPostRequest { json, key: None, timeout: DEFAULT_TIMEOUT, answer_bytes_max };
        Ok(self.post_request(target, request).await?.response)
    }

    /// Sends `post` to `target`.
    ///
    /// # Errors
    /// A sentence that explains why there is no response. It never contains the key.
    pub async fn post_request(
        &self,
        target: &HttpUrl,
        post: JsonPostRequest<'_>,
    ) -> Result<CacheableHttpResponse, String> {
        let JsonPostRequest { json, key, timeout: within, answer_bytes_max } = post;
        let mut request = Request::post(target.uri().clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(json)))
            .map_err(|err| err.to_string())?;
        if let Some(key) = key {
            let mut bearer = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| {
                "the key contains characters that are invalid in a header".to_owned()
            })?;
            bearer.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        self.exchange(request, within, answer_bytes_max).await
    }

    /// Sends `request` and reads the response within the time `within`. Reads at most
    /// `answer_bytes_max` bytes of its body.
    async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
        within: Duration,
        answer_bytes_max: usize,
    ) -> Result<CacheableHttpResponse, String> {
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        let exchange = async {
            let response = self.0.send(request).await.map_err(|failure| failure.to_string())?;
            read_response(response, answer_bytes_max).await.map_err(|err| err.to_string())
        };
        timeout(within, exchange).await.unwrap_or_else(|_| Err(timeout_message(within)))
    }
}

async fn read_response(
    mut response: Response<Incoming>,
    answer_bytes_max: usize,
) -> Result<CacheableHttpResponse, hyper::Error> {
    let status = response.status().as_u16();
    let header = |name| {
        let value = response.headers().get(name)?;
        Some(value.to_str().ok()?.to_owned())
    };
    let retry_after = header(RETRY_AFTER);
    let cache_control = header(CACHE_CONTROL);
    // A body without a declared length ends with the stream. Many servers then close without the
    // TLS close message.
    let is_endless = response.body().size_hint().exact().is_none()
        && !response.headers().contains_key(TRANSFER_ENCODING);
    let mut body = Vec::new();
    while body.len() < answer_bytes_max {
        let frame = match response.body_mut().frame().await {
            Some(Ok(frame)) => frame,
            Some(Err(err)) if is_endless && is_hangup(&err) => break,
            Some(Err(err)) => return Err(err),
            None => break,
        };
        if let Ok(bytes) = frame.into_data() {
            let room = answer_bytes_max - body.len();
            body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
    Ok(CacheableHttpResponse {
        response: FetchedHttpResponse { status, body },
        retry_after,
        cache_control,
    })
}

fn timeout_message(within: Duration) -> String {
    format!("timed out after {} s", within.as_secs_f32())
}

/// Returns `true` if `err` means that the connection closed before the response was complete.
fn is_hangup(err: &hyper::Error) -> bool {
    let source = err.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// Starts a server that answers one request with `answer`. Returns its URL, and a task that
    /// returns the text of the request.
    async fn server(answer: Vec<u8>) -> (String, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"{}") {
                assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
            }
            stream.write_all(&answer).await.unwrap();
            let more = timeout(Duration::from_millis(200), listener.accept()).await;
            assert!(more.is_err(), "the request was sent twice");
            String::from_utf8(received).unwrap()
        });
        (url, received)
    }

    async fn posted(url: &str, path: &str) -> Result<FetchedHttpResponse, String> {
        HttpFetcher::default().post(&HttpUrl::parse_below(url, path).unwrap(), b"{}".to_vec()).await
    }

    #[tokio::test]
    async fn a_request_is_sent_once_and_its_response_is_read() {
        let answer = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok".to_owned();
        let (url, received) = server(answer.into_bytes()).await;
        let answered = posted(&format!("{url}/api/"), "/assets/").await.unwrap();
        assert_eq!(answered, FetchedHttpResponse { status: 201, body: b"ok".to_vec() });
        let received = received.await.unwrap();
        assert!(received.starts_with("POST /api/assets/ HTTP/1.1\r\n"), "{received}");
        assert!(received.contains("content-type: application/json\r\n"), "{received}");
    }

    #[tokio::test]
    async fn a_get_response_includes_its_cache_control() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys/?p=a%20b", listener.local_addr().unwrap());
        let received = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
            }
            let head = "HTTP/1.1 200 OK\r\ncache-control: max-age=9\r\ncontent-length: 4\r\n\r\n";
            stream.write_all(format!("{head}keys").as_bytes()).await.unwrap();
            String::from_utf8(received).unwrap()
        });
        let target = HttpUrl::parse(&url).unwrap();
        assert_eq!(target.to_string(), url);
        let got = HttpFetcher::default().get(&target, DEFAULT_TIMEOUT, 3).await.unwrap();
        assert_eq!(got.response, FetchedHttpResponse { status: 200, body: b"key".to_vec() });
        assert_eq!(got.cache_control.as_deref(), Some("max-age=9"));
        let received = received.await.unwrap();
        assert!(received.starts_with("GET /keys/?p=a%20b HTTP/1.1\r\n"), "{received}");
    }

    #[tokio::test]
    async fn a_redirect_is_returned_and_not_followed() {
        let answer = "HTTP/1.1 302 Found\r\nlocation: /other\r\ncontent-length: 4\r\n\r\nmove";
        let (url, received) = server(answer.as_bytes().to_vec()).await;
        let answered = posted(&url, "/").await.unwrap();
        assert_eq!(answered, FetchedHttpResponse { status: 302, body: b"move".to_vec() });
        received.await.unwrap();
    }

    #[tokio::test]
    async fn a_truncated_response_is_an_error() {
        for head in ["content-length: 4", "transfer-encoding: chunked"] {
            let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n2\r\n");
            let (url, received) = server(answer.into_bytes()).await;
            posted(&url, "/").await.unwrap_err();
            received.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_long_response_is_cut_at_the_limit() {
        let mut answer = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        answer.resize(answer.len() + RESPONSE_BYTES_MAX + (64 << 10), b'x');
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"{}") {
                assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
            }
            // The client hangs up once it has read enough.
            let _ = stream.write_all(&answer).await;
        });
        let answered = posted(&url, "/").await.unwrap();
        assert_eq!((answered.status, answered.body.len()), (200, RESPONSE_BYTES_MAX));
    }

    #[tokio::test]
    async fn a_request_fails_if_the_server_hangs_up_or_is_unreachable() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let hung_up = tokio::spawn(async move { drop(listener.accept().await.unwrap()) });
        posted(&url, "/").await.unwrap_err();
        hung_up.await.unwrap();
        let refused = posted(&url, "/").await.unwrap_err();
        assert!(refused.contains("refused"), "{refused}");
        posted("http://nobody.invalid", "/").await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_times_out_if_the_server_stays_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let before = tokio::time::Instant::now();
        let why = posted(&url, "/").await.unwrap_err();
        assert_eq!(why, "timed out after 5 s");
        assert!(before.elapsed() < DEFAULT_TIMEOUT + Duration::from_millis(100));
    }

    #[tokio::test]
    async fn a_request_fails_if_the_server_does_not_speak_tls() {
        let answer = "HTTP/1.1 200 OK\r\n\r\n";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        posted(&url, "/").await.unwrap_err();
    }
}
