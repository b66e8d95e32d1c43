//! Page cursors: opaque strings that name the last item of a page.

use std::fmt::Display;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::message::{McpError, RequestId};
use crate::json::RpcParams;

const MARK: &str = "after:";

/// Returns the cursor of the list page that follows `item`.
pub(crate) fn encode(item: &impl Display) -> String {
    URL_SAFE_NO_PAD.encode(format!("{MARK}{item}"))
}

/// Returns the cursor of the page that follows `item` in a list of `what`. A cursor is valid only
/// for its kind of list.
pub(crate) fn encode_next(what: &str, item: &impl Display) -> String {
    encode(&format_args!("{what} {item}"))
}

/// Parses the cursor of a request for a list of `what`, and returns the last item of the previous
/// page.
pub(crate) fn parse_after<T>(
    id: &RequestId,
    params: &RpcParams,
    what: &str,
    item: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, McpError> {
    parse(id, params, |text| text.strip_prefix(what)?.strip_prefix(' ').and_then(&item))
}

/// Parses the list cursor of a request. Returns `None` for the first page: without a cursor, or
/// with an empty one.
pub(crate) fn parse<T>(
    id: &RequestId,
    params: &RpcParams,
    item: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, McpError> {
    let why = match params.get("cursor") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => match decode(text).and_then(|name| item(&name)) {
            Some(item) => return Ok(Some(item)),
            None => format!("`{text}` is not a cursor of this server; list from the start"),
        },
        Some(_) => "`params.cursor` must be a string".to_owned(),
    };
    Err(McpError::invalid_params(Some(id.clone()), why))
}

/// Decodes a list cursor. `None` if [`encode()`] did not create it.
fn decode(cursor: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    std::str::from_utf8(&bytes).ok()?.strip_prefix(MARK).map(str::to_owned)
}

/// Panics if `text` decodes as a list cursor but is not the canonical encoding.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_canonical(text: &str) {
    if let Some(item) = decode(text) {
        assert_eq!(encode(&item), text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toolgate_contract::{JobId, ToolId};

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_decodes_to_its_tool(id in "[a-z]{1,8}(\\.[a-zA-Z0-9_-]{1,8}){0,3}") {
            let tool = ToolId::foreign(&id).expect("an id");
            prop_assert_eq!(decode(&encode(&tool)).and_then(|name| ToolId::foreign(&name)), Some(tool));
        }

        #[test]
        fn a_cursor_decodes_to_its_job(bits: u128) {
            let job = JobId::from_bits(bits);
            prop_assert_eq!(decode(&encode(&job)).and_then(|name| name.parse().ok()), Some(job));
        }

        #[test]
        fn parsing_a_cursor_never_panics(text in ".{0,60}") {
            let _ = decode(&text);
        }
    }
}
