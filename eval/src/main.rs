//! Prints how well code search ranks, and keeps it in `docs/reference/search-quality.md`; what a
//! developer runs by `cargo xtask eval-search`.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a developer's tool, which owns the checkout it runs in and talks to a person"
)]

use anyhow::{Context, bail};
use toolgate_eval::run::{Settings, everything};
use toolgate_eval::set::{QUERIES_MORE, Split};
use toolgate_eval::{page, sources};

fn main() -> anyhow::Result<()> {
    let mut settings = Settings { split: Split::Report, model: true, queries: QUERIES_MORE };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut next = || words.next().with_context(|| format!("{word} WHAT?"));
        match word.as_str() {
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
                bail!("unknown option `{word}`; the options are --split, --queries and --no-model")
            }
        }
    }
    let tables = everything(settings)?;
    println!("{tables}");
    let is_whole =
        settings.split == Split::Report && settings.model && settings.queries >= QUERIES_MORE;
    if is_whole {
        let path = sources::checkout().join("docs/reference/search-quality.md");
        std::fs::write(&path, page::of(&tables))?;
        eprintln!("wrote docs/reference/search-quality.md");
    }
    Ok(())
}
