//! The address of an upstream on the network, with the headers for requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;

use super::pool::{HttpPool, PooledConnection};
use crate::address::parse_address;
use crate::oauth::{BearerChallenge, UpstreamCredentials, challenges};
use crate::transport::RequestFailure;
use crate::world::{NetworkAddress, UpstreamWorld};

/// Most repetitions of a request with another token: once for an expired token, and once for a
/// missing scope.
const TOKEN_RETRIES: u32 = 2;

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
    /// request with another one.
    pub(crate) async fn send(
        &self,
        pool: &Arc<HttpPool>,
        make: impl Fn() -> Result<Request<Full<bytes::Bytes>>, RequestFailure>,
    ) -> Result<(Response<Incoming>, PooledConnection), RequestFailure> {
        let mut tried = 0;
        loop {
            let token = self.token().await?;
            let mut request = make()?;
            let header = token.clone().map(|token| (AUTHORIZATION, token));
            request.headers_mut().extend(header);
            let (response, pooled) = pool.send(request).await?;
            if tried == TOKEN_RETRIES || !self.is_refused(response.status(), response.headers()) {
                return Ok((response, pooled));
            }
            self.replace_refused_token(token.as_ref(), response.status(), response.headers())
                .await?;
            tried += 1;
        }
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
