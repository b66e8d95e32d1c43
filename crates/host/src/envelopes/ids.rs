//! Creates the ids of an envelope: random, or derived from the request.

use serde_json::json;
use toolgate_contract::{EnvelopeRequestInfo, canonical_json, exact_json};
use uuid::{Builder, Uuid};

/// UUID namespace of ids that are derived from a request.
const NAMESPACE: Uuid = Uuid::from_u128(0xc1fd_1c20_77b7_4f73_b39c_8ed2_dd2f_2d8c);

/// Returns the ids of a request, its trace and its span. Ids that are derived from the request do
/// not depend on the transport.
pub(super) fn request_ids(via: &EnvelopeRequestInfo, deterministic: bool) -> [String; 3] {
    if !deterministic {
        return [random_id(), random_id(), random_id()];
    }
    let EnvelopeRequestInfo { method, payload, route, .. } = via;
    let request = exact_json::object([
        ("method", json!(method)),
        ("payload", payload.clone()),
        ("route", json!(route)),
    ]);
    let request = canonical_json(&request);
    ["req", "trace", "span"].map(|kind| derived_id(kind, &request))
}

/// Returns the id that is derived from `kind` and `content` (UUID version 5).
pub(super) fn derived_id(kind: &str, content: &str) -> String {
    Uuid::new_v5(&NAMESPACE, format!("{kind}:{content}").as_bytes()).to_string()
}

/// Returns a random id (UUID version 4).
pub(super) fn random_id() -> String {
    let mut bytes = [0; 16];
    // Without randomness the id is all zero; other parts of the server would fail as well.
    let _ = getrandom::fill(&mut bytes);
    Builder::from_random_bytes(bytes).into_uuid().to_string()
}
