//! The attack program: its command-line options, and a run of the attack cases that they select.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread::scope;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use toolgate_test_support::{copy_current_exe, sibling_toolgate};

use super::attempt::AttackAttemptVerdict;
use super::attempt_process::{ATTEMPT_COMMAND, AttackRunEnvironment, run_in_this_process};
use super::case::AttackCase;
use super::dialects::{DialectOverTransport, ROUTES};
use super::offered_tools::OfferedToolNames;
use super::plan::{self, PlannedAttackAttempt, all_cases, variants};
use super::report::AttackCaseOutcome;
use super::resource_run::ResourceRunOptions;

/// Number of attempts that run at once. An attempt waits most of the time.
const PARALLEL_ATTEMPTS: usize = 4;
/// Default duration of the resource attacks, in minutes.
const RESOURCE_MINUTES: f64 = 5.0;

/// Command-line options of the attack program.
#[derive(Debug, Default)]
struct AttackOptions {
    /// Prefixes of the ids of the cases to run. Empty for all cases.
    cases: Vec<String>,
    /// Prefixes of the names of routes to use. Empty for all routes.
    dialects: Vec<String>,
    /// Executable of the server to attack. By default, the `toolgate` beside this program.
    binary: Option<PathBuf>,
    /// True to keep the folders of attempts after the run.
    keep: bool,
    /// True to print a line for each attempt.
    verbose: bool,
    /// True to make resource attacks in random order instead of running attack cases.
    resources: bool,
    /// Duration of the resource attacks, in minutes.
    minutes: Option<f64>,
    /// Seed of the random order of resource attacks. Random by default.
    seed: Option<u64>,
    /// True to ignore the time limits of resource attacks.
    untimed: bool,
}

/// Runs the attack cases that `arguments` select, or resource attacks, and prints their outcomes.
/// If `arguments` name one attempt, runs that attempt in the current process.
///
/// # Errors
///
/// If an argument is invalid, an attack breaks the server, or a folder cannot be written.
pub fn run_program(arguments: &[String]) -> anyhow::Result<()> {
    match arguments {
        [first, rest @ ..] if first == ATTEMPT_COMMAND => run_in_this_process(rest),
        arguments => {
            let options = AttackOptions::parse(arguments)?;
            if options.resources { options.resource_run()?.run() } else { run_selected(&options) }
        }
    }
}

impl AttackOptions {
    fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("`{name}` needs a value"));
            match name.as_str() {
                "--case" => options.cases.push(value()?.clone()),
                "--dialect" => options.dialects.push(value()?.clone()),
                "--bin" => options.binary = Some(value()?.into()),
                "--keep" => options.keep = true,
                "--verbose" => options.verbose = true,
                "--resources" => options.resources = true,
                "--minutes" => {
                    options.minutes = Some(value()?.parse().context("--minutes needs a number")?);
                }
                "--seed" => {
                    options.seed = Some(value()?.parse().context("--seed needs a number")?);
                }
                "--untimed" => options.untimed = true,
                other => bail!(
                    "unknown option `{other}`; the options are --case ID, --dialect NAME, --bin FILE, --keep, --verbose, and --resources with --minutes N, --seed S, --untimed"
                ),
            }
        }
        Ok(options)
    }

    /// Returns the path of the toolgate executable to attack.
    fn server(&self) -> anyhow::Result<PathBuf> {
        match &self.binary {
            Some(binary) => binary.canonicalize().with_context(|| binary.display().to_string()),
            None => sibling_toolgate(&std::env::current_exe()?),
        }
    }

    fn resource_run(&self) -> anyhow::Result<ResourceRunOptions> {
        let minutes = self.minutes.unwrap_or(RESOURCE_MINUTES);
        let duration = Duration::try_from_secs_f64(minutes * 60.0)
            .context("--minutes needs a positive number")?;
        Ok(ResourceRunOptions {
            toolgate: self.server()?,
            duration,
            seed: self.seed,
            is_timed: !self.untimed,
            keep: self.keep,
        })
    }

    fn selected_cases(&self) -> anyhow::Result<Vec<AttackCase>> {
        let mut cases = all_cases()?;
        for id in &self.cases {
            let is_known = cases.iter().any(|case| case.id.starts_with(id.as_str()));
            ensure!(is_known, "unknown case `{id}`");
        }
        if !self.cases.is_empty() {
            cases.retain(|case| self.cases.iter().any(|id| case.id.starts_with(id.as_str())));
        }
        Ok(cases)
    }

    fn selected_routes(&self) -> Vec<DialectOverTransport> {
        let is_selected = |route: &DialectOverTransport| {
            let name = route.name();
            self.dialects.is_empty()
                || self.dialects.iter().any(|start| name.starts_with(start.as_str()))
        };
        ROUTES.into_iter().filter(is_selected).collect()
    }
}

