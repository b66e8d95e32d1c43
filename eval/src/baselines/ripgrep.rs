//! What an agent does without search: ripgrep's own binary, any of the question's words.
//!
//! Each function is a file of its own; the one that has most of the words comes first, of those
//! with as many the one that has them most often. Words are found within others and in any case.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::{SAID_BY_ALL, Scores};
use crate::set::Package;
use crate::sources;

/// ripgrep's binary, where there is one.
pub fn binary() -> Option<PathBuf> {
    let ours = sources::checkout().join(".tools/ripgrep/bin/rg");
    let theirs = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|it| it.join("rg")).find(|it| it.is_file())
    };
    if ours.is_file() { Some(ours) } else { theirs() }
}

/// What each function of `package` is worth for each of `questions`.
pub fn scores<T: AsRef<str>>(
    package: &Package,
    questions: &[T],
    binary: &PathBuf,
) -> anyhow::Result<Scores> {
    let folder = sources::folder().join("functions").join(&package.name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    for (at, unit) in package.units.iter().enumerate() {
        std::fs::write(folder.join(at.to_string()), &unit.body)?;
    }
    let mut all = Vec::new();
    for question in questions {
        let words = words_of(question.as_ref());
        let mut scores = vec![0.0; package.units.len()];
        if words.is_empty() {
            all.push(scores);
            continue;
        }
        let mut rg = Command::new(binary);
        rg.args(["--no-config", "--ignore-case", "--fixed-strings", "--only-matching"]);
        rg.args(["--no-line-number", "--with-filename", "--no-heading", "--color=never"]);
        for word in &words {
            rg.args(["-e", word]);
        }
        let output = rg.arg(".").current_dir(&folder).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run `{}`", binary.display()))?;
        // It ends with 1 where nothing matches.
        ensure!(output.status.code() < Some(2), "rg: {}", String::from_utf8_lossy(&output.stderr));
        let mut found: HashMap<usize, (HashSet<String>, usize)> = HashMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some((file, word)) = line.trim_start_matches("./").split_once(':') else {
                continue;
            };
            let of_file = found.entry(file.parse()?).or_default();
            of_file.0.insert(word.to_ascii_lowercase());
            of_file.1 += 1;
        }
        for (at, (words, hits)) in found {
            #[allow(clippy::cast_precision_loss, reason = "an order, no count")]
            let score = words.len() as f32 + hits as f32 / (hits as f32 + 1.0);
            scores[at] = score;
        }
        all.push(scores);
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(all)
}

fn words_of(question: &str) -> Vec<String> {
    let words = question.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let mut words: Vec<String> = words
        .map(str::to_ascii_lowercase)
        .filter(|it| it.len() > 2 && !SAID_BY_ALL.contains(&it.as_str()))
        .collect();
    words.sort_unstable();
    words.dedup();
    words
}
