//! Lets a page that was admitted read what it is answered (the browser asks first: CORS).

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use http::{HeaderMap, Method, Request};

/// What an admitted page needs to hear in the headers of its answer.
pub(super) struct Visitor {
    origin: HeaderValue,
    preflight: Option<Preflight>,
}

/// What the browser asks before the page's own request.
struct Preflight {
    method: HeaderValue,
    headers: Option<HeaderValue>,
}

impl Visitor {
    /// The page that `request`, once admitted, comes from; `None` if it comes from no page.
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        let origin = headers.get(ORIGIN)?.clone();
        let method = headers.get(ACCESS_CONTROL_REQUEST_METHOD);
        let method = method.filter(|_| request.method() == Method::OPTIONS);
        let preflight = method.map(|method| Preflight {
            method: method.clone(),
            headers: headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned(),
        });
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
                headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
            }
            Some(Preflight { method, headers: asked }) => {
                headers.insert(ACCESS_CONTROL_ALLOW_METHODS, method);
                headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
                if let Some(asked) = asked {
                    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked);
                }
            }
        }
    }
}
