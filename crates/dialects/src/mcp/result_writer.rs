//! A hand-written, fast serializer for call results, whose output equals serde's. A long text that
//! appears twice in a result is escaped only once.

use std::io::Write;
use std::ops::Range;

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::content::{ContentBlockText, McpContentBlock};
use super::encoder::{CommonResultMembers, McpCallResult, ResultMetadata, ServerIdentity};
use super::message::RequestId;

/// The length of a text, in bytes, from which its second copy in an answer is copied instead of
/// escaped again.
const REPEATED_BYTES_MIN: usize = 64;

/// The number of bytes of a text that are searched at once for characters to escape. Most lines are
/// longer, so many such blocks contain no character to escape and need no closer look.
const BLOCK_BYTES: usize = 32;

/// Serializes `result` as the JSON-RPC answer to the request `id`.
pub(crate) fn serialize_answer(id: &RequestId, result: &McpCallResult<'_>) -> Bytes {
    let mut page = CallResultWriter {
        json: Vec::with_capacity(256 + result.bytes_estimate()),
        first_text: None,
    };
    page.write_raw("{\"jsonrpc\":\"2.0\",\"id\":");
    page.write_serialized(id);
    page.write_raw(",\"result\":{\"content\":[");
    for (at, block) in result.content.iter().enumerate() {
        if at > 0 {
            page.write_raw(",");
        }
        match block {
            McpContentBlock::Text { text: ContentBlockText { start, end }, annotations: None } => {
                page.write_raw("{\"type\":\"text\",\"text\":");
                page.write_first_text(start, end);
                page.write_raw("}");
            }
            block => page.write_serialized(block),
        }
    }
    page.write_raw("]");
    if let Some(value) = result.structured_content {
        page.write_raw(",\"structuredContent\":");
        page.write_value(value);
    }
    page.write_raw(if result.is_error { ",\"isError\":true" } else { ",\"isError\":false" });
    page.write_stamp(&result.stamp);
    page.write_raw("}}");
    page.json.into()
}

/// Writer of a call's result as JSON. Contains the JSON that was written until now.
struct CallResultWriter<'t> {
    json: Vec<u8>,
    /// The first long text in the result, with its range in the output.
    first_text: Option<(&'t str, Range<usize>)>,
}

impl<'t> CallResultWriter<'t> {
    fn write_raw(&mut self, json: &str) {
        self.json.extend_from_slice(json.as_bytes());
    }

    fn write_serialized(&mut self, value: &impl Serialize) {
        // All parts are strings, numbers, booleans or JSON values, so serialization cannot fail.
        serde_json::to_writer(&mut self.json, value).expect("a message is JSON");
    }

    /// Writes the text that consists of `start` and `end`. If `end` is empty and `start` is long,
    /// remembers the escaped text, so that it is copied if the text occurs again.
    fn write_first_text(&mut self, start: &'t str, end: &str) {
        let from = self.json.len();
        self.json.push(b'"');
        self.write_escaped(start);
        self.write_escaped(end);
        self.json.push(b'"');
        if end.is_empty() && self.first_text.is_none() && start.len() >= REPEATED_BYTES_MIN {
            self.first_text = Some((start, from..self.json.len()));
        }
    }

    /// Writes the members that every result of a stateless revision has, after other members.
    fn write_stamp(&mut self, stamp: &CommonResultMembers<'_>) {
        let CommonResultMembers { result_type, ttl_ms, cache_scope, meta } = stamp;
        if let Some(result_type) = result_type {
            self.write_raw(",\"resultType\":");
            self.write_text(result_type);
        }
        if let Some(ttl_ms) = ttl_ms {
            self.write_raw(",\"ttlMs\":");
            self.write_serialized(ttl_ms);
        }
        if let Some(cache_scope) = cache_scope {
            self.write_raw(",\"cacheScope\":");
            self.write_text(cache_scope);
        }
        match meta {
            Some(ResultMetadata::Server { server_info: ServerIdentity { name, version } }) => {
                self.write_raw(",\"_meta\":{\"io.modelcontextprotocol/serverInfo\":{\"name\":");
                self.write_text(name);
                self.write_raw(",\"version\":");
                self.write_text(version);
                self.write_raw("}}");
            }
            Some(ResultMetadata::All(fields)) => {
                self.write_raw(",\"_meta\":");
                self.write_value(fields);
            }
            None => {}
        }
    }

