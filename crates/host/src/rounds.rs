//! Requests that end with questions and are made again with the answers: what is remembered of
//! them, and that only this server remembers it.
//!
//! Nothing is kept here, but which were used for a yes: that is good once. What was answered so far
//! goes to the client and comes back with the next request, sealed: with a code over it by a key that
//! only this process knows, over who asked for what, and until when.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use blake3::Hasher;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{CallError, Caller, Given, Questions, Request, Spend};

/// How long a person may take to answer.
const GOOD_FOR: Duration = Duration::from_secs(3600);
/// How long a code is.
const CODE_BYTES: usize = 32;

/// Seals what is remembered, and opens it again.
pub(crate) struct Rounds {
    key: [u8; 32],
    /// The codes of states with which a yes was used, and until when they would be good.
    spent: Arc<Mutex<HashMap<[u8; CODE_BYTES], i64>>>,
}

/// How many codes of states that were used are remembered.
const SPENT_MAX: usize = 1 << 16;
/// How much is remembered, in bytes.
const STATE_BYTES_MAX: usize = 1 << 20;

/// What is remembered.
#[derive(Serialize, Deserialize)]
struct State {
    /// Until when, in seconds of the Unix epoch.
    until: i64,
    /// No two are alike.
    nonce: u64,
    /// Who asked.
    caller: String,
    /// For what.
    what: String,
    /// What was answered, and had been asked.
    given: Given,
    /// What is asked now.
    open: BTreeSet<String>,
    /// What the tool wants to know again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Rounds {
    /// With a key of its own.
    pub(crate) fn new() -> Self {
        let mut key = [0; 32];
        // Without randomness there is no TLS, no job and no session either.
        getrandom::fill(&mut key).expect("the system gives random numbers");
        Self { key, spent: Arc::default() }
    }

