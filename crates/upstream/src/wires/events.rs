//! Server-sent events, read as they come.

/// Takes bytes, gives events.
#[derive(Default)]
pub(crate) struct Events {
    held: Vec<u8>,
    event: Event,
    some: bool,
    /// Whether what came last was a `\r`, whose `\n` may come with the next piece.
    after_cr: bool,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Event {
    /// Its type; empty is `message`.
    pub(crate) kind: String,
    pub(crate) data: String,
    pub(crate) id: Option<String>,
    /// After how many milliseconds to come back.
    pub(crate) retry: Option<u64>,
}

impl Events {
    /// The events that end in `piece`.
    ///
    /// # Errors
    /// When one is longer than `bytes_max`.
    pub(crate) fn take(&mut self, piece: &[u8], bytes_max: usize) -> Result<Vec<Event>, String> {
        let mut all = Vec::new();
        let mut rest = piece;
        if std::mem::take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
            rest = &rest[1..];
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            self.held.extend_from_slice(&rest[..end]);
            let line = std::mem::take(&mut self.held);
            // `\r\n` is one end; the empty line that is left of it is told by what was before.
            let is_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            match rest.first() {
                Some(b'\n') if is_cr => rest = &rest[1..],
                None => self.after_cr = is_cr,
                Some(_) => {}
            }
            all.extend(self.line(&line));
        }
        self.held.extend_from_slice(rest);
        match self.held.len() + self.event.data.len() > bytes_max {
            true => Err(format!("an event is longer than {bytes_max} bytes")),
            false => Ok(all),
        }
    }

    fn line(&mut self, line: &[u8]) -> Option<Event> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.some).then_some(event);
        }
        let line = String::from_utf8_lossy(line);
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                self.some = true;
            }
            "event" => value.clone_into(&mut self.event.kind),
            "id" => {
                self.event.id = Some(value.to_owned());
                self.some = true;
            }
            "retry" => {
                self.event.retry = value.parse().ok();
                self.some = true;
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
    fn events_end_with_an_empty_line_however_lines_end() {
        for end in ["\n", "\r\n", "\r"] {
            let text = [": hi", "id: 1", "event: message", "data: {\"a\":", "data: 1}", "", ""];
            let all = Events::default().take(text.join(end).as_bytes(), 1000).expect("events");
            assert_eq!(all.len(), 1, "{end:?}");
            assert_eq!((all[0].data.as_str(), all[0].id.as_deref()), ("{\"a\":\n1}", Some("1")));
        }
    }

    proptest! {
        #[test]
        fn events_are_the_same_however_they_are_cut(
            data in prop::collection::vec("[ -~]{0,20}", 0..8),
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let text: String = data.iter().map(|data| format!("data: {data}{end}data: 2{end}{end}")).collect();
            let whole = Events::default().take(text.as_bytes(), 1000).expect("events");
            let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let mut events = Events::default();
            let mut all = Vec::new();
            for pair in at.windows(2) {
                all.extend(events.take(&text.as_bytes()[pair[0]..pair[1]], 1000).expect("events"));
            }
            prop_assert_eq!(all, whole);
        }
    }
}
