//! `bench-gate CASE` asks so often that what one request costs can be counted from outside: with
//! valgrind, the instructions within [`counted`], by how often it says it has asked. Without a
//! case it says which there are.

use bench_gate::{Bench, Case};

/// How often a case is asked before anything is counted.
const BEFORE: usize = 200;
/// How often then.
const COUNTED: usize = 300;

#[allow(clippy::print_stdout, reason = "what it is asked for")]
fn main() {
    let word = std::env::args().nth(1).unwrap_or_default();
    let Some(case) = Case::ALL.into_iter().find(|case| case.name() == word) else {
        println!("{}", Case::ALL.map(Case::name).join(" "));
        return;
    };
    let mut bench = Bench::of(case);
    for _ in 0..BEFORE {
        bench.check();
    }
    counted(&mut bench);
    bench.check();
    println!("{COUNTED}");
}

/// What is counted: toolgate alone, not whether the answer is right.
#[inline(never)]
fn counted(bench: &mut Bench) {
    for _ in 0..COUNTED {
        std::hint::black_box(bench.ask());
    }
}
