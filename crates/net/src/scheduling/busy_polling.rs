//! Busy polling: waiting for the next data of a quick peer without putting the thread to sleep.
//!
//! Putting a thread to sleep and waking it can take longer than a quick peer needs to send again. A
//! peer is quick if its last four pauses were shorter than 0.1 ms, or 0.15 ms for answers of an
//! upstream. For a quick peer, the thread polls for at most one more such pause, and then sleeps.
//! A peer that lets one poll end without data is no longer quick. So slow peers cost one read of the
//! clock for each message, and an idle server uses no processor time.
//!
//! Other ready tasks of the thread run before it polls. One permit for clients and one for upstreams
//! bound the polling threads of a process to two. On a machine with one processor, nothing polls,
//! because polling would block the peer.
//!
//! `docs/design/performance.md` shows what polling gains.

#[cfg(test)]
mod tests;

use std::future::{pending, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Longest pause of a quick client, and longest duration of one busy poll for its data.
const CLIENT_PAUSE_MAX: Duration = Duration::from_micros(100);
/// Longest time in which a quick upstream answers, and longest duration of one busy poll for its
/// answer.
const ANSWER_TIME_MAX: Duration = Duration::from_micros(150);
/// Number of short pauses in a row after which busy polling starts.
const SHORT_PAUSES_MIN: u32 = 4;

/// Permit for polling a client, which only one thread has at a time.
static CLIENT_PERMIT: Semaphore = Semaphore::const_new(1);
/// Permit for polling an upstream, which only one thread has at a time.
static ANSWER_PERMIT: Semaphore = Semaphore::const_new(1);
static HAS_SPARE_PROCESSOR: LazyLock<bool> =
    LazyLock::new(|| available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// Record of how quickly the data of a peer arrives.
struct BusyPollHistory {
    /// Longest pause that counts as short. Zero on a machine with one processor.
    pause_max: Duration,
    /// Number of short pauses in a row, counted up to the number after which busy polling starts.
    short_pauses: AtomicU32,
}

impl BusyPollHistory {
    fn new(pause_max: Duration) -> Self {
        let pause_max = if *HAS_SPARE_PROCESSOR { pause_max } else { Duration::ZERO };
        Self { pause_max, short_pauses: AtomicU32::new(0) }
    }

    /// Records a pause that ended after the time `waited`, or is longer than that.
    fn record_pause(&self, waited: Duration) {
        let before = self.short_pauses.load(Ordering::Relaxed);
        let now = if waited < self.pause_max { SHORT_PAUSES_MIN.min(before + 1) } else { 0 };
        self.short_pauses.store(now, Ordering::Relaxed);
    }

    fn is_quick(&self) -> bool {
        self.short_pauses.load(Ordering::Relaxed) == SHORT_PAUSES_MIN
    }
}

/// State of busy polling for the next data on one connection of a client.
pub struct InputBusyPollState {
    history: BusyPollHistory,
    /// Time at which the wait for data began, if no data has arrived since.
    waiting_since: Option<Instant>,
    permits: &'static Semaphore,
    permit: Option<SemaphorePermit<'static>>,
}

impl InputBusyPollState {
    /// Creates the state of a connection on which nothing has arrived yet.
    pub fn for_client() -> Self {
        let history = BusyPollHistory::new(CLIENT_PAUSE_MAX);
        Self { history, waiting_since: None, permits: &CLIENT_PERMIT, permit: None }
    }

    /// Records that the server waits for data from now on, for example because it has answered.
    pub fn note_wait(&mut self) {
        self.waiting_since = Some(Instant::now());
    }

    /// Records that data has arrived.
    pub fn note_arrival(&mut self) {
        self.permit = None;
        if let Some(since) = self.waiting_since.take() {
            self.history.record_pause(since.elapsed());
        }
    }

    /// Polls `fd` without sleeping if the client is quick. Returns true if data was read into `buf`.
    /// The first call only wakes the task of `cx` again, so that other tasks run first.
    pub fn try_read(&mut self, fd: &impl AsFd, cx: &Context<'_>, buf: &mut ReadBuf<'_>) -> bool {
        let since = self.waiting_since.filter(|_| self.history.is_quick());
        let Some(since) = since else { return false };
        let Some(_permit) = self.permit.take() else {
            self.permit = self.permits.try_acquire().ok();
            if self.permit.is_some() {
                cx.waker().wake_by_ref();
            }
            return false;
        };
        // An error here occurs again at the next read, which reports it.
        let read = poll_and_read(fd, since + self.history.pause_max, buf);
        if !matches!(read, Ok(true)) {
            self.history.record_pause(self.history.pause_max);
            return false;
        }
        self.waiting_since = None;
        true
    }
}

/// Polls `fd` without sleeping until the time `end`, and reads the data that arrives. Returns false if
/// no data arrived.
///
/// # Errors
/// Fails if polling or reading fails.
pub fn poll_and_read(fd: &impl AsFd, end: Instant, buf: &mut ReadBuf<'_>) -> io::Result<bool> {
    // `poll` needs no lock, whereas asking for the number of bytes needs one that the writer also
    // takes.
    while poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec::default()))? == 0 {
        if Instant::now() >= end {
            return Ok(false);
        }
    }
    let available = usize::try_from(ioctl_fionread(fd)?).unwrap_or(usize::MAX);
    let read = rustix::io::read(fd, buf.initialize_unfilled_to(available.min(buf.remaining())))?;
    buf.advance(read);
    Ok(read > 0)
}

