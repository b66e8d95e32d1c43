//! Measures how well code search ranks, and prints the tables. Developers run it by
//! `cargo xtask eval-search`. A whole run also writes `docs/reference/search-quality.md`.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a tool for developers: it owns the checkout that it runs in and prints for a person"
)]

use anyhow::{Context, bail};
use toolgate_eval::run::{RunSettings, run_all};
use toolgate_eval::set::{QUERIES_MORE, Split};
use toolgate_eval::{page, sources};

fn main() -> anyhow::Result<()> {
    let mut settings = RunSettings { split: Split::Report, model: true, queries: QUERIES_MORE };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut next = || args.next().with_context(|| format!("`{arg}` needs a value"));
        match arg.as_str() {
            "--split" => {
                settings.split = match next()?.as_str() {
                    "report" => Split::Report,
                    "tune" => Split::Tune,
                    other => bail!("`--split` must be report or tune, not `{other}`"),
                }
            }
            "--queries" => settings.queries = next()?.parse()?,
            "--no-model" => settings.model = false,
            _ => {
                bail!("unknown option `{arg}`; the options are --split, --queries and --no-model")
            }
        }
    }
    let tables = run_all(settings)?;
    println!("{tables}");
    let is_whole =
        settings.split == Split::Report && settings.model && settings.queries >= QUERIES_MORE;
    if is_whole {
        let path = sources::checkout().join("docs/reference/search-quality.md");
        std::fs::write(&path, page::render(&tables))?;
        eprintln!("wrote docs/reference/search-quality.md");
    }
    Ok(())
}
