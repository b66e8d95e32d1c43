//! Ranks by toolgate's tool search, called as the server calls it.

use toolgate_tool_search::{
    CallerVisibleTools, RememberedToolQueries, ToolSearchIndex, ToolSearchQuery, rank,
};

use super::baselines::{RESULTS, ToolRanker, best, document};
use super::sets::{CatalogTool, ToolSet};
use crate::vectors::CachedModelVectors;

/// The index of a set's tools, seen by a caller who may see all.
pub struct IndexedTools {
    pub index: ToolSearchIndex,
    pub view: CallerVisibleTools,
}

impl IndexedTools {
    /// Indexes the tools `tools`, all of which are visible.
    pub fn new(tools: &[CatalogTool]) -> Self {
        let index = ToolSearchIndex::new(tools.iter().map(|it| (it.id.as_str(), document(it))));
        let view = index.view(|_| true);
        Self { index, view }
    }

    /// Returns the best places for `question`.
    pub fn rank(&self, question: &ToolSearchQuery, meaning: Option<&[Option<f32>]>) -> Vec<usize> {
        self.rank_with(question, &RememberedToolQueries::default(), meaning)
    }

    /// Returns the best places for `question`, for a caller with remembered questions.
    pub fn rank_with(
        &self,
        question: &ToolSearchQuery,
        memory: &RememberedToolQueries,
        meaning: Option<&[Option<f32>]>,
    ) -> Vec<usize> {
        let (ranked, _) = rank(&self.index, &self.view, question, memory, meaning);
        ranked.into_iter().take(RESULTS).map(|it| it.at).collect()
    }

    /// Returns the ranker that compares words only.
    pub fn by_words(&self) -> ToolRanker<'_> {
        Box::new(|question| Ok(self.rank(&ToolSearchQuery::new(question), None)))
    }

    /// Returns the ranker by words without clauses: plain BM25F.
    pub fn bm25f(&self) -> ToolRanker<'_> {
        Box::new(|question| {
            let question =
                ToolSearchQuery { clauses: Vec::new(), ..ToolSearchQuery::new(question) };
            Ok(self.rank(&question, None))
        })
    }
}

/// Vectors of the tools and questions of a set.
pub struct ToolSetVectors {
    tools: Vec<Vec<f32>>,
    questions: std::collections::HashMap<String, Vec<f32>>,
}

impl ToolSetVectors {
    /// Turns the tools and questions of `set` into vectors.
    pub fn new(set: &ToolSet, vectors: &mut CachedModelVectors) -> anyhow::Result<Self> {
        let sentences: Vec<String> = set.tools.iter().map(|it| document(it).sentence()).collect();
        let tools = vectors.embed(&sentences)?;
        let questions: Vec<&String> = set.tasks.iter().flat_map(|it| &it.questions).collect();
        let embedded = vectors.embed(&questions)?;
        let questions = questions.into_iter().cloned().zip(embedded).collect();
        Ok(Self { tools, questions })
    }

    /// Returns the cosine of each tool with `question`.
    pub fn cosines(&self, question: &str) -> Vec<Option<f32>> {
        let Some(asked) = self.questions.get(question) else { return Vec::new() };
        let cosine = |tool: &Vec<f32>| tool.iter().zip(asked).map(|(a, b)| a * b).sum();
        self.tools.iter().map(|tool| Some(cosine(tool))).collect()
    }

    /// Returns the ranker of the sentence model alone.
    pub fn alone(&self) -> ToolRanker<'_> {
        Box::new(|question| {
            let cosines = self.cosines(question).into_iter().map(|it| 1.0 + it.unwrap_or(-1.0));
            Ok(best(&cosines.collect::<Vec<_>>()))
        })
    }
}
