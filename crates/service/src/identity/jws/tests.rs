//! Tests of attacks that succeeded against published JWT libraries.

use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING,
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair,
};
use serde_json::{Value, json};

use super::super::jwks::JwkSet;
use super::*;

/// Header of a valid token.
const HEADER: &str = r#"{"alg":"ES256","kid":"a"}"#;
/// Claims of all tokens in these tests.
const CLAIMS: &str = r#"{"sub":"ada"}"#;

/// An issuer with one ECDSA key.
struct EcdsaIssuer {
    key: EcdsaKeyPair,
    jwk: Value,
    keys: JwkSet,
}

impl EcdsaIssuer {
    fn new(algorithm: &'static EcdsaSigningAlgorithm, curve: &str) -> Self {
        let random = SystemRandom::new();
        let secret = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(algorithm, secret.as_ref(), &random).unwrap();
        let point = &key.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        let [x, y] = [x, y].map(|number| URL_SAFE_NO_PAD.encode(number));
        let jwk = json!({ "kty": "EC", "crv": curve, "kid": "a", "x": x, "y": y });
        let keys = JwkSet::parse(json!({ "keys": [jwk] }).to_string().as_bytes()).unwrap();
        Self { key, jwk, keys }
    }

    fn p256() -> Self {
        Self::new(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256")
    }

    /// Returns a token with `header` and a valid signature.
    fn token(&self, header: &str) -> String {
        let signed = signed_text(header);
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    #[track_caller]
    fn check_refused(&self, token: &str, why: &str) {
        assert!(!is_accepted(&self.keys, token), "{why}: {token}");
    }
}

fn signed_text(header: &str) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(CLAIMS))
}

/// Returns a token with `header`, the claims of all tests, and the signature `signature`.
fn with_signature(header: &str, signature: &[u8]) -> String {
    format!("{}.{}", signed_text(header), URL_SAFE_NO_PAD.encode(signature))
}

fn is_accepted(keys: &JwkSet, token: &str) -> bool {
    let token = UnverifiedToken::parse(token.as_bytes());
    token.is_ok_and(|token| keys.verify(&token) == Some(true))
}

/// Reproduces CVE-2015-9235 and CVE-2022-23540 (jsonwebtoken of Node).
#[test]
fn a_token_without_a_signature_algorithm_is_refused() {
    let issuer = EcdsaIssuer::p256();
    assert!(is_accepted(&issuer.keys, &issuer.token(HEADER)));
    for alg in ["none", "None", "NONE", "nOnE", "", " ES256", "es256", "ES256\u{0}", "ES256K"] {
        let header = json!({ "alg": alg, "kid": "a" }).to_string();
        issuer.check_refused(&with_signature(&header, b""), "no signature");
        issuer.check_refused(&issuer.token(&header), "valid signature");
    }
    for header in [
        r#"{"kid":"a"}"#,
        r#"{"alg":null,"kid":"a"}"#,
        r#"{"alg":["ES256"],"kid":"a"}"#,
        r#"{"alg":{"ES256":null},"kid":"a"}"#,
        r#"{"alg":"ES256","alg":"none","kid":"a"}"#,
        r#"{"alg":"none","alg":"ES256","kid":"a"}"#,
    ] {
        issuer.check_refused(&with_signature(header, b""), header);
        issuer.check_refused(&issuer.token(header), header);
    }
    issuer.check_refused(&with_signature(HEADER, b""), "empty signature");
}

