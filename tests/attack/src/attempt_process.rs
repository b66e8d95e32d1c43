//! Runs each attempt in a separate process, which adopts every process that the server leaves
//! running.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{
    Pid, Resource, Signal, getpid, getrlimit, kill_process, set_child_subreaper, setrlimit,
};
use serde_json::{Value, json};

use super::attempt::{AttackAttempt, AttackAttemptVerdict};
use super::case::AttackCase;
use super::dialects::DialectOverTransport;
use super::invariants::descendants;
use super::oracle::LATE;
use super::plan::{PlannedAttackAttempt, all_cases, variants};

/// First command-line argument of a process that runs one attempt.
pub(super) const ATTEMPT_COMMAND: &str = "__attempt";
/// Time limit of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(150);
/// Number of files that an attempt may have open. Some attempts open more connections than the
/// default limit of a shell allows.
const OPEN_FILES: u64 = 8192;

/// Programs and folders that all attempts of a run share.
#[derive(Debug)]
pub(super) struct AttackRunEnvironment {
    /// Path of this attack program, which runs each attempt as a new process.
    pub(super) attack: PathBuf,
    /// Path of the toolgate executable under attack.
    pub(super) toolgate: PathBuf,
    /// Folder in which each attempt gets a subfolder.
    pub(super) base: PathBuf,
    /// True to keep the folders of attempts after the run.
    pub(super) keep: bool,
    pub(super) length: AttackAttemptLength,
}

/// Length of attempts that repeat a call, for example to win a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttackAttemptLength {
    /// All repetitions, as in `cargo xtask attack`.
    Full,
    /// A quarter of the repetitions, as in tests.
    Short,
}

impl AttackAttemptLength {
    fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Short => "short",
        }
    }

    /// Returns the number of repetitions for this length, if a full attempt repeats `full` times.
    pub(super) fn repetitions(self, full: usize) -> usize {
        match self {
            Self::Full => full,
            Self::Short => full / 4,
        }
    }
}

impl AttackRunEnvironment {
    /// Returns an environment for full attempts against the executable `toolgate`, with a new
    /// folder for this run.
    pub(super) fn new(attack: PathBuf, toolgate: PathBuf, keep: bool) -> anyhow::Result<Self> {
        let base = std::env::temp_dir().join(format!("toolgate-attack-{}", std::process::id()));
        std::fs::create_dir_all(&base).with_context(|| base.display().to_string())?;
        Ok(Self { attack, toolgate, base, keep, length: AttackAttemptLength::Full })
    }

    /// Deletes the folders of the run.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        _ = std::fs::remove_dir_all(self.base_in_memory());
        std::fs::remove_dir_all(&self.base).context("cannot remove the folder of the run")
    }

    /// Runs one attempt in a new process. If the only failure is a missed time limit, runs the
    /// attempt once more, because a busy machine may have delayed it.
    pub(super) fn run_attempt(
        &self,
        case: &AttackCase,
        attempt: PlannedAttackAttempt,
    ) -> AttackAttemptVerdict {
        let route = attempt.route.name().replace(' ', "-");
        let folder = self.base_for(case).join(format!("{}-{}-{route}", case.id, attempt.variant));
        let run = || {
            let verdict = self.run_process(case, attempt, &folder);
            if !self.keep {
                _ = std::fs::remove_dir_all(&folder);
            }
            verdict.unwrap_or_else(|err| AttackAttemptVerdict::harness_failure(&err))
        };
        let first = run();
        let is_late =
            !first.failures.is_empty() && first.failures.iter().all(|it| it.starts_with(LATE));
        if !is_late || self.keep {
            return first;
        }
        let mut second = run();
        second.notes.push(format!("at first, {}", first.failures.join(", ")));
        second
    }

    fn run_process(
        &self,
        case: &AttackCase,
        attempt: PlannedAttackAttempt,
        folder: &Path,
    ) -> anyhow::Result<AttackAttemptVerdict> {
        let mut child = Command::new(&self.attack)
            .args([ATTEMPT_COMMAND, &case.id])
            .args([&attempt.variant.to_string(), &attempt.route.name(), self.length.name()])
            .args([&self.toolgate, folder])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let started = Instant::now();
        while child.try_wait()?.is_none() {
            if started.elapsed() > ATTEMPT_TIMEOUT {
                for (pid, _) in descendants(child.id()) {
                    if let Some(pid) = Pid::from_raw(pid) {
                        _ = kill_process(pid, Signal::KILL);
                    }
                }
                _ = child.kill();
                _ = child.wait();
                bail!("the attempt did not end within {} s", ATTEMPT_TIMEOUT.as_secs());
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
        Ok(AttackAttemptVerdict {
            failures: lines("failures"),
            notes: lines("notes"),
            skip_reason: value["skip_reason"].as_str().map(str::to_owned),
        })
    }

    /// Returns the parent folder for attempts at `case`. For cases with many or large files,
    /// returns a folder in memory if possible.
    fn base_for(&self, case: &AttackCase) -> PathBuf {
        let in_memory = self.base_in_memory();
        if matches!(case.id.as_str(), "R03" | "R12") && std::fs::create_dir_all(&in_memory).is_ok()
        {
            return in_memory;
        }
        self.base.clone()
    }

    fn base_in_memory(&self) -> PathBuf {
        Path::new("/dev/shm").join(self.base.file_name().unwrap_or_default())
    }
}

/// Runs one attempt in the current process and prints its verdict as JSON. `words` are the case,
/// variant, route, length, server and folder.
pub(super) fn run_in_this_process(words: &[String]) -> anyhow::Result<()> {
    let [id, variant, route, length, binary, folder] = words else {
        bail!("`{ATTEMPT_COMMAND}` needs six arguments")
    };
    // Orphans of the server become children of this process, where the invariants look for them.
    set_child_subreaper(Some(getpid()))?;
    raise_open_files_limit()?;
    let cases = all_cases()?;
    let case = cases.iter().find(|case| case.id == *id).context("unknown case")?;
    let variant = variants(case).into_iter().nth(variant.parse()?).context("unknown variant")?;
    let route = DialectOverTransport::from_name(route).context("unknown route")?;
    let length = match length.as_str() {
        "short" => AttackAttemptLength::Short,
        _ => AttackAttemptLength::Full,
    };
    let verdict = match AttackAttempt::new(case, &variant, route, Path::new(binary), folder.into())
    {
        Ok(attempt) => AttackAttempt { length, ..attempt }.run(),
        Err(err) => AttackAttemptVerdict::harness_failure(&err),
    };
    let AttackAttemptVerdict { failures, notes, skip_reason } = verdict;
    println!("{}", json!({ "failures": failures, "notes": notes, "skip_reason": skip_reason }));
    Ok(())
}

/// Raises the limit of open files for this process and its children to the number that attacks
/// need.
pub(super) fn raise_open_files_limit() -> anyhow::Result<()> {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum.map(|most| most.min(OPEN_FILES));
    setrlimit(Resource::Nofile, files)?;
    Ok(())
}
