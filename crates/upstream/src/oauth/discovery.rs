//! Discovers the authorization server of an upstream (RFC 9728), and its metadata (RFC 8414 and
//! OpenID Connect Discovery).

use serde::{Deserialize, Serialize};
use toolgate_net::HttpUrl;

use super::challenge::BearerChallenge;
use super::fetch::OAuthRequestClient;
use super::steps::AuthorizationStepReporter;
use crate::address::parse_url;
use crate::settings::{OAuthGrant, OAuthSettings};

/// Protected resource metadata of an upstream (RFC 9728).
#[derive(Debug, Deserialize)]
struct UpstreamResourceMetadata {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

/// Metadata of an OAuth authorization server (RFC 8414).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuthorizationServerMetadata {
    pub(crate) issuer: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) authorization_endpoint: Option<String>,
    #[serde(default)]
    pub(crate) token_endpoint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) registration_endpoint: Option<String>,
    #[serde(default)]
    pub(crate) scopes_supported: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) code_challenge_methods_supported: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token_endpoint_auth_signing_alg_values_supported: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) client_id_metadata_document_supported: bool,
    #[serde(default)]
    pub(crate) authorization_response_iss_parameter_supported: bool,
}

/// The authorization server of an upstream, with the scopes to request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiscoveredAuthorizationServer {
    /// Resource identifier of the upstream, for which tokens are requested.
    pub(crate) resource: String,
    /// Scopes that a token needs, according to the upstream or the settings.
    pub(crate) scopes: Vec<String>,
    pub(crate) server: AuthorizationServerMetadata,
}

/// Discovers the authorization server of the upstream at `url`, which answered with `challenge`.
///
/// # Errors
///
/// Returns the reason if a document is missing or invalid.
pub(crate) async fn discover(
    fetcher: &OAuthRequestClient,
    url: &str,
    challenge: &BearerChallenge,
    settings: &OAuthSettings,
    steps: &mut AuthorizationStepReporter<'_>,
) -> Result<DiscoveredAuthorizationServer, String> {
    let described = fetch_resource_metadata(fetcher, url, challenge, steps).await?;
    let scopes = |supported: Vec<String>| match () {
        () if !settings.scopes.is_empty() => settings.scopes.clone(),
        () if !challenge.scopes.is_empty() => challenge.scopes.clone(),
        () => supported,
    };
    let Some(UpstreamResourceMetadata { resource, authorization_servers, scopes_supported }) =
        described
    else {
        // Before 2025-06-18 an MCP server was its own authorization server.
        let origin = parse_url(url)?.origin();
        let issuer = settings.issuer.clone().unwrap_or_else(|| origin.clone());
        let server = match fetch_server_metadata(fetcher, &issuer, steps).await? {
            Some(server) => server,
            None if settings.issuer.is_some() => return Err(no_metadata(&issuer)),
            None => {
                let note = "there is no metadata; toolgate uses /authorize and /token, the \
                     defaults of MCP 2025-03-26";
                steps.report("authorization server", &Ok(note.to_owned()));
                default_endpoints(&origin)
            }
        };
        return Ok(DiscoveredAuthorizationServer {
            resource: url.to_owned(),
            scopes: scopes(Vec::new()),
            server,
        });
    };
    let issuer = match &settings.issuer {
        None => authorization_servers.first().ok_or("the upstream names no authorization server"),
        Some(wanted) => authorization_servers
            .iter()
            .find(|it| is_same_issuer(it, wanted))
            .ok_or("the upstream does not name the authorization server in `oauth.issuer`"),
    };
    let issuer = issuer.map_err(|why| format!("{why}; it names {authorization_servers:?}"))?;
    let found =
        fetch_server_metadata(fetcher, issuer, steps).await?.ok_or_else(|| no_metadata(issuer))?;
    Ok(DiscoveredAuthorizationServer { resource, scopes: scopes(scopes_supported), server: found })
}

fn no_metadata(issuer: &str) -> String {
    format!("`{issuer}` publishes no metadata, neither by RFC 8414 nor by OpenID Connect")
}

