//! Reranker: scores candidates with a network and by their kind of text.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use toolgate_chunks::ChunkKind;
use toolgate_chunks::words::{distinct_words, identifier_parts};

use super::features::{FEATURES, extract_features};
use super::network::RankingNetwork;
use super::{ChunkCandidate, ChunkField, IndexStatistics, RankingRules, WeightedQuery};
use crate::static_model::StaticEmbeddingModel;

/// Name of the network that ranks candidates, with its version.
pub(super) const RERANKER_NAME: &str = "features-2";

/// Ranking network for candidates without vectors of a configured model. [`MODEL_NETWORK`] is for
/// candidates with such vectors.
static WORDS_NETWORK: LazyLock<RankingNetwork> =
    LazyLock::new(|| load_network(include_bytes!("words.net")));
static MODEL_NETWORK: LazyLock<RankingNetwork> =
    LazyLock::new(|| load_network(include_bytes!("model.net")));

fn load_network(bytes: &[u8]) -> RankingNetwork {
    let network = RankingNetwork::parse(bytes).expect("the built-in network is valid");
    assert_eq!(network.inputs, FEATURES, "the built-in network has these features");
    network
}

/// Returns the estimated probability that each candidate matches the query.
pub(super) fn match_probabilities(
    rules: &RankingRules,
    question: &WeightedQuery,
    averages: &IndexStatistics,
    candidates: &[ChunkCandidate],
) -> Vec<f32> {
    let looked = extract_features(StaticEmbeddingModel::built_in(), question, averages, candidates);
    // While model vectors are being made, candidates without one must not fall behind.
    let by_model = candidates.iter().filter(|it| it.model_cosine.is_some()).count();
    let network = if 2 * by_model > candidates.len() { &*MODEL_NETWORK } else { &*WORDS_NETWORK };
    let wants = RequestedTextKinds::for_question(question);
    let mut logits: Vec<f32> = looked
        .iter()
        .zip(candidates)
        .map(|(features, it)| {
            network.logit(features) + owner_bonus(rules, question, it) - wants.penalty(rules, it)
        })
        .collect();
    favor_mentioned_files(&mut logits, rules, question, candidates);
    penalize_same_file(&mut logits, rules, candidates);
    logits.into_iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
}

/// Kinds of text (such as tests) that a query asks for by name.
struct RequestedTextKinds {
    tests: bool,
    examples: bool,
    texts: bool,
}

impl RequestedTextKinds {
    fn for_question(question: &WeightedQuery) -> Self {
        let any = |words: &str| {
            distinct_words(words).iter().any(|word| question.concept_index(word).is_some())
        };
        Self {
            tests: any("test spec fixture mock"),
            examples: any("example demo sample tutorial"),
            texts: any("docs document readme guide changelog config configuration settings"),
        }
    }

    /// Returns the logit penalty of `candidate` for a kind of text that the query does not ask for.
    fn penalty(&self, rules: &RankingRules, candidate: &ChunkCandidate) -> f32 {
        let is = |tag: &str| candidate.summary.tags.iter().any(|it| it == tag);
        let test = if is_test(candidate) && !self.tests { rules.test_penalty } else { 0.0 };
        let example = if is("example") && !self.examples { rules.example_penalty } else { 0.0 };
        let text_score = match candidate.summary.kind {
            ChunkKind::Function | ChunkKind::Type | ChunkKind::Code => 0.0,
            ChunkKind::Section | ChunkKind::Key | ChunkKind::Text if self.texts => 0.0,
            ChunkKind::Section | ChunkKind::Key | ChunkKind::Text => rules.text_penalty,
        };
        test + example + text_score
    }
}

/// Names of modules and types that contain tests beside the code that they test.
const TEST_CONTAINERS: [&str; 3] = ["test", "tests", "benches"];

/// Returns true if `candidate` is in a test file or in a module of tests.
fn is_test(candidate: &ChunkCandidate) -> bool {
    let summary = &candidate.summary;
    summary.tags.iter().any(|tag| tag == "test")
        || summary.within.iter().any(|it| TEST_CONTAINERS.contains(&it.as_str()))
}

