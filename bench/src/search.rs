//! Measures search: the time and size of an index, the latency of answers, the time until a saved
//! file is found, and text search compared with ripgrep. All calls go to the toolgate program over
//! pipes.

mod corpus;
mod conversation;
mod parser_cost;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::row::{BenchResultRow, PerformanceGoal};
use crate::{BenchRunOptions, median};
use conversation::StdioBenchSession;
use corpus::CorpusSize;

/// Search queries whose latency is measured.
const QUERIES: [&str; 12] = [
    "parse a header",
    "encode base64",
    "spawn a thread",
    "read a file into a string",
    "hash map insert",
    "compare two version numbers",
    "utf8 validation",
    "allocate memory",
    "regular expression compile",
    "wait with a timeout",
    "decode percent encoded text",
    "sort a slice",
];

/// Patterns of text search, each with the name of its row, and whether the pattern is a regular
/// expression.
const PATTERNS: [(&str, &str, bool); 5] = [
    ("search_text, literal, rare (floor: ripgrep)", "BorrowedFd::borrow_raw", false),
    ("search_text, literal, common (floor: ripgrep)", "unsafe", false),
    ("search_text, literal, no match (floor: ripgrep)", "zebraCrossingNowhere", false),
    ("search_text, regex, rare (floor: ripgrep)", r"fn \w+_raw_fd\(", true),
    ("search_text, regex, common (floor: ripgrep)", r"impl<[^>]+> \w+ for", true),
];

/// Number of saved files whose search is measured. One save takes 10 to 20 ms.
const SAVES: usize = 31;

/// Measures how long indexing takes, and how long searches take.
pub(crate) fn measure(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let folder = tempfile::tempdir()?;
    let sources = corpus::sources()?;
    let (lines, files) = run.choose((100_000, 2_000), (1_000_000, 10_000));
    let mut rows = text(&folder.path().join("files"), &sources, files, run.choose(5, 15))?;
    rows.extend(index(folder.path(), &sources, lines, run.quick)?);
    Ok(rows)
}

/// Measures `search_text` and ripgrep alternately over the same `files` files. Both programs count
/// all matching lines.
fn text(
    at: &Path,
    sources: &[PathBuf],
    files: usize,
    rounds: usize,
) -> anyhow::Result<Vec<BenchResultRow>> {
    let corpus = CorpusSize::with_files(at, sources, files)?;
    let CorpusSize { files, lines, bytes } = corpus;
    eprintln!("measuring: search_text over {files} files, {lines} lines, {} MiB", bytes >> 20);
    let ripgrep = ripgrep()?;
    let mut conversation = StdioBenchSession::start(at, &at.with_extension("cache"))?;
    let mut rows = Vec::new();
    for (what, pattern, is_regex) in PATTERNS {
        let mut ours = Vec::new();
        let mut ripgrep_times = Vec::new();
        for round in 0..=rounds {
            let started = Instant::now();
            let counted = count_by_ripgrep(&ripgrep, at, pattern, is_regex)?;
            let their_time = started.elapsed();
            let arguments = json!({ "text": pattern, "literal": !is_regex });
            let started = Instant::now();
            let found = conversation.call("search_text", &arguments)?;
            let our_time = started.elapsed();
            ensure!(
                found["matches_total"] == counted && found["searched"] == files,
                "`{pattern}`: ripgrep counts {counted} in {files} files, search_text {} in {}",
                found["matches_total"],
                found["searched"]
            );
            // The first round loads the files into memory.
            if round > 0 {
                ripgrep_times.push(millis(their_time));
                ours.push(millis(our_time));
            }
        }
        let ours = median(ours);
        let floor = median(ripgrep_times);
        let target = match what.contains("literal, rare") {
            true => PerformanceGoal::RatioAtMost(0.95),
            false => PerformanceGoal::DifferenceAtMost(0.0),
        };
        rows.push(BenchResultRow::new(what, " ms", ours).with_floor(floor).with_target(target));
    }
    Ok(rows)
}

/// Counts the lines below `at` that match `pattern` by running the program `ripgrep`.
fn count_by_ripgrep(
    ripgrep: &Path,
    at: &Path,
    pattern: &str,
    is_regex: bool,
) -> anyhow::Result<u64> {
    let mut command = Command::new(ripgrep);
    command.args(["--no-config", "--count", "--no-filename", "--smart-case", "--hidden"]);
    command.args((!is_regex).then_some("--fixed-strings"));
    command.arg("--regexp").arg(pattern).arg(at).stdin(Stdio::null());
    let output = command.output().context("cannot start ripgrep")?;
    let counts = String::from_utf8(output.stdout)?;
    counts.lines().map(|count| Ok(count.parse::<u64>()?)).sum()
}

/// Returns the path of the ripgrep that `cargo xtask setup` installs.
fn ripgrep() -> anyhow::Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/ripgrep/bin/rg");
    ensure!(path.exists(), "{} is missing; run `cargo xtask setup`", path.display());
    Ok(path)
}