    fn write_value(&mut self, value: &Value) {
        match value {
            Value::Null => self.write_raw("null"),
            Value::Bool(true) => self.write_raw("true"),
            Value::Bool(false) => self.write_raw("false"),
            Value::Number(number) => self.write_raw(number.as_str()),
            Value::String(text) => match &self.first_text {
                Some((said, at)) if *said == text.as_str() => {
                    let at = at.clone();
                    self.json.extend_from_within(at);
                }
                Some(_) | None => self.write_text(text),
            },
            Value::Array(items) => {
                self.json.push(b'[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        self.json.push(b',');
                    }
                    self.write_value(item);
                }
                self.json.push(b']');
            }
            Value::Object(fields) => {
                self.json.push(b'{');
                for (at, (name, field)) in fields.iter().enumerate() {
                    if at > 0 {
                        self.json.push(b',');
                    }
                    self.write_text(name);
                    self.json.push(b':');
                    self.write_value(field);
                }
                self.json.push(b'}');
            }
        }
    }

    fn write_text(&mut self, text: &str) {
        self.json.push(b'"');
        self.write_escaped(text);
        self.json.push(b'"');
    }

    /// Writes `text` as the inside of a JSON string, without quotes.
    fn write_escaped(&mut self, text: &str) {
        let json = &mut self.json;
        let mut rest = text.as_bytes();
        loop {
            let plain = unescaped_len(rest);
            json.extend_from_slice(&rest[..plain]);
            let Some(byte) = rest.get(plain) else { break };
            match byte {
                b'"' => json.extend_from_slice(b"\\\""),
                b'\\' => json.extend_from_slice(b"\\\\"),
                b'\n' => json.extend_from_slice(b"\\n"),
                b'\r' => json.extend_from_slice(b"\\r"),
                b'\t' => json.extend_from_slice(b"\\t"),
                0x08 => json.extend_from_slice(b"\\b"),
                0x0c => json.extend_from_slice(b"\\f"),
                control => {
                    let _ = write!(json, "\\u{control:04x}");
                }
            }
            rest = &rest[plain + 1..];
        }
    }
}

/// Returns the number of leading `bytes` that need no escape in a JSON string.
fn unescaped_len(bytes: &[u8]) -> usize {
    // Without a branch for each byte, the compiler tests a whole block at once.
    let has_escape = |block: &[u8]| {
        let needs_escape =
            |odd: bool, byte: &u8| odd | (*byte < 0x20) | (*byte == b'"') | (*byte == b'\\');
        block.iter().fold(false, needs_escape)
    };
    let blocks = bytes.chunks_exact(BLOCK_BYTES).position(has_escape);
    let plain = blocks.unwrap_or(bytes.len() / BLOCK_BYTES) * BLOCK_BYTES;
    plain + unescaped_word_len(&bytes[plain..])
}

