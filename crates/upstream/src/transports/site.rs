//! The address of an upstream on the network, with the headers for requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use toolgate_net::{HttpClient, HttpRequestFailure, HttpUrl};

use crate::address::parse_url;
use crate::oauth::{BearerChallenge, UpstreamCredentials, challenges};
use crate::transport::UpstreamRequestFailure;
use crate::world::{NetworkAddress, UpstreamSystemAccess};

/// Maximum number of times that a request is repeated with a new token: once for an expired token,
/// and once for a missing scope.
const TOKEN_RETRIES: u32 = 2;

/// Maximum number of idle HTTP connections to an upstream.
const IDLE_CONNECTIONS_MAX: usize = 64;

/// URL to which a request was redirected, as an extension of the response.
#[derive(Debug, Clone)]
pub(crate) struct RedirectTarget(pub(crate) HttpUrl);

/// Returns the URL or path to which a response redirects.
fn redirect_location(status: StatusCode, headers: &HeaderMap) -> Option<&str> {
    let is_redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    headers.get(LOCATION).filter(|_| is_redirect)?.to_str().ok()
}

/// Returns the URL to which `response` redirects a request for `url`, if the target is on the same
/// server. Credentials must not reach another server.
fn redirect_target(url: &HttpUrl, response: &Response<Incoming>) -> Option<HttpUrl> {
    let location = redirect_location(response.status(), response.headers())?;
    let target = url.resolve(location).ok()?;
    // The status 303 asks for a GET request, which contains no message.
    let keeps_body = response.status() != StatusCode::SEE_OTHER;
    (keeps_body && url.is_same_origin(&target)).then_some(target)
}

/// Describes the response to a request as a phrase such as "answered 404 Not Found", with the
/// target of a redirect if there is one.
pub(crate) fn describe_response(status: StatusCode, headers: &HeaderMap) -> String {
    match redirect_location(status, headers) {
        Some(location) => {
            let location = location.split('?').next().unwrap_or_default();
            format!("answered {status}, to `{location}`; set the new address as `url`")
        }
        None => format!("answered {status}"),
    }
}

/// URL of an upstream, with the settings for requests to it.
#[derive(Clone)]
pub(crate) struct UpstreamEndpoint {
    pub(crate) world: Arc<dyn UpstreamSystemAccess>,
    pub(crate) url: String,
    pub(crate) private_network: bool,
    /// Headers from the upstream's settings.
    pub(crate) headers: BTreeMap<String, String>,
    /// OAuth credentials, if `headers` does not set `Authorization`.
    pub(crate) credentials: Option<Arc<UpstreamCredentials>>,
    /// Longest message to accept from the upstream, in bytes.
    pub(crate) bytes_max: usize,
}

impl UpstreamEndpoint {
    /// Returns the parsed URL of the upstream.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid.
    pub(crate) fn http_url(&self) -> Result<HttpUrl, String> {
        parse_url(&self.url)
    }

    /// Creates an HTTP client for the upstream. It shares no connections with other upstreams.
    pub(crate) fn http_client(&self) -> HttpClient {
        let world = self.world.clone();
        let private_network = self.private_network;
        HttpClient::new(IDLE_CONNECTIONS_MAX, move |url| {
            let world = world.clone();
            let address = NetworkAddress::from_url(&url, private_network);
            Box::pin(async move { world.dial(&address).await })
        })
    }

    /// Returns the configured headers and `Host` for requests to `url`.
    ///
    /// # Errors
    ///
    /// Returns an error that names an invalid header.
    pub(crate) fn fixed_headers(
        &self,
        url: &HttpUrl,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let mut headers = Vec::new();
        for (name, value) in &self.headers {
            let invalid = || format!("the header `{name}` is invalid");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
            value.set_sensitive(true);
            headers.push((name, value));
        }
        let host = HeaderValue::try_from(url.authority()).map_err(|err| err.to_string())?;
        headers.push((HOST, host));
        Ok(headers)
    }

    /// Sends the request that `make` creates to `url`, with an OAuth token. If the token is
    /// refused, repeats the request with another token. Follows one redirect within the server, and
    /// adds [`RedirectTarget`] to the extensions of the response.
    pub(crate) async fn send(
        &self,
        client: &HttpClient,
        mut url: HttpUrl,
        make: impl Fn() -> Result<Request<Full<bytes::Bytes>>, UpstreamRequestFailure>,
    ) -> Result<Response<Incoming>, UpstreamRequestFailure> {
        let mut tried = 0;
        let mut is_redirected = false;
        loop {
            let token = self.token().await?;
            let mut request = make()?;
            *request.uri_mut() = url.uri().clone();
            let header = token.clone().map(|token| (AUTHORIZATION, token));
            request.headers_mut().extend(header);
            let mut response = client.send(request).await.map_err(|failure| match failure {
                HttpRequestFailure::NotSent(why) => UpstreamRequestFailure::NotSent(why),
                HttpRequestFailure::Lost(why) => UpstreamRequestFailure::Lost(why),
            })?;
            if !is_redirected && let Some(target) = redirect_target(&url, &response) {
                url = target;
                is_redirected = true;
                continue;
            }
            if is_redirected {
                response.extensions_mut().insert(RedirectTarget(url.clone()));
            }
            if tried == TOKEN_RETRIES || !self.is_refused(response.status(), response.headers()) {
                return Ok(response);
            }
            self.replace_refused_token(token.as_ref(), response.status(), response.headers())
                .await?;
            tried += 1;
        }
    }

    /// Returns the `Authorization` header for requests to the upstream, if there is a token.
    pub(crate) async fn token(&self) -> Result<Option<HeaderValue>, UpstreamRequestFailure> {
        match &self.credentials {
            None => Ok(None),
            Some(credentials) => {
                credentials.header().await.map_err(UpstreamRequestFailure::Unauthorized)
            }
        }
    }

    /// Returns true if a response with `status` and `headers` refuses the token, and a new token
    /// might be accepted.
    pub(crate) fn is_refused(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let wants_more =
            || challenges(headers).is_some_and(|text| BearerChallenge::parse(&text).lacks_scope());
        self.credentials.is_some()
            && match status {
                StatusCode::UNAUTHORIZED => true,
                StatusCode::FORBIDDEN => wants_more(),
                _ => false,
            }
    }

    /// Obtains a new token after the upstream refused the header `token` in a response with
    /// `status` and `headers`.
    pub(crate) async fn replace_refused_token(
        &self,
        token: Option<&HeaderValue>,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<(), UpstreamRequestFailure> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let challenge = challenges(headers).map(|text| BearerChallenge::parse(&text));
        let challenge = challenge.unwrap_or_default();
        let refused = credentials.replace_refused(token, status.as_u16(), challenge).await;
        refused.map_err(|why| {
            UpstreamRequestFailure::Unauthorized(format!("it answered {status}: {why}"))
        })
    }
}
