//! Signs in to an upstream, signs out, and examines its authorization.

use std::sync::Arc;

use super::challenge::Challenge;
use super::discovery::{self, Found};
use super::settings::Grant;
use super::signing_in::SigningIn;
use super::steps::{Steps, Told};
use super::tokens::{Client, Proof, Tokens};
use super::{Asking, Credentials, Kept, add, shown};
use crate::pins::unseen::line;
use crate::settings::{Settings, Transport};
use crate::world::World;

/// Access to the authorization of one upstream.
pub struct Access {
    credentials: Credentials,
    transport: Transport,
}

/// A sign-in that waits for the person to return from the browser.
pub struct Pending<'a> {
    access: &'a Access,
    asked: SigningIn,
}

impl Access {
    /// Opens the authorization of the upstream `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if the upstream is a program, has a fixed `Authorization` header, or its
    /// settings are invalid.
    pub fn of(world: Arc<dyn World>, name: &str, settings: &Settings) -> Result<Self, String> {
        settings.check()?;
        let Some(url) = &settings.url else {
            return Err(format!("the upstream `{name}` is a program, which nobody signs in at"));
        };
        if settings.says_authorization() {
            return Err(format!("the upstream `{name}` is said `headers.Authorization`"));
        }
        let url = crate::upstream::filled(url, |name| world.variable(name))?;
        let at = (name, &*url, settings.private_network);
        let credentials = Credentials::new(at, settings.oauth.as_ref(), world, None)?;
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
        told: &mut Told<'_>,
    ) -> Result<Pending<'a>, String> {
        let credentials = &self.credentials;
        if credentials.settings.grant != Grant::AuthorizationCode {
            return Err(format!(
                "`{}` is let in by itself, as `oauth.grant` says; `toolgate doctor oauth {0}` \
                 shows how that goes",
                credentials.upstream
            ));
        }
        let begun = self.begun(redirect, &mut Steps(Some(told))).await;
        begun.map(|asked| Pending { access: self, asked }).map_err(|why| line(&why))
    }

    async fn begun(&self, redirect: &str, steps: &mut Steps<'_>) -> Result<SigningIn, String> {
        let credentials = &self.credentials;
        let found = self.found(steps).await?;
        found.server.check_code(Grant::AuthorizationCode)?;
        let before = credentials.kept();
        let scopes = self.scopes(&found, before.as_ref());
        let client = self.client(&found, redirect, &scopes, before, steps).await?;
        SigningIn::new(found, client, redirect, scopes)
    }

    /// Deletes the stored tokens. Returns true if there were any.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokens cannot be deleted.
    pub async fn sign_out(&self) -> Result<bool, String> {
        let credentials = &self.credentials;
        // Without the lock, a server that renews the tokens meanwhile would store them again.
        let _held = credentials.hold().await?;
        let was = credentials.kept().is_some();
        credentials.world.keep_secret(&credentials.kept_as(), None)?;
        Ok(was)
    }

    /// Performs each step of authorization and reports it. Returns true if all succeeded.
    pub async fn examine(&self, told: &mut Told<'_>) -> bool {
        let steps = &mut Steps(Some(told));
        let outcome = self.examined(steps).await;
        if let Err(why) = &outcome {
            steps.done("being let in", &Err(why.clone()));
        }
        outcome.is_ok()
    }

    async fn examined(&self, steps: &mut Steps<'_>) -> Result<(), String> {
        let credentials = &self.credentials;
        let found = self.found(steps).await?;
        found.server.check_code(credentials.settings.grant)?;
        if credentials.settings.grant != Grant::AuthorizationCode {
            let mut asking = Asking { wanted: found.scopes.clone(), ..Asking::default() };
            asking.found = Some(found);
            if credentials.settings.grant == Grant::TokenExchange {
                let said = "each caller's is exchanged as they call; here is this server's own";
                steps.done("the token of a caller", &Ok(said.to_owned()));
            }
            credentials.granted(&mut asking, steps).await?;
            return Ok(());
        }
        let kept = credentials.kept();
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
        if tokens.is_good() {
            steps.done("a token", &Ok(shown(tokens)));
            return Ok(());
        }
        steps.done("a token", &Ok("it is over, and renewed now".to_owned()));
        let renewed = credentials.kept_or_renewed(None).await;
        let told = renewed.as_ref().map(|_| "renewed".to_owned()).map_err(Clone::clone);
        steps.done("another token", &told);
        renewed.map(drop)
    }

    /// Discovers the authorization server by probing the upstream without a token.
    async fn found(&self, steps: &mut Steps<'_>) -> Result<Found, String> {
        let Credentials { fetcher, url, settings, .. } = &self.credentials;
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
        steps.done("the upstream", &told);
        let (_, said) = probed?;
        let challenge = said.map(|said| Challenge::read(&said)).unwrap_or_default();
        discovery::find(fetcher, url, &challenge, settings, steps).await
    }

    /// Returns the scopes to request: those that the upstream wants now, those it wanted before,
    /// and `offline_access` if the server supports it.
    fn scopes(&self, found: &Found, before: Option<&Kept>) -> Vec<String> {
        let mut scopes = found.scopes.clone();
        if let Some(before) = before.filter(|before| !before.wanted.is_empty()) {
            let had = before.tokens.as_ref().map(|tokens| tokens.scopes.as_slice());
            add(&mut scopes, had.unwrap_or_default());
            add(&mut scopes, &before.wanted);
        }
        let offline = "offline_access".to_owned();
        if found.server.scopes_supported.contains(&offline) {
            add(&mut scopes, &[offline]);
        }
        scopes
    }

    /// Returns the OAuth client to sign in as, registering one if needed.
    async fn client(
        &self,
        found: &Found,
        redirect: &str,
        scopes: &[String],
        before: Option<Kept>,
        steps: &mut Steps<'_>,
    ) -> Result<Client, String> {
        let Credentials { settings, proof, fetcher, upstream, .. } = &self.credentials;
        let server = &found.server;
        let is_document = |id: &str| id.starts_with("https://");
        // A server that does not support client metadata documents may still register us, unless we
        // have to prove our identity.
        let known = settings.client_id.as_ref().filter(|id| {
            !is_document(id)
                || !matches!(proof, Proof::Nothing)
                || server.client_id_metadata_document_supported
                || server.registration_endpoint.is_none()
        });
        let Some(id) = known else {
            // A registration is bound to the redirect URL, whose port differs each time.
            let client = Client::register(fetcher, server, redirect, scopes).await;
            let told = client.as_ref().map(|client| format!("registered as `{}`", client.id));
            steps.done("who we are", &told.map_err(Clone::clone));
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
        steps.done("who we are", &Ok(format!("`{id}`")));
        Ok(Client::known(server, id.clone(), proof))
    }
}

impl Pending<'_> {
    /// Returns the URL of the page that the person opens.
    pub fn page(&self) -> String {
        self.asked.page()
    }

    /// Returns true if `query` answers this sign-in. Other requests do not end the wait.
    pub fn is_answered_by(&self, query: &str) -> bool {
        self.asked.is_answered_by(query)
    }

    /// Exchanges the code in `query` for tokens and stores them. Returns a short description of the
    /// tokens.
    ///
    /// # Errors
    ///
    /// Returns the reason if authorization failed or the tokens cannot be stored.
    pub async fn came_back(self, query: &str) -> Result<String, String> {
        let Self { access: Access { credentials, .. }, asked } = self;
        let back = asked.came_back(&credentials.fetcher, query).await;
        let (found, client, tokens) = back.map_err(|why| line(&why))?;
        let told = line(&shown(&tokens));
        let _held = credentials.hold().await?;
        let tokens: Option<Tokens> = Some(tokens);
        credentials.keep(&Kept { found, client, tokens, wanted: Vec::new() })?;
        Ok(told)
    }
}
