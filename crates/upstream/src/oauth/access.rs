//! Signs in to an upstream, signs out, and examines its authorization.

use std::sync::Arc;

use super::challenge::BearerChallenge;
use super::discovery::{self, DiscoveredAuthorizationServer};
use super::sign_in::SignInAttempt;
use super::steps::{AuthorizationStepCallback, AuthorizationStepReporter};
use super::tokens::{OAuthClient, OAuthClientCredential, OAuthTokens};
use super::{StoredSignIn, TokenRequestState, UpstreamCredentials, add_scopes, describe_tokens};
use crate::settings::OAuthGrant;
use crate::settings::{UpstreamSettings, UpstreamTransport};
use crate::world::UpstreamSystemAccess;
use toolgate_contract::printable::escape_hidden;

/// Access to the OAuth authorization of one upstream, for signing in and out.
pub struct UpstreamOAuthAccess {
    credentials: UpstreamCredentials,
    transport: UpstreamTransport,
}

/// A sign-in to an upstream that waits until the person returns from the browser.
pub struct PendingSignIn<'a> {
    access: &'a UpstreamOAuthAccess,
    sign_in: SignInAttempt,
}

impl UpstreamOAuthAccess {
    /// Opens the OAuth authorization of the upstream `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if the upstream is a program, has a fixed `Authorization` header, or its
    /// settings are invalid.
    pub fn open(
        world: Arc<dyn UpstreamSystemAccess>,
        name: &str,
        settings: &UpstreamSettings,
    ) -> Result<Self, String> {
        settings.check()?;
        let Some(url) = &settings.url else {
            return Err(format!(
                "the upstream `{name}` is a program; only an upstream with a `url` has a sign-in"
            ));
        };
        if settings.has_authorization() {
            return Err(format!(
                "the upstream `{name}` uses `headers.Authorization` instead of OAuth"
            ));
        }
        let url = toolgate_contract::fill_variables(url, |name| world.variable(name))?;
        let at = (name, &*url, settings.private_network);
        let credentials = UpstreamCredentials::new(at, settings.oauth.as_ref(), world, None)?;
        Ok(Self { credentials, transport: settings.transport })
    }

    /// Returns the local port to which the browser is redirected after the sign-in. 0 picks any
    /// free port.
    pub fn redirect_port(&self) -> u16 {
        self.credentials.settings.redirect_port
    }

