//! Plan of each job, which follows from its number, and the program that carries out the plan.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;
use toolgate_test_support::{SeededRng, random_seed};

/// First command-line argument of a process that is the program of a job.
pub(super) const JOB_COMMAND: &str = "job";
/// Environment variable with the seed of the run.
pub(super) const SEED_VARIABLE: &str = "CHAOS_SEED";
/// Exit code of a job whose plan is to fail.
const FAILURE_CODE: i32 = 3;

/// Type of a job in the chaos test. Each type has its own tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ChaosJobKind {
    /// Idempotent job, which may run again after its server died.
    Repeatable,
    /// Job that is not idempotent, and may run only once.
    Once,
    /// Idempotent job that takes seconds.
    Long,
}

/// Process that a job leaves running in the background, by its standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BackgroundProcess {
    /// Does not keep any of the job's standard streams open.
    Detached,
    /// Keeps the standard output of the job open.
    KeepsOutputOpen,
}

/// Actions of one job's program, drawn at random from the seed and the number.
pub(super) struct ChaosJobPlan {
    pub(super) number: u64,
    pub(super) kind: ChaosJobKind,
    pub(super) exit_code: i32,
    stdout_bytes: u64,
    duration: Duration,
    background: Option<BackgroundProcess>,
    artefact_bytes: Option<u64>,
    text_seed: u64,
}

impl ChaosJobKind {
    pub(super) const ALL: [Self; 3] = [Self::Repeatable, Self::Once, Self::Long];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Repeatable => "repeatable",
            Self::Once => "once",
            Self::Long => "long",
        }
    }

    /// Returns the name of the tool for this type of job, as job results spell it.
    pub(super) fn tool(self) -> String {
        format!("chaos_{}", self.name())
    }

    pub(super) fn is_idempotent(self) -> bool {
        match self {
            Self::Repeatable | Self::Long => true,
            Self::Once => false,
        }
    }

    /// Returns the name of the log file for the programs of this type of job.
    pub(super) fn log_name(self) -> String {
        format!("{}.log", self.name())
    }
}

impl ChaosJobPlan {
    /// Returns the plan of the job `number` in the run with the seed `seed`.
    pub(super) fn new(seed: u64, number: u64) -> Self {
        let mut rng = SeededRng::from_seed(seed ^ number.wrapping_mul(0x5851_F42D_4C95_7F2D));
        let kind = match rng.between(0, 100) {
            0..2 => ChaosJobKind::Long,
            2..55 => ChaosJobKind::Repeatable,
            _ => ChaosJobKind::Once,
        };
        let stdout_bytes = match rng.between(0, 20) {
            0..3 => 0,
            3..13 => rng.between(1, 2 << 10),
            13..18 => rng.between(1, 32 << 10),
            _ => rng.between(1, 200 << 10),
        };
        let duration = match (kind, rng.between(0, 100)) {
            (ChaosJobKind::Long, _) => rng.duration_between(2000, 5000),
            (ChaosJobKind::Once, 0..3) => rng.duration_between(1000, 3000),
            (_, 0..25) => Duration::ZERO,
            _ => rng.duration_between(0, 300),
        };
        let background = match rng.between(0, 100) {
            0..8 => Some(BackgroundProcess::Detached),
            8..10 => Some(BackgroundProcess::KeepsOutputOpen),
            _ => None,
        };
        let artefact_bytes = rng.chance(15).then(|| rng.between(0, 100 << 10));
        let exit_code = if rng.chance(15) { FAILURE_CODE } else { 0 };
        let text_seed = rng.next_number();
        Self {
            number,
            kind,
            exit_code,
            stdout_bytes,
            duration,
            background,
            artefact_bytes,
            text_seed,
        }
    }

    /// Returns the text that the job's program prints to standard output.
    pub(super) fn stdout(&self) -> String {
        self.text(self.stdout_bytes, 1)
    }

    /// Returns the text that the job's program prints to standard error. It contains the number of
    /// the job.
    pub(super) fn stderr(&self) -> String {
        format!("job {}\n", self.number)
    }

    /// Parses the job number in the standard error of a job's program.
    pub(super) fn number_in(stderr: &str) -> Option<u64> {
        stderr.strip_prefix("job ")?.trim_end().parse().ok()
    }

    /// Returns the name and content of the file that the job's program writes, or `None` if it
    /// writes none.
    pub(super) fn artefact(&self) -> Option<(String, String)> {
        let bytes = self.artefact_bytes?;
        Some((format!("{}.txt", self.number), self.text(bytes, 2)))
    }

    fn text(&self, bytes: u64, variation: u64) -> String {
        let mut rng = SeededRng::from_seed(self.text_seed ^ variation);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut text = String::with_capacity(bytes + 40);
        while text.len() < bytes {
            let _ = writeln!(text, "{} {:016x}", self.number, rng.next_number());
        }
        text.truncate(bytes);
        text
    }
}

/// Runs as the program of the job whose number is in `arguments`, in the served folder.
pub(super) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let number = arguments.first().context("the number of the job is missing")?.parse()?;
    let seed = std::env::var(SEED_VARIABLE)?.parse()?;
    let plan = ChaosJobPlan::new(seed, number);
    // All programs have the same process id if each runs in a namespace of its own.
    let run = random_seed();
    log_event(&plan, run, "start")?;
    eprint!("{}", plan.stderr());
    if let Some(process) = plan.background {
        start_background(process)?;
    }
    let stdout = plan.stdout();
    let (first, second) = stdout.split_at(stdout.len() / 2);
    print_and_flush(first)?;
    sleep(plan.duration);
    if let Some((name, text)) = plan.artefact() {
        std::fs::write(format!("out/{name}"), text)?;
    }
    print_and_flush(second)?;
    log_event(&plan, run, "end")?;
    std::process::exit(plan.exit_code);
}

/// Appends an event of the run `run`, a random number, to the log. Uses one write, because other
/// programs append to the same file.
fn log_event(plan: &ChaosJobPlan, run: u64, event: &str) -> anyhow::Result<()> {
    let mut log = OpenOptions::new().append(true).open(plan.kind.log_name())?;
    let line = format!("{} {run:x} {event}\n", plan.number);
    Ok(log.write_all(line.as_bytes())?)
}

fn print_and_flush(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Starts a background process that runs for long in a new session.
fn start_background(process: BackgroundProcess) -> anyhow::Result<()> {
    let output = || match process {
        BackgroundProcess::Detached => Stdio::null(),
        BackgroundProcess::KeepsOutputOpen => Stdio::inherit(),
    };
    let mut command = Command::new("setsid");
    command.args(["sleep", "86400"]).stdin(Stdio::null()).stdout(output()).stderr(output());
    command.spawn().context("`setsid` cannot be started")?;
    Ok(())
}
