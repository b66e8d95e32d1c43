//! OAuth challenge for clients without a valid token: the authorization server and the scopes to
//! request (RFC 6750, RFC 9728).

use http::Method;
use serde::Serialize;
use toolgate_contract::{FrameMetadata, Reply};

use crate::config::Config;

/// Path prefix of the OAuth protected resource metadata. The path of the protected endpoint may
/// follow the prefix.
const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";
/// Path of the endpoint that the OAuth metadata describes.
const ENDPOINT_PATH: &str = "/mcp";
/// Value of the `Cache-Control` header of the OAuth metadata: caches may keep the metadata for 5
/// minutes.
const METADATA_CACHE_CONTROL: &str = "public, max-age=300";

/// Data of the OAuth challenge and of the protected resource metadata.
pub(super) struct TokenChallenge {
    issuers: Vec<String>,
    scopes: Vec<String>,
    /// Scope that the server asks a client without a token to request: the first scope in the
    /// settings.
    first_scope: String,
    /// Public URL of the protected endpoint, if it differs from the URL of requests.
    url: Option<String>,
    scheme: &'static str,
}

/// Protected resource metadata (RFC 9728).
#[derive(Serialize)]
struct ProtectedResourceMetadata<'a> {
    resource: &'a str,
    authorization_servers: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    scopes_supported: &'a [String],
    bearer_methods_supported: [&'static str; 1],
    resource_name: &'static str,
}

impl TokenChallenge {
    /// Builds the OAuth challenge from `config`. Returns `None` if no authorization server is
    /// configured.
    pub(super) fn from_config(config: &Config) -> Option<Self> {
        if config.oauth.is_empty() {
            return None;
        }
        let scopes: Vec<_> = config.scopes.iter().map(|scope| scope.name.clone()).collect();
        Some(Self {
            issuers: config.oauth.iter().map(|issuer| issuer.issuer.clone()).collect(),
            first_scope: scopes.first().cloned().unwrap_or_default(),
            scopes,
            url: config.server.url.clone(),
            scheme: if config.server.tls_certificate.is_some() { "https" } else { "http" },
        })
    }

    /// Returns true if `path` is a path of the OAuth metadata.
    pub(super) fn serves_path(&self, path: &str) -> bool {
        path.strip_prefix(METADATA_PATH).is_some_and(|suffix| {
            suffix.is_empty()
                || suffix == ENDPOINT_PATH
                || self.url.as_deref().map(path_of) == Some(suffix)
        })
    }

    /// Returns the OAuth metadata document, or 405 for methods other than GET and HEAD.
    pub(super) fn metadata_reply(&self, head: &FrameMetadata) -> Reply {
        let is_read =
            matches!(head, FrameMetadata::Http { method: Method::GET | Method::HEAD, .. });
        if !is_read {
            return Reply::empty(405).with_header("allow", "GET, HEAD");
        }
        let metadata = ProtectedResourceMetadata {
            resource: &self.resource_url(head),
            authorization_servers: &self.issuers,
            scopes_supported: &self.scopes,
            bearer_methods_supported: ["header"],
            resource_name: "toolgate",
        };
        let json = serde_json::to_vec(&metadata).unwrap_or_default();
        Reply::json(json).with_header("cache-control", METADATA_CACHE_CONTROL)
    }

    /// Adds the URL of the OAuth metadata to the `WWW-Authenticate` header of a `reply` that
    /// demands a token. Returns any other reply unchanged.
    pub(super) fn add_challenge(&self, mut reply: Reply, head: &FrameMetadata) -> Reply {
        if !matches!(reply.status, 400 | 401 | 403) {
            return reply;
        }
        let at = reply.headers.iter().position(|(name, _)| *name == "www-authenticate");
        let mut challenge = match (at, reply.status) {
            (Some(at), _) => reply.headers.remove(at).1,
            (None, 401) => "Bearer".to_owned(),
            // No challenge: the request was refused for another reason.
            (None, _) => return reply,
        };
        let mut add = |name: &str, value: &str| {
            let between = if challenge.contains('=') { "," } else { "" };
            challenge = format!("{challenge}{between} {name}=\"{value}\"");
        };
        if reply.status == 401 && !self.first_scope.is_empty() {
            add("scope", &self.first_scope);
        }
        add("resource_metadata", &self.metadata_url(head));
        reply.with_header("www-authenticate", challenge)
    }

