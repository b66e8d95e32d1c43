//! Sealed session ids, with which any replica that has the key can resume a session.
//!
//! An id contains the message that opened the session, encrypted and authenticated for one caller
//! and one dialect. It is valid for 24 hours. Replicas behind a load balancer therefore need no
//! shared session store. Later state is not part of the id: the log level, subscriptions and
//! resumable streams.

use std::collections::VecDeque;
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use toolgate_contract::{Caller, lock_mutex};

/// Length of the key that seals session ids, in bytes.
pub(crate) const SESSION_KEY_BYTES: usize = 32;
/// Time for which a sealed session id is valid, in seconds.
const VALIDITY_S: i64 = 24 * 3600;
/// Largest opening message that a session id may contain, in bytes. The limit is low, because each
/// request repeats the id in a header.
const OPENING_BYTES_MAX: usize = 2048;
/// Maximum number of ended sessions that are remembered, so that their clients cannot resume them.
const ENDED_SESSIONS_MAX: usize = 10_000;

/// Encrypts and decrypts session ids, so that another server with the same key can resume the
/// sessions.
pub(crate) struct SessionIdSealer {
    key: LessSafeKey,
    ended_hashes: Mutex<VecDeque<[u8; 32]>>,
}

/// Content of a sealed session id.
#[derive(Serialize, Deserialize)]
struct SealedSessionId {
    /// Time at which the session id expires, in seconds since the Unix epoch.
    until: i64,
    /// Name of the caller who opened the session.
    caller: String,
    /// Method by which the caller was authenticated.
    kind: String,
    /// Name of the dialect in which the session was opened.
    dialect: String,
    /// Message that opened the session, such as `initialize`.
    opening: String,
}

impl SessionIdSealer {
    /// Creates a sealer of session ids that uses `key`.
    pub(crate) fn new(key: &[u8; SESSION_KEY_BYTES]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("a key of that length");
        Self { key: LessSafeKey::new(key), ended_hashes: Mutex::default() }
    }

    /// Returns a sealed id for the session that `caller` opened in `dialect` with the message
    /// `opening`.
    ///
    /// Returns `None` if `opening` exceeds 2048 bytes.
    pub(crate) fn seal(&self, caller: &Caller, dialect: &str, opening: &[u8]) -> Option<String> {
        let opening = std::str::from_utf8(opening).ok()?;
        if opening.len() > OPENING_BYTES_MAX {
            return None;
        }
        let content = SealedSessionId {
            until: Timestamp::now().as_second() + VALIDITY_S,
            caller: caller.name.to_string(),
            kind: caller.kind.as_str().to_owned(),
            dialect: dialect.to_owned(),
            opening: opening.to_owned(),
        };
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let mut bytes = serde_json::to_vec(&content).ok()?;
        let unique = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(unique, Aad::empty(), &mut bytes).ok()?;
        bytes.splice(0..0, nonce);
        Some(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Decrypts the session id `id`, and returns the message that opened the session. Returns
    /// `None` unless the id is valid for `caller` and `dialect` and this server has not ended the
    /// session.
    pub(crate) fn open(&self, id: &str, caller: &Caller, dialect: &str) -> Option<Vec<u8>> {
        let mut bytes = URL_SAFE_NO_PAD.decode(id).ok()?;
        let (nonce, _) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key.open_in_place(nonce, Aad::empty(), &mut bytes[NONCE_LEN..]).ok()?;
        let content: SealedSessionId = serde_json::from_slice(opened).ok()?;
        let is_theirs = content.caller == *caller.name && content.kind == caller.kind.as_str();
        let is_valid = content.until >= Timestamp::now().as_second() && content.dialect == dialect;
        let was_ended =
            || lock_mutex(&self.ended_hashes).contains(blake3::hash(id.as_bytes()).as_bytes());
        (is_theirs && is_valid && !was_ended()).then(|| content.opening.into_bytes())
    }

    /// Remembers that the session `id` has ended, so that this server does not resume the session.
    pub(crate) fn end(&self, id: &str) {
        let mut ended = lock_mutex(&self.ended_hashes);
        if ended.len() == ENDED_SESSIONS_MAX {
            ended.pop_front();
        }
        ended.push_back(*blake3::hash(id.as_bytes()).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_opens_only_for_its_caller_and_dialect_with_its_key() {
        let sealer = SessionIdSealer::new(&[7; SESSION_KEY_BYTES]);
        let ann = Caller::with_key("ann");
        let bob = Caller::with_key("bob");
        let id = sealer.seal(&ann, "mcp", b"hello").expect("an id");
        assert!(id.bytes().all(|b| (0x21..=0x7e).contains(&b)));
        assert_eq!(sealer.open(&id, &ann, "mcp").as_deref(), Some(&b"hello"[..]));
        let replica = SessionIdSealer::new(&[7; SESSION_KEY_BYTES]);
        assert!(replica.open(&id, &ann, "mcp").is_some());
        assert!(sealer.open(&id, &bob, "mcp").is_none());
        assert!(sealer.open(&id, &ann, "mira").is_none());
        assert!(SessionIdSealer::new(&[8; SESSION_KEY_BYTES]).open(&id, &ann, "mcp").is_none());
        let mut other = id.into_bytes();
        other[20] ^= 1;
        let other = String::from_utf8(other).expect("letters");
        assert!(
            sealer.open(&other, &ann, "mcp").is_none() && sealer.open("", &ann, "mcp").is_none()
        );
    }

    #[test]
    fn an_ended_session_is_not_resumed() {
        let sealer = SessionIdSealer::new(&[7; SESSION_KEY_BYTES]);
        let ann = Caller::with_key("ann");
        let id = sealer.seal(&ann, "mcp", b"hello").expect("an id");
        sealer.end(&id);
        assert!(sealer.open(&id, &ann, "mcp").is_none());
    }

    #[test]
    fn an_opening_message_that_is_too_long_is_not_sealed() {
        let sealer = SessionIdSealer::new(&[7; SESSION_KEY_BYTES]);
        let long = vec![b'a'; OPENING_BYTES_MAX + 1];
        assert!(sealer.seal(&Caller::with_key("ann"), "mcp", &long).is_none());
    }
}
