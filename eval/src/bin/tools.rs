//! Measures tool search, and prints the tables. Developers run this program by `cargo xtask
//! eval-tools`. A full run also writes `docs/reference/tool-search.md`.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a tool for developers: it owns the checkout that it runs in and prints for a person"
)]

use anyhow::{Context, bail};
use toolgate_eval::sources;
use toolgate_eval::tools::report::{self, ToolEvalSettings};
use toolgate_eval::tools::sets::BfclEvaluationHalf;

fn main() -> anyhow::Result<()> {
    let mut settings = ToolEvalSettings { half: BfclEvaluationHalf::Report, model: true };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--split" => match args.next().context("`--split` needs a value")?.as_str() {
                "report" => settings.half = BfclEvaluationHalf::Report,
                "tune" => settings.half = BfclEvaluationHalf::Tune,
                other => bail!("`--split` must be report or tune, not `{other}`"),
            },
            "--no-model" => settings.model = false,
            _ => bail!("unknown option `{arg}`; the options are --split and --no-model"),
        }
    }
    let tables = report::run_all(settings)?;
    println!("{tables}");
    if settings == (ToolEvalSettings { half: BfclEvaluationHalf::Report, model: true }) {
        let path = sources::checkout().join("docs/reference/tool-search.md");
        std::fs::write(&path, report::render(&tables))?;
        eprintln!("wrote docs/reference/tool-search.md");
    }
    Ok(())
}
