//! Measures how well search finds the files of a change by the subject of its commit.
//!
//! The files of one commit are indexed. The subjects of later commits are the questions, and the
//! files that they change and that existed then are the right answers.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;
use toolgate_chunks::{
    FileClassification, FilePurpose, is_generated, is_generated_text, is_vendored,
};
use toolgate_search::rank::{RankingRules, rank_files};

use crate::baselines::bm25::{FunctionBm25Index, WordSplitting};
use crate::chunked::{ChunkedFile, EvalFileIndex, chunk_package};
use crate::measure::{EvalQuestion, EvaluatedSearchMethod, QualityMetric, table};
use crate::set::{EvalPackage, PackageLanguage};
use crate::sources;
use crate::summary::{ComparedMethods, SummaryTable};

/// Number of commits of one repository that serve as questions.
const COMMITS: usize = 20;
/// Number of recent commits among which the questions are chosen, by the hash of each commit id.
const RECENT: usize = 400;
/// Largest number of changed files of a commit. Larger commits repeat one change in many files.
const FILES_MAX: usize = 5;
/// Largest size of a searched file in bytes. The search tools use the same limit.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Number of search results among which a right answer counts.
const TOP: usize = 10;

/// Path of the list of repositories of the packages in the split `fresh`.
const REPOSITORIES_FILE: &str = "tests/search-eval/repositories.toml";

/// Content of the list of repositories.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RepositoryList {
    repositories: Vec<CommitRepository>,
}

/// Repository whose last commits are questions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommitRepository {
    /// Owner and name of the GitHub repository, with a slash between them.
    name: String,
    lang: PackageLanguage,
    /// Id of the newest commit that may be a question.
    commit: String,
}

/// Format of a commit in the output of `git log`: its id and subject.
const LOG_FORMAT: &str = "--format=%x00%H%x01%s";

/// Commit whose subject is a question, and whose changed files are the right answers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CommitQuestion {
    id: String,
    subject: String,
    /// Files that the commit changes and that existed when the files were indexed.
    files: BTreeSet<String>,
}

/// Sums of the recall and the reciprocal ranks of one search method over the questions.
#[derive(Debug, Clone, Copy, Default)]
struct FileRecall {
    recall: f64,
    reciprocal_rank: f64,
}

/// Measures search in each of `repositories`, which are checkouts or bare git repositories. Returns
/// the table of results.
pub fn run(repositories: &[String]) -> anyhow::Result<String> {
    ensure!(!repositories.is_empty(), "pass the folder of a git repository");
    let mut sums: Vec<(String, FileRecall)> = Vec::new();
    let mut count = 0_usize;
    for repository in repositories {
        let (base, questions) = choose(Path::new(repository), "HEAD")
            .with_context(|| format!("reading the commits of {repository}"))?;
        let files = read_files(Path::new(repository), &base)?;
        let found = measure(&files, &questions)?;
        eprintln!("{repository}: {} files, {} commits", files.len(), questions.len());
        count += questions.len();
        for (name, sum) in found {
            match sums.iter_mut().find(|it| it.0 == name) {
                Some((_, all)) => {
                    all.recall += sum.recall;
                    all.reciprocal_rank += sum.reciprocal_rank;
                }
                None => sums.push((name, sum)),
            }
        }
    }
    #[allow(clippy::cast_precision_loss, reason = "commits are few")]
    let all = count.max(1) as f64;
    let mut page = format!(
        "## Query: subject of a commit → its files ({} repositories)\n\n\
         | {count} commits | R@{TOP} | MRR@{TOP} |\n|---|---|---|\n",
        repositories.len()
    );
    for (name, sum) in sums {
        let (recall, rank) = (sum.recall / all, sum.reciprocal_rank / all);
        writeln!(page, "| {name} | {recall:.3} | {rank:.3} |")?;
    }
    Ok(page)
}

