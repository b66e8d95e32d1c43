//! Fuzzes every parser of untrusted bytes for some seconds, starting with the inputs kept with the
//! code.
//!
//! Each crate lists its targets in `fuzzing::TARGETS`; `fuzz/src/fuzz.rs` runs them. The crates of
//! this workspace are built with coverage for libFuzzer, by flags that a stable compiler accepts.
//! With `RUSTFLAGS`, all dependencies would get the flags, too, which is slow and mostly measures
//! foreign code. This program therefore runs as Cargo's `rustc`, and adds the flags to the listed
//! crates only.

mod corpus;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::setup;
use crate::shell::{cargo, checkout, command, copy_of_this};

/// Environment variable that makes this program act as `rustc`.
const STANDS_IN: &str = "XTASK_STANDS_IN_FOR_RUSTC";

/// Packages that are built with coverage, each with its optimization level: those of this
/// workspace, and the parsers of other projects on which they rely. The level differs from that of
/// the tests, so that Cargo keeps both builds. All other packages are shared with the tests.
const COVERED: [(&str, u8); 13] = [
    ("toolgate-service", 1),
    ("toolgate-chunks", 2),
    ("toolgate-contract", 1),
    ("toolgate-transports", 1),
    ("toolgate-upstream", 1),
    ("toolgate-dialects", 1),
    ("toolgate-host", 1),
    ("toolgate-net", 1),
    ("toolgate-toolsets", 1),
    ("toolgate-world", 1),
    ("cel", 2),
    ("globset", 2),
    ("httparse", 2),
];

/// Compiler flags for the coverage that libFuzzer reads.
const COVERAGE_FLAGS: [&str; 7] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg",
    "fuzzing",
];

/// Default duration of the fuzzing of one target, in seconds.
const DEFAULT_SECONDS: u64 = 8;

/// Command-line options of `cargo xtask fuzz`.
struct FuzzOptions {
    targets: Vec<String>,
    seconds: u64,
    /// True to add inputs that reach new code to those kept with the code.
    merge: bool,
    /// Path of the only input to run. If it is `None`, targets are fuzzed.
    again: Option<String>,
}

/// Runs the command `cargo xtask fuzz` with the arguments `args`.
pub(crate) fn run_command(args: &[String]) -> anyhow::Result<()> {
    let mut options =
        FuzzOptions { targets: Vec::new(), seconds: DEFAULT_SECONDS, merge: false, again: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("`{arg}` needs a value"));
        match arg.as_str() {
            "--seconds" => {
                options.seconds = value()?.parse().context("--seconds needs a number")?;
            }
            "--again" => options.again = Some(value()?.clone()),
            "--merge" => options.merge = true,
            flag if flag.starts_with('-') => {
                bail!("unknown option `{flag}`; `cargo xtask` lists the options")
            }
            target => options.targets.push(target.to_owned()),
        }
    }
    fuzz(&options)
}

/// Builds the fuzz targets and runs the selected ones. Fails if an input makes a target fail.
fn fuzz(options: &FuzzOptions) -> anyhow::Result<()> {
    let program = build()?;
    let all = targets(&program)?;
    if let Some(unknown) = options.targets.iter().find(|target| !all.contains(target)) {
        bail!("unknown target `{unknown}`; the targets are {}", all.join(", "));
    }
    let targets = if options.targets.is_empty() { &all } else { &options.targets };
    if let Some(input) = &options.again {
        let [target] = &targets[..] else { bail!("name the one target of `{input}`") };
        return run_input(&program, target, input);
    }
    let mut findings = Vec::new();
    for target in targets {
        if let Some(finding) = run_target(&program, target, options.seconds)? {
            findings.push(finding);
        }
        if options.merge {
            corpus::merge(&program, target)?;
        }
    }
    if !findings.is_empty() {
        bail!("fuzzing found:\n  {}", findings.join("\n  "));
    }
    Ok(())
}

