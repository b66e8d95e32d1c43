//! The evaluation set: functions of well-known packages, and sentences that ask for them.
//!
//! A question is the first sentence of a function's doc comment. That function is the only right
//! answer. All comments and docstrings are removed from the searched code, because the search would
//! otherwise only find copies of the question.

pub mod functions;
mod cache;
pub mod questions;

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::Context;
use serde::Deserialize;

use crate::sources::{self, PackageSource};

/// Purpose of a package. Each package has exactly one, chosen before anything was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PackageSplit {
    /// Package that was drawn by a rule after a change of the ranking. Nothing may be
    /// changed after a look at its results: otherwise the package moves to `tune`, and a new draw
    /// replaces it.
    Fresh,
    /// Package whose results are reported. Nothing is tuned on it.
    Report,
    /// Package on which rules and weights are tuned.
    Tune,
    /// Package on which word vectors are trained.
    Train,
}

impl PackageSplit {
    /// Returns the name of the split in the list of packages and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Report => "report",
            Self::Tune => "tune",
            Self::Train => "train",
        }
    }
}

/// Programming language of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageLanguage {
    Rust,
    Python,
    JavaScript,
    Go,
    Ruby,
}

impl PackageLanguage {
    /// All languages of packages, in the order of tables.
    pub const ALL: [Self; 5] = [Self::Rust, Self::Python, Self::JavaScript, Self::Go, Self::Ruby];

    /// Returns the name of the language in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::Python => "Python",
            Self::JavaScript => "JavaScript",
            Self::Go => "Go",
            Self::Ruby => "Ruby",
        }
    }

    /// Returns the name of the language in toolgate's search index.
    pub fn tag(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::Go => "go",
            Self::Ruby => "ruby",
        }
    }
}

/// Package of the evaluation set, with its functions and questions.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalPackage {
    pub name: String,
    pub lang: PackageLanguage,
    /// All functions of the package, with and without a question, except tests and vendored code.
    pub units: Vec<PackageFunction>,
    /// Questions about the functions, in a random order that is the same in every run. Take the
    /// first ones as a fair sample.
    pub queries: Vec<EvalQuery>,
    /// Functions with their sentences, to train on. Empty for packages whose results are reported.
    /// In packages for training and tuning, no pair and no question occurs in a report package.
    pub pairs: Vec<EvalQuery>,
}

/// Function or method of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageFunction {
    pub name: String,
    /// Modules, type and trait that contain the function, from the outermost to the innermost,
    /// separated by spaces.
    pub within: String,
    /// Path of the function's file in the package.
    pub path: String,
    /// Definition of the function, up to its body.
    pub head: String,
    /// Code of the function, including its definition, without comments.
    pub body: String,
}

/// Sentence that asks for a function of a package.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalQuery {
    pub text: String,
    /// Index of the function that is the right answer.
    pub unit: usize,
    /// Share of the words of the function's name that the sentence contains, from 0 to 1.
    pub overlap: f32,
}

/// Overlap with the name of the function, from 0 to 1, below which names do not answer a question.
pub const OVERLAP_LOW: f32 = 0.34;

/// Largest number of questions of one package of the split `fresh`, or of a package of the split
/// `report` that is not in [`NINE`].
pub const QUERIES_MAX: usize = 80;

/// Largest number of questions of one package in [`NINE`], or of a package of the splits `tune` and
/// `train`.
pub const QUERIES_MORE: usize = 150;

/// Packages of the split `report` for which vectors of the sentence model are measured, too.
pub const NINE: [&str; 9] = [
    "clap_builder",
    "itertools",
    "chrono",
    "image",
    "tracing-subscriber",
    "h2",
    "aiohttp",
    "pillow",
    "rich",
];

/// Packages of the split `tune` for which vectors of the sentence model are measured, too.
pub const EIGHT: [&str; 8] =
    ["axum", "ratatui-core", "tonic", "quick-xml", "click", "flask", "jinja2", "requests"];

/// Loads the packages of `split`. Downloads and parses them if they are not cached yet.
pub fn load(split: PackageSplit) -> anyhow::Result<Vec<EvalPackage>> {
    let mut packages = load_whole(split)?;
    if matches!(split, PackageSplit::Report | PackageSplit::Fresh) {
        packages.iter_mut().for_each(|it| it.pairs.clear());
    }
    Ok(packages)
}