/// Measures an index of `lines` lines of source: the time to build it, of queries, and of updates.
fn index(
    folder: &Path,
    sources: &[PathBuf],
    lines: u64,
    quick: bool,
) -> anyhow::Result<Vec<BenchResultRow>> {
    let at = folder.join("lines");
    let cache = folder.join("cache");
    let CorpusSize { files, lines, bytes } = CorpusSize::with_lines(&at, sources, lines)?;
    eprintln!("measuring: the index of {files} files, {lines} lines, {} MiB", bytes >> 20);
    let mut conversation = StdioBenchSession::start(&at, &cache)?;
    let idle = conversation.child.settled_mib()?;
    let started = Instant::now();
    wait_until_indexed(&mut conversation, files)?;
    let build_time = started.elapsed();
    let peak = conversation.child.peak_mib()?;

    let rounds = if quick { 5 } else { 20 };
    let mut warm = Vec::new();
    let mut cold = Vec::new();
    let mut fresh = Vec::new();
    for round in 0..=rounds {
        for question in QUERIES {
            let elapsed = time_query(&mut conversation, question)?;
            if round > 0 {
                warm.push(millis(elapsed));
            }
        }
    }
    // By now, the parts of the index are merged, and their sources are deleted.
    let size = folder_bytes(&cache)?;
    for round in 0..SAVES {
        fresh.push(millis(time_update(&mut conversation, &at, round)?));
    }
    drop(conversation);
    for question in QUERIES.iter().take(if quick { 3 } else { 9 }) {
        let mut restarted = StdioBenchSession::start(&at, &cache)?;
        cold.push(millis(time_query(&mut restarted, question)?));
    }

    let sample_bytes = if quick { 2 << 20 } else { 16 << 20 };
    let parsing = parser_cost::additional_time(&at, bytes, sample_bytes)?;
    let parsing = parsing.as_secs_f64() * 100.0 / build_time.as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a share needs no exact bytes")]
    let share = size as f64 * 100.0 / bytes as f64;
    let row = |what, ours, unit, most| {
        BenchResultRow::new(what, unit, ours).with_target(PerformanceGoal::AtMost(most))
    };
    Ok(vec![
        row(
            if quick {
                "index of 100,000 lines"
            } else {
                "time to index a million lines, no model"
            },
            build_time.as_secs_f64(),
            " s",
            60.0,
        ),
        row("parsing code in processes of their own, share of that time", parsing, " %", 10.0),
        row("peak RSS while indexing a million lines", peak, " MiB", 200.0),
        BenchResultRow::new("RSS before indexing", " MiB", idle),
        row("size of the index, relative to the text", share, " %", 60.0),
        row("search_semantic over a million lines, warm, p50", median(warm), " ms", 10.0),
        row("first search_semantic of a process, with an index", median(cold), " ms", 50.0),
        row("time from a save until a search finds the change", median(fresh), " ms", 300.0),
    ])
}

/// Waits up to ten minutes until the index is complete. Fails unless the index has more than nine
/// tenths of `files` files.
fn wait_until_indexed(conversation: &mut StdioBenchSession, files: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(600);
    while Instant::now() < deadline {
        let status = conversation.call("search_index_status", &json!({ "wait_ms": 10_000 }))?;
        let index = &status["namespaces"]["workspace"];
        if index["state"] == "ready" && index["complete"] == true {
            let indexed = index["files"].as_u64().unwrap_or_default();
            // Generated files are left out of the index.
            ensure!(indexed * 10 > files as u64 * 9, "{indexed} of {files} files are in the index");
            return Ok(());
        }
    }
    bail!("the index was not ready after ten minutes")
}

/// Returns the duration of one query. Fails unless the query finds ten passages.
fn time_query(conversation: &mut StdioBenchSession, query: &str) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let found = conversation.call("search_semantic", &json!({ "query": query, "top_k": 10 }))?;
    let taken = started.elapsed();
    let matches = found["matches"].as_array().map_or(0, Vec::len);
    ensure!(matches == 10, "`{query}` finds {matches} passages: {found}");
    ensure!(found["index"]["complete"] == true, "the index is incomplete: {}", found["index"]);
    Ok(taken)
}

/// Returns the time from saving a new file below `at` to the end of the first answer that finds the
/// file.
fn time_update(
    conversation: &mut StdioBenchSession,
    at: &Path,
    round: usize,
) -> anyhow::Result<Duration> {
    let name = format!("quagga_{round}_{}", std::process::id());
    let text = format!("/// Counts.\npub fn {name}(of: &[u8]) -> usize {{\n    of.len()\n}}\n");
    std::fs::write(at.join(format!("saved_{round}.rs")), text)?;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(10) {
        let found = conversation.call("search_semantic", &json!({ "query": name, "top_k": 1 }))?;
        let snippet: &Value = &found["matches"][0]["snippet"];
        if snippet.as_str().is_some_and(|snippet| snippet.contains(&name)) {
            return Ok(started.elapsed());
        }
    }
    bail!("`{name}` was not found within ten seconds of being saved")
}

/// Returns the total size of all files below `folder`, in bytes.
fn folder_bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { folder_bytes(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
