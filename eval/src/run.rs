//! Runs toolgate's search and all baselines over the same questions, and renders the results.

use std::fmt::Write as _;
use std::time::Instant;

use crate::baselines::bm25::{FunctionBm25Index, WordSplitting};
use crate::baselines::{convex, dense, rank_of, ripgrep};
use crate::lookup;
use crate::measure::{
    EvalQuestion, EvaluatedSearchMethod, QualityMetric, is_low, package_table, table,
};
use crate::ours::{EnabledSearchStages, IndexedPackage};
use crate::set::{EIGHT, EvalPackage, NINE, PackageLanguage, PackageSplit, QUERIES_MAX, load};
use crate::summary::{ComparedMethods, SummaryTable};
use crate::vectors::CachedModelVectors;

/// Options of one evaluation run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalRunSettings {
    pub split: PackageSplit,
    /// True to also measure the sentence model, on the packages in [`NINE`] or [`EIGHT`].
    pub model: bool,
    /// Largest number of questions taken from one package.
    pub queries: usize,
}

/// Number of tokens of a chunk that the sentence model reads. The search tools use the same number.
const TOKENS: usize = 256;

const WORDS: EnabledSearchStages =
    EnabledSearchStages { words: true, statics: false, model: false, rerank: false };

/// Combinations of search stages without a downloaded model, each with its name. The last one is
/// the combination of the search tools.
const BUILT_IN: [(&str, EnabledSearchStages); 5] = [
    ("ours: words", WORDS),
    ("ours: static vectors", EnabledSearchStages { words: false, statics: true, ..WORDS }),
    ("ours: words, static", EnabledSearchStages { statics: true, ..WORDS }),
    ("ours: words, rerank", EnabledSearchStages { rerank: true, ..WORDS }),
    ("ours", EnabledSearchStages { statics: true, rerank: true, ..WORDS }),
];

/// Combinations of search stages with the sentence model, each with its name.
const WITH_MODEL: [(&str, EnabledSearchStages); 5] = [
    ("ours: MiniLM", EnabledSearchStages { words: false, model: true, ..WORDS }),
    ("ours: words, MiniLM", EnabledSearchStages { model: true, ..WORDS }),
    ("ours: words, static, MiniLM", EnabledSearchStages { statics: true, model: true, ..WORDS }),
    ("ours: words, MiniLM, rerank", EnabledSearchStages { model: true, rerank: true, ..WORDS }),
    ("ours with MiniLM", EnabledSearchStages { statics: true, model: true, rerank: true, ..WORDS }),
];

/// Questions of the measured packages, and the ranks that each method gives to their answers.
#[derive(Default)]
struct SearchMethodRanks {
    questions: Vec<EvalQuestion>,
    methods: Vec<EvaluatedSearchMethod>,
    packages: Vec<(String, usize)>,
}

impl SearchMethodRanks {
    /// Adds `package` and the first `queries` of its questions.
    fn add_package(&mut self, package: &EvalPackage, queries: usize) {
        let index = self.packages.len();
        self.packages.push((package.name.clone(), package.units.len()));
        let questions = package.queries.iter().take(queries);
        let questions = questions.map(|it| EvalQuestion {
            package: index,
            lang: package.lang,
            overlap: it.overlap,
        });
        self.questions.extend(questions);
    }

    /// Appends `ranks` to those of the method `name`. Adds the method if it is new.
    fn add(&mut self, name: &str, ranks: impl IntoIterator<Item = Option<usize>>) {
        let index = self.methods.iter().position(|it| it.name == name).unwrap_or_else(|| {
            self.methods.push(EvaluatedSearchMethod::new(name));
            self.methods.len() - 1
        });
        self.methods[index].ranks.extend(ranks);
    }

    fn method(&self, name: &str) -> Option<&EvaluatedSearchMethod> {
        self.methods.iter().find(|it| it.name == name)
    }

    /// Adds the mean reciprocal ranks of the method `ours` and the baseline `baseline` to
    /// `summary`, for the questions that `selects` accepts.
    fn summarize(
        &self,
        task: &str,
        [ours, baseline]: [&str; 2],
        summary: &mut SummaryTable,
        selects: impl Fn(&EvalQuestion) -> bool,
    ) {
        if let (Some(ours), Some(baseline)) = (self.method(ours), self.method(baseline)) {
            let compared = ComparedMethods { ours, baseline };
            let metric = QualityMetric::ReciprocalRank;
            summary.add(task, metric, compared, &self.questions, selects);
        }
    }
}

