//! A play as a process of its own, to which whatever a server leaves behind falls.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::case::Case;
use super::jobs::{Job, all_cases, forms};
use super::oracle::LATE;
use super::play::{Play, Verdict};
use super::spoken::Way;
use super::{PLAY, seals};

/// How long one play may take.
const PATIENCE: Duration = Duration::from_secs(150);

/// The programs of a run.
#[derive(Debug)]
pub(super) struct Programs {
    /// The program that plays a case: this one.
    pub(super) attack: PathBuf,
    /// The server that is attacked.
    pub(super) toolgate: PathBuf,
}

/// The folder in memory that belongs to the folder `base` of a run.
fn in_memory(base: &Path) -> PathBuf {
    Path::new("/dev/shm").join(base.file_name().unwrap_or_default())
}

/// Removes the folders of a run.
pub(super) fn remove(base: &Path) -> anyhow::Result<()> {
    _ = std::fs::remove_dir_all(in_memory(base));
    std::fs::remove_dir_all(base).context("what was made cannot be removed")
}

/// Where a case has room: what makes many or large files makes them in memory, where that may be.
fn room(case: &Case, base: &Path) -> PathBuf {
    let memory = in_memory(base);
    if matches!(case.id.as_str(), "R03" | "R12") && std::fs::create_dir_all(&memory).is_ok() {
        return memory;
    }
    base.to_owned()
}

/// Plays one in a process of its own.
pub(super) fn played(
    case: &Case,
    job: &Job,
    programs: &Programs,
    base: &Path,
    keep: bool,
) -> Verdict {
    let name = format!("{}-{}-{}", case.id, job.form, job.way.name().replace(' ', "-"));
    let base = room(case, base).join(name);
    let play = || {
        let verdict = in_process(programs, case, job, &base);
        if !keep {
            _ = std::fs::remove_dir_all(&base);
        }
        verdict.unwrap_or_else(|err| Verdict {
            wrong: vec![format!("the harness: {err:#}")],
            ..Verdict::default()
        })
    };
    let verdict = play();
    // One may be late where others are played beside it. What is slow is so again.
    let is_late = !verdict.wrong.is_empty() && verdict.wrong.iter().all(|it| it.starts_with(LATE));
    if !is_late || keep {
        return verdict;
    }
    let mut again = play();
    again.notes.push(format!("once {}", verdict.wrong.join(", ")));
    again
}

fn in_process(programs: &Programs, case: &Case, job: &Job, base: &Path) -> anyhow::Result<Verdict> {
    let mut child = Command::new(&programs.attack)
        .args([PLAY, &case.id, &job.form.to_string(), &job.way.name()])
        .args([&programs.toolgate, base])
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
pub(super) fn one(words: &[String]) -> anyhow::Result<()> {
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
