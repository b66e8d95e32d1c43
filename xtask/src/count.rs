//! Counts the processor instructions from the bytes of a request to those of its answer, and
//! compares them with recorded counts. The load of the machine does not affect a count.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, bail};

use crate::setup;
use crate::shell::{build, checkout, output};

/// Largest accepted rise over the recorded count, in percent.
const RISE_PERCENT_MAX: u64 = 5;
/// Path of the file of recorded counts relative to the checkout.
const RECORDED: &str = "bench/gate/instructions.json";
/// Path of the program whose instructions are counted, relative to the checkout.
const PROGRAM: &str = "target/debug/bench-gate";

/// Number of instructions per request, by the name of the benchmark case.
type InstructionCounts = BTreeMap<String, u64>;

/// Counts the instructions of each benchmark case. If `keep` is true, records the counts.
/// Otherwise, fails if a count exceeds the recorded one by more than [`RISE_PERCENT_MAX`].
pub(crate) fn count(keep: bool) -> anyhow::Result<()> {
    setup::valgrind()?;
    // A program that is not optimized takes more instructions, but shows a rise as well.
    build()?;
    let path = checkout().join(RECORDED);
    let recorded = std::fs::read(&path).context(RECORDED);
    let recorded: InstructionCounts =
        match recorded.and_then(|recorded| Ok(serde_json::from_slice(&recorded)?)) {
            Ok(recorded) => recorded,
            Err(_) if keep => InstructionCounts::new(),
            Err(err) => return Err(err),
        };
    let program = checkout().join(PROGRAM).display().to_string();
    let mut counts = InstructionCounts::new();
    for case in output(&program, &["cases"])?.split_whitespace() {
        let count = instructions(&program, case)?;
        let suffix = recorded
            .get(case)
            .map_or_else(String::new, |recorded| format!(", recorded {recorded}"));
        println!("{case}: {count} instructions{suffix}");
        counts.insert(case.to_owned(), count);
    }
    if keep {
        return Ok(std::fs::write(path, serde_json::to_string_pretty(&counts)? + "\n")?);
    }
    let has_risen = |case: &&String| {
        let limit =
            recorded.get(*case).map_or(0, |recorded| recorded * (100 + RISE_PERCENT_MAX) / 100);
        counts[*case] > limit
    };
    let risen: Vec<&str> = counts.keys().filter(has_risen).map(String::as_str).collect();
    if risen.is_empty() {
        return Ok(());
    }
    bail!(
        "over {RISE_PERCENT_MAX} % more instructions than recorded in {RECORDED}: {}. If that is necessary, record \
         them with `cargo xtask count --keep`, and explain it in the commit",
        risen.join(", ")
    )
}

/// Runs `program` under valgrind, and returns its number of instructions per request of `case`.
fn instructions(program: &str, case: &str) -> anyhow::Result<u64> {
    let valgrind = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted*"])
        .args([program, case])
        .output()
        .context("cannot start valgrind")?;
    let stderr = String::from_utf8_lossy(&valgrind.stderr);
    let collected = stderr.lines().find_map(|line| line.split_once("Collected : "));
    let requests = String::from_utf8_lossy(&valgrind.stdout);
    let count = collected.and_then(|(_, count)| count.trim().parse::<u64>().ok());
    match (count, requests.trim().parse::<u64>()) {
        (Some(count), Ok(requests)) if count > 0 && requests > 0 => Ok(count / requests),
        _ => bail!("valgrind counted nothing:\n{stderr}"),
    }
}
