//! Ranks tools for a question: names first, then BM25F over fields, then meaning.

use crate::index::{CallerVisibleTools, FIELDS, ToolSearchIndex, ToolWordPosting, has_posting};
use crate::names::name_rank;
use crate::{RememberedToolQueries, ToolSearchQuery};

/// Weight of a word in each field of a tool: name, server, description, names and texts of
/// arguments. They were chosen on the tuning half of a public set; `cargo xtask eval-tools`
/// measures the other half.
const WEIGHTS: [f32; FIELDS] = [3.0, 1.0, 1.5, 0.7, 0.92];
/// Influence of each field's length on a tool's score (`b` of BM25).
const LENGTH_SHARES: [f32; FIELDS] = [0.75; FIELDS];
/// Weight of remembered queries in a tool's score.
const MEMORY_WEIGHT: f32 = 1.5;
/// Saturation of repeated words (`k1` of BM25): with a smaller value, repetitions count less.
const K1: f32 = 1.2;
/// Share of the query's clauses in a tool's score, from 0 to 1. The whole query has the remaining
/// share.
const CLAUSE_SHARE: f32 = 0.5;
/// Share of the similarity in meaning in a tool's score, from 0 to 1, if vectors are available. The
/// words have the remaining share.
const MEANING_SHARE: f32 = 0.5;
/// Minimum share of a short query's words, weighted by rarity, that a fitting tool contains.
const COVERED_MIN: f32 = 0.25;
/// Maximum number of words of a query for which the contained words decide if a tool fits.
const SHORT_WORDS_MAX: usize = 6;
/// Minimum cosine between the vectors of a query and of a fitting tool.
const COSINE_MIN: f32 = 0.25;

/// The similarity of a query to each tool of the index: the cosine of their vectors, or `None` if
/// the tool's vector is not ready.
pub type ToolSimilarities = [Option<f32>];

/// A tool that a search found, with its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankedTool {
    /// Position of the tool in the index.
    pub at: usize,
    /// Score of the tool, which is comparable only within one answer.
    pub score: f32,
}

/// Estimate of whether the best found tool does what the query asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BestToolConfidence {
    /// The best found tool probably fits the query.
    Fits,
    /// Probably no tool fits the query, because the best tool has too little in common with the
    /// query.
    NearestOnly,
}

/// Ranks the tools in `view` for `question`, best first and ties by id. `memory` contains earlier
/// questions that led to calls, and `meaning` the similarity of each tool's vector to that of the
/// question.
///
/// Tools that the caller may not see influence neither order nor scores.
pub fn rank(
    index: &ToolSearchIndex,
    view: &CallerVisibleTools,
    question: &ToolSearchQuery,
    memory: &RememberedToolQueries,
    meaning: Option<&ToolSimilarities>,
) -> (Vec<RankedTool>, BestToolConfidence) {
    let scorer = ToolWordScorer { index, view, memory };
    let mut scores = scorer.words_and_clauses(question);
    let lexical_best = best(&scores);
    if let Some(meaning) = meaning {
        scores = fuse(&scores, meaning, view);
    }
    let mut ranked: Vec<RankedTool> = scores
        .iter()
        .enumerate()
        .filter(|(at, score)| view.shows(*at) && **score > 0.0)
        .map(|(at, score)| RankedTool { at, score: *score })
        .collect();
    ranked.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.at.cmp(&b.at)));
    let named = promote_names(index, view, question, &mut ranked);
    let fits = named
        || match meaning {
            Some(meaning) => best_cosine(meaning, view) >= COSINE_MIN,
            None => scorer.covers(question, lexical_best.map(|(at, _)| at)),
        };
    (ranked, if fits { BestToolConfidence::Fits } else { BestToolConfidence::NearestOnly })
}

/// Contribution of one word of a query to a tool's score.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolWordScore {
    /// Word of the query, stemmed as in the index.
    pub word: String,
    /// Score of the tool for this word alone, which is comparable only within one answer.
    pub score: f32,
}

