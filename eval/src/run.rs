//! One run: all baselines and ours over the same questions, and what came of it.

use std::fmt::Write as _;
use std::time::Instant;

use crate::baselines::bm25::{Bm25, Words};
use crate::baselines::{convex, dense, place, ripgrep};
use crate::lookup;
use crate::measure::{Asked, Ratio, Way, by_package, is_low, ratio, table};
use crate::ours::{Ours, Parts};
use crate::set::{EIGHT, NINE, Package, QUERIES_MAX, Split, load};
use crate::vectors::Vectors;

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub split: Split,
    /// Whether the sentence model takes part, on the packages that vectors are measured on.
    pub model: bool,
    /// How many questions of one package are asked at most.
    pub queries: usize,
}

/// How much of a chunk the model reads for our search, as the tools have it.
const TOKENS: usize = 256;

const WORDS: Parts = Parts { words: true, statics: false, model: false, rerank: false };

/// Each stage of ours, with nothing downloaded: what it is called, and what takes part. The last is
/// what the tools do.
const BUILT_IN: [(&str, Parts); 5] = [
    ("ours: words", WORDS),
    ("ours: static vectors", Parts { words: false, statics: true, ..WORDS }),
    ("ours: words, static", Parts { statics: true, ..WORDS }),
    ("ours: words, rerank", Parts { rerank: true, ..WORDS }),
    ("ours", Parts { statics: true, rerank: true, ..WORDS }),
];

/// The same with the model.
const WITH_MODEL: [(&str, Parts); 5] = [
    ("ours: MiniLM", Parts { words: false, model: true, ..WORDS }),
    ("ours: words, MiniLM", Parts { model: true, ..WORDS }),
    ("ours: words, static, MiniLM", Parts { statics: true, model: true, ..WORDS }),
    ("ours: words, MiniLM, rerank", Parts { model: true, rerank: true, ..WORDS }),
    ("ours with MiniLM", Parts { statics: true, model: true, rerank: true, ..WORDS }),
];

/// The questions of some packages, and each way's places.
#[derive(Default)]
struct Track {
    asked: Vec<Asked>,
    ways: Vec<Way>,
    packages: Vec<(String, usize)>,
}

impl Track {
    fn begin(&mut self, package: &Package, queries: usize) {
        let at = self.packages.len();
        self.packages.push((package.name.clone(), package.units.len()));
        let asked = package.queries.iter().take(queries);
        let asked = asked.map(|it| Asked { package: at, lang: package.lang, overlap: it.overlap });
        self.asked.extend(asked);
    }

    fn add(&mut self, name: &str, places: impl IntoIterator<Item = Option<usize>>) {
        let at = self.ways.iter().position(|it| it.name == name).unwrap_or_else(|| {
            self.ways.push(Way::named(name));
            self.ways.len() - 1
        });
        self.ways[at].places.extend(places);
    }

    fn way(&self, name: &str) -> Option<&Way> {
        self.ways.iter().find(|it| it.name == name)
    }
}

/// Runs all of it and gives what it has to say, as Markdown.
pub fn everything(settings: Settings) -> anyhow::Result<String> {
    let packages = load(settings.split)?;
    let mut page = String::new();
    let lexical = without_model(&packages, settings)?;
    let split = settings.split.name();
    _ = writeln!(
        page,
        "## Without a downloaded model: {} packages, {} functions ({split})\n\n{}",
        packages.len(),
        packages.iter().map(|it| it.units.len()).sum::<usize>(),
        table(&lexical.ways, &lexical.asked)
    );
    _ = writeln!(page, "{}", packages_table(&lexical, &["ripgrep", "BM25", SYMBOLS, "ours"]));
    let mut ratios = String::new();
    if let (Some(ours), Some(symbols)) = (lexical.way("ours"), lexical.way(SYMBOLS)) {
        let all = ratio(ours, symbols, &lexical.asked, |_| true);
        let low = ratio(ours, symbols, &lexical.asked, is_low);
        _ = writeln!(
            ratios,
            "- without a downloaded model: {} of BM25 with symbol and path (target 1.10), low overlap {}",
            spelled(all),
            spelled(low)
        );
    }
    // What comes next may take minutes.
    eprintln!("{ratios}");
    if settings.model {
        let names: &[&str] = if settings.split == Split::Report { &NINE } else { &EIGHT };
        let packages: Vec<&Package> =
            packages.iter().filter(|it| names.contains(&it.name.as_str())).collect();
        let dense = with_model(&packages, settings)?;
        _ = writeln!(
            page,
            "## With all-MiniLM-L6-v2: {} packages, {} functions ({split})\n\n{}",
            packages.len(),
            packages.iter().map(|it| it.units.len()).sum::<usize>(),
            table(&dense.ways, &dense.asked)
        );
        let shown = [SYMBOLS, "MiniLM", CONVEX, "ours", "ours with MiniLM"];
        _ = writeln!(page, "{}", packages_table(&dense, &shown));
        if let (Some(ours), Some(convex)) = (dense.way("ours with MiniLM"), dense.way(CONVEX)) {
            _ = writeln!(
                ratios,
                "- with MiniLM: {} of the convex fusion (target 1.15), low overlap {} (target 1.25)",
                spelled(ratio(ours, convex, &dense.asked, |_| true)),
                spelled(ratio(ours, convex, &dense.asked, is_low))
            );
        }
    }
    _ = writeln!(page, "{}", lookup::tables(&packages, settings.queries)?);
    Ok(format!("## Ratios of MRR@10, with 95 % confidence intervals\n\n{ratios}\n{page}"))
}