/// Measures search in the repositories listed in `tests/search-eval/repositories.toml`, and adds
/// the figures to `summary`. Returns the table. Skips repositories that are not in
/// `target/eval/repositories`.
pub fn run_fresh(summary: &mut SummaryTable) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(sources::checkout().join(REPOSITORIES_FILE))?;
    let list: RepositoryList = toml::from_str(&text).context(REPOSITORIES_FILE)?;
    let mut questions = Vec::new();
    let mut methods = ["BM25 with symbol and path", "ours"].map(EvaluatedSearchMethod::new);
    let mut count = 0;
    for CommitRepository { name, lang, commit } in &list.repositories {
        let folder = sources::folder().join("repositories").join(name.replace('/', "+"));
        if !folder.exists() {
            eprintln!("skipping the commits of {name}: there is no {}", folder.display());
            continue;
        }
        let (base, commits) =
            choose(&folder, commit).with_context(|| format!("reading the commits of {name}"))?;
        let files = read_files(&folder, &base)?;
        eprintln!("{name}: {} files, {} commits", files.len(), commits.len());
        let question = EvalQuestion { package: count, lang: *lang, overlap: 1.0 };
        questions.extend(commits.iter().map(|_| question));
        for (method, ranks) in methods.iter_mut().zip(rank_commits(&files, &commits)?) {
            method.ranks.extend(ranks);
        }
        count += 1;
    }
    if questions.is_empty() {
        return Ok(String::new());
    }
    let [baseline, ours] = &methods;
    let compared = ComparedMethods { ours, baseline };
    let metric = QualityMetric::ReciprocalRank;
    summary.add("subject of a commit to its files", metric, compared, &questions, |_| true);
    let shown = table(&methods, &questions);
    Ok(format!("## Query: subject of a commit, for its files ({count} repositories)\n\n{shown}"))
}

/// Returns the rank of the first right file of each question: first by the baseline, then by
/// toolgate's search.
fn rank_commits(
    files: &[(String, String)],
    questions: &[CommitQuestion],
) -> anyhow::Result<[Vec<Option<usize>>; 2]> {
    let files: Vec<ChunkedFile> =
        files.iter().map(|(path, text)| ChunkedFile::new(path.clone(), text.clone())).collect();
    let index = EvalFileIndex::new(&files)?;
    let package = chunk_package(&files);
    let bm25 = FunctionBm25Index::new(&package, WordSplitting::Symbols);
    let mut ranks = [Vec::new(), Vec::new()];
    for question in questions {
        let found = best_files(&package, &bm25.scores(&[&question.subject])[0]);
        ranks[0].push(first_right(&found, &question.files));
        let (weighed, candidates) = index.find(&question.subject)?;
        let rules = &RankingRules::TOOLS;
        let ranked = rank_files(rules, &weighed, &index.statistics, &candidates, true, TOP);
        let found: Vec<&str> =
            ranked.iter().map(|it| candidates[it.best.index].summary.path.as_str()).collect();
        ranks[1].push(first_right(&found, &question.files));
    }
    Ok(ranks)
}

/// Returns the rank of the first file in `found` that is in `right`, starting at 1.
fn first_right(found: &[&str], right: &BTreeSet<String>) -> Option<usize> {
    found.iter().take(TOP).position(|path| right.contains(*path)).map(|index| index + 1)
}

/// Returns the id of the commit whose files are indexed, and the later commits up to `newest` that
/// are questions.
fn choose(repository: &Path, newest: &str) -> anyhow::Result<(String, Vec<CommitQuestion>)> {
    let recent = RECENT.to_string();
    let log = git(
        repository,
        &["log", newest, "--no-merges", "--no-renames", "-n", &recent, "--name-only", LOG_FORMAT],
    )?;
    let mut commits: Vec<CommitQuestion> = log.split('\0').filter_map(parse_commit).collect();
    let last = commits.last().context("there are no commits")?.id.clone();
    let existing: BTreeSet<String> = git(repository, &["ls-tree", "-r", "--name-only", &last])?
        .lines()
        .map(str::to_owned)
        .collect();
    commits.pop();
    for it in &mut commits {
        it.files.retain(|path| existing.contains(path) && is_searched(path));
    }
    commits.retain(|it| !it.files.is_empty() && it.subject.split_whitespace().count() >= 3);
    commits.sort_by(|a, b| a.id.cmp(&b.id));
    commits.truncate(COMMITS);
    Ok((last, commits))
}

