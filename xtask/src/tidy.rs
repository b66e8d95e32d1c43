//! The rules no compiler knows: which crate may see which, whose licences we take, how files read.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::shell::{cargo, checkout, output};

/// The arrows of ARCHITECTURE.md: which of our crates each may depend on, and no other.
const ARROWS: [(&str, &[&str]); 11] = [
    ("toolgate-contract", &[]),
    ("toolgate-transports", &["toolgate-contract"]),
    ("toolgate-dialects", &["toolgate-contract"]),
    ("toolgate-host", &["toolgate-contract"]),
    ("toolgate-world", &["toolgate-contract"]),
    ("toolgate-chunks", &[]),
    ("toolgate-embed", &[]),
    ("toolgate-search", &["toolgate-chunks"]),
    ("toolgate-upstream", &["toolgate-contract", "toolgate-dialects"]),
    (
        "toolgate-toolsets",
        &[
            "toolgate-contract",
            "toolgate-world",
            "toolgate-search",
            "toolgate-chunks",
            "toolgate-embed",
        ],
    ),
    (
        "toolgate",
        &[
            "toolgate-contract",
            "toolgate-transports",
            "toolgate-dialects",
            "toolgate-host",
            "toolgate-world",
            "toolgate-toolsets",
            "toolgate-upstream",
        ],
    ),
];

/// What the pure crates must not depend on: each would let them do IO.
const PURE: [&str; 2] = ["toolgate-contract", "toolgate-dialects"];
const IMPURE: [&str; 6] = ["tokio", "hyper", "rustix", "axum", "reqwest", "tempfile"];

/// Longer than this, a file is more than a person holds in mind.
const FILE_LINES_MAX: usize = 600;

pub(crate) fn check() -> anyhow::Result<()> {
    let metadata: Value = serde_json::from_str(&output(
        &cargo(),
        &[
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--all-features",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ],
    )?)?;
    let mut wrong = Vec::new();
    wrong.extend(arrows(&metadata));
    wrong.extend(licences(&metadata)?);
    wrong.extend(files()?);
    wrong.extend(crate::rooms::check()?);
    wrong.extend(crate::architecture::check()?);
    wrong.extend(readability()?);
    wrong.extend(what_cargo_run_runs(&metadata));
    if !wrong.is_empty() {
        bail!("tidy found:\n  {}", wrong.join("\n  "));
    }
    eprintln!("tidy: dependencies, modules, licenses, files and names are in order");
    Ok(())
}

fn arrows(metadata: &Value) -> Vec<String> {
    let allowed: BTreeMap<_, _> = ARROWS.into_iter().collect();
    let mut wrong = Vec::new();
    for package in ours(metadata) {
        let name = package["name"].as_str().unwrap_or_default();
        let dependencies: BTreeSet<_> = package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str())
            .collect();
        if let Some(allowed) = allowed.get(name) {
            let stray =
                dependencies.iter().filter(|d| d.starts_with("toolgate") && !allowed.contains(*d));
            wrong.extend(
                stray.map(|d| format!("`{name}` must not depend on `{d}` (ARCHITECTURE.md)")),
            );
        }
        if PURE.contains(&name) {
            let impure = dependencies.iter().filter(|d| IMPURE.contains(*d));
            wrong.extend(impure.map(|d| format!("`{name}` is pure and must not use `{d}`")));
        }
    }
    wrong
}

fn ours(metadata: &Value) -> impl Iterator<Item = &Value> {
    let all = metadata["packages"].as_array().into_iter().flatten();
    all.filter(|package| package["source"].is_null())
}

/// `cargo run` at the top is how a newcomer starts: it must mean toolgate itself.
fn what_cargo_run_runs(metadata: &Value) -> Option<String> {
    let all = metadata["workspace_default_members"].as_array();
    let default: Vec<_> = all.into_iter().flatten().filter_map(Value::as_str).collect();
    let right = matches!(default[..], [only] if only.contains("crates/server"));
    (!right).then(|| {
        format!("`cargo run` runs {default:?}, not crates/server (Cargo.toml, default-members)")
    })
}

/// Dependencies whose licence `deny.toml` does not allow.
fn licences(metadata: &Value) -> anyhow::Result<Vec<String>> {
    let deny: toml::Table = std::fs::read_to_string(checkout().join("deny.toml"))?.parse()?;
    let allowed = deny["licenses"]["allow"].as_array().context("deny.toml allows no licences")?;
    let allowed: BTreeSet<_> = allowed.iter().filter_map(|licence| licence.as_str()).collect();
    let exceptions = deny["licenses"]["exceptions"].as_array().context("no list of exceptions")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let stray = packages.filter_map(|package| {
        let name = package["name"].as_str()?;
        let excepted = exceptions.iter().filter(|it| it["crate"].as_str() == Some(name));
        let excepted = excepted.flat_map(|it| it["allow"].as_array()).flatten();
        let allowed: BTreeSet<_> =
            excepted.filter_map(|it| it.as_str()).chain(allowed.iter().copied()).collect();
        let licence = package["license"].as_str().unwrap_or("none");
        (!permits(licence, &allowed))
            .then(|| format!("`{name}` is under `{licence}`, which deny.toml does not allow"))
    });
    Ok(stray.collect())
}

/// Whether some choice that the SPDX expression leaves is allowed whole.
fn permits(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    any_of(&mut spaced.split_whitespace().peekable(), allowed)
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut some = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        some |= all_of(words, allowed);
    }
    some
}

fn all_of(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut every = licence(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        every &= licence(words, allowed);
    }
    every
}

fn licence(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let holds = any_of(words, allowed);
        return words.next_if_eq(&")").is_some() && holds;
    }
    let Some(name) = words.next() else { return false };
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => allowed.contains(format!("{name} WITH {exception}").as_str()),
        None => allowed.contains(name),
    }
}

/// Returns a line for each figure of names, comments and guides that misses its limit.
fn readability() -> anyhow::Result<Vec<String>> {
    let script = checkout().join("xtask/readability.py");
    let done = std::process::Command::new("python3")
        .arg(&script)
        .arg(checkout())
        .arg("--check")
        .output()
        .context("python3, which runs xtask/readability.py")?;
    let text = String::from_utf8_lossy(&done.stdout);
    let missed: Vec<_> = text.lines().filter(|line| line.starts_with("MISSED")).collect();
    if missed.is_empty() && !done.status.success() {
        bail!("{}: {}", script.display(), String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(missed.into_iter().map(|line| format!("xtask/readability.py: {line}")).collect())
}

/// Files that are too long, or that hold what a file of ours does not.
fn files() -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for name in output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?.lines()
    {
        // Inputs of fuzzing are as they were found.
        if name.starts_with("fuzz/corpus/") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(checkout().join(name)) else { continue };
        let lines = text.lines().count();
        if name.ends_with(".rs") {
            if lines > FILE_LINES_MAX {
                wrong.push(format!("{name} has {lines} lines; the limit is {FILE_LINES_MAX}"));
            }
            if !text.starts_with("//!") {
                wrong.push(format!("{name} does not begin with a `//!` sentence"));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            wrong.push(format!("{name} does not end in a line break"));
        }
    }
    Ok(wrong)
}
