//! Settings of `[upstream.NAME.oauth]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// OAuth settings of an upstream. Without this table, a person can still sign in with
/// `toolgate login NAME`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OAuthSettings {
    /// Identity for which toolgate requests tokens. With `authorization_code`, a person signs in
    /// once with `toolgate login NAME`. With `client_credentials`, toolgate requests tokens for
    /// itself. With `token_exchange`, the authorization server exchanges the caller's token for a
    /// token for the upstream. For requests without a caller, toolgate uses its own token.
    pub grant: OAuthGrant,
    /// Client id of toolgate at the authorization server: an id, or the `https:` URL of a client
    /// metadata document. By default, toolgate registers itself if the server allows registration.
    pub client_id: Option<String>,
    /// Client secret, e.g. `${CRM_SECRET}`.
    pub client_secret: Option<String>,
    /// Private key that authenticates the client by signed assertions (`private_key_jwt`), e.g.
    /// `${CRM_KEY}`. The format is PEM (PKCS #8) with a P-256, P-384, Ed25519 or RSA key. An RSA
    /// key has 2,048 to 4,096 bits. The key is never sent. Each assertion is valid for one minute,
    /// at one authorization server only.
    pub client_key: Option<String>,
    /// Key id (`kid`) of `client_key`, if the authorization server needs one.
    pub client_key_id: Option<String>,
    /// Scopes to request. By default, toolgate requests the scopes that the upstream asks for.
    pub scopes: Vec<String>,
    /// Issuer URL of the authorization server, e.g. `https://login.example`. toolgate uses no other
    /// authorization server. By default, toolgate uses the server that the upstream names. `issuer`
    /// is required with `client_secret` and for every grant except `authorization_code`, because
    /// toolgate sends secrets to this server.
    pub issuer: Option<String>,
    /// Audience of an exchanged token. Set an audience if the authorization server needs one in
    /// addition to the upstream's URL.
    pub audience: Option<String>,
    /// Local port for the redirect after sign-in. With port 0, toolgate uses any free port.
    pub redirect_port: u16,
    /// `true` signs in with PKCE (S256) even if the metadata of the authorization server lacks
    /// `code_challenge_methods_supported`. Microsoft Entra and Amazon Cognito leave out
    /// `code_challenge_methods_supported`. By default, toolgate refuses a sign-in without declared
    /// PKCE, because PKCE protects the sign-in against stolen codes.
    pub assume_pkce: bool,
}

/// Identity for which tokens are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OAuthGrant {
    /// A person, who signs in once.
    #[default]
    AuthorizationCode,
    /// toolgate itself (`client_credentials`).
    ClientCredentials,
    /// Each caller, whose own token is exchanged.
    TokenExchange,
}

impl OAuthSettings {
    /// Checks the OAuth settings of an upstream.
    ///
    /// # Errors
    ///
    /// Returns the invalid setting and the fix.
    pub(crate) fn check(&self) -> Result<(), String> {
        let needs_client = self.grant != OAuthGrant::AuthorizationCode;
        let has_credential = self.client_secret.is_some() || self.client_key.is_some();
        if needs_client && (self.client_id.is_none() || !has_credential) {
            return Err("with this `oauth.grant`, toolgate authenticates as itself: set \
                        `oauth.client_id`, and `oauth.client_secret` or `oauth.client_key`"
                .to_owned());
        }
        if self.client_secret.is_some() && self.client_key.is_some() {
            return Err("`oauth.client_secret` and `oauth.client_key` are both set: set only one"
                .to_owned());
        }
        if self.client_key_id.is_some() && self.client_key.is_none() {
            return Err("`oauth.client_key_id` needs a key: set `oauth.client_key`".to_owned());
        }
        // Secrets and tokens must not go to a server that only the upstream names.
        let sends_secrets = self.client_secret.is_some() || needs_client;
        if sends_secrets && self.issuer.is_none() {
            return Err(
                "set the authorization server in `oauth.issuer`; otherwise, the upstream could \
                 choose which server gets `oauth.client_secret` and callers' tokens"
                    .to_owned(),
            );
        }
        if has_credential && self.client_id.is_none() {
            return Err("`oauth.client_secret` and `oauth.client_key` need a client: set \
                        `oauth.client_id`"
                .to_owned());
        }
        if self.audience.is_some() && self.grant != OAuthGrant::TokenExchange {
            return Err(
                "`oauth.audience` only applies to `oauth.grant = \"token_exchange\"`".to_owned()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_secret_requires_an_issuer() {
        let settings = || OAuthSettings {
            client_id: Some("a".to_owned()),
            client_secret: Some("b".to_owned()),
            ..OAuthSettings::default()
        };
        for grant in [
            OAuthGrant::AuthorizationCode,
            OAuthGrant::ClientCredentials,
            OAuthGrant::TokenExchange,
        ] {
            let why = OAuthSettings { grant, ..settings() }.check().expect_err("no issuer");
            assert!(why.contains("`oauth.issuer`"), "{why}");
            let issuer = Some("https://login.example".to_owned());
            assert_eq!(OAuthSettings { grant, issuer, ..settings() }.check(), Ok(()));
        }
        assert_eq!(OAuthSettings { client_secret: None, ..settings() }.check(), Ok(()));
    }

    #[test]
    fn a_grant_without_a_person_requires_an_issuer_even_with_a_key() {
        let settings = |grant| OAuthSettings {
            grant,
            client_id: Some("a".to_owned()),
            client_key: Some("${KEY}".to_owned()),
            ..OAuthSettings::default()
        };
        assert_eq!(settings(OAuthGrant::AuthorizationCode).check(), Ok(()));
        for grant in [OAuthGrant::ClientCredentials, OAuthGrant::TokenExchange] {
            let why = settings(grant).check().expect_err("no issuer");
            assert!(why.contains("`oauth.issuer`"), "{why}");
            let issuer = Some("https://login.example".to_owned());
            assert_eq!(OAuthSettings { issuer, ..settings(grant) }.check(), Ok(()));
        }
        let both = OAuthSettings {
            client_secret: Some("b".to_owned()),
            ..settings(OAuthGrant::default())
        };
        assert!(both.check().is_err_and(|why| why.contains("set only one")));
    }
}
