//! Clients that go on asking for jobs whatever becomes of the server, and remember what they were told.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use super::chance::Chance;
use super::server::Stage;
use super::wire::{Told, cancel, submit};
use super::work::{Kind, Plan};

/// How many clients there are.
pub(super) const CLIENTS: u64 = 6;
/// How many jobs may be waiting for their turn, about; then nobody asks for more.
const WAITING_MAX: u64 = 300;
/// How many of the long ones may be there that have not ended.
const LONG_MAX: usize = 6;
/// How many of a hundred jobs are cancelled as soon as they are accepted.
const CANCEL_PERCENT: u64 = 4;
/// How long a client waits between jobs, at most, in milliseconds.
const PAUSE_MS: u64 = 60;
const LOOK: Duration = Duration::from_millis(5);

/// A job that was asked for, and what came of asking.
pub(super) struct Submission {
    pub(super) n: u64,
    pub(super) kind: Kind,
    pub(super) fate: Fate,
    pub(super) cancel: Cancel,
}

pub(super) enum Fate {
    /// It has this id.
    Accepted(String),
    /// It was refused: why.
    Refused(String),
    /// Nobody said: it may be there or not.
    Unknown,
}

/// Whether the job was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cancel {
    /// Nobody asked for it.
    No,
    /// It was asked for, and nobody said that it was done.
    Perhaps,
    /// The answer says so.
    Yes,
}

/// All that was asked for.
#[derive(Default)]
pub(super) struct Ledger(pub(super) Vec<Submission>);

impl Ledger {
    /// Each job that a client knows of, with its id.
    pub(super) fn accepted(&self) -> impl Iterator<Item = (&str, &Submission)> {
        self.0.iter().filter_map(|submission| match &submission.fate {
            Fate::Accepted(id) => Some((id.as_str(), submission)),
            Fate::Refused(_) | Fate::Unknown => None,
        })
    }
}

/// What clients and whoever starts servers share.
#[derive(Default)]
pub(super) struct Shared {
    /// Where the server listens now.
    address: Mutex<Option<SocketAddr>>,
    ledger: Mutex<Ledger>,
    next: AtomicU64,
    accepted: AtomicUsize,
    long: AtomicUsize,
    seen: Mutex<Seen>,
    over: AtomicBool,
}

/// What the jobs' programs wrote down.
#[derive(Default)]
struct Seen {
    read_to: [u64; Kind::ALL.len()],
    /// The highest number that was started; jobs start about in the order of their numbers.
    newest: u64,
    long_ended: usize,
    ended: usize,
}

impl Shared {
    /// Says where the server listens, if it does.
    pub(super) fn listens(&self, at: Option<SocketAddr>) {
        *locked(&self.address) = at;
    }

    /// How many jobs clients know of.
    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many programs have come to their end.
    pub(super) fn ended(&self) -> usize {
        locked(&self.seen).ended
    }

    /// Tells the clients to ask for nothing more.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn into_ledger(self) -> Ledger {
        self.ledger.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.next.load(Ordering::Relaxed) > locked(&self.seen).newest + WAITING_MAX
    }

    fn take(&self, seed: u64) -> Plan {
        loop {
            let plan = Plan::of(seed, self.next.fetch_add(1, Ordering::Relaxed));
            if plan.kind != Kind::Long {
                return plan;
            }
            let there = self.long.fetch_add(1, Ordering::Relaxed);
            if there < locked(&self.seen).long_ended + LONG_MAX {
                return plan;
            }
            self.long.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn note(&self, plan: &Plan, fate: Fate, cancel: Cancel) {
        if matches!(fate, Fate::Accepted(_)) {
            self.accepted.fetch_add(1, Ordering::Relaxed);
        }
        let Plan { n, kind, .. } = *plan;
        locked(&self.ledger).0.push(Submission { n, kind, fate, cancel });
    }
}

/// What one client does until all is over.
pub(super) fn ask_on(stage: &Stage, shared: &Shared, client: u64) {
    let mut chance = Chance::of(stage.seed.rotate_left(17) ^ client);
    let mut plan = shared.take(stage.seed);
    while !shared.is_over() {
        let at = *locked(&shared.address);
        let Some(at) = at.filter(|_| !shared.is_full()) else {
            sleep(LOOK);
            continue;
        };
        let fate = match submit(at, &plan.kind.tool(), plan.n) {
            Told::NotSent => {
                sleep(LOOK);
                continue;
            }
            Told::Unknown(_) => Fate::Unknown,
            Told::Answer(answer) => match answer.json() {
                Ok(said) => match said["result"]["job_id"].as_str() {
                    Some(id) => Fate::Accepted(id.to_owned()),
                    None => Fate::Refused(said.to_string()),
                },
                Err(err) => Fate::Refused(format!("{} {err:#}", answer.status)),
            },
        };
        let canceled = match &fate {
            Fate::Accepted(id) if chance.is(CANCEL_PERCENT) => call_off(at, id),
            Fate::Accepted(_) | Fate::Refused(_) | Fate::Unknown => Cancel::No,
        };
        shared.note(&plan, fate, canceled);
        plan = shared.take(stage.seed);
        sleep(chance.millis(0, PAUSE_MS));
    }
}

/// Cancels the job `id`; whether that is known to be done.
fn call_off(at: SocketAddr, id: &str) -> Cancel {
    let said = match cancel(at, id) {
        Told::Answer(answer) => answer.json(),
        Told::NotSent => return Cancel::No,
        Told::Unknown(_) => return Cancel::Perhaps,
    };
    match said {
        Ok(said) if said["status"] == "canceled" => Cancel::Yes,
        Ok(_) | Err(_) => Cancel::Perhaps,
    }
}

/// Reads what the jobs' programs write down, until all is over.
pub(super) fn read_on(stage: &Stage, shared: &Shared) {
    while !shared.is_over() {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let mut seen = locked(&shared.seen);
            // What cannot be read now is read later.
            let _ = seen.read(stage, at, kind);
        }
        sleep(LOOK);
    }
}

impl Seen {
    fn read(&mut self, stage: &Stage, at: usize, kind: Kind) -> std::io::Result<()> {
        let mut log = File::open(stage.log(kind))?;
        log.seek(SeekFrom::Start(self.read_to[at]))?;
        let mut text = String::new();
        log.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |last| last + 1);
        self.read_to[at] += whole as u64;
        for line in text[..whole].lines() {
            let n = line.split(' ').next().and_then(|n| n.parse().ok());
            self.newest = self.newest.max(n.unwrap_or_default());
            if line.ends_with(" end") {
                self.ended += 1;
                self.long_ended += usize::from(kind == Kind::Long);
            }
        }
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
