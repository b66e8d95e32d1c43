//! Rankers that use toolgate's tool search, called as the server calls it.

use toolgate_tool_search::{
    CallerVisibleTools, RememberedToolQueries, ToolSearchIndex, ToolSearchQuery, rank,
};

use super::baselines::{RESULTS, ToolRanker, best, document};
use super::sets::{CatalogTool, ToolSet};
use crate::vectors::CachedModelVectors;

/// Index of the tools of a data set, and the view of a caller who may see all of them.
pub struct IndexedTools {
    pub index: ToolSearchIndex,
    pub view: CallerVisibleTools,
}

impl IndexedTools {
    /// Indexes `tools`, and makes all of them visible.
    pub fn new(tools: &[CatalogTool]) -> Self {
        let index = ToolSearchIndex::new(tools.iter().map(|it| (it.id.as_str(), document(it))));
        let view = index.view(|_| true);
        Self { index, view }
    }

    /// Returns the indexes of the best tools for `question`, best first. `meaning` has the cosine
    /// of each tool with the question.
    pub fn rank(&self, question: &ToolSearchQuery, meaning: Option<&[Option<f32>]>) -> Vec<usize> {
        self.rank_with(question, &RememberedToolQueries::default(), meaning)
    }

    /// Returns the indexes of the best tools for `question`, best first, for a caller whose
    /// remembered questions are in `memory`.
    pub fn rank_with(
        &self,
        question: &ToolSearchQuery,
        memory: &RememberedToolQueries,
        meaning: Option<&[Option<f32>]>,
    ) -> Vec<usize> {
        let (ranked, _) = rank(&self.index, &self.view, question, memory, meaning);
        ranked.into_iter().take(RESULTS).map(|it| it.at).collect()
    }

    /// Returns a ranker that compares words only, without a sentence model.
    pub fn by_words(&self) -> ToolRanker<'_> {
        Box::new(|question| Ok(self.rank(&ToolSearchQuery::new(question), None)))
    }

    /// Returns a ranker by words that does not split questions into clauses: plain BM25F.
    pub fn bm25f(&self) -> ToolRanker<'_> {
        Box::new(|question| {
            let question =
                ToolSearchQuery { clauses: Vec::new(), ..ToolSearchQuery::new(question) };
            Ok(self.rank(&question, None))
        })
    }
}

/// Vectors of the tools and questions of a data set.
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

    /// Returns the cosine of each tool with `question`. The list is empty for an unknown question.
    pub fn cosines(&self, question: &str) -> Vec<Option<f32>> {
        let Some(asked) = self.questions.get(question) else { return Vec::new() };
        let cosine = |tool: &Vec<f32>| tool.iter().zip(asked).map(|(a, b)| a * b).sum();
        self.tools.iter().map(|tool| Some(cosine(tool))).collect()
    }

    /// Returns a ranker that uses only the sentence model.
    pub fn alone(&self) -> ToolRanker<'_> {
        Box::new(|question| {
            let cosines = self.cosines(question).into_iter().map(|it| 1.0 + it.unwrap_or(-1.0));
            Ok(best(&cosines.collect::<Vec<_>>()))
        })
    }
}
