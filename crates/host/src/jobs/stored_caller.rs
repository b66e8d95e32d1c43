//! Stores the kind, scopes and roles of a job's caller, so that policy rules can use them when the
//! job runs.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolgate_contract::{Caller, CallerKind};

use super::store::JobStoreError;
use super::stored_form::{parse_json, to_json};

/// Kind, scopes and roles of a job's caller, serialized for the job store.
#[derive(Serialize, Deserialize)]
struct StoredCaller<'c> {
    kind: CallerKind,
    scopes: Cow<'c, [Arc<str>]>,
    roles: Cow<'c, [Arc<str>]>,
}

/// Serializes the kind, scopes and roles of `caller` as JSON. Returns `None` if the caller's name
/// alone implies them.
pub(super) fn caller_to_json(caller: &Caller) -> Result<Option<String>, JobStoreError> {
    let Caller { name, kind, scopes, roles, bearer: _ } = caller;
    if scopes.is_empty() && roles.is_empty() && Caller::from_name(name).kind == *kind {
        return Ok(None);
    }
    let scopes = scopes.as_ref().into();
    let roles = roles.as_ref().into();
    Ok(Some(to_json(&StoredCaller { kind: *kind, scopes, roles })?))
}

/// Restores the caller `name` from `standing`, the stored JSON of its kind, scopes and roles.
pub(super) fn restore_caller(name: &str, standing: Option<&str>) -> Result<Caller, JobStoreError> {
    let Some(standing) = standing else { return Ok(Caller::from_name(name)) };
    let StoredCaller { kind, scopes, roles } = parse_json(standing)?;
    let scopes = scopes.as_ref().into();
    let roles = roles.as_ref().into();
    Ok(Caller { name: name.into(), kind, scopes, roles, bearer: None })
}
