//! Public keys and signatures of SSH (RFC 4251, RFC 4253), and the fields of its messages.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ring::digest::{SHA256, digest};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, EcdsaVerificationAlgorithm,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA512, RsaPublicKeyComponents,
    UnparsedPublicKey,
};

/// The names of key types whose signatures this module can verify.
const VERIFIABLE_TYPES: [&str; 4] =
    ["ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ssh-rsa"];
/// The prefix of a key's fingerprint, before the hash.
const FINGERPRINT_START: &str = "SHA256:";
/// The number of characters of the hash in a fingerprint.
const FINGERPRINT_CHARS: usize = 43;

/// A reader of the fields of an SSH message. Its methods return `None` if the message is too short.
pub(super) struct SshFieldReader<'m>(&'m [u8]);

impl<'m> SshFieldReader<'m> {
    pub(super) fn new(message: &'m [u8]) -> Self {
        Self(message)
    }

    pub(super) fn read_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn read_number(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*bytes))
    }

    pub(super) fn read_string(&mut self) -> Option<&'m [u8]> {
        let length = usize::try_from(self.read_number()?).ok()?;
        let (field, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }

    /// Returns true if all fields have been read.
    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends `number` to an SSH message, in four bytes.
pub(super) fn push_number(message: &mut Vec<u8>, number: usize) {
    // All messages are much smaller.
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    message.extend_from_slice(&number.to_be_bytes());
}

/// Appends the length of `field`, and then `field`, to an SSH message.
pub(super) fn push_string(message: &mut Vec<u8>, field: &[u8]) {
    push_number(message, field.len());
    message.extend_from_slice(field);
}

/// An SSH public key in its binary encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SshPublicKey(Vec<u8>);

impl SshPublicKey {
    /// Parses a line such as `ssh-ed25519 AAAAC3… comment`.
    ///
    /// # Errors
    /// A sentence that explains why `line` is no public key.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let (kind, body) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let blob = STANDARD.decode(body).unwrap_or_default();
        match SshFieldReader::new(&blob).read_string() {
            Some(named) if named == kind.as_bytes() => Ok(Self(blob)),
            _ => Err(format!(
                "{line:?} is not a public key such as `ssh-ed25519 AAAAC3…`, without a host name"
            )),
        }
    }

    /// Parses a line such as `ssh-ed25519 AAAAC3… comment`, with a key whose signatures this module
    /// can verify.
    ///
    /// # Errors
    /// A sentence that explains why `line` is no public key, or that its signatures cannot be
    /// verified.
    pub(super) fn parse_verifiable(line: &str) -> Result<Self, String> {
        let key = Self::parse(line)?;
        let kind = line.split_whitespace().next().unwrap_or_default();
        match VERIFIABLE_TYPES.contains(&kind) {
            true => Ok(key),
            false => Err(format!(
                "the type `{kind}` of a host key is not supported; name a key of the type {}",
                VERIFIABLE_TYPES.join(", ")
            )),
        }
    }

    pub(super) fn blob(&self) -> &[u8] {
        &self.0
    }

    /// Returns the key as a line without a comment, for example `ssh-ed25519 AAAAC3…`.
    pub(super) fn line(&self) -> String {
        let kind = SshFieldReader::new(&self.0).read_string().unwrap_or_default();
        format!("{} {}", String::from_utf8_lossy(kind), STANDARD.encode(&self.0))
    }
}

/// Returns the fingerprint of the key `blob`, as `ssh-add -l` prints it: `SHA256:…`.
pub(super) fn fingerprint(blob: &[u8]) -> String {
    format!("{FINGERPRINT_START}{}", STANDARD_NO_PAD.encode(digest(&SHA256, blob)))
}

/// Returns the fingerprint of the key in `text`. `text` is a fingerprint or a public key.
///
/// # Errors
/// A sentence that explains why `text` is neither a fingerprint nor a public key.
pub(super) fn parse_fingerprint(text: &str) -> Result<String, String> {
    match text.strip_prefix(FINGERPRINT_START) {
        Some(hash) if hash.len() == FINGERPRINT_CHARS => Ok(text.to_owned()),
        Some(_) => Err(format!("{text:?} is not a whole fingerprint, as `ssh-add -l` prints it")),
        None => Ok(fingerprint(SshPublicKey::parse(text)?.blob())),
    }
}

/// Returns true if `signature` is a signature of the key `key` over `message`.
pub(super) fn is_signed_by(key: &[u8], signature: &[u8], message: &[u8]) -> bool {
    verify(key, signature, message).is_some()
}

