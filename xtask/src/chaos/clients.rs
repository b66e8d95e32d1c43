//! Clients that go on asking for jobs whatever becomes of the server, and remember what they were told.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use super::chance::Chance;
use super::server::Stage;
use super::wire::{Told, submit};
use super::work::{Kind, Plan};

/// How many clients there are.
pub(super) const CLIENTS: u64 = 6;
/// How many accepted jobs may be waiting for their turn; then nobody asks for more.
const WAITING_MAX: usize = 300;
/// How many of the long ones may be there that have not ended.
const LONG_MAX: usize = 6;
/// How long a client waits between jobs, at most, in milliseconds.
const PAUSE_MS: u64 = 60;
const LOOK: Duration = Duration::from_millis(5);

/// A job that was asked for, and what came of asking.
pub(super) struct Submission {
    pub(super) n: u64,
    pub(super) kind: Kind,
    pub(super) fate: Fate,
}

pub(super) enum Fate {
    /// It has this id.
    Accepted(String),
    /// It was refused: why.
    Refused(String),
    /// Nobody said: it may be there or not.
    Unknown,
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
    started: HashSet<u64>,
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
        self.accepted() > locked(&self.seen).started.len() + WAITING_MAX
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

    fn note(&self, plan: &Plan, fate: Fate) {
        if matches!(fate, Fate::Accepted(_)) {
            self.accepted.fetch_add(1, Ordering::Relaxed);
        }
        let Plan { n, kind, .. } = *plan;
        locked(&self.ledger).0.push(Submission { n, kind, fate });
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
        shared.note(&plan, fate);
        plan = shared.take(stage.seed);
        sleep(chance.millis(0, PAUSE_MS));
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
            let n: Option<u64> = line.split(' ').next().and_then(|n| n.parse().ok());
            self.started.extend(n);
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
