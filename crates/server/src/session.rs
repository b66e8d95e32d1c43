//! One conversation with one client: its frames in, its calls in flight, its answers out.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::{Answer, BoxFuture, CallError, Caller, Event, EventSink, Frame, Reply};
use toolgate_dialects::{
    Ask, Conversation, Dialect, Key, Pace, Reading, Refused, Ticket, Watching,
};
use toolgate_host::{Asked, Host};

use crate::watching;

/// What every session of a server shares.
pub struct Desk {
    /// Answers requests.
    pub host: Arc<Host>,
    /// Cancelled when calls in flight must end.
    stop: CancellationToken,
    /// All that goes on, whether its client is still there or not.
    running: TaskTracker,
}

impl Desk {
    /// A desk before `host`.
    pub fn new(host: Arc<Host>) -> Arc<Self> {
        let (stop, running) = (CancellationToken::new(), TaskTracker::new());
        Arc::new(Self { host, stop, running })
    }

    /// Once `shutdown` is cancelled, lets calls in flight go on for `drain`, then cancels them.
    pub(crate) async fn stop_after(self: Arc<Self>, shutdown: CancellationToken, drain: Duration) {
        shutdown.cancelled().await;
        tokio::time::sleep(drain).await;
        self.stop.cancel();
    }

    /// Waits until nothing goes on.
    pub(crate) async fn idle(&self) {
        self.running.close();
        self.running.wait().await;
    }
}

/// One conversation with one client.
pub(crate) struct Session {
    desk: Arc<Desk>,
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) caller: Caller,
    conversation: Mutex<Box<dyn Conversation>>,
    in_flight: Mutex<InFlight>,
    serial: AtomicU64,
    /// Cancelled when nothing more is to be told.
    over: CancellationToken,
}

/// What was begun and not answered.
#[derive(Default)]
struct InFlight {
    asks: HashMap<Key, Begin>,
    /// Why nothing more is begun, once that is so.
    ended: Option<&'static str>,
}

struct Begin {
    serial: u64,
    cancel: CancellationToken,
}

/// An ask that was taken: its work, and the way to end it.
pub(crate) struct Begun {
    /// To be run by [`now_or_spawned`].
    pub(crate) work: BoxFuture<'static, Answered>,
    /// Ends the work.
    pub(crate) cancel: CancellationToken,
}

/// What an ask came to.
pub(crate) struct Answered {
    /// The answer; `None` if none is owed any more.
    pub(crate) reply: Option<Reply>,
    /// The job that is the answer, where the client wants to hear of it.
    pub(crate) follow: Option<Watching>,
}

/// Nothing is told of a followed job but what happens.
const FOLLOW: Pace = Pace::Events { quiet: Duration::MAX };

impl Session {
    pub(crate) fn new(desk: Arc<Desk>, dialect: Arc<dyn Dialect>, caller: Caller) -> Arc<Self> {
        let conversation = Mutex::new(dialect.converse());
        Arc::new(Self {
            desk,
            dialect,
            caller,
            conversation,
            in_flight: Mutex::default(),
            serial: AtomicU64::new(0),
            over: CancellationToken::new(),
        })
    }

    /// Reads one frame.
    pub(crate) fn read(&self, frame: &Frame) -> Reading {
        locked(&self.conversation).read(frame)
    }

    /// One reply out of the replies to a batch.
    pub(crate) fn join(&self, replies: Vec<Reply>) -> Reply {
        locked(&self.conversation).join(replies)
    }

    /// Takes `ask` and gives the work it makes; what is said meanwhile goes to `say`.
    ///
    /// Refused if its key is in flight already.
    pub(crate) fn begin(
        self: &Arc<Self>,
        ask: Ask,
        say: impl Fn(Bytes) + Send + Sync + 'static,
    ) -> Result<Begun, Reply> {
        let cancel = self.desk.stop.child_token();
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        self.enter(&ask.key, Begin { serial, cancel: cancel.clone() })?;
        let listed = Listed { session: self.clone(), key: ask.key, serial };

        let (events, mouth) = mouth(&ask.ticket, say);
        let asked = Asked {
            request: ask.request,
            caller: self.caller.clone(),
            dialect: self.dialect.name(),
            cancel: cancel.clone(),
            events,
        };
        let ticket = ask.ticket;
        let work = self.desk.running.track_future(async move {
            let session = listed.session.clone();
            let outcome = session.desk.host.answer(asked).await;
            mouth.shut();
            // Gone from the list, it was cancelled, and whoever cancels wants no answer.
            if !listed.strike() {
                return Answered { reply: None, follow: None };
            }
            // Still listed, nobody cancelled it but whoever ends the session or the server.
            let outcome = outcome.map_err(|error| match error {
                CallError::Canceled => CallError::Unavailable {
                    message: format!("{}; the call was cancelled", session.ending()),
                },
                other => other,
            });
            let follow = match &outcome {
                Ok(Answer::Job(job)) => ticket.follow(job).map(|ticket| Watching {
                    id: job.id.to_string(),
                    pace: FOLLOW,
                    ticket,
                }),
                Ok(_) | Err(_) => None,
            };
            Answered { reply: ticket.reply(outcome), follow }
        });
        Ok(Begun { work: Box::pin(work), cancel })
    }

