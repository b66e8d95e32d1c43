//! Resumable event streams of HTTP sessions. The server stores the events, so that a client can
//! reconnect and read the rest.
//!
//! Streams and their events are numbered. An event id consists of both numbers: `7-3` is event 3 of
//! stream 7. Stream 0 contains the notifications. A new reader of a stream replaces the previous
//! reader.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::timeout;
use toolgate_contract::lock_mutex;
use toolgate_transports::http::ServerSentEvent;

/// Maximum number of events that a resumable stream keeps. At this number, a new event replaces the
/// oldest event.
const EVENTS_MAX: usize = 256;
/// Maximum size of the events that a resumable stream keeps, in bytes. The newest event is always
/// kept.
const EVENTS_BYTES_MAX: usize = 1 << 20;
/// Maximum number of ended event streams that a session keeps.
const ENDED_STREAMS_MAX: usize = 256;
/// Maximum number of event streams that a session keeps after a client has read them to the end,
/// because the client may not have received the last events.
const READ_STREAMS_MAX: usize = 16;
/// Maximum size of the ended event streams that a session keeps, in bytes. The newest stream is
/// always kept.
const ENDED_BYTES_MAX: usize = 1 << 20;
/// Maximum size of the ended event streams that all sessions keep together, in bytes.
const ALL_ENDED_BYTES_MAX: usize = 64 << 20;
/// Time after which a client should reconnect to an interrupted event stream.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);
/// Number of a session's stream of notifications, which belongs to no call.
const NOTIFICATION_STREAM: u64 = 0;

/// Event streams of a session, which its client can resume.
#[derive(Default)]
pub(crate) struct SessionEventStreams {
    list: Mutex<SessionEventStreamList>,
    ended_streams: Arc<EndedEventStreams>,
}

/// List of the ended event streams of all sessions, oldest first, which have a common size limit.
#[derive(Default)]
pub(crate) struct EndedEventStreams(Mutex<EndedEventStreamList>);

/// List of ended event streams, with the total size of their events in bytes.
#[derive(Default)]
struct EndedEventStreamList {
    /// Ended event streams, each with its size in bytes when it ended.
    logs: VecDeque<(Weak<EventStreamLog>, usize)>,
    bytes: usize,
}

impl EndedEventStreams {
    /// Adds `log`, a stream that has ended. If the ended streams of all sessions exceed their size
    /// limit, drops the events of the oldest streams.
    fn add(&self, log: &Arc<EventStreamLog>) {
        let mut list = lock_mutex(&self.0);
        let EndedEventStreamList { logs, bytes } = &mut *list;
        let log_bytes = log.bytes();
        logs.push_back((Arc::downgrade(log), log_bytes));
        *bytes += log_bytes;
        while *bytes > ALL_ENDED_BYTES_MAX
            && let Some((oldest, oldest_bytes)) = logs.pop_front()
        {
            *bytes -= oldest_bytes;
            if let Some(oldest) = oldest.upgrade() {
                oldest.clear();
            }
        }
        // Streams that their session has dropped no longer count.
        while logs.front().is_some_and(|(log, _)| log.strong_count() == 0) {
            *bytes -= logs.pop_front().map_or(0, |(_, log_bytes)| log_bytes);
        }
    }
}

/// Event streams of one session, with the number of the newest stream.
#[derive(Default)]
struct SessionEventStreamList {
    /// Number of the session's newest event stream.
    last_number: u64,
    /// Event streams of the session, the oldest first.
    logs: VecDeque<Arc<EventStreamLog>>,
    notifications: Option<Arc<EventStreamLog>>,
}

impl SessionEventStreams {
    /// Creates an empty list of event streams for a new session. Streams that end are also added to
    /// `ended_streams`.
    pub(crate) fn new(ended_streams: Arc<EndedEventStreams>) -> Self {
        Self { list: Mutex::default(), ended_streams }
    }

    /// Opens a new event stream of the session.
    pub(crate) fn open(&self) -> Arc<EventStreamLog> {
        let mut list = lock_mutex(&self.list);
        list.last_number += 1;
        let log = EventStreamLog::new(list.last_number, 0, &self.ended_streams);
        list.drop_excess();
        list.logs.push_back(log.clone());
        log
    }

    /// Returns the session's notification stream. If no notification stream is open, opens a stream
    /// and returns true as the second value.
    pub(crate) fn notifications(&self) -> (Arc<EventStreamLog>, bool) {
        let mut list = lock_mutex(&self.list);
        if let Some(log) = list.notifications.as_ref().filter(|log| !log.has_ended()) {
            return (log.clone(), false);
        }
        // Numbering continues, so that event ids stay unique.
        let last = list.notifications.as_ref().map_or(0, |log| log.last());
        let log = EventStreamLog::new(NOTIFICATION_STREAM, last, &self.ended_streams);
        list.notifications = Some(log.clone());
        (log, true)
    }

