//! Corrects a misspelled name in a query, and explains why a query finds nothing.

use toolgate_chunks::words::has_only_stop_words;
use toolgate_search::index::NameMatchKind;
use toolgate_search::rank::{ChunkCandidate, ExactMatchLevel, WeightedQuery};

use crate::search::engines::{SearchEngine, SearchEngineError, SearchEngineQuery};

/// A query with a misspelled name replaced by the name of a definition.
pub(super) struct CorrectedQuery {
    pub(super) query: String,
    /// A note about the correction, for the caller.
    pub(super) hint: String,
}

/// Returns the corrected query if the query contains a name that no candidate contains, and a
/// definition has a similar name. Fails if the engine fails.
pub(super) async fn correct_query(
    engine: &dyn SearchEngine,
    query: &SearchEngineQuery,
    question: &WeightedQuery,
    candidates: &[ChunkCandidate],
) -> Result<Option<CorrectedQuery>, SearchEngineError> {
    let unknown = question.literals.unknown_name(question, candidates);
    let Some(name) = unknown.map(|it| it.name.clone()) else { return Ok(None) };
    let found = engine.find_definitions(name.clone(), query.filter.clone(), 1).await?;
    let similar = found.into_iter().find(|it| it.match_kind == NameMatchKind::Misspelled);
    Ok(similar.map(|it| CorrectedQuery {
        query: question.text.replacen(&name, &it.name, 1),
        hint: format!("no `{name}` was found; searched for `{}`", it.name),
    }))
}

/// Removes the candidates that match only by chance if the query consists of common words.
/// Candidates that match an exact name or path are kept.
pub(super) fn keep_exact_if_only_stop_words(
    question: &WeightedQuery,
    candidates: &mut Vec<ChunkCandidate>,
) {
    if has_only_stop_words(&question.text) {
        candidates
            .retain(|it| question.literals.exact_match(question, it) > ExactMatchLevel::FileStem);
    }
}

/// Explains why the search for `query` found nothing, with advice.
pub(super) fn explain_no_match(query: &str) -> String {
    if has_only_stop_words(query) {
        return "the query has only common words; name what you look for".to_owned();
    }
    let is_foreign = |c: char| c.is_alphabetic() && !c.is_ascii();
    match query.chars().any(is_foreign) {
        true => "no passage contains a word of the query; ask in the language of the code, which \
                 is usually English"
            .to_owned(),
        false => "no passage contains a word of the query or a similar word; try other words, or \
                  English if the query is in another language"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_for_no_match_depends_on_the_query() {
        assert!(explain_no_match("where is it?").contains("common words"));
        assert!(explain_no_match("где хранится сессия").contains("language of the code"));
        assert!(explain_no_match("wo liegt das").contains("try other words"));
    }
}
