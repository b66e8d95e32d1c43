//! Parses code in another process, because hostile text can crash a grammar and the process around
//! it.

use std::sync::{Arc, PoisonError, RwLock};

use super::parsed_code::ParsedDefinitions;
use super::{BYTES_MAX, parse_here};
use crate::lines::LineIndexedText;
use crate::memory::ParseMemoryCounter;

/// Maximum number of bytes of a request to parse: the longest text, with the name of its language.
pub const PARSE_REQUEST_BYTES_MAX: usize = BYTES_MAX + 1 + u8::MAX as usize;
/// Maximum number of bytes of the answer to a request to parse. A text whose definitions need more
/// bytes is reported as too complex.
pub const PARSE_ANSWER_BYTES_MAX: usize = 8 << 20;

/// The first byte of a parser's answer without definitions: the text is too complex to parse.
const NOT_PARSED: u8 = 0;
/// The first byte of a parser's answer with definitions.
const PARSED: u8 = 1;

/// The process that parses code for all threads of this process. `None` if this process parses code
/// itself.
///
/// The value is global on purpose: a caller that forgot to pass it on would parse hostile text in
/// the server.
static PARSER_PROCESS: RwLock<Option<Arc<dyn CodeParserProcess>>> = RwLock::new(None);

/// A process that parses code for this process. See [`set_parser_process`].
pub trait CodeParserProcess: Send + Sync {
    /// Sends `request` to a process that answers it with [`answer_parse_request`], and passes the
    /// answer to `accept`. Blocks.
    ///
    /// `accept` returns `false` if the answer is invalid. The process is then damaged, and must get
    /// no other request. If there is no answer, `accept` is not called, and the caller guesses the
    /// definitions line by line. `path` names the file in log lines.
    fn exchange(&self, path: &str, request: &[u8], accept: &mut dyn FnMut(&[u8]) -> bool);
}

/// Makes `process` parse all code from now on, instead of this process.
pub fn set_parser_process(process: Arc<dyn CodeParserProcess>) {
    *PARSER_PROCESS.write().unwrap_or_else(PoisonError::into_inner) = Some(process);
}