/// Reproduces CVE-2016-10555 (jwt-simple), CVE-2022-29217 (PyJWT), CVE-2023-48223 (fast-jwt) and
/// CVE-2024-33663 (python-jose).
#[test]
fn a_public_key_is_not_accepted_as_the_secret_of_an_hmac() {
    let issuer = EcdsaIssuer::p256();
    let point = issuer.key.public_key().as_ref().to_vec();
    let pem = |name: &str| {
        let body = base64::engine::general_purpose::STANDARD.encode(&point);
        format!("-----BEGIN {name}-----\n{body}\n-----END {name}-----\n").into_bytes()
    };
    let secrets = [
        point.clone(),
        pem("PUBLIC KEY"),
        pem("EC PUBLIC KEY"),
        issuer.jwk.to_string().into_bytes(),
        issuer.jwk["x"].to_string().into_bytes(),
        Vec::new(),
    ];
    for (alg, hash) in
        [("HS256", hmac::HMAC_SHA256), ("HS384", hmac::HMAC_SHA384), ("HS512", hmac::HMAC_SHA512)]
    {
        for secret in &secrets {
            for header in [json!({ "alg": alg, "kid": "a" }), json!({ "alg": alg })] {
                let header = header.to_string();
                let key = hmac::Key::new(hash, secret);
                let mac = hmac::sign(&key, signed_text(&header).as_bytes());
                issuer.check_refused(&with_signature(&header, mac.as_ref()), alg);
            }
        }
    }
}

/// Reproduces CVE-2022-21449 (Java's ECDSA accepted zeros).
#[test]
fn an_ecdsa_signature_of_zeros_or_multiples_of_the_order_is_refused() {
    const P256_ORDER: [u8; 32] = [
        0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc,
        0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
    ];
    let issuer = EcdsaIssuer::p256();
    let zero = [0; 32];
    let one = {
        let mut one = zero;
        one[31] = 1;
        one
    };
    for r in [zero, one, P256_ORDER, [0xff; 32]] {
        for s in [zero, one, P256_ORDER, [0xff; 32]] {
            issuer.check_refused(&with_signature(HEADER, &[r, s].concat()), "numbers");
        }
    }
    let p384 = EcdsaIssuer::new(&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384");
    let header = r#"{"alg":"ES384","kid":"a"}"#;
    assert!(is_accepted(&p384.keys, &p384.token(header)));
    p384.check_refused(&with_signature(header, &[0; 96]), "zeros");
    for length in [0, 1, 63, 65, 128] {
        issuer.check_refused(&with_signature(HEADER, &vec![0; length]), "wrong length");
    }
}

#[test]
fn a_signature_in_another_encoding_is_refused() {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let secret = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    let der = EcdsaKeyPair::from_pkcs8(algorithm, secret.as_ref(), &random).unwrap();
    let point = &der.public_key().as_ref()[1..];
    let [x, y] = [&point[..32], &point[32..]].map(|number| URL_SAFE_NO_PAD.encode(number));
    let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": "a", "x": x, "y": y });
    let keys = JwkSet::parse(json!({ "keys": [jwk] }).to_string().as_bytes()).unwrap();
    let signature = der.sign(&random, signed_text(HEADER).as_bytes()).unwrap();
    assert!(!is_accepted(&keys, &with_signature(HEADER, signature.as_ref())));
}

/// Adding the group order of Ed25519 to the second half of a signature gives another signature of
/// the same text. Strict verifiers refuse it (RFC 8032, 5.1.7).
#[test]
fn an_ed25519_signature_has_only_one_form() {
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde,
        0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let secret = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(secret.as_ref()).unwrap();
    let x = URL_SAFE_NO_PAD.encode(pair.public_key());
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "a", "x": x });
    let keys = JwkSet::parse(json!({ "keys": [jwk] }).to_string().as_bytes()).unwrap();
    let header = r#"{"alg":"EdDSA","kid":"a"}"#;
    let mut signature = pair.sign(signed_text(header).as_bytes()).as_ref().to_vec();
    assert!(is_accepted(&keys, &with_signature(header, &signature)));
    let mut carry = 0;
    for (byte, more) in signature[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(more) + carry;
        [*byte, _] = sum.to_le_bytes();
        carry = sum >> 8;
    }
    assert!(!is_accepted(&keys, &with_signature(header, &signature)));
    assert!(!is_accepted(&keys, &with_signature(header, &[0; 64])));
}

