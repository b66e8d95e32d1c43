//! Connection of a program to its forwarder, which is an HTTP proxy with `CONNECT`.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::HOST;
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
use toolgate_contract::lock_mutex;

use super::gate::{ForwarderDestination, ForwarderHostPolicy};
use super::http_messages::{
    ForwardedBody, ForwarderRefusal, HTTP_BUFFER_BYTES, failure_answer, is_host_of,
    remove_connection_headers, remove_rewriting_headers, text_answer,
};
use super::inspected_tunnel::inspect_tunnel;
use super::tunnel::run_tunnel;

/// The longest wait for the head of a request, and the longest idle time between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The port of plain HTTP.
const HTTP_PORT: u16 = 80;

/// A tunnel that starts once the response to the `CONNECT` request has been sent.
struct PendingTunnel {
    client: OnUpgrade,
    /// The connection to the server. `None` if the forwarder checks each request of the tunnel
    /// before it connects.
    server: Option<TcpStream>,
    target: ForwarderDestination,
}

/// The state of one connection from a program to its forwarder.
struct ForwarderConnection {
    gate: Arc<ForwarderHostPolicy>,
    tunnel: Mutex<Option<PendingTunnel>>,
    /// The tasks that drive the connections to servers. They end with the program's connection.
    servers: Mutex<JoinSet<()>>,
}

/// Answers the requests of a program on `stream`, and then runs the tunnel if the program requested
/// a tunnel.
pub(super) async fn serve_connection(stream: TcpStream, gate: Arc<ForwarderHostPolicy>) {
    // The stream works without it, only slower.
    let _ = stream.set_nodelay(true);
    let state = Arc::new(ForwarderConnection {
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
    let pending = lock_mutex(&state.tunnel).take();
    if let (Ok(()), Some(PendingTunnel { client, server, target })) = (served, pending)
        && let Ok(client) = client.await
        && let Ok(parts) = client.downcast::<TokioIo<TcpStream>>()
    {
        let (client, first) = (parts.io.into_inner(), parts.read_buf);
        match server {
            Some(server) => run_tunnel(client, first, server, &target, &state.gate).await,
            None => Box::pin(inspect_tunnel(client, first, target, state.gate.clone())).await,
        }
    }
}

impl ForwarderConnection {
    async fn answer(&self, request: Request<Incoming>) -> Response<ForwardedBody> {
        let answered = if request.method() == Method::CONNECT {
            self.open_tunnel(request).await
        } else {
            self.forward(request).await
        };
        answered.unwrap_or_else(|(status, why)| text_answer(status, &why))
    }

    /// Answers a program's `CONNECT` request: checks the target, and connects to it unless the
    /// requests in the tunnel are checked first.
    async fn open_tunnel(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<ForwardedBody>, ForwarderRefusal> {
        let bad = |why: &str| (StatusCode::BAD_REQUEST, why.to_owned());
        let authority = request.uri().authority().ok_or_else(|| bad("CONNECT without a host"))?;
        let port = authority.port_u16().ok_or_else(|| bad("CONNECT without a port"))?;
        let target = self.gate.admit_tunnel(authority.host(), port).map_err(failure_answer)?;
        let server = match self.gate.inspects(&target) {
            true => None,
            false => Some(self.gate.connect(&target).await.map_err(failure_answer)?),
        };
        let client = hyper::upgrade::on(&mut request);
        let mut tunnel = lock_mutex(&self.tunnel);
        *tunnel = Some(PendingTunnel { client, server, target });
        Ok(Response::new(Either::Right(Full::default())))
    }

    /// Forwards a program's request to a server over plain HTTP, if the rules allow the request.
    async fn forward(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<ForwardedBody>, ForwarderRefusal> {
        let bad = |why: &str| (StatusCode::BAD_REQUEST, why.to_owned());
        let uri = request.uri().clone();
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(bad(
                "this is toolgate's proxy for programs in the sandbox: it takes http:// URLs, and \
                 CONNECT for all others",
            ));
        }
        let authority = uri.authority().ok_or_else(|| bad("the URL has no host"))?;
        let port = authority.port_u16().unwrap_or(HTTP_PORT);
        let target = self.gate.admit(authority.host(), port).map_err(failure_answer)?;
        if !is_host_of(request.headers(), &target, HTTP_PORT) {
            let why = "the Host header differs from the host in the URL";
            return Err(failure_answer(self.gate.refuse(&target, why)));
        }
        self.gate.check_path(&target, uri.path()).map_err(failure_answer)?;
        let stream = self.gate.connect(&target).await.map_err(failure_answer)?;
        let host = HeaderValue::try_from(bare_authority(authority));
        let host = host.map_err(|_| bad("the URL has an invalid host"))?;
        let path = uri.path_and_query().cloned();
        *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.version_mut() = Version::HTTP_11;
        remove_connection_headers(request.headers_mut());
        if self.gate.limits_paths(&target) {
            remove_rewriting_headers(request.headers_mut());
        }
        request.headers_mut().insert(HOST, host);
        let lost = |err: hyper::Error| (StatusCode::BAD_GATEWAY, format!("{target}: {err}"));
        let mut builder = client::Builder::new();
        builder.preserve_header_case(true).max_buf_size(HTTP_BUFFER_BYTES);
        let (mut sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(lost)?;
        {
            let mut servers = lock_mutex(&self.servers);
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

/// Returns `authority` without a user name and password.
fn bare_authority(authority: &Authority) -> &str {
    let text = authority.as_str();
    text.rsplit_once('@').map_or(text, |(_, host)| host)
}
