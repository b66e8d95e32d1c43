//! What is said to a client of a session over HTTP: kept for a while, so that a client that loses
//! its connection, or is let go, comes back for the rest.
//!
//! Each stream has a number, each event on it one too, and an event's id is both: `7-3`. Stream 0
//! is the one for what is told unasked. Who reads a stream that another reads takes its place.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::timeout;
use toolgate_transports::http::SentEvent;

use crate::session::locked;

/// How many events of a stream are kept; of more, the oldest go.
const EVENTS_MAX: usize = 256;
/// How many bytes of them, but for the newest.
const EVENTS_BYTES_MAX: usize = 1 << 20;
/// How many streams that have ended are kept for each session.
const ENDED_MAX: usize = 256;
/// How many of them that somebody has read to the end, and might not have received whole.
const HEARD_MAX: usize = 16;
/// How many bytes of them, but for the newest.
const ENDED_BYTES_MAX: usize = 1 << 20;
/// How many bytes of streams that have ended are kept for all sessions together.
const ALL_BYTES_MAX: usize = 64 << 20;
/// How long a client should wait before it comes back.
const RETRY: Duration = Duration::from_millis(500);
/// What the stream for what is told unasked is called.
const TIDINGS: u64 = 0;

/// The streams of a session.
#[derive(Default)]
pub(crate) struct Streams {
    kept: Mutex<Kept>,
    ended: Arc<Ended>,
}

/// The streams of all sessions that have ended, oldest first, and how many bytes they hold.
#[derive(Default)]
pub(crate) struct Ended(Mutex<Heap>);

#[derive(Default)]
struct Heap {
    /// Each with how many bytes it held.
    logs: VecDeque<(Weak<Log>, usize)>,
    bytes: usize,
}

impl Ended {
    /// Keeps `log`, and lets the oldest go beyond what is kept in all.
    fn keep(&self, log: &Arc<Log>) {
        let mut heap = locked(&self.0);
        let Heap { logs, bytes } = &mut *heap;
        let more = log.bytes();
        logs.push_back((Arc::downgrade(log), more));
        *bytes += more;
        while *bytes > ALL_BYTES_MAX
            && let Some((oldest, less)) = logs.pop_front()
        {
            *bytes -= less;
            if let Some(oldest) = oldest.upgrade() {
                oldest.forget();
            }
        }
        // What its session let go is not counted any more.
        while logs.front().is_some_and(|(log, _)| log.strong_count() == 0) {
            *bytes -= logs.pop_front().map_or(0, |(_, less)| less);
        }
    }
}

#[derive(Default)]
struct Kept {
    /// What the newest stream is called.
    last: u64,
    /// Oldest first.
    logs: VecDeque<Arc<Log>>,
    tidings: Option<Arc<Log>>,
}

impl Streams {
    /// Those of a new session; what has ended of all sessions is in `ended`.
    pub(crate) fn new(ended: Arc<Ended>) -> Self {
        Self { kept: Mutex::default(), ended }
    }

    /// A new stream.
    pub(crate) fn open(&self) -> Arc<Log> {
        let mut kept = locked(&self.kept);
        kept.last += 1;
        let log = Log::new(kept.last, 0, &self.ended);
        kept.forget_some();
        kept.logs.push_back(log.clone());
        log
    }

    /// The stream for what is told unasked, and whether nothing is told on it yet.
    pub(crate) fn tidings(&self) -> (Arc<Log>, bool) {
        let mut kept = locked(&self.kept);
        if let Some(log) = kept.tidings.as_ref().filter(|log| !log.has_ended()) {
            return (log.clone(), false);
        }
        // No two events have one id, whichever stream they were told on.
        let last = kept.tidings.as_ref().map_or(0, |log| log.last());
        let log = Log::new(TIDINGS, last, &self.ended);
        kept.tidings = Some(log.clone());
        (log, true)
    }

