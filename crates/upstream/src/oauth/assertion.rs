//! Signs client assertions (`private_key_jwt`, RFC 7523), so that the private key is never sent.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaKeyPair,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::discovery::AuthorizationServerMetadata;
use super::sign_in::random_token;

/// Lifetime of a client assertion, in seconds.
const LIFETIME_SECS: u64 = 60;

/// A client's private key for signed assertions, with its optional key id.
pub(crate) struct AssertionSigningKey {
    pair: AssertionKeyPair,
    id: Option<String>,
}

/// A private key of a client, with one variant for each algorithm.
enum AssertionKeyPair {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Rsa(RsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl AssertionSigningKey {
    /// Reads the private key in `pem`, with the key id `id`.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is invalid or its algorithm is not supported. The error contains
    /// no part of the key.
    pub(crate) fn read(pem: &str, id: Option<String>) -> Result<Self, String> {
        // Environment variables often hold the lines joined by `\n`.
        let pem = pem.replace("\\n", "\n");
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| {
            "`oauth.client_key` is not a private key in PEM (PKCS #8, starting with `-----BEGIN \
             PRIVATE KEY-----`); convert it with `openssl pkcs8 -topk8 -nocrypt`"
                .to_owned()
        })?;
        let der = der.secret_pkcs8_der();
        let random = SystemRandom::new();
        let curve = |of| EcdsaKeyPair::from_pkcs8(of, der, &random).ok();
        let pair = None
            .or_else(|| curve(&ECDSA_P256_SHA256_FIXED_SIGNING).map(AssertionKeyPair::P256))
            .or_else(|| curve(&ECDSA_P384_SHA384_FIXED_SIGNING).map(AssertionKeyPair::P384))
            .or_else(|| RsaKeyPair::from_pkcs8(der).ok().map(AssertionKeyPair::Rsa))
            .or_else(|| {
                Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok().map(AssertionKeyPair::Ed25519)
            });
        let pair = pair.ok_or(
            "`oauth.client_key` is of an unsupported kind; use P-256 or P-384 with its public key, \
             Ed25519, or RSA of 2,048 to 4,096 bits",
        )?;
        Ok(Self { pair, id })
    }

    /// Returns a signed assertion (JWT) that identifies toolgate to `server` as `client`. The
    /// assertion can be used once, within 60 seconds.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no random numbers or the key cannot sign.
    pub(crate) fn sign_assertion(
        &self,
        client: &str,
        server: &AuthorizationServerMetadata,
        now: u64,
    ) -> Result<String, String> {
        let mut header = json!({ "alg": self.algorithm(server), "typ": "JWT" });
        if let Some(id) = &self.id {
            header["kid"] = json!(id);
        }
        let claims = json!({
            "iss": client,
            "sub": client,
            "aud": server.issuer,
            "jti": random_token()?,
            "iat": now,
            "exp": now + LIFETIME_SECS,
        });
        let part = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = self.signature(signed.as_bytes(), server);
        let signature = signature.map_err(|_| "`oauth.client_key` cannot sign".to_owned())?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Returns the JWS name of the key's signature algorithm.
    fn algorithm(&self, server: &AuthorizationServerMetadata) -> &'static str {
        match self.pair {
            AssertionKeyPair::P256(_) => "ES256",
            AssertionKeyPair::P384(_) => "ES384",
            AssertionKeyPair::Ed25519(_) => "EdDSA",
            AssertionKeyPair::Rsa(_) => {
                let listed = server.token_endpoint_auth_signing_alg_values_supported.as_deref();
                let listed = listed.unwrap_or_default();
                let supports = |wanted: &str| listed.iter().any(|one| one == wanted);
                if supports("PS256") && !supports("RS256") { "PS256" } else { "RS256" }
            }
        }
    }

    fn signature(
        &self,
        signed: &[u8],
        server: &AuthorizationServerMetadata,
    ) -> Result<Vec<u8>, ring::error::Unspecified> {
        let random = SystemRandom::new();
        match &self.pair {
            AssertionKeyPair::P256(pair) | AssertionKeyPair::P384(pair) => {
                Ok(pair.sign(&random, signed)?.as_ref().into())
            }
            AssertionKeyPair::Ed25519(pair) => Ok(pair.sign(signed).as_ref().into()),
            AssertionKeyPair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                match self.algorithm(server) {
                    "PS256" => pair.sign(&RSA_PSS_SHA256, &random, signed, &mut signature)?,
                    _ => pair.sign(&RSA_PKCS1_SHA256, &random, signed, &mut signature)?,
                }
                Ok(signature)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{self, KeyPair, UnparsedPublicKey};

    use super::*;

    fn pem(der: &[u8]) -> String {
        let body = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n")
    }

    fn server() -> AuthorizationServerMetadata {
        AuthorizationServerMetadata {
            issuer: "https://login.example".to_owned(),
            ..AuthorizationServerMetadata::default()
        }
    }

    #[test]
    fn an_assertion_is_signed_for_one_server_and_valid_once_for_a_minute() {
        let curve = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(curve, &random).expect("a key");
        let in_one_line = pem(der.as_ref()).replace('\n', "\\n");
        let key =
            AssertionSigningKey::read(&in_one_line, Some("first".to_owned())).expect("a valid key");
        let assertion = key.sign_assertion("it", &server(), 100).expect("it signs");
        let (signed, signature) = assertion.rsplit_once('.').expect("three parts");
        let signature = URL_SAFE_NO_PAD.decode(signature).expect("base 64");
        let public = EcdsaKeyPair::from_pkcs8(curve, der.as_ref(), &random).expect("a key");
        UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, public.public_key())
            .verify(signed.as_bytes(), &signature)
            .expect("it is signed by the key");
        let parts = signed.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).expect("base 64"));
        let parts: Vec<Value> =
            parts.map(|part| serde_json::from_slice(&part).expect("JSON")).collect();
        assert_eq!(parts[0], json!({ "alg": "ES256", "typ": "JWT", "kid": "first" }));
        let claims = |name: &str| parts[1][name].clone();
        assert_eq!([claims("iss"), claims("sub")], ["it", "it"]);
        assert_eq!(claims("aud"), "https://login.example");
        assert_eq!([claims("iat"), claims("exp")], [100, 160]);
        let again = key.sign_assertion("it", &server(), 100).expect("it signs");
        assert_ne!(
            assertion.split('.').nth(1),
            again.split('.').nth(1),
            "each assertion has its own id"
        );
    }

    #[test]
    fn a_key_of_each_kind_is_accepted_and_an_invalid_one_is_not_quoted() {
        let random = SystemRandom::new();
        let p384 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &random);
        let edwards = Ed25519KeyPair::generate_pkcs8(&random);
        for (der, algorithm) in [(p384, "ES384"), (edwards, "EdDSA")] {
            let key = AssertionSigningKey::read(&pem(der.expect("a key").as_ref()), None)
                .expect("a valid key");
            assert_eq!(key.algorithm(&server()), algorithm);
            assert!(key.sign_assertion("it", &server(), 0).is_ok());
        }
        for invalid in ["hunter2", &pem(b"hunter2")] {
            let why = AssertionSigningKey::read(invalid, None).err().expect("it is invalid");
            assert!(why.contains("`oauth.client_key`") && !why.contains("hunter2"), "{why}");
        }
    }
}
