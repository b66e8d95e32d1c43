//! When the server is killed, and how often it is started again.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::bail;

use super::JOBS_MIN;
use super::chance::Chance;
use super::clients::{CLIENTS, Ledger, Shared, ask_on, read_on};
use super::server::{Server, Stage};

/// How often it is said how far it is.
const TELL: Duration = Duration::from_secs(10);
/// How long programs may take to end, for a kill while they do.
const ENDING: Duration = Duration::from_secs(2);
/// How long the jobs that are wanted at least may take to be accepted.
const ACCEPTING: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(1);

/// The moment at which a server is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// Before it listens.
    Starting,
    /// While it takes over what the one before left.
    Recovering,
    /// While jobs come in.
    Accepting,
    /// While jobs run.
    Running,
    /// When some programs have just ended.
    Finishing,
    /// While it stops in order.
    Stopping,
    /// Not at all: it stops in order.
    Never,
}

struct Storm<'s> {
    stage: &'s Stage,
    shared: &'s Shared,
    chance: &'s mut Chance,
    lives: usize,
    /// How long a server takes until it listens.
    start: Duration,
}

/// Lets clients ask for jobs while the server is killed `kills` times; what they were told.
///
/// In the end the server has stopped in order.
pub(super) fn rage(stage: &Stage, kills: usize, chance: &mut Chance) -> anyhow::Result<Ledger> {
    let shared = Shared::default();
    scope(|threads| {
        threads.spawn(|| read_on(stage, &shared));
        for client in 0..CLIENTS {
            let shared = &shared;
            threads.spawn(move || ask_on(stage, shared, client));
        }
        let start = Duration::from_millis(100);
        let mut storm = Storm { stage, shared: &shared, chance, lives: 0, start };
        let done = storm.kill(kills).and_then(|()| storm.calm());
        shared.end();
        done
    })?;
    Ok(shared.into_ledger())
}

impl Storm<'_> {
    fn kill(&mut self, kills: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut killed = 0;
        let mut last_report = begun;
        while killed < kills {
            let moment = self.moment();
            let was_killed = self.live(moment);
            self.shared.listens(None);
            killed += usize::from(was_killed?);
            if last_report.elapsed() > TELL {
                last_report = Instant::now();
                let jobs = self.shared.accepted();
                let seconds = begun.elapsed().as_secs();
                eprintln!("{killed} kills, {jobs} jobs, {seconds} s");
            }
        }
        Ok(())
    }

    fn moment(&mut self) -> Moment {
        match self.chance.between(0, 100) {
            0..15 => Moment::Starting,
            15..30 => Moment::Recovering,
            30..50 => Moment::Accepting,
            50..70 => Moment::Running,
            70..85 => Moment::Finishing,
            85..95 => Moment::Stopping,
            _ => Moment::Never,
        }
    }

    /// One life of the server; whether it was killed.
    fn live(&mut self, moment: Moment) -> anyhow::Result<bool> {
        let mut server = self.born()?;
        if let Moment::Starting = moment {
            let least = Duration::from_millis(1);
            let micros = u64::try_from(self.start.max(least).as_micros())?;
            sleep(Duration::from_micros(self.chance.between(0, micros)));
            return server.kill();
        }
        self.listen(&mut server)?;
        match moment {
            Moment::Starting | Moment::Recovering => sleep(self.chance.millis(0, 60)),
            Moment::Accepting => sleep(self.chance.millis(10, 200)),
            Moment::Running => sleep(self.chance.millis(100, 1500)),
            Moment::Finishing => {
                let enough = self.shared.ended() + usize::try_from(self.chance.between(1, 30))?;
                let begun = Instant::now();
                while self.shared.ended() < enough && begun.elapsed() < ENDING {
                    sleep(LOOK);
                }
                sleep(self.chance.millis(0, 10));
            }
            Moment::Stopping => {
                sleep(self.chance.millis(50, 600));
                server.ask_to_stop()?;
                sleep(self.chance.millis(0, 400));
            }
            Moment::Never => {
                sleep(self.chance.millis(50, 600));
                server.stop()?;
                return Ok(false);
            }
        }
        server.kill()
    }

    /// A last life without harm, until there are jobs enough.
    fn calm(&mut self) -> anyhow::Result<()> {
        let mut server = self.born()?;
        self.listen(&mut server)?;
        let begun = Instant::now();
        while self.shared.accepted() < JOBS_MIN {
            if begun.elapsed() > ACCEPTING {
                bail!("only {} jobs were accepted", self.shared.accepted());
            }
            sleep(LOOK);
        }
        self.shared.end();
        server.stop()
    }

    fn born(&mut self) -> anyhow::Result<Server> {
        self.lives += 1;
        self.stage.start(self.lives)
    }

    fn listen(&mut self, server: &mut Server) -> anyhow::Result<()> {
        let address = server.address()?;
        self.start = server.age();
        self.shared.listens(Some(address));
        Ok(())
    }
}