    /// The stream that the event `id` is of, and which of its events that is; `None` if there is
    /// none, or it is the one for what is told unasked.
    pub(crate) fn of_event(&self, id: &str) -> Option<(Arc<Log>, u64)> {
        let (stream, event) = numbers(id)?;
        let kept = locked(&self.kept);
        let mut logs = kept.logs.iter().filter(|log| !log.is_forgotten());
        let log = logs.find(|log| log.number == stream)?;
        Some((log.clone(), event))
    }

    /// Whether anybody reads any.
    pub(crate) fn are_read(&self) -> bool {
        let kept = locked(&self.kept);
        kept.logs.iter().chain(&kept.tidings).any(|log| log.is_read())
    }
}

/// Whether the event `id` is of the stream for what is told unasked, and which it is there.
pub(crate) fn tidings_event(id: &str) -> Option<u64> {
    numbers(id).filter(|(stream, _)| *stream == TIDINGS).map(|(_, event)| event)
}

/// The stream and the event of an id.
pub(crate) fn numbers(id: &str) -> Option<(u64, u64)> {
    let (stream, event) = id.split_once('-')?;
    let number = |text: &str| text.parse().ok().filter(|n: &u64| n.to_string() == text);
    Some((number(stream)?, number(event)?))
}

impl Kept {
    /// Lets the oldest go of the streams that have ended, beyond what is kept of them.
    fn forget_some(&mut self) {
        let (mut ended, mut heard, mut bytes) = (0, 0, 0);
        let keep: Vec<bool> = self
            .logs
            .iter()
            .rev()
            .map(|log| {
                if log.is_forgotten() {
                    return false;
                }
                if !log.has_ended() || log.is_read() {
                    return true;
                }
                if log.was_heard() {
                    heard += 1;
                    if heard > HEARD_MAX {
                        return false;
                    }
                }
                ended += 1;
                bytes += log.bytes();
                // The newest, however large its answer is.
                ended == 1 || ended <= ENDED_MAX && bytes <= ENDED_BYTES_MAX
            })
            .collect();
        let mut keep = keep.into_iter().rev();
        self.logs.retain(|_| keep.next().unwrap_or(true));
    }
}

/// One stream: what was said on it, as far as it is kept.
pub(crate) struct Log {
    number: u64,
    said: Mutex<Said>,
    now: watch::Sender<Now>,
    /// Where it is kept once it has ended.
    ended: Arc<Ended>,
}

#[derive(Default)]
struct Said {
    events: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Whether nothing is kept any more.
    forgotten: bool,
}

/// How a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Now {
    /// The number of the newest event.
    last: u64,
    /// Whether nothing more comes.
    ended: bool,
    /// Whether somebody has read it to its end.
    heard: bool,
    /// How often somebody began to read; who came last reads.
    came: u64,
    /// Who was let go: all that had come by then.
    let_go: u64,
    /// How many are connected.
    readers: usize,
}

impl Log {
    /// An empty one, whose events are numbered from after `last` on.
    fn new(number: u64, last: u64, ended: &Arc<Ended>) -> Arc<Self> {
        let now = watch::Sender::new(Now { last, ..Now::default() });
        Arc::new(Self { number, said: Mutex::default(), now, ended: ended.clone() })
    }

    /// The number of the newest event.
    pub(crate) fn last(&self) -> u64 {
        self.now.borrow().last
    }

    /// Adds a message.
    pub(crate) fn push(&self, message: Bytes) {
        let mut said = locked(&self.said);
        let number = self.last() + 1;
        said.bytes += message.len();
        said.events.push_back((number, message));
        while said.events.len() > EVENTS_MAX
            || said.bytes > EVENTS_BYTES_MAX && said.events.len() > 1
        {
            if let Some((_, oldest)) = said.events.pop_front() {
                said.bytes -= oldest.len();
            }
        }
        self.now.send_modify(|now| now.last = number);
    }

    /// Says that nothing more comes.
    pub(crate) fn end(self: &Arc<Self>) {
        self.now.send_modify(|now| now.ended = true);
        self.ended.keep(self);
    }

