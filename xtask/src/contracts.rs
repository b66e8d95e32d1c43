//! Runs the tests of the five dialect contracts, and matches every requirement with its tests.
//!
//! The name of a test begins with the ids of its requirements, which are also called rows:
//! `s0_23_67_a_line_over_a_mebibyte_is_refused` tests S0-23 and S0-67.

mod rows;
mod report;
mod page;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use crate::setup;
use crate::shell::{NEXTEST, build, checkout, run};
use report::{TestFunctionPath, TestReport};
use rows::{RequirementContract, RequirementRow};

/// Filter for nextest that selects the tests whose names begin with ids of requirements.
const CONTRACT_TESTS: &str = "test(/(^|::)(s[0-4]|x)_[0-9]{2}_/)";
/// Path of the generated page relative to the checkout.
const PAGE: &str = "docs/reference/contracts.md";

/// Requirement of a contract, and the tests that check it.
pub(crate) struct TestedRequirement {
    row: RequirementRow,
    tests: Vec<TestFunctionPath>,
}

/// Outcome of a requirement, which follows from the results of its tests.
enum RequirementRowOutcome {
    Holds,
    Untested,
    Broken(Vec<TestFunctionPath>),
}

/// Runs `cargo xtask contracts`. `--seed S0` selects one contract. `--list` runs no tests. `--last`
/// uses the results of the last test run.
pub(crate) fn run_command(args: &[String]) -> anyhow::Result<()> {
    let mut only = None;
    let mut list = false;
    let mut last = false;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => list = true,
            "--last" => last = true,
            "--seed" => {
                let name = args.next().context("`--seed` needs a name")?;
                let seed = RequirementContract::ALL
                    .into_iter()
                    .find(|seed| seed.name().eq_ignore_ascii_case(name));
                only = Some(seed.with_context(|| {
                    format!("unknown seed {name}; the seeds are S0 to S4 and X")
                })?);
            }
            other => {
                bail!("unknown option `{other}`; the options are --seed NAME, --list and --last")
            }
        }
    }
    if list {
        return list_rows(only);
    }
    if last {
        return check_rows(&TestReport::newest()?, only, ContractPageAction::Write);
    }
    setup::everything()?;
    build()?;
    let filter = match only {
        None => CONTRACT_TESTS.to_owned(),
        Some(seed) => {
            // A name may begin with rows of another contract, too.
            format!("test(/(^|::|_[0-9]{{2}}_){}_[0-9]{{2}}_/)", seed.name().to_ascii_lowercase())
        }
    };
    // `check_rows` prints the failures by row.
    let outcome = run(&setup::nextest()?, &[&NEXTEST[..], &["-E", &filter]].concat());
    if let Err(err) = &outcome {
        eprintln!("{err:#}");
    }
    check_rows(&TestReport::newest()?, only, ContractPageAction::Write)
}

/// Tells whether to write the generated page, or to fail if it is out of date.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContractPageAction {
    Write,
    Check,
}

/// Checks all requirements by the results of the last test run. Also fails if the generated page is
/// out of date.
pub(crate) fn judge_the_last_run() -> anyhow::Result<()> {
    check_rows(&TestReport::newest()?, None, ContractPageAction::Check)
}

/// Prints the requirements that are broken or have no test. Fails if there are any. If `only` is
/// `None` and all requirements hold, also writes or checks the page.
fn check_rows(
    report: &TestReport,
    only: Option<RequirementContract>,
    page: ContractPageAction,
) -> anyhow::Result<()> {
    let tested_rows = match_tests(report.names())?;
    let mut summary = Vec::new();
    let mut wrong = 0;
    for seed in
        RequirementContract::ALL.into_iter().filter(|seed| only.is_none_or(|only| only == *seed))
    {
        let rows: Vec<&TestedRequirement> =
            tested_rows.iter().filter(|tested| tested.row.seed == seed).collect();
        let mut holds = 0;
        for tested in &rows {
            match outcome_of(tested, &rows, report) {
                RequirementRowOutcome::Holds => holds += 1,
                RequirementRowOutcome::Untested => {
                    println!("{}: no test: {}", tested.row.id, tested.row.requirement);
                }
                RequirementRowOutcome::Broken(tests) => {
                    println!("{}: broken: {}", tested.row.id, tested.row.requirement);
                    tests.iter().for_each(|test| println!("    {test}"));
                }
            }
        }
        wrong += rows.len() - holds;
        summary.push(format!("{} {holds} of {}", seed.name(), rows.len()));
    }
    for line in summary {
        println!("{line}");
    }
    ensure!(wrong == 0, "{wrong} rows of the contracts are broken or have no test");
    if only.is_some() {
        return Ok(());
    }
    let path = checkout().join(PAGE);
    let text = page::render(&tested_rows);
    match page {
        ContractPageAction::Write => std::fs::write(path, text)?,
        ContractPageAction::Check => ensure!(
            std::fs::read_to_string(path).is_ok_and(|old| old == text),
            "{PAGE} is stale; run `cargo xtask contracts`"
        ),
    }
    Ok(())
}

