//! Whole files, cut into chunks and indexed as toolgate's search tools do.

use anyhow::Context;
use toolgate_chunks::{FileClassification, TextChunk, chunks};
use toolgate_search::index::{CandidateSearchQuery, IndexLocation, IndexSnapshot, SearchIndex};
use toolgate_search::rank::{ChunkCandidate, IndexStatistics, WeightedQuery};
use toolgate_search::{DocumentFilter, IndexDocument, static_model};

use crate::set::{EvalPackage, PackageFunction, PackageLanguage};

/// Number of candidates by words, and also by vectors. The search tools use the same number.
const LIMIT: usize = 150;

/// File with the chunks into which toolgate cuts its text.
pub(crate) struct ChunkedFile {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) chunks: Vec<TextChunk>,
}

impl ChunkedFile {
    pub(crate) fn new(path: String, text: String) -> Self {
        let chunks = chunks(&path, &text);
        Self { path, text, chunks }
    }
}

/// Search index of whole files, in memory, for the evaluation.
pub(crate) struct EvalFileIndex {
    snapshot: IndexSnapshot,
    pub(crate) statistics: IndexStatistics,
}

impl EvalFileIndex {
    pub(crate) fn new(files: &[ChunkedFile]) -> anyhow::Result<Self> {
        let (search_index, _) = SearchIndex::open(IndexLocation::Memory, None)?;
        let mut writer = search_index.writer()?.context("an index in memory has one writer")?;
        for file in files {
            let class = FileClassification::for_path(&file.path);
            let tags: Vec<String> = class.tags().into_iter().map(str::to_owned).collect();
            writer.put(&IndexDocument {
                path: &file.path,
                fingerprint: b"",
                etag: "",
                commit: None,
                lang: class.lang,
                tags: &tags,
                text: &file.text,
                chunks: &file.chunks,
            })?;
        }
        writer.commit()?;
        let snapshot = search_index.snapshot()?;
        Ok(Self { statistics: snapshot.statistics(), snapshot })
    }

    /// Returns the weighted words of `query`, and the candidates that the search tools would rank
    /// without a downloaded model.
    pub(crate) fn find(&self, query: &str) -> anyhow::Result<(WeightedQuery, Vec<ChunkCandidate>)> {
        let weighed = self.snapshot.weigh_question(query)?;
        let static_vector = static_model::embed_query(query);
        let sought = CandidateSearchQuery {
            static_vector: static_vector.as_deref(),
            model_vector: None,
            filter: &DocumentFilter::default(),
            limit: LIMIT,
        };
        let found = self.snapshot.candidates(Some(&weighed), &sought, &|| true)?.candidates;
        Ok((weighed, found))
    }
}

/// Returns a package whose functions are the chunks of `files`, for baselines. Its language is
/// arbitrary, because baselines ignore it.
pub(crate) fn chunk_package(files: &[ChunkedFile]) -> EvalPackage {
    let unit = |file: &ChunkedFile, chunk: &TextChunk| PackageFunction {
        name: chunk.names.join(" "),
        within: chunk.within.join(" "),
        path: file.path.clone(),
        head: chunk.head.clone(),
        body: file.text.get(chunk.bytes.clone()).unwrap_or_default().to_owned(),
    };
    let units = files.iter().flat_map(|file| file.chunks.iter().map(move |it| unit(file, it)));
    EvalPackage {
        name: String::new(),
        lang: PackageLanguage::Rust,
        units: units.collect(),
        queries: Vec::new(),
        pairs: Vec::new(),
    }
}