/// Returns the protected resource metadata of the upstream at `url`, if the upstream publishes any.
async fn fetch_resource_metadata(
    fetcher: &OAuthRequestClient,
    url: &str,
    challenge: &BearerChallenge,
    steps: &mut AuthorizationStepReporter<'_>,
) -> Result<Option<UpstreamResourceMetadata>, String> {
    let places = match &challenge.resource_metadata {
        Some(named) => vec![named.clone()],
        None => well_known(url, "oauth-protected-resource")?,
    };
    for place in places {
        let read = async {
            let response = fetcher.get(&place).await?;
            if !response.status.is_success() && challenge.resource_metadata.is_none() {
                return Ok(None);
            }
            if !response.status.is_success() {
                return Err(format!("`{place}` answered {}", response.status));
            }
            let read: UpstreamResourceMetadata =
                response.json().map_err(|why| format!("`{place}`: {why}"))?;
            if !covers(&read.resource, url) {
                return Err(format!("`{place}` describes `{}` instead of `{url}`", read.resource));
            }
            Ok(Some(read))
        };
        let read = read.await;
        let outcome = match &read {
            Ok(Some(read)) => Ok(format!(
                "`{place}`: for `{}`, from {}",
                read.resource,
                read.authorization_servers.join(", ")
            )),
            Ok(None) => Ok(format!("`{place}` has no metadata")),
            Err(why) => Err(why.clone()),
        };
        steps.report("resource metadata", &outcome);
        if let Some(read) = read? {
            return Ok(Some(read));
        }
    }
    Ok(None)
}

/// Fetches the metadata of the authorization server `issuer`, if it publishes any.
async fn fetch_server_metadata(
    fetcher: &OAuthRequestClient,
    issuer: &str,
    steps: &mut AuthorizationStepReporter<'_>,
) -> Result<Option<AuthorizationServerMetadata>, String> {
    let mut places = well_known(issuer, "oauth-authorization-server")?;
    places.truncate(1);
    places.extend(well_known(issuer, "openid-configuration")?.into_iter().take(1));
    let appended = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
    if !places.contains(&appended) {
        places.push(appended);
    }
    for place in places {
        let response = fetcher.get(&place).await;
        let read = response.and_then(|response| match response.status.is_success() {
            false => Ok(None),
            true => {
                let read: AuthorizationServerMetadata =
                    response.json().map_err(|why| format!("`{place}`: {why}"))?;
                check_metadata(fetcher, &read, issuer)
                    .map_err(|why| format!("`{place}`: {why}"))?;
                Ok(Some(read))
            }
        });
        let outcome = match &read {
            Ok(Some(_)) => Ok(format!("`{place}`")),
            Ok(None) => Ok(format!("`{place}` has no metadata")),
            Err(why) => Err(why.clone()),
        };
        steps.report("authorization server", &outcome);
        if let Some(read) = read? {
            return Ok(Some(read));
        }
    }
    Ok(None)
}

/// Checks the issuer and the endpoints in an authorization server's metadata.
fn check_metadata(
    fetcher: &OAuthRequestClient,
    server: &AuthorizationServerMetadata,
    issuer: &str,
) -> Result<(), String> {
    if !is_same_issuer(&server.issuer, issuer) {
        return Err(format!("its issuer is `{}`, not `{issuer}`", server.issuer));
    }
    if server.token_endpoint.is_empty() {
        return Err("it has no `token_endpoint`".to_owned());
    }
    let endpoints = [&server.authorization_endpoint, &server.registration_endpoint];
    let endpoints = endpoints.into_iter().flatten().chain([&server.token_endpoint]);
    endpoints.map(String::as_str).try_for_each(|url| fetcher.check(url))
}

impl AuthorizationServerMetadata {
    /// Checks that the authorization server supports PKCE with S256, so that an intercepted code is
    /// useless. The `settings` of `upstream` may assume this support.
    pub(crate) fn check_pkce(
        &self,
        upstream: &str,
        settings: &OAuthSettings,
    ) -> Result<(), String> {
        if settings.grant != OAuthGrant::AuthorizationCode {
            return Ok(());
        }
        if self.authorization_endpoint.is_none() {
            return Err(format!("`{}` has no `authorization_endpoint`", self.issuer));
        }
        let issuer = &self.issuer;
        let methods = self.code_challenge_methods_supported.as_deref().unwrap_or_default();
        if methods.iter().any(|method| method == "S256") {
            return Ok(());
        }
        match methods {
            [] if settings.assume_pkce => Ok(()),
            [] => Err(format!(
                "`{issuer}` does not declare support for PKCE with S256, which a sign-in \
                 requires; if you know that it supports S256, set `assume_pkce = true` in \
                 [upstream.{upstream}.oauth]"
            )),
            methods => Err(format!(
                "`{issuer}` declares PKCE only with {}, but a sign-in requires S256",
                methods.join(", ")
            )),
        }
    }
}

