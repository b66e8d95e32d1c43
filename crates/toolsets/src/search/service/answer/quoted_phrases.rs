//! Ranks passages that contain a quoted phrase of the query first.
//!
//! The index knows the words of a passage, but not their order. So more passages are read than
//! requested, and passages with the phrase come first.

use toolgate_search::rank::WeightedQuery;

use super::{SearchHit, round_score};
use crate::search::service::query::SearchRequest;

/// The minimum number of hits that are read if the query contains a quoted phrase.
const EXAMINED_MIN: usize = 40;

/// The quoted phrases in a search query.
pub(super) struct QueryQuotedPhrases<'q> {
    phrases: &'q [String],
    top_k: usize,
}

impl<'q> QueryQuotedPhrases<'q> {
    pub(super) fn new(question: Option<&'q WeightedQuery>, request: &SearchRequest) -> Self {
        let phrases: &[String] = match question {
            Some(question) if request.rerank => &question.literals.phrases,
            Some(_) | None => &[],
        };
        Self { phrases, top_k: request.top_k }
    }

    /// Returns the number of hits to read, so that hits with the phrases are probably among them.
    pub(super) fn examined(&self) -> usize {
        if self.phrases.is_empty() { self.top_k } else { self.top_k.max(EXAMINED_MIN) }
    }

    /// Moves the hits that contain all quoted phrases to the front, with higher scores. Returns at
    /// most the requested number of hits.
    pub(super) fn put_first(&self, mut hits: Vec<(usize, SearchHit)>) -> Vec<(usize, SearchHit)> {
        let has_all =
            |hit: &SearchHit| self.phrases.iter().all(|it| hit.snippet.contains(it.as_str()));
        if !self.phrases.is_empty() && hits.iter().any(|(_, hit)| has_all(hit)) {
            for (_, hit) in &mut hits {
                let level = f64::from(u8::from(has_all(&*hit)));
                hit.score = round_score((level + hit.score) / 2.0);
            }
            hits.sort_by_key(|(_, hit)| !has_all(hit));
        }
        hits.truncate(self.top_k);
        hits
    }
}