/// Reader of input that polls without sleeping while the peer is quick.
pub struct BusyPollingReader<R> {
    input: R,
    state: InputBusyPollState,
}

impl<R: AsyncRead + AsFd + Unpin> BusyPollingReader<R> {
    /// Creates a reader of `input`.
    pub fn new(input: R) -> Self {
        Self { input, state: InputBusyPollState::for_client() }
    }
}

impl<R: AsyncRead + AsFd + Unpin> AsyncRead for BusyPollingReader<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { input, state } = self.get_mut();
        // This call also registers the waker.
        let read = Pin::new(&mut *input).poll_read(cx, buf);
        if read.is_ready() {
            state.note_arrival();
            return read;
        }
        state.waiting_since.get_or_insert_with(Instant::now);
        if state.try_read(input, cx, buf) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

/// State of busy polling for the answers of an upstream.
pub struct AnswerBusyPollState {
    history: BusyPollHistory,
    /// Has a permit for each request to the reader of the connection to poll that the reader has not
    /// taken yet. Data that arrives removes them. `None` if the task that waits for an answer polls
    /// itself.
    reader_requests: Option<Semaphore>,
}

impl AnswerBusyPollState {
    /// Creates the state for transports on which the task that waits for an answer polls, with
    /// pauses for other tasks. It polls only on a runtime with one thread, because each poll would
    /// wake a further thread of other runtimes.
    pub fn for_waiter() -> Self {
        Self { history: BusyPollHistory::new(ANSWER_TIME_MAX), reader_requests: None }
    }

    /// Creates the state for transports on which the reader of the connection polls when a waiting
    /// task asks for it.
    pub fn for_reader() -> Self {
        Self { reader_requests: Some(Semaphore::new(0)), ..Self::for_waiter() }
    }

    /// Waits for `answer`. Polls without sleeping if no other request is in flight (`is_alone`) and
    /// the upstream is quick.
    pub async fn wait<F: Future>(&self, is_alone: bool, answer: F) -> F::Output {
        let is_single = || Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        if !is_alone || self.reader_requests.is_none() && !is_single() {
            return answer.await;
        }
        let begun = Instant::now();
        let mut answer = pin!(answer);
        if self.history.is_quick() {
            if let Some(requests) = &self.reader_requests {
                requests.add_permits(1);
            } else {
                while begun.elapsed() < self.history.pause_max {
                    match poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await {
                        Poll::Ready(answer) => return answer,
                        Poll::Pending => tokio::task::yield_now().await,
                    }
                }
            }
        }
        let answer = answer.await;
        self.history.record_pause(begun.elapsed());
        answer
    }

    /// Waits until a task asks the reader of the connection to poll.
    pub async fn wait_wanted(&self) {
        let Some(requests) = &self.reader_requests else { return pending().await };
        requests.acquire().await.expect("it stays open").forget();
    }

    /// Records that data arrived, so that the reader need not poll.
    pub fn note_arrival(&self) {
        if let Some(requests) = &self.reader_requests {
            requests.forget_permits(usize::MAX);
        }
    }

    /// Calls `read` with a time, until which `read` may poll without sleeping. Returns the result,
    /// or false without a call if another reader polls already.
    pub fn try_read(&self, read: impl FnOnce(Instant) -> bool) -> bool {
        ANSWER_PERMIT.try_acquire().is_ok_and(|_held| read(Instant::now() + self.history.pause_max))
    }
}
