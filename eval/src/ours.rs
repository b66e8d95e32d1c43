//! Our search, through the same index that serves the tools.

use std::collections::HashMap;

use anyhow::Context;
use toolgate_chunks::{ChunkKind, TextChunk};
use toolgate_search::document::borrow_texts;
use toolgate_search::embedder::embedding_text;
use toolgate_search::index::{CandidateQuery, IndexLocation, IndexSnapshot, SearchIndex};
use toolgate_search::rank::{Candidate, IndexStatistics, rank};
use toolgate_search::{ChunkHash, DocumentFilter, IndexDocument, VectorSpace, static_model};

use crate::set::{Lang, Package, Unit};
use crate::vectors::Vectors;

/// How many are taken by each way before a closer look, as the tools have it.
const LIMIT: usize = 150;

/// How many answers are looked at.
const TOP: usize = 10;

/// What takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    pub words: bool,
    pub statics: bool,
    pub model: bool,
    pub rerank: bool,
}

/// The functions of a package in an index of ours.
pub struct Ours {
    snapshot: IndexSnapshot,
    averages: IndexStatistics,
    units: HashMap<(String, u32), usize>,
}

impl Ours {
    /// Those of `package`, with the model's vectors where there is a model.
    pub fn new(package: &Package, model: Option<&mut Vectors>) -> anyhow::Result<Self> {
        let space = model.as_ref().map(|it| {
            let space = it.model().space();
            VectorSpace { model: space.model.clone(), dimensions: space.dimensions }
        });
        let (index, _) = SearchIndex::open(IndexLocation::Memory, space.as_ref())?;
        let mut writer = index.writer()?.context("an index in memory has one writer")?;
        let mut units = HashMap::new();
        let mut told_of: Vec<(ChunkHash, String)> = Vec::new();
        for (path, of_file) in files(package) {
            let (text, chunks) = file(&of_file);
            for ((at, _), chunk) in of_file.iter().zip(&chunks) {
                units.insert((path.clone(), chunk.first), *at);
            }
            let document = IndexDocument {
                path: &path,
                fingerprint: b"",
                etag: "",
                commit: None,
                lang: Some(match package.lang {
                    Lang::Rust => "rust",
                    Lang::Python => "python",
                }),
                tags: &[],
                text: &text,
                chunks: &chunks,
            };
            for chunk in chunks.iter().filter(|_| model.is_some()) {
                let texts = document.texts(chunk);
                let texts = borrow_texts(&texts);
                told_of.push((ChunkHash::for_texts(&texts), embedding_text(&texts)));
            }
            writer.put(&document)?;
        }
        writer.commit()?;
        if let Some(model) = model {
            let texts: Vec<&str> = told_of.iter().map(|(_, text)| text.as_str()).collect();
            let vectors = model.of(&texts)?;
            let hashes = told_of.iter().map(|(hash, _)| *hash);
            writer.add_vectors(&hashes.zip(vectors).collect::<Vec<_>>())?;
        }
        let snapshot = index.snapshot()?;
        Ok(Self { averages: snapshot.statistics(), snapshot, units })
    }

    /// In which place the function `unit` is, for each of the ways `parts` to ask for it.
    pub fn places(
        &self,
        question: &str,
        model: Option<&[f32]>,
        unit: usize,
        parts: &[Parts],
    ) -> anyhow::Result<Vec<Option<usize>>> {
        let in_words = self.snapshot.weigh_question(question)?;
        let wordless = self.snapshot.weigh_question("")?;
        let near = static_model::embed_query(question);
        let mut places = Vec::new();
        for parts in parts {
            let sought = CandidateQuery {
                static_vector: near.as_deref().filter(|_| parts.statics),
                model_vector: model.filter(|_| parts.model),
                filter: &DocumentFilter::default(),
                limit: LIMIT,
            };
            let asked = if parts.words { &in_words } else { &wordless };
            let found = self.snapshot.candidates(Some(asked), &sought, &|| true)?.candidates;
            let ranked = rank(asked, &self.averages, &found, parts.rerank, TOP);
            let place = ranked.iter().position(|it| self.unit(&found[it.index]) == Some(unit));
            places.push(place.map(|it| it + 1));
        }
        Ok(places)
    }

    /// In which place the function `unit` is among the definitions called like `name`.
    pub fn named(&self, name: &str, unit: usize) -> anyhow::Result<Option<usize>> {
        let found = self.snapshot.find_named(name, &DocumentFilter::default(), TOP)?;
        let place = found.iter().position(|it| {
            self.units.get(&(it.summary.path.clone(), it.summary.first)) == Some(&unit)
        });
        Ok(place.map(|it| it + 1))
    }

    fn unit(&self, found: &Candidate) -> Option<usize> {
        self.units.get(&(found.summary.path.clone(), found.summary.first)).copied()
    }
}

/// The functions of `package` by file.
fn files(package: &Package) -> Vec<(String, Vec<(usize, &Unit)>)> {
    let mut files: Vec<(String, Vec<(usize, &Unit)>)> = Vec::new();
    for (at, unit) in package.units.iter().enumerate() {
        match files.last_mut() {
            Some((path, units)) if *path == unit.path => units.push((at, unit)),
            _ => files.push((unit.path.clone(), vec![(at, unit)])),
        }
    }
    files
}

/// A file with nothing but these functions.
fn file(units: &[(usize, &Unit)]) -> (String, Vec<TextChunk>) {
    let mut text = String::new();
    let mut chunks = Vec::new();
    let mut first = 1;
    for (_, unit) in units {
        let begins = text.len();
        text.push_str(&unit.body);
        let lines = u32::try_from(unit.body.lines().count().max(1)).unwrap_or(u32::MAX);
        chunks.push(TextChunk {
            first,
            last: first + lines - 1,
            bytes: begins..text.len(),
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

    fn unit(path: &str, name: &str, body: &str) -> Unit {
        let (head, _) = body.split_once(" {").unwrap_or_default();
        Unit {
            name: name.to_owned(),
            within: "Pot".to_owned(),
            path: path.to_owned(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    #[test]
    fn a_function_is_found_where_the_index_says_it_is() {
        let units = vec![
            unit("src/a.rs", "cook", "fn cook() {\n    heat();\n}"),
            unit("src/a.rs", "heat", "fn heat() {\n    degrees += 1;\n}"),
            unit("src/b.rs", "wash", "fn wash() {\n    rinse();\n}"),
        ];
        let package = Package {
            name: "kitchen".to_owned(),
            lang: Lang::Rust,
            units,
            queries: Vec::new(),
            pairs: Vec::new(),
        };
        let ours = Ours::new(&package, None).unwrap();
        let words = Parts { words: true, statics: false, model: false, rerank: false };
        for (question, unit) in [("cook", 0), ("degrees", 1), ("rinse", 2)] {
            let places = ours.places(question, None, unit, &[words]).unwrap();
            assert_eq!(places, [Some(1)], "{question}");
            assert_eq!(ours.named("wahs", 2).unwrap(), Some(1));
        }
        assert_eq!(ours.places("rinse", None, 0, &[words]).unwrap(), [None]);
    }
}
