//! Measures the time of each case: `cargo bench -p bench-gate`.

use bench_gate::{Bench, Case};

fn main() {
    divan::main();
}

#[divan::bench(args = Case::ALL)]
fn gate(bencher: divan::Bencher<'_, '_>, case: &Case) {
    let mut bench = Bench::new(*case);
    bench.check();
    bencher.bench_local(|| bench.request());
}
