//! Finds chunks at Qdrant: by words, by vectors, by what they are called.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use qdrant_client::qdrant::{
    Condition, CountPointsBuilder, FacetCountsBuilder, Filter as Where, GetPointsBuilder,
    PayloadIncludeSelector, PointId, Query, QueryBatchPointsBuilder, QueryPoints,
    QueryPointsBuilder, RetrievedPoint, ScrollPointsBuilder, VectorInput, VectorsSelector,
    with_payload_selector::SelectorOptions,
};
use qdrant_client::{Qdrant, QdrantError};
use tokio::task::JoinSet;
use toolgate_chunks::words::concepts;
use toolgate_search::Filter;
use toolgate_search::index::{Asked, Named};
use toolgate_search::rank::question::CONCEPTS_MAX;
use toolgate_search::rank::{Averages, Candidate, Question, bm25f, count};

use super::super::{By, Doing, Matched, Sought, Vectors};
use super::points::{self, MODEL, NEAR, Sums, WORDS};
use super::trouble::Trouble;
use super::{AtQdrant, PAGE, Shared, facet_text};

/// So many more than wanted are taken by words, since there they are only weighed roughly.
const ROUGHLY: usize = 3;
/// So many definitions are looked at that may be called like a name.
const NAMED_MAX: usize = 2_000;
/// So many names are looked through for one that is misspelt.
const NAMES_MAX: u64 = 200_000;

impl AtQdrant {
    /// What may be meant by `sought`.
    pub(super) async fn find(&self, sought: &Sought) -> Result<Matched, Trouble> {
        let Shared { client, .. } = &*self.shared;
        let averages = averages(client, &self.collection).await?;
        let question = match &sought.query {
            Some(query) => Some(self.question(query, averages.chunks).await?),
            None => None,
        };
        let mut queries: Vec<QueryPoints> = Vec::new();
        let only = only(&sought.filter);
        let ask = |query: Query, using: &str, limit: usize| {
            QueryPointsBuilder::new(&self.collection)
                .query(query)
                .using(using)
                .filter(only.clone())
                .limit(limit as u64)
                .with_payload(true)
                .with_vectors(VectorsSelector { names: self.spaces() })
                .build()
        };
        if let Some(question) = question.as_ref().filter(|it| !it.concepts.is_empty()) {
            // How rare each is was counted exactly, so Qdrant need not guess it. Two words may fall
            // together.
            let mut asked: BTreeMap<u32, f32> = BTreeMap::new();
            for it in &question.concepts {
                *asked.entry(points::dimension(&it.word)).or_default() += it.rarity;
            }
            let (words, rarities): (Vec<u32>, Vec<f32>) = asked.into_iter().unzip();
            let asked = VectorInput::new_sparse(words, rarities);
            queries.push(ask(Query::new_nearest(asked), WORDS, sought.limit * ROUGHLY));
        }
        let spaces = [(NEAR, &sought.near), (MODEL, &sought.model)];
        for (using, vector) in spaces {
            if let Some(vector) = vector.as_ref().filter(|_| using == NEAR || self.model.is_some())
            {
                queries.push(ask(Query::new_nearest(vector.clone()), using, sought.limit));
            }
        }
        let by_vectors_from =
            usize::from(question.as_ref().is_some_and(|it| !it.concepts.is_empty()));
        let mut answers = Vec::new();
        if !queries.is_empty() {
            let queries = QueryBatchPointsBuilder::new(&self.collection, queries);
            answers = client.query_batch(queries).await?.result;
        }
        let empty = Question::new("", 0, |_| 0);
        let counted = question.as_ref().unwrap_or(&empty);
        let mut found: HashMap<u64, Candidate> = HashMap::new();
        let mut by_vectors: HashSet<u64> = HashSet::new();
        for (at, answer) in answers.into_iter().enumerate() {
            for point in answer.result {
                let Some(key) = points::number(point.id.as_ref()) else { continue };
                if at >= by_vectors_from {
                    by_vectors.insert(key);
                }
                if found.contains_key(&key) {
                    continue;
                }
                let (Some(shown), Some(texts)) =
                    (points::shown(&point.payload), points::texts(&point.payload))
                else {
                    continue;
                };
                let cosine = |name: &str, asked: &Option<Vec<f32>>| {
                    let vector = points::dense(point.vectors.as_ref(), name)?;
                    Some(points::cosine(asked.as_ref()?, &vector))
                };
                let texts = texts.each_ref().map(String::as_str);
                let (counts, lengths) = count(counted, &texts);
                let candidate = Candidate {
                    key,
                    counts,
                    lengths,
                    near: cosine(NEAR, &sought.near).unwrap_or_default(),
                    model: cosine(MODEL, &sought.model),
                    shown,
                };
                found.insert(key, candidate);
            }
        }
        let mut candidates: Vec<Candidate> = found.into_values().collect();
        candidates.sort_by_key(|it| it.key);
        if let Some(question) = &question {
            let score = |it: &Candidate| bm25f::score(question, &averages, &it.counts, &it.lengths);
            let mut scores: Vec<f32> = candidates.iter().map(score).collect();
            scores.sort_unstable_by(|a, b| b.total_cmp(a));
            let least = scores.get(sought.limit.saturating_sub(1)).copied().unwrap_or(0.0);
            candidates.retain(|it| score(it) >= least || by_vectors.contains(&it.key));
        }
        let vectors =
            Arc::new(OfFound { shared: self.shared.clone(), collection: self.collection.clone() });
        Ok(Matched { question, averages, candidates, total: None, vectors })
    }

