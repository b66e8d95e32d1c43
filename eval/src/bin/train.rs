//! Trains the built-in models of search: `train words` trains the word vectors, `train networks`
//! the network of the reranker. The program writes both into the source of toolgate-search.
#![allow(clippy::print_stderr, reason = "a tool for developers")]

use toolgate_eval::train;

/// Returns the second argument of the command line, the path of a table of word vectors.
fn table_path() -> String {
    std::env::args().nth(2).unwrap_or_default()
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let numbers: Vec<f32> = arguments.filter_map(|argument| argument.parse().ok()).collect();
    let number = |index: usize, default: f32| numbers.get(index).copied().unwrap_or(default);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
    let count = |index: usize, default: f32| number(index, default) as usize;
    match command.as_str() {
        "words" => train::train_word_table(count(0, 8.0), number(1, 1.0)),
        "alone" => train::print_table_quality(&table_path()),
        "bm25f" => train::print_bm25f_quality(),
        "networks" => train::train_networks(count(0, 150.0), numbers.get(1).map(|_| count(1, 0.0))),
        _ => anyhow::bail!(
            "usage: train words [epochs] [names] | bm25f | networks [questions [functions]]"
        ),
    }
}
