//! Measures search in whole files with toolgate's own chunks, instead of in single functions.
//!
//! Comments are blanked out in the files. A chunk is right if it overlaps the function that answers
//! the question.

use std::fmt::Write as _;

use toolgate_search::rank::{ChunkCandidate, RankingRules, rank_by_rules, rank_files};

use crate::baselines::bm25::{FunctionBm25Index, WordSplitting};
use crate::baselines::rank_of;
use crate::chunked::{ChunkedFile, EvalFileIndex, chunk_package};
use crate::measure::{EvalQuestion, EvaluatedSearchMethod, QualityMetric, is_low, table};
use crate::set::functions::{FileWithoutComments, strip_package};
use crate::set::{PackageSplit, load};
use crate::sources;
use crate::summary::{ComparedMethods, SummaryTable};

/// Number of search results among which a right answer counts.
const TOP: usize = 10;

/// Names of the measured search methods, in the order of the table.
const METHODS: [&str; 4] = [
    "BM25 with symbol and path",
    "ours, by passage",
    "ours, by file: the best passage",
    "ours, by file: any of its places",
];

/// Path of a function's file, and the first and last line of the function.
struct FunctionLineRange<'f> {
    path: &'f str,
    first: u32,
    last: u32,
}

impl FunctionLineRange<'_> {
    fn overlaps(&self, path: &str, first: u32, last: u32) -> bool {
        self.path == path && first <= self.last && self.first <= last
    }

    fn is_in(&self, candidate: &ChunkCandidate) -> bool {
        let found = &candidate.summary;
        self.overlaps(&found.path, found.first, found.last)
    }
}

/// Measures search in the files of the packages of `split`, and adds the figures to `summary`.
/// Returns the table.
pub fn run(
    split: PackageSplit,
    queries: usize,
    summary: &mut SummaryTable,
) -> anyhow::Result<String> {
    let list = sources::list_packages(split)?;
    let packages = load(split)?;
    let folder = sources::fetch(split, &list)?;
    let mut questions = Vec::new();
    let mut methods: Vec<EvaluatedSearchMethod> =
        METHODS.iter().map(|it| EvaluatedSearchMethod::new(it)).collect();
    for (index, (package, source)) in packages.iter().zip(&list).enumerate() {
        let stripped = strip_package(&source.folder(&folder), package.lang)?;
        let places: Vec<FunctionLineRange<'_>> = stripped.iter().flat_map(places_of).collect();
        let files: Vec<ChunkedFile> =
            stripped.iter().map(|it| ChunkedFile::new(it.path.clone(), it.text.clone())).collect();
        let ours = EvalFileIndex::new(&files)?;
        let baseline = FunctionBm25Index::new(&chunk_package(&files), WordSplitting::Symbols);
        for query in package.queries.iter().take(queries) {
            let place = &places[query.unit];
            questions.push(EvalQuestion {
                package: index,
                lang: package.lang,
                overlap: query.overlap,
            });
            let scores = &baseline.scores(&[&query.text])[0];
            methods[0].ranks.push(best_rank(&files, scores, place));
            let (weighed, found) = ours.find(&query.text)?;
            let rules = &RankingRules::TOOLS;
            let passages = rank_by_rules(rules, &weighed, &ours.statistics, &found, true, TOP);
            let rank = passages.iter().position(|it| place.is_in(&found[it.index]));
            methods[1].ranks.push(rank.map(|it| it + 1));
            let ranked = rank_files(rules, &weighed, &ours.statistics, &found, true, TOP);
            let rank = ranked.iter().position(|it| place.is_in(&found[it.best.index]));
            methods[2].ranks.push(rank.map(|it| it + 1));
            let rank = ranked.iter().position(|it| {
                place.is_in(&found[it.best.index])
                    || it.more.iter().any(|at| place.is_in(&found[*at]))
            });
            methods[3].ranks.push(rank.map(|it| it + 1));
        }
        eprintln!("{}: {} files", package.name, files.len());
    }
    let mut page = format!("## Whole files with our own chunks ({})\n\n", split.name());
    writeln!(page, "{}", table(&methods, &questions))?;
    let compared = ComparedMethods { ours: &methods[1], baseline: &methods[0] };
    let metric = QualityMetric::ReciprocalRank;
    summary.add("sentence to a passage of whole files", metric, compared, &questions, |_| true);
    let task = "sentence to a passage of whole files, low overlap";
    summary.add(task, metric, compared, &questions, is_low);
    Ok(page)
}

fn places_of(file: &FileWithoutComments) -> impl Iterator<Item = FunctionLineRange<'_>> {
    let place = move |(first, last): &(u32, u32)| FunctionLineRange {
        path: file.path.as_str(),
        first: *first,
        last: *last,
    };
    file.functions.iter().map(place)
}

/// Returns the rank of the best-scored chunk that overlaps the function at `place`.
fn best_rank(
    files: &[ChunkedFile],
    scores: &[f32],
    place: &FunctionLineRange<'_>,
) -> Option<usize> {
    let chunks = files.iter().flat_map(|file| file.chunks.iter().map(move |it| (file, it)));
    let right = chunks
        .zip(scores)
        .enumerate()
        .filter(|(_, ((file, chunk), _))| place.overlaps(&file.path, chunk.first, chunk.last));
    let best = right.max_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b))?;
    rank_of(scores, best.0)
}
