//! What a job does: the plan that its number decides, and the program that follows it.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;

use super::chance::Chance;

/// The word that makes this the program of a job.
pub(super) const WORD: &str = "job";
/// The variable that tells the program the seed.
pub(super) const SEED: &str = "CHAOS_SEED";
/// The exit code of a job that fails.
const FAILS_WITH: i32 = 3;

/// A tool that is called as a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// It may be run again.
    Again,
    /// It must not.
    Once,
    /// It may be run again, and takes seconds.
    Long,
}

/// Something that a job leaves in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Child {
    /// It has nothing of the job's.
    Quiet,
    /// It holds the job's output open.
    Clinging,
}

/// What the job number `n` does.
pub(super) struct Plan {
    pub(super) n: u64,
    pub(super) kind: Kind,
    pub(super) exit_code: i32,
    bytes: u64,
    takes: Duration,
    leaves: Option<Child>,
    artefact_bytes: Option<u64>,
    /// What decides its texts.
    texts: u64,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Again, Self::Once, Self::Long];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Again => "again",
            Self::Once => "once",
            Self::Long => "long",
        }
    }

    /// The tool as results name it.
    pub(super) fn tool(self) -> String {
        format!("chaos_{}", self.name())
    }

    pub(super) fn is_idempotent(self) -> bool {
        match self {
            Self::Again | Self::Long => true,
            Self::Once => false,
        }
    }

    /// Where its program writes down when it starts and ends.
    pub(super) fn log(self) -> String {
        format!("{}.log", self.name())
    }
}

impl Plan {
    pub(super) fn of(seed: u64, n: u64) -> Self {
        let mut chance = Chance::of(seed ^ n.wrapping_mul(0x5851_F42D_4C95_7F2D));
        let kind = match chance.between(0, 100) {
            0..2 => Kind::Long,
            2..55 => Kind::Again,
            _ => Kind::Once,
        };
        let bytes = match chance.between(0, 20) {
            0..3 => 0,
            3..13 => chance.between(1, 2 << 10),
            13..18 => chance.between(1, 32 << 10),
            _ => chance.between(1, 200 << 10),
        };
        let takes = match (kind, chance.between(0, 100)) {
            (Kind::Long, _) => chance.millis(2000, 5000),
            (Kind::Once, 0..3) => chance.millis(1000, 3000),
            (_, 0..25) => Duration::ZERO,
            _ => chance.millis(0, 300),
        };
        let leaves = match chance.between(0, 100) {
            0..8 => Some(Child::Quiet),
            8..10 => Some(Child::Clinging),
            _ => None,
        };
        let artefact_bytes = chance.is(15).then(|| chance.between(0, 100 << 10));
        let exit_code = if chance.is(15) { FAILS_WITH } else { 0 };
        let texts = chance.number();
        Self { n, kind, exit_code, bytes, takes, leaves, artefact_bytes, texts }
    }

    /// What it prints to standard output.
    pub(super) fn printed(&self) -> String {
        self.text(self.bytes, 1)
    }

    /// What it prints to standard error, by which it is known.
    pub(super) fn complaint(&self) -> String {
        format!("job {}\n", self.n)
    }

    /// Of which job `complaint` is.
    pub(super) fn number(complaint: &str) -> Option<u64> {
        complaint.strip_prefix("job ")?.trim_end().parse().ok()
    }

    /// The name of the file it leaves, and what is in it.
    pub(super) fn artefact(&self) -> Option<(String, String)> {
        let bytes = self.artefact_bytes?;
        Some((format!("{}.txt", self.n), self.text(bytes, 2)))
    }

    fn text(&self, bytes: u64, which: u64) -> String {
        let mut chance = Chance::of(self.texts ^ which);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut text = String::with_capacity(bytes + 40);
        while text.len() < bytes {
            let _ = writeln!(text, "{} {:016x}", self.n, chance.number());
        }
        text.truncate(bytes);
        text
    }
}

/// The program of the job that `words` name, in the folder that is served.
pub(super) fn run(words: &[String]) -> anyhow::Result<()> {
    let n = words.first().context("which job?")?.parse()?;
    let seed = std::env::var(SEED)?.parse()?;
    let plan = Plan::of(seed, n);
    note(&plan, "start")?;
    eprint!("{}", plan.complaint());
    if let Some(child) = plan.leaves {
        leave(child)?;
    }
    let printed = plan.printed();
    let (first, second) = printed.split_at(printed.len() / 2);
    say(first)?;
    sleep(plan.takes);
    if let Some((name, text)) = plan.artefact() {
        std::fs::write(format!("out/{name}"), text)?;
    }
    say(second)?;
    note(&plan, "end")?;
    std::process::exit(plan.exit_code);
}

/// Writes down what happens, in one write: others write there too.
fn note(plan: &Plan, what: &str) -> anyhow::Result<()> {
    let mut log = OpenOptions::new().append(true).open(plan.kind.log())?;
    let line = format!("{} {} {what}\n", plan.n, std::process::id());
    Ok(log.write_all(line.as_bytes())?)
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Starts something that goes on for long, in a session of its own.
fn leave(child: Child) -> anyhow::Result<()> {
    let output = || match child {
        Child::Quiet => Stdio::null(),
        Child::Clinging => Stdio::inherit(),
    };
    let mut command = Command::new("setsid");
    command.args(["sleep", "86400"]).stdin(Stdio::null()).stdout(output()).stderr(output());
    command.spawn().context("`setsid` cannot be started")?;
    Ok(())
}