/// Matches every requirement with those tests in `names` whose names begin with its id.
fn match_tests(
    names: impl Iterator<Item = TestFunctionPath>,
) -> anyhow::Result<Vec<TestedRequirement>> {
    let mut by_row: BTreeMap<String, Vec<TestFunctionPath>> = BTreeMap::new();
    for name in names {
        for row in name.rows() {
            by_row.entry(row).or_default().push(name.clone());
        }
    }
    let rows = RequirementRow::all()?;
    let with_tests = |row: RequirementRow| TestedRequirement {
        tests: by_row.remove(&row.id).unwrap_or_default(),
        row,
    };
    let tested_rows: Vec<TestedRequirement> = rows.into_iter().map(with_tests).collect();
    ensure!(by_row.is_empty(), "tests are named after unknown rows: {by_row:?}");
    Ok(tested_rows)
}

/// Returns the outcome of the requirement `tested`. `seed` are all requirements of its contract.
fn outcome_of(
    tested: &TestedRequirement,
    seed: &[&TestedRequirement],
    report: &TestReport,
) -> RequirementRowOutcome {
    let broken = |tested_row: &TestedRequirement| -> Vec<TestFunctionPath> {
        tested_row.tests.iter().filter(|test| !report.passed(test)).cloned().collect()
    };
    if tested.row.is_whole_seed() {
        // It requires that all other rows hold.
        let all = seed.iter().filter(|other| !other.row.is_whole_seed());
        let untested = all.clone().any(|other| other.tests.is_empty());
        let broken: Vec<_> = all.flat_map(|other| broken(other)).collect();
        return match (untested, broken.is_empty()) {
            (false, true) => RequirementRowOutcome::Holds,
            (true, true) => RequirementRowOutcome::Untested,
            (_, false) => RequirementRowOutcome::Broken(broken),
        };
    }
    let broken = broken(tested);
    if tested.tests.is_empty() {
        RequirementRowOutcome::Untested
    } else if broken.is_empty() {
        RequirementRowOutcome::Holds
    } else {
        RequirementRowOutcome::Broken(broken)
    }
}

/// Prints how many requirements have tests, and those that have none.
fn list_rows(only: Option<RequirementContract>) -> anyhow::Result<()> {
    let tested_rows = match_tests(report::list_tests(CONTRACT_TESTS)?.into_iter())?;
    for seed in
        RequirementContract::ALL.into_iter().filter(|seed| only.is_none_or(|only| only == *seed))
    {
        let rows: Vec<&TestedRequirement> =
            tested_rows.iter().filter(|tested| tested.row.seed == seed).collect();
        let with_tests =
            rows.iter().filter(|tested| !tested.tests.is_empty() || tested.row.is_whole_seed());
        println!("{} {} of {} have tests", seed.name(), with_tests.count(), rows.len());
        for TestedRequirement { row, tests } in rows.iter().copied() {
            if tests.is_empty() && !row.is_whole_seed() {
                println!("  {} {}: no test: {}", row.id, row.level, row.requirement);
            }
        }
    }
    Ok(())
}

/// Returns the path of the file with the requirements of all contracts.
fn rows_file() -> PathBuf {
    checkout().join("tests/contracts/rows.tsv")
}
