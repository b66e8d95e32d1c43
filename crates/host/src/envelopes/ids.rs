//! The ids of an envelope: random, or reckoned from the request.

use serde_json::json;
use toolgate_contract::{Via, canonical_json};
use uuid::{Builder, Uuid};

/// The namespace of ids that are reckoned from requests.
const NAMESPACE: Uuid = Uuid::from_u128(0xc1fd_1c20_77b7_4f73_b39c_8ed2_dd2f_2d8c);

/// The ids of a request, its trace and its span. Reckoned ones do not depend on the transport.
pub(super) fn of(via: &Via, deterministic: bool) -> [String; 3] {
    if !deterministic {
        return [random(), random(), random()];
    }
    let Via { method, payload, route, .. } = via;
    let asked = json!({ "method": method, "payload": payload, "route": route });
    let asked = canonical_json(&asked);
    ["req", "trace", "span"].map(|kind| reckoned(kind, &asked))
}

/// The id of `what`, always the same.
pub(super) fn reckoned(kind: &str, what: &str) -> String {
    Uuid::new_v5(&NAMESPACE, format!("{kind}:{what}").as_bytes()).to_string()
}

/// An id like no other.
pub(super) fn random() -> String {
    let mut bytes = [0; 16];
    // Without randomness nothing else here works either; the id says that there was none.
    let _ = getrandom::fill(&mut bytes);
    Builder::from_random_bytes(bytes).into_uuid().to_string()
}
