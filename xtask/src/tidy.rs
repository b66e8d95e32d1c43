//! Checks rules that no compiler checks: dependencies between crates, licenses, and the format of
//! files.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::setup;
use crate::shell::{cargo, checkout, output, run};

/// Crates of this workspace, each with the other crates on which it may depend. ARCHITECTURE.md
/// lists the same.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 18] = [
    ("toolgate-contract", &[]),
    ("toolgate-budget", &["toolgate-contract"]),
    ("toolgate-transports", &["toolgate-contract", "toolgate-budget", "toolgate-net"]),
    ("toolgate-dialects", &["toolgate-contract"]),
    (
        "toolgate-host",
        &[
            "toolgate-contract",
            "toolgate-budget",
            "toolgate-net",
            "toolgate-tool-search",
            "toolgate-postgres",
        ],
    ),
    ("toolgate-net", &["toolgate-contract"]),
    ("toolgate-world", &["toolgate-contract", "toolgate-net"]),
    ("toolgate-postgres", &["toolgate-net", "toolgate-world"]),
    ("toolgate-grammars", &[]),
    ("toolgate-chunks", &["toolgate-grammars"]),
    ("toolgate-parser", &["toolgate-chunks", "toolgate-grammars", "toolgate-world"]),
    ("toolgate-embed", &[]),
    ("toolgate-tool-search", &["toolgate-chunks"]),
    ("toolgate-search", &["toolgate-chunks"]),
    ("toolgate-upstream", &["toolgate-contract", "toolgate-dialects", "toolgate-net"]),
    (
        "toolgate-toolsets",
        &[
            "toolgate-contract",
            "toolgate-budget",
            "toolgate-net",
            "toolgate-world",
            "toolgate-postgres",
            "toolgate-search",
            "toolgate-chunks",
            "toolgate-parser",
            "toolgate-embed",
        ],
    ),
    (
        "toolgate-service",
        &[
            "toolgate-contract",
            "toolgate-budget",
            "toolgate-transports",
            "toolgate-dialects",
            "toolgate-host",
            "toolgate-net",
            "toolgate-world",
            "toolgate-postgres",
            "toolgate-toolsets",
            "toolgate-upstream",
        ],
    ),
    (
        "toolgate",
        &[
            "toolgate-contract",
            "toolgate-grammars",
            "toolgate-transports",
            "toolgate-dialects",
            "toolgate-host",
            "toolgate-net",
            "toolgate-world",
            "toolgate-toolsets",
            "toolgate-upstream",
            "toolgate-service",
        ],
    ),
];

/// Names of the pure crates, which must not do I/O.
const PURE: [&str; 2] = ["toolgate-contract", "toolgate-dialects"];
/// Names of packages on which the pure crates must not depend, because these packages do I/O.
const IMPURE: [&str; 6] = ["tokio", "hyper", "rustix", "axum", "reqwest", "tempfile"];

/// Largest number of lines of a Rust file, because readers lose track in longer files.
const FILE_LINES_MAX: usize = 600;

/// Checks all rules. Fails with a line for each violation.
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
    wrong.extend(check_dependencies(&metadata));
    wrong.extend(check_files()?);
    wrong.extend(crate::rooms::check()?);
    wrong.extend(crate::architecture::check()?);
    wrong.extend(check_readability()?);
    wrong.extend(check_default_member(&metadata));
    if !wrong.is_empty() {
        bail!("tidy found:\n  {}", wrong.join("\n  "));
    }
    check_deny()?;
    eprintln!("tidy: dependencies, modules, licenses, files and names are in order");
    Ok(())
}

/// Returns a line for each dependency that a crate of this workspace must not have.
fn check_dependencies(metadata: &Value) -> Vec<String> {
    let allowed: BTreeMap<_, _> = ALLOWED_DEPENDENCIES.into_iter().collect();
    let mut wrong = Vec::new();
    for package in own_packages(metadata) {
        let name = package["name"].as_str().unwrap_or_default();
        let dependencies: BTreeSet<_> = package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str())
            .collect();
        if let Some(allowed) = allowed.get(name) {
            let forbidden =
                dependencies.iter().filter(|d| d.starts_with("toolgate") && !allowed.contains(*d));
            wrong.extend(
                forbidden.map(|d| format!("`{name}` must not depend on `{d}` (ARCHITECTURE.md)")),
            );
        }
        if PURE.contains(&name) {
            let impure = dependencies.iter().filter(|d| IMPURE.contains(*d));
            wrong.extend(impure.map(|d| format!("`{name}` is pure and must not use `{d}`")));
        }
    }
    wrong
}

/// Returns the packages of this workspace in `metadata`, the output of `cargo metadata`.
fn own_packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    let all = metadata["packages"].as_array().into_iter().flatten();
    all.filter(|package| package["source"].is_null())
}

/// Returns a message unless a plain `cargo run` runs toolgate itself, as newcomers expect.
fn check_default_member(metadata: &Value) -> Option<String> {
    let all = metadata["workspace_default_members"].as_array();
    let default: Vec<_> = all.into_iter().flatten().filter_map(Value::as_str).collect();
    let is_server = matches!(default[..], [only] if only.contains("crates/server"));
    (!is_server).then(|| {
        format!("`cargo run` runs {default:?}, not crates/server (Cargo.toml, default-members)")
    })
}

/// Runs cargo-deny, which checks licenses, sources and forbidden packages as `deny.toml` says.
/// Vulnerabilities are not checked, because their list comes from a site that builds cannot reach.
fn check_deny() -> anyhow::Result<()> {
    let deny = setup::cargo_deny()?;
    let options = ["--locked", "--all-features", "--log-level", "error"];
    run(&deny, &[&options[..], &["check", "bans", "licenses", "sources"]].concat())
}

/// Returns a line for each readability figure of names, comments and guides that exceeds its limit.
fn check_readability() -> anyhow::Result<Vec<String>> {
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

/// Returns a line for each file of the repository that is too long, has no module comment, or does
/// not end with a line break.
fn check_files() -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for name in output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?.lines()
    {
        // Inputs of fuzzing stay as they were found.
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
