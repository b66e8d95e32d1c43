//! Parses the signing keys that an issuer publishes as a JSON Web Key Set (RFC 7517).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use toolgate_contract::strip_byte_order_mark_bytes;

use super::jws::{JwsAlgorithm, PublicKeyMaterial, TokenVerificationKey, UnverifiedToken};

/// Maximum number of signing keys of one issuer.
const KEYS_MAX: usize = 100;

/// Key set of a token issuer: the public keys that verify its tokens.
pub(super) struct JwkSet(Vec<TokenVerificationKey>);

/// JSON document with an issuer's signing keys.
#[derive(Deserialize)]
struct JwkSetDocument {
    keys: Vec<serde_json::Value>,
}

/// JSON of one signing key (RFC 7517).
#[derive(Deserialize)]
struct JwkDocument {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl JwkSet {
    /// Parses the usable public keys in `json`, a key set (RFC 7517). Ignores unsupported keys and
    /// all symmetric keys. The error is a reason for the log.
    pub(super) fn parse(json: &[u8]) -> Result<Self, String> {
        let document: JwkSetDocument = serde_json::from_slice(strip_byte_order_mark_bytes(json))
            .map_err(|err| format!("the answer is not a key set: {err}"))?;
        if document.keys.len() > KEYS_MAX {
            return Err(format!("the key set has more than {KEYS_MAX} keys"));
        }
        let keys: Vec<TokenVerificationKey> =
            document.keys.into_iter().filter_map(parse_key).collect();
        if keys.is_empty() {
            return Err("the key set has no usable signing key".to_owned());
        }
        Ok(Self(keys))
    }

    /// Returns the number of signing keys in the set.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if one of the keys signed `token`, and false if its signature is invalid.
    /// Returns `None` if no key matches the token's key id and algorithm.
    pub(super) fn verify(&self, token: &UnverifiedToken<'_>) -> Option<bool> {
        let fits = |key: &&TokenVerificationKey| {
            // A token without a key id is accepted only if the issuer has a single key.
            let has_id = match &token.kid {
                Some(kid) => key.kid.as_ref() == Some(kid),
                None => self.0.len() == 1,
            };
            has_id && key.supports(token.algorithm)
        };
        let mut candidates = self.0.iter().filter(fits).peekable();
        candidates.peek()?;
        Some(candidates.any(|key| token.is_signed_with(key)))
    }
}

/// Parses one signing key (JWK). Returns `None` if it is not a supported signature key.
fn parse_key(document: serde_json::Value) -> Option<TokenVerificationKey> {
    let document: JwkDocument = serde_json::from_value(document).ok()?;
    let JwkDocument { kty, kid, alg, purpose, key_ops, crv, n, e, x, y } = document;
    if purpose.is_some_and(|purpose| purpose != "sig")
        || key_ops.is_some_and(|ops| !ops.iter().any(|op| op == "verify"))
    {
        return None;
    }
    let algorithm = match alg {
        Some(alg) => Some(JwsAlgorithm::deserialize(serde_json::Value::String(alg)).ok()?),
        None => None,
    };
    let number = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
    // Uncompressed curve point from two coordinates of the curve's width.
    let point = |x, y, width: usize| {
        let x = number(x)?;
        let y = number(y)?;
        (x.len() == width && y.len() == width).then(|| [&[4], &x[..], &y[..]].concat())
    };
    let public = match (kty.as_str(), crv.as_deref()) {
        ("RSA", None) => {
            let unpadded = |number: Vec<u8>| {
                let zeros = number.iter().take_while(|byte| **byte == 0).count();
                number[zeros..].to_vec()
            };
            PublicKeyMaterial::Rsa { n: unpadded(number(n)?), e: unpadded(number(e)?) }
        }
        ("EC", Some("P-256")) => PublicKeyMaterial::P256(point(x, y, 32)?),
        ("EC", Some("P-384")) => PublicKeyMaterial::P384(point(x, y, 48)?),
        ("OKP", Some("Ed25519")) => {
            PublicKeyMaterial::Ed25519(number(x).filter(|x| x.len() == 32)?)
        }
        (_, _) => return None,
    };
    Some(TokenVerificationKey { kid, algorithm, public })
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use serde_json::{Value, json};

    use super::*;

    /// Returns a new Ed25519 key pair and its public key as a JWK.
    fn pair() -> (Ed25519KeyPair, Value) {
        let secret = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(secret.as_ref()).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key());
        (pair, json!({ "kty": "OKP", "crv": "Ed25519", "kid": "a", "x": x }))
    }

    fn set(keys: &[Value]) -> Result<JwkSet, String> {
        JwkSet::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    fn token(pair: &Ed25519KeyPair, header: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(&json!({ "sub": "ada" })));
        let signature = URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn signed(set: &JwkSet, token: &str) -> Option<bool> {
        UnverifiedToken::parse(token.as_bytes()).ok().and_then(|token| set.verify(&token))
    }

    #[test]
    fn a_token_with_any_bit_changed_or_cut_off_is_rejected() {
        let (pair, key) = pair();
        let set = set(&[key]).unwrap();
        let good = token(&pair, &json!({ "alg": "EdDSA", "kid": "a" }));
        assert_eq!(signed(&set, &good), Some(true));
        for at in 0..good.len() * 8 {
            let mut bytes = good.clone().into_bytes();
            bytes[at / 8] ^= 1 << (at % 8);
            let verified = UnverifiedToken::parse(&bytes).ok().and_then(|token| set.verify(&token));
            assert_ne!(verified, Some(true), "bit {at} of {good}");
        }
        for end in 0..good.len() {
            assert_ne!(signed(&set, &good[..end]), Some(true));
        }
    }

    #[test]
    fn a_token_without_a_key_id_is_verified_only_if_the_issuer_has_one_key() {
        let ((pair, key), (_, mut other)) = (pair(), pair());
        let anonymous = token(&pair, &json!({ "alg": "EdDSA" }));
        assert_eq!(signed(&set(std::slice::from_ref(&key)).unwrap(), &anonymous), Some(true));
        other["kid"] = json!("b");
        let both = set(&[key, other]).unwrap();
        assert_eq!(signed(&both, &anonymous), None);
        let wrong_id = token(&pair, &json!({ "alg": "EdDSA", "kid": "b" }));
        assert_eq!(signed(&both, &wrong_id), Some(false));
    }

    #[test]
    fn entries_that_are_not_verification_keys_are_ignored() {
        let (_, key) = pair();
        let with = |name: &str, value: Value| {
            let mut key = key.clone();
            key[name] = value;
            key
        };
        for other in [
            json!({ "kty": "oct", "kid": "a", "k": "c2VjcmV0" }),
            json!({ "kty": "RSA", "kid": "a", "n": "AQAB" }),
            json!({ "kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB" }),
            json!({ "kty": "EC", "crv": "secp256k1", "x": "AQAB", "y": "AQAB" }),
            json!("key"),
            with("use", json!("enc")),
            with("key_ops", json!(["sign"])),
            with("alg", json!("HS256")),
            with("x", json!("AQAB")),
        ] {
            assert!(set(std::slice::from_ref(&other)).is_err(), "{other}");
            assert_eq!(set(&[other, key.clone()]).unwrap().len(), 1);
        }
        assert!(set(&vec![key; KEYS_MAX + 1]).is_err());
        for bytes in [&b"{}"[..], b"[]", b"", b"<html>", &b"[".repeat(100_000)] {
            assert!(JwkSet::parse(bytes).is_err());
        }
    }
}