    /// Returns the stream that contains the event with the id `id`, and the event's number in the
    /// stream. Returns `None` for an unknown stream and for the notification stream.
    pub(crate) fn find_event(&self, id: &str) -> Option<(Arc<EventStreamLog>, u64)> {
        let (stream, event) = parse_event_id(id)?;
        let list = lock_mutex(&self.list);
        let mut logs = list.logs.iter().filter(|log| !log.is_cleared());
        let log = logs.find(|log| log.number == stream)?;
        Some((log.clone(), event))
    }

    /// Returns true if a reader is connected to any event stream of the session.
    pub(crate) fn has_readers(&self) -> bool {
        let list = lock_mutex(&self.list);
        list.logs.iter().chain(&list.notifications).any(|log| log.has_reader())
    }
}

/// Returns the number of the event with the id `id` in the notification stream. Returns `None` if
/// the id belongs to another stream or is invalid.
pub(crate) fn notification_event(id: &str) -> Option<u64> {
    parse_event_id(id).filter(|(stream, _)| *stream == NOTIFICATION_STREAM).map(|(_, event)| event)
}

/// Parses an event id such as `7-3` into the number of the stream and the number of the event.
/// Returns `None` if `id` is not such an id.
pub(crate) fn parse_event_id(id: &str) -> Option<(u64, u64)> {
    let (stream, event) = id.split_once('-')?;
    let number = |text: &str| text.parse().ok().filter(|n: &u64| n.to_string() == text);
    Some((number(stream)?, number(event)?))
}

impl SessionEventStreamList {
    /// Drops the session's oldest ended event streams that exceed the limits.
    fn drop_excess(&mut self) {
        let mut ended = 0;
        let mut read_fully = 0;
        let mut bytes = 0;
        let keep: Vec<bool> = self
            .logs
            .iter()
            .rev()
            .map(|log| {
                if log.is_cleared() {
                    return false;
                }
                if !log.has_ended() || log.has_reader() {
                    return true;
                }
                if log.was_read_fully() {
                    read_fully += 1;
                    if read_fully > READ_STREAMS_MAX {
                        return false;
                    }
                }
                ended += 1;
                bytes += log.bytes();
                // The newest stream is kept whatever its size.
                ended == 1 || ended <= ENDED_STREAMS_MAX && bytes <= ENDED_BYTES_MAX
            })
            .collect();
        let mut keep = keep.into_iter().rev();
        self.logs.retain(|_| keep.next().unwrap_or(true));
    }
}

/// Log of one event stream: its stored events and its state.
pub(crate) struct EventStreamLog {
    number: u64,
    events: Mutex<LoggedStreamEvents>,
    state: watch::Sender<EventStreamState>,
    /// List of ended event streams of all sessions. This stream is added to the list when it ends.
    ended_streams: Arc<EndedEventStreams>,
}

/// Stored events of an event stream, each with its number, and their total size in bytes.
#[derive(Default)]
struct LoggedStreamEvents {
    events: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// True once the stream's events were dropped to free memory.
    is_cleared: bool,
}

/// State of an event stream. Readers wait for changes of this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct EventStreamState {
    /// Number of the newest event in the stream.
    last: u64,
    /// True if no more events follow in the stream.
    has_ended: bool,
    /// True once a reader has read the stream to its end.
    was_read_fully: bool,
    /// Number of readers that the stream has had so far. Only the newest reader gets events.
    readers_total: u64,
    /// Number of the reader whose connection must close, together with all earlier readers. The
    /// client may reconnect.
    disconnected_reader: u64,
    /// Number of readers that are connected to the stream.
    readers: usize,
}

impl EventStreamLog {
    /// Creates an empty event log whose events are numbered from `last` + 1.
    fn new(number: u64, last: u64, ended_streams: &Arc<EndedEventStreams>) -> Arc<Self> {
        let state = watch::Sender::new(EventStreamState { last, ..EventStreamState::default() });
        let ended_streams = ended_streams.clone();
        Arc::new(Self { number, events: Mutex::default(), state, ended_streams })
    }

    /// Returns the number of the newest event in the stream.
    pub(crate) fn last(&self) -> u64 {
        self.state.borrow().last
    }

    /// Appends a message to the event stream.
    pub(crate) fn push(&self, message: Bytes) {
        let mut logged = lock_mutex(&self.events);
        let number = self.last() + 1;
        logged.bytes += message.len();
        logged.events.push_back((number, message));
        while logged.events.len() > EVENTS_MAX
            || logged.bytes > EVENTS_BYTES_MAX && logged.events.len() > 1
        {
            if let Some((_, oldest)) = logged.events.pop_front() {
                logged.bytes -= oldest.len();
            }
        }
        self.state.send_modify(|state| state.last = number);
    }

