//! Examples of the transport's own error responses, for the reference.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderValue, ORIGIN};
use http::{HeaderMap, Method, Request, StatusCode};

use super::UnreadableRequestReason;
use super::admission::RequestOriginRules;
use super::head_checks::head_problem;
use super::request_handler::{JSON, unknown_path_text, unsupported_body};
use super::upgrade::WebSocketHandshakeError;

/// Error response of the HTTP transport itself, which no dialect encodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalResponseExample {
    /// HTTP status of the response.
    pub status: u16,
    /// Text of the error response.
    pub text: String,
}

/// Request heads that the server rejects as ambiguous, one example for each check.
const REFUSED_HEADS: [&str; 8] = [
    "GET / HTTP/1.1\n",
    "GET / HTTP/1.1\rx\r\n",
    "GET / HTTP/1.1\r\n folded\r\n",
    "GET / HTTP/1.1\r\nhost\r\n",
    "POST / HTTP/1.1\r\ncontent-length: x\r\n",
    "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n",
    "POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n",
    "POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
];

/// Returns one example of each error response of the HTTP transport itself, ordered by status.
pub fn refusal_examples() -> Vec<RefusalResponseExample> {
    let heads = REFUSED_HEADS.into_iter().filter_map(|head| head_problem(head.as_bytes()));
    let heads = heads.map(|why| (StatusCode::BAD_REQUEST, why.to_owned()));
    let unread = [
        UnreadableRequestReason::TooLarge { limit: 1 << 20 },
        UnreadableRequestReason::TimedOut,
        UnreadableRequestReason::Incomplete,
        UnreadableRequestReason::TooManyStreams,
        UnreadableRequestReason::NoBodyRoom,
    ];
    let unread = unread.into_iter().chain(unsupported_bodies());
    let unread = unread.map(|reason| (reason.status(), reason.message()));
    let sockets = [WebSocketHandshakeError::Version, WebSocketHandshakeError::Key];
    let sockets = sockets.map(|error| {
        let (status, text) = error.status_and_text();
        (status, text.to_owned())
    });
    let unknown_path = (StatusCode::NOT_FOUND, unknown_path_text("/x", None, &["/mcp"]));
    let all = heads.chain(unread).chain(sockets).chain(admission_refusals()).chain([unknown_path]);
    let mut all: Vec<_> = all
        .map(|(status, text)| RefusalResponseExample {
            status: status.as_u16(),
            text: text.trim_end().to_owned(),
        })
        .collect();
    all.sort_by_key(|example| example.status);
    all
}

fn unsupported_bodies() -> impl Iterator<Item = UnreadableRequestReason> {
    let xml = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/xml"))]);
    let compressed = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CONTENT_ENCODING, HeaderValue::from_static("gzip")),
    ]);
    [xml, compressed]
        .into_iter()
        .filter_map(|headers| unsupported_body(&Method::POST, &headers, JSON))
}

fn admission_refusals() -> impl Iterator<Item = (StatusCode, String)> {
    let rules = RequestOriginRules::new(([127, 0, 0, 1], 8000).into(), &[], &[]);
    let request = || Request::builder().uri("/mcp");
    let own = || request().header(HOST, "localhost:8000");
    let requests = [
        request(),
        request().header(HOST, "evil.example"),
        own().header(ORIGIN, "https://evil.example"),
        own().header("sec-fetch-site", "cross-site"),
    ];
    requests.into_iter().filter_map(move |request| {
        let refusal = rules.check(&request.body(()).ok()?).err()?;
        Some((refusal.status, refusal.why))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_head_in_the_list_is_refused_for_another_reason() {
        let reasons: std::collections::BTreeSet<_> =
            REFUSED_HEADS.iter().filter_map(|head| head_problem(head.as_bytes())).collect();
        assert_eq!(reasons.len(), REFUSED_HEADS.len());
    }
}
