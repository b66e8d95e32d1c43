//! Requests OAuth tokens and registers clients.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::json;
use toolgate_contract::strip_byte_order_mark_bytes;

use super::assertion::AssertionSigningKey;
use super::discovery::AuthorizationServerMetadata;
use super::fetch::OAuthRequestClient;
use toolgate_contract::printable::escape_hidden;

/// Time before the expiry of a token from which the token is no longer used, in seconds.
const EXPIRY_MARGIN_SECS: u64 = 30;

/// The `client_assertion_type` of a signed assertion.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// An OAuth client as an authorization server knows it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct OAuthClient {
    pub(crate) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<String>,
    shows: OAuthClientAuthMethod,
    /// Signing key of the client. The key is never stored.
    #[serde(skip)]
    key: Option<Arc<AssertionSigningKey>>,
}

/// Credential that proves the identity of a client.
#[derive(Clone)]
pub(crate) enum OAuthClientCredential {
    Nothing,
    Secret(String),
    Key(Arc<AssertionSigningKey>),
}

/// Method by which a client authenticates at the token endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum OAuthClientAuthMethod {
    #[serde(rename = "none")]
    Nothing,
    #[serde(rename = "client_secret_basic")]
    Basic,
    #[serde(rename = "client_secret_post")]
    Post,
    #[serde(rename = "private_key_jwt")]
    Signed,
}

/// Response of the authorization server's registration endpoint (RFC 7591).
#[derive(Deserialize)]
struct ClientRegistrationResponse {
    client_id: String,
    client_secret: Option<String>,
    token_endpoint_auth_method: Option<OAuthClientAuthMethod>,
}

impl OAuthClient {
    /// Creates the OAuth client with the id `id`, which `server` already knows. The client
    /// authenticates with the credential `proof`.
    pub(crate) fn with_id(
        server: &AuthorizationServerMetadata,
        id: String,
        proof: &OAuthClientCredential,
    ) -> Self {
        let (secret, key) = match proof {
            OAuthClientCredential::Nothing => (None, None),
            OAuthClientCredential::Secret(secret) => (Some(secret.clone()), None),
            OAuthClientCredential::Key(key) => (None, Some(key.clone())),
        };
        let shows = if key.is_some() {
            OAuthClientAuthMethod::Signed
        } else {
            OAuthClientAuthMethod::for_server(server, secret.is_some())
        };
        Self { id, secret, shows, key }
    }

    /// Returns true if the client must sign assertions but has no signing key.
    pub(crate) fn lacks_its_key(&self) -> bool {
        self.shows == OAuthClientAuthMethod::Signed && self.key.is_none()
    }

    /// Registers a client with `server` for the redirect URL `redirect` (RFC 7591).
    pub(crate) async fn register(
        fetcher: &OAuthRequestClient,
        server: &AuthorizationServerMetadata,
        redirect: &str,
        scopes: &[String],
    ) -> Result<Self, String> {
        let Some(endpoint) = &server.registration_endpoint else {
            return Err(format!(
                "`{}` has no client registration: register toolgate there by hand, with the \
                 redirect URI `http://127.0.0.1/callback`, and set its client id in \
                 `oauth.client_id`",
                server.issuer
            ));
        };
        let listed = server.token_endpoint_auth_methods_supported.as_deref();
        let is_public = listed.is_none_or(|all| all.iter().any(|method| method == "none"));
        let shows = if is_public {
            OAuthClientAuthMethod::Nothing
        } else {
            OAuthClientAuthMethod::for_server(server, true)
        };
        let mut request = json!({
            "client_name": "toolgate",
            "application_type": "native",
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": shows,
        });
        if !scopes.is_empty() {
            request["scope"] = scopes.join(" ").into();
        }
        let response = fetcher.post_json(endpoint, &request).await?;
        if !response.status.is_success() {
            return Err(format!(
                "`{endpoint}` did not register toolgate: {}",
                error_in_body(&response.body)
            ));
        }
        let registered: ClientRegistrationResponse =
            response.json().map_err(|why| format!("`{endpoint}`: {why}"))?;
        let secret = registered.client_secret.filter(|secret| !secret.is_empty());
        let shows = registered.token_endpoint_auth_method.unwrap_or_else(|| match shows {
            OAuthClientAuthMethod::Nothing if secret.is_some() => {
                OAuthClientAuthMethod::for_server(server, true)
            }
            shows => shows,
        });
        let registered = Self { id: registered.client_id, secret, shows, key: None };
        if registered.lacks_its_key() {
            return Err(format!(
                "`{endpoint}` registered a client that needs a signing key: register toolgate \
                 there by hand, and set `oauth.client_id` and `oauth.client_key`"
            ));
        }
        Ok(registered)
    }
}