    /// Marks the event stream as ended: no more events follow. Adds the stream to the list of ended
    /// streams.
    pub(crate) fn end(self: &Arc<Self>) {
        self.state.send_modify(|state| state.has_ended = true);
        self.ended_streams.add(self);
    }

    /// Closes the connection of the stream's current reader. The client may reconnect.
    pub(crate) fn disconnect_reader(&self) {
        self.state.send_modify(|state| state.disconnected_reader = state.readers_total);
    }

    /// Drops all events of the stream, unless a reader is connected.
    fn clear(&self) {
        if !self.has_reader() {
            *lock_mutex(&self.events) =
                LoggedStreamEvents { is_cleared: true, ..LoggedStreamEvents::default() };
        }
    }

    fn is_cleared(&self) -> bool {
        lock_mutex(&self.events).is_cleared
    }

    fn has_ended(&self) -> bool {
        self.state.borrow().has_ended
    }

    fn was_read_fully(&self) -> bool {
        self.state.borrow().was_read_fully
    }

    fn has_reader(&self) -> bool {
        self.state.borrow().readers > 0
    }

    fn bytes(&self) -> usize {
        lock_mutex(&self.events).bytes
    }

    /// Waits until the event stream has had no reader for the time `time` without interruption.
    pub(crate) async fn wait_unread_for(&self, time: Duration) {
        let mut state = self.state.subscribe();
        // `self` owns the sender, so waiting cannot fail.
        loop {
            let _ = state.wait_for(|state| state.readers == 0).await;
            if timeout(time, state.wait_for(|state| state.readers > 0)).await.is_err() {
                return;
            }
        }
    }

    /// Returns a reader of the stream's events after the event number `after`. The first event has
    /// no message, but an id and the time after which the client should reconnect.
    pub(crate) fn read_after(
        self: &Arc<Self>,
        after: u64,
    ) -> Pin<Box<dyn Stream<Item = ServerSentEvent> + Send>> {
        let mut reader_number = 0;
        self.state.send_modify(|state| {
            state.readers_total += 1;
            state.readers += 1;
            reader_number = state.readers_total;
        });
        let state = self.state.subscribe();
        let log = self.clone();
        let reader = EventStreamReader { log, state, reader_number, after, has_started: false };
        Box::pin(unfold(reader, |mut reader| async move {
            let event = reader.next().await?;
            Some((event, reader))
        }))
    }

    fn next_event(&self, after: u64) -> Option<(u64, Bytes)> {
        let logged = lock_mutex(&self.events);
        logged.events.iter().find(|(number, _)| *number > after).cloned()
    }
}

/// Reader of an event stream, for one connection.
struct EventStreamReader {
    log: Arc<EventStreamLog>,
    state: watch::Receiver<EventStreamState>,
    /// Number of this reader, counted from 1 in the order in which readers of the stream connected.
    reader_number: u64,
    /// Number of the last event that this reader received.
    after: u64,
    has_started: bool,
}

impl EventStreamReader {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        if !std::mem::replace(&mut self.has_started, true) {
            let id = Some(self.id());
            return Some(ServerSentEvent {
                id,
                retry: Some(RECONNECT_DELAY),
                ..ServerSentEvent::plain(Bytes::new())
            });
        }
        loop {
            let state = *self.state.borrow_and_update();
            if state.readers_total != self.reader_number {
                return None;
            }
            if let Some((number, message)) = self.log.next_event(self.after) {
                self.after = number;
                return Some(ServerSentEvent {
                    id: Some(self.id()),
                    ..ServerSentEvent::message(message)
                });
            }
            if state.has_ended {
                self.log.state.send_modify(|state| state.was_read_fully = true);
                return None;
            }
            if state.disconnected_reader >= self.reader_number
                || self.state.changed().await.is_err()
            {
                return None;
            }
        }
    }

    fn id(&self) -> String {
        format!("{}-{}", self.log.number, self.after)
    }
}

