//! Measures the time of each case: `cargo bench -p bench-gate`.

use bench_gate::{GateBench, GateCase};

fn main() {
    divan::main();
}

#[divan::bench(args = GateCase::ALL)]
fn gate(bencher: divan::Bencher<'_, '_>, case: &GateCase) {
    let mut bench = GateBench::new(*case);
    bench.check();
    bencher.bench_local(|| bench.request());
}
