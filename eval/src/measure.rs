//! Computes mean reciprocal rank, NDCG, recall and confidence intervals from ranks.

use std::fmt::Write as _;

use crate::set::{OVERLAP_LOW, PackageLanguage};
use crate::train::random::SplitMix64;

/// Last rank at which an answer counts as found, starting at 1.
const RANK_MAX: usize = 10;

/// Question of the evaluation without its text: its package, language and overlap with the answer's
/// name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvalQuestion {
    /// Index of the package to which the question belongs.
    pub package: usize,
    pub lang: PackageLanguage,
    pub overlap: f32,
}

impl EvalQuestion {
    /// Returns true if the question contains few words of the name of its function.
    fn is_low(&self) -> bool {
        self.overlap < OVERLAP_LOW
    }
}

/// Metric of search quality: the mean over all questions of a gain between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QualityMetric {
    /// Gain of 1 divided by the rank of the right answer.
    ReciprocalRank,
    /// Gain of 1 divided by log2(1 + rank): the discounted cumulative gain of one right answer.
    Ndcg,
    /// Gain of 1 if the right answer comes first, and of 0 otherwise.
    FirstRank,
}

impl QualityMetric {
    /// Returns the name of the metric in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReciprocalRank => "MRR@10",
            Self::Ndcg => "NDCG@10",
            Self::FirstRank => "R@1",
        }
    }

    /// Returns the gain of a right answer at `rank`, which is 0 beyond rank ten and without a rank.
    #[allow(clippy::cast_precision_loss, reason = "ranks are small")]
    fn gain(self, rank: Option<usize>) -> f64 {
        let Some(rank) = rank.filter(|it| *it <= RANK_MAX) else { return 0.0 };
        match self {
            Self::ReciprocalRank => 1.0 / rank as f64,
            Self::Ndcg => 1.0 / (1.0 + rank as f64).log2(),
            Self::FirstRank => f64::from(u8::from(rank == 1)),
        }
    }
}

/// Mean of a metric over questions, with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanMetricValue {
    pub value: f64,
    /// Half of the width of the 95 % confidence interval.
    pub half_width: f64,
}

/// Search method, with the rank that it gives to the right answer of each question.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvaluatedSearchMethod {
    pub name: String,
    pub ranks: Vec<Option<usize>>,
}

impl EvaluatedSearchMethod {
    /// Creates a method that has no ranks yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ranks: Vec::new() }
    }

    /// Returns the gains of the method by `metric`, one for each question that `selects` accepts.
    fn gains(
        &self,
        metric: QualityMetric,
        questions: &[EvalQuestion],
        selects: impl Fn(&EvalQuestion) -> bool,
    ) -> Vec<f64> {
        let selected = questions.iter().zip(&self.ranks).filter(|(it, _)| selects(it));
        selected.map(|(_, rank)| metric.gain(*rank)).collect()
    }

    /// Returns the mean gain by `metric` over the questions that `selects` accepts.
    pub fn mean_gain(
        &self,
        metric: QualityMetric,
        questions: &[EvalQuestion],
        selects: impl Fn(&EvalQuestion) -> bool,
    ) -> MeanMetricValue {
        let gains = self.gains(metric, questions, selects);
        let (least, most) = interval(|random| mean(&resample(&gains, random)));
        MeanMetricValue { value: mean(&gains), half_width: (most - least) / 2.0 }
    }

    /// Returns the share of questions whose right answer has a rank of at most `last`.
    fn recall(&self, last: usize) -> f64 {
        let found = self.ranks.iter().filter(|it| it.is_some_and(|it| it <= last));
        share(found.count(), self.ranks.len())
    }

    /// Returns the mean reciprocal rank (MRR) of the method over the questions that `selects`
    /// accepts.
    pub fn mrr(&self, questions: &[EvalQuestion], selects: impl Fn(&EvalQuestion) -> bool) -> f64 {
        mean(&self.gains(QualityMetric::ReciprocalRank, questions, selects))
    }
}

/// Returns a Markdown table of the metrics of all `methods`.
pub fn table(methods: &[EvaluatedSearchMethod], questions: &[EvalQuestion]) -> String {
    let low = questions.iter().filter(|it| it.is_low()).count();
    let is_asked = |lang: &PackageLanguage| questions.iter().any(|it| it.lang == *lang);
    let languages: Vec<PackageLanguage> =
        PackageLanguage::ALL.into_iter().filter(is_asked).collect();
    let names: String = languages.iter().map(|it| format!("{} | ", it.name())).collect();
    let mut table = format!(
        "| {} questions | MRR@10 (95 %) | NDCG@10 | R@1 | R@5 | R@10 | {names}low overlap ({low}) |\n{}|\n",
        questions.len(),
        "|---".repeat(7 + languages.len())
    );
    for method in methods {
        let MeanMetricValue { value, half_width } =
            method.mean_gain(QualityMetric::ReciprocalRank, questions, |_| true);
        let mrr_of = |lang: &PackageLanguage| {
            format!("{:.3} | ", method.mrr(questions, |it| it.lang == *lang))
        };
        let by_language: String = languages.iter().map(mrr_of).collect();
        _ = writeln!(
            table,
            "| {} | {value:.3} ±{half_width:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {by_language}{} |",
            method.name,
            mean(&method.gains(QualityMetric::Ndcg, questions, |_| true)),
            method.recall(1),
            method.recall(5),
            method.recall(10),
            if low > 0 {
                format!("{:.3}", method.mrr(questions, EvalQuestion::is_low))
            } else {
                "–".to_owned()
            },
        );
    }
    table
}

