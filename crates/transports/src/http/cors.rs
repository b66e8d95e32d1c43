//! Answers CORS preflights, and lets accepted pages read responses.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use http::{HeaderMap, Method, Request};

/// Cross-origin (CORS) data of a request from a web page.
pub(super) struct CorsRequestOrigin {
    origin: HeaderValue,
    preflight: Option<CorsPreflight>,
}

/// CORS preflight request of a browser.
struct CorsPreflight {
    method: HeaderValue,
    headers: Option<HeaderValue>,
}

impl CorsRequestOrigin {
    /// Reads the CORS data of an accepted `request`. Returns `None` if no web page sent the
    /// request.
    pub(super) fn from_request<B>(request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        let origin = headers.get(ORIGIN)?.clone();
        let method = headers.get(ACCESS_CONTROL_REQUEST_METHOD);
        let method = method.filter(|_| request.method() == Method::OPTIONS);
        let preflight = method.map(|method| CorsPreflight {
            method: method.clone(),
            headers: headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned(),
        });
        Some(Self { origin, preflight })
    }

    /// Returns true if the request is a preflight.
    pub(super) fn is_preflight(&self) -> bool {
        self.preflight.is_some()
    }

    /// Adds the CORS headers that let a page of this origin read the response.
    pub(super) fn add_headers(self, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin);
        headers.insert(VARY, HeaderValue::from_static("origin"));
        match self.preflight {
            None => {
                headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
            }
            Some(CorsPreflight { method, headers: requested }) => {
                headers.insert(ACCESS_CONTROL_ALLOW_METHODS, method);
                headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
                if let Some(requested) = requested {
                    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, requested);
                }
            }
        }
    }
}
