//! Learns what search knows beforehand: `train words` the vectors of words, `train networks` how to
//! weigh what a closer look sees. Both are written where toolgate-search builds them in.
#![allow(clippy::print_stderr, reason = "a developer's tool")]

use toolgate_eval::train;

fn arguments_of_table() -> String {
    std::env::args().nth(2).unwrap_or_default()
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let numbers: Vec<f32> = arguments.filter_map(|it| it.parse().ok()).collect();
    let number = |at: usize, otherwise: f32| numbers.get(at).copied().unwrap_or(otherwise);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
    let count = |at: usize, otherwise: f32| number(at, otherwise) as usize;
    match what.as_str() {
        "words" => train::words_table(count(0, 8.0), number(1, 1.0)),
        "alone" => train::table_alone(&arguments_of_table()),
        "bm25f" => train::tune_bm25f(),
        "networks" => train::learn_networks(count(0, 150.0), numbers.get(1).map(|_| count(1, 0.0))),
        _ => anyhow::bail!("usage: train words [epochs] [names] | bm25f | networks [questions]"),
    }
}
