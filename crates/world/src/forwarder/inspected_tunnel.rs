//! A tunnel in which the forwarder decrypts TLS: checks each request of a program, and forwards it
//! over a TLS connection of its own.

use std::convert::Infallible;
use std::io::{self, Cursor};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue, UPGRADE};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, AlertDescription};
use toolgate_contract::lock_mutex;

use super::gate::{ForwarderDestination, ForwarderHostPolicy};
use super::http_messages::{
    ForwardedBody, ForwarderRefusal, HTTP_BUFFER_BYTES, failure_answer, is_host_of,
    remove_connection_headers, remove_rewriting_headers, text_answer,
};
use super::tunnel::read_handshake;
use crate::dial;

/// The longest time for a TLS handshake with the program or with the server.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest wait for the head of a request, and the longest idle time between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest wait until a connection to the server can take the next request. After that, the
/// forwarder opens a new connection for the request.
const REUSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The port of HTTPS.
const HTTPS_PORT: u16 = 443;

/// The state of a tunnel in which the forwarder decrypts TLS.
struct TlsInspectedTunnel {
    gate: Arc<ForwarderHostPolicy>,
    target: ForwarderDestination,
    /// The connection to the server. `None` until a request is allowed.
    server: tokio::sync::Mutex<Option<client::SendRequest<Incoming>>>,
    /// The tasks that drive the connections to the server. They end with the tunnel.
    tasks: Mutex<JoinSet<()>>,
}

/// Decrypts TLS in the tunnel that `client` opened to `target`, and forwards its requests. `first`
/// are the bytes of the client that have already been read.
pub(super) async fn inspect_tunnel(
    mut client: TcpStream,
    first: Bytes,
    target: ForwarderDestination,
    gate: Arc<ForwarderHostPolicy>,
) {
    let Some(read) = read_handshake(&mut client, &first, &target, &gate).await else { return };
    let config = match gate.inspector().map(|inspector| inspector.server_config(&target)) {
        Some(Ok(config)) => config,
        Some(Err(why)) => {
            gate.refuse(&target, &why);
            return;
        }
        // Without an inspector, nothing passes.
        None => {
            gate.refuse(&target, "its paths cannot be checked");
            return;
        }
    };
    let (reader, writer) = client.into_split();
    let stream = tokio::io::join(Cursor::new(read).chain(reader), writer);
    match timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => serve_requests(stream, target, gate).await,
        Ok(Err(err)) => {
            if let Some(why) = handshake_refusal(&err) {
                gate.refuse(&target, why);
            }
        }
        Err(_) => {}
    }
}

/// Returns advice on how to fix the program's TLS handshake, if the cause of its failure `err` is
/// known.
fn handshake_refusal(err: &io::Error) -> Option<&'static str> {
    match err.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::NoApplicationProtocol => Some(
            "the program offers only HTTP/2; a host with a path rule or a credential needs \
             HTTP/1.1",
        ),
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown,
        ) => Some(
            "the program does not trust the certificate of toolgate's forwarder; let it trust the \
             file in SSL_CERT_FILE",
        ),
        _ => None,
    }
}