impl Drop for EventStreamReader {
    fn drop(&mut self) {
        self.log.state.send_modify(|state| state.readers -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    fn id_and_text(event: &ServerSentEvent) -> (String, String) {
        let text = String::from_utf8(event.data.to_vec()).expect("UTF-8");
        (event.id.clone().expect("an id"), text)
    }

    #[tokio::test]
    async fn a_reader_that_reconnects_gets_each_missed_event_once() {
        let log = SessionEventStreams::default().open();
        let mut first = log.read_after(0);
        assert_eq!(
            id_and_text(&first.next().await.expect("it begins")),
            ("1-0".into(), String::new())
        );
        log.push("a".into());
        assert_eq!(id_and_text(&first.next().await.expect("a")), ("1-1".into(), "a".into()));
        drop(first);
        log.push("b".into());
        log.push("c".into());
        log.end();
        let rest: Vec<_> =
            log.read_after(1).skip(1).map(|event| id_and_text(&event)).collect().await;
        assert_eq!(rest, [("1-2".into(), "b".into()), ("1-3".into(), "c".into())]);
    }

    #[tokio::test]
    async fn a_new_reader_replaces_the_previous_one() {
        let log = SessionEventStreams::default().open();
        let mut first = log.read_after(0);
        first.next().await.expect("it begins");
        let mut second = log.read_after(0);
        assert!(first.next().await.is_none());
        second.next().await.expect("it begins");
        log.push("a".into());
        assert_eq!(id_and_text(&second.next().await.expect("a")).1, "a");
    }

    #[tokio::test]
    async fn a_disconnected_reader_gets_earlier_events_and_can_reconnect() {
        let log = SessionEventStreams::default().open();
        let first = log.read_after(0);
        log.push("a".into());
        log.disconnect_reader();
        assert_eq!(
            first.skip(1).map(|event| id_and_text(&event).1).collect::<Vec<_>>().await,
            ["a"]
        );
        let mut second = log.read_after(1).skip(1);
        log.push("b".into());
        assert_eq!(id_and_text(&second.next().await.expect("b")).1, "b");
    }

    #[test]
    fn the_newest_event_is_kept_when_a_log_is_full() {
        let log = SessionEventStreams::default().open();
        for number in 0..1000 {
            log.push(format!("{number}").into());
        }
        log.push(Bytes::from(vec![b'x'; 2 * EVENTS_BYTES_MAX]));
        assert_eq!(log.next_event(0).map(|(number, _)| number), Some(1001));
    }

    #[tokio::test]
    async fn open_streams_are_kept_and_old_ended_ones_dropped() {
        let streams = SessionEventStreams::default();
        let open = streams.open();
        let unread = streams.open();
        unread.end();
        for _ in 0..100 {
            let log = streams.open();
            log.end();
            log.read_after(0).collect::<Vec<_>>().await;
        }
        let kept = |number: u64| streams.find_event(&format!("{number}-0")).map(|(log, _)| log);
        assert!(kept(1).is_some_and(|log| Arc::ptr_eq(&log, &open)));
        assert!(kept(2).is_some_and(|log| Arc::ptr_eq(&log, &unread)));
        assert!(kept(3).is_none() && kept(102).is_some());
        for _ in 0..ENDED_STREAMS_MAX {
            streams.open().end();
        }
        streams.open();
        assert!(kept(1).is_some() && kept(2).is_none());
    }

    #[test]
    fn the_newest_ended_stream_is_kept_whatever_its_size() {
        let streams = SessionEventStreams::default();
        let log = streams.open();
        log.push(Bytes::from(vec![b'x'; 2 * ENDED_BYTES_MAX]));
        log.end();
        streams.open();
        assert!(streams.find_event("1-0").is_some());
    }

    #[test]
    fn a_new_notification_stream_continues_the_event_numbers() {
        let streams = SessionEventStreams::default();
        let (first, is_new) = streams.notifications();
        first.push("a".into());
        first.end();
        let (second, is_new_too) = streams.notifications();
        second.push("b".into());
        assert!(is_new && is_new_too);
        assert_eq!((first.last(), second.last()), (1, 2));
    }

    #[test]
    fn the_oldest_ended_stream_is_emptied_beyond_the_common_limit() {
        let ended = Arc::new(EndedEventStreams::default());
        let answer = Bytes::from(vec![b'x'; ALL_ENDED_BYTES_MAX / 4]);
        let sessions: Vec<_> = (0..8).map(|_| SessionEventStreams::new(ended.clone())).collect();
        for session in &sessions {
            let log = session.open();
            log.push(answer.clone());
            log.end();
        }
        let kept = sessions.iter().filter(|session| session.find_event("1-0").is_some()).count();
        assert_eq!(kept, 4);
        assert!(sessions[0].find_event("1-0").is_none(), "the oldest is gone");
        assert!(sessions[7].find_event("1-0").is_some(), "the newest is there");
    }

    #[test]
    fn an_event_id_is_parsed_only_in_its_canonical_form() {
        for id in ["", "1", "-", "1-", "-1", "01-2", "1-02", "+1-2", "1-2-3", "a-b"] {
            assert!(parse_event_id(id).is_none(), "{id}");
        }
        assert_eq!(parse_event_id("7-3"), Some((7, 3)));
    }
}
