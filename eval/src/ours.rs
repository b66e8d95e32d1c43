//! Measures toolgate's search through the same index that its search tools use.

use std::collections::HashMap;

use anyhow::Context;
use toolgate_chunks::{ChunkKind, TextChunk};
use toolgate_search::document::borrow_texts;
use toolgate_search::embedder::embedding_text;
use toolgate_search::index::{CandidateSearchQuery, IndexLocation, IndexSnapshot, SearchIndex};
use toolgate_search::rank::{
    ChunkCandidate, IndexStatistics, RankingRules, WeightedQuery, rank, rank_by_rules, rank_files,
};
use toolgate_search::{ChunkHash, DocumentFilter, IndexDocument, VectorSpace, static_model};

use crate::set::{EvalPackage, PackageFunction};
use crate::vectors::CachedModelVectors;

/// Number of candidates by words, and also by vectors, before reranking. The search tools use the
/// same number.
const LIMIT: usize = 150;

/// Number of results among which the right answer counts as found.
const TOP: usize = 10;

/// Stages of toolgate's search that an evaluated variant uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnabledSearchStages {
    pub words: bool,
    pub statics: bool,
    pub model: bool,
    pub rerank: bool,
}

/// Package whose functions are indexed by toolgate's search.
pub struct IndexedPackage {
    snapshot: IndexSnapshot,
    averages: IndexStatistics,
    units: HashMap<(String, u32), usize>,
}

impl IndexedPackage {
    /// Indexes the functions of `package`, with their vectors by `model` if there is a model.
    pub fn new(
        package: &EvalPackage,
        model: Option<&mut CachedModelVectors>,
    ) -> anyhow::Result<Self> {
        let space = model.as_ref().map(|it| {
            let space = it.model().space();
            VectorSpace { model: space.model.clone(), dimensions: space.dimensions }
        });
        let (search_index, _) = SearchIndex::open(IndexLocation::Memory, space.as_ref())?;
        let mut writer = search_index.writer()?.context("an index in memory has one writer")?;
        let mut units = HashMap::new();
        let mut embedded: Vec<(ChunkHash, String)> = Vec::new();
        for (path, functions) in files(package) {
            let (text, chunks) = file(&functions);
            for ((index, _), chunk) in functions.iter().zip(&chunks) {
                units.insert((path.clone(), chunk.first), *index);
            }
            let document = IndexDocument {
                path: &path,
                fingerprint: b"",
                etag: "",
                commit: None,
                lang: Some(package.lang.tag()),
                tags: &[],
                text: &text,
                chunks: &chunks,
            };
            for chunk in chunks.iter().filter(|_| model.is_some()) {
                let texts = document.texts(chunk);
                let texts = borrow_texts(&texts);
                embedded.push((ChunkHash::for_texts(&texts), embedding_text(&texts)));
            }
            writer.put(&document)?;
        }
        writer.commit()?;
        if let Some(model) = model {
            let texts: Vec<&str> = embedded.iter().map(|(_, text)| text.as_str()).collect();
            let vectors = model.embed(&texts)?;
            let hashes = embedded.iter().map(|(hash, _)| *hash);
            writer.add_vectors(&hashes.zip(vectors).collect::<Vec<_>>())?;
        }
        let snapshot = search_index.snapshot()?;
        Ok(Self { averages: snapshot.statistics(), snapshot, units })
    }

    /// Returns the rank of the function with the index `unit` for `question`, once for each
    /// combination in `stages`. `model` is the question's vector by the sentence model.
    pub fn ranks(
        &self,
        question: &str,
        model: Option<&[f32]>,
        unit: usize,
        stages: &[EnabledSearchStages],
    ) -> anyhow::Result<Vec<Option<usize>>> {
        let weighed_question = self.snapshot.weigh_question(question)?;
        let weighed_nothing = self.snapshot.weigh_question("")?;
        let static_vector = static_model::embed_query(question);
        let mut ranks = Vec::new();
        for stages in stages {
            let query = CandidateSearchQuery {
                static_vector: static_vector.as_deref().filter(|_| stages.statics),
                model_vector: model.filter(|_| stages.model),
                filter: &DocumentFilter::default(),
                limit: LIMIT,
            };
            let weighed = if stages.words { &weighed_question } else { &weighed_nothing };
            let found = self.snapshot.candidates(Some(weighed), &query, &|| true)?.candidates;
            let ranked = rank(weighed, &self.averages, &found, stages.rerank, TOP);
            let rank = ranked.iter().position(|it| self.unit(&found[it.index]) == Some(unit));
            ranks.push(rank.map(|it| it + 1));
        }
        Ok(ranks)
    }

    /// Returns the weighted words of `question`, and the candidates that the search tools would
    /// rank without a downloaded model.
    pub fn find(&self, question: &str) -> anyhow::Result<(WeightedQuery, Vec<ChunkCandidate>)> {
        let weighed = self.snapshot.weigh_question(question)?;
        let static_vector = static_model::embed_query(question);
        let query = CandidateSearchQuery {
            static_vector: static_vector.as_deref(),
            model_vector: None,
            filter: &DocumentFilter::default(),
            limit: LIMIT,
        };
        let found = self.snapshot.candidates(Some(&weighed), &query, &|| true)?.candidates;
        Ok((weighed, found))
    }