fn run_selected(options: &AttackOptions) -> anyhow::Result<()> {
    let cases = options.selected_cases()?;
    let binary = options.server()?;
    let started = Instant::now();
    let mut environment = AttackRunEnvironment::new(PathBuf::new(), binary, options.keep)?;
    // A build may replace the programs during the run.
    let copied_toolgate = environment.base.join("toolgate");
    std::fs::copy(&environment.toolgate, &copied_toolgate)
        .with_context(|| environment.toolgate.display().to_string())?;
    environment.toolgate = copied_toolgate;
    environment.attack = environment.base.join("attack");
    copy_current_exe(&environment.attack)?;
    let broken = run_cases(options, &cases, &environment);
    if options.keep {
        eprintln!("the folders of all attempts are in {}", environment.base.display());
    } else {
        environment.remove()?;
    }
    eprintln!("{:.0} s", started.elapsed().as_secs_f64());
    let broken = broken?;
    ensure!(broken == 0, "{broken} cases are broken");
    Ok(())
}

/// Runs `cases` and prints the outcomes. Returns the number of cases in which an attack succeeded.
fn run_cases(
    options: &AttackOptions,
    cases: &[AttackCase],
    environment: &AttackRunEnvironment,
) -> anyhow::Result<usize> {
    let routes = options.selected_routes();
    let offered = OfferedToolNames::list(&environment.toolgate, &environment.base)?;
    let mut attempts: Vec<(usize, PlannedAttackAttempt)> = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let of_case = plan::attempts(case, &routes, &offered);
        attempts.extend(of_case.into_iter().map(|attempt| (at, attempt)));
    }
    let total = attempts.len();
    // Slow cases start first, so that nothing waits for them in the end.
    attempts.sort_by_key(|(at, _)| !plan::is_slow(&cases[*at]));
    let queue = Mutex::new(VecDeque::from(attempts));
    let verdicts: Mutex<Vec<_>> = Mutex::new(cases.iter().map(|_| Vec::new()).collect());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    scope(|scope| {
        for _ in 0..PARALLEL_ATTEMPTS {
            scope.spawn(|| {
                while let Some((at, attempt)) = next() {
                    let started = Instant::now();
                    let verdict = environment.run_attempt(&cases[at], attempt);
                    if options.verbose {
                        print_verdict(&cases[at], attempt, &verdict, started.elapsed());
                    }
                    let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
                    verdicts[at].push((attempt, verdict));
                }
            });
        }
    });
    eprintln!("{total} attempts at {} cases", cases.len());
    let verdicts = verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(print_outcomes(options, cases, verdicts))
}

fn print_verdict(
    case: &AttackCase,
    attempt: PlannedAttackAttempt,
    verdict: &AttackAttemptVerdict,
    elapsed: Duration,
) {
    let label = &variants(case)[attempt.variant].label;
    let word = if verdict.failures.is_empty() { "held" } else { "BROKEN" };
    let lines = [&verdict.failures[..], &verdict.notes[..]].concat().join("; ");
    let elapsed = elapsed.as_secs_f64();
    println!("  {} {word} {} {label}: {lines} ({elapsed:.1} s)", case.id, attempt.route.name());
}

/// Prints a line for each case and sums for each file of cases. Returns the number of cases in
/// which an attack succeeded.
fn print_outcomes(
    options: &AttackOptions,
    cases: &[AttackCase],
    verdicts: Vec<Vec<(PlannedAttackAttempt, AttackAttemptVerdict)>>,
) -> usize {
    let mut held = [0, 0];
    let mut broken = [0, 0];
    for (case, mut verdicts) in cases.iter().zip(verdicts) {
        if verdicts.is_empty() && !options.dialects.is_empty() {
            continue;
        }
        verdicts.sort_by_key(|(attempt, _)| (attempt.variant, attempt.route.name()));
        let file = usize::from(case.is_extra);
        match AttackCaseOutcome::new(case, &verdicts) {
            AttackCaseOutcome::Held(text) => {
                held[file] += 1;
                println!("{:<5}held    {text}", case.id);
            }
            AttackCaseOutcome::Skipped(reason) => {
                held[file] += 1;
                println!("{:<5}skipped: {reason}", case.id);
            }
            AttackCaseOutcome::Broken(text) => {
                broken[file] += 1;
                println!("{:<5}BROKEN  {text}\n       {}", case.id, case.title);
            }
        }
    }
    println!("{} held, {} broken", held[0], broken[0]);
    if held[1] + broken[1] > 0 {
        println!("extra: {} held, {} broken", held[1], broken[1]);
    }
    broken[0] + broken[1]
}
