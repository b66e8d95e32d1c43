//! Prints the chunks of a file, or measures how fast the files below a folder are cut into chunks.

#![allow(clippy::disallowed_methods, reason = "a developer's tool that reads the given files")]
#![allow(clippy::print_stdout, reason = "a developer's tool that prints its results")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toolgate_chunks::{FileClassification, chunks, is_generated, is_generated_text, is_vendored};

fn main() {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        println!("usage: chunks FILE_OR_FOLDER");
        return;
    };
    if path.is_dir() { speed(&path) } else { show(&path) }
}

fn show(path: &Path) {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    for chunk in chunks(&path.to_string_lossy(), &text) {
        println!(
            "{}-{} {:?} {} | {} | {} | {}",
            chunk.first,
            chunk.last,
            chunk.kind,
            chunk.names.join(", "),
            chunk.within.join("."),
            chunk.head,
            chunk.doc.replace('\n', " / "),
        );
    }
}

/// Number of files, bytes and chunks in one programming language, and the time to cut them.
#[derive(Default)]
struct LanguageChunkTotals {
    files: usize,
    bytes: usize,
    chunks: usize,
    took: Duration,
    slowest: Duration,
}

fn speed(root: &Path) {
    let mut folders = vec![root.to_path_buf()];
    let mut read: BTreeMap<&str, LanguageChunkTotals> = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file()
                && !is_generated(&name)
                && !is_vendored(&name)
                && let Ok(text) = std::fs::read_to_string(&path)
                && !is_generated_text(&text)
            {
                let one = read
                    .entry(FileClassification::for_path(&name).lang.unwrap_or("other"))
                    .or_default();
                let begun = Instant::now();
                one.chunks += chunks(&name, &text).len();
                let took = begun.elapsed();
                one.took += took;
                one.slowest = one.slowest.max(took);
                one.files += 1;
                one.bytes += text.len();
            }
        }
    }
    println!("language          files       MB   chunks     MB/s  slowest");
    for (lang, read) in &read {
        let megabytes = read.bytes as f64 / 1e6;
        println!(
            "{lang:16}{:7}{megabytes:9.2}{:9}{:9.1}{:7} ms",
            read.files,
            read.chunks,
            megabytes / read.took.as_secs_f64().max(1e-9),
            read.slowest.as_millis(),
        );
    }
}