/// Builds the fuzz targets, and returns the path of the program that runs them.
fn build() -> anyhow::Result<PathBuf> {
    setup::cpp_compiler()?;
    fs::create_dir_all(home())?;
    let stand_in = home().join("rustc");
    copy_of_this(&stand_in)?;
    eprintln!("\n==> cargo build --test fuzz, with coverage");
    let started = Instant::now();
    let mut build = command(&cargo());
    // The whole workspace, and as a test: a build of this package alone would have other features,
    // and so would all its dependencies.
    build.args(["build", "--test", "fuzz", "--workspace", "--locked", "--profile", "test"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    for (package, level) in COVERED {
        build.args(["--config", &format!("profile.test.package.{package}.opt-level={level}")]);
    }
    build.env("RUSTC_WRAPPER", stand_in).env(STANDS_IN, "1").current_dir(checkout());
    let output = build.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cannot build the targets: {}", output.status);
    }
    eprintln!("    {:.1} s", started.elapsed().as_secs_f64());
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let messages =
        messages.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let programs = messages.filter(|message| message["target"]["name"] == "fuzz");
    let mut programs = programs.filter_map(|message| Some(message["executable"].as_str()?.into()));
    programs.next().context("cargo did not report the program of the targets")
}

/// Acts as `rustc` with the coverage flags, if Cargo started this program for that. Returns the
/// exit code, or `None` otherwise.
pub(crate) fn stand_in(args: &[String]) -> Option<ExitCode> {
    std::env::var_os(STANDS_IN)?;
    let (rustc, rustc_args) = args.split_first()?;
    let crate_name = rustc_args.iter().skip_while(|arg| *arg != "--crate-name").nth(1);
    let is_covered = crate_name.is_some_and(|name| {
        name == "fuzz" || COVERED.iter().any(|(package, _)| package.replace('-', "_") == *name)
    });
    let mut command = Command::new(rustc);
    command.args(rustc_args).args(COVERAGE_FLAGS.iter().filter(|_| is_covered));
    let code = command.status().ok().and_then(|status| status.code());
    Some(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Returns the folder for the build, the logs and the new inputs of fuzzing.
fn home() -> PathBuf {
    checkout().join("target/fuzz")
}

/// Returns the names of the fuzz targets in `program`.
fn targets(program: &Path) -> anyhow::Result<Vec<String>> {
    let listed = Command::new(program).env("FUZZ_TARGET", "?").output()?;
    Ok(String::from_utf8(listed.stdout)?.lines().map(str::to_owned).collect())
}

/// Fuzzes `target` for `seconds` and prints one line. Returns a description of the failure if an
/// input makes the target fail.
fn run_target(program: &Path, target: &str, seconds: u64) -> anyhow::Result<Option<String>> {
    let kept_inputs = corpus::kept_folder(target);
    let new_inputs = corpus::new_folder(target);
    let findings = checkout().join("fuzz/found").join(target);
    for folder in [&kept_inputs, &new_inputs, &findings] {
        fs::create_dir_all(folder)?;
    }
    let log = home().join(format!("{target}.log"));
    let started = Instant::now();
    let mut command = Command::new(program);
    command
        .env("FUZZ_TARGET", target)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .args(["-timeout=20", "-rss_limit_mb=1024", "-max_len=4096", "-print_final_stats=1"])
        // New inputs go to the first.
        .args([&new_inputs, &kept_inputs])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?);
    let dictionary = checkout().join(format!("fuzz/words/{target}"));
    if dictionary.exists() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    let status = command.status().context("cannot run the targets")?;
    let text = fs::read(&log)?;
    let text = String::from_utf8_lossy(&text);
    let seconds_taken = started.elapsed().as_secs();
    let stats = FuzzRunStats::parse(&text);
    let verdict = if status.success() { "nothing found" } else { "FOUND" };
    eprintln!(
        "{target:20} {:>9} runs in {seconds_taken} s, coverage {} (from {}), {} inputs, {verdict}",
        stats.runs, stats.coverage, stats.coverage_before, stats.inputs,
    );
    if status.success() {
        return Ok(None);
    }
    let input = text.lines().find_map(|line| line.split_once("Test unit written to "));
    let input = input.map_or("an input that was not saved", |(_, path)| path);
    let panic = text.lines().skip_while(|line| !line.contains("panicked at")).take(3);
    let panic: Vec<_> = panic.collect();
    Ok(Some(format!(
        "{target}: {}\n    cargo xtask fuzz {target} --again {input}\n    full output: {}",
        panic.join(" "),
        log.display(),
    )))
}

/// Runs `target` on the file `input`, and prints the output. Fails if the target does.
fn run_input(program: &Path, target: &str, input: &str) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    let status = command.env("FUZZ_TARGET", target).arg("-timeout=20").arg(input).status()?;
    if !status.success() {
        bail!("`{target}` fails on {input}");
    }
    Ok(())
}

/// Statistics that libFuzzer prints after a run.
#[derive(Default)]
struct FuzzRunStats {
    runs: u64,
    coverage_before: u64,
    coverage: u64,
    inputs: u64,
}

impl FuzzRunStats {
    fn parse(log: &str) -> Self {
        let mut stats = Self::default();
        for line in log.lines() {
            let number_after = |name: &str| {
                let rest = line.split_once(name)?.1.trim_start();
                rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
            };
            if line.starts_with('#') {
                stats.runs = number_after("#").unwrap_or(stats.runs);
                stats.coverage = number_after(" cov: ").unwrap_or(stats.coverage);
                stats.inputs = number_after(" corp: ").unwrap_or(stats.inputs);
                if line.contains("INITED") {
                    stats.coverage_before = stats.coverage;
                }
            }
            stats.runs = number_after("stat::number_of_executed_units:").unwrap_or(stats.runs);
        }
        stats
    }
}