/// Answers the requests of a program on `stream`.
async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    target: ForwarderDestination,
    gate: Arc<ForwarderHostPolicy>,
) {
    let tunnel = Arc::new(TlsInspectedTunnel {
        gate,
        target,
        server: tokio::sync::Mutex::default(),
        tasks: Mutex::new(JoinSet::new()),
    });
    let service = service_fn(move |request| {
        let tunnel = tunnel.clone();
        async move {
            let answered = tunnel.forward(request).await;
            let response = answered.unwrap_or_else(|(status, why)| text_answer(status, &why));
            Ok::<_, Infallible>(response)
        }
    });
    // Both ends see the closed connection.
    let _ = server::Builder::new()
        .preserve_header_case(true)
        .max_buf_size(HTTP_BUFFER_BYTES)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl TlsInspectedTunnel {
    /// Checks `request` and forwards it to the server.
    async fn forward(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<ForwardedBody>, ForwarderRefusal> {
        let Self { gate, target, .. } = self;
        self.check(&request)?;
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let host = HeaderValue::try_from(host_header(target));
        let host = host.map_err(|_| bad_request("the host is invalid"))?;
        let headers = request.headers_mut();
        remove_connection_headers(headers);
        remove_rewriting_headers(headers);
        headers.insert(HOST, host);
        if let Some(inspector) = gate.inspector() {
            inspector.add_credential(target, path.path(), headers);
        }
        *request.uri_mut() = Uri::from(path);
        *request.version_mut() = Version::HTTP_11;
        let mut response = self.send(request).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let why = format!("{target} switched to a protocol that the program did not request");
            return Err((StatusCode::BAD_GATEWAY, why));
        }
        remove_connection_headers(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        Ok(response.map(Either::Left))
    }

    /// Checks that `request` is for the host of the tunnel and an allowed path.
    fn check(&self, request: &Request<Incoming>) -> Result<(), ForwarderRefusal> {
        let Self { gate, target, .. } = self;
        let refuse = |why: &str| Err(failure_answer(gate.refuse(target, why)));
        let headers = request.headers();
        if request.uri().authority().is_some() {
            return Err(bad_request("a request in a TLS tunnel must name only its path"));
        }
        if !is_host_of(headers, target, HTTPS_PORT) {
            return refuse("the Host header differs from the host of the tunnel");
        }
        if request.method() == Method::TRACE {
            return refuse("the answer to a TRACE request would contain the credential");
        }
        let mut upgrades = headers.get_all(UPGRADE).iter().filter_map(|value| value.to_str().ok());
        if upgrades.any(|value| value.to_ascii_lowercase().contains("websocket")) {
            return refuse("a host with a path rule or a credential takes no WebSockets");
        }
        gate.check_path(target, request.uri().path()).map_err(failure_answer)
    }

    /// Sends `request` to the server, over the connection of the last request if it is still open.
    async fn send(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Incoming>, ForwarderRefusal> {
        let lost =
            |err: &hyper::Error| (StatusCode::BAD_GATEWAY, format!("{}: {err}", self.target));
        let mut kept = self.server.lock().await;
        let mut request = request;
        if let Some(mut sender) = kept.take()
            && matches!(timeout(REUSE_TIMEOUT, sender.ready()).await, Ok(Ok(())))
        {
            match sender.try_send_request(request).await {
                Ok(response) => {
                    *kept = Some(sender);
                    return Ok(response);
                }
                // The server closed the idle connection before it got anything of the request.
                Err(mut failure) => match failure.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(lost(failure.error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(|err| lost(&err))?;
        *kept = Some(sender);
        Ok(response)
    }

    /// Connects to the server, and checks its address and its certificate.
    async fn connect(&self) -> Result<client::SendRequest<Incoming>, ForwarderRefusal> {
        let Self { gate, target, .. } = self;
        let failed = |why: String| (StatusCode::BAD_GATEWAY, format!("{target}: {why}"));
        let stream = gate.connect(target).await.map_err(failure_answer)?;
        let tls = dial::system_tls().await.map_err(failed)?;
        let connecting = tls.connect(Box::new(stream), &target.host);
        let stream = match timeout(HANDSHAKE_TIMEOUT, connecting).await {
            Ok(connected) => connected.map_err(|err| failed(err.to_string()))?,
            Err(_) => return Err(failed("the TLS handshake timed out".to_owned())),
        };
        let mut builder = client::Builder::new();
        builder.preserve_header_case(true).max_buf_size(HTTP_BUFFER_BYTES);
        let handshake = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|err| failed(err.to_string()))?;
        let mut tasks = lock_mutex(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            // The sender or the body reports the error.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

/// Returns the answer to a malformed request (status 400), with the message `why`.
fn bad_request(why: &str) -> ForwarderRefusal {
    (StatusCode::BAD_REQUEST, why.to_owned())
}

/// Returns the `Host` header of requests to `target`.
fn host_header(target: &ForwarderDestination) -> String {
    let text = target.to_string();
    match text.strip_suffix(":443") {
        Some(host) if target.port == HTTPS_PORT => host.to_owned(),
        _ => text,
    }
}