/// Returns a Markdown table of the mean reciprocal rank of each method in each package.
pub fn package_table(
    methods: &[&EvaluatedSearchMethod],
    questions: &[EvalQuestion],
    packages: &[(String, usize)],
) -> String {
    let names: Vec<&str> = methods.iter().map(|it| it.name.as_str()).collect();
    let mut table = format!("| package | functions | questions | {} |\n", names.join(" | "));
    table.push_str(&"|---".repeat(3 + methods.len()));
    table.push_str("|\n");
    for (index, (name, functions)) in packages.iter().enumerate() {
        let count = questions.iter().filter(|it| it.package == index).count();
        _ = write!(table, "| {name} | {functions} | {count} |");
        for method in methods {
            _ = write!(table, " {:.3} |", method.mrr(questions, |it| it.package == index));
        }
        table.push('\n');
    }
    table
}

/// Ratio of the metrics of two search methods, with its 95 % confidence interval from `least` to
/// `most`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchMethodRatio {
    pub value: f64,
    pub least: f64,
    pub most: f64,
}

/// Returns the ratio of `method` to `other` by `metric`, over the questions that `selects` accepts.
/// Each bootstrap sample uses the same questions for both methods, because questions that are hard
/// for both would widen the interval otherwise.
pub fn ratio(
    metric: QualityMetric,
    method: &EvaluatedSearchMethod,
    other: &EvaluatedSearchMethod,
    questions: &[EvalQuestion],
    selects: impl Fn(&EvalQuestion) -> bool,
) -> SearchMethodRatio {
    let gains = method.gains(metric, questions, &selects);
    let others = other.gains(metric, questions, &selects);
    let pairs: Vec<(f64, f64)> = gains.into_iter().zip(others).collect();
    let ratio_of = |pairs: &[(f64, f64)]| {
        let (one, other) = pairs.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        one / f64::max(other, f64::MIN_POSITIVE)
    };
    let (least, most) = interval(|random| ratio_of(&resample(&pairs, random)));
    SearchMethodRatio { value: ratio_of(&pairs), least, most }
}

/// Returns true if the question contains few words of the name of its function.
pub fn is_low(question: &EvalQuestion) -> bool {
    question.is_low()
}

/// Returns the 95 % confidence interval of 1,000 bootstrap samples, which `sample` computes.
fn interval(sample: impl Fn(&mut SplitMix64) -> f64) -> (f64, f64) {
    const SAMPLES: usize = 1_000;
    let mut random = SplitMix64(1);
    let mut samples: Vec<f64> = (0..SAMPLES).map(|_| sample(&mut random)).collect();
    samples.sort_by(f64::total_cmp);
    (samples[SAMPLES * 25 / 1_000], samples[SAMPLES * 975 / 1_000 - 1])
}

#[allow(clippy::cast_possible_truncation, reason = "less than the number of values")]
fn resample<T: Copy>(from: &[T], random: &mut SplitMix64) -> Vec<T> {
    let count = from.len() as u64;
    from.iter().map(|_| from[(random.next() % count) as usize]).collect()
}

#[allow(clippy::cast_precision_loss, reason = "questions are few")]
fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().fold(0.0, |sum, it| sum + it) / numbers.len().max(1) as f64
}

#[allow(clippy::cast_precision_loss, reason = "questions are few")]
fn share(some: usize, all: usize) -> f64 {
    some as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(overlap: f32) -> EvalQuestion {
        EvalQuestion { package: 0, lang: PackageLanguage::Rust, overlap }
    }

    #[test]
    fn a_rank_beyond_the_tenth_counts_nothing() {
        let method = EvaluatedSearchMethod {
            name: String::new(),
            ranks: vec![Some(1), Some(4), Some(11), None],
        };
        let questions = [question(0.0), question(1.0), question(1.0), question(1.0)];
        assert!((method.mrr(&questions, |_| true) - 1.25 / 4.0).abs() < 1e-9);
        assert!((method.mrr(&questions, is_low) - 1.0).abs() < 1e-9);
        assert!((method.recall(5) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn each_metric_has_its_own_gain_and_none_beyond_the_tenth_rank() {
        for (metric, rank, gain) in [
            (QualityMetric::ReciprocalRank, Some(4), 0.25),
            (QualityMetric::Ndcg, Some(1), 1.0),
            (QualityMetric::Ndcg, Some(3), 0.5),
            (QualityMetric::Ndcg, Some(11), 0.0),
            (QualityMetric::FirstRank, Some(1), 1.0),
            (QualityMetric::FirstRank, Some(2), 0.0),
            (QualityMetric::FirstRank, None, 0.0),
        ] {
            assert!((metric.gain(rank) - gain).abs() < 1e-9, "{metric:?} {rank:?}");
        }
    }

    #[test]
    fn a_ratio_lies_between_its_bounds() {
        let ranks = |max: usize| (0..200).map(|index| Some(1 + index % max)).collect();
        let one = EvaluatedSearchMethod { name: String::new(), ranks: ranks(3) };
        let other = EvaluatedSearchMethod { name: String::new(), ranks: ranks(5) };
        let questions = vec![question(0.0); 200];
        let ratio = ratio(QualityMetric::ReciprocalRank, &one, &other, &questions, |_| true);
        assert!(ratio.least < ratio.value && ratio.value < ratio.most, "{ratio:?}");
        assert!(ratio.least > 1.0 && ratio.most < 2.0, "{ratio:?}");
    }
}