/// Returns the process that parses code, or `None` if the current process parses by itself.
pub(super) fn parser_process() -> Option<Arc<dyn CodeParserProcess>> {
    PARSER_PROCESS.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Parses the text of `lines`, which is in the language `lang`, in the parser process `process`.
/// Returns `None` if the text is too complex, or if there is no valid answer.
pub(super) fn parse_in(
    process: &dyn CodeParserProcess,
    path: &str,
    lines: &LineIndexedText<'_>,
    lang: &str,
) -> Option<ParsedDefinitions> {
    // Only one of several long texts is parsed at a time, in whichever process.
    let _turn = ParseMemoryCounter::start(lines.text.len());
    let request = encode_request(lang, lines.text);
    let mut parsed = None;
    let mut accept = |answer: &[u8]| match decode_answer(answer, lines) {
        Ok(found) => {
            parsed = found;
            true
        }
        Err(InvalidParserAnswer) => false,
    };
    process.exchange(path, &request, &mut accept);
    parsed
}

/// Answers a request of [`CodeParserProcess::exchange`] by parsing the text in it.
///
/// Run this only in a process that may crash.
pub fn answer_parse_request(request: &[u8]) -> Vec<u8> {
    let parsed = decode_request(request)
        .and_then(|(lang, text)| parse_here(&LineIndexedText::new(text), lang));
    let Some(parsed) = parsed else { return vec![NOT_PARSED] };
    let mut answer = vec![PARSED];
    parsed.encode(&mut answer);
    if answer.len() > PARSE_ANSWER_BYTES_MAX { vec![NOT_PARSED] } else { answer }
}

/// Encodes a request to parse: the length of the language's name in one byte, the name, and the
/// text.
fn encode_request(lang: &str, text: &str) -> Vec<u8> {
    let length = u8::try_from(lang.len()).unwrap_or_default();
    [&[length][..], lang.as_bytes(), text.as_bytes()].concat()
}

/// Decodes a request to parse. Returns the name of its language and its text, or `None` if it is
/// not a request.
fn decode_request(request: &[u8]) -> Option<(&str, &str)> {
    let (length, rest) = request.split_first()?;
    let (lang, text) = rest.split_at_checked(usize::from(*length))?;
    let lang = str::from_utf8(lang).ok()?;
    let text = str::from_utf8(text).ok()?;
    (text.len() <= BYTES_MAX).then_some((lang, text))
}

/// Error for a parser's answer that [`answer_parse_request`] cannot have produced for the requested
/// text.
struct InvalidParserAnswer;

/// Decodes a parser's answer for the text of `lines`. Returns `Ok(None)` if the text is too
/// complex.
fn decode_answer(
    answer: &[u8],
    lines: &LineIndexedText<'_>,
) -> Result<Option<ParsedDefinitions>, InvalidParserAnswer> {
    match answer.split_first() {
        Some((&NOT_PARSED, [])) => Ok(None),
        Some((&PARSED, rest)) => {
            ParsedDefinitions::decode(rest, lines).map(Some).ok_or(InvalidParserAnswer)
        }
        Some(_) | None => Err(InvalidParserAnswer),
    }
}

/// Decodes `message` as a request to parse, and as a parser's answer about `text`. Panics if a
/// decoded message cannot be encoded and decoded again.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_message(text: &str, message: &[u8]) {
    if let Some(requested) = decode_request(message) {
        let (lang, text) = requested;
        assert_eq!(decode_request(&encode_request(lang, text)), Some(requested));
    }
    let lines = LineIndexedText::new(text);
    let Ok(Some(parsed)) = decode_answer(message, &lines) else { return };
    let mut again = vec![PARSED];
    parsed.encode(&mut again);
    assert!(matches!(decode_answer(&again, &lines), Ok(Some(_))));
    crate::cut::cut_chunks(&lines, &parsed.into_outline(), crate::chunk::ChunkKind::Code);
}

