//! Finds secrets by their values, also in text that arrives in pieces.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use aho_corasick::{AhoCorasick, MatchKind};
use toolgate_contract::{CallEvent, CallEventSink, OutputStreamKind, lock_mutex};

use super::REDACTED;
use super::redactable::Redactable;

/// Matcher that finds secret values in texts and redacts them.
pub(crate) struct SecretValueMatcher {
    matcher: AhoCorasick,
    /// All texts that are searched for, longest first.
    texts: Vec<String>,
}

impl fmt::Debug for SecretValueMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.texts.len())
    }
}

impl SecretValueMatcher {
    /// Creates a search for the secret `values` and their JSON-escaped forms. Returns `None` if
    /// there are no values, or too many.
    pub(crate) fn new(values: &[String]) -> Option<Self> {
        let in_json = values.iter().filter_map(|value| {
            let quoted = serde_json::to_string(value).ok()?;
            Some(quoted[1..quoted.len() - 1].to_owned())
        });
        let texts: BTreeSet<_> = values.iter().cloned().chain(in_json).collect();
        let mut texts: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        let all = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
        Some(Self { matcher: all.ok()?, texts }).filter(|values| !values.texts.is_empty())
    }

    /// Redacts the secret values from `text`.
    pub(crate) fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.matcher.is_match(text) {
            return Cow::Borrowed(text);
        }
        Cow::Owned(self.matcher.replace_all(text, &vec![REDACTED; self.texts.len()]))
    }

    /// Redacts the secret values from `bytes`. Returns `None` if `bytes` contains none.
    pub(crate) fn redact_bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let some = self.matcher.is_match(bytes);
        some.then(|| self.matcher.replace_all_bytes(bytes, &vec![REDACTED; self.texts.len()]))
    }

    /// Removes the beginning of the program output `held` that is certain not to be part of an
    /// incomplete secret value. Returns this beginning with the secrets redacted.
    fn take_settled(&self, held: &mut String) -> String {
        let mut settled = String::new();
        let mut at = 0;
        loop {
            let open = self.partial_match_start(held, at);
            match self.matcher.find(&held[at..]) {
                // At this place no longer match can begin.
                Some(found) if at + found.start() < open => {
                    settled.push_str(&held[at..at + found.start()]);
                    settled.push_str(REDACTED);
                    at += found.end();
                }
                Some(_) | None => {
                    settled.push_str(&held[at..open]);
                    held.drain(..open);
                    return settled;
                }
            }
        }
    }

    /// Returns the position in `text`, at or after `from`, at which an incomplete secret value may
    /// begin.
    fn partial_match_start(&self, text: &str, from: usize) -> usize {
        let longest = self.texts.first().map_or(0, String::len);
        let start = text.floor_char_boundary(text.len().saturating_sub(longest - 1)).max(from);
        let parts = text[start..].char_indices().map(|(at, _)| start + at);
        let is_part = |at: &usize| {
            let rest = &text[*at..];
            self.texts.iter().any(|value| value.len() > rest.len() && value.starts_with(rest))
        };
        parts.into_iter().find(is_part).unwrap_or(text.len())
    }
}

/// Event sink that redacts secret values. The sink delays program output as long as the output may
/// be the start of a secret value.
pub(crate) struct RedactingEventSink {
    values: Arc<SecretValueMatcher>,
    sink: CallEventSink,
    /// End of the program output of each stream, which is delayed because a secret value may begin
    /// in it.
    held: Mutex<[String; 2]>,
}

impl RedactingEventSink {
    pub(super) fn new(values: Arc<SecretValueMatcher>, sink: CallEventSink) -> Arc<Self> {
        Arc::new(Self { values, sink, held: Mutex::default() })
    }

    /// Returns the sink that redacts events before it passes them on.
    pub(crate) fn sink(self: &Arc<Self>) -> CallEventSink {
        let redacting = self.clone();
        CallEventSink::new(move |event| redacting.forward(event))
            .with_log_level(self.sink.log_level())
    }

    fn forward(&self, event: CallEvent) {
        let clean = |text: String| match self.values.redact(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(clean) => clean,
        };
        let event = match event {
            CallEvent::ProgramOutput { stream, text } => {
                // Sent under the lock to keep the pieces in order.
                let mut held = lock_mutex(&self.held);
                let held = &mut held[stream_index(stream)];
                held.push_str(&text);
                let text = self.values.take_settled(held);
                if !text.is_empty() {
                    self.sink.send(CallEvent::ProgramOutput { stream, text });
                }
                return;
            }
            CallEvent::Progress { done, total, message } => {
                CallEvent::Progress { done, total, message: message.map(clean) }
            }
            CallEvent::Log { level, logger, mut data } => {
                data.redact_with(&self.values);
                CallEvent::Log { level, logger: logger.map(clean), data }
            }
            other @ (CallEvent::VisitFinished { .. }
            | CallEvent::FileProduced(_)
            | CallEvent::ReleaseConnection) => other,
        };
        self.sink.send(event);
    }

