//! What is said of how we are let in at an upstream, in `[upstream.NAME.oauth]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How we are let in at an upstream that asks for OAuth. Without it a person can sign in all the same, by `toolgate login NAME`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OAuth {
    /// Who is let in: `authorization_code` (a person, who signs in once by `toolgate login NAME`), `client_credentials` (this server) or `token_exchange` (each caller, whose token the authorization server exchanges for one of the upstream's; what belongs to no caller is asked by this server).
    pub grant: Grant,
    /// What we are known as at the authorization server: an id, or the `https:` URL of a client metadata document. Without it we register ourselves where that is possible.
    pub client_id: Option<String>,
    /// What shows that we are it, e.g. `${CRM_SECRET}`.
    pub client_secret: Option<String>,
    /// What shows it where no secret does (`private_key_jwt`): a private key in PEM (PKCS #8) of P-256, P-384, Ed25519, or RSA of 2,048 to 4,096 bits, e.g. `${CRM_KEY}`. It is never said; what it signs is good for the authorization server alone, and for a minute.
    pub client_key: Option<String>,
    /// What that key is known by there, if that is to be said.
    pub client_key_id: Option<String>,
    /// What is asked for; without any, what the upstream says that it needs.
    pub scopes: Vec<String>,
    /// The authorization server that is meant, e.g. `https://login.example`: another is not asked. Without it, the one that the upstream names; a `client_secret` needs it, since it lets in whoever hears it, and so does every grant but `authorization_code`.
    pub issuer: Option<String>,
    /// Whom an exchanged token is for, where the authorization server wants to be told beside the upstream's URL.
    pub audience: Option<String>,
    /// The port of this machine that a person is led back to after signing in; 0 for any that is free.
    pub redirect_port: u16,
}

/// Who is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// A person, who signs in once.
    #[default]
    AuthorizationCode,
    /// This server.
    ClientCredentials,
    /// Each caller, by what they are let in here with.
    TokenExchange,
}

impl OAuth {
    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// Which setting, and what to do.
    pub(crate) fn check(&self) -> Result<(), String> {
        let needs_client = self.grant != Grant::AuthorizationCode;
        let has_proof = self.client_secret.is_some() || self.client_key.is_some();
        if needs_client && (self.client_id.is_none() || !has_proof) {
            return Err("`oauth.grant` says that this server is let in by itself: say \
                        `oauth.client_id`, and `oauth.client_secret` or `oauth.client_key`"
                .to_owned());
        }
        if self.client_secret.is_some() && self.client_key.is_some() {
            return Err(
                "of `oauth.client_secret` and `oauth.client_key` one shows who we are: say \
                        one"
                .to_owned(),
            );
        }
        if self.client_key_id.is_some() && self.client_key.is_none() {
            return Err("`oauth.client_key_id` is of no key: say `oauth.client_key`".to_owned());
        }
        // A secret lets in whoever hears it, and so does a token: of a caller, or of this server
        // by another authorization server that knows it.
        let is_meant = self.client_secret.is_some() || needs_client;
        if is_meant && self.issuer.is_none() {
            return Err("the upstream would say who is told `oauth.client_secret` and tokens of \
                        callers, and who gives tokens to this server: say the authorization server \
                        that is meant in `oauth.issuer`"
                .to_owned());
        }
        if has_proof && self.client_id.is_none() {
            return Err("`oauth.client_secret` or `oauth.client_key` is nobody's: say \
                        `oauth.client_id`"
                .to_owned());
        }
        if self.audience.is_some() && self.grant != Grant::TokenExchange {
            return Err("`oauth.audience` is said in a token exchange alone".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_secret_names_the_authorization_server_that_is_told_it() {
        let known = || OAuth {
            client_id: Some("a".to_owned()),
            client_secret: Some("b".to_owned()),
            ..OAuth::default()
        };
        for grant in [Grant::AuthorizationCode, Grant::ClientCredentials, Grant::TokenExchange] {
            let why = OAuth { grant, ..known() }.check().expect_err("it names none");
            assert!(why.contains("`oauth.issuer`"), "{why}");
            let issuer = Some("https://login.example".to_owned());
            assert_eq!(OAuth { grant, issuer, ..known() }.check(), Ok(()));
        }
        assert_eq!(OAuth { client_secret: None, ..known() }.check(), Ok(()));
    }

    #[test]
    fn who_is_let_in_without_a_person_names_the_authorization_server_also_with_a_key() {
        let known = |grant| OAuth {
            grant,
            client_id: Some("a".to_owned()),
            client_key: Some("${KEY}".to_owned()),
            ..OAuth::default()
        };
        assert_eq!(known(Grant::AuthorizationCode).check(), Ok(()));
        for grant in [Grant::ClientCredentials, Grant::TokenExchange] {
            let why = known(grant).check().expect_err("it names none");
            assert!(why.contains("`oauth.issuer`"), "{why}");
            let issuer = Some("https://login.example".to_owned());
            assert_eq!(OAuth { issuer, ..known(grant) }.check(), Ok(()));
        }
        let both = OAuth { client_secret: Some("b".to_owned()), ..known(Grant::default()) };
        assert!(both.check().is_err_and(|why| why.contains("say one")));
    }
}
