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
#[cfg(test)]
mod oracle_tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::shell::{cargo, checkout, copy_of_this, run};
use case::Case;
use names::Form;
use play::{Play, Verdict};
use spoken::{Over, WAYS, Way};

/// The word by which a play is a process.
const PLAY: &str = "__play";
/// How many are played at once: most of their time they wait.
const AT_ONCE: usize = 4;
/// How long one play may take.
const PATIENCE: Duration = Duration::from_secs(150);

/// What `cargo xtask attack` is asked for.
#[derive(Debug, Default)]
struct Wanted {
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
    if let [first, rest @ ..] = words
        && first == PLAY
    {
        return one(rest);
    }
    let wanted = Wanted::read(words)?;
    let cases = cases_wanted(&wanted)?;
    let binary = built(&wanted)?;
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
    let verdicts = play_all(&wanted, &cases, &binary, &base);
    let outcome = verdicts.map(|verdicts| table(&wanted, &cases, &verdicts));
    if wanted.keep {
        eprintln!("all is kept in {}", base.display());
    } else {
        std::fs::remove_dir_all(&base).context("what was made cannot be removed")?;
        _ = std::fs::remove_dir_all(
            Path::new("/dev/shm").join(base.file_name().unwrap_or_default()),
        );
    }
    eprintln!("{:.0} s", begun.elapsed().as_secs_f64());
    ensure!(outcome? == 0, "the server does not hold");
    Ok(())
}