/// Measures all methods over the packages that `settings` select, and returns the tables as
/// Markdown. Adds the most important figures to `summary`.
pub fn run_all(settings: EvalRunSettings, summary: &mut SummaryTable) -> anyhow::Result<String> {
    let packages = load(settings.split)?;
    let mut page = String::new();
    let lexical = without_model(&packages, settings)?;
    let split = settings.split.name();
    _ = writeln!(
        page,
        "## Without a downloaded model: {} packages, {} functions ({split})\n\n{}",
        packages.len(),
        packages.iter().map(|it| it.units.len()).sum::<usize>(),
        table(&lexical.methods, &lexical.questions)
    );
    _ = writeln!(page, "{}", table_of_packages(&lexical, &["ripgrep", "BM25", SYMBOLS, "ours"]));
    let pair = ["ours", SYMBOLS];
    lexical.summarize("sentence to its function; target 1.10", pair, summary, |_| true);
    lexical.summarize("sentence to its function, low overlap", pair, summary, is_low);
    for lang in PackageLanguage::ALL {
        let task = format!("sentence to its function, {}", lang.name());
        lexical.summarize(&task, pair, summary, |it| it.lang == lang);
    }
    // Print the first results now: the rest may take minutes.
    eprintln!("{}", summary.render());
    // The fresh packages are measured without a model, so that a draw is measured in minutes.
    if settings.model && settings.split != PackageSplit::Fresh {
        let names: &[&str] = if settings.split == PackageSplit::Report { &NINE } else { &EIGHT };
        let packages: Vec<&EvalPackage> =
            packages.iter().filter(|it| names.contains(&it.name.as_str())).collect();
        let dense = with_model(&packages, settings)?;
        _ = writeln!(
            page,
            "## With all-MiniLM-L6-v2: {} packages, {} functions ({split})\n\n{}",
            packages.len(),
            packages.iter().map(|it| it.units.len()).sum::<usize>(),
            table(&dense.methods, &dense.questions)
        );
        let shown = [SYMBOLS, "MiniLM", CONVEX, "ours", "ours with MiniLM"];
        _ = writeln!(page, "{}", table_of_packages(&dense, &shown));
        let pair = ["ours with MiniLM", CONVEX];
        let task = "sentence to its function, both with MiniLM; target 1.15";
        dense.summarize(task, pair, summary, |_| true);
        let task = "sentence to its function, both with MiniLM, low overlap; target 1.25";
        dense.summarize(task, pair, summary, is_low);
    }
    _ = writeln!(page, "{}", lookup::tables(&packages, settings, summary)?);
    Ok(page)
}

const SYMBOLS: &str = "BM25 with symbol and path";
const CONVEX: &str = "convex .5/.5 of both";

fn without_model(
    packages: &[EvalPackage],
    settings: EvalRunSettings,
) -> anyhow::Result<SearchMethodRanks> {
    let mut track = SearchMethodRanks::default();
    let ripgrep = ripgrep::binary();
    if ripgrep.is_none() {
        eprintln!("skipping ripgrep because `rg` is missing; `cargo xtask setup` installs it");
    }
    for package in packages {
        let started = Instant::now();
        let queries = settings.queries.min(QUERIES_MAX);
        track.add_package(package, queries);
        let questions: Vec<_> = package.queries.iter().take(queries).collect();
        let texts: Vec<&str> = questions.iter().map(|it| it.text.as_str()).collect();
        let ranks = |scores: &[Vec<f32>]| {
            let rank_pairs = questions.iter().zip(scores);
            rank_pairs.map(|(it, scores)| rank_of(scores, it.unit)).collect::<Vec<_>>()
        };
        if let Some(rg) = &ripgrep {
            track.add("ripgrep", ranks(&ripgrep::scores(package, &texts, rg)?));
        }
        track.add(
            "BM25",
            ranks(&FunctionBm25Index::new(package, WordSplitting::Plain).scores(&texts)),
        );
        track.add(
            SYMBOLS,
            ranks(&FunctionBm25Index::new(package, WordSplitting::Symbols).scores(&texts)),
        );
        let baselines = started.elapsed();
        let ours = IndexedPackage::new(package, None)?;
        for query in &questions {
            let ranks = ours.ranks(&query.text, None, query.unit, &BUILT_IN.map(|it| it.1))?;
            for ((name, _), rank) in BUILT_IN.iter().zip(ranks) {
                track.add(name, [rank]);
            }
        }
        let ours = started.elapsed() - baselines;
        eprintln!("{}: baselines {baselines:.1?}, ours {ours:.1?}", package.name);
    }
    Ok(track)
}

fn with_model(
    packages: &[&EvalPackage],
    settings: EvalRunSettings,
) -> anyhow::Result<SearchMethodRanks> {
    let mut track = SearchMethodRanks::default();
    let mut short_model = CachedModelVectors::open(dense::TOKENS)?;
    let mut long_model = CachedModelVectors::open(TOKENS)?;
    for package in packages {
        let started = Instant::now();
        let queries = settings.queries;
        track.add_package(package, queries);
        let questions: Vec<_> = package.queries.iter().take(queries).collect();
        let texts: Vec<&str> = questions.iter().map(|it| it.text.as_str()).collect();
        let symbols = FunctionBm25Index::new(package, WordSplitting::Symbols).scores(&texts);
        let model_scores = dense::scores(package, &texts, &mut short_model)?;
        let fused = convex(&symbols, &model_scores);
        for (name, scores) in [(SYMBOLS, &symbols), ("MiniLM", &model_scores), (CONVEX, &fused)] {
            let rank_pairs = questions.iter().zip(scores);
            track.add(name, rank_pairs.map(|(it, scores)| rank_of(scores, it.unit)));
        }
        let question_vectors = long_model.embed(&texts)?;
        let ours = IndexedPackage::new(package, Some(&mut long_model))?;
        let stages: Vec<EnabledSearchStages> =
            [BUILT_IN[4]].iter().chain(&WITH_MODEL).map(|(_, stages)| *stages).collect();
        for (query, vector) in questions.iter().zip(&question_vectors) {
            let ranks = ours.ranks(&query.text, Some(vector), query.unit, &stages)?;
            let names = [BUILT_IN[4].0].into_iter().chain(WITH_MODEL.map(|it| it.0));
            for (name, rank) in names.zip(ranks) {
                track.add(name, [rank]);
            }
        }
        eprintln!("{} with the model: {:.1?}", package.name, started.elapsed());
    }
    Ok(track)
}

fn table_of_packages(track: &SearchMethodRanks, names: &[&str]) -> String {
    let methods: Vec<&EvaluatedSearchMethod> =
        names.iter().filter_map(|it| track.method(it)).collect();
    package_table(&methods, &track.questions, &track.packages)
}
