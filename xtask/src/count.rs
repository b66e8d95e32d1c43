//! Counts the instructions of a request between its bytes and the answer's, and holds them against
//! those that are kept: they do not depend on what else the machine does.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, bail};

use crate::setup;
use crate::shell::{build, checkout, output};

/// How much more than is kept fails, of a hundred.
const RISE: u64 = 5;
/// What each case costs.
const KEPT: &str = "bench/gate/instructions.json";
const PROGRAM: &str = "target/debug/bench-gate";

/// By case, how many instructions a request takes.
type Counts = BTreeMap<String, u64>;

/// Counts each case, and keeps what comes of it or holds it against what is kept.
pub(crate) fn count(keep: bool) -> anyhow::Result<()> {
    setup::valgrind()?;
    // A program that is not optimised counts more, and a rise as well.
    build()?;
    let path = checkout().join(KEPT);
    let recorded = std::fs::read(&path).context(KEPT);
    let recorded: Counts =
        match recorded.and_then(|recorded| Ok(serde_json::from_slice(&recorded)?)) {
            Ok(recorded) => recorded,
            Err(_) if keep => Counts::new(),
            Err(err) => return Err(err),
        };
    let program = checkout().join(PROGRAM).display().to_string();
    let mut counted = Counts::new();
    for case in output(&program, &["cases"])?.split_whitespace() {
        let count = instructions(&program, case)?;
        let before = recorded
            .get(case)
            .map_or_else(String::new, |recorded| format!(", recorded {recorded}"));
        println!("{case}: {count} instructions{before}");
        counted.insert(case.to_owned(), count);
    }
    if keep {
        return Ok(std::fs::write(path, serde_json::to_string_pretty(&counted)? + "\n")?);
    }
    let is_more = |case: &&String| {
        let most = recorded.get(*case).map_or(0, |recorded| recorded * (100 + RISE) / 100);
        counted[*case] > most
    };
    let more: Vec<&str> = counted.keys().filter(is_more).map(String::as_str).collect();
    if more.is_empty() {
        return Ok(());
    }
    bail!(
        "over {RISE} % more instructions than recorded in {KEPT}: {}. If that is necessary, record \
         them with `cargo xtask count --keep`, and explain it in the commit",
        more.join(", ")
    )
}

/// How many instructions a request of `case` takes.
fn instructions(program: &str, case: &str) -> anyhow::Result<u64> {
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted*"])
        .args([program, case])
        .output()
        .context("cannot start valgrind")?;
    let stderr = String::from_utf8_lossy(&ran.stderr);
    let collected = stderr.lines().find_map(|line| line.split_once("Collected : "));
    let requests = String::from_utf8_lossy(&ran.stdout);
    let count = collected.and_then(|(_, count)| count.trim().parse::<u64>().ok());
    match (count, requests.trim().parse::<u64>()) {
        (Some(count), Ok(requests)) if count > 0 && requests > 0 => Ok(count / requests),
        _ => bail!("valgrind counted nothing:\n{stderr}"),
    }
}