    /// Tells of a job to `out`, until it has ended, the client is gone or the session ends.
    pub(crate) fn watch(self: &Arc<Self>, job: Watching, out: mpsc::Sender<Bytes>) {
        let session = self.clone();
        tokio::spawn(self.desk.running.track_future(async move {
            let over = async {
                tokio::select! {
                    () = session.desk.stop.cancelled() => {}
                    () = session.over.cancelled() => {}
                    () = out.closed() => {}
                }
            };
            tokio::select! {
                () = watching::tell(&session.desk.host, &session.caller, &job, &out) => {}
                () = over => {}
            }
        }));
    }

    /// Cancels the ask called `key`, if it is in flight; it is not answered then.
    pub(crate) fn cancel(&self, key: &Key) {
        if let Some(ask) = locked(&self.in_flight).asks.remove(key) {
            ask.cancel.cancel();
        }
    }

    /// Begins nothing more and cancels all that is in flight; each ask is answered `why`.
    pub(crate) fn end(&self, why: &'static str) {
        self.over.cancel();
        let mut in_flight = locked(&self.in_flight);
        in_flight.ended.get_or_insert(why);
        for ask in in_flight.asks.values() {
            ask.cancel.cancel();
        }
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        locked(&self.in_flight).asks.is_empty()
    }

    fn ending(&self) -> &'static str {
        locked(&self.in_flight).ended.unwrap_or("the server is stopping")
    }

    fn enter(&self, key: &Key, ask: Begin) -> Result<(), Reply> {
        let mut in_flight = locked(&self.in_flight);
        if in_flight.ended.is_some() {
            return Err(self.dialect.unknown_session());
        }
        if in_flight.asks.contains_key(key) {
            return Err(self.dialect.refuse(&Refused::Repeated { key: key.clone() }));
        }
        in_flight.asks.insert(key.clone(), ask);
        Ok(())
    }
}

/// An ask's place in the list of those in flight, struck off when it is dropped at the latest.
struct Listed {
    session: Arc<Session>,
    key: Key,
    serial: u64,
}

impl Listed {
    /// Strikes the ask off; whether it was still there.
    fn strike(&self) -> bool {
        let mut in_flight = locked(&self.session.in_flight);
        let there = in_flight.asks.get(&self.key).is_some_and(|ask| ask.serial == self.serial);
        if there {
            in_flight.asks.remove(&self.key);
        }
        there
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.strike();
    }
}

/// Work that was begun: done already, or going on in a task of its own.
pub(crate) enum Running<T> {
    /// It is done.
    Done(T),
    /// It goes on.
    On(JoinHandle<T>),
}

/// Runs `work` as far as it goes without waiting, and what is left in a task of its own.
///
/// So a client that leaves can cancel a call and never cut it half way, and a
/// call that has nothing to wait for, as most have not, costs no task.
pub(crate) async fn now_or_spawned<T: Send + 'static>(
    mut work: BoxFuture<'static, T>,
) -> Running<T> {
    match poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
        Poll::Ready(done) => Running::Done(done),
        Poll::Pending => Running::On(tokio::spawn(work)),
    }
}

/// Lets a call's events out until it is answered, and never after.
struct Mouth(Option<Arc<Mutex<Option<Say>>>>);

type Say = Box<dyn Fn(Bytes) + Send>;

fn mouth(
    ticket: &Arc<dyn Ticket>,
    say: impl Fn(Bytes) + Send + Sync + 'static,
) -> (EventSink, Mouth) {
    if !ticket.listens() {
        return (EventSink::none(), Mouth(None));
    }
    let say: Say = Box::new(say);
    let open = Arc::new(Mutex::new(Some(say)));
    let mouth = Mouth(Some(open.clone()));
    let ticket = ticket.clone();
    let events = EventSink::new(move |event: Event| {
        // Held while speaking, so that nothing is said once the mouth is shut.
        if let Some(say) = &*locked(&open)
            && let Some(bytes) = ticket.event(&event)
        {
            say(bytes);
        }
    });
    (events, mouth)
}

impl Mouth {
    /// A tool may keep its sink for as long as it likes; what the events went to is let go here.
    fn shut(&self) {
        if let Some(open) = &self.0 {
            *locked(open) = None;
        }
    }
}

/// The lock, whoever panicked while holding it: each guards a value that is whole at every step.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
