//! Seals the state of a request that ends with questions, so that the client can send it again with
//! the answers.
//!
//! The answers so far are part of the state, which the client sends back. A keyed hash protects
//! them. The hash covers the caller, the request and the expiry time. Servers that share a key
//! accept each other's states. A server keeps only the hashes of states that were already used for
//! a confirmation.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use blake3::Hasher;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{
    CallError, Caller, ClientAnswers, ClientQuestions, HostRequest, lock_mutex, lock_read,
    lock_write,
};

/// Lifetime of a sealed request state, which is the time that the client has to answer.
pub(crate) const STATE_LIFETIME: Duration = Duration::from_secs(3600);
/// Length in bytes of a request state's code, the keyed hash that protects the state.
const CODE_BYTES: usize = 32;
/// Text from which the key of request states is derived together with the shared secret. The text
/// makes this key different from all other keys that are derived from the secret.
const KEY_CONTEXT: &str = "toolgate 2026-11-28 request states of MCP";

/// Seals and opens request states, which clients send back with answers to questions.
pub(crate) struct RequestStateSealer {
    key: RwLock<RequestStateKey>,
    /// Codes of request states that were used for a confirmation, each with its expiry in Unix
    /// seconds.
    used_codes: Mutex<HashMap<[u8; CODE_BYTES], i64>>,
}

/// Key of the hash that seals request states.
#[derive(Clone, Copy)]
struct RequestStateKey {
    bytes: [u8; 32],
    /// True if other processes may know this key.
    is_shared: bool,
}

/// Maximum number of used codes of request states that are remembered.
const USED_CODES_MAX: usize = 1 << 16;
/// Largest serialized request state in bytes.
const STATE_BYTES_MAX: usize = 1 << 20;

/// State of a request that asked questions. The client receives it sealed and sends it back.
#[derive(Serialize, Deserialize)]
struct RequestState {
    /// Time at which the request state expires, in seconds since the Unix epoch.
    until: i64,
    /// Random number that makes each request state unique.
    nonce: u64,
    /// Name of the caller to whom the request state belongs.
    caller: String,
    /// Digest of the request to which the state belongs.
    request: String,
    /// Answers to the questions that were asked so far.
    answers: ClientAnswers,
    /// Keys of the questions that the client has to answer now.
    open: BTreeSet<String>,
    /// Text that the tool stored for itself. The tool gets the text back with the client's next
    /// request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl RequestStateSealer {
    /// Creates a sealer of request states with a random key.
    pub(crate) fn new() -> Self {
        let mut bytes = [0; 32];
        // Without randomness TLS, jobs and sessions fail as well.
        getrandom::fill(&mut bytes).expect("the system gives random numbers");
        let key = RwLock::new(RequestStateKey { bytes, is_shared: false });
        Self { key, used_codes: Mutex::default() }
    }

    /// Replaces the random key by one that is derived from `secret`. Sealers with the same secret
    /// open the states that any of them sealed.
    pub(crate) fn share(&self, secret: &[u8]) {
        let bytes = blake3::derive_key(KEY_CONTEXT, secret);
        let mut key = lock_write(&self.key);
        *key = RequestStateKey { bytes, is_shared: true };
    }

    /// Returns true if other processes may have the key. This process then accepts the request
    /// states that these processes sealed, even if they have ended.
    pub(crate) fn is_shared(&self) -> bool {
        self.sealing_key().is_shared
    }

    fn sealing_key(&self) -> RequestStateKey {
        *lock_read(&self.key)
    }

