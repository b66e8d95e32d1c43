//! Measures how well code search ranks, and prints the tables. Developers run this program by
//! `cargo xtask eval-search`. A full run also writes `docs/reference/search-quality.md`.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a tool for developers: it owns the checkout that it runs in and prints for a person"
)]

use anyhow::{Context, bail};
use toolgate_eval::run::{EvalRunSettings, run_all};
use toolgate_eval::set::{PackageSplit, QUERIES_MAX, QUERIES_MORE};
use toolgate_eval::summary::SummaryTable;
use toolgate_eval::{commits, page, real_files, rules, sources};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let mut split = None;
    let mut model = true;
    let mut queries = QUERIES_MORE;
    let mut is_about_rules = false;
    while let Some(arg) = args.next() {
        let mut next = || args.next().with_context(|| format!("`{arg}` needs a value"));
        match arg.as_str() {
            "--split" => {
                split = Some(match next()?.as_str() {
                    "fresh" => PackageSplit::Fresh,
                    "report" => PackageSplit::Report,
                    "tune" => PackageSplit::Tune,
                    other => bail!("`--split` must be fresh, report or tune, not `{other}`"),
                });
            }
            "--fresh" => split = Some(PackageSplit::Fresh),
            "--queries" => queries = next()?.parse()?,
            "--no-model" => model = false,
            "--rules" => is_about_rules = true,
            "--draw" => return sources::draw::draw(&next()?),
            "--commits" => {
                let repositories: Vec<String> = args.by_ref().collect();
                println!("{}", commits::run(&repositories)?);
                return Ok(());
            }
            _ => bail!("unknown option `{arg}`; the options are {OPTIONS}"),
        }
    }
    if is_about_rules {
        println!("{}", rules::run(split.unwrap_or(PackageSplit::Tune), queries)?);
        return Ok(());
    }
    let splits = match split {
        Some(split) => vec![split],
        None if sources::list_packages(PackageSplit::Fresh).is_ok() => {
            vec![PackageSplit::Fresh, PackageSplit::Report]
        }
        None => vec![PackageSplit::Report],
    };
    let mut tables = String::new();
    for split in splits {
        tables += &measure(EvalRunSettings { split, model, queries })?;
        tables.push('\n');
    }
    println!("{tables}");
    let is_whole = split.is_none() && model && queries >= QUERIES_MORE;
    if is_whole {
        let path = sources::checkout().join("docs/reference/search-quality.md");
        std::fs::write(&path, page::render(&tables))?;
        eprintln!("wrote docs/reference/search-quality.md");
    }
    Ok(())
}

/// Measures one split of the packages. Returns its tables, the most important ones first.
fn measure(settings: EvalRunSettings) -> anyhow::Result<String> {
    let EvalRunSettings { split, queries, .. } = settings;
    let mut summary = SummaryTable::default();
    let mut details = run_all(settings, &mut summary)?;
    details.push('\n');
    details += &real_files::run(split, queries.min(QUERIES_MAX), &mut summary)?;
    if split == PackageSplit::Fresh {
        details.push('\n');
        details += &commits::run_fresh(&mut summary)?;
    }
    Ok(format!("## Figures of the {} packages\n\n{}\n{details}", split.name(), summary.render()))
}

const OPTIONS: &str =
    "--fresh, --split, --queries, --no-model, --rules, --draw SEED and --commits REPOSITORY...";