/// Parses one commit of a log: a line with id and subject, then the paths of its files.
fn parse_commit(text: &str) -> Option<CommitQuestion> {
    let (head, files) = text.split_once('\n').unwrap_or((text, ""));
    let (id, subject) = head.split_once('\x01')?;
    let files: BTreeSet<String> =
        files.lines().filter(|it| !it.is_empty()).map(str::to_owned).collect();
    // The last commit is the base and may have changed many files.
    let files = if files.len() <= FILES_MAX { files } else { BTreeSet::new() };
    Some(CommitQuestion { id: id.to_owned(), subject: subject.to_owned(), files })
}

/// Returns true if `path` names a code file that is neither generated nor third-party.
fn is_searched(path: &str) -> bool {
    FileClassification::for_path(path).kind == FilePurpose::Code
        && !is_generated(path)
        && !is_vendored(path)
}

/// Returns the path and text of each text file of a commit.
fn read_files(repository: &Path, commit: &str) -> anyhow::Result<Vec<(String, String)>> {
    let folder = sources::folder().join("commits").join(commit);
    if !folder.is_dir() {
        let unfinished = folder.with_extension("half");
        std::fs::create_dir_all(&unfinished)?;
        let archive = folder.with_extension("tar");
        let output = format!("--output={}", archive.display());
        git(repository, &["archive", "--format=tar", &output, commit])?;
        let status =
            Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&unfinished).status()?;
        ensure!(status.success(), "tar failed: {status}");
        std::fs::remove_file(&archive)?;
        std::fs::rename(&unfinished, &folder)?;
    }
    let mut files = Vec::new();
    for path in git(repository, &["ls-tree", "-r", "--name-only", commit])?.lines() {
        if is_generated(path) || is_vendored(path) {
            continue;
        }
        let file = folder.join(path);
        let Ok(meta) = std::fs::symlink_metadata(&file) else { continue };
        if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
            continue;
        }
        let Ok(text) = String::from_utf8(std::fs::read(&file)?) else { continue };
        if !text.contains('\0') && !is_generated_text(&text) {
            files.push((path.to_owned(), text));
        }
    }
    Ok(files)
}

/// Measures each search method over `questions`. Returns the name and the sums of each method.
fn measure(
    files: &[(String, String)],
    questions: &[CommitQuestion],
) -> anyhow::Result<Vec<(String, FileRecall)>> {
    let files: Vec<ChunkedFile> =
        files.iter().map(|(path, text)| ChunkedFile::new(path.clone(), text.clone())).collect();
    let ours = EvalFileIndex::new(&files)?;
    let package = chunk_package(&files);
    let baseline = FunctionBm25Index::new(&package, WordSplitting::Symbols);
    let tools = RankingRules::TOOLS;
    let variants = [
        ("ours", tools),
        ("ours, without exact matches first", RankingRules { exact_first: false, ..tools }),
        ("ours, without mentioned names", RankingRules { mentioned_name_bonus: 0.0, ..tools }),
        ("ours, best chunk of a file only", RankingRules { more_chunks_weight: 0.0, ..tools }),
        ("ours, tests like code", RankingRules { test_penalty: 0.0, ..tools }),
        ("ours, tests further behind", RankingRules { test_penalty: 2.0, ..tools }),
        ("ours, texts further behind", RankingRules { text_penalty: 1.5, ..tools }),
    ];
    let mut sums: Vec<(String, FileRecall)> =
        vec![("BM25 with symbol and path".to_owned(), FileRecall::default())];
    sums.extend(variants.iter().map(|(name, _)| ((*name).to_owned(), FileRecall::default())));
    for question in questions {
        let found = best_files(&package, &baseline.scores(&[&question.subject])[0]);
        sums[0].1.add(&found, &question.files);
        let (weighed, candidates) = ours.find(&question.subject)?;
        for ((_, rules), (_, sum)) in variants.iter().zip(&mut sums[1..]) {
            let ranked = rank_files(rules, &weighed, &ours.statistics, &candidates, true, TOP);
            let paths: Vec<&str> =
                ranked.iter().map(|it| candidates[it.best.index].summary.path.as_str()).collect();
            sum.add(&paths, &question.files);
        }
    }
    Ok(sums)
}