/// Verifies that `signature` is a signature of the key `key` over `message`. Returns `None` if it
/// is not.
fn verify(key: &[u8], signature: &[u8], message: &[u8]) -> Option<()> {
    let (mut key, mut signature) = (SshFieldReader::new(key), SshFieldReader::new(signature));
    let kind = key.read_string()?;
    let (algorithm, value) = (signature.read_string()?, signature.read_string()?);
    if !signature.is_at_end() {
        return None;
    }
    match kind {
        b"ssh-ed25519" if algorithm == kind => {
            let point = key.read_string()?;
            UnparsedPublicKey::new(&ED25519, point).verify(message, value).ok()
        }
        b"ecdsa-sha2-nistp256" if algorithm == kind => {
            let (_curve, point) = (key.read_string()?, key.read_string()?);
            verify_ecdsa(&ECDSA_P256_SHA256_FIXED, 32, point, value, message)
        }
        b"ecdsa-sha2-nistp384" if algorithm == kind => {
            let (_curve, point) = (key.read_string()?, key.read_string()?);
            verify_ecdsa(&ECDSA_P384_SHA384_FIXED, 48, point, value, message)
        }
        b"ssh-rsa" => {
            let params = match algorithm {
                b"rsa-sha2-256" => &RSA_PKCS1_2048_8192_SHA256,
                b"rsa-sha2-512" => &RSA_PKCS1_2048_8192_SHA512,
                _ => return None,
            };
            let e = without_leading_zeros(key.read_string()?);
            let n = without_leading_zeros(key.read_string()?);
            RsaPublicKeyComponents { n, e }.verify(params, message, value).ok()
        }
        _ => None,
    }
}

/// Verifies a signature with an elliptic curve whose numbers have `number_bytes` bytes. Its public
/// key is `point`. Returns `None` if the signature is not valid.
fn verify_ecdsa(
    algorithm: &'static EcdsaVerificationAlgorithm,
    number_bytes: usize,
    point: &[u8],
    signature: &[u8],
    message: &[u8],
) -> Option<()> {
    let mut numbers = SshFieldReader::new(signature);
    let mut fixed = Vec::with_capacity(2 * number_bytes);
    for _ in 0..2 {
        let number = without_leading_zeros(numbers.read_string()?);
        let padding = number_bytes.checked_sub(number.len())?;
        fixed.resize(fixed.len() + padding, 0);
        fixed.extend_from_slice(number);
    }
    UnparsedPublicKey::new(algorithm, point).verify(message, &fixed).ok()
}

fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    };

    use super::*;

    /// Returns an SSH message that consists of `fields`.
    fn message(fields: &[&[u8]]) -> Vec<u8> {
        let mut message = Vec::new();
        fields.iter().for_each(|field| push_string(&mut message, field));
        message
    }

    #[test]
    fn only_the_signature_of_the_same_key_over_the_same_message_is_valid() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let key = message(&[b"ssh-ed25519", pair.public_key().as_ref()]);
        let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
        let other = message(&[b"ssh-ed25519", other.public_key().as_ref()]);
        let signature = message(&[b"ssh-ed25519", pair.sign(b"session").as_ref()]);
        assert!(is_signed_by(&key, &signature, b"session"));
        assert!(!is_signed_by(&other, &signature, b"session"));
        assert!(!is_signed_by(&key, &signature, b"another"));
        assert!(!is_signed_by(&key, &[&signature[..], &[0]].concat(), b"session"));
        assert!(!is_signed_by(&key, &signature[..signature.len() - 1], b"session"));
        assert!(!is_signed_by(&[], &[], b""));
    }

    #[test]
    fn numbers_of_an_ecdsa_signature_may_have_leading_zeros_or_be_short() {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap();
        let kind = b"ecdsa-sha2-nistp256";
        let key = message(&[kind, b"nistp256", pair.public_key().as_ref()]);
        for number in 0..40_u8 {
            let signed = pair.sign(&random, &[number]).unwrap();
            let (r, s) = signed.as_ref().split_at(32);
            let spelled = |number: &[u8]| [&[0][..], without_leading_zeros(number)].concat();
            let value = message(&[&spelled(r), &spelled(s)]);
            let signature = message(&[kind, &value]);
            assert!(is_signed_by(&key, &signature, &[number]));
            assert!(!is_signed_by(&key, &signature, &[number, 0]));
        }
    }

    #[test]
    fn a_key_is_named_by_its_line_or_its_fingerprint() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let blob = message(&[b"ssh-ed25519", pair.public_key().as_ref()]);
        let line = format!("ssh-ed25519 {} ada@laptop", STANDARD.encode(&blob));
        let key = SshPublicKey::parse_verifiable(&line).unwrap();
        assert_eq!(key.blob(), blob);
        assert_eq!(format!("{} ada@laptop", key.line()), line);
        let fingerprint = fingerprint(&blob);
        assert_eq!(parse_fingerprint(&line), Ok(fingerprint.clone()));
        assert_eq!(parse_fingerprint(&fingerprint), Ok(fingerprint));
        let other = line.replacen("ssh-ed25519", "ssh-rsa", 1);
        for text in ["", "SHA256:abc", "ada@laptop", "a.example ssh-ed25519 AAAA", other.as_str()] {
            assert!(parse_fingerprint(text).is_err(), "{text}");
        }
        let kind = b"ecdsa-sha2-nistp521";
        let line = format!("ecdsa-sha2-nistp521 {}", STANDARD.encode(message(&[kind])));
        assert!(SshPublicKey::parse_verifiable(&line).unwrap_err().contains("not supported"));
    }
}
