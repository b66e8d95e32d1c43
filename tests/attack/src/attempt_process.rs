//! Runs each attempt in a process of its own, which adopts every process that the server leaves.

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

/// The first argument of a process that runs one attempt.
pub(super) const ATTEMPT_COMMAND: &str = "__attempt";
/// The time limit of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(150);
/// The maximum number of open files of an attempt. Some attempts need more connections than the
/// default limit of a shell allows.
const OPEN_FILES: u64 = 8192;

/// Programs and folder that all attempts of a run use.
#[derive(Debug)]
pub(super) struct AttackRunEnvironment {
    /// Path of the program that runs attempts.
    pub(super) attack: PathBuf,
    /// Path of the server program under attack.
    pub(super) toolgate: PathBuf,
    /// The folder that contains the folders of all attempts.
    pub(super) base: PathBuf,
    /// True to keep the folders of attempts.
    pub(super) keep: bool,
    pub(super) length: AttackAttemptLength,
}

/// The length of attempts that repeat a call, for example to win a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttackAttemptLength {
    /// Length with all repetitions, as in `cargo xtask attack`.
    Full,
    /// Length with a quarter of the calls, as in a test.
    Short,
}

impl AttackAttemptLength {
    fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Short => "short",
        }
    }

    /// Returns the number of repetitions of an attempt of this length, if a full attempt has `full`
    /// of them.
    pub(super) fn repetitions(self, full: usize) -> usize {
        match self {
            Self::Full => full,
            Self::Short => full / 4,
        }
    }
}

impl AttackRunEnvironment {
    /// Returns an environment for full attempts against the server `toolgate`, with a new folder of
    /// this process.
    pub(super) fn new(attack: PathBuf, toolgate: PathBuf, keep: bool) -> anyhow::Result<Self> {
        let base = std::env::temp_dir().join(format!("toolgate-attack-{}", std::process::id()));
        std::fs::create_dir_all(&base).with_context(|| base.display().to_string())?;
        Ok(Self { attack, toolgate, base, keep, length: AttackAttemptLength::Full })
    }

    /// Removes the folders of the run.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        _ = std::fs::remove_dir_all(self.base_in_memory());
        std::fs::remove_dir_all(&self.base).context("cannot remove the folder of the run")
    }

    /// Runs one attempt in a new process. If its only failure is that it took too long, it runs
    /// once more: other work may have delayed it.
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

    /// Returns the folder for the attempts at a case. Cases with many or large files get one in
    /// memory if possible.
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

/// Runs one attempt in this process and prints its verdict. The words are the case, the variant,
/// the route, the length, the server and the folder.
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

/// Allows this process and its children as many open files as attacks need.
pub(super) fn raise_open_files_limit() -> anyhow::Result<()> {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum.map(|most| most.min(OPEN_FILES));
    setrlimit(Resource::Nofile, files)?;
    Ok(())
}
