//! Searching: how long an index takes and how large it is, how soon it answers, how soon what is
//! saved is found, and text beside ripgrep. Over the program and its wire.

mod corpus;
mod conversation;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::row::{Asked, Row};
use crate::{Run, median};
use conversation::Conversation;
use corpus::Corpus;

/// What is asked of the index, and what the answer must have to do with it.
const QUESTIONS: [&str; 12] = [
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

/// What is looked for beside ripgrep: the row, the pattern, and whether it is an expression.
const PATTERNS: [(&str, &str, bool); 5] = [
    ("search_text, literal, rare (floor: ripgrep)", "BorrowedFd::borrow_raw", false),
    ("search_text, literal, common (floor: ripgrep)", "unsafe", false),
    ("search_text, literal, nowhere (floor: ripgrep)", "zebraCrossingNowhere", false),
    ("search_text, regex, rare (floor: ripgrep)", r"fn \w+_raw_fd\(", true),
    ("search_text, regex, common (floor: ripgrep)", r"impl<[^>]+> \w+ for", true),
];

/// All rows about searching.
pub(crate) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let sources = corpus::sources()?;
    let (lines, files) = run.of((100_000, 2_000), (1_000_000, 10_000));
    let mut rows = text(&folder.path().join("files"), &sources, files, run.of(5, 15))?;
    rows.extend(index(folder.path(), &sources, lines, run.quick)?);
    Ok(rows)
}

/// `search_text` beside ripgrep, in turn, over the same files; both count all that matches.
fn text(at: &Path, sources: &[PathBuf], files: usize, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let corpus = Corpus::of_files(at, sources, files)?;
    let Corpus { files, lines, bytes } = corpus;
    eprintln!("measuring: search_text over {files} files, {lines} lines, {} MiB", bytes >> 20);
    let ripgrep = ripgrep()?;
    let mut conversation = Conversation::over(at, &at.with_extension("cache"))?;
    let mut rows = Vec::new();
    for (what, pattern, is_regex) in PATTERNS {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for round in 0..=rounds {
            let begun = Instant::now();
            let counted = count_by_ripgrep(&ripgrep, at, pattern, is_regex)?;
            let their = begun.elapsed();
            let ask = json!({ "text": pattern, "literal": !is_regex });
            let begun = Instant::now();
            let found = conversation.call("search_text", &ask)?;
            let our = begun.elapsed();
            ensure!(
                found["matches_total"] == counted && found["searched"] == files,
                "`{pattern}`: ripgrep counts {counted} in {files} files, search_text {} in {}",
                found["matches_total"],
                found["searched"]
            );
            // The first is for what is not in memory yet.
            if round > 0 {
                theirs.push(millis(their));
                ours.push(millis(our));
            }
        }
        let ours = median(ours);
        let floor = median(theirs);
        rows.push(Row::new(what, " ms", ours).floor(floor).asked(Asked::Over(0.0)));
    }
    Ok(rows)
}

/// How many lines match by ripgrep's own count.
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

/// ripgrep's binary, which setup installs.
fn ripgrep() -> anyhow::Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/ripgrep/bin/rg");
    ensure!(path.exists(), "{} is missing; run `cargo xtask setup`", path.display());
    Ok(path)
}

/// The index of so many `lines`: made, asked, kept fresh.
fn index(folder: &Path, sources: &[PathBuf], lines: u64, quick: bool) -> anyhow::Result<Vec<Row>> {
    let at = folder.join("lines");
    let cache = folder.join("cache");
    let Corpus { files, lines, bytes } = Corpus::of_lines(&at, sources, lines)?;
    eprintln!("measuring: the index of {files} files, {lines} lines, {} MiB", bytes >> 20);
    let mut conversation = Conversation::over(&at, &cache)?;
    let idle = conversation.child.settled_mib()?;
    let begun = Instant::now();
    ready(&mut conversation, files)?;
    let taken = begun.elapsed();
    let peak = conversation.child.peak_mib()?;

    let rounds = if quick { 5 } else { 20 };
    let mut warm = Vec::new();
    let mut cold = Vec::new();
    let mut fresh = Vec::new();
    for round in 0..=rounds {
        for question in QUESTIONS {
            let elapsed = ask(&mut conversation, question)?;
            if round > 0 {
                warm.push(millis(elapsed));
            }
        }
    }
    // Its parts have been put together by now, and what they were made of is gone.
    let size = size_of(&cache)?;
    for round in 0..rounds.min(9) {
        fresh.push(millis(freshness(&mut conversation, &at, round)?));
    }
    drop(conversation);
    for question in QUESTIONS.iter().take(if quick { 3 } else { 9 }) {
        let mut anew = Conversation::over(&at, &cache)?;
        cold.push(millis(ask(&mut anew, question)?));
    }

    #[allow(clippy::cast_precision_loss, reason = "a share is not told to the last byte")]
    let share = size as f64 * 100.0 / bytes as f64;
    let row = |what, ours, unit, most| Row::new(what, unit, ours).asked(Asked::Most(most));
    Ok(vec![
        row(
            if quick { "index of 100,000 lines" } else { "index of a million lines, no model" },
            taken.as_secs_f64(),
            " s",
            60.0,
        ),
        row("peak RSS while indexing them", peak, " MiB", 200.0),
        Row::new("RSS before", " MiB", idle),
        row("size of the index, relative to the text", share, " %", 60.0),
        row("search_semantic over them, warm, p50", median(warm), " ms", 10.0),
        row("first search_semantic of a process, with an index", median(cold), " ms", 50.0),
        row("a save until a search finds it", median(fresh), " ms", 300.0),
    ])
}

/// Waits until all `files` are in the index.
fn ready(conversation: &mut Conversation, files: usize) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(600);
    while Instant::now() < until {
        let status = conversation.call("search_index_status", &json!({ "wait_ms": 10_000 }))?;
        let index = &status["namespaces"]["workspace"];
        if index["state"] == "ready" && index["complete"] == true {
            let known = index["files"].as_u64().unwrap_or_default();
            // Files that programs wrote stay out.
            ensure!(known * 10 > files as u64 * 9, "{known} of {files} files are in the index");
            return Ok(());
        }
    }
    bail!("the index was not ready after ten minutes")
}

/// How long an answer takes, which must have passages.
fn ask(conversation: &mut Conversation, question: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let found = conversation.call("search_semantic", &json!({ "query": question, "top_k": 10 }))?;
    let taken = begun.elapsed();
    let matches = found["matches"].as_array().map_or(0, Vec::len);
    ensure!(matches == 10, "`{question}` finds {matches} passages: {found}");
    ensure!(found["index"]["complete"] == true, "the index is incomplete: {}", found["index"]);
    Ok(taken)
}

/// From the end of a save to the end of the first answer that has what was saved.
fn freshness(conversation: &mut Conversation, at: &Path, round: usize) -> anyhow::Result<Duration> {
    let name = format!("quagga_{round}_{}", std::process::id());
    let text = format!("/// Counts.\npub fn {name}(of: &[u8]) -> usize {{\n    of.len()\n}}\n");
    std::fs::write(at.join(format!("saved_{round}.rs")), text)?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        let found = conversation.call("search_semantic", &json!({ "query": name, "top_k": 1 }))?;
        let snippet: &Value = &found["matches"][0]["snippet"];
        if snippet.as_str().is_some_and(|snippet| snippet.contains(&name)) {
            return Ok(begun.elapsed());
        }
    }
    bail!("`{name}` was not found within ten seconds of being saved")
}

/// How many bytes the files beneath `folder` have.
fn size_of(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { size_of(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