    /// Ranks the candidates `found` by `rules`, and returns the rank of the function with the index
    /// `unit`.
    pub fn unit_rank(
        &self,
        rules: &RankingRules,
        question: &WeightedQuery,
        found: &[ChunkCandidate],
        unit: usize,
    ) -> Option<usize> {
        let ranked = rank_by_rules(rules, question, &self.averages, found, true, TOP);
        let place = ranked.iter().position(|it| self.unit(&found[it.index]) == Some(unit));
        place.map(|it| it + 1)
    }

    /// Ranks the files of the candidates `found` by `rules`, and returns the rank of the file at
    /// `path`.
    pub fn file_rank(
        &self,
        rules: &RankingRules,
        question: &WeightedQuery,
        found: &[ChunkCandidate],
        path: &str,
    ) -> Option<usize> {
        let ranked = rank_files(rules, question, &self.averages, found, true, TOP);
        let place = ranked.iter().position(|it| found[it.best.index].summary.path == path);
        place.map(|it| it + 1)
    }

    /// Returns the rank of the function with the index `unit` in a search for definitions by
    /// `name`.
    pub fn rank_by_name(&self, name: &str, unit: usize) -> anyhow::Result<Option<usize>> {
        let found = self.snapshot.find_named(name, &DocumentFilter::default(), TOP)?;
        let rank = found.iter().position(|it| {
            self.units.get(&(it.summary.path.clone(), it.summary.first)) == Some(&unit)
        });
        Ok(rank.map(|it| it + 1))
    }

    /// Returns the index of the function that the candidate `found` contains.
    fn unit(&self, found: &ChunkCandidate) -> Option<usize> {
        self.units.get(&(found.summary.path.clone(), found.summary.first)).copied()
    }
}

/// Groups the functions of `package` by file. Returns the path of each file and its functions, each
/// with its index.
fn files(package: &EvalPackage) -> Vec<(String, Vec<(usize, &PackageFunction)>)> {
    let mut files: Vec<(String, Vec<(usize, &PackageFunction)>)> = Vec::new();
    for (index, unit) in package.units.iter().enumerate() {
        match files.last_mut() {
            Some((path, units)) if *path == unit.path => units.push((index, unit)),
            _ => files.push((unit.path.clone(), vec![(index, unit)])),
        }
    }
    files
}

/// Returns the text of a file that consists of the functions `units`, and a chunk for each of them.
fn file(units: &[(usize, &PackageFunction)]) -> (String, Vec<TextChunk>) {
    let mut text = String::new();
    let mut chunks = Vec::new();
    let mut first = 1;
    for (_, unit) in units {
        let start = text.len();
        text.push_str(&unit.body);
        let lines = u32::try_from(unit.body.lines().count().max(1)).unwrap_or(u32::MAX);
        chunks.push(TextChunk {
            first,
            last: first + lines - 1,
            bytes: start..text.len(),
            kind: ChunkKind::Function,
            names: vec![unit.name.clone()],
            within: unit.within.split_whitespace().map(str::to_owned).collect(),
            head: unit.head.clone(),
            doc: String::new(),
            doc_bytes: Vec::new(),
        });
        text.push('\n');
        first += lines;
    }
    (text, chunks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::PackageLanguage;

    fn unit(path: &str, name: &str, body: &str) -> PackageFunction {
        let (head, _) = body.split_once(" {").unwrap_or_default();
        PackageFunction {
            name: name.to_owned(),
            within: "Pot".to_owned(),
            path: path.to_owned(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    #[test]
    fn a_function_is_found_by_the_place_of_its_chunk() {
        let units = vec![
            unit("src/a.rs", "cook", "fn cook() {\n    heat();\n}"),
            unit("src/a.rs", "heat", "fn heat() {\n    degrees += 1;\n}"),
            unit("src/b.rs", "wash", "fn wash() {\n    rinse();\n}"),
        ];
        let package = EvalPackage {
            name: "kitchen".to_owned(),
            lang: PackageLanguage::Rust,
            units,
            queries: Vec::new(),
            pairs: Vec::new(),
        };
        let ours = IndexedPackage::new(&package, None).unwrap();
        let words =
            EnabledSearchStages { words: true, statics: false, model: false, rerank: false };
        for (question, unit) in [("cook", 0), ("degrees", 1), ("rinse", 2)] {
            let ranks = ours.ranks(question, None, unit, &[words]).unwrap();
            assert_eq!(ranks, [Some(1)], "{question}");
            assert_eq!(ours.rank_by_name("wahs", 2).unwrap(), Some(1));
        }
        assert_eq!(ours.ranks("rinse", None, 0, &[words]).unwrap(), [None]);
    }
}
