//! API keys in the settings and in the key file.

use std::collections::HashMap;

use anyhow::bail;
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use http::HeaderName;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

use super::Config;

/// SHA-256 digest of an API key.
pub(crate) type ApiKeyDigest = [u8; 32];

/// Longest name of a caller, in characters.
const NAME_CHARS_MAX: usize = 64;
/// Names of callers without an API key, which no key may have.
const RESERVED_NAMES: [&str; 2] = ["local", "http"];

/// API key of a caller over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// Name of the caller in policy, limits, jobs and the audit log. Several keys may share a name,
    /// for example during rotation.
    pub name: String,
    /// SHA-256 digest of the key, as 64 hexadecimal digits. The key itself is not stored.
    pub sha256: String,
    /// Roles of the caller, for policy rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Time at which the key was created. `toolgate key new` writes it into the key file. It is not
    /// a setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub made: Option<Timestamp>,
    /// Time at which the key expires. By default, the key is valid until you revoke it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub expires: Option<Timestamp>,
}

impl ApiKey {
    /// Creates the entry for the API key `key` of the caller `name`.
    pub fn from_secret(name: &str, key: &str) -> Self {
        Self {
            name: name.to_owned(),
            sha256: HEXLOWER.encode(&digest(key.as_bytes())),
            roles: Vec::new(),
            made: None,
            expires: None,
        }
    }

    /// Parses the key's digest. Returns `None` if it is invalid.
    pub(crate) fn digest_key(&self) -> Option<ApiKeyDigest> {
        parse_digest(&self.sha256)
    }
}

/// Parses the 64 hexadecimal digits of a digest. Returns `None` if `text` is not a digest.
pub(crate) fn parse_digest(text: &str) -> Option<ApiKeyDigest> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// Deserializes the API keys of a settings file. Fails if a key has a time of creation, which only
/// the key file contains.
pub(super) fn configured_keys<'de, D: Deserializer<'de>>(keys: D) -> Result<Vec<ApiKey>, D::Error> {
    let keys = Vec::<ApiKey>::deserialize(keys)?;
    match keys.iter().any(|key| key.made.is_some()) {
        true => Err(D::Error::unknown_field("made", &["name", "sha256", "roles", "expires"])),
        false => Ok(keys),
    }
}

/// Returns the SHA-256 digest of the API key `key`.
pub(crate) fn digest(key: &[u8]) -> ApiKeyDigest {
    Sha256::digest(key).into()
}

/// Checks the API keys in `config`, and the names of the headers that may contain keys. Fails if a
/// key or name is invalid.
pub fn check(config: &Config) -> anyhow::Result<()> {
    check_all(&config.keys, "[[keys]]")?;
    for header in &config.contracts.key_headers {
        if header.parse::<HeaderName>().is_err() {
            bail!("`{header}` is not a valid header name for an API key");
        }
    }
    Ok(())
}

/// Checks that a key may have the caller name `name`.
///
/// # Errors
/// The name has other characters than callers may have, or is reserved.
pub fn check_caller_name(name: &str) -> anyhow::Result<()> {
    if !is_word(name) {
        bail!(
            "`{name}` is not a valid caller name; use 1 to {NAME_CHARS_MAX} letters, digits, `.`, `_` \
             and `-`"
        );
    }
    if RESERVED_NAMES.contains(&name) {
        bail!("the name `{name}` is reserved for callers without a key; choose another name");
    }
    Ok(())
}

/// Checks the API keys `keys`. `place` is the name of their source in error messages, such as the
/// path of the key file.
pub(super) fn check_all(keys: &[ApiKey], place: &str) -> anyhow::Result<()> {
    let mut seen: HashMap<ApiKeyDigest, &str> = HashMap::new();
    for key in keys {
        let name = key.name.as_str();
        if !is_word(name) {
            bail!(
                "`{name}` in {place} is not a valid name of a caller; use 1 to {NAME_CHARS_MAX} \
                 letters, digits, `.`, `_` and `-`"
            );
        }
        if RESERVED_NAMES.contains(&name) {
            bail!(
                "a key of {place} has the name `{name}`, which is reserved for callers without a key"
            );
        }
        if let Some(role) = key.roles.iter().find(|role| !is_word(role)) {
            bail!(
                "`{role}` of the key `{name}` in {place} is not a valid role; use 1 to \
                 {NAME_CHARS_MAX} letters, digits, `.`, `_` and `-`"
            );
        }
        let Some(digest) = key.digest_key() else {
            bail!(
                "sha256 of the key `{name}` in {place} is not a digest of 64 hexadecimal digits; \
                 create a key and its digest with `toolgate key {name}`"
            );
        };
        if digest == self::digest(b"") {
            bail!("sha256 of the key `{name}` in {place} is the digest of an empty key");
        }
        if let Some(other) = seen.insert(digest, name) {
            bail!("the keys `{other}` and `{name}` in {place} are the same key");
        }
    }
    Ok(())
}

/// Returns true if `text` is a valid name of a caller or role.
pub(super) fn is_word(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty() && text.len() <= NAME_CHARS_MAX && text.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(keys: &[(&str, &str)]) -> String {
        let keys = keys.iter().map(|(name, sha256)| ApiKey {
            sha256: (*sha256).to_owned(),
            ..ApiKey::from_secret(name, "")
        });
        let config = Config { keys: keys.collect(), ..Config::default() };
        check(&config).expect_err("refused").to_string()
    }

    #[test]
    fn a_key_is_stored_as_its_sha_256_digest() {
        // The output of `printf devkey | sha256sum`.
        let hex = "e99cd6f9c57b85b112d134efdd0bdba9528cdace6a8613dde31aa2795a821594";
        assert_eq!(ApiKey::from_secret("ci", "devkey").sha256, hex);
        let key = ApiKey::from_secret("ci", "devkey");
        assert_eq!(key.digest_key(), Some(digest(b"devkey")));
        let upper = ApiKey { sha256: key.sha256.to_uppercase(), ..key };
        assert_eq!(upper.digest_key(), Some(digest(b"devkey")));
    }

    #[test]
    fn an_unusable_key_is_refused_with_the_reason() {
        let good = ApiKey::from_secret("ci", "a").sha256;
        let empty = ApiKey::from_secret("ci", "").sha256;
        for (name, sha256, expected) in [
            ("", good.as_str(), "1 to 64"),
            ("a b", &good, "1 to 64"),
            ("local", &good, "without a key"),
            ("ci", "devkey", "64 hexadecimal digits"),
            ("ci", &good[..63], "64 hexadecimal digits"),
            ("ci", &empty, "digest of an empty key"),
        ] {
            let message = refusal(&[(name, sha256)]);
            assert!(message.contains(expected) && !message.contains("devkey"), "{message}");
        }
        assert!(refusal(&[("ci", &good), ("dev", &good)]).contains("`ci` and `dev`"));
        let upper = good.to_uppercase();
        assert!(refusal(&[("ci", &good), ("ci", &upper)]).contains("the same key"));
    }
}
