//! Signs in to an upstream, signs out, and examines its authorization.

use std::sync::Arc;

use super::challenge::BearerChallenge;
use super::discovery::{self, DiscoveredServer};
use super::sign_in::SignInAttempt;
use super::steps::{StepCallback, StepReporter};
use super::tokens::{ClientCredential, OAuthClient, OAuthTokens};
use super::{StoredSignIn, TokenRequestState, UpstreamCredentials, add_scopes, describe_tokens};
use crate::pins::invisible::escape_line;
use crate::settings::OAuthGrant;
use crate::settings::{UpstreamSettings, UpstreamTransport};
use crate::world::UpstreamWorld;

/// Access to the authorization of one upstream.
pub struct OAuthAccess {
    credentials: UpstreamCredentials,
    transport: UpstreamTransport,
}

/// A sign-in that waits for the person to return from the browser.
pub struct PendingSignIn<'a> {
    access: &'a OAuthAccess,
    sign_in: SignInAttempt,
}

impl OAuthAccess {
    /// Opens the authorization of the upstream `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if the upstream is a program, has a fixed `Authorization` header, or its
    /// settings are invalid.
    pub fn open(
        world: Arc<dyn UpstreamWorld>,
        name: &str,
        settings: &UpstreamSettings,
    ) -> Result<Self, String> {
        settings.check()?;
        let Some(url) = &settings.url else {
            return Err(format!("the upstream `{name}` is a program, which nobody signs in at"));
        };
        if settings.has_authorization() {
            return Err(format!("the upstream `{name}` is said `headers.Authorization`"));
        }
        let url = crate::settings::fill_variables(url, |name| world.variable(name))?;
        let at = (name, &*url, settings.private_network);
        let credentials = UpstreamCredentials::new(at, settings.oauth.as_ref(), world, None)?;
        Ok(Self { credentials, transport: settings.transport })
    }

    /// Returns the local port for the redirect after sign-in. 0 picks any free port.
    pub fn redirect_port(&self) -> u16 {
        self.credentials.settings.redirect_port
    }