/// Returns the bonus, in logits, for a function with a name of one word. The bonus depends on the
/// words of the query that occur in the function's path or enclosing names, but not in its name.
fn owner_bonus(rules: &RankingRules, question: &WeightedQuery, candidate: &ChunkCandidate) -> f32 {
    let Some(name) = candidate.summary.names.first() else { return 0.0 };
    let mut parts = 0;
    identifier_parts(name, |_| parts += 1);
    if parts > 1 || candidate.summary.kind != ChunkKind::Function {
        return 0.0;
    }
    let mut owned = 0.0;
    let mut all = 0.0;
    for (concept, counts) in question.concepts.iter().zip(&candidate.counts) {
        let has = |field: ChunkField| counts[field as usize] > 0;
        all += concept.rarity;
        if !has(ChunkField::Name) && (has(ChunkField::Within) || has(ChunkField::Path)) {
            owned += concept.rarity;
        }
    }
    rules.owner_bonus * owned / f32::max(all, 1e-6)
}

/// Adds a bonus to the logit of each candidate whose file the query mentions: by the file's path,
/// or by a name that the file defines.
fn favor_mentioned_files(
    logits: &mut [f32],
    rules: &RankingRules,
    question: &WeightedQuery,
    candidates: &[ChunkCandidate],
) {
    let literals = &question.literals;
    if literals.is_empty() {
        return;
    }
    let defines = candidates.iter().filter(|it| literals.is_defined_by(&it.summary));
    let defining: HashSet<&str> = defines.map(|it| it.summary.path.as_str()).collect();
    for (logit, candidate) in logits.iter_mut().zip(candidates) {
        let path = candidate.summary.path.as_str();
        if literals.names_path(path) {
            *logit += rules.mentioned_path_bonus;
        }
        if defining.contains(path) {
            *logit += rules.mentioned_name_bonus;
        }
    }
}

/// Subtracts a penalty from the logit of each candidate, once for each better candidate of the same
/// file.
fn penalize_same_file(logits: &mut [f32], rules: &RankingRules, candidates: &[ChunkCandidate]) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let mut before: BTreeMap<&str, f32> = BTreeMap::new();
    for at in order {
        let count = before.entry(&candidates[at].summary.path).or_default();
        logits[at] -= rules.same_file_penalty * *count;
        *count += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChunkSummary;
    use crate::rank::{FIELDS, count_words};

    fn candidate(
        question: &WeightedQuery,
        within: &str,
        name: &str,
        tags: &[&str],
    ) -> ChunkCandidate {
        let texts = [name, within, "src/a.rs", "", "", ""];
        let (counts, lengths): (_, [u32; FIELDS]) = count_words(question, &texts);
        let summary = ChunkSummary {
            path: "src/a.rs".to_owned(),
            first: 1,
            last: 2,
            kind: ChunkKind::Function,
            names: vec![name.to_owned()],
            within: within.split_whitespace().map(str::to_owned).collect(),
            head: String::new(),
            lang: None,
            tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            etag: String::new(),
            commit: None,
        };
        ChunkCandidate { key: 0, counts, lengths, static_cosine: 0.0, model_cosine: None, summary }
    }

    #[test]
    fn the_class_counts_for_a_method_with_a_name_of_one_word_only() {
        let question = WeightedQuery::new("close the session", 10, |_| 1);
        let bonus = |within: &str, name: &str| {
            let candidate = candidate(&question, within, name, &[]);
            owner_bonus(&RankingRules::TOOLS, &question, &candidate)
        };
        assert!(bonus("Session", "close") > 0.0);
        assert!(bonus("Session", "close").total_cmp(&bonus("Cache", "close")).is_gt());
        assert!(bonus("Session", "close_all").abs() < 1e-6);
    }

    #[test]
    fn a_module_of_tests_is_penalized_like_a_test_file_unless_the_query_asks_for_tests() {
        let penalty = |query: &str, within: &str, tags: &[&str]| {
            let question = WeightedQuery::new(query, 10, |_| 1);
            let candidate = candidate(&question, within, "parse_header", tags);
            RequestedTextKinds::for_question(&question).penalty(&RankingRules::TOOLS, &candidate)
        };
        assert!(penalty("parse a header", "tests", &[]) > 0.0);
        assert!(penalty("parse a header", "", &["test"]) > 0.0);
        assert!(penalty("parse a header", "", &[]).abs() < 1e-6);
        assert!(penalty("test that parses a header", "tests", &[]).abs() < 1e-6);
    }
}
