//! Measures recall and nDCG of a ranker for tool search over a data set.

use std::fmt::Write as _;

use super::baselines::{RESULTS, ToolRanker};
use super::sets::ToolSet;

/// Recall and nDCG of one ranker on one data set.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolRankingStatistics {
    pub name: String,
    /// Mean share of the needs of a task that the first 1, 3, 5 and 10 tools meet.
    pub recall: [f64; 4],
    pub ndcg: f64,
    /// Share of the tasks whose needs are all met by the first 5 tools.
    pub all_in_5: f64,
}

const CUTS: [usize; 4] = [1, 3, 5, 10];

/// Measures the recall and nDCG of `ranker` on the tasks of `set`.
pub fn measure(
    name: &str,
    set: &ToolSet,
    ranker: &mut ToolRanker<'_>,
) -> anyhow::Result<ToolRankingStatistics> {
    let mut figures =
        ToolRankingStatistics { name: name.to_owned(), recall: [0.0; 4], ndcg: 0.0, all_in_5: 0.0 };
    #[allow(clippy::cast_precision_loss, reason = "tasks are few")]
    let share = 1.0 / set.tasks.len().max(1) as f64;
    for task in &set.tasks {
        let answers: Vec<Vec<usize>> =
            task.questions.iter().map(|question| ranker(question)).collect::<Result<_, _>>()?;
        // The best rank of each need over all searches of the task.
        let ranks = task.needs.iter().map(|need| {
            let first = |answer: &Vec<usize>| answer.iter().position(|at| need.contains(at));
            answers.iter().filter_map(first).min()
        });
        let ranks: Vec<Option<usize>> = ranks.collect();
        #[allow(clippy::cast_precision_loss, reason = "needs are few")]
        let needs = ranks.len() as f64;
        for (at, cut) in CUTS.into_iter().enumerate() {
            let met = ranks.iter().filter(|rank| rank.is_some_and(|rank| rank < cut)).count();
            #[allow(clippy::cast_precision_loss, reason = "needs are few")]
            let met = met as f64;
            figures.recall[at] += met / needs * share;
        }
        if ranks.iter().all(|rank| rank.is_some_and(|rank| rank < 5)) {
            figures.all_in_5 += share;
        }
        figures.ndcg += ndcg(&ranks) * share;
    }
    Ok(figures)
}

/// Returns nDCG@10 for the best rank of each need, from 0.
fn ndcg(ranks: &[Option<usize>]) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "ranks are small")]
    let gain = |rank: usize| 1.0 / (rank as f64 + 2.0).log2();
    let found = ranks.iter().flatten().filter(|rank| **rank < RESULTS).map(|rank| gain(*rank));
    let ideal = (0..ranks.len().min(RESULTS)).map(gain);
    found.sum::<f64>() / ideal.sum::<f64>().max(f64::MIN_POSITIVE)
}

/// Returns a Markdown table of the rankers in `figures`.
pub fn table(title: &str, figures: &[ToolRankingStatistics]) -> String {
    let mut table = format!(
        "| {title} | R@1 | R@3 | R@5 | R@10 | nDCG@10 | all in 5 |\n|---|---|---|---|---|---|---|\n"
    );
    for ToolRankingStatistics { name, recall: [r1, r3, r5, r10], ndcg, all_in_5 } in figures {
        _ = writeln!(
            table,
            "| {name} | {r1:.3} | {r3:.3} | {r5:.3} | {r10:.3} | {ndcg:.3} | {all_in_5:.3} |"
        );
    }
    table
}
