//! How long each takes: `cargo bench -p bench-gate`.

use bench_gate::{Bench, Case};

fn main() {
    divan::main();
}

#[divan::bench(args = Case::ALL)]
fn gate(bencher: divan::Bencher<'_, '_>, case: &Case) {
    let mut bench = Bench::of(*case);
    bench.check();
    bencher.bench_local(|| bench.ask());
}