/// Returns the words of `question` that the tool at the index position `at` contains, highest score
/// first.
pub fn word_scores(
    index: &ToolSearchIndex,
    view: &CallerVisibleTools,
    question: &ToolSearchQuery,
    at: usize,
) -> Vec<ToolWordScore> {
    let memory = RememberedToolQueries::default();
    let scorer = ToolWordScorer { index, view, memory: &memory };
    let scores = question.words.iter().map(|word| {
        let score = scorer.bm25f(std::slice::from_ref(word)).get(at).copied().unwrap_or_default();
        ToolWordScore { word: word.clone(), score }
    });
    let mut scores: Vec<ToolWordScore> = scores.filter(|it| it.score > 0.0).collect();
    scores.sort_by(|a, b| b.score.total_cmp(&a.score));
    scores
}

/// Moves the tools whose names the query contains to the front of `ranked`. Returns true if there
/// are any.
fn promote_names(
    index: &ToolSearchIndex,
    view: &CallerVisibleTools,
    question: &ToolSearchQuery,
    ranked: &mut Vec<RankedTool>,
) -> bool {
    // A name has no spaces, and comparing every name takes a while.
    if question.text.is_empty() || question.text.contains(char::is_whitespace) {
        return false;
    }
    let seen = (0..index.len()).filter(|at| view.shows(*at));
    let close = seen.filter_map(|at| {
        let rank = name_rank(&question.text, index.id(at), index.name(at));
        rank.map(|rank| (rank, at))
    });
    let mut named: Vec<(u8, usize)> = close.collect();
    named.sort_unstable();
    named.truncate(20);
    if named.is_empty() {
        return false;
    }
    let top = ranked.first().map_or(0.0, |best| best.score) + 1.0;
    ranked.retain(|tool| named.iter().all(|(_, at)| *at != tool.at));
    let named = named.into_iter().map(|(_, at)| RankedTool { at, score: top });
    ranked.splice(0..0, named);
    true
}

/// Scorer of tools by the words of a query.
struct ToolWordScorer<'a> {
    index: &'a ToolSearchIndex,
    view: &'a CallerVisibleTools,
    memory: &'a RememberedToolQueries,
}