    /// Ends the connection of whoever reads; they come back.
    pub(crate) fn let_go(&self) {
        self.now.send_modify(|now| now.let_go = now.came);
    }

    /// Lets go what was said, unless somebody is being told it.
    fn forget(&self) {
        if !self.is_read() {
            *locked(&self.said) = Said { forgotten: true, ..Said::default() };
        }
    }

    fn is_forgotten(&self) -> bool {
        locked(&self.said).forgotten
    }

    fn has_ended(&self) -> bool {
        self.now.borrow().ended
    }

    fn was_heard(&self) -> bool {
        self.now.borrow().heard
    }

    fn is_read(&self) -> bool {
        self.now.borrow().readers > 0
    }

    fn bytes(&self) -> usize {
        locked(&self.said).bytes
    }

    /// Waits until nobody has read it for `time`.
    pub(crate) async fn deserted_for(&self, time: Duration) {
        let mut now = self.now.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        loop {
            let _ = now.wait_for(|now| now.readers == 0).await;
            if timeout(time, now.wait_for(|now| now.readers > 0)).await.is_err() {
                return;
            }
        }
    }

    /// What comes after the event numbered `after`, as events with ids; at first one that says
    /// nothing but its id and when to come back.
    pub(crate) fn read(
        self: &Arc<Self>,
        after: u64,
    ) -> Pin<Box<dyn Stream<Item = SentEvent> + Send>> {
        let mut me = 0;
        self.now.send_modify(|now| {
            now.came += 1;
            now.readers += 1;
            me = now.came;
        });
        let now = self.now.subscribe();
        let reader = Reader { log: self.clone(), now, me, after, primed: false };
        Box::pin(unfold(reader, |mut reader| async move {
            let event = reader.next().await?;
            Some((event, reader))
        }))
    }

    fn after(&self, after: u64) -> Option<(u64, Bytes)> {
        let said = locked(&self.said);
        said.events.iter().find(|(number, _)| *number > after).cloned()
    }
}

/// Somebody who reads a stream.
struct Reader {
    log: Arc<Log>,
    now: watch::Receiver<Now>,
    /// For how manieth it came.
    me: u64,
    /// The number of the last event it was told.
    after: u64,
    primed: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<SentEvent> {
        if !std::mem::replace(&mut self.primed, true) {
            let id = Some(self.id());
            return Some(SentEvent { id, retry: Some(RETRY), ..SentEvent::plain(Bytes::new()) });
        }
        loop {
            let now = *self.now.borrow_and_update();
            if now.came != self.me {
                return None;
            }
            if let Some((number, message)) = self.log.after(self.after) {
                self.after = number;
                return Some(SentEvent { id: Some(self.id()), ..SentEvent::message(message) });
            }
            if now.ended {
                self.log.now.send_modify(|now| now.heard = true);
                return None;
            }
            if now.let_go >= self.me || self.now.changed().await.is_err() {
                return None;
            }
        }
    }

