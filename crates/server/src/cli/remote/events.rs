//! Parses server-sent events incrementally.

/// Parser of server-sent events.
#[derive(Default)]
pub(super) struct EventParser {
    /// Incomplete line.
    line: Vec<u8>,
    /// Data of the incomplete event.
    data: Option<String>,
}

impl EventParser {
    /// Returns the data of each event that `bytes` complete.
    pub(super) fn parse(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut ended = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                ended.extend(
                    self.read_line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n'])),
                );
            }
        }
        ended
    }

    fn read_line(&mut self, line: &str) -> Option<String> {
        if line.is_empty() {
            return self.data.take();
        }
        if let Some(more) = line.strip_prefix("data:") {
            let more = more.strip_prefix(' ').unwrap_or(more);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(more);
                }
                None => self.data = Some(more.to_owned()),
            }
        }
        None
    }
}

/// Checks that events are the same for any split of their bytes.
#[cfg(any(fuzzing, test))]
pub(super) fn check_any_chunking(bytes: &[u8]) {
    let read = |size: usize| {
        let mut events = EventParser::default();
        bytes.chunks(size).flat_map(|chunk| events.parse(chunk)).collect::<Vec<_>>()
    };
    let whole = read(bytes.len().max(1));
    for size in [1, 3] {
        assert_eq!(read(size), whole, "in chunks of {size}");
    }
}

#[cfg(test)]
type EventFuzzTarget = fn(&[u8]);

#[cfg(test)]
const TARGETS: &[(&str, EventFuzzTarget)] = &[("server_sent_events", check_any_chunking)];

#[cfg(test)]
#[path = "../../../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_wherever_the_stream_is_cut() {
        let stream =
            ": hello\n\nid: 1\ndata: {\"a\":\ndata: 1}\n\nevent: x\r\ndata:two\r\n\r\ndata: half";
        for cut in 0..stream.len() {
            let mut events = EventParser::default();
            let (first, second) = stream.as_bytes().split_at(cut);
            let all = [events.parse(first), events.parse(second)].concat();
            assert_eq!(all, ["{\"a\":\n1}", "two"], "cut at {cut}");
        }
    }
}
