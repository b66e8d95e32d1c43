//! Reranker: scores candidates with a network and by their kind of text.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use toolgate_chunks::ChunkKind;
use toolgate_chunks::words::distinct_words;

use super::features::{FEATURES, extract_features};
use super::network::RankingNetwork;
use super::{Candidate, IndexStatistics, RankingRules, WeighedQuestion};
use crate::static_model::StaticModel;

/// Name of the reranker.
pub(super) const RERANKER_NAME: &str = "features-2";

/// Network for candidates without vectors of a model. [`MODEL_NETWORK`] is for candidates with such
/// vectors.
static WORDS_NETWORK: LazyLock<RankingNetwork> =
    LazyLock::new(|| load_network(include_bytes!("words.net")));
static MODEL_NETWORK: LazyLock<RankingNetwork> =
    LazyLock::new(|| load_network(include_bytes!("model.net")));

fn load_network(bytes: &[u8]) -> RankingNetwork {
    let network = RankingNetwork::parse(bytes).expect("the built-in network is valid");
    assert_eq!(network.inputs, FEATURES, "the built-in network has these features");
    network
}

/// Returns the estimated probability that each candidate matches.
pub(super) fn match_probabilities(
    rules: &RankingRules,
    question: &WeighedQuestion,
    averages: &IndexStatistics,
    candidates: &[Candidate],
) -> Vec<f32> {
    let looked = extract_features(StaticModel::built_in(), question, averages, candidates);
    // While model vectors are being made, candidates without one must not fall behind.
    let by_model = candidates.iter().filter(|it| it.model_cosine.is_some()).count();
    let network = if 2 * by_model > candidates.len() { &*MODEL_NETWORK } else { &*WORDS_NETWORK };
    let wants = RequestedKinds::for_question(question);
    let mut logits: Vec<f32> = looked
        .iter()
        .zip(candidates)
        .map(|(features, it)| network.logit(features) - wants.penalty(rules, it))
        .collect();
    favor_mentioned_files(&mut logits, rules, question, candidates);
    penalize_same_file(&mut logits, rules, candidates);
    logits.into_iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
}

/// Kinds of text that a query asks for by name.
struct RequestedKinds {
    tests: bool,
    examples: bool,
    texts: bool,
}

impl RequestedKinds {
    fn for_question(question: &WeighedQuestion) -> Self {
        let any = |words: &str| {
            distinct_words(words).iter().any(|word| question.concept_index(word).is_some())
        };
        Self {
            tests: any("test spec fixture mock"),
            examples: any("example demo sample tutorial"),
            texts: any("docs document readme guide changelog config configuration settings"),
        }
    }

    /// Returns the logit penalty of `candidate` for its kind of text.
    fn penalty(&self, rules: &RankingRules, candidate: &Candidate) -> f32 {
        let is = |tag: &str| candidate.summary.tags.iter().any(|it| it == tag);
        let test = if is("test") && !self.tests { rules.test_penalty } else { 0.0 };
        let example = if is("example") && !self.examples { rules.example_penalty } else { 0.0 };
        let text_score = match candidate.summary.kind {
            ChunkKind::Function | ChunkKind::Type | ChunkKind::Code => 0.0,
            ChunkKind::Section | ChunkKind::Key | ChunkKind::Text if self.texts => 0.0,
            ChunkKind::Section | ChunkKind::Key | ChunkKind::Text => rules.text_penalty,
        };
        test + example + text_score
    }
}

/// Adds a bonus to the candidates of files that the query mentions, by path or by a name that they
/// define.
fn favor_mentioned_files(
    logits: &mut [f32],
    rules: &RankingRules,
    question: &WeighedQuestion,
    candidates: &[Candidate],
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

/// Subtracts a penalty from each candidate for each better candidate of the same file.
fn penalize_same_file(logits: &mut [f32], rules: &RankingRules, candidates: &[Candidate]) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let mut before: BTreeMap<&str, f32> = BTreeMap::new();
    for at in order {
        let count = before.entry(&candidates[at].summary.path).or_default();
        logits[at] -= rules.same_file_penalty * *count;
        *count += 1.0;
    }
}
