//! Reranker: scores candidates with a network and by their kind of text.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use toolgate_chunks::ChunkKind;
use toolgate_chunks::words::distinct_words;

use super::features::{FEATURES, extract_features};
use super::network::RankingNetwork;
use super::{Candidate, IndexStatistics, WeighedQuestion};
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

/// Logit penalty for tests that the query does not ask for.
const TEST_PENALTY: f32 = 1.0;
const EXAMPLE_PENALTY: f32 = 0.7;
/// Logit penalty for text that is not code: sections, settings, other text.
const TEXT_PENALTY: f32 = 0.5;
/// Logit penalty for each better chunk of the same file, so that results cover several files.
const SAME_FILE_PENALTY: f32 = 0.1;

/// Returns the estimated probability that each candidate matches.
pub(super) fn match_probabilities(
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
        .map(|(features, it)| network.logit(features) - wants.penalty(it))
        .collect();
    penalize_same_file(&mut logits, candidates);
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
    fn penalty(&self, candidate: &Candidate) -> f32 {
        let is = |tag: &str| candidate.summary.tags.iter().any(|it| it == tag);
        let test = if is("test") && !self.tests { TEST_PENALTY } else { 0.0 };
        let example = if is("example") && !self.examples { EXAMPLE_PENALTY } else { 0.0 };
        let text_score = match candidate.summary.kind {
            ChunkKind::Function | ChunkKind::Type | ChunkKind::Code => 0.0,
            ChunkKind::Section | ChunkKind::Key | ChunkKind::Text if self.texts => 0.0,
            ChunkKind::Section | ChunkKind::Key | ChunkKind::Text => TEXT_PENALTY,
        };
        test + example + text_score
    }
}

/// Subtracts a penalty from each candidate for each better candidate of the same file.
fn penalize_same_file(logits: &mut [f32], candidates: &[Candidate]) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let mut before: BTreeMap<&str, f32> = BTreeMap::new();
    for at in order {
        let count = before.entry(&candidates[at].summary.path).or_default();
        logits[at] -= SAME_FILE_PENALTY * *count;
        *count += 1.0;
    }
}
