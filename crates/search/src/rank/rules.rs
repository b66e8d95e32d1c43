//! Weights of the rules that adjust the reranker's scores.

/// Weights of the rules that adjust the scores of the ranking network. Penalties and bonuses are
/// logits. The values were tuned on the `tune` packages of the evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankingRules {
    /// True if a chunk that exactly matches a name or path of the query ranks before all other
    /// chunks.
    pub exact_first: bool,
    /// Bonus, in logits, for a chunk of a file whose name or path the query mentions.
    pub mentioned_path_bonus: f32,
    /// Bonus, in logits, for a chunk of a file that defines a name which the query mentions.
    pub mentioned_name_bonus: f32,
    /// Bonus, in logits, for a function with a name of one word if words of the query occur in the
    /// names that contain the function or in its path. The bonus is scaled by the share of these
    /// words, by weight.
    pub owner_bonus: f32,
    /// Penalty, in logits, for a chunk of tests that the query does not ask for.
    pub test_penalty: f32,
    /// Penalty, in logits, for a chunk of examples that the query does not ask for.
    pub example_penalty: f32,
    /// Penalty, in logits, for a chunk of text that is not code: sections, settings, other text.
    pub text_penalty: f32,
    /// Penalty, in logits, for each better chunk of the same file, so that results cover several
    /// files.
    pub same_file_penalty: f32,
    /// Weight, from 0 to 1, of every chunk except the best in the score of the chunk's file.
    pub more_chunks_weight: f32,
}

impl RankingRules {
    /// The weights for searches by the tools of the server.
    pub const TOOLS: Self = Self {
        exact_first: true,
        mentioned_path_bonus: 1.5,
        mentioned_name_bonus: 0.5,
        owner_bonus: 0.5,
        test_penalty: 1.0,
        example_penalty: 0.7,
        text_penalty: 0.5,
        same_file_penalty: 0.1,
        more_chunks_weight: 0.3,
    };
}
