//! Cursors with which a caller continues a listing in a later call.
//!
//! A cursor names the last returned entry, not an index, so changes between two calls do not shift
//! the next page. The checksum of a cursor covers the query, so a cursor is refused for a different
//! query or after an edit. The checksum has no secret key. It catches mistakes and grants no
//! access, and all replicas of the server compute equal checksums.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use blake3::Hasher;
use toolgate_contract::ToolError;

const CHECKSUM_BYTES: usize = 8;

/// Returns the cursor with which a later call continues a list after the entry `last`. `question`
/// is a text that identifies the list.
pub(crate) fn encode_cursor(question: &str, last: &[u8]) -> String {
    let mut bytes = cursor_checksum(question, last).to_vec();
    bytes.extend_from_slice(last);
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the cursor in a call's input. An empty text counts as no cursor, because some models
/// write `""` for arguments that they do not use.
pub(crate) fn given_cursor(cursor: Option<&str>) -> Option<&str> {
    cursor.filter(|given| !given.is_empty())
}

/// Decodes `cursor`, and returns the last entry that the caller has received.
///
/// # Errors
/// Fails if the cursor is malformed or was created for a different `question`.
pub(crate) fn decode_cursor(question: &str, cursor: &str) -> Result<Vec<u8>, ToolError> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).unwrap_or_default();
    match bytes.split_first_chunk::<CHECKSUM_BYTES>() {
        Some((sum, last)) if *sum == cursor_checksum(question, last) => Ok(last.to_vec()),
        Some(_) | None => Err(ToolError::invalid(
            "/cursor",
            "it is not a cursor of an earlier answer to the same query; omit it to start over",
        )),
    }
}

fn cursor_checksum(question: &str, last: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = Hasher::new_derive_key("toolgate files cursor, version 1");
    hasher.update(&(question.len() as u64).to_le_bytes());
    hasher.update(question.as_bytes());
    hasher.update(last);
    let mut sum = [0; CHECKSUM_BYTES];
    hasher.finalize_xof().fill(&mut sum);
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_is_accepted_for_its_own_query_only(question: String, other: String, last: Vec<u8>) {
            let cursor = encode_cursor(&question, &last);
            prop_assert_eq!(decode_cursor(&question, &cursor).ok(), Some(last));
            if question != other {
                prop_assert!(decode_cursor(&other, &cursor).is_err());
            }
        }

        #[test]
        fn a_changed_cursor_is_refused(last: Vec<u8>, at: prop::sample::Index, to in "[A-Za-z0-9_-]") {
            let cursor = encode_cursor("q", &last);
            let at = at.index(cursor.len());
            let mut changed = cursor.clone();
            changed.replace_range(at..=at, &to);
            prop_assert!(changed == cursor || decode_cursor("q", &changed).is_err());
        }

        #[test]
        fn text_that_was_never_a_cursor_is_refused(text: String) {
            prop_assert!(decode_cursor("q", &text).is_err());
        }
    }
}
