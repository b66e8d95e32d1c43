//! Fuzzing: every parser of foreign bytes, for a while, from the kept corpus on.
//!
//! Each crate lists its targets in `fuzzing::TARGETS`; `fuzz/src/fuzz.rs` runs them. Our crates are built with the coverage that libFuzzer
//! reads, by flags that a stable compiler takes: this program stands in for `rustc` and adds them,
//! since Cargo's own variables add them to all crates, which is slow and sees mostly what is not
//! ours.

mod corpus;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::setup;
use crate::shell::{cargo, checkout, command, copy_of_this};

/// What says that this program stands in for `rustc`.
const STANDS_IN: &str = "XTASK_STANDS_IN_FOR_RUSTC";

/// The packages whose coverage counts: ours, and the parsers of others that we rely on. They are
/// optimised otherwise than for the tests, so that Cargo takes neither for the other; all the rest
/// is as the tests have built it.
const SEEN: [(&str, u8); 11] = [
    ("toolgate", 1),
    ("toolgate-contract", 1),
    ("toolgate-transports", 1),
    ("toolgate-upstream", 1),
    ("toolgate-dialects", 1),
    ("toolgate-host", 1),
    ("toolgate-toolsets", 1),
    ("toolgate-world", 1),
    ("cel", 2),
    ("globset", 2),
    ("httparse", 2),
];

/// What libFuzzer needs to see where an input leads.
const COVERAGE: [&str; 7] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg",
    "fuzzing",
];

/// How long a target runs unless told.
const SECONDS: u64 = 8;

/// What is to be fuzzed.
struct FuzzOptions {
    targets: Vec<String>,
    seconds: u64,
    /// Whether what is new goes into the kept corpus.
    merge: bool,
    /// One input to be run, and nothing else.
    again: Option<String>,
}

pub(crate) fn from_words(words: &[String]) -> anyhow::Result<()> {
    let mut wanted =
        FuzzOptions { targets: Vec::new(), seconds: SECONDS, merge: false, again: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("`{word}` needs a value"));
        match word.as_str() {
            "--seconds" => wanted.seconds = value()?.parse().context("--seconds needs a number")?,
            "--again" => wanted.again = Some(value()?.clone()),
            "--merge" => wanted.merge = true,
            flag if flag.starts_with('-') => {
                bail!("unknown option `{flag}`; `cargo xtask` lists the options")
            }
            target => wanted.targets.push(target.to_owned()),
        }
    }
    fuzz(&wanted)
}

/// Builds the targets and runs those that are wanted; fails if anything is found.
fn fuzz(wanted: &FuzzOptions) -> anyhow::Result<()> {
    let program = build()?;
    let all = targets(&program)?;
    if let Some(unknown) = wanted.targets.iter().find(|target| !all.contains(target)) {
        bail!("unknown target `{unknown}`; the targets are {}", all.join(", "));
    }
    let targets = if wanted.targets.is_empty() { &all } else { &wanted.targets };
    if let Some(input) = &wanted.again {
        let [target] = &targets[..] else { bail!("name the one target of `{input}`") };
        return again(&program, target, input);
    }
    let mut found = Vec::new();
    for target in targets {
        if let Some(finding) = one(&program, target, wanted.seconds)? {
            found.push(finding);
        }
        if wanted.merge {
            corpus::take_in(&program, target)?;
        }
    }
    if !found.is_empty() {
        bail!("fuzzing found:\n  {}", found.join("\n  "));
    }
    Ok(())
}

