//! The protocol revision of a stateless request.

use serde_json::Value;
use toolgate_contract::Head;

use super::message::{Failure, HEADER_MISMATCH, Id, not_a};
use super::revision::{Era, Revision};
use super::{META_CAPABILITIES, META_VERSION, headers};
use crate::json::Params;

/// Returns true if the version header names a stateless revision.
pub(crate) fn says_header(head: &Head) -> bool {
    head.header(headers::VERSION).any(|value| {
        let name = std::str::from_utf8(value).unwrap_or_default().trim();
        Revision::named(name, Era::Stateless).is_some()
    })
}

/// Returns the revision of a stateless request. The conformance suite fixes the order of the
/// checks.
pub(crate) fn revision_of(
    head: &Head,
    id: &Id,
    params: &Params,
) -> Result<&'static Revision, Failure> {
    let mismatch = |why: String| Failure::new(Some(id.clone()), HEADER_MISMATCH, why);
    let at = |name: &str| format!("params._meta[\"{name}\"]");

    let header = headers::single(head, headers::VERSION).map_err(mismatch)?;
    let Some(meta) = params.get("_meta").and_then(Value::as_object) else {
        let why = format!("`params._meta` with `{META_VERSION}` is missing");
        return Err(Failure::invalid_params(Some(id.clone()), why));
    };
    let name = match meta.get(META_VERSION) {
        Some(Value::String(name)) => name.as_str(),
        other => return Err(not_a("a string", id, &at(META_VERSION), other)),
    };
    match (head, header) {
        (Head::Http { .. }, None) => {
            return Err(mismatch(format!(
                "the header `MCP-Protocol-Version` is missing; it must say `{name}`"
            )));
        }
        (Head::Http { .. }, Some(header)) if header != name => {
            return Err(mismatch(format!(
                "the header `MCP-Protocol-Version` says `{header}`, the body `{name}`"
            )));
        }
        (Head::Http { .. }, Some(_)) | (Head::Line, _) => {}
    }
    let Some(revision) = Revision::named(name, Era::Stateless) else {
        return Err(Failure::unsupported(Some(id.clone()), name, &Revision::names(Era::Stateless)));
    };
    match meta.get(META_CAPABILITIES) {
        Some(Value::Object(_)) => Ok(revision),
        other => Err(not_a("an object", id, &at(META_CAPABILITIES), other)),
    }
}
