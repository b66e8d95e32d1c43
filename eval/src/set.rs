//! The set: functions of well-known packages, and sentences that ask for them.
//!
//! A question is the first sentence of a function's doc comment and that function its only right
//! answer. Every doc comment, docstring and comment is gone from what is searched, else it would be
//! a test of copying.

pub mod functions;
mod kept;
pub mod questions;

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::Context;

use crate::sources::{self, Source};

/// What a package is for. Each is in one of them, chosen before anything was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// What is measured and reported. Nobody tunes on it.
    Report,
    /// What rules are chosen by.
    Tune,
    /// What words are learned from.
    Train,
}

impl Split {
    /// As the list of packages and the command line spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Tune => "tune",
            Self::Train => "train",
        }
    }
}

/// What a package is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lang {
    Rust,
    Python,
}

/// One package.
#[derive(Debug, Clone, PartialEq)]
pub struct Package {
    pub name: String,
    pub lang: Lang,
    /// All its functions, with and without a question, but for tests and what is vendored.
    pub units: Vec<Unit>,
    /// The questions, by chance but the same each time: the first few of them are a fair sample.
    pub queries: Vec<Query>,
    /// All documented functions, to learn from; of a report package none. As with the questions of
    /// packages to tune on or train on, neither they nor their sentences stand in a report package.
    pub pairs: Vec<Query>,
}

/// A function or method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    pub name: String,
    /// What it stands in, from the outermost, blanks between: modules, the type, the trait.
    pub within: String,
    /// Its file, beneath the package.
    pub path: String,
    /// How its definition reads up to its body.
    pub head: String,
    /// All of it, the head too, without comments.
    pub body: String,
}

/// A sentence that asks for a function.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    pub text: String,
    /// Which of the units is meant.
    pub unit: usize,
    /// How many of the words of the function's name the sentence has: 0 to 1.
    pub overlap: f32,
}

/// A question with less overlap cannot be answered by names.
pub const OVERLAP_LOW: f32 = 0.34;

/// How many questions of one package are asked at most, where words alone are measured.
pub const QUERIES_MAX: usize = 80;

/// The same of the nine packages that vectors are measured on, and outside the report.
pub const QUERIES_MORE: usize = 150;

/// The packages that vectors are measured on.
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

/// Those among the packages to tune on.
pub const EIGHT: [&str; 8] =
    ["axum", "ratatui-core", "tonic", "quick-xml", "click", "flask", "jinja2", "requests"];

/// The packages of `split`, fetched and taken apart if they are not yet.
pub fn load(split: Split) -> anyhow::Result<Vec<Package>> {
    let mut packages = whole(split)?;
    if split == Split::Report {
        packages.iter_mut().for_each(|it| it.pairs.clear());
    }
    Ok(packages)
}

fn whole(split: Split) -> anyhow::Result<Vec<Package>> {
    let list = sources::list(split)?;
    let kept = file(split, &list);
    if let Some(packages) = kept::read(&kept) {
        return Ok(packages);
    }
    let known = match split {
        Split::Report => None,
        Split::Tune | Split::Train => Some(Known::of(&whole(Split::Report)?)),
    };
    let folder = sources::fetched(split, &list)?;
    let packages = in_two(&list, |source| package(&folder, source, split, known.as_ref()))?;
    kept::write(&kept, &packages).with_context(|| format!("writing {}", kept.display()))?;
    Ok(packages)
}

/// What the report packages say, which nobody may learn from.
struct Known {
    sentences: HashSet<String>,
    bodies: HashSet<String>,
}

impl Known {
    fn of(report: &[Package]) -> Self {
        let units = report.iter().flat_map(|package| &package.units);
        let queries = report.iter().flat_map(|package| &package.pairs);
        Self {
            sentences: queries.map(|it| questions::sentence_key(&it.text)).collect(),
            bodies: units.map(|unit| questions::body_key(&unit.body, &unit.head)).collect(),
        }
    }

    fn has(&self, sentence: &str, unit: &Unit) -> bool {
        self.sentences.contains(&questions::sentence_key(sentence))
            || self.bodies.contains(&questions::body_key(&unit.body, &unit.head))
    }
}

/// Changes whenever a unit or question would come out otherwise.
const FORMAT: u32 = 1;

fn file(split: Split, list: &[Source]) -> PathBuf {
    let mut hash = blake3::Hasher::new();
    hash.update(&FORMAT.to_le_bytes());
    for source in list {
        hash.update(source.sha256.as_bytes());
    }
    let name = &hash.finalize().to_hex()[..12];
    sources::folder().join(format!("set-{}-{name}.bin", split.name()))
}

fn package(
    folder: &std::path::Path,
    source: &Source,
    split: Split,
    known: Option<&Known>,
) -> anyhow::Result<Package> {
    let functions = functions::of_package(&source.folder(folder), source.lang())
        .with_context(|| format!("reading {}", source.name))?;
    let most = match split {
        Split::Report if !NINE.contains(&source.name.as_str()) => QUERIES_MAX,
        Split::Report | Split::Tune | Split::Train => QUERIES_MORE,
    };
    let (mut queries, mut pairs) = questions::of(&source.name, &functions);
    let units: Vec<Unit> = functions.into_iter().map(|it| it.unit).collect();
    if let Some(known) = known {
        queries.retain(|it| !known.has(&it.text, &units[it.unit]));
        pairs.retain(|it| !known.has(&it.text, &units[it.unit]));
    }
    queries.truncate(most);
    Ok(Package { name: source.name.clone(), lang: source.lang(), units, queries, pairs })
}

/// `each` of `list`, in order, by two threads.
fn in_two<T: Sync, R: Send>(
    list: &[T],
    each: impl Fn(&T) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let half = |from: usize| {
        let every = list.iter().enumerate().skip(from).step_by(2);
        every.map(|(at, it)| Ok((at, each(it)?))).collect::<anyhow::Result<Vec<_>>>()
    };
    let (even, odd) = std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        (half(0), odd.join())
    });
    let mut all = even?;
    all.extend(odd.map_err(|_| anyhow::anyhow!("a thread that reads packages panicked"))??);
    all.sort_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, it)| it).collect())
}
