//! The headers and bodies of HTTP requests and responses that a forwarder changes or checks.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName};
use http::uri::Authority;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use toolgate_net::normalize_host;

use super::gate::{ForwardFailure, ForwarderDestination};

/// The maximum size of the head of an HTTP request, and of each buffer of a connection, in bytes.
pub(super) const HTTP_BUFFER_BYTES: usize = 64 << 10;
/// Headers that concern one connection only, in addition to those that the `Connection` header
/// lists.
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
/// Headers in which some servers look for the host or path, instead of in the request line and
/// `Host`.
const REWRITING_HEADERS: [&str; 10] = [
    "forwarded",
    "x-forwarded-host",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-forwarded-server",
    "x-forwarded-uri",
    "x-host",
    "x-original-host",
    "x-original-url",
    "x-rewrite-url",
];

/// The body of a response to a program: the body from the server, or a message of the forwarder.
pub(super) type ForwardedBody = Either<Incoming, Full<Bytes>>;

/// The status and message with which a forwarder answers instead of the server.
pub(super) type ForwarderRefusal = (StatusCode, String);

/// Returns true if the only `Host` header in `headers`, if any, names `target`. A `Host` without a
/// port means `default_port`.
pub(super) fn is_host_of(
    headers: &HeaderMap,
    target: &ForwarderDestination,
    default_port: u16,
) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let Some(host) = first else { return true };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    second.is_none()
        && !authority.as_str().contains('@')
        && normalize_host(authority.host()).as_ref() == Some(&target.host)
        && authority.port_u16().unwrap_or(default_port) == target.port
}

/// Returns true if the forwarder removes or replaces the header `name` of each request.
pub(super) fn is_connection_header(name: &HeaderName) -> bool {
    *name == HOST || *name == CONTENT_LENGTH || CONNECTION_HEADERS.contains(&name.as_str())
}

/// Removes the headers that concern one connection only.
pub(super) fn remove_connection_headers(headers: &mut HeaderMap) {
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

/// Removes the headers in which some servers look for the host or path instead of in the request
/// line, so that servers use the path that the forwarder checked.
pub(super) fn remove_rewriting_headers(headers: &mut HeaderMap) {
    for name in REWRITING_HEADERS {
        headers.remove(name);
    }
}

/// Returns the answer to a program whose request was not forwarded because of `failure`.
pub(super) fn failure_answer(failure: ForwardFailure) -> ForwarderRefusal {
    match failure {
        ForwardFailure::Refused(why) => (StatusCode::FORBIDDEN, why),
        ForwardFailure::Unreachable(why) => (StatusCode::BAD_GATEWAY, why),
    }
}

/// Creates a response with the message `why`.
pub(super) fn text_answer(status: StatusCode, why: &str) -> Response<ForwardedBody> {
    let mut response = Response::new(Either::Right(Full::from(format!("{why}\n"))));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
