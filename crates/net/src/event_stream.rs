//! Parses server-sent events incrementally, and truncates event data that exceeds a size limit.

use toolgate_contract::strip_byte_order_mark_bytes;

/// Maximum number of bytes that are kept from the beginning of a text that exceeds the size limit.
const HEAD_BYTES: usize = 4096;
/// Maximum number of bytes that are kept from the end of a text that exceeds the size limit.
const TAIL_BYTES: usize = 256;

/// The beginning and the end of a text that exceeds the size limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TruncatedText {
    /// The first bytes of the text, at most 4096.
    pub head: Vec<u8>,
    /// The last bytes of the text, at most 256.
    pub tail: Vec<u8>,
}

impl TruncatedText {
    /// Appends `piece` to the text, of which only the first 4096 and the last 256 bytes are kept.
    pub fn append(&mut self, piece: &[u8]) {
        let more = piece.len().min(HEAD_BYTES - self.head.len());
        self.head.extend_from_slice(&piece[..more]);
        self.tail.extend_from_slice(&piece[piece.len().saturating_sub(TAIL_BYTES)..]);
        let over = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..over);
    }
}

/// Parser that splits a stream of bytes into server-sent events.
pub struct SseParser {
    /// Maximum size in bytes of an event's data. Longer data is truncated.
    bytes_max: usize,
    line: Vec<u8>,
    /// State while the rest of an overlong line is skipped. `None` if the current line is not
    /// overlong.
    rest: Option<OverlongLineSkipState>,
    event: SseEvent,
    has_fields: bool,
    /// True if the last byte that was parsed is a `\r`. The `\n` of this line ending may follow in
    /// the next piece.
    after_cr: bool,
}

/// State while the parser skips the rest of a line that exceeds the size limit.
#[derive(Clone, Copy)]
enum OverlongLineSkipState {
    /// The overlong line is data of an event. Its last bytes are kept in the event's truncated
    /// data.
    Data,
    Ignored,
}

/// A server-sent event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SseEvent {
    /// Type of the event. Empty if the stream names no type, which means `message`.
    pub kind: String,
    /// Lines of the event's data. Empty if the data is longer than the parser's limit.
    pub data: String,
    /// Beginning and end of the event's data, if the data is longer than the parser's limit.
    pub cut: Option<TruncatedText>,
    /// Id with which the stream can be resumed after this event, if the event has an id.
    pub id: Option<String>,
    /// Delay in milliseconds after which the server asks the client to reconnect, if the event
    /// states one.
    pub retry: Option<u64>,
}

