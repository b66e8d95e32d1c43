//! One connection of a program to its forwarder: an HTTP proxy with `CONNECT`.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use toolgate_net::normalize_host;

use super::gate::{ForwardFailure, ForwardTarget, ForwarderGate};
use super::tunnel::run_tunnel;

/// The longest wait for the head of a request, and the longest idle time between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum size of the head of an HTTP request, and of each buffer of a connection, in bytes.
const HTTP_BUFFER_BYTES: usize = 64 << 10;
/// Headers that concern one connection only, besides those that `Connection` names.
const CONNECTION_HEADERS: [&str; 8] = [
    "connection",
    "expect",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

type ForwardedBody = Either<Incoming, Full<Bytes>>;

/// A tunnel that starts once the answer to its `CONNECT` has been sent.
struct PendingTunnel {
    client: OnUpgrade,
    server: TcpStream,
    target: ForwardTarget,
}

/// The state of one connection from a program to its forwarder.
struct ProxyConnection {
    gate: Arc<ForwarderGate>,
    tunnel: Mutex<Option<PendingTunnel>>,
    /// The connections to servers, which end with this connection.
    servers: Mutex<JoinSet<()>>,
}

/// Answers the requests of a program on `stream`, and then runs the tunnel if one was requested.
pub(super) async fn serve_connection(stream: TcpStream, gate: Arc<ForwarderGate>) {
    // The stream works without it, only slower.
    let _ = stream.set_nodelay(true);
    let state = Arc::new(ProxyConnection {
        gate,
        tunnel: Mutex::default(),
        servers: Mutex::new(JoinSet::new()),
    });
    let proxy = state.clone();
    let service = service_fn(move |request| {
        let state = proxy.clone();
        async move { Ok::<_, Infallible>(state.answer(request).await) }
    });
    let served = server::Builder::new()
        .preserve_header_case(true)
        .max_buf_size(HTTP_BUFFER_BYTES)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    let pending = state.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let (Ok(()), Some(PendingTunnel { client, server, target })) = (served, pending)
        && let Ok(client) = client.await
        && let Ok(parts) = client.downcast::<TokioIo<TcpStream>>()
    {
        run_tunnel(parts.io.into_inner(), parts.read_buf, server, &target, &state.gate).await;
    }
}

impl ProxyConnection {
    async fn answer(&self, request: Request<Incoming>) -> Response<ForwardedBody> {
        let answered = if request.method() == Method::CONNECT {
            self.open_tunnel(request).await
        } else {
            self.forward(request).await
        };
        answered.unwrap_or_else(|(status, why)| text_answer(status, &why))
    }

    /// Connects to the target of a program's `CONNECT` request.
    async fn open_tunnel(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<ForwardedBody>, (StatusCode, String)> {
        let bad = |why: &str| (StatusCode::BAD_REQUEST, why.to_owned());
        let authority = request.uri().authority().ok_or_else(|| bad("CONNECT without a host"))?;
        let port = authority.port_u16().ok_or_else(|| bad("CONNECT without a port"))?;
        let target = self.gate.admit(authority.host(), port).map_err(failure_answer)?;
        let server = self.gate.connect(&target).await.map_err(failure_answer)?;
        let client = hyper::upgrade::on(&mut request);
        let mut tunnel = self.tunnel.lock().unwrap_or_else(PoisonError::into_inner);
        *tunnel = Some(PendingTunnel { client, server, target });
        Ok(Response::new(Either::Right(Full::default())))
    }

    /// Forwards a program's request to a plain HTTP server.
    async fn forward(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<ForwardedBody>, (StatusCode, String)> {
        let bad = |why: &str| (StatusCode::BAD_REQUEST, why.to_owned());
        let uri = request.uri().clone();
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(bad(
                "this is toolgate's proxy for programs in the sandbox: it takes http:// URLs, and \
                 CONNECT for all others",
            ));
        }
        let authority = uri.authority().ok_or_else(|| bad("the URL has no host"))?;
        let port = authority.port_u16().unwrap_or(80);
        let target = self.gate.admit(authority.host(), port).map_err(failure_answer)?;
        if !is_host_of(request.headers(), &target) {
            let why = "the Host header differs from the host in the URL";
            return Err(failure_answer(self.gate.refuse(&target, why)));
        }
        let stream = self.gate.connect(&target).await.map_err(failure_answer)?;
        let host = HeaderValue::try_from(bare_authority(authority));
        let host = host.map_err(|_| bad("the URL has an invalid host"))?;
        let path = uri.path_and_query().cloned();
        *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.version_mut() = Version::HTTP_11;
        remove_connection_headers(request.headers_mut());
        request.headers_mut().insert(HOST, host);
        let lost = |err: hyper::Error| (StatusCode::BAD_GATEWAY, format!("{target}: {err}"));
        let mut builder = client::Builder::new();
        builder.preserve_header_case(true).max_buf_size(HTTP_BUFFER_BYTES);
        let (mut sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(lost)?;
        {
            let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
            while servers.try_join_next().is_some() {}
            servers.spawn(async move {
                // The sender or the body reports the error.
                let _ = connection.await;
            });
        }
        let mut response = sender.send_request(request).await.map_err(lost)?;
        remove_connection_headers(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        Ok(response.map(Either::Left))
    }
}

/// Returns true if the only `Host` header in `headers`, if any, names `target`.
fn is_host_of(headers: &HeaderMap, target: &ForwardTarget) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let Some(host) = first else { return true };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    second.is_none()
        && !authority.as_str().contains('@')
        && normalize_host(authority.host()).as_ref() == Some(&target.host)
        && authority.port_u16().unwrap_or(80) == target.port
}

/// Returns `authority` without a user name and password.
fn bare_authority(authority: &Authority) -> &str {
    let text = authority.as_str();
    text.rsplit_once('@').map_or(text, |(_, host)| host)
}

fn remove_connection_headers(headers: &mut HeaderMap) {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named = values.flat_map(|value| value.split(','));
    let named: Vec<_> = named.filter_map(|name| name.trim().parse::<HeaderName>().ok()).collect();
    for name in &named {
        headers.remove(name);
    }
    for name in CONNECTION_HEADERS {
        headers.remove(name);
    }
}

fn failure_answer(failure: ForwardFailure) -> (StatusCode, String) {
    match failure {
        ForwardFailure::Refused(why) => (StatusCode::FORBIDDEN, why),
        ForwardFailure::Unreachable(why) => (StatusCode::BAD_GATEWAY, why),
    }
}

fn text_answer(status: StatusCode, why: &str) -> Response<ForwardedBody> {
    let mut response = Response::new(Either::Right(Full::from(format!("{why}\n"))));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
