//! Signs a person in with the authorization code flow (PKCE, RFC 7636).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::discovery::DiscoveredAuthorizationServer;
use super::fetch::OAuthRequestClient;
use super::tokens::{self, OAuthClient, OAuthTokens};

/// A person's sign-in to an upstream, in progress.
pub(crate) struct SignInAttempt {
    found: DiscoveredAuthorizationServer,
    client: OAuthClient,
    redirect: String,
    scopes: Vec<String>,
    /// Random value that the answer to this sign-in must repeat (CSRF protection).
    state: String,
    verifier: String,
}

impl SignInAttempt {
    /// Starts a sign-in as the OAuth `client`, with the redirect URL `redirect`, for `scopes`.
    pub(crate) fn new(
        found: DiscoveredAuthorizationServer,
        client: OAuthClient,
        redirect: &str,
        scopes: Vec<String>,
    ) -> Result<Self, String> {
        let state = random_token()?;
        let verifier = random_token()?;
        Ok(Self { found, client, redirect: redirect.to_owned(), scopes, state, verifier })
    }

    /// Returns the URL of the page on which the person signs in.
    pub(crate) fn page_url(&self) -> String {
        let endpoint = self.found.server.authorization_endpoint.as_deref().unwrap_or_default();
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&self.verifier));
        let (base, query) =
            endpoint.split_once('?').map_or((endpoint, ""), |(base, query)| (base, query));
        let mut serializer = form_urlencoded::Serializer::new(query.to_owned());
        serializer.extend_pairs([
            ("response_type", "code"),
            ("client_id", &self.client.id),
            ("redirect_uri", &self.redirect),
            ("state", &self.state),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("resource", &self.found.resource),
        ]);
        if !self.scopes.is_empty() {
            serializer.append_pair("scope", &self.scopes.join(" "));
        }
        if self.scopes.iter().any(|scope| scope == "offline_access") {
            // OpenID Connect grants a refresh token only with explicit consent.
            serializer.append_pair("prompt", "consent");
        }
        format!("{base}?{}", serializer.finish())
    }

    /// Exchanges the authorization code in `query` for tokens.
    pub(crate) async fn exchange_code(
        self,
        fetcher: &OAuthRequestClient,
        query: &str,
    ) -> Result<(DiscoveredAuthorizationServer, OAuthClient, OAuthTokens), String> {
        let code = self.code_in(query)?;
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", &code),
            ("redirect_uri", &self.redirect),
            ("code_verifier", &self.verifier),
            ("resource", &self.found.resource),
        ];
        let response =
            tokens::request_tokens(fetcher, &self.found.server, &self.client, &fields, &[]).await;
        let mut tokens = response.map_err(|denied| denied.reason)?;
        if tokens.scopes.is_empty() {
            // A missing scope means that the requested scopes were granted.
            tokens.scopes = self.scopes;
        }
        Ok((self.found, self.client, tokens))
    }

    /// Returns the authorization code in `query` after checking the state and the issuer in
    /// `query`. Fails if a check fails or the person denied the sign-in.
    fn code_in(&self, query: &str) -> Result<String, String> {
        let parameter = |wanted: &str| {
            let mut all = form_urlencoded::parse(query.as_bytes());
            all.find(|(name, _)| name == wanted).map(|(_, value)| value.into_owned())
        };
        if parameter("state").as_deref() != Some(&self.state) {
            return Err(
                "the response does not belong to this sign-in (its `state` differs)".to_owned()
            );
        }
        let server = &self.found.server;
        match parameter("iss") {
            Some(issuer) if issuer != server.issuer => {
                return Err(format!("the response is from `{issuer}`, not `{}`", server.issuer));
            }
            None if server.authorization_response_iss_parameter_supported => {
                return Err(format!(
                    "the response does not name `{}` as its issuer (`iss`)",
                    server.issuer
                ));
            }
            Some(_) | None => {}
        }
        if let Some(error) = parameter("error") {
            let more = parameter("error_description").map(|more| format!(": {more}"));
            return Err(format!("the sign-in was refused: {error}{}", more.unwrap_or_default()));
        }
        parameter("code").ok_or_else(|| "the response has no code".to_owned())
    }

    /// Returns true if `query` contains the state of this sign-in.
    pub(crate) fn is_answered_by(&self, query: &str) -> bool {
        let mut all = form_urlencoded::parse(query.as_bytes());
        all.any(|(name, value)| name == "state" && value == self.state)
    }
}

/// Returns 256 random bits in base64url. Fails if the system provides no random numbers.
pub(super) fn random_token() -> Result<String, String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|err| err.to_string())?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::super::discovery::AuthorizationServerMetadata;
    use super::super::tokens::OAuthClientCredential;
    use super::*;

    fn attempt(sends_issuer: bool) -> SignInAttempt {
        let server = AuthorizationServerMetadata {
            issuer: "https://a.example".to_owned(),
            authorization_endpoint: Some("https://a.example/authorize?x=1".to_owned()),
            authorization_response_iss_parameter_supported: sends_issuer,
            ..AuthorizationServerMetadata::default()
        };
        let client =
            OAuthClient::with_id(&server, "it".to_owned(), &OAuthClientCredential::Nothing);
        let resource = "https://b.example/mcp".to_owned();
        let found = DiscoveredAuthorizationServer { resource, scopes: Vec::new(), server };
        SignInAttempt::new(found, client, "http://127.0.0.1:1/callback", vec!["a b".to_owned()])
            .expect("random bytes")
    }

    #[test]
    fn a_code_is_accepted_only_with_the_right_state_and_issuer() {
        let one = attempt(false);
        let with = |more: &str| one.code_in(&format!("state={}&{more}", one.state));
        assert_eq!(with("code=x"), Ok("x".to_owned()));
        assert_eq!(with("code=x&iss=https://a.example"), Ok("x".to_owned()));
        assert!(with("code=x&iss=https://a.example/").is_err());
        assert!(with("error=access_denied").is_err_and(|why| why.contains("access_denied")));
        assert!(one.code_in("code=x").is_err() && one.code_in("code=x&state=y").is_err());
        let strict = attempt(true);
        assert!(strict.code_in(&format!("state={}&code=x", strict.state)).is_err());
    }

    #[test]
    fn the_page_url_keeps_its_query_and_has_only_a_hash_of_the_verifier() {
        let one = attempt(false);
        let page = one.page_url();
        assert!(page.starts_with("https://a.example/authorize?x=1&response_type=code&"), "{page}");
        assert!(page.contains("resource=https%3A%2F%2Fb.example%2Fmcp"), "{page}");
        assert!(!page.contains(&one.verifier), "{page}");
    }
}
