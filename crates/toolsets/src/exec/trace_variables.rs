//! Passes the trace context of a call to its programs in environment variables.

use std::collections::BTreeMap;
use std::ffi::OsString;

use toolgate_contract::TraceContext;

/// Sets the trace context variables in `env` to those of `trace`. Does nothing if `trace` is
/// `None`.
///
/// Removes the variables that `trace` does not set, so that the server's own trace does not reach
/// the program.
pub(crate) fn set_trace_variables(
    env: &mut BTreeMap<OsString, OsString>,
    trace: Option<&TraceContext>,
) {
    let Some(TraceContext { parent, state, baggage }) = trace else { return };
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
