//! What a person does about how we are let in at an upstream: sign in, out, and look.

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

/// How we are let in at one upstream.
pub struct Access {
    credentials: Credentials,
    transport: Transport,
}

/// Somebody is signing in.
pub struct Pending<'a> {
    access: &'a Access,
    asked: SigningIn,
}

impl Access {
    /// At the upstream called `name`.
    ///
    /// # Errors
    /// When it is no upstream that asks for OAuth.
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

    /// The port that a person is led back to; 0 for any.
    pub fn redirect_port(&self) -> u16 {
        self.credentials.settings.redirect_port
    }

    /// Begins to sign somebody in, who is led back to `redirect`.
    ///
    /// # Errors
    /// Why nobody can sign in.
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

    /// Forgets who signed in; whether anybody had.
    ///
    /// # Errors
    /// When it cannot be forgotten.
    pub async fn sign_out(&self) -> Result<bool, String> {
        let credentials = &self.credentials;
        // A server that renews it meanwhile would keep it again.
        let _held = credentials.hold().await?;
        let was = credentials.kept().is_some();
        credentials.world.keep_secret(&credentials.kept_as(), None)?;
        Ok(was)
    }

    /// Goes through all that is needed to be let in, and tells of each step; whether we are.
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
            let (now, then) = (&found.server.issuer, &kept.found.server.issuer);
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

    /// Who gives tokens, as the upstream says that is asked without one.
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

    /// What is asked for: what the upstream wants, what it wanted of late, and to be let in for
    /// longer than once, where the authorization server knows of that.
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

    /// As whom it is asked.
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
        // Who reads no document of ours may register us all the same, unless we are to show who we
        // are by something.
        let known = settings.client_id.as_ref().filter(|id| {
            !is_document(id)
                || !matches!(proof, Proof::Nothing)
                || server.client_id_metadata_document_supported
                || server.registration_endpoint.is_none()
        });
        let Some(id) = known else {
            // A registration holds for the place that somebody is led back to, and that has another
            // port each time.
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
    /// The page that the person opens.
    pub fn page(&self) -> String {
        self.asked.page()
    }

    /// Whether `query` answers what was asked; what does not is no reason to stop waiting.
    pub fn is_answered_by(&self, query: &str) -> bool {
        self.asked.is_answered_by(query)
    }

    /// Takes what came back in `query`, and keeps what it lets in with.
    ///
    /// # Errors
    /// Why nobody is let in.
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
