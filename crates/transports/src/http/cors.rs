//! Lets a page that was admitted read what it is answered (the browser asks first: CORS).

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use http::{HeaderMap, Method, Request};

/// What an admitted page needs to hear in the headers of its answer.
pub(super) struct Page {
    origin: HeaderValue,
    preflight: Option<Option<HeaderValue>>,
}

impl Page {
    /// The page that `request`, once admitted, comes from; `None` if it comes from no page.
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        let origin = headers.get(ORIGIN)?.clone();
        let asks = request.method() == Method::OPTIONS
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let preflight = asks.then(|| headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned());
        Some(Self { origin, preflight })
    }

    /// Whether the browser only asks if it may.
    pub(super) fn only_asks(&self) -> bool {
        self.preflight.is_some()
    }

    /// Tells the browser that it may.
    pub(super) fn allow(self, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin);
        headers.insert(VARY, HeaderValue::from_static("origin"));
        match self.preflight {
            None => {
                let readable = HeaderValue::from_static("mcp-session-id, mcp-protocol-version");
                headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, readable);
            }
            Some(asked) => {
                let methods = HeaderValue::from_static("GET, POST, DELETE");
                headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
                headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
                if let Some(asked) = asked {
                    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked);
                }
            }
        }
    }
}
