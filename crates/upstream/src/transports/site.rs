//! The address of an upstream on the network, with the headers for requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;

use super::pool::{HttpPool, PooledConnection};
use crate::address::{is_same_origin, parse_address, request_path, resolve_reference};
use crate::oauth::{BearerChallenge, UpstreamCredentials, challenges};
use crate::transport::RequestFailure;
use crate::world::{NetworkAddress, UpstreamWorld};

/// Maximum number of repetitions of a request with another token: once for an expired token, and
/// once for a missing scope.
const TOKEN_RETRIES: u32 = 2;

/// URL to which a request was redirected.
#[derive(Debug, Clone)]
pub(crate) struct RedirectedTo(pub(crate) Uri);

/// Returns the URL or path to which a response redirects.
fn redirect_location(status: StatusCode, headers: &HeaderMap) -> Option<&str> {
    let is_redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    headers.get(LOCATION).filter(|_| is_redirect)?.to_str().ok()
}

/// Describes the response to a request as a phrase that can follow "it", with the target of a
/// redirect.
pub(crate) fn describe_response(status: StatusCode, headers: &HeaderMap) -> String {
    match redirect_location(status, headers) {
        Some(location) => {
            let location = location.split('?').next().unwrap_or_default();
            format!("answered {status}, to `{location}`; set the new address as `url`")
        }
        None => format!("answered {status}"),
    }
}

/// An upstream's URL with the settings for requests to it.
#[derive(Clone)]
pub(crate) struct UpstreamSite {
    pub(crate) world: Arc<dyn UpstreamWorld>,
    pub(crate) url: String,
    pub(crate) private_network: bool,
    /// Headers from the settings.
    pub(crate) headers: BTreeMap<String, String>,
    /// OAuth credentials, if `headers` does not set `Authorization`.
    pub(crate) credentials: Option<Arc<UpstreamCredentials>>,
    /// Longest message to accept, in bytes.
    pub(crate) bytes_max: usize,
}

impl UpstreamSite {
    /// Returns the address and the parsed URL.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid.
    pub(crate) fn address(&self) -> Result<(NetworkAddress, Uri), String> {
        parse_address(&self.url, self.private_network)
    }

    /// Returns the configured headers and `Host` for requests to `uri`.
    ///
    /// # Errors
    ///
    /// Returns an error that names an invalid header.
    pub(crate) fn fixed_headers(
        &self,
        uri: &Uri,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let mut headers = Vec::new();
        for (name, value) in &self.headers {
            let invalid = || format!("the header `{name}` is invalid");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
            value.set_sensitive(true);
            headers.push((name, value));
        }
        let host = uri.authority().map(|authority| authority.as_str().to_owned());
        let host = HeaderValue::try_from(host.unwrap_or_default()).map_err(|e| e.to_string())?;
        headers.push((HOST, host));
        Ok(headers)
    }

    /// Sends the request that `make` creates, with a token. If the token is refused, repeats the
    /// request with another one. Follows one redirect within the server, and adds [`RedirectedTo`]
    /// to the extensions of the response.
    pub(crate) async fn send(
        &self,
        pool: &Arc<HttpPool>,
        make: impl Fn() -> Result<Request<Full<bytes::Bytes>>, RequestFailure>,
    ) -> Result<(Response<Incoming>, PooledConnection), RequestFailure> {
        let mut tried = 0;
        let mut redirected = None;
        loop {
            let token = self.token().await?;
            let mut request = make()?;
            if let Some(RedirectedTo(uri)) = &redirected {
                *request.uri_mut() = request_path(uri);
            }
            let path = request.uri().clone();
            let header = token.clone().map(|token| (AUTHORIZATION, token));
            request.headers_mut().extend(header);
            let (mut response, pooled) = pool.send(request).await?;
            if redirected.is_none()
                && let Some(uri) = self.redirect_target(&path, &response)
            {
                redirected = Some(RedirectedTo(uri));
                continue;
            }
            if let Some(redirected) = &redirected {
                response.extensions_mut().insert(redirected.clone());
            }
            if tried == TOKEN_RETRIES || !self.is_refused(response.status(), response.headers()) {
                return Ok((response, pooled));
            }
            self.replace_refused_token(token.as_ref(), response.status(), response.headers())
                .await?;
            tried += 1;
        }
    }

    /// Returns the URL to which `response` redirects a request for `path`, if it is on the same
    /// server. Credentials are sent to no other server.
    fn redirect_target(&self, path: &Uri, response: &Response<Incoming>) -> Option<Uri> {
        let location = redirect_location(response.status(), response.headers())?;
        let (_, url) = self.address().ok()?;
        let base = resolve_reference(&url, path.path_and_query()?.as_str()).ok()?;
        let target = resolve_reference(&base, location).ok()?;
        // The status 303 asks for a GET request, which contains no message.
        let keeps_body = response.status() != StatusCode::SEE_OTHER;
        (keeps_body && is_same_origin(&url, &target)).then_some(target)
    }

    /// Returns the `Authorization` header, if there is a token.
    pub(crate) async fn token(&self) -> Result<Option<HeaderValue>, RequestFailure> {
        match &self.credentials {
            None => Ok(None),
            Some(credentials) => credentials.header().await.map_err(RequestFailure::Unauthorized),
        }
    }

    /// Returns true if the response refuses the token, so that another token might be accepted.
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

    /// Obtains another token after `token` was refused.
    pub(crate) async fn replace_refused_token(
        &self,
        token: Option<&HeaderValue>,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<(), RequestFailure> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let challenge = challenges(headers).map(|text| BearerChallenge::parse(&text));
        let challenge = challenge.unwrap_or_default();
        let refused = credentials.replace_refused(token, status.as_u16(), challenge).await;
        refused.map_err(|why| RequestFailure::Unauthorized(format!("it answered {status}: {why}")))
    }
}