impl SseParser {
    /// Creates a parser of a stream of server-sent events. Data of an event is truncated if it is
    /// longer than `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            line: Vec::new(),
            rest: None,
            event: SseEvent::default(),
            has_fields: false,
            after_cr: false,
        }
    }

    /// Returns the events that end in `piece`, the next bytes of the stream.
    pub fn parse(&mut self, piece: &[u8]) -> Vec<SseEvent> {
        let mut all = Vec::new();
        // An empty piece does not decide if the `\r` before it ended a line alone.
        if piece.is_empty() {
            return all;
        }
        let mut rest = piece;
        if std::mem::take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
            rest = &rest[1..];
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            self.hold(&rest[..end]);
            let line = std::mem::take(&mut self.line);
            // `\r\n` is one line end.
            let is_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            match rest.first() {
                Some(b'\n') if is_cr => rest = &rest[1..],
                None => self.after_cr = is_cr,
                Some(_) => {}
            }
            if self.rest.take().is_none() {
                all.extend(self.end_line(&line));
            }
        }
        self.hold(rest);
        all
    }

    /// Appends `more` to the current line of the stream. If the line becomes too long, starts to
    /// truncate its event data, or to ignore the line if it contains none.
    fn hold(&mut self, more: &[u8]) {
        match self.rest {
            None => self.line.extend_from_slice(more),
            Some(OverlongLineSkipState::Data) => {
                self.event.cut.get_or_insert_default().append(more);
            }
            Some(OverlongLineSkipState::Ignored) => {}
        }
        if self.line.len() + self.event.data.len() <= self.bytes_max {
            return;
        }
        let held = std::mem::take(&mut self.line);
        let Some(data) = strip_byte_order_mark_bytes(&held).strip_prefix(b"data:") else {
            self.rest = Some(OverlongLineSkipState::Ignored);
            return;
        };
        self.add(&String::from_utf8_lossy(data.strip_prefix(b" ").unwrap_or(data)));
        self.cut();
        self.rest = Some(OverlongLineSkipState::Data);
    }

    fn add(&mut self, value: &str) {
        self.has_fields = true;
        if let Some(cut) = &mut self.event.cut {
            return cut.append(value.as_bytes());
        }
        if !self.event.data.is_empty() {
            self.event.data.push('\n');
        }
        self.event.data.push_str(value);
    }

    /// Moves the event's data to the truncated data, which keeps only the beginning and the end.
    fn cut(&mut self) {
        let data = std::mem::take(&mut self.event.data);
        self.event.cut.get_or_insert_default().append(data.as_bytes());
    }

    fn end_line(&mut self, line: &[u8]) -> Option<SseEvent> {
        // A stream may begin with a byte order mark.
        let line = strip_byte_order_mark_bytes(line);
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_fields).then_some(event);
        }
        let line = String::from_utf8_lossy(line);
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => self.add(value),
            "event" => value.clone_into(&mut self.event.kind),
            "id" => {
                self.event.id = Some(value.to_owned());
                self.has_fields = true;
            }
            "retry" => {
                self.event.retry = value.parse().ok();
                self.has_fields = true;
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn events_end_with_an_empty_line_for_all_line_ends() {
        for end in ["\n", "\r\n", "\r"] {
            let text = [": hi", "id: 1", "event: message", "data: {\"a\":", "data: 1}", "", ""];
            let all = SseParser::new(1000).parse(text.join(end).as_bytes());
            assert_eq!(all.len(), 1, "{end:?}");
            assert_eq!((all[0].data.as_str(), all[0].id.as_deref()), ("{\"a\":\n1}", Some("1")));
        }
    }

    #[test]
    fn a_mark_at_the_start_of_a_stream_is_ignored() {
        for text in
            ["\u{feff}data: 1\n\n", "\u{feff}event: endpoint\ndata: 1\n\n", "\u{feff}\ndata: 1\n\n"]
        {
            for size in [1, 2, text.len()] {
                let mut events = SseParser::new(1000);
                let pieces = text.as_bytes().chunks(size);
                let all: Vec<_> = pieces.flat_map(|piece| events.parse(piece)).collect();
                assert_eq!(all.len(), 1, "{text:?} by {size}");
                assert_eq!(all[0].data, "1");
            }
        }
    }

    #[test]
    fn an_overlong_event_is_truncated_and_later_ones_are_whole() {
        let long = "x".repeat(5000);
        let texts = [
            format!("data: {{\"id\":7,\"result\":\"{long}\"}}\n\ndata: 2\n\n"),
            format!("data: {{\"id\":7,\"result\":\ndata: \"{long}\"}}\n\ndata: 2\n\n"),
            format!(": {long}\ndata: 1\n\ndata: 2\n\n"),
        ];
        for (at, text) in texts.iter().enumerate() {
            for size in [1, 7, 600, text.len()] {
                let mut events = SseParser::new(1000);
                let pieces = text.as_bytes().chunks(size);
                let all: Vec<_> = pieces.flat_map(|piece| events.parse(piece)).collect();
                assert_eq!(all.len(), 2, "{at} by {size}");
                let cut = all[0].cut.as_ref().map(|cut| (cut.head.len(), &cut.tail[254..]));
                assert_eq!(cut, (at < 2).then_some((4096, &b"\"}"[..])), "{at} by {size}");
                assert_eq!(all[0].data, if at < 2 { "" } else { "1" }, "{at} by {size}");
                assert_eq!((all[1].data.as_str(), &all[1].cut), ("2", &None), "{at} by {size}");
            }
        }
    }

    proptest! {
        #[test]
        fn events_are_the_same_for_any_split_into_pieces(
            data in prop::collection::vec("[ -~]{0,20}", 0..8),
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let text: String = data.iter().map(|data| format!("data: {data}{end}data: 2{end}{end}")).collect();
            let whole = SseParser::new(1000).parse(text.as_bytes());
            let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let mut events = SseParser::new(1000);
            let mut all = Vec::new();
            for pair in at.windows(2) {
                all.extend(events.parse(&text.as_bytes()[pair[0]..pair[1]]));
            }
            prop_assert_eq!(all, whole);
        }
    }
}
