//! Stores the kind, scopes and roles of a caller, so that policy judges its later jobs by them.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolgate_contract::{Caller, CallerKind};

use super::reads::parsed;
use super::schema::Trouble;

#[derive(Serialize, Deserialize)]
struct Standing<'c> {
    kind: CallerKind,
    scopes: Cow<'c, [Arc<str>]>,
    roles: Cow<'c, [Arc<str>]>,
}

/// Serializes the kind, scopes and roles of `caller`. Returns `None` if the name alone implies
/// them.
pub(super) fn standing(caller: &Caller) -> Result<Option<String>, Trouble> {
    let Caller { name, kind, scopes, roles, bearer: _ } = caller;
    if scopes.is_empty() && roles.is_empty() && Caller::recalled(name).kind == *kind {
        return Ok(None);
    }
    let scopes = scopes.as_ref().into();
    let roles = roles.as_ref().into();
    Ok(Some(serde_json::to_string(&Standing { kind: *kind, scopes, roles })?))
}

/// Restores the caller `name` from its stored `standing`.
pub(super) fn caller_of(name: &str, standing: Option<&str>) -> Result<Caller, Trouble> {
    let Some(standing) = standing else { return Ok(Caller::recalled(name)) };
    let Standing { kind, scopes, roles } = parsed(standing)?;
    let scopes = scopes.as_ref().into();
    let roles = roles.as_ref().into();
    Ok(Caller { name: name.into(), kind, scopes, roles, bearer: None })
}
