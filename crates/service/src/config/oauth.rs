//! Settings of OAuth issuers and of the scopes of their tokens.

use anyhow::{bail, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_net::HttpUrl;

use super::keys::is_word;
use super::{Config, ToolEffectLimit};

/// OAuth issuer whose tokens are accepted from callers over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OAuthIssuerEntry {
    /// URL of the issuer, exactly as in the `iss` claim of its tokens.
    pub issuer: String,
    /// Accepted values of the tokens' `aud` claim. At least one value must match exactly. The
    /// default is `server.url`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
    /// Prefix of callers' names. A caller's name is this prefix, a colon and the token's `sub`. The
    /// default is the issuer's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// URL of the issuer's signing keys. By default, toolgate discovers the URL (OpenID Connect
    /// Discovery, RFC 8414).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_uri: Option<String>,
    /// Claim that lists the caller's roles, for policy rules. By default, callers have no roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles_claim: Option<String>,
}

/// Tools that a scope of tokens allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OAuthScopeEntry {
    /// Name of the scope in tokens, such as `files:read`.
    pub name: String,
    /// Patterns of tools that the scope allows, such as `files.*` (or `files_*`). By default, the
    /// scope allows all tools.
    #[serde(default = "all_tools")]
    pub tools: Vec<String>,
    /// Highest effect of the tools that the scope allows: `reads`, `adds`, `changes` or `runs`.
    #[serde(default = "runs")]
    pub effects: ToolEffectLimit,
}

fn all_tools() -> Vec<String> {
    vec!["*".to_owned()]
}

fn runs() -> ToolEffectLimit {
    ToolEffectLimit::Runs
}

impl OAuthIssuerEntry {
    /// Returns the prefix of the names of callers with tokens of this issuer.
    pub(crate) fn alias(&self) -> &str {
        match &self.alias {
            Some(alias) => alias,
            None => host(&self.issuer).unwrap_or_default(),
        }
    }
}

/// Returns the host part of `url`, or `None` if it has no host.
fn host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    authority.split(':').next().filter(|host| !host.is_empty())
}

/// Checks the OAuth issuers and scopes in `config`. Fails at the first invalid entry.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    for (nth, issuer) in config.oauth.iter().enumerate() {
        let name = &issuer.issuer;
        if let Err(why) = encrypted_target(name) {
            bail!("the issuer of an [[oauth]] is invalid: {why}");
        }
        ensure!(
            !name.contains(['?', '#']),
            "the issuer `{name}` must not have a query or fragment"
        );
        if let Some(Err(why)) = issuer.jwks_uri.as_deref().map(encrypted_target) {
            bail!("the jwks_uri of the issuer `{name}` is invalid: {why}");
        }
        ensure!(
            is_word(issuer.alias()),
            "the issuer `{name}` needs an alias of letters, digits, `.`, `_` and `-`, which starts \
             the names of its callers"
        );
        ensure!(
            !issuer.audience.is_empty() || config.server.url.is_some(),
            "the issuer `{name}` has no audience, and server.url is not set; set one of them"
        );
        let empty = issuer.audience.iter().any(|audience| audience.trim().is_empty());
        ensure!(!empty, "the issuer `{name}` has an empty audience");
        for other in &config.oauth[..nth] {
            ensure!(other.issuer != *name, "the issuer `{name}` is in two [[oauth]] tables");
            ensure!(
                other.alias() != issuer.alias(),
                "the issuers `{}` and `{name}` have the same alias, `{}`; give each its own, because \
                 it distinguishes their callers",
                other.issuer,
                issuer.alias()
            );
        }
    }
    for (nth, scope) in config.scopes.iter().enumerate() {
        let name = &scope.name;
        // RFC 6749, 3.3.
        let is_allowed = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        ensure!(
            !name.is_empty() && name.len() <= 128 && name.bytes().all(is_allowed),
            "a [[scopes]] table has the name `{name}`, which no token can have"
        );
        ensure!(
            name != "offline_access",
            "the scope `offline_access` is only for a client and its issuer, and cannot allow tools"
        );
        let is_duplicate = config.scopes[..nth].iter().any(|other| other.name == *name);
        ensure!(!is_duplicate, "the scope `{name}` is in two [[scopes]] tables");
        ensure!(!scope.tools.is_empty(), "the scope `{name}` allows no tools");
    }
    ensure!(
        config.scopes.is_empty() || !config.oauth.is_empty(),
        "there are [[scopes]], but no [[oauth]] issuer whose tokens could have them"
    );
    Ok(())
}

/// Parses `url`. Fails unless the URL is encrypted (https) or its host is this machine (loopback).
pub(crate) fn encrypted_target(url: &str) -> Result<HttpUrl, String> {
    let target = HttpUrl::parse(url).map_err(|why| format!("`{url}` {why}"))?;
    match target.is_encrypted_or_loopback() {
        true => Ok(target),
        false => Err(format!("`{url}` is not encrypted; it must be https")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(config: &str) -> String {
        let config: Config = toml::from_str(config).unwrap();
        check(&config).err().map(|err| err.to_string()).unwrap_or_default()
    }

    #[test]
    fn an_invalid_issuer_or_scope_is_refused_with_the_reason() {
        let good = "[[oauth]]\nissuer = \"https://id.example/realm\"\naudience = [\"https://a\"]\n";
        assert_eq!(refusal(good), "");
        let alone = "[[oauth]]\nissuer = \"https://id.example/realm\"\n";
        assert_eq!(refusal(&format!("[server]\nurl = \"https://a/mcp\"\n{alone}")), "");
        let twice = good.replace("/realm", "");
        for (config, expected) in [
            (good.replace("https://id", "http://id"), "must be https"),
            (good.replace("https://id", "file://id"), "is invalid"),
            (good.replace("/realm", "/realm?a=b"), "a query"),
            (alone.to_owned(), "has no audience"),
            (good.replace("https://a", ""), "an empty audience"),
            (format!("{good}alias = \"a:b\"\n"), "needs an alias"),
            (format!("{good}jwks_uri = \"http://169.254.169.254/\"\n"), "must be https"),
            (format!("{good}{good}"), "is in two"),
            (format!("{good}{twice}"), "same alias"),
            (format!("{good}[[scopes]]\nname = \"a b\"\n"), "no token can have"),
            (format!("{good}[[scopes]]\nname = \"a\\\"\"\n"), "no token can have"),
            (format!("{good}[[scopes]]\nname = \"offline_access\"\n"), "only for a client"),
            (
                format!("{good}[[scopes]]\nname = \"a\"\n[[scopes]]\nname = \"a\"\n"),
                "two [[scopes]]",
            ),
            ("[[scopes]]\nname = \"a\"\n".to_owned(), "no [[oauth]]"),
        ] {
            let message = refusal(&config);
            assert!(message.contains(expected), "{config}\n{message}");
        }
    }
}
