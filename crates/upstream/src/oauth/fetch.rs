//! Sends requests to authorization servers, and limits the addresses to which requests may go.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use toolgate_contract::strip_byte_order_mark_bytes;
use toolgate_dialects::mcp::upstream::{McpRevision, SessionModel, discover_params};
use toolgate_net::HttpClient;
use toolgate_net::addresses::is_own_host;

use super::challenge::challenges;
use crate::address::parse_url;
use crate::message;
use crate::settings::UpstreamTransport;
use crate::world::{NetworkAddress, UpstreamSystemAccess};

/// Timeout of one request to an authorization server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of an authorization server's answer, in bytes.
const BYTES_MAX: usize = 256 << 10;

/// HTTP client for requests to authorization servers. It follows no redirects.
pub(crate) struct OAuthRequestClient {
    client: HttpClient,
    /// True if the upstream is on this machine. Only then may its authorization server be on this
    /// machine, too.
    is_upstream_local: bool,
}

/// An HTTP response of an authorization server.
pub(crate) struct OAuthServerResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl OAuthServerResponse {
    /// Parses the body of the response as JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(strip_byte_order_mark_bytes(&self.body))
            .map_err(|err| err.to_string())
    }
}

impl OAuthRequestClient {
    /// Creates an HTTP client for authorization at the upstream at `url`, with the authorization
    /// server `issuer` if that is set.
    ///
    /// # Errors
    ///
    /// Returns an error if a URL is invalid.
    pub(crate) fn new(
        world: Arc<dyn UpstreamSystemAccess>,
        url: &str,
        issuer: Option<&str>,
        private_network: bool,
    ) -> Result<Self, String> {
        let host = |url| Ok::<_, String>(parse_url(url)?.host().to_owned());
        // The hosts that the settings name.
        let mut hosts = vec![host(url)?];
        let is_upstream_local = is_own_host(&hosts[0]);
        hosts.extend(issuer.map(host).transpose()?);
        let client = HttpClient::new(0, move |url| {
            let world = world.clone();
            let mut address = NetworkAddress::from_url(&url, private_network);
            // A host that the settings do not name must not resolve to this machine.
            address.may_be_local &= is_upstream_local || hosts.contains(&address.host);
            Box::pin(async move { world.dial(&address).await })
        });
        Ok(Self { client, is_upstream_local })
    }

    /// Checks that secrets may be sent to `url`.
    ///
    /// Refuses unencrypted URLs of other machines. Refuses URLs of this machine if the upstream is
    /// on another machine.
    pub(crate) fn check(&self, url: &str) -> Result<(), String> {
        let parsed = parse_url(url)?;
        match (is_own_host(parsed.host()), parsed.is_secure()) {
            (true, _) if !self.is_upstream_local => {
                Err(format!("`{url}` is on this machine, but the upstream is not"))
            }
            (false, false) => {
                Err(format!("`{url}` is not encrypted; it must start with `https://`"))
            }
            (true, _) | (false, true) => Ok(()),
        }
    }

    /// Sends a GET request to `url`, a URL of an authorization server.
    pub(crate) async fn get(&self, url: &str) -> Result<OAuthServerResponse, String> {
        self.send(Method::GET, url, "", None, Bytes::new()).await
    }

    /// Sends a form with `fields` to `url` by POST.
    pub(crate) async fn post_form(
        &self,
        url: &str,
        authorization: Option<HeaderValue>,
        fields: &[(&str, &str)],
    ) -> Result<OAuthServerResponse, String> {
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let kind = "application/x-www-form-urlencoded";
        self.send(Method::POST, url, kind, authorization, form.into()).await
    }

    /// Sends `value` as JSON to `url` by POST.
    pub(crate) async fn post_json(
        &self,
        url: &str,
        value: &serde_json::Value,
    ) -> Result<OAuthServerResponse, String> {
        let body = value.to_string().into();
        self.send(Method::POST, url, "application/json", None, body).await
    }

