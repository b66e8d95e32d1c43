//! Attacks the server as its callers, its files and its programs would, and sees what holds.
//!
//! Each case is played by every dialect over every transport that has its tool, each time by the
//! real binary in a folder of its own. A play is a process of its own, to which whatever the
//! server leaves behind falls.

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
mod table;
#[cfg(test)]
mod oracle_tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::scope;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::shell::{build, cargo, checkout, copy_of_this, run};
use case::Case;
use names::Form;
use play::Verdict;
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
    release: bool,
    /// Says each play, not each case.
    verbose: bool,
}

/// One play to be made.
#[derive(Debug, Clone)]
struct Job {
    case: usize,
    form: usize,
    way: Way,
}

/// Does what `words` say; or is one play.
pub(crate) fn from_words(words: &[String]) -> anyhow::Result<()> {
    match words {
        [first, rest @ ..] if first == PLAY => process::one(rest),
        words => hold(&AttackOptions::read(words)?),
    }
}

/// Plays what is wanted; fails if anything is broken.
fn hold(wanted: &AttackOptions) -> anyhow::Result<()> {
    let cases = cases_wanted(wanted)?;
    let binary = built(wanted)?;
    let begun = Instant::now();
    let base = std::env::temp_dir().join(format!("toolgate-attack-{}", std::process::id()));
    std::fs::create_dir_all(&base)?;
    // Copies: others build while this runs.
    let own = base.join("attack");
    copy_of_this(&own)?;
    let binary = {
        let copy = base.join("toolgate");
        std::fs::copy(&binary, &copy).with_context(|| binary.display().to_string())?;
        copy
    };
    let verdicts = play_all(wanted, &cases, &binary, &base);
    let outcome = verdicts.map(|verdicts| table::told(wanted, &cases, &verdicts));
    if wanted.keep {
        eprintln!("everything is kept in {}", base.display());
    } else {
        std::fs::remove_dir_all(&base).context("cannot remove the folder of the run")?;
        _ = std::fs::remove_dir_all(
            Path::new("/dev/shm").join(base.file_name().unwrap_or_default()),
        );
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
                "--release" => wanted.release = true,
                "--verbose" => wanted.verbose = true,
                other => bail!(
                    "unknown option `{other}`; the options are --case ID, --dialect NAME, --bin FILE, --keep, \
                     --release, --verbose"
                ),
            }
        }
        Ok(wanted)
    }
}

/// Every case of both files.
fn all_cases() -> anyhow::Result<Vec<Case>> {
    let folder = checkout().join("tests/attacks");
    let mut cases = case::load(&folder.join("attacks.jsonl"), false)?;
    cases.extend(case::load(&folder.join("more.jsonl"), true)?);
    let mut ids = BTreeSet::new();
    for case in &cases {
        ensure!(ids.insert(&case.id), "there are two cases {}", case.id);
    }
    Ok(cases)
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

fn built(wanted: &AttackOptions) -> anyhow::Result<PathBuf> {
    if let Some(binary) = &wanted.binary {
        return binary.canonicalize().with_context(|| binary.display().to_string());
    }
    if wanted.release {
        run(&cargo(), &["build", "--locked", "--package", "toolgate", "--release"])?;
        return Ok(checkout().join("target/release/toolgate"));
    }
    build()?;
    Ok(checkout().join("target/debug/toolgate"))
}

/// The forms of a case; for what is no call of a tool, one without a tool.
fn forms(case: &Case) -> Vec<Form> {
    let forms = names::forms(case);
    if forms.is_empty() {
        return vec![Form { tool: String::new(), input: Value::Null, label: String::new() }];
    }
    forms
}

/// What is to be played, and the tools that each way has.
fn jobs(
    wanted: &AttackOptions,
    cases: &[Case],
    binary: &Path,
    base: &Path,
) -> anyhow::Result<Vec<Job>> {
    let fits = |way: &Way| {
        let name = way.name();
        wanted.dialects.is_empty()
            || wanted.dialects.iter().any(|wanted| name.starts_with(wanted.as_str()))
    };
    let ways: Vec<Way> = WAYS.into_iter().filter(fits).collect();
    let has = tools(binary, base, &ways)?;
    let mut jobs = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        for (form, means) in forms(case).iter().enumerate() {
            for way in ways.iter().copied() {
                let able = if means.tool.is_empty() {
                    cases::is_for(case, way)
                } else {
                    (means.tool.starts_with("attack.") || has_tool(&has, way, means))
                        && !cases::is_not_for(case, way)
                        && !more::is_enough_elsewhere(means, way)
                };
                if able {
                    jobs.push(Job { case: at, form, way });
                }
            }
        }
    }
    // The long ones first, or the others wait for them.
    jobs.sort_by_key(|job| !cases::is_long(&cases[job.case].id));
    Ok(jobs)
}

fn has_tool(has: &BTreeMap<String, BTreeSet<String>>, way: Way, means: &Form) -> bool {
    let Some((name, _)) = way.spoken().spell(&means.tool, &means.input) else { return false };
    has.get(&way.name()).is_some_and(|names| names.contains(&name))
}

/// The names of the tools by every way, from its own list.
fn tools(
    binary: &Path,
    base: &Path,
    ways: &[Way],
) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let mut all = BTreeMap::new();
    for way in ways.iter().copied() {
        let stage = stage::Stage::set(base.join(format!("list-{}", way.name().replace(' ', "-"))))?;
        let schemas = stage.ws.join(setups::SCHEMAS);
        std::fs::create_dir_all(&schemas)?;
        std::fs::write(schemas.join("case.schema.json"), "{}")?;
        let launch = server::Launch::of(binary, &stage);
        let (mut server, mut client) = client::open(&launch, &stage, way)
            .with_context(|| format!("cannot start the server to attack, {}", way.name()))?;
        let mut names: BTreeSet<String> = client
            .tools()?
            .iter()
            .filter_map(|tool| tool["name"].as_str().or_else(|| tool["id"].as_str()))
            .map(str::to_owned)
            .collect();
        if way.dialect == spoken::Dialect::Synesthetic {
            names = ["validate_asset", "diff_assets"].map(str::to_owned).into();
        }
        if way.dialect == spoken::Dialect::Mira {
            // Two have the contract's name in its list, and the rest have theirs.
            names.insert("vector/search".to_owned());
        }
        client.close();
        _ = server.stop();
        all.insert(way.name(), names);
    }
    Ok(all)
}

type Verdicts = BTreeMap<(usize, usize, String), Verdict>;

fn play_all(
    wanted: &AttackOptions,
    cases: &[Case],
    binary: &Path,
    base: &Path,
) -> anyhow::Result<Verdicts> {
    let jobs = jobs(wanted, cases, binary, base)?;
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
                    let verdict = process::played(case, &job, binary, base, wanted.keep);
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