/// Loads the packages of `split` with all pairs of a sentence and a function to train on.
fn load_whole(split: PackageSplit) -> anyhow::Result<Vec<EvalPackage>> {
    let list = sources::list_packages(split)?;
    let path = cache_file(split, &list);
    if let Some(packages) = cache::read(&path) {
        return Ok(packages);
    }
    let report = match split {
        PackageSplit::Report | PackageSplit::Fresh => None,
        PackageSplit::Tune | PackageSplit::Train => {
            Some(ReportPackageContents::new(&load_whole(PackageSplit::Report)?))
        }
    };
    let folder = sources::fetch(split, &list)?;
    let packages =
        map_in_two_threads(&list, |source| read_package(&folder, source, split, report.as_ref()))?;
    cache::write(&path, &packages).with_context(|| format!("writing {}", path.display()))?;
    Ok(packages)
}

/// Sentences and function bodies of the report packages. They must not be used for training.
struct ReportPackageContents {
    sentences: HashSet<String>,
    bodies: HashSet<String>,
}

impl ReportPackageContents {
    fn new(report: &[EvalPackage]) -> Self {
        let units = report.iter().flat_map(|package| &package.units);
        let queries = report.iter().flat_map(|package| &package.pairs);
        Self {
            sentences: queries.map(|it| questions::sentence_key(&it.text)).collect(),
            bodies: units.map(|unit| questions::body_key(&unit.body, &unit.head)).collect(),
        }
    }

    fn has(&self, sentence: &str, unit: &PackageFunction) -> bool {
        self.sentences.contains(&questions::sentence_key(sentence))
            || self.bodies.contains(&questions::body_key(&unit.body, &unit.head))
    }
}

/// Version of the cache file. Increase it when functions or questions are computed differently.
const FORMAT: u32 = 1;

/// Returns the path of the cache file of `split`. The path depends on the checksums of the packages
/// in `list`.
fn cache_file(split: PackageSplit, list: &[PackageSource]) -> PathBuf {
    let mut hash = blake3::Hasher::new();
    hash.update(&FORMAT.to_le_bytes());
    for source in list {
        hash.update(source.sha256.as_bytes());
    }
    let name = &hash.finalize().to_hex()[..12];
    sources::folder().join(format!("set-{}-{name}.bin", split.name()))
}

/// Reads the functions and questions of the package `source` from its sources in `folder`. Leaves
/// out what is in `report`, so that nothing measured is trained on.
fn read_package(
    folder: &std::path::Path,
    source: &PackageSource,
    split: PackageSplit,
    report: Option<&ReportPackageContents>,
) -> anyhow::Result<EvalPackage> {
    let functions = functions::parse_package(&source.folder(folder), source.lang())
        .with_context(|| format!("reading {}", source.name))?;
    let count = match split {
        PackageSplit::Fresh => QUERIES_MAX,
        PackageSplit::Report if !NINE.contains(&source.name.as_str()) => QUERIES_MAX,
        PackageSplit::Report | PackageSplit::Tune | PackageSplit::Train => QUERIES_MORE,
    };
    let (mut queries, mut pairs) = questions::select(&source.name, &functions);
    let units: Vec<PackageFunction> = functions.into_iter().map(|it| it.unit).collect();
    if let Some(report) = report {
        queries.retain(|it| !report.has(&it.text, &units[it.unit]));
        pairs.retain(|it| !report.has(&it.text, &units[it.unit]));
    }
    queries.truncate(count);
    Ok(EvalPackage { name: source.name.clone(), lang: source.lang(), units, queries, pairs })
}

/// Counts by which the random draw decides whether to accept a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuestionCounts {
    /// Number of functions whose doc comment starts with a sentence about the function.
    pub(crate) documented: usize,
    /// Number of questions, at most [`QUERIES_MAX`].
    pub(crate) questions: usize,
}

/// Counts the documented functions and the questions of the package `source` in `folder`.
pub(crate) fn count_questions(
    folder: &std::path::Path,
    source: &PackageSource,
) -> anyhow::Result<QuestionCounts> {
    let package = read_package(folder, source, PackageSplit::Fresh, None)?;
    Ok(QuestionCounts { documented: package.pairs.len(), questions: package.queries.len() })
}

/// Applies `each` to the entries of `list` in two threads, and returns the results in order.
fn map_in_two_threads<T: Sync, R: Send>(
    list: &[T],
    each: impl Fn(&T) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let half = |from: usize| {
        let items = list.iter().enumerate().skip(from).step_by(2);
        items.map(|(index, it)| Ok((index, each(it)?))).collect::<anyhow::Result<Vec<_>>>()
    };
    let (even, odd) = std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        (half(0), odd.join())
    });
    let mut all = even?;
    all.extend(odd.map_err(|_| anyhow::anyhow!("a thread that reads packages panicked"))??);
    all.sort_by_key(|(index, _)| *index);
    Ok(all.into_iter().map(|(_, it)| it).collect())
}