impl OAuthClientAuthMethod {
    fn for_server(server: &AuthorizationServerMetadata, has_secret: bool) -> Self {
        let listed = server.token_endpoint_auth_methods_supported.as_deref();
        let has = |method: &str| listed.is_none_or(|all| all.iter().any(|it| it == method));
        match has_secret {
            false => Self::Nothing,
            // `client_secret_basic` is the default of RFC 8414.
            true if has("client_secret_basic") || !has("client_secret_post") => Self::Basic,
            true => Self::Post,
        }
    }
}

/// Access token and refresh token from an authorization server.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct OAuthTokens {
    pub(crate) access: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refresh: Option<String>,
    /// Expiry of the access token, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<u64>,
    /// Granted scopes, if the server named them.
    #[serde(default)]
    pub(crate) scopes: Vec<String>,
}

impl OAuthTokens {
    /// Returns true if the access token stays valid for at least 30 seconds.
    pub(crate) fn is_valid(&self) -> bool {
        self.until.is_none_or(|until| now() + EXPIRY_MARGIN_SECS < until)
    }

    /// Returns the remaining lifetime of the access token, if it is known.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.until.map(|until| Duration::from_secs(until.saturating_sub(now())))
    }

    /// Returns the `Authorization` header with the access token.
    pub(crate) fn header(&self) -> Result<HeaderValue, String> {
        let value = HeaderValue::try_from(format!("Bearer {}", self.access));
        let mut value = value.map_err(|_| "the token cannot be sent in a header".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default()
}

/// A token request that the authorization server refused.
#[derive(Debug)]
pub(crate) struct TokenRequestDenied {
    /// True if the refresh token or code is no longer valid (`invalid_grant`).
    pub(crate) is_grant_invalid: bool,
    pub(crate) reason: String,
}

/// Response of a token endpoint with tokens.
#[derive(Deserialize)]
struct OAuthTokenResponse {
    access_token: String,
    token_type: String,
    expires_in: Option<f64>,
    refresh_token: Option<String>,
    scope: Option<String>,
}

/// Error response of a token endpoint.
#[derive(Deserialize)]
struct OAuthErrorBody {
    error: String,
    error_description: Option<String>,
}

/// Requests tokens from `server` as `client` with the `fields` of a grant and the requested
/// `scopes`. Fails if the server refuses the request or cannot be reached.
pub(crate) async fn request_tokens(
    fetcher: &OAuthRequestClient,
    server: &AuthorizationServerMetadata,
    client: &OAuthClient,
    fields: &[(&str, &str)],
    scopes: &[String],
) -> Result<OAuthTokens, TokenRequestDenied> {
    let mut fields = fields.to_vec();
    let scope = scopes.join(" ");
    if !scope.is_empty() {
        fields.push(("scope", &scope));
    }
    let mut authorization = None;
    let assertion;
    match (&client.secret, client.shows) {
        (_, OAuthClientAuthMethod::Signed) => {
            let denied = |why| TokenRequestDenied { is_grant_invalid: false, reason: why };
            let key = client.key.as_ref();
            let key = key.ok_or_else(|| denied("`oauth.client_key` is missing".to_owned()))?;
            assertion = key.sign_assertion(&client.id, server, now()).map_err(denied)?;
            fields.extend([
                ("client_id", &*client.id),
                ("client_assertion_type", ASSERTION_TYPE),
                ("client_assertion", &assertion),
            ]);
        }
        (Some(secret), OAuthClientAuthMethod::Basic) => {
            let encode = |text: &str| -> String {
                form_urlencoded::byte_serialize(text.as_bytes()).collect()
            };
            let both = STANDARD.encode(format!("{}:{}", encode(&client.id), encode(secret)));
            authorization = HeaderValue::try_from(format!("Basic {both}")).ok();
        }
        (Some(secret), OAuthClientAuthMethod::Post) => {
            fields.extend([("client_id", &*client.id), ("client_secret", secret)]);
        }
        (_, OAuthClientAuthMethod::Nothing) | (None, _) => fields.push(("client_id", &client.id)),
    }
    let response = fetcher.post_form(&server.token_endpoint, authorization, &fields).await;
    let response =
        response.map_err(|why| TokenRequestDenied { is_grant_invalid: false, reason: why })?;
    if !response.status.is_success() {
        let refusal: Result<OAuthErrorBody, _> = response.json();
        let is_grant_invalid = refusal.is_ok_and(|refusal| refusal.error == "invalid_grant");
        let why = format!(
            "`{}` issued no token: {}",
            server.token_endpoint,
            error_in_body(&response.body)
        );
        return Err(TokenRequestDenied { is_grant_invalid, reason: why });
    }
    let invalid = |why: String| TokenRequestDenied {
        is_grant_invalid: false,
        reason: format!("`{}` answered without a valid token: {why}", server.token_endpoint),
    };
    let response: OAuthTokenResponse = response.json().map_err(invalid)?;
    if !response.token_type.eq_ignore_ascii_case("bearer") {
        return Err(invalid(format!("the `token_type` is `{}`", response.token_type)));
    }
    let scopes = response.scope.map(|all| all.split_whitespace().map(str::to_owned).collect());
    Ok(OAuthTokens {
        access: response.access_token,
        refresh: response.refresh_token,
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds")]
        until: response.expires_in.map(|seconds| now().saturating_add(seconds.max(0.0) as u64)),
        scopes: scopes.unwrap_or_default(),
    })
}

/// Returns the error in an authorization server's answer, escaped for terminals.
fn error_in_body(body: &[u8]) -> String {
    escape_hidden(&match serde_json::from_slice(strip_byte_order_mark_bytes(body)) {
        Ok(OAuthErrorBody { error, error_description: Some(more) }) => format!("{error}: {more}"),
        Ok(OAuthErrorBody { error, error_description: None }) => error,
        Err(_) => {
            let text = String::from_utf8_lossy(&body[..body.len().min(200)]);
            match text.trim() {
                "" => "it gave no reason".to_owned(),
                text => text.to_owned(),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(methods: Option<&[&str]>) -> AuthorizationServerMetadata {
        let methods = methods.map(|all| all.iter().map(|it| (*it).to_owned()).collect());
        AuthorizationServerMetadata {
            token_endpoint_auth_methods_supported: methods,
            ..AuthorizationServerMetadata::default()
        }
    }

    #[test]
    fn a_client_authenticates_by_a_method_that_the_server_supports() {
        let method = |methods, secret: bool| {
            let proof = if secret {
                OAuthClientCredential::Secret("b".to_owned())
            } else {
                OAuthClientCredential::Nothing
            };
            let client = OAuthClient::with_id(&server(methods), "a".into(), &proof);
            serde_json::to_value(client).expect("JSON")["shows"].clone()
        };
        assert_eq!(method(None, true), "client_secret_basic");
        assert_eq!(method(Some(&["client_secret_post"]), true), "client_secret_post");
        assert_eq!(
            method(Some(&["client_secret_post", "client_secret_basic"]), true),
            "client_secret_basic"
        );
        assert_eq!(method(None, false), "none");
    }

    #[test]
    fn a_refusal_is_reported_without_control_characters() {
        assert_eq!(error_in_body(br#"{"error":"a","error_description":"b"}"#), "a: b");
        assert_eq!(error_in_body(b"<html>"), "<html>");
        assert_eq!(error_in_body(b" "), "it gave no reason");
        let unsafe_text = br#"{"error":"a","error_description":"\u001b]0;b\u0007\u202e"}"#;
        assert_eq!(error_in_body(unsafe_text), "a: \\u{1b}]0;b\\u{7}\\u{202e}");
    }
}
