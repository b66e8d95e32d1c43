//! Which trace a program belongs to, said in its environment.

use std::collections::BTreeMap;
use std::ffi::OsString;

use toolgate_contract::Trace;

/// Has the program whose environment is `env` go on with `trace`, if there is one.
///
/// What of it the call did not bring is not taken from elsewhere.
pub(crate) fn trace(env: &mut BTreeMap<OsString, OsString>, trace: Option<&Trace>) {
    let Some(Trace { parent, state, baggage }) = trace else { return };
    let variables = [
        ("TRACEPARENT", Some(parent)),
        ("TRACESTATE", state.as_ref()),
        ("BAGGAGE", baggage.as_ref()),
    ];
    for (name, value) in variables {
        match value {
            Some(value) => env.insert(name.into(), value.into()),
            None => env.remove(&OsString::from(name)),
        };
    }
}
