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

What a call costs, beside the least a program could do. The floors are in \
[bench/src/bin/floor.rs](../../bench/src/bin/floor.rs): over stdio a bare program that answers all \
lines that one read brings with one write, or reads the file, or the folder, and writes a canned \
frame around it; over HTTP axum with a canned body. toolgate and the floors are built as toolgate is shipped \
(`cargo build --profile dist`), Rust's peers with their own release profile. All are measured in the same run, in turn; each \
figure is the median of the rounds, and every answer is checked. Figures depend on the machine and \
the minute; ratios do not much. The whole gate is on: validation in and out, policy, limits, the \
audit log. A job is compared with the store's own durable write and with programs started and waited \
for one after the other. What is searched are the sources of the crates that this workspace is built \
of, the same in every run, read before; search_text looks through 10,000 files, counts all matches \
and shows the first fifty, and ripgrep's own binary counts, started anew for each pattern as whoever \
uses it does. The figures are in [performance.json](performance.json). Where the time goes, and what the limits \
are of what is MISSED: [docs/design/performance.md](../design/performance.md).
";

const OTHERS: &str = "\
## Beside others

Servers of others with the same tool, from their registries, as they come: rmcp's is \
[bench/peers/rmcp](../../bench/peers/rmcp), Python's and FastMCP's are scripts of a few lines in \
[bench/peers](../../bench/peers). In brackets, how many times that toolgate is as good.
";

const MANY: &str = "\
## Much of everything

Memory, and how late the last answers of a hundred are, against how many tools there are, how many \
sessions, streams and sockets are open, and how many calls are in flight. While it was looked how \
late they are, 2,000 calls a second were asked over 16 connections.
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
