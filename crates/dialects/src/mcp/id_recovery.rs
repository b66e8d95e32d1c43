//! Recovers the id of a message with invalid JSON, so that the error can name the request.

use toolgate_contract::exact_json;

use super::message::read_id;
use crate::rpc::RequestId;

/// Returns the top-level `id` of the invalid JSON object in `bytes`. Returns `None` if it is
/// missing or repeated. The content of strings is ignored.
pub(crate) fn recover_id(bytes: &[u8]) -> Option<RequestId> {
    let mut depth = 0_usize;
    let mut at = 0;
    let mut found = None;
    // True if the next string at the top level is a member name.
    let mut names = false;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let end = string_end(bytes, at)?;
                if depth == 1 && names && &bytes[at..end] == b"\"id\"" {
                    let value = after_colon(bytes, end)?;
                    // A repeated id is ambiguous.
                    if found.replace(parse_scalar_id(value)?).is_some() {
                        return None;
                    }
                }
                names = false;
                at = end;
                continue;
            }
            b'{' | b'[' => {
                depth += 1;
                names = depth == 1 && *byte == b'{';
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return found;
                }
            }
            b',' => names = depth == 1,
            _ => {}
        }
        at += 1;
    }
    found
}

/// Returns the position after the JSON string that begins at `at`, or `None` if the string has no
/// end.
fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn after_colon(bytes: &[u8], at: usize) -> Option<&[u8]> {
    bytes[at..].trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start)
}

/// Parses the request id at the start of `bytes`, a string or an integer.
fn parse_scalar_id(bytes: &[u8]) -> Option<RequestId> {
    let end = match bytes.first()? {
        b'"' => string_end(bytes, 0)?,
        _ => bytes.iter().position(|byte| b",} \t\r\n".contains(byte))?,
    };
    read_id(&exact_json::parse_bytes(&bytes[..end]).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn found(text: &str) -> serde_json::Value {
        json!(recover_id(text.as_bytes()))
    }

    #[test]
    fn an_id_is_found_anywhere_at_the_top_level() {
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":7,"params":{"a":"\ud800b","id":8}}"#), json!(7));
        assert_eq!(found(r#"{"params":{"id":8,"a":[{"id":9}]}, "id" : "x" , oops"#), json!("x"));
        assert_eq!(found(r#"{"a":1e400,"id":"a\"b"}"#), json!("a\"b"));
        assert_eq!(found(r#"{"method":"id","b":"id", "id":1, "a":"\x"}"#), json!(1));
    }

    #[test]
    fn a_missing_or_repeated_id_is_not_found() {
        for text in [
            "",
            "[",
            "{}",
            r#"{"id":null,}"#,
            r#"{"id":1.5,}"#,
            r#"{"id":1,"id":2,}"#,
            r#"{"params":{"id":1},}"#,
            r#"[{"id":1},]"#,
            r#""id":1"#,
            r#"{"id":"open"#,
            r#"{"id":12"#,
        ] {
            assert_eq!(found(text), json!(null), "{text}");
        }
    }

    proptest! {
        #[test]
        fn searching_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            recover_id(&bytes);
        }

        #[test]
        fn searching_json_like_text_never_panics(text in r#"[\[\]{}",:\\id1 ]{0,60}"#) {
            recover_id(text.as_bytes());
        }
    }
}
