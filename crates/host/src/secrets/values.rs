//! Finds secrets by their values, also in text that arrives in pieces.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aho_corasick::{AhoCorasick, MatchKind};
use toolgate_contract::{Event, EventSink, Stream};

use super::REDACTED;
use super::told::Told;

/// Values to search for.
pub(crate) struct Values {
    all: AhoCorasick,
    /// All searched texts, longest first.
    texts: Vec<String>,
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.texts.len())
    }
}

impl Values {
    /// Creates a search for `values` and their JSON-escaped forms. Returns `None` if there are
    /// none, or too many.
    pub(crate) fn of(values: &[String]) -> Option<Self> {
        let in_json = values.iter().filter_map(|value| {
            let quoted = serde_json::to_string(value).ok()?;
            Some(quoted[1..quoted.len() - 1].to_owned())
        });
        let texts: BTreeSet<_> = values.iter().cloned().chain(in_json).collect();
        let mut texts: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        let all = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
        Some(Self { all: all.ok()?, texts }).filter(|values| !values.texts.is_empty())
    }

    /// Redacts the values from `text`.
    pub(crate) fn redacted<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.all.is_match(text) {
            return Cow::Borrowed(text);
        }
        Cow::Owned(self.all.replace_all(text, &vec![REDACTED; self.texts.len()]))
    }

    /// Redacts the values from `bytes`. Returns `None` if none occurs.
    pub(crate) fn redacted_bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let some = self.all.is_match(bytes);
        some.then(|| self.all.replace_all_bytes(bytes, &vec![REDACTED; self.texts.len()]))
    }

    /// Takes the redacted start of `held` that cannot be part of a longer match.
    fn settled(&self, held: &mut String) -> String {
        let mut told = String::new();
        let mut at = 0;
        loop {
            let open = self.may_begin(held, at);
            match self.all.find(&held[at..]) {
                // At this place no longer match can begin.
                Some(found) if at + found.start() < open => {
                    told.push_str(&held[at..at + found.start()]);
                    told.push_str(REDACTED);
                    at += found.end();
                }
                Some(_) | None => {
                    told.push_str(&held[at..open]);
                    held.drain(..open);
                    return told;
                }
            }
        }
    }

    /// Returns the position in `text`, from `from` on, at which an incomplete value may begin.
    fn may_begin(&self, text: &str, from: usize) -> usize {
        let longest = self.texts.first().map_or(0, String::len);
        let near = text.floor_char_boundary(text.len().saturating_sub(longest - 1)).max(from);
        let parts = text[near..].char_indices().map(|(at, _)| near + at);
        let is_part = |at: &usize| {
            let rest = &text[*at..];
            self.texts.iter().any(|value| value.len() > rest.len() && value.starts_with(rest))
        };
        parts.into_iter().find(is_part).unwrap_or(text.len())
    }
}

/// Event sink that redacts values. Program output is held back while it may be the start of a
/// value.
pub(crate) struct Veil {
    values: Arc<Values>,
    sink: EventSink,
    /// Held-back output of each stream.
    held: Mutex<[String; 2]>,
}

impl Veil {
    pub(super) fn over(values: Arc<Values>, sink: EventSink) -> Arc<Self> {
        Arc::new(Self { values, sink, held: Mutex::default() })
    }

    /// Returns the sink that redacts events.
    pub(crate) fn sink(self: &Arc<Self>) -> EventSink {
        let veil = self.clone();
        EventSink::new(move |event| veil.take(event)).for_lines(self.sink.lines())
    }

    fn take(&self, event: Event) {
        let clean = |text: String| match self.values.redacted(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(clean) => clean,
        };
        let event = match event {
            Event::Chunk { stream, text } => {
                // Sent under the lock to keep the pieces in order.
                let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                let held = &mut held[place(stream)];
                held.push_str(&text);
                let text = self.values.settled(held);
                if !text.is_empty() {
                    self.sink.send(Event::Chunk { stream, text });
                }
                return;
            }
            Event::Progress { done, total, message } => {
                Event::Progress { done, total, message: message.map(clean) }
            }
            Event::Log { level, logger, mut data } => {
                data.rid(&self.values);
                Event::Log { level, logger: logger.map(clean), data }
            }
            other @ (Event::Visited { .. } | Event::Left(_) | Event::LetGo) => other,
        };
        self.sink.send(event);
    }

