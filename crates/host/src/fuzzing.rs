//! Fuzz targets of this crate: policy, audit logs, request states and calls through `tools.call`.

use std::collections::BTreeMap;

use toolgate_contract::{Caller, ClientAnswer, ClientQuestion, ElicitationAnswer};

use crate::pipeline::multi_round::RequestStateSealer;
use crate::{audit, policy, tool_search};

/// Function that fuzzes this crate with one input, and panics if it finds a bug.
type HostFuzzTarget = fn(&[u8]);

/// All fuzz targets of this crate, by the name of their folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, HostFuzzTarget)] = &[
    ("audit_log", audit_log),
    ("policy_when", policy_when),
    ("policy_paths", policy_paths),
    ("policy_patterns", policy_patterns),
    ("request_state", request_state),
    ("tools_call", tools_call),
];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Fuzzes the verification of audit logs: every change of a log must be detected.
fn audit_log(bytes: &[u8]) {
    audit::fuzz_log(bytes);
}

/// Fuzzes the `when` expressions of rules: the server's evaluation must give the same result as
/// plain CEL, each time.
fn policy_when(bytes: &[u8]) {
    policy::fuzz_when(bytes);
}

/// Fuzzes the paths that rules compare: the results must equal those of a simple model.
fn policy_paths(bytes: &[u8]) {
    policy::fuzz_paths(bytes);
}

/// Fuzzes the patterns of tools and callers: the results must equal those of a simple matcher.
fn policy_patterns(bytes: &[u8]) {
    policy::fuzz_patterns(bytes);
}

/// Checks that a call through `tools.call` becomes a call of the tool that its input names.
fn tools_call(bytes: &[u8]) {
    tool_search::fuzz_call(bytes);
}

/// Checks that a `requestState` is accepted only if it is unchanged and belongs to the same caller
/// and request.
fn request_state(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let caller = Caller::with_key("ada");
    let rounds = RequestStateSealer::new();
    let mut parts = text.splitn(3, '\u{1f}');
    let request = parts.next();
    let key = parts.next();
    let rest = parts.next().unwrap_or_default();
    let request = request.unwrap_or_default();
    let key = key.unwrap_or_default();
    let answer = ClientAnswer::Choice(ElicitationAnswer::Declined);
    let given = BTreeMap::from([(key.to_owned(), answer)]);
    let questions = BTreeMap::from([(key.to_owned(), ClientQuestion::Roots)]);
    let sealed =
        rounds.seal(&caller, request, (given.clone(), None), &questions).expect("it is short");
    let opened = rounds.open_request_state(&caller, request, Some(&sealed), BTreeMap::new());
    assert_eq!(opened.expect("it was sealed here").0, given);
    for other in [text, rest] {
        assert!(rounds.open_request_state(&caller, request, Some(other), given.clone()).is_err());
    }
    let eve = Caller::with_key("eve");
    assert!(rounds.open_request_state(&eve, request, Some(&sealed), given.clone()).is_err());
    assert!(
        rounds.open_request_state(&caller, "what else", Some(&sealed), given.clone()).is_err()
            || request == "what else"
    );
    // Inserting `rest` anywhere changes the state.
    let at = sealed.len() * usize::from(rest.bytes().next().unwrap_or_default()) / 256;
    for changed in [[&sealed[..at], rest, &sealed[at..]].concat(), [&sealed[..at], rest].concat()] {
        let opened = rounds.open_request_state(&caller, request, Some(&changed), given.clone());
        assert!(opened.is_err() || changed == sealed);
    }
}
