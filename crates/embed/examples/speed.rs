//! Measures how many texts a second a model in a folder embeds.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program for developers")]

use std::path::Path;
use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("a model's folder");
    let tokens = arguments.next().map_or(128, |it| it.parse().expect("tokens"));
    let count = arguments.next().map_or(64, |it| it.parse().expect("texts"));
    let threads = arguments.next().map_or(2, |it| it.parse().expect("threads"));
    let begun = Instant::now();
    let model = toolgate_embed::EmbeddingModel::open(Path::new(&folder)).expect("a model");
    println!("opened {} in {:?}", model.space().model, begun.elapsed());
    let model = model.with_tokens_max(tokens).with_threads(threads);
    let texts: Vec<_> = (0..count)
        .map(|at| {
            format!("fn number_{at}(call: &Call) -> usize {{ call.words + {at} }} ").repeat(40)
        })
        .collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    for _ in 0..3 {
        let begun = Instant::now();
        let vectors = model.embed(&texts).expect("vectors");
        let took = begun.elapsed().as_secs_f64();
        let rate = vectors.len() as f64 / took;
        println!("{count} texts of {tokens} tokens on {threads} threads: {took:.2} s, {rate:.1}/s");
    }
    let begun = Instant::now();
    model.embed(&["where is a call cancelled?"]).expect("a vector");
    println!("a query: {:?}", begun.elapsed());
}