    /// What the client is to say again with the answers to `questions`, given what was answered.
    pub(crate) fn seal(
        &self,
        caller: &Caller,
        what: &str,
        (given, note): (Given, Option<String>),
        questions: &Questions,
    ) -> Result<String, CallError> {
        let until = Timestamp::now().as_second() + GOOD_FOR.as_secs().cast_signed();
        let (caller, what) = (caller.name.to_string(), what.to_owned());
        let open = questions.keys().cloned().collect();
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(|err| CallError::Failed {
            message: "what was answered so far cannot be remembered".to_owned(),
            cause: err.to_string(),
        })?;
        let nonce = u64::from_le_bytes(nonce);
        let state = State { until, nonce, caller, what, given, open, note };
        let mut bytes = serde_json::to_vec(&state).map_err(|err| CallError::Failed {
            message: "what was answered so far cannot be remembered".to_owned(),
            cause: err.to_string(),
        })?;
        if bytes.len() > STATE_BYTES_MAX {
            return Err(CallError::TooLarge {
                message: format!(
                    "what was answered so far is {} bytes long, and no more than \
                     {STATE_BYTES_MAX} are remembered from one request to the next; answer shorter",
                    bytes.len()
                ),
            });
        }
        let code = blake3::keyed_hash(&self.key, &bytes);
        bytes.extend_from_slice(code.as_bytes());
        Ok(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// What was answered: before, as `sealed` says, and in `given`, as far as it says that it was
    /// asked. A client that knows what it will be asked may answer with its first request, which
    /// has no state yet. And what the tool had noted.
    pub(crate) fn answered(
        &self,
        caller: &Caller,
        what: &str,
        sealed: Option<&str>,
        given: Given,
    ) -> Result<(Given, Option<String>), CallError> {
        let Some(sealed) = sealed else { return Ok((given, None)) };
        let State { given: mut all, open, note, .. } = self.open(caller, what, sealed)?;
        all.extend(given.into_iter().filter(|(key, _)| open.contains(key)));
        Ok((all, note))
    }

    /// Spends `sealed`, which is one of its own, for one call: whether no other call has.
    pub(crate) fn once(&self, sealed: &str) -> Spend {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).unwrap_or_default();
        let code: [u8; CODE_BYTES] =
            bytes.last_chunk().copied().unwrap_or_else(|| *blake3::hash(&bytes).as_bytes());
        let (all, is_ours) = (self.spent.clone(), OnceLock::new());
        Arc::new(move || {
            *is_ours.get_or_init(|| {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                let now = Timestamp::now().as_second();
                if all.len() >= SPENT_MAX {
                    all.retain(|_, until| *until >= now);
                }
                if all.len() >= SPENT_MAX {
                    // Whoever has so many agreed to is to ask again.
                    return false;
                }
                all.insert(code, now + GOOD_FOR.as_secs().cast_signed()).is_none()
            })
        })
    }

    fn open(&self, caller: &Caller, what: &str, sealed: &str) -> Result<State, CallError> {
        let refused = |why: &str| CallError::Refused {
            code: -32602,
            message: format!("`requestState` {why}; make the request again without it"),
            data: None,
        };
        let foreign = || refused("is not as this server wrote it");
        let bytes = URL_SAFE_NO_PAD.decode(sealed).map_err(|_| foreign())?;
        let at = bytes.len().checked_sub(CODE_BYTES).ok_or_else(foreign)?;
        let (state, code) = bytes.split_at(at);
        let code = <[u8; CODE_BYTES]>::try_from(code).map_err(|_| foreign())?;
        // Compared in constant time.
        if blake3::keyed_hash(&self.key, state) != code {
            return Err(foreign());
        }
        let state: State = serde_json::from_slice(state).map_err(|_| foreign())?;
        if state.caller != *caller.name || state.what != what {
            return Err(refused("belongs to another request"));
        }
        if state.until < Timestamp::now().as_second() {
            return Err(refused("has expired"));
        }
        Ok(state)
    }
}

/// What tells a request from others: what is asked, of what, with which arguments, in whatever
/// order they are written.
pub(crate) fn what(request: &Request) -> String {
    let mut hash = Hasher::new();
    match request {
        Request::CallTool { tool, input } | Request::StartJob { tool, input, .. } => {
            say(&mut hash, b't', tool);
            digest(&mut hash, input);
        }
        Request::ReadResource { uri } => say(&mut hash, b'r', uri),
        Request::GetPrompt { name, arguments } => {
            say(&mut hash, b'p', name);
            for (name, text) in arguments {
                say(&mut hash, b'k', name);
                say(&mut hash, b's', text);
            }
        }
        // No other ends with questions.
        Request::ListTools { .. }
        | Request::Discover
        | Request::Refuse(_)
        | Request::RefuseCall { .. }
        | Request::GetJob { .. }
        | Request::AwaitJob { .. }
        | Request::ListJobs { .. }
        | Request::CancelJob { .. }
        | Request::OpenArtefact { .. }
        | Request::TellJob { .. }
        | Request::ListResources { .. }
        | Request::ListTemplates
        | Request::ReadFolder { .. }
        | Request::WatchResource { .. }
        | Request::ListPrompts { .. }
        | Request::Complete(_)
        | Request::ListSkills { .. }
        | Request::GetSkill { .. } => return String::new(),
    }
    hash.finalize().to_hex().to_string()
}

/// Adds a text of some `kind`, so that no two texts are like one.
fn say(hash: &mut Hasher, kind: u8, text: &str) {
    hash.update(&[kind]).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
}

fn digest(hash: &mut Hasher, value: &Value) {
    match value {
        Value::Null => say(hash, b'0', ""),
        Value::Bool(is) => say(hash, b'b', if *is { "true" } else { "false" }),
        Value::Number(number) => say(hash, b'n', &number.to_string()),
        Value::String(text) => say(hash, b's', text),
        Value::Array(items) => {
            say(hash, b'a', &items.len().to_string());
            items.iter().for_each(|item| digest(hash, item));
        }
        Value::Object(members) => {
            say(hash, b'o', &members.len().to_string());
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            for (name, member) in members {
                say(hash, b'k', name);
                digest(hash, member);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolgate_contract::{Choice, Question, Told};

    use super::*;

    fn asked() -> Questions {
        Questions::from([("q".to_owned(), Question::Roots)])
    }

    fn sealed(rounds: &Rounds, caller: &Caller) -> String {
        rounds.seal(caller, "this", (Given::new(), None), &asked()).expect("it is short")
    }

    #[test]
    fn what_is_sealed_opens_for_the_same_request_of_the_same_caller_alone() {
        let rounds = Rounds::new();
        let (one, other) = (Caller::named("one"), Caller::named("other"));
        let sealed = sealed(&rounds, &one);
        assert!(rounds.open(&one, "this", &sealed).is_ok());
        assert!(rounds.open(&other, "this", &sealed).is_err());
        assert!(rounds.open(&one, "that", &sealed).is_err());
        assert!(Rounds::new().open(&one, "this", &sealed).is_err());
    }

    #[test]
    fn a_changed_letter_anywhere_is_seen() {
        let rounds = Rounds::new();
        let caller = Caller::local();
        let sealed = sealed(&rounds, &caller);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert!(rounds.open(&caller, "this", &changed).is_err(), "letter {at}");
        }
    }

    #[test]
    fn only_what_was_asked_is_answered_and_what_is_too_long_is_refused() {
        let rounds = Rounds::new();
        let caller = Caller::local();
        let sealed = sealed(&rounds, &caller);
        let told = || Told::Choice(Choice::Declined);
        let given = Given::from([("q".to_owned(), told()), ("other".to_owned(), told())]);
        let answered = rounds.answered(&caller, "this", Some(&sealed), given);
        assert_eq!(answered.expect("it opens").0, Given::from([("q".to_owned(), told())]));
        let long = Given::from([("x".repeat(STATE_BYTES_MAX), told())]);
        let refused = rounds.seal(&caller, "this", (long, None), &asked());
        assert!(matches!(refused, Err(CallError::TooLarge { .. })));
    }

    #[test]
    fn a_request_is_the_same_in_whatever_order_its_arguments_are_written() {
        let what = |input| what(&Request::CallTool { tool: "t".to_owned(), input });
        let (one, other) = (json!({"a": 1, "b": [{"c": "d"}]}), json!({"b": [{"c": "d"}], "a": 1}));
        assert_eq!(what(one.clone()), what(other));
        for changed in [json!({"a": 1, "b": [{"c": "e"}]}), json!({"a": "1", "b": [{"c": "d"}]})] {
            assert_ne!(what(one.clone()), what(changed));
        }
    }
}