impl Wanted {
    fn read(words: &[String]) -> anyhow::Result<Self> {
        let mut wanted = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("what comes after `{word}`?"));
            match word.as_str() {
                "--case" => wanted.cases.push(value()?.clone()),
                "--dialect" => wanted.dialects.push(value()?.clone()),
                "--bin" => wanted.binary = Some(value()?.into()),
                "--keep" => wanted.keep = true,
                "--release" => wanted.release = true,
                "--verbose" => wanted.verbose = true,
                other => bail!(
                    "`{other}` is none of --case ID, --dialect NAME, --bin FILE, --keep, \
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

fn cases_wanted(wanted: &Wanted) -> anyhow::Result<Vec<Case>> {
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

fn built(wanted: &Wanted) -> anyhow::Result<PathBuf> {
    if let Some(binary) = &wanted.binary {
        return binary.canonicalize().with_context(|| binary.display().to_string());
    }
    let build = ["build", "--locked", "--package", "toolgate"];
    if wanted.release {
        run(&cargo(), &[&build[..], &["--release"]].concat())?;
        return Ok(checkout().join("target/release/toolgate"));
    }
    run(&cargo(), &build)?;
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
fn jobs(wanted: &Wanted, cases: &[Case], binary: &Path, base: &Path) -> anyhow::Result<Vec<Job>> {
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
            .with_context(|| format!("no server to be attacked, {}", way.name()))?;
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
    wanted: &Wanted,
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
                    let verdict = played(case, &job, binary, base, wanted.keep);
                    if wanted.verbose {
                        say(case, &job, &verdict);
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

fn say(case: &Case, job: &Job, verdict: &Verdict) {
    let label = &forms(case)[job.form].label;
    let word = if verdict.wrong.is_empty() { "held" } else { "BROKEN" };
    let all = [&verdict.wrong[..], &verdict.notes[..]].concat().join("; ");
    println!("  {} {word} {} {label}: {all}", case.id, job.way.name());
}

/// Where a case has room: what makes many or large files makes them in memory, where that may be.
fn room(case: &Case, base: &Path) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let name = base.file_name().unwrap_or_default();
    if matches!(case.id.as_str(), "R03" | "R12")
        && std::fs::create_dir_all(memory.join(name)).is_ok()
    {
        return memory.join(name);
    }
    base.to_owned()
}

/// Plays one in a process of its own.
fn played(case: &Case, job: &Job, binary: &Path, base: &Path, keep: bool) -> Verdict {
    let name = format!("{}-{}-{}", case.id, job.form, job.way.name().replace(' ', "-"));
    let own = base.join("attack");
    let base = room(case, base).join(name);
    let verdict = in_process(&own, case, job, binary, &base);
    if !keep {
        _ = std::fs::remove_dir_all(&base);
    }
    verdict.unwrap_or_else(|err| Verdict {
        wrong: vec![format!("the harness: {err:#}")],
        ..Verdict::default()
    })
}

fn in_process(
    own: &Path,
    case: &Case,
    job: &Job,
    binary: &Path,
    base: &Path,
) -> anyhow::Result<Verdict> {
    let mut child = Command::new(own)
        .args(["attack", PLAY, &case.id, &job.form.to_string(), &job.way.name()])
        .args([binary, base])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > PATIENCE {
            // What is beneath it ends with its pipes, or is left to be seen.
            for (pid, _) in seals::descendants(child.id()) {
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            _ = child.kill();
            _ = child.wait();
            bail!("it is not over after {} s", PATIENCE.as_secs());
        }
        sleep(Duration::from_millis(4));
    }
    let mut text = String::new();
    child.stdout.take().context("no pipe")?.read_to_string(&mut text)?;
    let value: Value = serde_json::from_str(&text).with_context(|| format!("{text:?}"))?;
    let lines = |name: &str| -> Vec<String> {
        let all = value[name].as_array().into_iter().flatten();
        all.filter_map(|line| line.as_str().map(str::to_owned)).collect()
    };
    Ok(Verdict {
        wrong: lines("wrong"),
        notes: lines("notes"),
        skipped: value["skipped"].as_str().map(str::to_owned),
    })
}

/// Is one play: the words are its case, form, way, binary and folder.
fn one(words: &[String]) -> anyhow::Result<()> {
    let [id, form, way, binary, base] = words else { bail!("not the words of a play") };
    // Whatever loses its parent falls to this process, where the seals look for it.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // Some plays hold more connections than a shell allows.
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum.map(|most| most.min(8192));
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files)?;
    let cases = all_cases()?;
    let case = cases.iter().find(|case| case.id == *id).context("no such case")?;
    let form = forms(case).into_iter().nth(form.parse()?).context("no such form")?;
    let way = Way::called(way).context("no such way")?;
    let verdict = match Play::set(case, &form, way, Path::new(binary), base.into()) {
        Ok(play) => play.go(),
        Err(err) => Verdict { wrong: vec![format!("the harness: {err:#}")], ..Verdict::default() },
    };
    let Verdict { wrong, notes, skipped } = verdict;
    println!("{}", json!({ "wrong": wrong, "notes": notes, "skipped": skipped }));
    Ok(())
}

/// Prints a line a case, and what there is in all; gives back how many are broken.
fn table(wanted: &Wanted, cases: &[Case], verdicts: &Verdicts) -> usize {
    let (mut held, mut broken) = ([0, 0], [0, 0]);
    for (at, case) in cases.iter().enumerate() {
        let own: Vec<_> = verdicts.iter().filter(|((case, _, _), _)| *case == at).collect();
        let wrong: Vec<_> = own.iter().filter(|(_, verdict)| !verdict.wrong.is_empty()).collect();
        let of = usize::from(case.more);
        if own.is_empty() && !wanted.dialects.is_empty() {
            continue;
        }
        let line = if own.is_empty() {
            broken[of] += 1;
            "BROKEN  nobody plays it".to_owned()
        } else if wrong.is_empty() {
            held[of] += 1;
            let skipped = own.iter().find_map(|(_, verdict)| verdict.skipped.as_deref());
            let ways: BTreeSet<&str> = own.iter().map(|((_, _, way), _)| way.as_str()).collect();
            let mut notes: Vec<&str> =
                own.iter().flat_map(|(_, v)| v.notes.iter().map(String::as_str)).collect();
            notes.sort_unstable();
            notes.dedup();
            notes.truncate(3);
            match skipped {
                Some(why) => format!("skipped: {why}"),
                None => format!("held    {}   {}", brief(&ways), notes.join("; ")),
            }
        } else {
            broken[of] += 1;
            let forms = forms(case);
            let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for ((_, form, way), verdict) in &wrong {
                let label = forms.get(*form).map_or("", |form| form.label.as_str());
                groups.entry(label).or_default().insert(way);
                _ = verdict;
            }
            let ((_, _, way), first) = wrong[0];
            let groups: Vec<String> = groups
                .into_iter()
                .map(|(label, ways)| format!("{label}[{}]", brief(&ways)))
                .collect();
            let said: String = first.wrong.join("; ").chars().take(400).collect();
            format!(
                "BROKEN  {} of {} plays; {way}: {said}  ({})",
                wrong.len(),
                own.len(),
                groups.join("; ")
            )
        };
        println!("{:<5}{line}", case.id);
        if !wrong.is_empty() {
            println!("       {}", case.title);
        }
    }
    println!("{} held, {} broken", held[0], broken[0]);
    if held[1] + broken[1] > 0 {
        println!("more: {} held, {} broken", held[1], broken[1]);
    }
    broken[0] + broken[1]
}

/// The ways, by dialect.
fn brief(ways: &BTreeSet<&str>) -> String {
    let mut dialects: Vec<(&str, Vec<&str>)> = Vec::new();
    for (dialect, over) in ways.iter().filter_map(|way| way.split_once(' ')) {
        match dialects.iter_mut().find(|(known, _)| *known == dialect) {
            Some((_, overs)) => overs.push(over),
            None => dialects.push((dialect, vec![over])),
        }
    }
    let said = dialects.iter().map(|(dialect, overs)| format!("{dialect} {}", overs.join(" ")));
    said.collect::<Vec<_>>().join(", ")
}

/// Says of a way whether it is a line, a request or a frame.
impl Way {
    fn is(self, over: Over) -> bool {
        self.over == over
    }
}
