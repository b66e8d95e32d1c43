//! Tests of busy polling, with pipes and sockets.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Wake, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::yield_now;

use super::*;

const AGAIN: (Option<Vec<u8>>, bool) = (None, true);
const WAITS: (Option<Vec<u8>>, bool) = (None, false);

/// Waker for tests that counts how often it is woken.
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the history of a peer that is quick if its pauses are shorter than `pause_max`, even on a
/// machine with one processor.
fn quick_history(pause_max: Duration) -> BusyPollHistory {
    BusyPollHistory { pause_max, short_pauses: AtomicU32::new(SHORT_PAUSES_MIN) }
}

/// Returns the state of a connection to a quick client, which polls with a permit of `permits`.
fn quick_client(permits: &'static Semaphore) -> InputBusyPollState {
    let history = quick_history(Duration::from_secs(20));
    InputBusyPollState { history, permits, ..InputBusyPollState::for_client() }
}

fn quick_reader<R: AsyncRead + AsFd + Unpin>(input: R) -> BusyPollingReader<R> {
    static PERMITS: [Semaphore; 3] = [const { Semaphore::const_new(1) }; 3];
    static USED: AtomicUsize = AtomicUsize::new(0);
    let permits = &PERMITS[USED.fetch_add(1, Ordering::SeqCst) % PERMITS.len()];
    BusyPollingReader { input, state: quick_client(permits) }
}