const SYMBOLS: &str = "BM25 with symbol and path";
const CONVEX: &str = "convex .5/.5 of both";

fn without_model(packages: &[Package], settings: Settings) -> anyhow::Result<Track> {
    let mut track = Track::default();
    let ripgrep = ripgrep::binary();
    if ripgrep.is_none() {
        eprintln!("skipping ripgrep because `rg` is missing; `cargo xtask setup` installs it");
    }
    for package in packages {
        let begun = Instant::now();
        let queries = settings.queries.min(QUERIES_MAX);
        track.begin(package, queries);
        let asked: Vec<_> = package.queries.iter().take(queries).collect();
        let texts: Vec<&str> = asked.iter().map(|it| it.text.as_str()).collect();
        let places = |scores: &[Vec<f32>]| {
            let each = asked.iter().zip(scores);
            each.map(|(it, scores)| place(scores, it.unit)).collect::<Vec<_>>()
        };
        if let Some(rg) = &ripgrep {
            track.add("ripgrep", places(&ripgrep::scores(package, &texts, rg)?));
        }
        track.add("BM25", places(&Bm25::new(package, Words::Plain).scores(&texts)));
        track.add(SYMBOLS, places(&Bm25::new(package, Words::Symbols).scores(&texts)));
        let baselines = begun.elapsed();
        let ours = Ours::new(package, None)?;
        for query in &asked {
            let places = ours.places(&query.text, None, query.unit, &BUILT_IN.map(|it| it.1))?;
            for ((name, _), place) in BUILT_IN.iter().zip(places) {
                track.add(name, [place]);
            }
        }
        let ours = begun.elapsed() - baselines;
        eprintln!("{}: baselines {baselines:.1?}, ours {ours:.1?}", package.name);
    }
    Ok(track)
}

fn with_model(packages: &[&Package], settings: Settings) -> anyhow::Result<Track> {
    let mut track = Track::default();
    let mut short = Vectors::open(dense::TOKENS)?;
    let mut long = Vectors::open(TOKENS)?;
    for package in packages {
        let begun = Instant::now();
        let queries = settings.queries;
        track.begin(package, queries);
        let asked: Vec<_> = package.queries.iter().take(queries).collect();
        let texts: Vec<&str> = asked.iter().map(|it| it.text.as_str()).collect();
        let symbols = Bm25::new(package, Words::Symbols).scores(&texts);
        let alone = dense::scores(package, &texts, &mut short)?;
        let fused = convex(&symbols, &alone);
        for (name, scores) in [(SYMBOLS, &symbols), ("MiniLM", &alone), (CONVEX, &fused)] {
            let each = asked.iter().zip(scores);
            track.add(name, each.map(|(it, scores)| place(scores, it.unit)));
        }
        let questions = long.of(&texts)?;
        let ours = Ours::new(package, Some(&mut long))?;
        let parts: Vec<Parts> =
            [BUILT_IN[4]].iter().chain(&WITH_MODEL).map(|(_, parts)| *parts).collect();
        for (query, vector) in asked.iter().zip(&questions) {
            let places = ours.places(&query.text, Some(vector), query.unit, &parts)?;
            let names = [BUILT_IN[4].0].into_iter().chain(WITH_MODEL.map(|it| it.0));
            for (name, place) in names.zip(places) {
                track.add(name, [place]);
            }
        }
        eprintln!("{} with the model: {:.1?}", package.name, begun.elapsed());
    }
    Ok(track)
}

fn packages_table(track: &Track, names: &[&str]) -> String {
    let ways: Vec<&Way> = names.iter().filter_map(|it| track.way(it)).collect();
    by_package(&ways, &track.asked, &track.packages)
}

fn spelled(ratio: Ratio) -> String {
    format!("**{:.3}** ({:.3} to {:.3})", ratio.value, ratio.least, ratio.most)
}