    /// Starts a sign-in that returns to the URL `redirect`.
    ///
    /// # Errors
    ///
    /// Returns the reason if nobody can sign in to this upstream.
    pub async fn sign_in<'a>(
        &'a self,
        redirect: &str,
        told: &mut StepCallback<'_>,
    ) -> Result<PendingSignIn<'a>, String> {
        let credentials = &self.credentials;
        if credentials.settings.grant != OAuthGrant::AuthorizationCode {
            return Err(format!(
                "`{}` is let in by itself, as `oauth.grant` says; `toolgate doctor oauth {0}` \
                 shows how that goes",
                credentials.upstream
            ));
        }
        let begun = self.begin_sign_in(redirect, &mut StepReporter(Some(told))).await;
        begun
            .map(|asked| PendingSignIn { access: self, sign_in: asked })
            .map_err(|why| escape_line(&why))
    }

    async fn begin_sign_in(
        &self,
        redirect: &str,
        steps: &mut StepReporter<'_>,
    ) -> Result<SignInAttempt, String> {
        let credentials = &self.credentials;
        let found = self.discover(steps).await?;
        found.server.check_pkce(OAuthGrant::AuthorizationCode)?;
        let before = credentials.stored();
        let scopes = self.scopes_to_request(&found, before.as_ref());
        let client = self.client_for(&found, redirect, &scopes, before, steps).await?;
        SignInAttempt::new(found, client, redirect, scopes)
    }

    /// Deletes the stored tokens. Returns true if there were any.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokens cannot be deleted.
    pub async fn sign_out(&self) -> Result<bool, String> {
        let credentials = &self.credentials;
        // Without the lock, a server that renews the tokens meanwhile would store them again.
        let _held = credentials.lock_stored().await?;
        let was = credentials.stored().is_some();
        credentials.world.keep_secret(&credentials.storage_key(), None)?;
        Ok(was)
    }

    /// Performs each step of authorization and reports it. Returns true if all succeeded.
    pub async fn examine(&self, told: &mut StepCallback<'_>) -> bool {
        let steps = &mut StepReporter(Some(told));
        let outcome = self.examine_steps(steps).await;
        if let Err(why) = &outcome {
            steps.report("being let in", &Err(why.clone()));
        }
        outcome.is_ok()
    }

    async fn examine_steps(&self, steps: &mut StepReporter<'_>) -> Result<(), String> {
        let credentials = &self.credentials;
        let found = self.discover(steps).await?;
        found.server.check_pkce(credentials.settings.grant)?;
        if credentials.settings.grant != OAuthGrant::AuthorizationCode {
            let mut asking = TokenRequestState {
                scopes_wanted: found.scopes.clone(),
                ..TokenRequestState::default()
            };
            asking.server = Some(found);
            if credentials.settings.grant == OAuthGrant::TokenExchange {
                let said = "each caller's is exchanged as they call; here is this server's own";
                steps.report("the token of a caller", &Ok(said.to_owned()));
            }
            credentials.request_token(&mut asking, steps).await?;
            return Ok(());
        }
        let kept = credentials.stored();
        let tokens = kept.as_ref().and_then(|kept| kept.tokens.as_ref());
        let Some(tokens) = tokens else { return Err(credentials.sign_in("nobody is signed in")) };
        if let Some(kept) = kept.as_ref().filter(|kept| kept.found.server != found.server) {
            let now = &found.server.issuer;
            let then = &kept.found.server.issuer;
            if now != then {
                let why = format!("the authorization server was `{then}` and is `{now}`");
                return Err(credentials.sign_in(&why));
            }
        }
        if tokens.is_valid() {
            steps.report("a token", &Ok(describe_tokens(tokens)));
            return Ok(());
        }
        steps.report("a token", &Ok("it is over, and renewed now".to_owned()));
        let renewed = credentials.stored_or_renewed(None).await;
        let told = renewed.as_ref().map(|_| "renewed".to_owned()).map_err(Clone::clone);
        steps.report("another token", &told);
        renewed.map(drop)
    }

    /// Discovers the authorization server by probing the upstream without a token.
    async fn discover(&self, steps: &mut StepReporter<'_>) -> Result<DiscoveredServer, String> {
        let UpstreamCredentials { fetcher, url, settings, .. } = &self.credentials;
        let probed = fetcher.probe(url, self.transport).await;
        let told = match &probed {
            Ok((401, Some(said))) => Ok(format!("`{url}` answers 401: {said}")),
            Ok((401, None)) => Ok(format!("`{url}` answers 401, and nothing of who gives tokens")),
            Ok((status, _)) if (200..300).contains(status) => {
                Ok(format!("`{url}` answers {status} without a token"))
            }
            Ok((status, _)) => Ok(format!("`{url}` answers {status} without a token")),
            Err(why) => Err(why.clone()),
        };
        steps.report("the upstream", &told);
        let (_, said) = probed?;
        let challenge = said.map(|said| BearerChallenge::parse(&said)).unwrap_or_default();
        discovery::discover(fetcher, url, &challenge, settings, steps).await
    }

    /// Returns the scopes to request: those that the upstream wants now, those it wanted before,
    /// and `offline_access` if the server supports it.
    fn scopes_to_request(
        &self,
        found: &DiscoveredServer,
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

    /// Returns the OAuth client to sign in as, registering one if needed.
    async fn client_for(
        &self,
        found: &DiscoveredServer,
        redirect: &str,
        scopes: &[String],
        before: Option<StoredSignIn>,
        steps: &mut StepReporter<'_>,
    ) -> Result<OAuthClient, String> {
        let UpstreamCredentials { settings, credential: proof, fetcher, upstream, .. } =
            &self.credentials;
        let server = &found.server;
        let is_document = |id: &str| id.starts_with("https://");
        // A server that does not support client metadata documents may still register us, unless we
        // have to prove our identity.
        let known = settings.client_id.as_ref().filter(|id| {
            !is_document(id)
                || !matches!(proof, ClientCredential::Nothing)
                || server.client_id_metadata_document_supported
                || server.registration_endpoint.is_none()
        });
        let Some(id) = known else {
            // A registration is bound to the redirect URL, whose port differs each time.
            let client = OAuthClient::register(fetcher, server, redirect, scopes).await;
            let told = client.as_ref().map(|client| format!("registered as `{}`", client.id));
            steps.report("who we are", &told.map_err(Clone::clone));
            return client;
        };
        let then = before.as_ref().map(|kept| &kept.found.server.issuer);
        if let Some(then) = then.filter(|then| **then != server.issuer)
            && settings.issuer.is_none()
            && !is_document(id)
        {
            return Err(format!(
                "the authorization server was `{then}` and is `{}`, and what we are known as at \
                 one is not said to the other. If that is meant, run `toolgate logout {upstream}` \
                 first",
                server.issuer
            ));
        }
        steps.report("who we are", &Ok(format!("`{id}`")));
        Ok(OAuthClient::with_id(server, id.clone(), proof))
    }
}

impl PendingSignIn<'_> {
    /// Returns the URL of the page that the person opens.
    pub fn page_url(&self) -> String {
        self.sign_in.page_url()
    }

    /// Returns true if `query` answers this sign-in. Other requests do not end the wait.
    pub fn is_answered_by(&self, query: &str) -> bool {
        self.sign_in.is_answered_by(query)
    }

    /// Exchanges the code in `query` for tokens and stores them. Returns a short description of the
    /// tokens.
    ///
    /// # Errors
    ///
    /// Returns the reason if authorization failed or the tokens cannot be stored.
    pub async fn finish(self, query: &str) -> Result<String, String> {
        let Self { access: OAuthAccess { credentials, .. }, sign_in: asked } = self;
        let back = asked.exchange_code(&credentials.fetcher, query).await;
        let (found, client, tokens) = back.map_err(|why| escape_line(&why))?;
        let told = escape_line(&describe_tokens(&tokens));
        let _held = credentials.lock_stored().await?;
        let tokens: Option<OAuthTokens> = Some(tokens);
        credentials.store(&StoredSignIn { found, client, tokens, wanted: Vec::new() })?;
        Ok(told)
    }
}