/// Polls `input` once with the state `state`. Returns the data that was read, if any. Also returns
/// true if the task was woken at once.
fn found(state: &mut InputBusyPollState, input: &impl AsFd) -> (Option<Vec<u8>>, bool) {
    let woken = Arc::new(WakeCounter(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    let mut bytes = [0; 64];
    let mut buffer = ReadBuf::new(&mut bytes);
    let found = state.try_read(input, &Context::from_waker(&waker), &mut buffer);
    let read = found.then(|| buffer.filled().to_vec());
    (read, woken.0.load(Ordering::SeqCst) > 0)
}

#[test]
fn a_late_arrival_stops_polling_until_enough_short_pauses() {
    let history = quick_history(CLIENT_PAUSE_MAX);
    history.record_pause(CLIENT_PAUSE_MAX);
    for _ in 0..SHORT_PAUSES_MIN {
        assert!(!history.is_quick());
        history.record_pause(CLIENT_PAUSE_MAX / 2);
    }
    assert!(history.is_quick());
    history.record_pause(CLIENT_PAUSE_MAX);
    assert!(!history.is_quick());
}

#[test]
fn a_quick_client_is_polled_after_its_answer_once_other_tasks_have_run() {
    static PERMIT: Semaphore = Semaphore::const_new(1);
    let (mut client, server) = UnixStream::pair().expect("a pair");
    let mut state = quick_client(&PERMIT);
    assert_eq!(found(&mut state, &server), WAITS, "it has no answer yet");
    state.note_wait();
    assert_eq!(found(&mut state, &server), AGAIN);
    client.write_all(b"next").expect("the write succeeds");
    assert_eq!(found(&mut state, &server), (Some(b"next".to_vec()), false));
    state.note_arrival();
    assert_eq!(found(&mut state, &server), WAITS, "its request is in progress");
    let mut slow = InputBusyPollState::for_client();
    slow.note_wait();
    assert_eq!(found(&mut slow, &server), WAITS);
}

#[test]
fn only_one_client_is_polled_at_a_time() {
    static PERMIT: Semaphore = Semaphore::const_new(1);
    let (_client, server) = UnixStream::pair().expect("a pair");
    let mut one = quick_client(&PERMIT);
    let mut other = quick_client(&PERMIT);
    one.note_wait();
    other.note_wait();
    assert_eq!([found(&mut one, &server), found(&mut other, &server)], [AGAIN, WAITS]);
    one.note_arrival();
    assert_eq!(found(&mut other, &server), AGAIN);
    one.note_wait();
    assert_eq!(found(&mut one, &server), WAITS);
    drop(other);
    assert_eq!(found(&mut one, &server), AGAIN);
}

#[test]
fn a_slow_client_is_not_polled_until_it_is_quick_again() {
    static PERMIT: Semaphore = Semaphore::const_new(1);
    let (_client, server) = UnixStream::pair().expect("a pair");
    let mut state = quick_client(&PERMIT);
    state.history.pause_max = Duration::ZERO;
    state.note_wait();
    assert_eq!(found(&mut state, &server), AGAIN);
    assert_eq!(found(&mut state, &server), WAITS);
    state.history.pause_max = Duration::from_secs(20);
    assert_eq!(found(&mut state, &server), WAITS);
    for _ in 0..SHORT_PAUSES_MIN {
        state.note_arrival();
        state.note_wait();
    }
    assert_eq!(found(&mut state, &server), AGAIN);
}

#[tokio::test]
async fn ready_tasks_run_before_the_reader_polls() {
    let (mut sender, receiver) = pipe::pipe().expect("a pipe");
    let mut input = quick_reader(receiver);
    sender.writable().await.expect("it is open");
    // On a single thread, the input can only arrive in time if the write runs before the poll.
    let writing = tokio::spawn(async move { sender.write_all(b"hello").await });
    let mut text = [0; 5];
    input.read_exact(&mut text).await.expect("it is sent");
    assert_eq!(&text, b"hello");
    assert!(input.state.history.is_quick(), "polling found it");
    writing.await.expect("it does not panic").expect("it is taken");
}

#[tokio::test]
async fn input_after_an_unsuccessful_poll_is_still_read() {
    let (mut sender, receiver) = pipe::pipe().expect("a pipe");
    let mut input = quick_reader(receiver);
    input.state.history.pause_max = CLIENT_PAUSE_MAX;
    let mut text = [0; 4];
    let nothing = tokio::time::timeout(20 * CLIENT_PAUSE_MAX, input.read(&mut text)).await;
    assert!(nothing.is_err() && !input.state.history.is_quick());
    sender.write_all(b"late").await.expect("it is taken");
    input.read_exact(&mut text).await.expect("it is sent");
    assert_eq!(&text, b"late");
    drop(sender);
    assert_eq!(input.read(&mut text).await.expect("it ends"), 0);
}

#[tokio::test]
async fn input_that_does_not_fit_is_read_next() {
    let (mut sender, receiver) = pipe::pipe().expect("a pipe");
    let mut input = quick_reader(receiver);
    let sent: Vec<u8> = (0..=255).cycle().take(60_000).collect();
    let all = sent.clone();
    let writing = tokio::spawn(async move { sender.write_all(&all).await });
    let mut got = Vec::new();
    let mut part = [0; 1000];
    loop {
        input.state.history = quick_history(20 * CLIENT_PAUSE_MAX);
        match input.read(&mut part).await.expect("it is sent") {
            0 => break,
            read => got.extend_from_slice(&part[..read]),
        }
    }
    assert_eq!(got, sent);
    writing.await.expect("it does not panic").expect("it is taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_does_not_poll_on_a_multi_threaded_runtime() {
    let state = AnswerBusyPollState {
        history: quick_history(ANSWER_TIME_MAX),
        ..AnswerBusyPollState::for_waiter()
    };
    state.wait(true, tokio::time::sleep(ANSWER_TIME_MAX * 2)).await;
    assert!(state.history.is_quick(), "the wait was not counted");
}

#[tokio::test]
async fn polling_starts_after_several_quick_answers_and_ends_after_a_slow_one() {
    let history = quick_history(ANSWER_TIME_MAX);
    history.record_pause(ANSWER_TIME_MAX);
    let state = AnswerBusyPollState { history, ..AnswerBusyPollState::for_waiter() };
    for _ in 0..SHORT_PAUSES_MIN {
        assert!(!state.history.is_quick());
        state.wait(true, async {}).await;
    }
    state.wait(false, tokio::time::sleep(ANSWER_TIME_MAX * 2)).await;
    assert!(state.history.is_quick(), "a request that is not alone is not counted");
    state.wait(true, tokio::time::sleep(ANSWER_TIME_MAX * 2)).await;
    assert!(!state.history.is_quick());
}

#[tokio::test]
async fn the_reader_is_asked_to_poll_until_it_has_read() {
    let history = quick_history(ANSWER_TIME_MAX);
    let state = AnswerBusyPollState { history, ..AnswerBusyPollState::for_reader() };
    let is_wanted = async || {
        let now = tokio::time::timeout(Duration::ZERO, state.wait_wanted());
        now.await.is_ok()
    };
    assert!(!is_wanted().await, "no request waits");
    state.wait(true, yield_now()).await;
    assert!(is_wanted().await);
    assert!(!is_wanted().await, "the request is consumed");
    state.wait(true, yield_now()).await;
    state.note_arrival();
    assert!(!is_wanted().await);
    state.wait(false, yield_now()).await;
    assert!(!is_wanted().await, "other requests are in flight");
}
