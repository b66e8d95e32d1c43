//! Requests OAuth tokens and registers clients.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::assertion::Key;
use super::discovery::Server;
use super::fetch::Fetcher;
use crate::pins::unseen::line;

/// Seconds before its expiry at which a token is no longer used.
const EARLY: u64 = 30;

/// The `client_assertion_type` of a signed assertion.
const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// An OAuth client at an authorization server.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<String>,
    shows: Shows,
    /// Signing key. It is never stored.
    #[serde(skip)]
    key: Option<Arc<Key>>,
}

/// Credential that proves the identity of a client.
#[derive(Clone)]
pub(crate) enum Proof {
    Nothing,
    Secret(String),
    Key(Arc<Key>),
}

/// Token endpoint authentication method.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Shows {
    #[serde(rename = "none")]
    Nothing,
    #[serde(rename = "client_secret_basic")]
    Basic,
    #[serde(rename = "client_secret_post")]
    Post,
    #[serde(rename = "private_key_jwt")]
    Signed,
}

/// Response of the registration endpoint (RFC 7591).
#[derive(Deserialize)]
struct Registered {
    client_id: String,
    client_secret: Option<String>,
    token_endpoint_auth_method: Option<Shows>,
}

impl Client {
    /// Creates the client with the known id `id`.
    pub(crate) fn known(server: &Server, id: String, proof: &Proof) -> Self {
        let (secret, key) = match proof {
            Proof::Nothing => (None, None),
            Proof::Secret(secret) => (Some(secret.clone()), None),
            Proof::Key(key) => (None, Some(key.clone())),
        };
        let shows = if key.is_some() { Shows::Signed } else { Shows::to(server, secret.is_some()) };
        Self { id, secret, shows, key }
    }

    /// Returns true if the client must sign but has no key.
    pub(crate) fn lacks_its_key(&self) -> bool {
        self.shows == Shows::Signed && self.key.is_none()
    }

    /// Registers a client with `server` for the redirect URL `redirect` (RFC 7591).
    pub(crate) async fn register(
        fetcher: &Fetcher,
        server: &Server,
        redirect: &str,
        scopes: &[String],
    ) -> Result<Self, String> {
        let Some(at) = &server.registration_endpoint else {
            return Err(format!(
                "`{}` registers nobody who asks: register toolgate there, with the redirect URI \
                 `http://127.0.0.1/callback`, and say what it is known as in `oauth.client_id`",
                server.issuer
            ));
        };
        let listed = server.token_endpoint_auth_methods_supported.as_deref();
        let is_public = listed.is_none_or(|all| all.iter().any(|method| method == "none"));
        let shows = if is_public { Shows::Nothing } else { Shows::to(server, true) };
        let mut asked = json!({
            "client_name": "toolgate",
            "application_type": "native",
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": shows,
        });
        if !scopes.is_empty() {
            asked["scope"] = scopes.join(" ").into();
        }
        let said = fetcher.json(at, &asked).await?;
        if !said.status.is_success() {
            return Err(format!("`{at}` does not register us: {}", denied(&said.body)));
        }
        let registered: Registered = said.json().map_err(|why| format!("`{at}`: {why}"))?;
        let secret = registered.client_secret.filter(|secret| !secret.is_empty());
        let shows = registered.token_endpoint_auth_method.unwrap_or_else(|| match shows {
            Shows::Nothing if secret.is_some() => Shows::to(server, true),
            shows => shows,
        });
        let registered = Self { id: registered.client_id, secret, shows, key: None };
        if registered.lacks_its_key() {
            return Err(format!(
                "`{at}` registers us as a client that signs, with a key that nobody has: register \
                 toolgate there, and say `oauth.client_id` and `oauth.client_key`"
            ));
        }
        Ok(registered)
    }
}

impl Shows {
    fn to(server: &Server, has_secret: bool) -> Self {
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

/// OAuth tokens.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Tokens {
    pub(crate) access: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refresh: Option<String>,
    /// Expiry, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<u64>,
    /// Granted scopes, if the server named them.
    #[serde(default)]
    pub(crate) scopes: Vec<String>,
}

impl Tokens {
    /// Returns true if the access token stays valid for at least 30 seconds.
    pub(crate) fn is_good(&self) -> bool {
        self.until.is_none_or(|until| now() + EARLY < until)
    }

    /// Returns the remaining lifetime, if it is known.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.until.map(|until| Duration::from_secs(until.saturating_sub(now())))
    }

