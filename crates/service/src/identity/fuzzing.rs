//! Fuzz targets for tokens and key sets.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::json;

use super::jwks::JwkSet;
use super::jws::{JwsAlgorithm, UnverifiedToken};
use super::tokens::check_claims;

/// Fuzz target: checks that no unsigned or modified token is accepted. The input is a token, or a
/// header and claims separated by 0x1f.
pub(crate) fn tokens(bytes: &[u8]) {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a seed");
    let set = single_key_set(&pair);
    let signed =
        |text: &[u8]| UnverifiedToken::parse(text).ok().and_then(|token| set.verify(&token));
    assert_ne!(signed(bytes), Some(true), "an unsigned token was accepted");
    check_claims(bytes);
    let mut parts = bytes.split(|byte| *byte == 0x1f);
    let head = parts.next().unwrap_or_default();
    let claims = parts.next().unwrap_or_default();
    check_claims(claims);
    let body = format!("{}.{}", URL_SAFE_NO_PAD.encode(head), URL_SAFE_NO_PAD.encode(claims));
    let signature = URL_SAFE_NO_PAD.encode(pair.sign(body.as_bytes()));
    let token = format!("{body}.{signature}");
    let Ok(parsed) = UnverifiedToken::parse(token.as_bytes()) else { return };
    assert_eq!(parsed.claims, claims);
    let is_ours = parsed.algorithm == JwsAlgorithm::EdDSA
        && parsed.kid.as_deref().is_none_or(|kid| kid == "a");
    assert_eq!(set.verify(&parsed), is_ours.then_some(true));
    // Change one byte of the token.
    let (Some(&[high, low, byte, ..]), true) = (parts.next(), is_ours) else { return };
    let at = usize::from(u16::from_be_bytes([high, low])) % token.len();
    let mut changed = token.clone().into_bytes();
    changed[at] = byte;
    assert!(changed == token.as_bytes() || signed(&changed) != Some(true));
}

/// Fuzz target: checks that no key of a parsed key set accepts an arbitrary signature.
pub(crate) fn key_sets(bytes: &[u8]) {
    let Ok(set) = JwkSet::parse(bytes) else { return };
    assert!(set.len() > 0);
    for algorithm in JwsAlgorithm::ALL {
        for kid in [json!(null), json!("a")] {
            let head = json!({ "alg": algorithm, "kid": kid }).to_string();
            let signature = URL_SAFE_NO_PAD.encode([7; 64]);
            let token = format!("{}.e30.{signature}", URL_SAFE_NO_PAD.encode(head));
            let parsed = UnverifiedToken::parse(token.as_bytes()).expect("a token");
            assert_ne!(set.verify(&parsed), Some(true));
        }
    }
}

fn single_key_set(pair: &Ed25519KeyPair) -> JwkSet {
    let x = URL_SAFE_NO_PAD.encode(pair.public_key());
    let keys = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "kid": "a", "x": x }] });
    JwkSet::parse(keys.to_string().as_bytes()).expect("a set of one key")
}