/// Builds the targets; the program that runs them.
fn build() -> anyhow::Result<PathBuf> {
    setup::cpp_compiler()?;
    fs::create_dir_all(home())?;
    let stand_in = home().join("rustc");
    copy_of_this(&stand_in)?;
    eprintln!("\n==> cargo build --test fuzz, with coverage");
    let begun = Instant::now();
    let mut build = command(&cargo());
    // Of all packages, and as a test: by itself it is built with other features, and so is all
    // that it needs.
    build.args(["build", "--test", "fuzz", "--workspace", "--locked", "--profile", "test"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    for (package, level) in SEEN {
        build.args(["--config", &format!("profile.test.package.{package}.opt-level={level}")]);
    }
    build.env("RUSTC_WRAPPER", stand_in).env(STANDS_IN, "1").current_dir(checkout());
    let built = build.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !built.status.success() {
        bail!("cannot build the targets: {}", built.status);
    }
    eprintln!("    {:.1} s", begun.elapsed().as_secs_f64());
    let messages = built.stdout.split(|byte| *byte == b'\n');
    let messages =
        messages.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let programs = messages.filter(|message| message["target"]["name"] == "fuzz");
    let mut programs = programs.filter_map(|message| Some(message["executable"].as_str()?.into()));
    programs.next().context("cargo did not report the program of the targets")
}

/// Whether this program was started in the place of `rustc`; then it is that, and this its end.
pub(crate) fn stand_in(words: &[String]) -> Option<ExitCode> {
    std::env::var_os(STANDS_IN)?;
    let (rustc, args) = words.split_first()?;
    let named = args.iter().skip_while(|word| *word != "--crate-name").nth(1);
    let seen = named.is_some_and(|name| {
        name == "fuzz" || SEEN.iter().any(|(package, _)| package.replace('-', "_") == *name)
    });
    let mut command = Command::new(rustc);
    command.args(args).args(COVERAGE.iter().filter(|_| seen));
    let code = command.status().ok().and_then(|status| status.code());
    Some(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Where what is found on the way is kept.
fn home() -> PathBuf {
    checkout().join("target/fuzz")
}

fn targets(program: &Path) -> anyhow::Result<Vec<String>> {
    let listed = Command::new(program).env("FUZZ_TARGET", "?").output()?;
    Ok(String::from_utf8(listed.stdout)?.lines().map(str::to_owned).collect())
}

/// Runs one target and prints a line about it; the finding, if there is one.
fn one(program: &Path, target: &str, seconds: u64) -> anyhow::Result<Option<String>> {
    let kept = corpus::kept(target);
    let fresh = corpus::fresh(target);
    let found = checkout().join("fuzz/found").join(target);
    for folder in [&kept, &fresh, &found] {
        fs::create_dir_all(folder)?;
    }
    let log = home().join(format!("{target}.log"));
    let begun = Instant::now();
    let mut command = Command::new(program);
    command
        .env("FUZZ_TARGET", target)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args(["-timeout=20", "-rss_limit_mb=1024", "-max_len=4096", "-print_final_stats=1"])
        // New inputs go to the first.
        .args([&fresh, &kept])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?);
    let words = checkout().join(format!("fuzz/words/{target}"));
    if words.exists() {
        command.arg(format!("-dict={}", words.display()));
    }
    let status = command.status().context("cannot run the targets")?;
    let text = fs::read(&log)?;
    let text = String::from_utf8_lossy(&text);
    let took = begun.elapsed().as_secs();
    let stats = Told::of(&text);
    let end = if status.success() { "nothing found" } else { "FOUND" };
    eprintln!(
        "{target:20} {:>9} runs in {took} s, coverage {} (from {}), {} inputs, {end}",
        stats.runs, stats.coverage, stats.coverage_before, stats.inputs,
    );
    if status.success() {
        return Ok(None);
    }
    let input = text.lines().find_map(|line| line.split_once("Test unit written to "));
    let input = input.map_or("an input that was not saved", |(_, path)| path);
    let why = text.lines().skip_while(|line| !line.contains("panicked at")).take(3);
    let why: Vec<_> = why.collect();
    Ok(Some(format!(
        "{target}: {}\n    cargo xtask fuzz {target} --again {input}\n    full output: {}",
        why.join(" "),
        log.display(),
    )))
}

/// Runs one input, all that it says shown.
fn again(program: &Path, target: &str, input: &str) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    let status = command.env("FUZZ_TARGET", target).arg("-timeout=20").arg(input).status()?;
    if !status.success() {
        bail!("`{target}` fails on {input}");
    }
    Ok(())
}

/// What libFuzzer says of a run.
#[derive(Default)]
struct Told {
    runs: u64,
    coverage_before: u64,
    coverage: u64,
    inputs: u64,
}

impl Told {
    fn of(log: &str) -> Self {
        let mut stats = Self::default();
        for line in log.lines() {
            let after = |name: &str| {
                let rest = line.split_once(name)?.1.trim_start();
                rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
            };
            if line.starts_with('#') {
                stats.runs = after("#").unwrap_or(stats.runs);
                stats.coverage = after(" cov: ").unwrap_or(stats.coverage);
                stats.inputs = after(" corp: ").unwrap_or(stats.inputs);
                if line.contains("INITED") {
                    stats.coverage_before = stats.coverage;
                }
            }
            stats.runs = after("stat::number_of_executed_units:").unwrap_or(stats.runs);
        }
        stats
    }
}
