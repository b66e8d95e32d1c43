//! Kills clients and upstreams of the gateway at random, and sees whether anybody else notices.
//!
//! One gateway stays. Before it are clients that call upstreams nobody kills, each of whose calls
//! must be answered; clients that go away in the midst of a call; programs with gateways of their
//! own that are killed. Behind it are upstreams that are killed, or stopped and killed, and one
//! over HTTP that goes and comes back.

mod stage;
mod callers;
mod killers;
mod load;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::chance::Chance;
use super::{ChaosOptions, kept, left};
use load::Load;
use stage::Stage;

/// How often it is looked what the gateway takes.
const SAMPLE: Duration = Duration::from_secs(1);
/// How much more memory the gateway may have in the last fifth than in the second.
const GROWTH_MIB: f64 = 4.0;
/// How many more files it may have open, which come and go.
const GROWTH_FILES: usize = 40;

/// What has happened so far.
#[derive(Default)]
struct Tally {
    over: AtomicBool,
    /// Calls of upstreams that nobody kills.
    healthy: AtomicUsize,
    /// Calls of those that are killed.
    fragile: AtomicUsize,
    upstreams_killed: AtomicUsize,
    clients_killed: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }

    fn wrong(&self, what: String) {
        eprintln!("wrong: {what}");
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

fn count(of: &AtomicUsize) {
    of.fetch_add(1, Ordering::Relaxed);
}

/// Does so for `lasting`, says what came of it in a line, and fails if that is bad.
pub(super) fn soak(wanted: &ChaosOptions, lasting: Duration) -> anyhow::Result<()> {
    let toolgate = wanted.server()?;
    let stage = Stage::set(&toolgate, wanted.seed)?;
    eprintln!("{} s with --seed {}, in {}", lasting.as_secs(), wanted.seed, stage.folder.display());
    let tally = Tally::default();
    let outcome = rage(&stage, wanted.seed, lasting, &tally);
    let left = left::waited_for(&stage.marker);
    left::end(&left);
    let (first, last) = outcome.with_context(|| kept(&stage.folder))?;

    left.iter().for_each(|left| eprintln!("left running: {left}"));
    let wrong = tally.wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{} s: {} calls of healthy upstreams and {} of others, {} wrong; {} upstreams and {} \
         clients killed, {} left running; memory {:.1} MiB, then {:.1}; files {}, then {}",
        lasting.as_secs(),
        tally.healthy.into_inner(),
        tally.fragile.into_inner(),
        wrong.len(),
        tally.upstreams_killed.into_inner(),
        tally.clients_killed.into_inner(),
        left.len(),
        first.mib,
        last.mib,
        first.files,
        last.files,
    );
    ensure!(
        wrong.is_empty() && left.is_empty(),
        "the gateway was noticed; {}",
        kept(&stage.folder)
    );
    ensure!(last.mib <= first.mib + GROWTH_MIB, "it takes more and more memory");
    ensure!(last.files <= first.files + GROWTH_FILES, "it has more and more files open");
    std::fs::remove_dir_all(&stage.folder).context("what was made cannot be removed")
}

/// All of it at once; what the gateway took early on, and in the end.
fn rage(
    stage: &Stage,
    seed: u64,
    lasting: Duration,
    tally: &Tally,
) -> anyhow::Result<(Load, Load)> {
    let web = stage.web()?;
    let mut gateway = stage.gateway(web.at)?;
    let at = gateway.address()?;
    callers::warm(at)?;
    let taken = scope(|threads| {
        let chance = |of: u64| Chance::of(seed ^ of);
        for number in 0..3 {
            threads.spawn(move || callers::healthy(at, chance(number), tally));
            threads.spawn(move || callers::fragile(at, chance(16 + number), tally));
            threads.spawn(move || callers::reckless(at, chance(32 + number), tally));
        }
        threads.spawn(move || callers::programs(stage, chance(64), tally));
        threads.spawn(move || killers::upstreams(stage, chance(128), tally));
        threads.spawn(move || killers::web(web, chance(256), tally));
        let begun = Instant::now();
        let mut taken = Vec::new();
        while begun.elapsed() < lasting {
            sleep(SAMPLE);
            match Load::of(gateway.pid()) {
                Ok(load) => taken.push(load),
                Err(_) => {
                    tally.wrong("the gateway is gone".to_owned());
                    break;
                }
            }
        }
        tally.over.store(true, Ordering::Release);
        taken
    });
    gateway.stop()?;
    stage.complaints()?.into_iter().for_each(|line| tally.wrong(format!("it said: {line}")));
    let fifth = taken.len() / 5;
    let most = |part: &[Load]| part.iter().copied().reduce(Load::most);
    let first = most(&taken[fifth..2 * fifth]);
    let last = most(&taken[4 * fifth..]);
    first.zip(last).context("that was too short to tell anything")
}
