//! Starts and kills servers repeatedly, each at a random moment, while clients submit jobs.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::bail;
use toolgate_test_support::SeededRng;

use super::JOBS_MIN;
use super::clients::{CLIENTS, ChaosSharedState, JobSubmissionLog, follow_logs, submit_jobs};
use super::server::{ChaosRunFolder, ChaosServerProcess};

/// Pause between two printed lines about the progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Time for which a kill waits until programs have ended.
const FINISHING_TIMEOUT: Duration = Duration::from_secs(2);
/// Time within which the last server must have accepted the minimum number of jobs.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two checks of a condition that the loop waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Decides when the test kills a server.
#[derive(Debug, Clone, Copy)]
enum ServerKillMoment {
    /// Kills the server before it listens.
    Starting,
    /// Kills the server while it takes over the jobs of the previous server, which was killed.
    Recovering,
    /// Kills the server while it accepts jobs.
    Accepting,
    /// Kills the server while jobs run.
    Running,
    /// Kills the server just after some programs have ended.
    Finishing,
    /// Kills the server while it shuts down.
    ShuttingDown,
    /// Lets the server shut down without a kill.
    Never,
}

/// Loop that starts servers and kills them.
struct ServerKillLoop<'s> {
    folder: &'s ChaosRunFolder,
    shared: &'s ChaosSharedState,
    rng: &'s mut SeededRng,
    servers: usize,
    /// Time that the previous server took until it listened.
    start_time: Duration,
}

/// Kills `kills` servers while clients submit jobs, and shuts the last server down. Returns the
/// submitted jobs.
pub(super) fn run(
    folder: &ChaosRunFolder,
    kills: usize,
    rng: &mut SeededRng,
) -> anyhow::Result<JobSubmissionLog> {
    let shared = ChaosSharedState::default();
    scope(|threads| {
        threads.spawn(|| follow_logs(folder, &shared));
        for client in 0..CLIENTS {
            let shared = &shared;
            threads.spawn(move || submit_jobs(folder, shared, client));
        }
        let start_time = Duration::from_millis(100);
        let mut kill_loop = ServerKillLoop { folder, shared: &shared, rng, servers: 0, start_time };
        let outcome = kill_loop.run(kills).and_then(|()| kill_loop.run_last_server());
        shared.stop();
        outcome
    })?;
    Ok(shared.into_submissions())
}

impl ServerKillLoop<'_> {
    fn run(&mut self, kills: usize) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut killed = 0;
        let mut last_report = started;
        while killed < kills {
            let moment = self.next_moment();
            let was_killed = self.run_server(moment);
            self.shared.set_address(None);
            killed += usize::from(was_killed?);
            if last_report.elapsed() > REPORT_INTERVAL {
                last_report = Instant::now();
                let jobs = self.shared.accepted();
                let seconds = started.elapsed().as_secs();
                eprintln!("{killed} kills, {jobs} jobs, {seconds} s");
            }
        }
        Ok(())
    }

    fn next_moment(&mut self) -> ServerKillMoment {
        match self.rng.between(0, 100) {
            0..15 => ServerKillMoment::Starting,
            15..30 => ServerKillMoment::Recovering,
            30..50 => ServerKillMoment::Accepting,
            50..70 => ServerKillMoment::Running,
            70..85 => ServerKillMoment::Finishing,
            85..95 => ServerKillMoment::ShuttingDown,
            _ => ServerKillMoment::Never,
        }
    }

    /// Runs one server until `moment`, and kills it then. Returns false if the server was not
    /// killed.
    fn run_server(&mut self, moment: ServerKillMoment) -> anyhow::Result<bool> {
        let mut server = self.start_server()?;
        if let ServerKillMoment::Starting = moment {
            let shortest = Duration::from_millis(1);
            let micros = u64::try_from(self.start_time.max(shortest).as_micros())?;
            sleep(Duration::from_micros(self.rng.between(0, micros)));
            return server.kill();
        }
        self.wait_for_address(&mut server)?;
        match moment {
            ServerKillMoment::Starting | ServerKillMoment::Recovering => {
                sleep(self.rng.duration_between(0, 60));
            }
            ServerKillMoment::Accepting => sleep(self.rng.duration_between(10, 200)),
            ServerKillMoment::Running => sleep(self.rng.duration_between(100, 1500)),
            ServerKillMoment::Finishing => {
                let enough = self.shared.ended() + usize::try_from(self.rng.between(1, 30))?;
                let started = Instant::now();
                while self.shared.ended() < enough && started.elapsed() < FINISHING_TIMEOUT {
                    sleep(POLL_INTERVAL);
                }
                sleep(self.rng.duration_between(0, 10));
            }
            ServerKillMoment::ShuttingDown => {
                sleep(self.rng.duration_between(50, 600));
                server.terminate()?;
                sleep(self.rng.duration_between(0, 400));
            }
            ServerKillMoment::Never => {
                sleep(self.rng.duration_between(50, 600));
                server.stop()?;
                return Ok(false);
            }
        }
        server.kill()
    }

    /// Runs a last server until clients have submitted enough jobs, and shuts it down.
    fn run_last_server(&mut self) -> anyhow::Result<()> {
        let mut server = self.start_server()?;
        self.wait_for_address(&mut server)?;
        let started = Instant::now();
        while self.shared.accepted() < JOBS_MIN {
            if started.elapsed() > ACCEPT_TIMEOUT {
                bail!("only {} jobs were accepted", self.shared.accepted());
            }
            sleep(POLL_INTERVAL);
        }
        self.shared.stop();
        server.stop()
    }

    fn start_server(&mut self) -> anyhow::Result<ChaosServerProcess> {
        self.servers += 1;
        self.folder.start_server(self.servers)
    }

    fn wait_for_address(&mut self, server: &mut ChaosServerProcess) -> anyhow::Result<()> {
        let address = server.address()?;
        self.start_time = server.age();
        self.shared.set_address(Some(address));
        Ok(())
    }
}
