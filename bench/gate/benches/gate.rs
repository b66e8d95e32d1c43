//! Measures the time of a request through policy, limits and audit log: `cargo bench -p
//! bench-gate`.

use bench_gate::{GateBenchHost, GateBenchRequest};

fn main() {
    divan::main();
}

#[divan::bench(args = GateBenchRequest::ALL)]
fn gate(bencher: divan::Bencher<'_, '_>, case: &GateBenchRequest) {
    let mut bench = GateBenchHost::new(*case);
    bench.check();
    bencher.bench_local(|| bench.request());
}