impl ToolWordScorer<'_> {
    /// Returns the score of each tool by words: the whole query and its clauses count half each.
    fn words_and_clauses(&self, question: &ToolSearchQuery) -> Vec<f32> {
        let whole = self.bm25f(&question.words);
        if question.clauses.is_empty() {
            return whole;
        }
        let mut clauses = vec![0.0_f32; whole.len()];
        for clause in &question.clauses {
            let scores = self.bm25f(clause);
            let Some((_, top)) = best(&scores) else { continue };
            for (sum, score) in clauses.iter_mut().zip(&scores) {
                *sum = sum.max(score / top);
            }
        }
        let top = best(&whole).map_or(1.0, |(_, top)| top);
        let both = whole.iter().zip(&clauses);
        both.map(|(whole, clause)| (1.0 - CLAUSE_SHARE) * whole / top + CLAUSE_SHARE * clause)
            .collect()
    }

    fn bm25f(&self, words: &[String]) -> Vec<f32> {
        let mut scores = vec![0.0_f32; self.index.len()];
        let remembered: Vec<usize> = self.remembered_places();
        for word in words {
            let postings = self.index.postings(word);
            let rarity = self.rarity(word, postings, &remembered);
            for posting in postings.iter().filter(|it| self.view.shows(it.tool as usize)) {
                let at = posting.tool as usize;
                let known = match remembered.contains(&at) {
                    true => self.memory_weight(at, word),
                    false => 0.0,
                };
                let weight = self.weight(posting) + known;
                scores[at] += rarity * weight * (K1 + 1.0) / (weight + K1);
            }
            for at in &remembered {
                let weight = match has_posting(postings, *at) {
                    true => 0.0,
                    false => self.memory_weight(*at, word),
                };
                scores[*at] += rarity * weight * (K1 + 1.0) / (weight + K1);
            }
        }
        scores
    }

    /// Returns how often a word occurs in a tool, weighted by field and length of the fields.
    fn weight(&self, posting: &ToolWordPosting) -> f32 {
        let lengths = self.index.lengths(posting.tool as usize);
        let mut weight = 0.0;
        for field in 0..FIELDS {
            if posting.counts[field] > 0 {
                let mean = self.view.mean_lengths[field].max(f32::MIN_POSITIVE);
                let share = LENGTH_SHARES[field];
                let length = 1.0 - share + share * f32::from(lengths[field]) / mean;
                weight += WEIGHTS[field] * f32::from(posting.counts[field]) / length;
            }
        }
        weight
    }

    fn memory_weight(&self, at: usize, word: &str) -> f32 {
        if self.memory.is_empty() {
            return 0.0;
        }
        let count = self.memory.counts(self.index.id(at), word);
        MEMORY_WEIGHT * u8::try_from(count).map_or(0.0, f32::from)
    }

    fn remembered_places(&self) -> Vec<usize> {
        let places = self.memory.tools().filter_map(|id| self.index.place(id));
        places.filter(|at| self.view.shows(*at)).collect()
    }

    /// Returns the rarity of a word among the tools that the caller may see.
    #[allow(clippy::cast_precision_loss, reason = "a rarity needs no exact counts")]
    fn rarity(&self, word: &str, postings: &[ToolWordPosting], remembered: &[usize]) -> f32 {
        let with_word = postings.iter().filter(|it| self.view.shows(it.tool as usize)).count();
        let only_remembered = |at: &&usize| {
            !has_posting(postings, **at) && self.memory.counts(self.index.id(**at), word) > 0
        };
        let known = with_word + remembered.iter().filter(only_remembered).count();
        let (known, all) = (known as f32, self.view.count as f32);
        ((all - known + 0.5) / (known + 0.5)).ln_1p().max(0.0)
    }

    /// Returns true if the tool at the index position `at` contains enough words of a short
    /// question, or if the question is long. For long questions, the words do not show if a tool
    /// fits. Returns false if `at` is `None`.
    fn covers(&self, question: &ToolSearchQuery, at: Option<usize>) -> bool {
        let Some(at) = at else { return false };
        if question.words.len() > SHORT_WORDS_MAX {
            return true;
        }
        let remembered = self.remembered_places();
        let mut sums = (0.0, 0.0);
        for word in &question.words {
            let postings = self.index.postings(word);
            let rarity = self.rarity(word, postings, &remembered);
            let has_word = has_posting(postings, at) || self.memory_weight(at, word) > 0.0;
            sums.0 += if has_word { rarity } else { 0.0 };
            sums.1 += rarity;
        }
        sums.0 >= COVERED_MIN * sums.1
    }
}

