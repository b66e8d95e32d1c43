//! From places to numbers: mean reciprocal rank, recall, and how far chance may move them.

use std::fmt::Write as _;

use crate::set::{Lang, OVERLAP_LOW};
use crate::train::random::Random;

/// A place further down counts as not found.
const LAST: usize = 10;

/// What is known of a question besides its text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Asked {
    /// Which package it is about.
    pub package: usize,
    pub lang: Lang,
    pub overlap: f32,
}

impl Asked {
    fn is_low(&self) -> bool {
        self.overlap < OVERLAP_LOW
    }
}

/// One way of searching, and in which place it had each right answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Way {
    pub name: String,
    pub places: Vec<Option<usize>>,
}

impl Way {
    /// One that was asked nothing yet.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), places: Vec::new() }
    }

    /// 1 for the first place, a half for the second; 0 beyond the tenth.
    fn worths(&self) -> Vec<f64> {
        self.places.iter().map(worth).collect()
    }

    fn recall(&self, last: usize) -> f64 {
        let found = self.places.iter().filter(|it| it.is_some_and(|it| it <= last));
        share(found.count(), self.places.len())
    }

    /// Its mean reciprocal rank over the questions that `fit`.
    pub fn mrr(&self, asked: &[Asked], fit: impl Fn(&Asked) -> bool) -> f64 {
        let fitting = asked.iter().zip(self.worths()).filter(|(it, _)| fit(it));
        mean(&fitting.map(|(_, worth)| worth).collect::<Vec<_>>())
    }
}

#[allow(clippy::cast_precision_loss, reason = "places are few")]
fn worth(place: &Option<usize>) -> f64 {
    place.filter(|it| *it <= LAST).map_or(0.0, |it| 1.0 / it as f64)
}

/// A table of all `ways`, as Markdown.
pub fn table(ways: &[Way], asked: &[Asked]) -> String {
    let low = asked.iter().filter(|it| it.is_low()).count();
    let mut table = format!(
        "| {} questions | MRR@10 (95 %) | R@1 | R@5 | R@10 | Rust | Python | low overlap ({low}) |\n\
         |---|---|---|---|---|---|---|---|\n",
        asked.len()
    );
    for way in ways {
        let worths = way.worths();
        let sample = |random: &mut Random| mean(&drawn(&worths, random));
        let (least, most) = interval(sample);
        let by = |lang: Lang| way.mrr(asked, |it| it.lang == lang);
        _ = writeln!(
            table,
            "| {} | {:.3} ±{:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {} |",
            way.name,
            mean(&worths),
            (most - least) / 2.0,
            way.recall(1),
            way.recall(5),
            way.recall(10),
            by(Lang::Rust),
            by(Lang::Python),
            if low > 0 {
                format!("{:.3}", way.mrr(asked, Asked::is_low))
            } else {
                "–".to_owned()
            },
        );
    }
    table
}

/// A table of each package's mean reciprocal rank by each of `ways`, as Markdown.
pub fn by_package(ways: &[&Way], asked: &[Asked], packages: &[(String, usize)]) -> String {
    let names: Vec<&str> = ways.iter().map(|it| it.name.as_str()).collect();
    let mut table = format!("| package | functions | questions | {} |\n", names.join(" | "));
    table.push_str(&"|---".repeat(3 + ways.len()));
    table.push_str("|\n");
    for (at, (name, functions)) in packages.iter().enumerate() {
        let questions = asked.iter().filter(|it| it.package == at).count();
        _ = write!(table, "| {name} | {functions} | {questions} |");
        for way in ways {
            _ = write!(table, " {:.3} |", way.mrr(asked, |it| it.package == at));
        }
        table.push('\n');
    }
    table
}

/// How many times as good one way is as another, and between what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    pub value: f64,
    pub least: f64,
    pub most: f64,
}

/// `way` by `other`, over the questions that `fit`; both are drawn together, so what is hard for
/// both does not widen it.
pub fn ratio(way: &Way, other: &Way, asked: &[Asked], fit: impl Fn(&Asked) -> bool) -> Ratio {
    let pairs = way.worths().into_iter().zip(other.worths());
    let fitting = asked.iter().zip(pairs).filter(|(it, _)| fit(it));
    let pairs: Vec<(f64, f64)> = fitting.map(|(_, pair)| pair).collect();
    let of = |pairs: &[(f64, f64)]| {
        let (one, other) = pairs.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        one / f64::max(other, f64::MIN_POSITIVE)
    };
    let (least, most) = interval(|random| of(&drawn(&pairs, random)));
    Ratio { value: of(&pairs), least, most }
}

/// Whether a question's words are not those of the name it asks for.
pub fn is_low(asked: &Asked) -> bool {
    asked.is_low()
}

/// Between what 95 of 100 samples lie.
fn interval(sample: impl Fn(&mut Random) -> f64) -> (f64, f64) {
    const SAMPLES: usize = 1_000;
    let mut random = Random(1);
    let mut samples: Vec<f64> = (0..SAMPLES).map(|_| sample(&mut random)).collect();
    samples.sort_by(f64::total_cmp);
    (samples[SAMPLES * 25 / 1_000], samples[SAMPLES * 975 / 1_000 - 1])
}

#[allow(clippy::cast_possible_truncation, reason = "less than how many there are")]
fn drawn<T: Copy>(from: &[T], random: &mut Random) -> Vec<T> {
    let many = from.len() as u64;
    from.iter().map(|_| from[(random.next() % many) as usize]).collect()
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

    fn asked(overlap: f32) -> Asked {
        Asked { package: 0, lang: Lang::Rust, overlap }
    }

    #[test]
    fn a_place_beyond_the_tenth_is_worth_nothing() {
        let way = Way { name: String::new(), places: vec![Some(1), Some(4), Some(11), None] };
        let asked = [asked(0.0), asked(1.0), asked(1.0), asked(1.0)];
        assert!((way.mrr(&asked, |_| true) - 1.25 / 4.0).abs() < 1e-9);
        assert!((way.mrr(&asked, is_low) - 1.0).abs() < 1e-9);
        assert!((way.recall(5) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_ratio_lies_between_its_bounds() {
        let places = |by: usize| (0..200).map(|at| Some(1 + at % by)).collect();
        let one = Way { name: String::new(), places: places(3) };
        let other = Way { name: String::new(), places: places(5) };
        let asked = vec![asked(0.0); 200];
        let ratio = ratio(&one, &other, &asked, |_| true);
        assert!(ratio.least < ratio.value && ratio.value < ratio.most, "{ratio:?}");
        assert!(ratio.least > 1.0 && ratio.most < 2.0, "{ratio:?}");
    }
}
