//! Identifies messages that are too long to read by their beginning and end.

use toolgate_contract::strip_byte_order_mark_bytes;
use toolgate_net::TruncatedText;

/// Kind of a truncated JSON-RPC message, if it can be recognized.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TruncatedMessageKind {
    /// The message is an answer, with its id if the id can be read.
    Answer(Option<u64>),
    /// The message is a request or a notification, or the text is no message.
    Other,
}

/// Returns the kind of a JSON-RPC message that was truncated.
pub(crate) fn kind_of_truncated(message: &TruncatedText) -> TruncatedMessageKind {
    match kind_of_message(&message.head) {
        TruncatedMessageKind::Answer(None) => {
            TruncatedMessageKind::Answer(id_at_end(&message.tail))
        }
        is => is,
    }
}

/// Returns the kind of a message according to the top-level members in `start`, which is the
/// beginning of the message or all of it.
pub(crate) fn kind_of_message(start: &[u8]) -> TruncatedMessageKind {
    let mut at = TruncatedJsonScanner { text: strip_byte_order_mark_bytes(start), at: 0 };
    if at.next() != Some(b'{') {
        return TruncatedMessageKind::Other;
    }
    let mut is_answer = false;
    let mut id = None;
    loop {
        match at.next() {
            Some(b'"') => {}
            Some(b',') => continue,
            Some(_) | None => break,
        }
        let name = at.text();
        if at.next() != Some(b':') {
            break;
        }
        let value = at.value();
        match name {
            b"method" | b"params" => return TruncatedMessageKind::Other,
            b"result" | b"error" | b"jsonrpc" => is_answer = true,
            b"id" => id = parse_id(value),
            _ => {}
        }
    }
    match is_answer {
        true => TruncatedMessageKind::Answer(id),
        // Program output may also contain an id.
        false => TruncatedMessageKind::Other,
    }
}

/// Returns the id of a JSON-RPC message if `id` is the last member, or if only `jsonrpc` follows. A
/// member at the end belongs to the top-level object.
fn id_at_end(end: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(end);
    let members = text.trim_end().strip_suffix('}')?.trim_end();
    let (before, value) = members.rsplit_once(':')?;
    let (before, value) = match before.trim_end().strip_suffix("\"jsonrpc\"") {
        Some(before) => before.trim_end().strip_suffix(',')?.rsplit_once(':')?,
        None => (before, value),
    };
    before.trim_end().strip_suffix("\"id\"")?;
    parse_id(value.trim().as_bytes())
}

/// Parses the number in the message id `value`. Some servers send it as a string.
fn parse_id(value: &[u8]) -> Option<u64> {
    str::from_utf8(value).ok()?.trim_matches('"').parse().ok()
}

/// Scanner for JSON that may be truncated.
struct TruncatedJsonScanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> TruncatedJsonScanner<'a> {
    /// Returns the next byte that is not white space, or `None` at the end of the text.
    fn next(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.get(self.at)?;
            self.at += 1;
            if !byte.is_ascii_whitespace() {
                return Some(byte);
            }
        }
    }

    /// Returns the content of the string whose opening quote was read last.
    fn text(&mut self) -> &'a [u8] {
        let start = self.at;
        while let Some(byte) = self.text.get(self.at) {
            self.at += 1;
            match byte {
                b'\\' => self.at += 1,
                b'"' => return &self.text[start..self.at - 1],
                _ => {}
            }
        }
        self.at = self.text.len();
        &self.text[start..]
    }

    /// Returns the next JSON value, up to its end or to the end of the text.
    fn value(&mut self) -> &'a [u8] {
        let mut depth = 0_usize;
        let Some(first) = self.next() else { return &[] };
        let start = self.at - 1;
        let mut byte = first;
        loop {
            match byte {
                b'"' => drop(self.text()),
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            match self.text.get(self.at) {
                None => return self.text[start..].trim_ascii(),
                Some(b',' | b'}' | b']') if depth == 0 => {
                    return self.text[start..self.at].trim_ascii();
                }
                Some(next) => {
                    byte = *next;
                    self.at += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn cut(text: &str) -> TruncatedMessageKind {
        let mut cut = TruncatedText::default();
        text.as_bytes().chunks(700).for_each(|piece| cut.append(piece));
        kind_of_truncated(&cut)
    }

    #[test]
    fn the_id_of_an_answer_is_found_at_the_start_or_the_end() {
        let long = "x".repeat(10_000);
        for text in [
            format!(r#"{{"jsonrpc":"2.0", "id" : 7,"result":{{"id":8,"a":"{long}"}}}}"#),
            format!(r#"{{"id":"7","result":{{"a":"{long}"}}}}"#),
            format!(r#"{{"result":{{"id":8,"a":["\"id\":9{long}"]}},"jsonrpc":"2.0","id":7}}"#),
            format!(r#"{{"result":{{"a":"{long}","id":8}}, "id":7, "jsonrpc":"2.0"}}"#),
        ] {
            assert_eq!(cut(&text), TruncatedMessageKind::Answer(Some(7)), "{}", &text[..60]);
        }
        let nested = format!(r#"{{"result":{{"a":"{long}","id":8}}}}"#);
        assert_eq!(cut(&nested), TruncatedMessageKind::Answer(None));
    }

    #[test]
    fn requests_and_other_text_are_not_answers() {
        let long = "x".repeat(10_000);
        for text in [
            format!(r#"{{"id":7,"method":"ping","params":{{"a":"{long}"}}}}"#),
            format!(r#"{{"params":{{"id":7,"a":"{long}"}},"method":"a"}}"#),
            format!(r#"[{{"id":7,"result":"{long}"}}]"#),
            format!("{long}\"id\":7"),
            format!(r#"{{"level":"info","id":7,"text":"{long}"}}"#),
            "{".to_owned(),
        ] {
            assert_eq!(cut(&text), TruncatedMessageKind::Other, "{}", &text[..text.len().min(60)]);
        }
    }

    proptest! {
        #[test]
        fn the_id_of_an_answer_is_found_next_to_any_result(
            id in any::<u64>(), key in "(id|[a-z\"\\\\{}:,]{0,4})", inner in any::<u64>(),
        ) {
            let mut result = json!({ "deep": [{ "id": inner }] });
            result[key] = Value::from(inner);
            for text in [
                format!(r#"{{"id":{id},"result":{result}}}"#),
                format!(r#"{{"result":{result},"id":{id}}}"#),
            ] {
                prop_assert_eq!(kind_of_message(text.as_bytes()), TruncatedMessageKind::Answer(Some(id)));
            }
        }

        #[test]
        fn any_text_can_be_scanned(text in "[{}\\[\\]\",:a0\\\\ ]{0,40}") {
            let _ = kind_of_message(text.as_bytes());
            let _ = id_at_end(text.as_bytes());
        }
    }
}