    /// Sends a request without a token to the upstream at `url`. Returns the status and the
    /// `WWW-Authenticate` challenge.
    pub(crate) async fn probe(
        &self,
        url: &str,
        transport: UpstreamTransport,
    ) -> Result<(u16, Option<String>), String> {
        let (method, body) = match transport {
            UpstreamTransport::Http => {
                let newest = McpRevision::newest(SessionModel::Stateless);
                (
                    Method::POST,
                    message::encode_message(Some(1), "server/discover", &discover_params(newest)),
                )
            }
            UpstreamTransport::Sse | UpstreamTransport::WebSocket => (Method::GET, Bytes::new()),
        };
        let probed = async {
            let response = self.send_request(method, url, "application/json", None, body).await?;
            Ok((response.status().as_u16(), challenges(response.headers())))
        };
        let late = |_| Err(format!("it did not answer within {} s", REQUEST_TIMEOUT.as_secs()));
        let probed = tokio::time::timeout(REQUEST_TIMEOUT, probed).await.unwrap_or_else(late);
        probed.map_err(|why| format!("`{url}`: {why}"))
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        kind: &'static str,
        authorization: Option<HeaderValue>,
        body: Bytes,
    ) -> Result<OAuthServerResponse, String> {
        self.check(url)?;
        let exchange = async {
            let response = self.send_request(method, url, kind, authorization, body).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), BYTES_MAX).collect().await;
            let body = body.map_err(|err| err.to_string())?.to_bytes();
            if status.is_redirection() {
                return Err(format!("it redirects ({status}), and redirects are not followed"));
            }
            Ok(OAuthServerResponse { status, body })
        };
        let late = |_| Err(format!("it did not answer within {} s", REQUEST_TIMEOUT.as_secs()));
        let response = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or_else(late);
        response.map_err(|why| format!("`{url}`: {why}"))
    }

    async fn send_request(
        &self,
        method: Method,
        url: &str,
        kind: &'static str,
        authorization: Option<HeaderValue>,
        body: Bytes,
    ) -> Result<Response<Incoming>, String> {
        let fixed = HeaderValue::from_static;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = parse_url(url)?.uri().clone();
        let headers = request.headers_mut();
        headers.insert(ACCEPT, fixed("application/json, text/event-stream;q=0.5"));
        if !kind.is_empty() {
            headers.insert(CONTENT_TYPE, fixed(kind));
        }
        headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
        self.client.send(request).await.map_err(|failure| failure.to_string())
    }
}

#[cfg(test)]
mod tests {
    use toolgate_contract::{BoxFuture, KeepActiveGuard};
    use toolgate_net::ByteStream;

    use super::*;
    use crate::world::{RunningUpstreamProgram, UpstreamProgramStart};

    /// Network in which every connection fails. The error message tells whether the caller allowed
    /// local addresses.
    struct UnreachableTestNetwork;

    impl UpstreamSystemAccess for UnreachableTestNetwork {
        fn start<'a>(
            &'a self,
            _: &'a UpstreamProgramStart,
        ) -> BoxFuture<'a, Result<RunningUpstreamProgram, String>> {
            Box::pin(async { Err("nothing".to_owned()) })
        }

        fn dial<'a>(
            &'a self,
            place: &'a NetworkAddress,
        ) -> BoxFuture<'a, Result<Box<dyn ByteStream>, String>> {
            Box::pin(async { Err(format!("may be local: {}", place.may_be_local)) })
        }

        fn variable(&self, _: &str) -> Option<String> {
            None
        }

        fn secret(&self, _: &str) -> Option<String> {
            None
        }

        fn keep_secret(&self, _: &str, _: Option<&str>) -> Result<(), String> {
            Ok(())
        }

        fn hold_secret<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<KeepActiveGuard, String>> {
            Box::pin(async { Ok(KeepActiveGuard::none()) })
        }

        fn front_matter(
            &self,
            _: &str,
        ) -> Result<serde_json::Map<String, serde_json::Value>, String> {
            Ok(serde_json::Map::new())
        }
    }

    #[tokio::test]
    async fn only_configured_hosts_may_resolve_to_this_machine() {
        for (upstream, url, may_be_local) in [
            ("https://a.example/mcp", "https://b.example/token", false),
            ("https://a.example/mcp", "https://a.example/token", true),
            ("https://a.example/mcp", "https://c.example/token", true),
            ("http://127.0.0.1:1/mcp", "https://b.example/token", true),
        ] {
            let fetcher = OAuthRequestClient::new(
                Arc::new(UnreachableTestNetwork),
                upstream,
                Some("https://c.example"),
                true,
            )
            .expect("a URL");
            let why = fetcher.get(url).await.map(drop).expect_err("no connection");
            assert!(why.ends_with(&format!("may be local: {may_be_local}")), "{why}");
        }
    }

    #[test]
    fn urls_of_a_remote_upstream_must_be_encrypted_and_not_local() {
        let fetcher = |url| {
            OAuthRequestClient::new(Arc::new(UnreachableTestNetwork), url, None, true)
                .expect("a URL")
        };
        let remote = fetcher("https://a.example/mcp");
        let local = fetcher("http://127.0.0.1:1/mcp");
        assert!(remote.check("https://b.example/token").is_ok());
        for refused in [
            "http://b.example/token",
            "http://127.0.0.1/token",
            "https://localhost/token",
            "https://[::1]/token",
            "https://x.localhost/token",
            "https://0.0.0.0/token",
            "https://[::]/token",
            "https://[::ffff:127.0.0.1]/token",
            "https://[::ffff:0.0.0.0]/token",
            "ftp://b.example",
        ] {
            assert!(remote.check(refused).is_err(), "{refused}");
        }
        assert!(local.check("http://127.0.0.1:2/token").is_ok());
        assert!(local.check("http://[::ffff:127.0.0.1]:2/token").is_ok());
        assert!(local.check("http://b.example/token").is_err());
    }
}