    /// Sends the program output that was delayed. No more output will follow.
    fn flush_held(&self) {
        let mut held = lock_mutex(&self.held);
        for stream in [OutputStreamKind::Stdout, OutputStreamKind::Stderr] {
            let text = std::mem::take(&mut held[stream_index(stream)]);
            if !text.is_empty() {
                let text = self.values.redact(&text).into_owned();
                self.sink.send(CallEvent::ProgramOutput { stream, text });
            }
        }
    }
}

fn stream_index(stream: OutputStreamKind) -> usize {
    match stream {
        OutputStreamKind::Stdout => 0,
        OutputStreamKind::Stderr => 1,
    }
}

/// Guard of an active redaction of events. Dropping the guard sends the program output that was
/// delayed.
pub(crate) struct RedactionGuard(pub(super) Option<Arc<RedactingEventSink>>);

impl Drop for RedactionGuard {
    fn drop(&mut self) {
        if let Some(sink) = &self.0 {
            sink.flush_held();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toolgate_contract::LogLevel;

    use super::*;

    fn values(values: &[&str]) -> Arc<SecretValueMatcher> {
        let values: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
        Arc::new(SecretValueMatcher::new(&values).expect("some"))
    }

    /// Returns the redacted output for `pieces`: a text for each piece, and the rest at the end.
    fn redacted_pieces(values: &Arc<SecretValueMatcher>, pieces: &[&str]) -> Vec<String> {
        let received = Arc::new(Mutex::new(Vec::new()));
        let collected = received.clone();
        let sink = CallEventSink::new(move |event| {
            let CallEvent::ProgramOutput { text, .. } = event else { return };
            collected.lock().expect("whole").push(text);
        });
        let redacting = RedactingEventSink::new(values.clone(), sink);
        for piece in pieces {
            let text = (*piece).to_owned();
            redacting
                .sink()
                .send(CallEvent::ProgramOutput { stream: OutputStreamKind::Stdout, text });
        }
        drop(RedactionGuard(Some(redacting)));
        let received = received.lock().expect("whole");
        received.clone()
    }

    #[test]
    fn a_value_in_pieces_is_redacted_and_other_output_is_not_delayed() {
        let values = values(&["hunter2-hunter2"]);
        assert_eq!(
            redacted_pieces(&values, &["is hunt", "er2-hunter", "2.\n"]),
            ["is ", "[redacted].\n"]
        );
        assert_eq!(redacted_pieces(&values, &["a line\n", "another\n"]), ["a line\n", "another\n"]);
        assert_eq!(redacted_pieces(&values, &["hunter2-hunter"]), ["hunter2-hunter"]);
    }

    #[test]
    fn the_longest_match_is_redacted_without_a_remainder() {
        let values = values(&["abcdefgh", "abcdefgh-ijkl", "xx-abcdefgh"]);
        assert_eq!(values.redact("abcdefgh-ijkl abcdefgh-ijk"), "[redacted] [redacted]-ijk");
        assert_eq!(values.redact("xx-abcdefgh-ijkl"), "[redacted]-ijkl");
        assert_eq!(redacted_pieces(&values, &["abcdefgh", "-ijk", "l"]), ["[redacted]"]);
    }

    #[test]
    fn a_value_is_redacted_in_its_json_form() {
        let values = values(&["tab\tand\"quote"]);
        assert_eq!(values.redact(r#"{"a":"tab\tand\"quote"}"#), r#"{"a":"[redacted]"}"#);
    }

    #[test]
    fn progress_messages_and_log_lines_are_redacted() {
        let values = values(&["hunter2-hunter2"]);
        let received = Arc::new(Mutex::new(String::new()));
        let collected = received.clone();
        let sink = CallEventSink::new(move |event| {
            collected.lock().expect("whole").push_str(&format!("{event:?}"));
        });
        let redacting = RedactingEventSink::new(values, sink);
        let message = || "of hunter2-hunter2".to_owned();
        redacting.sink().send(CallEvent::Progress {
            done: 1.0,
            total: None,
            message: Some(message()),
        });
        redacting.sink().send(CallEvent::log(LogLevel::Info, message()));
        let received = received.lock().expect("whole");
        assert!(
            !received.contains("hunter2") && received.matches("[redacted]").count() == 2,
            "{received}"
        );
    }

    proptest! {
        #[test]
        fn output_in_pieces_is_redacted_like_the_whole(
            text in "[abé]{0,40}", secrets in prop::collection::vec("[abé]{1,5}", 1..4),
            cuts in prop::collection::vec(0..80_usize, 0..8),
        ) {
            let secrets: Vec<_> = secrets.iter().map(String::as_str).collect();
            let values = values(&secrets);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| text.floor_char_boundary(*cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            prop_assert_eq!(redacted_pieces(&values, &pieces).concat(), values.redact(&text));
        }
    }
}