    /// Returns the URL at which clients reach the endpoint that needs a token.
    fn resource_url(&self, head: &FrameMetadata) -> String {
        match &self.url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("{}{ENDPOINT_PATH}", self.request_origin(head)),
        }
    }

    /// Returns the URL at which clients reach the OAuth metadata.
    fn metadata_url(&self, head: &FrameMetadata) -> String {
        match &self.url {
            Some(url) => {
                let path = path_of(url);
                let origin = url.trim_end_matches('/').strip_suffix(path).unwrap_or(url);
                format!("{origin}{METADATA_PATH}{path}")
            }
            None => format!("{}{METADATA_PATH}{ENDPOINT_PATH}", self.request_origin(head)),
        }
    }

    /// Returns the origin (scheme and host) of the request `head`. The server has already checked
    /// the `Host` header.
    fn request_origin(&self, head: &FrameMetadata) -> String {
        let host = head.header("host").next().and_then(|host| std::str::from_utf8(host).ok());
        format!("{}://{}", self.scheme, host.unwrap_or("localhost"))
    }
}

/// Returns the path of `url` without a trailing slash.
fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    rest.find('/').map_or("", |at| &rest[at..]).trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use toolgate_contract::ReplyBody;

    use super::*;
    use crate::config::oauth::{OAuthIssuerEntry, OAuthScopeEntry};

    fn challenge(url: Option<&str>, scopes: &[&str]) -> TokenChallenge {
        let issuer: OAuthIssuerEntry = toml::from_str("issuer = \"https://id.example\"").unwrap();
        let scopes = scopes
            .iter()
            .map(|name| toml::from_str::<OAuthScopeEntry>(&format!("name = \"{name}\"")).unwrap());
        let mut config =
            Config { oauth: vec![issuer], scopes: scopes.collect(), ..Config::default() };
        config.server.url = url.map(str::to_owned);
        TokenChallenge::from_config(&config).unwrap()
    }

    fn head() -> FrameMetadata {
        let mut headers = HeaderMap::new();
        headers.insert("host", http::HeaderValue::from_static("localhost:8000"));
        FrameMetadata::Http {
            method: Method::GET,
            path: METADATA_PATH.into(),
            query: String::new(),
            headers,
        }
    }

    /// Adds the challenge to a reply that has `status` and the `WWW-Authenticate` header `before`.
    /// Returns the new value of this header.
    fn header(challenge: &TokenChallenge, status: u16, before: Option<&str>) -> Option<String> {
        let reply = Reply::empty(status);
        let reply = match before {
            Some(before) => reply.with_header("www-authenticate", before),
            None => reply,
        };
        let headers = challenge.add_challenge(reply, &head()).headers;
        assert!(headers.len() <= 1, "{headers:?}");
        headers.into_iter().next().map(|(_, value)| value)
    }

    #[test]
    fn a_challenge_names_the_metadata_and_the_scopes_to_request() {
        let here =
            "resource_metadata=\"http://localhost:8000/.well-known/oauth-protected-resource/mcp\"";
        let plain = challenge(None, &[]);
        for (status, before, after) in [
            (401, Some("Bearer"), Some(format!("Bearer {here}"))),
            (401, None, Some(format!("Bearer {here}"))),
            (
                401,
                Some("Bearer error=\"invalid_token\""),
                Some(format!("Bearer error=\"invalid_token\", {here}")),
            ),
            (403, None, None),
            (200, None, None),
            (429, None, None),
        ] {
            assert_eq!(header(&plain, status, before), after);
        }
        let scoped = challenge(Some("https://a.example/x/mcp/"), &["r", "w"]);
        let there =
            "resource_metadata=\"https://a.example/.well-known/oauth-protected-resource/x/mcp\"";
        let initial = header(&scoped, 401, Some("Bearer")).unwrap();
        assert_eq!(initial, format!("Bearer scope=\"r\", {there}"));
        let narrow = header(&scoped, 403, Some("Bearer error=\"insufficient_scope\", scope=\"w\""));
        let expected = format!("Bearer error=\"insufficient_scope\", scope=\"w\", {there}");
        assert_eq!(narrow, Some(expected));
    }

    #[test]
    fn the_metadata_is_served_at_the_root_and_at_the_endpoints_path() {
        let proxied = challenge(Some("https://a.example/x/mcp"), &[]);
        for (path, is_served) in [("", true), ("/mcp", true), ("/x/mcp", true), ("/y", false)] {
            let path = format!("{METADATA_PATH}{path}");
            assert_eq!(proxied.serves_path(&path), is_served, "{path}");
        }
        assert!(
            !proxied.serves_path("/mcp")
                && !challenge(None, &[]).serves_path(&format!("{METADATA_PATH}/x/mcp"))
        );
        let reply = challenge(None, &["r"]).metadata_reply(&head());
        let ReplyBody::Json(json) = reply.body else { panic!("{reply:?}") };
        let metadata: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(metadata["resource"], "http://localhost:8000/mcp");
        assert_eq!(metadata["authorization_servers"], serde_json::json!(["https://id.example"]));
        assert_eq!(metadata["scopes_supported"], serde_json::json!(["r"]));
    }
}
