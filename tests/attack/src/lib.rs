//! Attacks the server as its callers, its files and its programs would, and sees what holds.
//!
//! Each case is played by every dialect over every transport that has its tool, each time by the
//! real binary in a folder of its own. A play is a process of its own, to which whatever the
//! server leaves behind falls.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test program, which owns the folders it runs in and talks to a person"
)]

mod case;
mod names;
mod spoken;
mod client;
mod http;
mod server;
mod stage;
mod setups;
mod repos;
mod traps;
mod ears;
mod play;
mod cases;
mod absent;
mod etags;
mod lines;
mod more;
mod races;
mod running;
mod searching;
mod web;
mod oracle;
mod seals;
mod process;
mod offers;
mod jobs;
mod table;
#[cfg(test)]
mod oracle_tests;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::scope;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use toolgate_test_support::{copy_of_this, toolgate_beside};

use case::Case;
use jobs::{Job, all_cases, forms};
use play::Verdict;
use process::Programs;
use spoken::{Over, WAYS, Way};

/// The word by which a play is a process.
const PLAY: &str = "__play";
/// How many are played at once: most of their time they wait.
const AT_ONCE: usize = 4;

/// What `cargo xtask attack` is asked for.
#[derive(Debug, Default)]
struct AttackOptions {
    cases: Vec<String>,
    dialects: Vec<String>,
    binary: Option<PathBuf>,
    keep: bool,
    /// Says each play, not each case.
    verbose: bool,
}

/// Runs the attacks that `words` select; or one play, if they are those of a play.
///
/// # Errors
///
/// If `words` are not understood, the server does not hold, or a folder cannot be written.
pub fn from_words(words: &[String]) -> anyhow::Result<()> {
    match words {
        [first, rest @ ..] if first == PLAY => process::one(rest),
        words => hold(&AttackOptions::read(words)?),
    }
}

/// Plays what is wanted; fails if anything is broken.
fn hold(wanted: &AttackOptions) -> anyhow::Result<()> {
    let cases = cases_wanted(wanted)?;
    let binary = match &wanted.binary {
        Some(binary) => binary.canonicalize().with_context(|| binary.display().to_string())?,
        None => toolgate_beside(&std::env::current_exe()?)?,
    };
    let begun = Instant::now();
    let base = std::env::temp_dir().join(format!("toolgate-attack-{}", std::process::id()));
    std::fs::create_dir_all(&base)?;
    // Copies: others build while this runs.
    let programs = Programs { attack: base.join("attack"), toolgate: base.join("toolgate") };
    copy_of_this(&programs.attack)?;
    std::fs::copy(&binary, &programs.toolgate).with_context(|| binary.display().to_string())?;
    let verdicts = play_all(wanted, &cases, &programs, &base);
    let outcome = verdicts.map(|verdicts| table::told(wanted, &cases, &verdicts));
    if wanted.keep {
        eprintln!("everything is kept in {}", base.display());
    } else {
        process::remove(&base)?;
    }
    eprintln!("{:.0} s", begun.elapsed().as_secs_f64());
    ensure!(outcome? == 0, "attacks succeeded");
    Ok(())
}

impl AttackOptions {
    fn read(words: &[String]) -> anyhow::Result<Self> {
        let mut wanted = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("`{word}` needs a value"));
            match word.as_str() {
                "--case" => wanted.cases.push(value()?.clone()),
                "--dialect" => wanted.dialects.push(value()?.clone()),
                "--bin" => wanted.binary = Some(value()?.into()),
                "--keep" => wanted.keep = true,
                "--verbose" => wanted.verbose = true,
                other => bail!(
                    "unknown option `{other}`; the options are --case ID, --dialect NAME, --bin FILE, --keep, --verbose"
                ),
            }
        }
        Ok(wanted)
    }
}

fn cases_wanted(wanted: &AttackOptions) -> anyhow::Result<Vec<Case>> {
    let mut cases = all_cases()?;
    for id in &wanted.cases {
        let known = cases.iter().any(|case| case.id.starts_with(id.as_str()));
        ensure!(known, "there is no case {id}");
    }
    if !wanted.cases.is_empty() {
        cases.retain(|case| wanted.cases.iter().any(|id| case.id.starts_with(id.as_str())));
    }
    Ok(cases)
}

type Verdicts = BTreeMap<(usize, usize, String), Verdict>;

fn play_all(
    wanted: &AttackOptions,
    cases: &[Case],
    programs: &Programs,
    base: &Path,
) -> anyhow::Result<Verdicts> {
    let fits = |way: &Way| {
        let name = way.name();
        wanted.dialects.is_empty()
            || wanted.dialects.iter().any(|wanted| name.starts_with(wanted.as_str()))
    };
    let ways: Vec<Way> = WAYS.into_iter().filter(fits).collect();
    let offers = offers::ask_servers(&programs.toolgate, base, &ways)?;
    let mut jobs = jobs::list(cases, &ways, &offers);
    // The long ones first, or the others wait for them.
    jobs.sort_by_key(|job| !cases::is_long(&cases[job.case].id));
    let total = jobs.len();
    let queue = Mutex::new(VecDeque::from(jobs));
    let verdicts = Mutex::new(BTreeMap::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let case = &cases[job.case];
                    let begun = Instant::now();
                    let verdict = process::played(case, &job, programs, base, wanted.keep);
                    if wanted.verbose {
                        say(case, &job, &verdict, begun.elapsed());
                    }
                    let key = (job.case, job.form, job.way.name());
                    let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
                    verdicts.insert(key, verdict);
                }
            });
        }
    });
    eprintln!("{total} plays of {} cases", cases.len());
    Ok(verdicts.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn say(case: &Case, job: &Job, verdict: &Verdict, took: Duration) {
    let label = &forms(case)[job.form].label;
    let word = if verdict.wrong.is_empty() { "held" } else { "BROKEN" };
    let all = [&verdict.wrong[..], &verdict.notes[..]].concat().join("; ");
    let took = took.as_secs_f64();
    println!("  {} {word} {} {label}: {all} ({took:.1} s)", case.id, job.way.name());
}

/// Says of a way whether it is a line, a request or a frame.
impl Way {
    fn is(self, over: Over) -> bool {
        self.over == over
    }
}
