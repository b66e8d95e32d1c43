//! `bench-gate CASE` sends a request many times, so that valgrind can count the instructions.
//!
//! Valgrind counts within [`counted`]. The program prints how many requests that function sends.
//! Without a case, it prints the names of all cases.

use bench_gate::{GateBenchHost, GateBenchRequest};

/// Number of requests that are sent before counting starts.
const WARM_UP: usize = 200;
/// Number of requests whose instructions valgrind counts.
const COUNTED: usize = 300;

#[allow(clippy::print_stdout, reason = "the output that the caller reads")]
fn main() {
    let word = std::env::args().nth(1).unwrap_or_default();
    let Some(case) = GateBenchRequest::ALL.into_iter().find(|case| case.name() == word) else {
        println!("{}", GateBenchRequest::ALL.map(GateBenchRequest::name).join(" "));
        return;
    };
    let mut bench = GateBenchHost::new(case);
    for _ in 0..WARM_UP {
        bench.check();
    }
    counted(&mut bench);
    bench.check();
    println!("{COUNTED}");
}

/// Sends [`COUNTED`] requests. Does not check the answers, so that valgrind counts only toolgate.
#[inline(never)]
fn counted(bench: &mut GateBenchHost) {
    for _ in 0..COUNTED {
        std::hint::black_box(bench.request());
    }
}
