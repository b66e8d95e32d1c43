//! Table of the most important figures of a split.

use std::fmt::Write as _;

use crate::measure::{EvalQuestion, EvaluatedSearchMethod, QualityMetric, ratio};

/// Table with one row for each task: the figures of toolgate's search and of a baseline, and their
/// ratio.
#[derive(Debug, Default)]
pub struct SummaryTable {
    rows: String,
}

impl SummaryTable {
    /// Adds a row with the figures over the questions that `selects` accepts. Adds nothing if no
    /// question is accepted.
    pub fn add(
        &mut self,
        task: &str,
        metric: QualityMetric,
        methods: ComparedMethods<'_>,
        questions: &[EvalQuestion],
        selects: impl Fn(&EvalQuestion) -> bool,
    ) {
        let count = questions.iter().filter(|it| selects(it)).count();
        if count == 0 {
            return;
        }
        let ComparedMethods { ours, baseline } = methods;
        let ratio = ratio(metric, ours, baseline, questions, &selects);
        let [baseline, ours] = [baseline, ours].map(|it| it.mean_gain(metric, questions, &selects));
        _ = writeln!(
            self.rows,
            "| {task} | {count} | {} | {:.3} ±{:.3} | {:.3} ±{:.3} | **{:.3}** ({:.3} to {:.3}) |",
            metric.name(),
            baseline.value,
            baseline.half_width,
            ours.value,
            ours.half_width,
            ratio.value,
            ratio.least,
            ratio.most
        );
    }

    /// Returns the summary table as Markdown.
    pub fn render(&self) -> String {
        format!(
            "| task | questions | figure | baseline | ours | ratio (95 %) |\n{}|\n{}",
            "|---".repeat(6),
            self.rows
        )
    }
}

/// toolgate's search method, and the baseline to compare it with.
#[derive(Debug, Clone, Copy)]
pub struct ComparedMethods<'m> {
    pub ours: &'m EvaluatedSearchMethod,
    pub baseline: &'m EvaluatedSearchMethod,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::PackageLanguage;

    #[test]
    fn a_row_has_both_figures_and_their_ratio_and_a_task_without_questions_has_no_row() {
        let question = EvalQuestion { package: 0, lang: PackageLanguage::Go, overlap: 1.0 };
        let [ours, baseline] = [1, 2].map(|rank| EvaluatedSearchMethod {
            name: String::new(),
            ranks: vec![Some(rank), Some(rank)],
        });
        let methods = ComparedMethods { ours: &ours, baseline: &baseline };
        let mut table = SummaryTable::default();
        let metric = QualityMetric::ReciprocalRank;
        table.add("a task", metric, methods, &[question; 2], |_| true);
        table.add("another task", metric, methods, &[question; 2], |_| false);
        assert_eq!(
            table.render(),
            "| task | questions | figure | baseline | ours | ratio (95 %) |\n\
             |---|---|---|---|---|---|\n\
             | a task | 2 | MRR@10 | 0.500 ±0.000 | 1.000 ±0.000 | **2.000** (2.000 to 2.000) |\n"
        );
    }
}