/// Returns the index position and score of the best tool, if any tool has a score.
fn best(scores: &[f32]) -> Option<(usize, f32)> {
    let found = scores.iter().copied().enumerate().filter(|(_, score)| *score > 0.0);
    found.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

fn best_cosine(meaning: &ToolSimilarities, view: &CallerVisibleTools) -> f32 {
    let seen = meaning.iter().enumerate().filter(|(at, _)| view.shows(*at));
    seen.filter_map(|(_, cosine)| *cosine).fold(-1.0, f32::max)
}

/// Combines the tools' scores by words with their similarity in meaning. Both are scaled from 0 to
/// 1 over the visible tools.
fn fuse(words: &[f32], meaning: &ToolSimilarities, view: &CallerVisibleTools) -> Vec<f32> {
    let top = best(words).map_or(1.0, |(_, top)| top);
    let known = || {
        let seen = meaning.iter().enumerate().filter(|(at, _)| view.shows(*at));
        seen.filter_map(|(_, cosine)| *cosine)
    };
    let least = known().fold(f32::INFINITY, f32::min);
    let spread = (known().fold(f32::NEG_INFINITY, f32::max) - least).max(f32::MIN_POSITIVE);
    let fused = words.iter().zip(meaning).map(|(score, cosine)| {
        let meant = cosine.map_or(0.0, |cosine| (cosine - least) / spread);
        (1.0 - MEANING_SHARE) * score / top + MEANING_SHARE * meant
    });
    fused.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ToolSearchDocument;

    fn index() -> ToolSearchIndex {
        let schema = json!({ "properties": { "path": { "description": "Path of a file." } } });
        let tools = [
            ("files.read", "read", "files", "Read a file."),
            ("files.write", "write", "files", "Write a file."),
            ("github.create_issue", "create_issue", "github", "Create an issue in a repository."),
            ("slack.post_message", "post_message", "slack", "Post a message to a channel."),
        ];
        ToolSearchIndex::new(tools.map(|(id, name, server, about)| {
            (id, ToolSearchDocument::new(name, server, "", about, &schema))
        }))
    }

    fn first(index: &ToolSearchIndex, memory: &RememberedToolQueries, question: &str) -> String {
        let view = index.view(|_| true);
        let (ranked, _) = rank(index, &view, &ToolSearchQuery::new(question), memory, None);
        ranked.first().map(|tool| index.id(tool.at).to_owned()).unwrap_or_default()
    }

    #[test]
    fn a_tool_is_found_by_its_words_and_by_its_name() {
        let index = index();
        for (question, expected) in [
            ("open an issue", "github.create_issue"),
            ("Please post something to the channel", "slack.post_message"),
            ("mcp__files__write", "files.write"),
            ("create_isue", "github.create_issue"),
            ("zebra", ""),
        ] {
            assert_eq!(first(&index, &RememberedToolQueries::default(), question), expected);
        }
    }

    #[test]
    fn the_words_that_found_a_tool_are_listed_with_the_rarest_first() {
        let index = index();
        let view = index.view(|_| true);
        let place = index.place("files.write").expect("it is indexed");
        let scores =
            word_scores(&index, &view, &ToolSearchQuery::new("write the zebra file"), place);
        let words: Vec<&str> = scores.iter().map(|it| it.word.as_str()).collect();
        assert_eq!(words, [words_of("write"), words_of("file")]);
    }

    fn words_of(text: &str) -> String {
        ToolSearchQuery::new(text).words.concat()
    }

    #[test]
    fn a_remembered_question_finds_its_tool() {
        let mut memory = RememberedToolQueries::default();
        memory.remember(
            "slack.post_message",
            &ToolSearchQuery::new("tell everybody about the outage"),
        );
        assert_eq!(first(&index(), &memory, "an outage"), "slack.post_message");
    }

    #[test]
    fn a_question_that_no_tool_covers_is_said_to_have_only_near_tools() {
        let index = index();
        let view = index.view(|_| true);
        let coverage = |question: &str| {
            rank(
                &index,
                &view,
                &ToolSearchQuery::new(question),
                &RememberedToolQueries::default(),
                None,
            )
            .1
        };
        assert_eq!(coverage("create issue"), BestToolConfidence::Fits);
        assert_eq!(coverage("tweet it"), BestToolConfidence::NearestOnly);
    }

    #[test]
    fn the_meaning_finds_a_tool_without_common_words() {
        let index = index();
        let view = index.view(|_| true);
        let memory = RememberedToolQueries::default();
        let meaning = [Some(0.0), Some(0.1), Some(0.1), Some(0.7)];
        let question = ToolSearchQuery::new("shout");
        let (ranked, coverage) = rank(&index, &view, &question, &memory, Some(&meaning));
        assert_eq!(
            (index.id(ranked[0].at), coverage),
            ("slack.post_message", BestToolConfidence::Fits)
        );
    }
}