    /// Returns the sealed request state that the client must send back with the answers to
    /// `questions`.
    ///
    /// # Errors
    /// No randomness is available, or the state is larger than 1 MiB.
    pub(crate) fn seal(
        &self,
        caller: &Caller,
        request: &str,
        (answers, note): (ClientAnswers, Option<String>),
        questions: &ClientQuestions,
    ) -> Result<String, CallError> {
        let until = Timestamp::now().as_second() + STATE_LIFETIME.as_secs().cast_signed();
        let caller = caller.name.to_string();
        let request = request.to_owned();
        let open = questions.keys().cloned().collect();
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(|err| CallError::Failed {
            message: "the answers so far could not be stored".to_owned(),
            cause: err.to_string(),
        })?;
        let nonce = u64::from_le_bytes(nonce);
        let state = RequestState { until, nonce, caller, request, answers, open, note };
        let mut bytes = serde_json::to_vec(&state).map_err(|err| CallError::Failed {
            message: "the answers so far could not be stored".to_owned(),
            cause: err.to_string(),
        })?;
        if bytes.len() > STATE_BYTES_MAX {
            return Err(CallError::TooLarge {
                message: format!(
                    "the answers so far are {} bytes long, and the limit is {STATE_BYTES_MAX}; give \
                     shorter answers",
                    bytes.len()
                ),
            });
        }
        let code = blake3::keyed_hash(&self.sealing_key().bytes, &bytes);
        bytes.extend_from_slice(code.as_bytes());
        Ok(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Returns all answers to a request's questions so far and the note of the tool.
    ///
    /// The result contains the answers in `sealed`, and each of `answers` whose question is open.
    /// Without a sealed state, all `answers` count, because a client may answer expected questions
    /// in advance.
    ///
    /// # Errors
    /// `sealed` was sealed with another key, has expired, or belongs to another request.
    pub(crate) fn open_request_state(
        &self,
        caller: &Caller,
        request: &str,
        sealed: Option<&str>,
        answers: ClientAnswers,
    ) -> Result<(ClientAnswers, Option<String>), CallError> {
        let Some(sealed) = sealed else { return Ok((answers, None)) };
        let RequestState { answers: mut all, open, note, .. } =
            self.unseal(caller, request, sealed)?;
        all.extend(answers.into_iter().filter(|(key, _)| open.contains(key)));
        Ok((all, note))
    }

    /// Marks the request state with this [code](state_code) as used in this process. Returns true
    /// only for the first use.
    pub(crate) fn use_code(&self, code: [u8; CODE_BYTES]) -> bool {
        let mut used = lock_mutex(&self.used_codes);
        let now = Timestamp::now().as_second();
        if used.len() >= USED_CODES_MAX {
            used.retain(|_, until| *until >= now);
        }
        if used.len() >= USED_CODES_MAX {
            // The table is full of valid codes, so this confirmation must be asked again.
            return false;
        }
        used.insert(code, now + STATE_LIFETIME.as_secs().cast_signed()).is_none()
    }

    fn unseal(
        &self,
        caller: &Caller,
        request: &str,
        sealed: &str,
    ) -> Result<RequestState, CallError> {
        let refused = |reason: &str| CallError::Refused {
            code: -32602,
            message: format!("`requestState` {reason}; repeat the request without it"),
            data: None,
        };
        let foreign =
            || refused("was changed, or comes from a server with another `server.session_key`");
        let bytes = URL_SAFE_NO_PAD.decode(sealed).map_err(|_| foreign())?;
        let at = bytes.len().checked_sub(CODE_BYTES).ok_or_else(foreign)?;
        let (state, code) = bytes.split_at(at);
        let code = <[u8; CODE_BYTES]>::try_from(code).map_err(|_| foreign())?;
        // `blake3::Hash` compares in constant time.
        if blake3::keyed_hash(&self.sealing_key().bytes, state) != code {
            return Err(foreign());
        }
        let state: RequestState = serde_json::from_slice(state).map_err(|_| foreign())?;
        if state.caller != *caller.name || state.request != request {
            return Err(refused("belongs to another request"));
        }
        if state.until < Timestamp::now().as_second() {
            return Err(refused("has expired"));
        }
        Ok(state)
    }
}

/// Returns the code that identifies a sealed request state.
pub(crate) fn state_code(sealed: &str) -> [u8; CODE_BYTES] {
    let bytes = URL_SAFE_NO_PAD.decode(sealed).unwrap_or_default();
    bytes.last_chunk().copied().unwrap_or_else(|| *blake3::hash(&bytes).as_bytes())
}

/// Returns a digest of the request: its kind, its target and its arguments in any order.
pub(crate) fn request_digest(request: &HostRequest) -> String {
    let mut hash = Hasher::new();
    match request {
        HostRequest::CallTool { tool, input } | HostRequest::StartJob { tool, input, .. } => {
            hash_text(&mut hash, b't', tool);
            hash_value(&mut hash, input);
        }
        HostRequest::ReadResource { uri } => hash_text(&mut hash, b'r', uri),
        HostRequest::GetPrompt { name, arguments } => {
            hash_text(&mut hash, b'p', name);
            for (name, text) in arguments {
                hash_text(&mut hash, b'k', name);
                hash_text(&mut hash, b's', text);
            }
        }
        // Other requests never end with questions.
        HostRequest::ListTools { .. }
        | HostRequest::Discover
        | HostRequest::Refuse(_)
        | HostRequest::RefuseCall { .. }
        | HostRequest::GetJob { .. }
        | HostRequest::AwaitJob { .. }
        | HostRequest::ListJobs { .. }
        | HostRequest::CancelJob { .. }
        | HostRequest::OpenArtefact { .. }
        | HostRequest::AnswerJob { .. }
        | HostRequest::ListResources { .. }
        | HostRequest::ListTemplates
        | HostRequest::ReadFolder { .. }
        | HostRequest::WatchResource { .. }
        | HostRequest::ListPrompts { .. }
        | HostRequest::Complete(_)
        | HostRequest::ListSkills { .. }
        | HostRequest::GetSkill { .. } => return String::new(),
    }
    hash.finalize().to_hex().to_string()
}

/// Hashes a text together with its `kind` and length, so that the boundaries between texts are
/// unambiguous.
fn hash_text(hash: &mut Hasher, kind: u8, text: &str) {
    hash.update(&[kind]).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
}

fn hash_value(hash: &mut Hasher, value: &Value) {
    match value {
        Value::Null => hash_text(hash, b'0', ""),
        Value::Bool(is) => hash_text(hash, b'b', if *is { "true" } else { "false" }),
        Value::Number(number) => hash_text(hash, b'n', number.as_str()),
        Value::String(text) => hash_text(hash, b's', text),
        Value::Array(items) => {
            hash_text(hash, b'a', &items.len().to_string());
            items.iter().for_each(|item| hash_value(hash, item));
        }
        Value::Object(members) => {
            hash_text(hash, b'o', &members.len().to_string());
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            for (name, member) in members {
                hash_text(hash, b'k', name);
                hash_value(hash, member);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolgate_contract::{ClientAnswer, ClientQuestion, ElicitationAnswer};

    use super::*;

    fn questions() -> ClientQuestions {
        ClientQuestions::from([("q".to_owned(), ClientQuestion::Roots)])
    }

    fn sealed(sealer: &RequestStateSealer, caller: &Caller) -> String {
        sealer
            .seal(caller, "this", (ClientAnswers::new(), None), &questions())
            .expect("it is short")
    }

    #[test]
    fn a_sealed_state_opens_only_for_its_own_request_and_caller() {
        let sealer = RequestStateSealer::new();
        let (one, other) = (Caller::with_key("one"), Caller::with_key("other"));
        let sealed = sealed(&sealer, &one);
        assert!(sealer.unseal(&one, "this", &sealed).is_ok());
        assert!(sealer.unseal(&other, "this", &sealed).is_err());
        assert!(sealer.unseal(&one, "that", &sealed).is_err());
        assert!(RequestStateSealer::new().unseal(&one, "this", &sealed).is_err());
    }

    #[test]
    fn sealers_with_the_same_secret_open_each_others_states() {
        let caller = Caller::local();
        let [one, replica, stranger] = [&b"one"[..], b"one", b"other"].map(|secret| {
            let sealer = RequestStateSealer::new();
            sealer.share(secret);
            sealer
        });
        let sealed = sealed(&one, &caller);
        assert!(replica.unseal(&caller, "this", &sealed).is_ok());
        assert!(replica.unseal(&caller, "that", &sealed).is_err());
        assert!(stranger.unseal(&caller, "this", &sealed).is_err());
        assert!(RequestStateSealer::new().unseal(&caller, "this", &sealed).is_err());
    }

    #[test]
    fn a_state_can_be_used_once() {
        let sealer = RequestStateSealer::new();
        let [one, other] = [(); 2].map(|()| state_code(&sealed(&sealer, &Caller::local())));
        assert_eq!([one, one, other].map(|code| sealer.use_code(code)), [true, false, true]);
    }

    #[test]
    fn a_sealed_state_is_refused_if_any_letter_changes() {
        let sealer = RequestStateSealer::new();
        let caller = Caller::local();
        let sealed = sealed(&sealer, &caller);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert!(sealer.unseal(&caller, "this", &changed).is_err(), "letter {at}");
        }
    }

    #[test]
    fn answers_without_a_question_are_dropped_and_long_ones_refused() {
        let sealer = RequestStateSealer::new();
        let caller = Caller::local();
        let sealed = sealed(&sealer, &caller);
        let no = || ClientAnswer::Choice(ElicitationAnswer::Declined);
        let answers = ClientAnswers::from([("q".to_owned(), no()), ("other".to_owned(), no())]);
        let merged = sealer.open_request_state(&caller, "this", Some(&sealed), answers);
        assert_eq!(merged.expect("it opens").0, ClientAnswers::from([("q".to_owned(), no())]));
        let long = ClientAnswers::from([("x".repeat(STATE_BYTES_MAX), no())]);
        let refused = sealer.seal(&caller, "this", (long, None), &questions());
        assert!(matches!(refused, Err(CallError::TooLarge { .. })));
    }

    #[test]
    fn a_digest_ignores_the_order_of_arguments() {
        let digest = |input| request_digest(&HostRequest::CallTool { tool: "t".to_owned(), input });
        let one = json!({"a": 1, "b": [{"c": "d"}]});
        let other = json!({"b": [{"c": "d"}], "a": 1});
        assert_eq!(digest(one.clone()), digest(other));
        for changed in [json!({"a": 1, "b": [{"c": "e"}]}), json!({"a": "1", "b": [{"c": "d"}]})] {
            assert_ne!(digest(one.clone()), digest(changed));
        }
    }
}
