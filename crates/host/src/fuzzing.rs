//! What fuzzing calls: what policy is written in and looks at, logs that were changed, and what
//! clients say again.

use std::collections::BTreeMap;

use toolgate_contract::{Caller, Choice, Question, Told};

use crate::rounds::Rounds;
use crate::{audit, policy};

/// A log that was changed is not whole.
pub fn audit_log(bytes: &[u8]) {
    audit::log(bytes);
}

/// `when` of a rule, over an input.
pub fn policy_when(bytes: &[u8]) {
    policy::when(bytes);
}

/// Paths as rules see them.
pub fn policy_paths(bytes: &[u8]) {
    policy::paths(bytes);
}

/// Patterns over tools and names.
pub fn policy_patterns(bytes: &[u8]) {
    policy::patterns(bytes);
}

/// `requestState`: only what was sealed here is opened, for whom and what it was sealed.
pub fn request_state(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (caller, rounds) = (Caller::named("ada"), Rounds::new());
    let mut parts = text.splitn(3, '\u{1f}');
    let (what, key, rest) = (parts.next(), parts.next(), parts.next().unwrap_or_default());
    let (what, key) = (what.unwrap_or_default(), key.unwrap_or_default());
    let answer = Told::Choice(Choice::Declined);
    let given = BTreeMap::from([(key.to_owned(), answer)]);
    let questions = BTreeMap::from([(key.to_owned(), Question::Roots)]);
    let sealed =
        rounds.seal(&caller, what, (given.clone(), None), &questions).expect("it is short");
    let opened = rounds.answered(&caller, what, Some(&sealed), BTreeMap::new());
    assert_eq!(opened.expect("it was sealed here").0, given);
    for other in [text, rest] {
        assert!(rounds.answered(&caller, what, Some(other), given.clone()).is_err());
    }
    let eve = Caller::named("eve");
    assert!(rounds.answered(&eve, what, Some(&sealed), given.clone()).is_err());
    assert!(
        rounds.answered(&caller, "what else", Some(&sealed), given.clone()).is_err()
            || what == "what else"
    );
    // Put somewhere, `rest` makes it another.
    let at = sealed.len() * usize::from(rest.bytes().next().unwrap_or_default()) / 256;
    for changed in [[&sealed[..at], rest, &sealed[at..]].concat(), [&sealed[..at], rest].concat()] {
        let opened = rounds.answered(&caller, what, Some(&changed), given.clone());
        assert!(opened.is_err() || changed == sealed);
    }
}
