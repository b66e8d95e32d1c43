//! Normal callers that use the server during resource attacks. Each of their calls must succeed.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Instant;

use serde_json::{Value, json};
use toolgate_test_support::SeededRng;

use super::super::client::connect_with;
use super::super::oracle::summary;
use super::{ROUTE, ResourceRunTally, bearer};

/// Folder in the workspace for the files of normal callers.
pub(super) const NORMAL_FOLDER: &str = "normal";

/// Makes normal calls until the run is over, and records their durations and failures.
pub(super) fn call_normally(
    addr: SocketAddr,
    key: &str,
    number: usize,
    mut rng: SeededRng,
    tally: &ResourceRunTally,
) {
    let mut client = match connect_with(addr, ROUTE, bearer(key)) {
        Ok(client) => client,
        Err(err) => return tally.fail(format!("a caller cannot connect: {err:#}")),
    };
    while tally.is_running() {
        let (tool, input) = normal_call(number, &mut rng);
        let started = Instant::now();
        let outcome = client.call(tool, &input);
        let elapsed = started.elapsed();
        client.received.clear();
        match outcome {
            Ok(response) if !response.is_error => tally.add_latency(tool, elapsed),
            Ok(response) => tally.fail(format!("{tool}: {}", summary(&response))),
            Err(err) => tally.fail(format!("{tool}: {err:#}")),
        }
        sleep(rng.duration_between(5, 40));
    }
}

/// Returns a random tool and input for a call of the normal caller `number`.
fn normal_call(number: usize, rng: &mut SeededRng) -> (&'static str, Value) {
    let own_file = format!("{NORMAL_FOLDER}/{number}.txt");
    match rng.between(0, 10) {
        0 => ("files.list", json!({ "path": NORMAL_FOLDER })),
        1 => ("files.search", json!({ "path": NORMAL_FOLDER, "query": "line [0-9]+" })),
        2 => ("search.text", json!({ "path": NORMAL_FOLDER, "query": "greet" })),
        3 | 4 => {
            let content = format!("line {}\n", rng.next_number()).repeat(20);
            ("files.write", json!({ "path": own_file, "content": content, "overwrite": true }))
        }
        5 | 6 => ("files.exists", json!({ "path": own_file })),
        _ => ("files.read", json!({ "path": format!("{NORMAL_FOLDER}/greet.py") })),
    }
}
