//! Parses and verifies tokens in the compact serialization of JWS.
//!
//! A token's header can only select one of the issuer's keys, and one of the algorithms that this
//! key allows.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// Largest token (JWS) that is parsed, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Longest id of a signing key, in bytes.
const KID_BYTES_MAX: usize = 256;

/// JWS signature algorithm. Only asymmetric algorithms are accepted, never HMAC or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(any(fuzzing, test), derive(serde::Serialize))]
pub(super) enum JwsAlgorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    EdDSA,
}

#[cfg(any(fuzzing, test))]
impl JwsAlgorithm {
    /// All signature algorithms that are accepted.
    pub(super) const ALL: [Self; 9] = [
        Self::RS256,
        Self::RS384,
        Self::RS512,
        Self::PS256,
        Self::PS384,
        Self::PS512,
        Self::ES256,
        Self::ES384,
        Self::EdDSA,
    ];
}

/// A token (JWS) that is parsed but not yet verified.
pub(super) struct UnverifiedToken<'t> {
    pub(super) algorithm: JwsAlgorithm,
    /// Id of the signing key, from the token's header.
    pub(super) kid: Option<String>,
    /// Claims of the token, as JSON.
    pub(super) claims: Vec<u8>,
    signed_bytes: &'t [u8],
    signature: Vec<u8>,
}

/// Header of a signed token.
#[derive(Deserialize)]
struct JwsHeader {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    /// True if the token's header has the field `crit`, which names critical extensions. Such
    /// tokens are refused, because no extension is supported.
    #[serde(default, deserialize_with = "is_present")]
    crit: bool,
    /// True if the token's header has a field that only unencoded, compressed or encrypted payloads
    /// have. Such tokens are refused.
    #[serde(default, deserialize_with = "is_present")]
    b64: bool,
    #[serde(default, deserialize_with = "is_present")]
    zip: bool,
    #[serde(default, deserialize_with = "is_present")]
    enc: bool,
}

/// Deserializes a header field to true if the field is present, even with the value `null`, which
/// an `Option` would treat as missing.
pub(super) fn is_present<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(value).map(|_| true)
}

impl<'t> UnverifiedToken<'t> {
    /// Parses the token `text`. The error is a reason for the log.
    pub(super) fn parse(text: &'t [u8]) -> Result<Self, &'static str> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err("the token is too long");
        }
        let mut parts = text.split(|byte| *byte == b'.');
        let (Some(head), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("the token does not have three parts");
        };
        let decoded =
            |part| URL_SAFE_NO_PAD.decode(part).map_err(|_| "the token is not valid base64url");
        let header: JwsHeader =
            serde_json::from_slice(&decoded(head)?).map_err(|_| "the token's header is invalid")?;
        let JwsHeader { alg, kid, typ, crit, b64, zip, enc } = header;
        if crit || b64 || zip || enc {
            return Err("the token's header has an unsupported extension");
        }
        if !typ.is_none_or(|typ| is_access_token(&typ)) {
            return Err("the token is not an access token");
        }
        if kid.as_ref().is_some_and(|kid| kid.len() > KID_BYTES_MAX) {
            return Err("the token's key id is too long");
        }
        let algorithm = JwsAlgorithm::deserialize(serde_json::Value::String(alg));
        let algorithm = algorithm.map_err(|_| "the token's algorithm is not supported")?;
        Ok(Self {
            algorithm,
            kid,
            claims: decoded(claims)?,
            signed_bytes: &text[..head.len() + 1 + claims.len()],
            signature: decoded(signature)?,
        })
    }

    /// Returns true if the token's signature is valid under `key`.
    pub(super) fn is_signed_with(&self, key: &TokenVerificationKey) -> bool {
        let Self { algorithm, signed_bytes: signed, signature, .. } = self;
        let plain = |by: &'static dyn VerificationAlgorithm, public: &[u8]| {
            UnparsedPublicKey::new(by, public).verify(signed, signature).is_ok()
        };
        match (&key.public, algorithm) {
            (PublicKeyMaterial::Rsa { n, e }, algorithm) => {
                let by = match algorithm {
                    JwsAlgorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    JwsAlgorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    JwsAlgorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    JwsAlgorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
                    JwsAlgorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
                    JwsAlgorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
                    JwsAlgorithm::ES256 | JwsAlgorithm::ES384 | JwsAlgorithm::EdDSA => {
                        return false;
                    }
                };
                RsaPublicKeyComponents { n, e }.verify(by, signed, signature).is_ok()
            }
            (PublicKeyMaterial::P256(point), JwsAlgorithm::ES256) => {
                plain(&signature::ECDSA_P256_SHA256_FIXED, point)
            }
            (PublicKeyMaterial::P384(point), JwsAlgorithm::ES384) => {
                plain(&signature::ECDSA_P384_SHA384_FIXED, point)
            }
            (PublicKeyMaterial::Ed25519(public), JwsAlgorithm::EdDSA) => {
                plain(&signature::ED25519, public)
            }
            (
                PublicKeyMaterial::P256(_)
                | PublicKeyMaterial::P384(_)
                | PublicKeyMaterial::Ed25519(_),
                _,
            ) => false,
        }
    }
}

/// Returns true if `typ`, a field of a token's header, names an access token (RFC 9068) or a plain
/// JWT.
fn is_access_token(typ: &str) -> bool {
    let typ = typ.to_ascii_lowercase();
    let typ = typ.strip_prefix("application/").unwrap_or(&typ);
    matches!(typ, "at+jwt" | "jwt")
}

/// Public half of a token issuer's signing key.
pub(super) struct TokenVerificationKey {
    pub(super) kid: Option<String>,
    /// The only signature algorithm that the key allows. `None` if the key allows every algorithm
    /// for its type.
    pub(super) algorithm: Option<JwsAlgorithm>,
    pub(super) public: PublicKeyMaterial,
}

/// Public key of a token issuer, in the encoding that the signature algorithms need.
pub(super) enum PublicKeyMaterial {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl TokenVerificationKey {
    /// Returns true if the signing key may verify signatures of `algorithm`.
    pub(super) fn supports(&self, algorithm: JwsAlgorithm) -> bool {
        let fits = match (&self.public, algorithm) {
            (
                PublicKeyMaterial::Rsa { .. },
                JwsAlgorithm::RS256
                | JwsAlgorithm::RS384
                | JwsAlgorithm::RS512
                | JwsAlgorithm::PS256
                | JwsAlgorithm::PS384
                | JwsAlgorithm::PS512,
            )
            | (PublicKeyMaterial::P256(_), JwsAlgorithm::ES256)
            | (PublicKeyMaterial::P384(_), JwsAlgorithm::ES384)
            | (PublicKeyMaterial::Ed25519(_), JwsAlgorithm::EdDSA) => true,
            (
                PublicKeyMaterial::Rsa { .. }
                | PublicKeyMaterial::P256(_)
                | PublicKeyMaterial::P384(_)
                | PublicKeyMaterial::Ed25519(_),
                _,
            ) => false,
        };
        fits && self.algorithm.is_none_or(|only| only == algorithm)
    }
}

#[cfg(test)]
mod tests;