/// Reproduces CVE-2025-59420 (Authlib), CVE-2026-32597 (PyJWT) and CVE-2026-35042 (fast-jwt).
#[test]
fn a_token_with_a_critical_extension_is_refused_even_if_it_is_signed() {
    let issuer = EcdsaIssuer::p256();
    for more in [
        r#""crit":["x-policy"],"x-policy":"require-mfa""#,
        r#""crit":["exp"]"#,
        r#""crit":["b64"],"b64":false"#,
        r#""crit":["b64"],"b64":true"#,
        r#""crit":[]"#,
        r#""crit":null"#,
        r#""crit":"""#,
        r#""b64":false"#,
        r#""b64":null"#,
        r#""zip":"DEF""#,
        r#""enc":"A256GCM""#,
    ] {
        issuer
            .check_refused(&issuer.token(&format!(r#"{{"alg":"ES256","kid":"a",{more}}}"#)), more);
    }
}

/// Reproduces CVE-2018-0114 (node-jose trusted the key in the header), and tests injections into
/// the lookup of keys.
#[test]
fn a_header_can_neither_bring_nor_fetch_a_key() {
    let issuer = EcdsaIssuer::p256();
    let stranger = EcdsaIssuer::p256();
    let header = json!({
        "alg": "ES256", "kid": "a", "jwk": stranger.jwk, "jku": "http://127.0.0.1:1/",
        "x5u": "http://127.0.0.1:1/", "x5c": ["AAAA"],
    });
    issuer.check_refused(&stranger.token(&header.to_string()), "key in the header");
    for kid in [
        json!("../../dev/null"),
        json!("a' UNION SELECT 'key"),
        json!("a\u{0}"),
        json!("A"),
        json!(""),
        json!("http://127.0.0.1:1/jwks"),
        json!("a".repeat(KID_BYTES_MAX + 1)),
        json!(["a"]),
        json!({ "a": "a" }),
        json!(0),
    ] {
        let header = json!({ "alg": "ES256", "kid": kid }).to_string();
        issuer.check_refused(&issuer.token(&header), "key id");
    }
}

/// Reproduces CVE-2026-48523 (PyJWT verified with the algorithm of the key, whatever the header
/// named).
#[test]
fn the_algorithm_must_be_that_of_the_header_and_that_of_the_key() {
    let issuer = EcdsaIssuer::p256();
    for alg in JwsAlgorithm::ALL {
        let header = json!({ "alg": alg, "kid": "a" }).to_string();
        let accepted = is_accepted(&issuer.keys, &issuer.token(&header));
        assert_eq!(accepted, alg == JwsAlgorithm::ES256, "{alg:?}");
    }
    let mut jwk = issuer.jwk.clone();
    jwk["alg"] = json!("ES384");
    let keys = JwkSet::parse(json!({ "keys": [jwk] }).to_string().as_bytes()).unwrap();
    assert!(!is_accepted(&keys, &issuer.token(HEADER)));
}

/// Reproduces CVE-2023-51774 (json-jwt took encrypted tokens for signed ones), CVE-2025-27144
/// (go-jose) and CVE-2025-30204 (golang-jwt), in which each period of a token took memory.
#[test]
fn a_token_in_another_form_is_refused() {
    let issuer = EcdsaIssuer::p256();
    let good = issuer.token(HEADER);
    let parts: Vec<&str> = good.split('.').collect();
    let json = json!({ "protected": parts[0], "payload": parts[1], "signature": parts[2] });
    for token in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        ".".repeat(TOKEN_BYTES_MAX),
        ".".repeat(1 << 20),
        format!("{good}."),
        format!(".{good}"),
        format!("{good}.."),
        format!("{}.{}.{}.{}.{}", parts[0], parts[1], parts[1], parts[1], parts[2]),
        format!("{good} "),
        format!("{good}\n"),
        format!("{good}="),
        good.replace('.', ".."),
        json.to_string(),
        format!("{}.{}.{}", parts[0], "A".repeat(TOKEN_BYTES_MAX), parts[2]),
    ] {
        issuer.check_refused(&token, "form");
    }
}