/// Returns the default endpoints of an authorization server that publishes no metadata, as protocol
/// revision 2025-03-26 defines them.
fn default_endpoints(origin: &str) -> AuthorizationServerMetadata {
    AuthorizationServerMetadata {
        issuer: origin.to_owned(),
        authorization_endpoint: Some(format!("{origin}/authorize")),
        token_endpoint: format!("{origin}/token"),
        registration_endpoint: Some(format!("{origin}/register")),
        // The revision 2025-03-26 requires PKCE of every server.
        code_challenge_methods_supported: Some(vec!["S256".to_owned()]),
        ..AuthorizationServerMetadata::default()
    }
}

/// Returns the possible URLs of the well-known document `name`: under the path of `url`, then at
/// its root.
fn well_known(url: &str, name: &str) -> Result<Vec<String>, String> {
    let url = parse_url(url)?;
    let root = format!("{}/.well-known/{name}", url.origin());
    Ok(match url.trimmed_path() {
        "" => vec![root],
        _ => vec![url.well_known(name), root],
    })
}

/// Returns true if two issuers are equal, ignoring the trailing slash of a URL without a path.
pub(crate) fn is_same_issuer(one: &str, other: &str) -> bool {
    let bare = |url: &str| {
        let origin = HttpUrl::parse(url).ok()?.origin();
        (url.strip_suffix('/') == Some(origin.as_str())).then_some(origin)
    };
    one == other || bare(one).as_deref() == Some(other) || bare(other).as_deref() == Some(one)
}

/// Returns true if `url` lies within the resource with the identifier `resource`.
fn covers(resource: &str, url: &str) -> bool {
    let (Ok(outer), Ok(inner)) = (HttpUrl::parse(resource), HttpUrl::parse(url)) else {
        return false;
    };
    let below = inner.trimmed_path().strip_prefix(outer.trimmed_path());
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        && outer.is_same_origin(&inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_looked_up_under_the_path_and_at_the_root() {
        let at = |url| well_known(url, "x").expect("a URL");
        assert_eq!(at("https://a.example"), ["https://a.example/.well-known/x"]);
        assert_eq!(
            at("https://a.example:8443/b/c/?q=1"),
            ["https://a.example:8443/.well-known/x/b/c", "https://a.example:8443/.well-known/x"]
        );
    }

    #[test]
    fn a_resource_covers_only_urls_below_it() {
        for resource in ["https://a.example", "https://a.example/", "https://a.example/mcp"] {
            assert!(covers(resource, "https://a.example/mcp"), "{resource}");
        }
        for other in ["http://a.example", "https://b.example", "https://a.example/mc"] {
            assert!(!covers(other, "https://a.example/mcp"), "{other}");
        }
    }

    #[test]
    fn pkce_that_is_not_declared_is_refused_unless_the_settings_assume_it() {
        let check = |methods: &str, assume_pkce| {
            let metadata = format!(
                r#"{{"issuer":"https://login.example","authorization_endpoint":"https://login.example/a"{methods}}}"#
            );
            let server: AuthorizationServerMetadata =
                serde_json::from_str(&metadata).expect("metadata");
            let settings = OAuthSettings { assume_pkce, ..OAuthSettings::default() };
            server.check_pkce("crm", &settings)
        };
        let methods = |list: &str| format!(r#","code_challenge_methods_supported":{list}"#);
        for undeclared in [String::new(), methods("null"), methods("[]")] {
            let why = check(&undeclared, false).expect_err("it is refused");
            assert!(why.contains("`assume_pkce = true` in [upstream.crm.oauth]"), "{why}");
            assert_eq!(check(&undeclared, true), Ok(()));
        }
        assert_eq!(check(&methods(r#"["plain","S256"]"#), false), Ok(()));
        let why = check(&methods(r#"["plain"]"#), true).expect_err("S256 would fail");
        assert!(why.contains("only with plain") && !why.contains("assume_pkce"), "{why}");
    }

    #[test]
    fn issuers_are_compared_as_written() {
        assert!(is_same_issuer("https://a.example", "https://a.example/"));
        assert!(is_same_issuer("https://a.example/b", "https://a.example/b"));
        for other in ["https://a.example/b/", "https://A.example/b", "https://a.example:443/b"] {
            assert!(!is_same_issuer("https://a.example/b", other), "{other}");
        }
        assert!(!is_same_issuer("https://a.example", "https://A.example"));
    }
}