    /// Sends the held-back output; no more will come.
    fn end(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in [Stream::Stdout, Stream::Stderr] {
            let text = std::mem::take(&mut held[place(stream)]);
            if !text.is_empty() {
                let text = self.values.redacted(&text).into_owned();
                self.sink.send(Event::Chunk { stream, text });
            }
        }
    }
}

fn place(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

/// Guard of an active redaction. Dropping it sends the held-back output.
pub(crate) struct Veiled(pub(super) Option<Arc<Veil>>);

impl Drop for Veiled {
    fn drop(&mut self) {
        if let Some(veil) = &self.0 {
            veil.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toolgate_contract::Level;

    use super::*;

    fn values(values: &[&str]) -> Arc<Values> {
        let values: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
        Arc::new(Values::of(&values).expect("some"))
    }

    /// What is told of `pieces`, piece by piece and the end.
    fn told(values: &Arc<Values>, pieces: &[&str]) -> Vec<String> {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = heard.clone();
        let sink = EventSink::new(move |event| {
            let Event::Chunk { text, .. } = event else { return };
            hears.lock().expect("whole").push(text);
        });
        let veil = Veil::over(values.clone(), sink);
        for piece in pieces {
            let text = (*piece).to_owned();
            veil.sink().send(Event::Chunk { stream: Stream::Stdout, text });
        }
        drop(Veiled(Some(veil)));
        let heard = heard.lock().expect("whole");
        heard.clone()
    }

    #[test]
    fn a_value_that_comes_in_pieces_is_found_and_what_is_none_is_not_kept_waiting() {
        let values = values(&["hunter2-hunter2"]);
        assert_eq!(told(&values, &["is hunt", "er2-hunter", "2.\n"]), ["is ", "[redacted].\n"]);
        assert_eq!(told(&values, &["a line\n", "another\n"]), ["a line\n", "another\n"]);
        assert_eq!(told(&values, &["hunter2-hunter"]), ["hunter2-hunter"]);
    }

    #[test]
    fn the_longest_of_several_is_meant_and_one_within_another_leaves_no_piece() {
        let values = values(&["abcdefgh", "abcdefgh-ijkl", "xx-abcdefgh"]);
        assert_eq!(values.redacted("abcdefgh-ijkl abcdefgh-ijk"), "[redacted] [redacted]-ijk");
        assert_eq!(values.redacted("xx-abcdefgh-ijkl"), "[redacted]-ijkl");
        assert_eq!(told(&values, &["abcdefgh", "-ijk", "l"]), ["[redacted]"]);
    }

    #[test]
    fn a_value_is_found_as_it_stands_in_json_too() {
        let values = values(&["tab\tand\"quote"]);
        assert_eq!(values.redacted(r#"{"a":"tab\tand\"quote"}"#), r#"{"a":"[redacted]"}"#);
    }

    #[test]
    fn words_of_progress_and_log_lines_are_told_without() {
        let values = values(&["hunter2-hunter2"]);
        let heard = Arc::new(Mutex::new(String::new()));
        let hears = heard.clone();
        let sink = EventSink::new(move |event| {
            hears.lock().expect("whole").push_str(&format!("{event:?}"));
        });
        let veil = Veil::over(values, sink);
        let message = || "of hunter2-hunter2".to_owned();
        veil.sink().send(Event::Progress { done: 1.0, total: None, message: Some(message()) });
        veil.sink().send(Event::log(Level::Info, message()));
        let heard = heard.lock().expect("whole");
        assert!(!heard.contains("hunter2") && heard.matches("[redacted]").count() == 2, "{heard}");
    }

    proptest! {
        /// However text is cut up, what is told of its pieces is what is told of it whole.
        #[test]
        fn in_pieces_the_same_is_told(
            text in "[abé]{0,40}", secrets in prop::collection::vec("[abé]{1,5}", 1..4),
            cuts in prop::collection::vec(0..80_usize, 0..8),
        ) {
            let secrets: Vec<_> = secrets.iter().map(String::as_str).collect();
            let values = values(&secrets);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| text.floor_char_boundary(*cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            prop_assert_eq!(told(&values, &pieces).concat(), values.redacted(&text));
        }
    }
}
