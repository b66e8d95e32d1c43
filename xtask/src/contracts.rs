//! Ties every requirement of the five contracts to the tests that show it, and runs those.
//!
//! A test shows the rows that its name begins with: `s0_23_67_a_line_over_a_mebibyte_is_refused`
//! shows S0-23 and S0-67.

mod rows;
mod report;
mod page;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use crate::setup;
use crate::shell::{NEXTEST, build, checkout, run};
use report::{Report, TestName};
use rows::{Row, Seed};

/// The tests that show rows, as nextest selects them.
const SHOWING: &str = "test(/(^|::)(s[0-4]|x)_[0-9]{2}_/)";
/// Where the page about it is.
const PAGE: &str = "docs/reference/contracts.md";

/// A row and the tests that show it.
pub(crate) struct Shown {
    row: Row,
    tests: Vec<TestName>,
}

/// How it stands with a row.
enum Standing {
    Holds,
    Untested,
    Broken(Vec<TestName>),
}

/// Does what `words` say: `--seed S0`, `--list` to run nothing, `--last` to judge by what ran last.
pub(crate) fn from_words(words: &[String]) -> anyhow::Result<()> {
    let mut only = None;
    let mut list = false;
    let mut last = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--list" => list = true,
            "--last" => last = true,
            "--seed" => {
                let name = words.next().context("`--seed` needs a name")?;
                let seed =
                    Seed::ALL.into_iter().find(|seed| seed.name().eq_ignore_ascii_case(name));
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
        return listed(only);
    }
    if last {
        return judge(&Report::newest()?, only, Page::Write);
    }
    setup::everything()?;
    build()?;
    let filter = match only {
        None => SHOWING.to_owned(),
        Some(seed) => {
            // A name may begin with rows of another contract, too.
            format!("test(/(^|::|_[0-9]{{2}}_){}_[0-9]{{2}}_/)", seed.name().to_ascii_lowercase())
        }
    };
    // That some fail is told below, by row.
    let ran = run(&setup::nextest()?, &[&NEXTEST[..], &["-E", &filter]].concat());
    if let Err(err) = &ran {
        eprintln!("{err:#}");
    }
    judge(&Report::newest()?, only, Page::Write)
}

/// Whether the page is written or must be as it would be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Page {
    Write,
    Check,
}

/// Judges by the tests that were run last, all of them.
pub(crate) fn judge_the_last_run() -> anyhow::Result<()> {
    judge(&Report::newest()?, None, Page::Check)
}

fn judge(report: &Report, only: Option<Seed>, page: Page) -> anyhow::Result<()> {
    let shown = tied(report.names())?;
    let mut summary = Vec::new();
    let mut wrong = 0;
    for seed in Seed::ALL.into_iter().filter(|seed| only.is_none_or(|only| only == *seed)) {
        let rows: Vec<&Shown> = shown.iter().filter(|one| one.row.seed == seed).collect();
        let mut holds = 0;
        for one in &rows {
            match standing(one, &rows, report) {
                Standing::Holds => holds += 1,
                Standing::Untested => println!("{}: no test: {}", one.row.id, one.row.asks),
                Standing::Broken(tests) => {
                    println!("{}: broken: {}", one.row.id, one.row.asks);
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
    let text = page::written(&shown);
    match page {
        Page::Write => std::fs::write(path, text)?,
        Page::Check => ensure!(
            std::fs::read_to_string(path).is_ok_and(|old| old == text),
            "{PAGE} is stale; run `cargo xtask contracts`"
        ),
    }
    Ok(())
}

/// Each row with the tests whose names say that they show it.
fn tied(names: impl Iterator<Item = TestName>) -> anyhow::Result<Vec<Shown>> {
    let mut by_row: BTreeMap<String, Vec<TestName>> = BTreeMap::new();
    for name in names {
        for row in name.rows() {
            by_row.entry(row).or_default().push(name.clone());
        }
    }
    let rows = Row::all()?;
    let tie = |row: Row| Shown { tests: by_row.remove(&row.id).unwrap_or_default(), row };
    let shown: Vec<Shown> = rows.into_iter().map(tie).collect();
    ensure!(by_row.is_empty(), "tests are named after unknown rows: {by_row:?}");
    Ok(shown)
}

fn standing(one: &Shown, seed: &[&Shown], report: &Report) -> Standing {
    let broken = |shown: &Shown| -> Vec<TestName> {
        shown.tests.iter().filter(|test| !report.passed(test)).cloned().collect()
    };
    if one.row.is_whole_seed() {
        // It asks that all others hold.
        let all = seed.iter().filter(|other| !other.row.is_whole_seed());
        let untested = all.clone().any(|other| other.tests.is_empty());
        let broken: Vec<_> = all.flat_map(|other| broken(other)).collect();
        return match (untested, broken.is_empty()) {
            (false, true) => Standing::Holds,
            (true, true) => Standing::Untested,
            (_, false) => Standing::Broken(broken),
        };
    }
    let broken = broken(one);
    if one.tests.is_empty() {
        Standing::Untested
    } else if broken.is_empty() {
        Standing::Holds
    } else {
        Standing::Broken(broken)
    }
}

/// Says which tests show which row, and which rows none shows.
fn listed(only: Option<Seed>) -> anyhow::Result<()> {
    let shown = tied(report::listed(SHOWING)?.into_iter())?;
    for seed in Seed::ALL.into_iter().filter(|seed| only.is_none_or(|only| only == *seed)) {
        let rows: Vec<&Shown> = shown.iter().filter(|one| one.row.seed == seed).collect();
        let tied = rows.iter().filter(|one| !one.tests.is_empty() || one.row.is_whole_seed());
        println!("{} {} of {} have tests", seed.name(), tied.count(), rows.len());
        for Shown { row, tests } in rows.iter().copied() {
            if tests.is_empty() && !row.is_whole_seed() {
                println!("  {} {}: no test: {}", row.id, row.level, row.asks);
            }
        }
    }
    Ok(())
}

/// Where the rows are.
fn rows_file() -> PathBuf {
    checkout().join("tests/contracts/rows.tsv")
}