/// Parses `text` by the grammar of the language `lang`, encodes the answer and decodes it. Panics
/// if the answer is invalid.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_parse(lang: &str, text: &str) {
    let answer = answer_parse_request(&encode_request(lang, text));
    let lines = LineIndexedText::new(text);
    let Ok(parsed) = decode_answer(&answer, &lines) else { panic!("the answer is invalid") };
    let Some(parsed) = parsed else { return };
    crate::cut::cut_chunks(&lines, &parsed.into_outline(), crate::chunk::ChunkKind::Code);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::*;
    use crate::chunk::ChunkKind;
    use crate::cut::cut_chunks;

    const RUST: &str = "//! A store.\n\n/// Keeps é.\npub struct Store {\n    at: u32,\n}\n\n\
        impl Store {\n    /// Opens.\n    fn open(&self) -> u32 {\n        self.at\n    }\n}\n\
        fn broken( {\n";
    const CSHARP: &str = "namespace Zoo;\n\nclass Okapi\n{\n    void Feed() { }\n}\n";

    /// Fake parser process that answers requests with a function, and records which answers the
    /// caller accepted.
    struct FakeParserProcess {
        answer: fn(&[u8]) -> Option<Vec<u8>>,
        was_accepted: Mutex<Vec<bool>>,
    }

    impl FakeParserProcess {
        fn new(answer: fn(&[u8]) -> Option<Vec<u8>>) -> Self {
            Self { answer, was_accepted: Mutex::default() }
        }
    }

    impl CodeParserProcess for FakeParserProcess {
        fn exchange(&self, _path: &str, request: &[u8], accept: &mut dyn FnMut(&[u8]) -> bool) {
            if let Some(answer) = (self.answer)(request) {
                self.was_accepted.lock().expect("no thread panicked").push(accept(&answer));
            }
        }
    }

    /// Returns the encoded definitions in the answer to a request to parse `text`, without the
    /// first byte of the answer.
    fn encoded(lang: &str, text: &str) -> Vec<u8> {
        let answer = answer_parse_request(&encode_request(lang, text));
        assert_eq!(answer[0], PARSED);
        answer[1..].to_vec()
    }

    #[test]
    fn an_outline_from_another_process_is_that_of_this_process() {
        for (lang, text) in [("rust", RUST), ("csharp", CSHARP), ("rust", "")] {
            let lines = LineIndexedText::new(text);
            let process = FakeParserProcess::new(|request| Some(answer_parse_request(request)));
            let there = parse_in(&process, "a", &lines, lang).unwrap();
            let here = parse_here(&lines, lang).unwrap();
            assert_eq!(format!("{there:?}"), format!("{here:?}"), "{lang}");
            let [there, here] = [there, here].map(ParsedDefinitions::into_outline);
            assert_eq!(format!("{there:?}"), format!("{here:?}"), "{lang}");
            assert_eq!(*process.was_accepted.lock().unwrap(), [true]);
        }
    }

    #[test]
    fn a_process_without_a_valid_answer_parses_nothing() {
        type Answer = fn(&[u8]) -> Option<Vec<u8>>;
        let answers: [Answer; 5] = [
            |_| None,
            |_| Some(Vec::new()),
            |_| Some(vec![7]),
            |_| Some(vec![NOT_PARSED, 0]),
            |_| Some(answer_parse_request(&encode_request("rust", CSHARP))),
        ];
        let lines = LineIndexedText::new(RUST);
        for (at, answer) in answers.into_iter().enumerate() {
            let process = FakeParserProcess::new(answer);
            assert!(parse_in(&process, "a", &lines, "rust").is_none(), "{at}");
            let accepted = process.was_accepted.into_inner().unwrap();
            assert_eq!(accepted, vec![false; usize::from(at > 0)], "{at}");
        }
    }

    #[test]
    fn an_invalid_request_is_answered_without_a_parse() {
        let long = "x".repeat(BYTES_MAX + 1);
        for request in [
            Vec::new(),
            vec![9, b'r'],
            encode_request("latin", "a"),
            [encode_request("rust", "fn a() {}"), vec![0xff]].concat(),
            encode_request("rust", &long),
        ] {
            assert_eq!(answer_parse_request(&request), [NOT_PARSED]);
        }
        assert!(encode_request("rust", &long[1..]).len() <= PARSE_REQUEST_BYTES_MAX);
    }

    #[test]
    fn a_cut_or_extended_answer_is_invalid() {
        for (lang, text) in [("rust", RUST), ("csharp", CSHARP)] {
            let lines = LineIndexedText::new(text);
            let whole = encoded(lang, text);
            assert!(ParsedDefinitions::decode(&whole, &lines).is_some());
            for length in 0..whole.len() {
                assert!(ParsedDefinitions::decode(&whole[..length], &lines).is_none(), "{length}");
            }
            assert!(ParsedDefinitions::decode(&[&whole[..], &[0]].concat(), &lines).is_none());
        }
    }

    #[test]
    fn a_position_outside_of_the_text_is_invalid() {
        let text = "fn a() {}\n";
        let lines = LineIndexedText::new(text);
        let valid = encoded("rust", text);
        for line in 0..3 {
            let mut moved = valid.clone();
            moved[4 + 4 * line] += 1;
            assert!(ParsedDefinitions::decode(&moved, &lines).is_none(), "line {line}");
        }
        assert!(
            ParsedDefinitions::decode(&valid, &LineIndexedText::new("fn a() {}\n\n")).is_none()
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

        #[test]
        fn a_changed_answer_never_panics(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
        ) {
            for (lang, text) in [("rust", RUST), ("csharp", CSHARP)] {
                let mut bytes = encoded(lang, text);
                for (at, byte) in &changes {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
                let lines = LineIndexedText::new(text);
                if let Some(parsed) = ParsedDefinitions::decode(&bytes, &lines) {
                    cut_chunks(&lines, &parsed.into_outline(), ChunkKind::Code);
                }
            }
        }
    }
}