    /// Returns the `Authorization` header.
    pub(crate) fn header(&self) -> Result<HeaderValue, String> {
        let value = HeaderValue::try_from(format!("Bearer {}", self.access));
        let mut value = value.map_err(|_| "the token cannot be said in a header".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default()
}

/// A refused token request.
#[derive(Debug)]
pub(crate) struct Denied {
    /// True if the grant is no longer valid (`invalid_grant`).
    pub(crate) is_over: bool,
    pub(crate) why: String,
}

#[derive(Deserialize)]
struct Response {
    access_token: String,
    token_type: String,
    expires_in: Option<f64>,
    refresh_token: Option<String>,
    scope: Option<String>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
    error_description: Option<String>,
}

/// Requests tokens from `server` as `client` with the `fields` of a grant and the requested
/// `scopes`.
pub(crate) async fn ask(
    fetcher: &Fetcher,
    server: &Server,
    client: &Client,
    fields: &[(&str, &str)],
    scopes: &[String],
) -> Result<Tokens, Denied> {
    let mut fields = fields.to_vec();
    let scope = scopes.join(" ");
    if !scope.is_empty() {
        fields.push(("scope", &scope));
    }
    let mut authorization = None;
    let assertion;
    match (&client.secret, client.shows) {
        (_, Shows::Signed) => {
            let denied = |why| Denied { is_over: false, why };
            let key = client.key.as_ref();
            let key = key.ok_or_else(|| denied("`oauth.client_key` is gone".to_owned()))?;
            assertion = key.shows(&client.id, server, now()).map_err(denied)?;
            fields.extend([
                ("client_id", &*client.id),
                ("client_assertion_type", ASSERTION),
                ("client_assertion", &assertion),
            ]);
        }
        (Some(secret), Shows::Basic) => {
            let said = |text: &str| -> String {
                form_urlencoded::byte_serialize(text.as_bytes()).collect()
            };
            let both = STANDARD.encode(format!("{}:{}", said(&client.id), said(secret)));
            authorization = HeaderValue::try_from(format!("Basic {both}")).ok();
        }
        (Some(secret), Shows::Post) => {
            fields.extend([("client_id", &*client.id), ("client_secret", secret)]);
        }
        (_, Shows::Nothing) | (None, _) => fields.push(("client_id", &client.id)),
    }
    let said = fetcher.form(&server.token_endpoint, authorization, &fields).await;
    let said = said.map_err(|why| Denied { is_over: false, why })?;
    if !said.status.is_success() {
        let refusal: Result<Refusal, _> = said.json();
        let is_over = refusal.is_ok_and(|refusal| refusal.error == "invalid_grant");
        let why = format!("`{}` gives no token: {}", server.token_endpoint, denied(&said.body));
        return Err(Denied { is_over, why });
    }
    let odd = |why: String| Denied {
        is_over: false,
        why: format!("`{}` answers with no token: {why}", server.token_endpoint),
    };
    let response: Response = said.json().map_err(odd)?;
    if !response.token_type.eq_ignore_ascii_case("bearer") {
        return Err(odd(format!("its `token_type` is `{}`", response.token_type)));
    }
    let scopes = response.scope.map(|all| all.split_whitespace().map(str::to_owned).collect());
    Ok(Tokens {
        access: response.access_token,
        refresh: response.refresh_token,
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds")]
        until: response.expires_in.map(|seconds| now().saturating_add(seconds.max(0.0) as u64)),
        scopes: scopes.unwrap_or_default(),
    })
}

/// Returns the error in an authorization server's answer, safe for terminals.
fn denied(body: &[u8]) -> String {
    line(&match serde_json::from_slice(body) {
        Ok(Refusal { error, error_description: Some(more) }) => format!("{error}: {more}"),
        Ok(Refusal { error, error_description: None }) => error,
        Err(_) => {
            let text = String::from_utf8_lossy(&body[..body.len().min(200)]);
            match text.trim() {
                "" => "it does not say why".to_owned(),
                text => text.to_owned(),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(methods: Option<&[&str]>) -> Server {
        let methods = methods.map(|all| all.iter().map(|it| (*it).to_owned()).collect());
        Server { token_endpoint_auth_methods_supported: methods, ..Server::default() }
    }

    #[test]
    fn a_client_shows_who_it_is_as_the_server_wants_it() {
        let shows = |methods, secret: bool| {
            let proof = if secret { Proof::Secret("b".to_owned()) } else { Proof::Nothing };
            let client = Client::known(&server(methods), "a".into(), &proof);
            serde_json::to_value(client).expect("JSON")["shows"].clone()
        };
        assert_eq!(shows(None, true), "client_secret_basic");
        assert_eq!(shows(Some(&["client_secret_post"]), true), "client_secret_post");
        assert_eq!(
            shows(Some(&["client_secret_post", "client_secret_basic"]), true),
            "client_secret_basic"
        );
        assert_eq!(shows(None, false), "none");
    }

    #[test]
    fn a_refusal_is_told_as_it_is_said() {
        assert_eq!(denied(br#"{"error":"a","error_description":"b"}"#), "a: b");
        assert_eq!(denied(b"<html>"), "<html>");
        assert_eq!(denied(b" "), "it does not say why");
        let acts = br#"{"error":"a","error_description":"\u001b]0;b\u0007\u202e"}"#;
        assert_eq!(denied(acts), "a: \\u{1b}]0;b\\u{7}\\u{202e}");
    }
}
