//! Cursors: where a listing goes on, for a caller to hand back as it is.
//!
//! A cursor names the last thing given, not a position, so what is added or removed
//! meanwhile shifts nothing. It says which question it belongs to, and is refused
//! for another, or when it was changed. It holds no secret and opens nothing: the
//! check is against mistakes, and any replica can make it.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use blake3::Hasher;
use toolgate_contract::ToolError;

const CHECK_BYTES: usize = 8;

/// The cursor that goes on after `last` in the answer to `question`.
pub(crate) fn after(question: &str, last: &[u8]) -> String {
    let mut bytes = check(question, last).to_vec();
    bytes.extend_from_slice(last);
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// What the answer to `question` goes on after, by `cursor`.
pub(crate) fn read(question: &str, cursor: &str) -> Result<Vec<u8>, ToolError> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).unwrap_or_default();
    match bytes.split_first_chunk::<CHECK_BYTES>() {
        Some((sum, last)) if *sum == check(question, last) => Ok(last.to_vec()),
        Some(_) | None => Err(ToolError::invalid(
            "/cursor",
            "it is not the cursor of an earlier answer to this very question; leave it out to start over",
        )),
    }
}

fn check(question: &str, last: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = Hasher::new_derive_key("toolgate files cursor, version 1");
    hasher.update(&(question.len() as u64).to_le_bytes());
    hasher.update(question.as_bytes());
    hasher.update(last);
    let mut sum = [0; CHECK_BYTES];
    hasher.finalize_xof().fill(&mut sum);
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_is_read_for_its_own_question_only(question: String, other: String, last: Vec<u8>) {
            let cursor = after(&question, &last);
            prop_assert_eq!(read(&question, &cursor).ok(), Some(last));
            if question != other {
                prop_assert!(read(&other, &cursor).is_err());
            }
        }

        #[test]
        fn a_changed_cursor_is_refused(last: Vec<u8>, at: prop::sample::Index, to in "[A-Za-z0-9_-]") {
            let cursor = after("q", &last);
            let at = at.index(cursor.len());
            let mut changed = cursor.clone();
            changed.replace_range(at..=at, &to);
            prop_assert!(changed == cursor || read("q", &changed).is_err());
        }

        #[test]
        fn what_was_never_a_cursor_is_refused(text: String) {
            prop_assert!(read("q", &text).is_err());
        }
    }
}