/// Returns the number of leading `bytes` that need no escape in a JSON string. Tests eight bytes at
/// a time.
fn unescaped_word_len(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGHS: u64 = ONES * 0x80;
    // Sets the high bit of each byte equal to `byte`. A later byte may be set by mistake, so only
    // the first is reliable.
    let is = |word: u64, byte: u8| {
        let other = word ^ (ONES * u64::from(byte));
        other.wrapping_sub(ONES) & !other
    };
    let mut at = 0;
    for eight in bytes.chunks_exact(8) {
        let mut word = [0; 8];
        word.copy_from_slice(eight);
        let word = u64::from_le_bytes(word);
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let odd = (control | is(word, b'"') | is(word, b'\\')) & HIGHS;
        if odd != 0 {
            return at + (odd.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let needs_escape = |byte: &u8| matches!(byte, ..0x20 | b'"' | b'\\');
    bytes[at..].iter().position(needs_escape).map_or(bytes.len(), |plain| at + plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn by_hand(value: &Value) -> String {
        let mut page = CallResultWriter { json: Vec::new(), first_text: None };
        page.write_value(value);
        String::from_utf8(page.json).expect("it is UTF-8")
    }

    #[test]
    fn an_escaped_text_is_reused_only_for_the_same_text() {
        let text = "line \"one\"\n".repeat(20);
        let mut page = CallResultWriter { json: Vec::new(), first_text: None };
        page.write_first_text(&text, "");
        let value = json!({ "text": text, "more": format!("{text}x"), "a": [text] });
        page.write_value(&value);
        let expected = json!(text).to_string() + &value.to_string();
        assert_eq!(String::from_utf8(page.json).expect("it is UTF-8"), expected);
    }

    #[test]
    fn a_text_with_a_note_is_written_as_one_and_is_not_reused_for_its_start() {
        let text = "line \"one\"\n".repeat(20);
        let mut page = CallResultWriter { json: Vec::new(), first_text: None };
        page.write_first_text(&text, "[a \"note\"]");
        page.write_value(&json!([text]));
        let expected =
            json!(format!("{text}[a \"note\"]")).to_string() + &json!([text]).to_string();
        assert_eq!(String::from_utf8(page.json).expect("it is UTF-8"), expected);
    }

    #[test]
    fn the_common_members_of_a_result_are_written_as_serde_writes_them() {
        let server_info = ServerIdentity { name: "a \"b\"", version: "1.0" };
        let metas = [
            None,
            Some(ResultMetadata::Server { server_info }),
            Some(ResultMetadata::All(json!({ "a/b": [1, "c\n"] }))),
        ];
        for (meta, ttl_ms) in metas.into_iter().zip([None, None, Some(300_000)]) {
            let stamp = CommonResultMembers {
                result_type: meta.as_ref().map(|_| "complete"),
                ttl_ms,
                cache_scope: ttl_ms.map(|_| "private"),
                meta,
            };
            let content = vec![McpContentBlock::text("hello")];
            let result =
                McpCallResult { content, structured_content: None, is_error: false, stamp };
            let id = RequestId::from_value(json!(7)).expect("an id");
            let written = serialize_answer(&id, &result);
            let expected = serde_json::to_string(&result).expect("JSON");
            let expected = format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{expected}}}");
            assert_eq!(str::from_utf8(&written), Ok(expected.as_str()));
        }
    }

    #[test]
    fn an_escape_is_found_at_every_place_of_a_long_text() {
        for at in 0..3 * BLOCK_BYTES {
            for odd in ["\"", "\\", "\n", "\u{1f}"] {
                let text = format!("{}{odd}{}", "ä".repeat(at), "x".repeat(2 * BLOCK_BYTES));
                assert_eq!(unescaped_len(text.as_bytes()), 2 * at, "{text}");
                assert_eq!(by_hand(&json!(text)), json!(text).to_string());
            }
        }
        assert_eq!(unescaped_len("x".repeat(100).as_bytes()), 100);
    }

    proptest! {
        #[test]
        fn a_result_is_written_as_serde_writes_it(
            texts in proptest::collection::vec("(\\PC|[\"\\\\\\x00-\\x20\\x7f-\\u{ff}]){0,40}", 0..4),
            number in any::<f64>(),
            whole in any::<i64>(),
        ) {
            let fields = texts.iter().map(|text| (text.clone(), json!([text, null, true])));
            let value = json!({
                "texts": fields.collect::<serde_json::Map<_, _>>(),
                "numbers": [number, whole, {}, [], false],
            });
            prop_assert_eq!(by_hand(&value), value.to_string());
        }
    }
}
