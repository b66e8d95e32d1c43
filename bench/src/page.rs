//! The page that is kept of a whole run, with its plots and the figures behind them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde_json::json;

use crate::plot;
use crate::row::{Row, beside_others, table};

/// Writes `performance.md` into `folder`, and beside it what it shows: `performance.json` and the
/// plots in `performance/`.
pub(crate) fn write(folder: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let machine = machine()?;
    let figures =
        json!({ "machine": machine, "rows": rows.iter().map(Row::json).collect::<Vec<_>>() });
    fs::write(folder.join("performance.json"), serde_json::to_string_pretty(&figures)? + "\n")?;
    let plots = folder.join("performance");
    fs::create_dir_all(&plots)?;
    let mut others = String::new();
    let mut many = String::new();
    for row in rows {
        let name = plot::file_name(row.what());
        let link = format!("![{}](performance/{name})\n", row.what());
        if row.has_peers() {
            fs::write(plots.join(&name), plot::of(row))?;
            others.push_str(&link);
        }
        if let Some((unit, points)) = row.curve() {
            fs::write(plots.join(&name), plot::curve(row, unit, points))?;
            many.push_str(&link);
        }
    }
    let all = table(rows);
    let beside = beside_others(rows);
    let page =
        format!("{INTRODUCTION}\n{all}\n{OTHERS}\n{beside}\n{others}\n{MANY}\n{many}\n{machine}\n");
    fs::write(folder.join("performance.md"), page)?;
    eprintln!("wrote {}", folder.join("performance.md").display());
    Ok(())
}

const INTRODUCTION: &str = "\
# Performance

<!-- Written by `cargo xtask bench`. -->

The cost of a call, compared with the least that a program could do. The floors are in \
[bench/src/bin/floor.rs](../../bench/src/bin/floor.rs). Over stdio, a bare program answers all lines \
of one read with one write, or reads the file or the folder, and writes it in a canned frame. Over \
HTTP, axum sends a canned body. toolgate and the floors are built as toolgate is released \
(`cargo build --profile dist`), Rust's peers with their own release profile. All are measured in \
turn, in one run. Each figure is the median of the rounds, and every answer is checked. Figures \
depend on the machine and the moment; ratios hardly do. The whole gate is on: validation of input and \
output, policy, limits, audit log. A job is compared with the store's own durable write, and with \
programs that run one after another. The searches read the sources of the crates that this workspace \
uses, which are the same in every run and already cached. search_text searches 10,000 files, counts \
all matches and returns the first fifty. ripgrep's own binary counts matches and starts for each \
pattern, as it does for its users. The figures are in [performance.json](performance.json). For where \
the time goes and the limits behind each MISSED, see \
[docs/design/performance.md](../design/performance.md).
";

const OTHERS: &str = "\
## Compared with other servers

Other servers with the same tool, unmodified from their registries: rmcp's is \
[bench/peers/rmcp](../../bench/peers/rmcp); Python's and FastMCP's are short scripts in \
[bench/peers](../../bench/peers). Numbers in brackets say how many times better toolgate is.
";

const MANY: &str = "\
## Scale

Memory, and the 99th percentile of latency, by the number of tools, of open sessions, streams and \
sockets, and of calls in flight. Latency was measured at 2,000 calls per second over 16 connections.
";

/// What this was measured on, in a line.
fn machine() -> anyhow::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name\t: "));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = output("uname", &["-sr"])?;
    let rustc = output("rustc", &["--version"])?;
    Ok(format!("{cores} cores, {}, {kernel}, {rustc}", model.unwrap_or("unknown")))
}

fn output(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(args).output().context(program.to_owned())?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
