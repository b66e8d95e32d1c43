//! Measures the release build against the floors and keeps the table.

use crate::setup;
use crate::shell::{cargo, checkout, output, run};

const BUILD: [&str; 9] = [
    "build",
    "--release",
    "--locked",
    "--package",
    "toolgate",
    "--package",
    "bench",
    "--package",
    "example-echo",
];

/// Prints the table; a whole run is kept in `docs/reference/performance.md`.
pub(crate) fn measure(words: &[String]) -> anyhow::Result<()> {
    setup::ripgrep()?;
    setup::peers()?;
    run(&cargo(), &BUILD)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let bench = checkout().join("target/release/bench").display().to_string();
    let table = output(&bench, &words)?;
    print!("{table}");
    if words.is_empty() {
        let page = checkout().join("docs/reference/performance.md");
        std::fs::write(page, page_of(&table)?)?;
        eprintln!("wrote docs/reference/performance.md");
    }
    Ok(())
}

fn page_of(table: &str) -> anyhow::Result<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo")?;
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name\t: ")).unwrap_or("unknown");
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = output("uname", &["-sr"])?;
    let rustc = output("rustc", &["--version"])?;
    Ok(format!(
        "# Performance\n\n\
         <!-- Written by `cargo xtask bench`. -->\n\n\
         What a call costs, beside the least a program could do. The floors are in \
         [bench/src/bin/floor.rs](../../bench/src/bin/floor.rs): over stdio a bare program that \
         reads a line, opens and reads the file and writes a canned frame around it; over HTTP a \
         bare axum handler with a canned body. Both are measured in the same run, in turn; each \
         figure is the median of the rounds, and every answer is checked. Figures depend on the \
         machine and the minute; ratios do not much. The whole gate is on: validation in and out, \
         policy, limits, the audit log. A job is compared with the store's own durable write and \
         with programs started and waited for one after the other. What is searched are the sources \
         of the crates that this workspace is built of, the same in every run, read before; \
         search_text looks through 10,000 files, counts all matches and shows the first fifty, and \
         ripgrep's own binary counts, started anew for each pattern as whoever uses it does.\n\n\
         {table}\n\
         {cores} cores, {model}, {kernel}, {rustc}",
        kernel = kernel.trim(),
    ))
}