    fn spaces(&self) -> Vec<String> {
        let model = self.model.as_ref().map(|_| MODEL.to_owned());
        std::iter::once(NEAR.to_owned()).chain(model).collect()
    }

    async fn question(&self, query: &str, chunks: u64) -> Result<Question, Trouble> {
        let mut counts = JoinSet::new();
        for concept in concepts(query).into_iter().take(CONCEPTS_MAX) {
            let has = Where::must([Condition::matches("words", concept.word.clone())]);
            let count = CountPointsBuilder::new(&self.collection).filter(has).exact(true);
            let shared = self.shared.clone();
            counts.spawn(async move {
                let found = shared.client.count(count).await?.result;
                Ok::<_, QdrantError>((concept.word, found.map_or(0, |it| it.count)))
            });
        }
        let mut holding: HashMap<String, u64> = HashMap::new();
        while let Some(counted) = counts.join_next().await {
            // Nobody ends these but whoever drops the set.
            let Ok(counted) = counted else { continue };
            let (word, count) = counted?;
            holding.insert(word, count);
        }
        Ok(Question::new(query, chunks, |word| holding.get(word).copied().unwrap_or_default()))
    }

    /// Up to `limit` definitions called like what is asked.
    pub(super) async fn like(
        &self,
        asked: &Asked,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Named>, Trouble> {
        let client = &self.shared.client;
        let mut ways = vec![Condition::matches_prefix("symbols", asked.symbol())];
        if !asked.words().is_empty() {
            let words = asked.words().iter().map(|word| Condition::matches("named", word.clone()));
            ways.push(Where::must(words).into());
        }
        if asked.misspelt() > 0 {
            let facet = FacetCountsBuilder::new(&self.collection, "symbols").limit(NAMES_MAX);
            let names = client.facet(facet).await?.hits.into_iter().filter_map(facet_text);
            let like: Vec<String> = names.filter(|it| asked.distance(it).is_some()).collect();
            if !like.is_empty() {
                ways.push(Condition::matches("symbols", like));
            }
        }
        let mut only = only(filter);
        only.must.push(Where::should(ways).into());
        let found = scrolled(client, &self.collection, only, &["shown"], NAMED_MAX).await?;
        let shown = found.iter().filter_map(|it| points::shown(&it.payload));
        Ok(asked.likeliest(shown, limit))
    }
}

/// That a point is a chunk that `filter` lets in.
pub(super) fn only(filter: &Filter) -> Where {
    let mut must = vec![Condition::matches("kind", "chunk".to_owned())];
    if !filter.prefixes.is_empty() && !filter.prefixes.iter().any(String::is_empty) {
        let begins =
            filter.prefixes.iter().map(|it| Condition::matches_prefix("path", it.as_str()));
        must.push(Where::should(begins).into());
    }
    must.extend(
        filter.tags.iter().map(|tag| Condition::matches("folded", tag.to_ascii_lowercase())),
    );
    Where::must(must)
}

/// Only the fields `names` of what is found.
pub(super) fn included(names: &[&str]) -> SelectorOptions {
    let fields = names.iter().map(|it| (*it).to_owned()).collect();
    SelectorOptions::Include(PayloadIncludeSelector { fields })
}

/// Up to `most` points that are as `only` says, with the fields `payload`.
pub(super) async fn scrolled(
    client: &Qdrant,
    collection: &str,
    only: Where,
    payload: &[&str],
    most: usize,
) -> Result<Vec<RetrievedPoint>, Trouble> {
    let mut found = Vec::new();
    let mut from = None;
    loop {
        let mut scroll = ScrollPointsBuilder::new(collection)
            .filter(only.clone())
            .limit(PAGE.min(u32::try_from(most - found.len()).unwrap_or(PAGE)))
            .with_payload(included(payload));
        if let Some(from) = from.take() {
            scroll = scroll.offset::<PointId>(from);
        }
        let page = client.scroll(scroll).await?;
        found.extend(page.result);
        match page.next_page_offset {
            Some(next) if found.len() < most => from = Some(next),
            Some(_) | None => return Ok(found),
        }
    }
}

/// How many points of a kind there are.
pub(super) async fn counted(client: &Qdrant, collection: &str, kind: &str) -> Result<u64, Trouble> {
    let of_kind = Where::must([Condition::matches("kind", kind.to_owned())]);
    let count = CountPointsBuilder::new(collection).filter(of_kind).exact(true);
    Ok(client.count(count).await?.result.map_or(0, |it| it.count))
}

/// How many chunks there are, and how long their fields are on average.
async fn averages(client: &Qdrant, collection: &str) -> Result<Averages, Trouble> {
    let get = GetPointsBuilder::new(collection, vec![Sums::id()]).with_payload(true);
    let sums = client.get_points(get).await?.result;
    let sums = sums.first().map(|it| Sums::of(&it.payload)).unwrap_or_default();
    Ok(sums.averages())
}

/// Fetches the vectors of what was found, when they are wanted.
struct OfFound {
    shared: Arc<Shared>,
    collection: String,
}

impl Vectors for OfFound {
    fn of(&self, keys: Vec<u64>, by: By) -> Doing<'_, Vec<Option<Vec<f32>>>> {
        Box::pin(async move {
            let name = match by {
                By::Static => NEAR,
                By::Model => MODEL,
            };
            let ids = keys.iter().map(|key| (*key).into()).collect::<Vec<_>>();
            let names = vec![name.to_owned()];
            let get = GetPointsBuilder::new(&self.collection, ids)
                .with_payload(false)
                .with_vectors(VectorsSelector { names });
            let work = async { Ok(self.shared.client.get_points(get).await?) };
            let found = self.shared.within(self.shared.within, work).await?.result;
            let mut of: HashMap<u64, Vec<f32>> = found
                .iter()
                .filter_map(|it| {
                    let key = points::number(it.id.as_ref())?;
                    Some((key, points::dense(it.vectors.as_ref(), name)?))
                })
                .collect();
            Ok(keys.iter().map(|key| of.remove(key)).collect())
        })
    }
}