    /// Starts a sign-in to the upstream that returns to the URL `redirect`. Reports each step to
    /// `callback`.
    ///
    /// # Errors
    ///
    /// Returns the reason if nobody can sign in to this upstream.
    pub async fn sign_in<'a>(
        &'a self,
        redirect: &str,
        callback: &mut AuthorizationStepCallback<'_>,
    ) -> Result<PendingSignIn<'a>, String> {
        let credentials = &self.credentials;
        if credentials.settings.grant != OAuthGrant::AuthorizationCode {
            return Err(format!(
                "`{}` needs no sign-in, because `oauth.grant` is not `authorization_code`; check \
                 it with `toolgate doctor oauth {0}`",
                credentials.upstream
            ));
        }
        let begun =
            self.begin_sign_in(redirect, &mut AuthorizationStepReporter(Some(callback))).await;
        begun
            .map(|sign_in| PendingSignIn { access: self, sign_in })
            .map_err(|why| escape_hidden(&why))
    }

    async fn begin_sign_in(
        &self,
        redirect: &str,
        steps: &mut AuthorizationStepReporter<'_>,
    ) -> Result<SignInAttempt, String> {
        let credentials = &self.credentials;
        let found = self.discover(steps).await?;
        found.server.check_pkce(&credentials.upstream, &credentials.settings)?;
        let before = credentials.stored();
        let scopes = self.scopes_to_request(&found, before.as_ref());
        let client = self.client_for(&found, redirect, &scopes, before, steps).await?;
        SignInAttempt::new(found, client, redirect, scopes)
    }

    /// Deletes the stored tokens for the upstream. Returns true if there were any.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokens cannot be deleted.
    pub async fn sign_out(&self) -> Result<bool, String> {
        let credentials = &self.credentials;
        // Without the lock, a server that renews the tokens meanwhile would store them again.
        let _lock = credentials.lock_stored().await?;
        let was_signed_in = credentials.stored().is_some();
        let key = credentials.storage_key();
        credentials.world.keep_secret(&key, None)?;
        credentials.world.share_secret(&key).await;
        Ok(was_signed_in)
    }

    /// Performs each step of authorization and reports its outcome to `callback`. Returns true if
    /// all steps succeeded.
    pub async fn examine(&self, callback: &mut AuthorizationStepCallback<'_>) -> bool {
        let steps = &mut AuthorizationStepReporter(Some(callback));
        let outcome = self.examine_steps(steps).await;
        if let Err(why) = &outcome {
            steps.report("authorization", &Err(why.clone()));
        }
        outcome.is_ok()
    }

    async fn examine_steps(&self, steps: &mut AuthorizationStepReporter<'_>) -> Result<(), String> {
        let credentials = &self.credentials;
        let found = self.discover(steps).await?;
        found.server.check_pkce(&credentials.upstream, &credentials.settings)?;
        if credentials.settings.grant != OAuthGrant::AuthorizationCode {
            let mut state = TokenRequestState {
                scopes_wanted: found.scopes.clone(),
                ..TokenRequestState::default()
            };
            state.server = Some(found);
            if credentials.settings.grant == OAuthGrant::TokenExchange {
                let note = "exchanged during each call; this step checks the server's own token";
                steps.report("callers' tokens", &Ok(note.to_owned()));
            }
            credentials.request_token(&mut state, steps).await?;
            return Ok(());
        }
        let stored = credentials.stored();
        let tokens = stored.as_ref().and_then(|stored| stored.tokens.as_ref());
        let Some(tokens) = tokens else { return Err(credentials.sign_in("not signed in")) };
        if let Some(stored) = stored.as_ref().filter(|stored| stored.found.server != found.server) {
            let now = &found.server.issuer;
            let then = &stored.found.server.issuer;
            if now != then {
                let why = format!("the authorization server changed from `{then}` to `{now}`");
                return Err(credentials.sign_in(&why));
            }
        }
        if tokens.is_valid() {
            steps.report("token", &Ok(describe_tokens(tokens)));
            return Ok(());
        }
        steps.report("token", &Ok("expired; toolgate renews the token".to_owned()));
        let renewed = credentials.stored_or_renewed(None).await;
        let outcome = renewed.as_ref().map(|_| "renewed".to_owned()).map_err(Clone::clone);
        steps.report("renewed token", &outcome);
        renewed.map(drop)
    }

    /// Discovers the upstream's authorization server by a request to the upstream without a token.
    async fn discover(
        &self,
        steps: &mut AuthorizationStepReporter<'_>,
    ) -> Result<DiscoveredAuthorizationServer, String> {
        let UpstreamCredentials { fetcher, url, settings, .. } = &self.credentials;
        let probed = fetcher.probe(url, self.transport).await;
        let outcome = match &probed {
            Ok((401, Some(header))) => Ok(format!("`{url}` answered 401: {header}")),
            Ok((401, None)) => {
                Ok(format!("`{url}` answered 401 without a `WWW-Authenticate` header"))
            }
            Ok((status, _)) if (200..300).contains(status) => {
                Ok(format!("`{url}` answered {status} without a token"))
            }
            Ok((status, _)) => Ok(format!("`{url}` answered {status} without a token")),
            Err(why) => Err(why.clone()),
        };
        steps.report("upstream", &outcome);
        let (_, header) = probed?;
        let challenge = header.map(|header| BearerChallenge::parse(&header)).unwrap_or_default();
        discovery::discover(fetcher, url, &challenge, settings, steps).await
    }

    /// Returns the scopes to request: the scopes that the upstream wants now or wanted before, and
    /// `offline_access` if the authorization server supports it.
    fn scopes_to_request(
        &self,
        found: &DiscoveredAuthorizationServer,
        before: Option<&StoredSignIn>,
    ) -> Vec<String> {
        let mut scopes = found.scopes.clone();
        if let Some(before) = before.filter(|before| !before.wanted.is_empty()) {
            let had = before.tokens.as_ref().map(|tokens| tokens.scopes.as_slice());
            add_scopes(&mut scopes, had.unwrap_or_default());
            add_scopes(&mut scopes, &before.wanted);
        }
        let offline = "offline_access".to_owned();
        if found.server.scopes_supported.contains(&offline) {
            add_scopes(&mut scopes, &[offline]);
        }
        scopes
    }

    /// Returns the OAuth client for the sign-in: the configured client, or a newly registered one.
    /// Fails if the registration fails, or if the authorization server has changed.
    async fn client_for(
        &self,
        found: &DiscoveredAuthorizationServer,
        redirect: &str,
        scopes: &[String],
        before: Option<StoredSignIn>,
        steps: &mut AuthorizationStepReporter<'_>,
    ) -> Result<OAuthClient, String> {
        let UpstreamCredentials { settings, credential, fetcher, upstream, .. } = &self.credentials;
        let server = &found.server;
        let is_document = |id: &str| id.starts_with("https://");
        // A server that does not support client metadata documents may still register us, unless we
        // have to prove our identity.
        let known = settings.client_id.as_ref().filter(|id| {
            !is_document(id)
                || !matches!(credential, OAuthClientCredential::Nothing)
                || server.client_id_metadata_document_supported
                || server.registration_endpoint.is_none()
        });
        let Some(id) = known else {
            // A registration is bound to the redirect URL, whose port differs each time.
            let client = OAuthClient::register(fetcher, server, redirect, scopes).await;
            let outcome = client.as_ref().map(|client| format!("registered as `{}`", client.id));
            steps.report("client", &outcome.map_err(Clone::clone));
            return client;
        };
        let then = before.as_ref().map(|stored| &stored.found.server.issuer);
        if let Some(then) = then.filter(|then| **then != server.issuer)
            && settings.issuer.is_none()
            && !is_document(id)
        {
            return Err(format!(
                "the authorization server changed from `{then}` to `{}`, and the client id is not \
                 sent to another server. If the change is intended, run `toolgate logout \
                 {upstream}` first",
                server.issuer
            ));
        }
        steps.report("client", &Ok(format!("`{id}`")));
        Ok(OAuthClient::with_id(server, id.clone(), credential))
    }
}

impl PendingSignIn<'_> {
    /// Returns the URL of the page on which the person signs in.
    pub fn page_url(&self) -> String {
        self.sign_in.page_url()
    }

    /// Returns true if `query` is the answer to this sign-in. Other requests to the redirect URL do
    /// not end the wait.
    pub fn is_answered_by(&self, query: &str) -> bool {
        self.sign_in.is_answered_by(query)
    }

    /// Exchanges the authorization code in `query` for tokens and stores them. Returns a short
    /// description of the tokens.
    ///
    /// # Errors
    ///
    /// Returns the reason if authorization failed or the tokens cannot be stored.
    pub async fn finish(self, query: &str) -> Result<String, String> {
        let Self { access: UpstreamOAuthAccess { credentials, .. }, sign_in } = self;
        let exchanged = sign_in.exchange_code(&credentials.fetcher, query).await;
        let (found, client, tokens) = exchanged.map_err(|why| escape_hidden(&why))?;
        let description = escape_hidden(&describe_tokens(&tokens));
        let _lock = credentials.lock_stored().await?;
        let tokens: Option<OAuthTokens> = Some(tokens);
        credentials.store(&StoredSignIn { found, client, tokens, wanted: Vec::new() }).await?;
        Ok(description)
    }
}
