//! Reranker: scores candidates with a network and by their kind of text.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use toolgate_chunks::ChunkKind;
use toolgate_chunks::words::distinct;

use super::features::{FEATURES, features};
use super::network::Network;
use super::{Averages, Candidate, Question};
use crate::static_model::StaticModel;

/// Name of the reranker.
pub(super) const NAME: &str = "features-2";

/// Network for candidates without vectors of a model; [`MODEL`] is for those with.
static WORDS: LazyLock<Network> = LazyLock::new(|| network(include_bytes!("words.net")));
static MODEL: LazyLock<Network> = LazyLock::new(|| network(include_bytes!("model.net")));

fn network(bytes: &[u8]) -> Network {
    let network = Network::of(bytes).expect("the built-in network is whole");
    assert_eq!(network.inputs, FEATURES, "the built-in network knows the features");
    network
}

/// Logit penalty for tests that the query does not ask for.
const TEST: f32 = 1.0;
const EXAMPLE: f32 = 0.7;
/// Logit penalty for text that is no code: sections, settings, other text.
const SAID: f32 = 0.5;
/// Logit penalty for each better chunk of the same file, so that results cover several files.
const SAME_FILE: f32 = 0.1;

/// Returns the estimated probability that each candidate matches.
pub(super) fn scores(
    question: &Question,
    averages: &Averages,
    candidates: &[Candidate],
) -> Vec<f32> {
    let looked = features(StaticModel::built_in(), question, averages, candidates);
    // While model vectors are being made, candidates without one must not fall behind.
    let by_model = candidates.iter().filter(|it| it.model.is_some()).count();
    let network = if 2 * by_model > candidates.len() { &*MODEL } else { &*WORDS };
    let wants = Wants::of(question);
    let mut logits: Vec<f32> = looked
        .iter()
        .zip(candidates)
        .map(|(features, it)| network.logit(features) - wants.takes(it))
        .collect();
    spread(&mut logits, candidates);
    logits.into_iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
}

/// Kinds of text that a query asks for by name.
struct Wants {
    tests: bool,
    examples: bool,
    texts: bool,
}

impl Wants {
    fn of(question: &Question) -> Self {
        let any = |words: &str| distinct(words).iter().any(|word| question.at(word).is_some());
        Self {
            tests: any("test spec fixture mock"),
            examples: any("example demo sample tutorial"),
            texts: any("docs document readme guide changelog config configuration settings"),
        }
    }

    /// Returns the logit penalty of `candidate` for its kind of text.
    fn takes(&self, candidate: &Candidate) -> f32 {
        let is = |tag: &str| candidate.shown.tags.iter().any(|it| it == tag);
        let test = if is("test") && !self.tests { TEST } else { 0.0 };
        let example = if is("example") && !self.examples { EXAMPLE } else { 0.0 };
        let said = match candidate.shown.kind {
            ChunkKind::Function | ChunkKind::Type | ChunkKind::Code => 0.0,
            ChunkKind::Section | ChunkKind::Key | ChunkKind::Text if self.texts => 0.0,
            ChunkKind::Section | ChunkKind::Key | ChunkKind::Text => SAID,
        };
        test + example + said
    }
}

/// Subtracts a penalty from each candidate for the better ones of its file.
fn spread(logits: &mut [f32], candidates: &[Candidate]) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let mut before: BTreeMap<&str, f32> = BTreeMap::new();
    for at in order {
        let count = before.entry(&candidates[at].shown.path).or_default();
        logits[at] -= SAME_FILE * *count;
        *count += 1.0;
    }
}
