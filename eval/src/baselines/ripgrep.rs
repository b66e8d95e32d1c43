//! Baseline for the search of an agent without an index: the program ripgrep with any of the
//! question's words.
//!
//! Each function is searched as a separate file. The function with most distinct words comes first,
//! then the one with most hits. Words match in any case, and also inside other words.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::{QuestionScores, STOP_WORDS};
use crate::set::EvalPackage;
use crate::sources;

/// Returns the path of the ripgrep that setup installed, or else of that in `PATH`.
pub fn binary() -> Option<PathBuf> {
    let installed = sources::checkout().join(".tools/ripgrep/bin/rg");
    let from_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|it| it.join("rg")).find(|it| it.is_file())
    };
    if installed.is_file() { Some(installed) } else { from_path() }
}

/// Returns the score of each function of `package` for each question in `questions`, by running the
/// ripgrep `binary`.
pub fn scores<T: AsRef<str>>(
    package: &EvalPackage,
    questions: &[T],
    binary: &PathBuf,
) -> anyhow::Result<QuestionScores> {
    let folder = sources::folder().join("functions").join(&package.name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    for (index, unit) in package.units.iter().enumerate() {
        std::fs::write(folder.join(index.to_string()), &unit.body)?;
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
        // ripgrep exits with 1 if nothing matches.
        ensure!(output.status.code() < Some(2), "rg: {}", String::from_utf8_lossy(&output.stderr));
        let mut found: HashMap<usize, (HashSet<String>, usize)> = HashMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some((file, word)) = line.trim_start_matches("./").split_once(':') else {
                continue;
            };
            let matches = found.entry(file.parse()?).or_default();
            matches.0.insert(word.to_ascii_lowercase());
            matches.1 += 1;
        }
        for (index, (words, hits)) in found {
            #[allow(clippy::cast_precision_loss, reason = "an order needs no exact counts")]
            let score = words.len() as f32 + hits as f32 / (hits as f32 + 1.0);
            scores[index] = score;
        }
        all.push(scores);
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(all)
}

/// Returns the distinct words of a question, without short words and stop words.
fn words_of(question: &str) -> Vec<String> {
    let words = question.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let mut words: Vec<String> = words
        .map(str::to_ascii_lowercase)
        .filter(|it| it.len() > 2 && !STOP_WORDS.contains(&it.as_str()))
        .collect();
    words.sort_unstable();
    words.dedup();
    words
}