impl FileRecall {
    /// Adds the figures of one question: `found` are the found files, best first, and `right` the
    /// right answers.
    #[allow(clippy::cast_precision_loss, reason = "files are few")]
    fn add(&mut self, found: &[&str], right: &BTreeSet<String>) {
        let hits = found.iter().take(TOP).filter(|path| right.contains(**path)).count();
        self.recall += hits as f64 / right.len().clamp(1, TOP) as f64;
        self.reciprocal_rank += first_right(found, right).map_or(0.0, |rank| 1.0 / rank as f64);
    }
}

/// Returns the files of `package`, sorted by the best score of their functions, best first.
fn best_files<'p>(package: &'p EvalPackage, scores: &[f32]) -> Vec<&'p str> {
    let mut best: HashMap<&str, f32> = HashMap::new();
    for (unit, score) in package.units.iter().zip(scores).filter(|(_, score)| **score > 0.0) {
        let of_file = best.entry(&unit.path).or_default();
        *of_file = of_file.max(*score);
    }
    let mut files: Vec<(&str, f32)> = best.into_iter().collect();
    files.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    files.into_iter().take(TOP).map(|(path, _)| path).collect()
}

/// Runs git in `repository` with `args`, and returns its output.
fn git(repository: &Path, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("git");
    command.arg("-c").arg("core.quotePath=false").arg("-C").arg(repository).args(args);
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_parsed_with_its_files_unless_they_are_many() {
        let parsed = parse_commit("abc\x01Fix the stub of aix\n\nsrc/a.c\nsrc/b.c\n\n").unwrap();
        assert_eq!((parsed.id.as_str(), parsed.subject.as_str()), ("abc", "Fix the stub of aix"));
        assert_eq!(parsed.files.iter().collect::<Vec<_>>(), ["src/a.c", "src/b.c"]);
        let many = "abc\x01Rename\n\n1\n2\n3\n4\n5\n6\n";
        assert!(parse_commit(many).unwrap().files.is_empty());
        assert_eq!(parse_commit(""), None);
    }

    #[test]
    fn recall_counts_the_right_files_among_those_found() {
        let mut sum = FileRecall::default();
        let right = ["a", "b"].map(str::to_owned).into();
        sum.add(&["x", "a"], &right);
        assert!((sum.recall - 0.5).abs() < 1e-9);
        assert!((sum.reciprocal_rank - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_list_of_repositories_is_valid_and_has_each_once() {
        let text = std::fs::read_to_string(sources::checkout().join(REPOSITORIES_FILE)).unwrap();
        let list: RepositoryList = toml::from_str(&text).unwrap();
        let names: BTreeSet<&str> = list.repositories.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names.len(), list.repositories.len());
        for it in &list.repositories {
            assert_eq!((it.commit.len(), it.name.matches('/').count()), (40, 1), "{}", it.name);
        }
    }

    #[test]
    fn a_file_is_found_by_the_subject_of_its_commit() {
        let files = [
            ("src/pot.rs", "pub fn heat_pot() {\n    on();\n}\n"),
            ("src/tap.rs", "pub fn open_tap() {\n    flow();\n}\n"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let question = CommitQuestion {
            id: String::new(),
            subject: "Heat the pot slowly".to_owned(),
            files: ["src/pot.rs".to_owned()].into(),
        };
        assert_eq!(
            rank_commits(&files, std::slice::from_ref(&question)).unwrap(),
            [[Some(1)], [Some(1)]]
        );
        for (name, sum) in measure(&files, &[question]).unwrap() {
            assert!((sum.reciprocal_rank - 1.0).abs() < 1e-9, "{name}: {sum:?}");
        }
    }
}