    fn id(&self) -> String {
        format!("{}-{}", self.log.number, self.after)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.log.now.send_modify(|now| now.readers -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    fn said(event: &SentEvent) -> (String, String) {
        let text = String::from_utf8(event.data.to_vec()).expect("UTF-8");
        (event.id.clone().expect("an id"), text)
    }

    #[tokio::test]
    async fn who_comes_back_hears_what_was_said_meanwhile_and_nothing_twice() {
        let log = Streams::default().open();
        let mut first = log.read(0);
        assert_eq!(said(&first.next().await.expect("it begins")), ("1-0".into(), String::new()));
        log.push("a".into());
        assert_eq!(said(&first.next().await.expect("a")), ("1-1".into(), "a".into()));
        drop(first);
        log.push("b".into());
        log.push("c".into());
        log.end();
        let told: Vec<_> = log.read(1).skip(1).map(|event| said(&event)).collect().await;
        assert_eq!(told, [("1-2".into(), "b".into()), ("1-3".into(), "c".into())]);
    }

    #[tokio::test]
    async fn who_comes_later_takes_the_place_of_who_reads() {
        let log = Streams::default().open();
        let mut first = log.read(0);
        first.next().await.expect("it begins");
        let mut second = log.read(0);
        assert!(first.next().await.is_none());
        second.next().await.expect("it begins");
        log.push("a".into());
        assert_eq!(said(&second.next().await.expect("a")).1, "a");
    }

    #[tokio::test]
    async fn who_is_let_go_hears_what_was_said_and_can_come_back() {
        let log = Streams::default().open();
        let first = log.read(0);
        log.push("a".into());
        log.let_go();
        assert_eq!(first.skip(1).map(|event| said(&event).1).collect::<Vec<_>>().await, ["a"]);
        let mut second = log.read(1).skip(1);
        log.push("b".into());
        assert_eq!(said(&second.next().await.expect("b")).1, "b");
    }

    #[test]
    fn of_much_that_nobody_reads_the_newest_is_kept() {
        let log = Streams::default().open();
        for number in 0..1000 {
            log.push(format!("{number}").into());
        }
        log.push(Bytes::from(vec![b'x'; 2 * EVENTS_BYTES_MAX]));
        assert_eq!(log.after(0).map(|(number, _)| number), Some(1001));
    }

    #[tokio::test]
    async fn streams_that_have_ended_are_kept_for_a_while_and_others_for_good() {
        let streams = Streams::default();
        let open = streams.open();
        let unheard = streams.open();
        unheard.end();
        for _ in 0..100 {
            let log = streams.open();
            log.end();
            log.read(0).collect::<Vec<_>>().await;
        }
        let kept = |number: u64| streams.of_event(&format!("{number}-0")).map(|(log, _)| log);
        assert!(kept(1).is_some_and(|log| Arc::ptr_eq(&log, &open)));
        assert!(kept(2).is_some_and(|log| Arc::ptr_eq(&log, &unheard)));
        assert!(kept(3).is_none() && kept(102).is_some());
        for _ in 0..ENDED_MAX {
            streams.open().end();
        }
        streams.open();
        assert!(kept(1).is_some() && kept(2).is_none());
    }

    #[test]
    fn the_newest_stream_that_has_ended_is_kept_however_much_was_said_on_it() {
        let streams = Streams::default();
        let log = streams.open();
        log.push(Bytes::from(vec![b'x'; 2 * ENDED_BYTES_MAX]));
        log.end();
        streams.open();
        assert!(streams.of_event("1-0").is_some());
    }

    #[test]
    fn what_is_told_unasked_has_other_ids_after_a_stream_of_it_has_ended() {
        let streams = Streams::default();
        let (first, is_new) = streams.tidings();
        first.push("a".into());
        first.end();
        let (second, is_new_too) = streams.tidings();
        second.push("b".into());
        assert!(is_new && is_new_too);
        assert_eq!((first.last(), second.last()), (1, 2));
    }

    #[test]
    fn what_is_kept_for_all_sessions_together_is_bounded_and_the_oldest_goes() {
        let ended = Arc::new(Ended::default());
        let answer = Bytes::from(vec![b'x'; ALL_BYTES_MAX / 4]);
        let sessions: Vec<_> = (0..8).map(|_| Streams::new(ended.clone())).collect();
        for session in &sessions {
            let log = session.open();
            log.push(answer.clone());
            log.end();
        }
        let kept = sessions.iter().filter(|session| session.of_event("1-0").is_some()).count();
        assert_eq!(kept, 4);
        assert!(sessions[0].of_event("1-0").is_none(), "the oldest is gone");
        assert!(sessions[7].of_event("1-0").is_some(), "the newest is there");
    }

    #[test]
    fn an_id_is_read_only_as_it_is_written() {
        for id in ["", "1", "-", "1-", "-1", "01-2", "1-02", "+1-2", "1-2-3", "a-b"] {
            assert!(numbers(id).is_none(), "{id}");
        }
        assert_eq!(numbers("7-3"), Some((7, 3)));
    }
}
