//! Writes the page of results of a full benchmark run, with its plots and figures.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde_json::json;

use crate::plot;
use crate::row::{BenchResultRow, peer_table, table};

/// Writes the results `rows` into `folder`: `performance.md`, `performance.json` and plots in
/// `performance/`.
pub(crate) fn write(folder: &Path, rows: &[BenchResultRow]) -> anyhow::Result<()> {
    let machine = machine()?;
    let figures = json!({ "machine": machine, "rows": rows.iter().map(BenchResultRow::json).collect::<Vec<_>>() });
    fs::write(folder.join("performance.json"), serde_json::to_string_pretty(&figures)? + "\n")?;
    let plots = folder.join("performance");
    fs::create_dir_all(&plots)?;
    let mut others = String::new();
    let mut curves = String::new();
    for row in rows {
        let name = plot::file_name(row.what());
        let link = format!("![{}](performance/{name})\n", row.what());
        if row.has_peers() {
            fs::write(plots.join(&name), plot::comparison(row))?;
            others.push_str(&link);
        }
        if let Some((unit, points)) = row.curve() {
            fs::write(plots.join(&name), plot::curve(row, unit, points))?;
            curves.push_str(&link);
        }
    }
    let all = table(rows);
    let peers_table = peer_table(rows);
    let page = format!(
        "{INTRODUCTION}\n{all}\n{OTHERS}\n{peers_table}\n{others}\n{MANY}\n{curves}\n{machine}\n"
    );
    fs::write(folder.join("performance.md"), page)?;
    eprintln!("wrote {}", folder.join("performance.md").display());
    Ok(())
}

const INTRODUCTION: &str = "\
# Performance

<!-- Written by `cargo xtask bench`. -->

This page shows the cost of a call, compared with a *floor*: the cost of the simplest program \
that gives the same answers.

- Over stdio, the floor answers all lines of one read with one write. For a file or a folder, the \
floor reads the file or the folder and writes the content into a fixed message \
([bench/src/bin/floor.rs](../../bench/src/bin/floor.rs)).
- Over HTTP, the floor is axum with a fixed body.
- The page compares a job with one durable write to the job store, and with programs that run one \
after another.
- `search_text` is compared with ripgrep. `search_text` searches 10,000 files, counts all matches \
and returns the first fifty. ripgrep counts the matches, and starts again for each search. \
`search_text` compiles a pattern once, because all searches of a row have the same pattern.

All servers are measured in turn, in one run. Each figure is the median of the rounds, and every \
answer is checked. Figures depend on the machine and the time of the run, but ratios of two \
figures vary much less. toolgate \
runs all its checks: validation of input and output, policy, limits and audit log. The searches \
read the sources of \
the crates that this workspace uses. The sources are the same in every run, and the system \
has already cached them.

toolgate and the floors are built as toolgate is released (`cargo build --profile dist`). The \
other \
servers in Rust have their own release profile.

The processor time of a call includes all threads of the server's process. The processor time does \
not include the programs that a server starts, or the time in which client and server wake each \
other. toolgate runs with its default settings, except that calls are not limited. The searches \
also return structured results.

The 99th percentile is measured at 5,000 calls per second. Earlier versions of this page used half \
of the maximum rate, at which the client and the server mostly wait for the same two cores. Where \
the kernel and the client take most of the time, the targets also compare processor time.

The figures are in [performance.json](performance.json). For the limits behind each MISSED, see \
[docs/design/performance.md](../design/performance.md).
";

const OTHERS: &str = "\
## Compared with other servers

The other servers have the same tool, and come unmodified from their registries. The servers of rmcp \
and turbomcp are [bench/peers/rmcp](../../bench/peers/rmcp) and \
[bench/peers/turbomcp](../../bench/peers/turbomcp). turbomcp answers over HTTP only in sessions. The \
servers of Python's SDK and of FastMCP are short scripts in [bench/peers](../../bench/peers). A \
figure in brackets, such as (× 2.0), means that toolgate is twice as good.
";

const MANY: &str = "\
## Scale

The plots show memory and the 99th percentile of latency. Both values depend on the number \
of tools, sessions, streams, WebSockets and calls in flight. Latency was measured at 2,000 calls \
per second over 16 connections.
";

/// Returns one line that describes the machine: cores, processor, kernel and compiler.
fn machine() -> anyhow::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name\t: "));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = output("uname", &["-sr"])?;
    let rustc = output("rustc", &["--version"])?;
    Ok(format!("{cores} cores, {}, {kernel}, {rustc}", model.unwrap_or("unknown")))
}

/// Runs a program and returns its output without white space around it.
fn output(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(args).output().context(program.to_owned())?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
