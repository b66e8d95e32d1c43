//! Measures how long job events take to a client that watches the job at a server other than the
//! one that runs it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use serde_json::Value;

use crate::requests::event_request;

/// The longest accepted silence of the event stream. The job prints more often.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Watches the job `id`, which prints repeatedly, at the server `address`. Returns the delays of
/// `amount` pieces of output until the client receives them, sorted.
pub(super) fn measure(
    address: SocketAddr,
    id: &str,
    amount: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.write_all(&event_request(address, id))?;
    let opened = Timestamp::now();
    let mut times = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line.context("the events of a job end")?;
        let now = Timestamp::now();
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(data).with_context(|| line.clone())?;
        if event["event"] != "output" {
            continue;
        }
        let at: Timestamp = event["at"].as_str().unwrap_or_default().parse()?;
        // Earlier ones were stored before the client came.
        if at > opened {
            times.push(now.duration_since(at).unsigned_abs());
        }
        if times.len() == amount {
            times.sort_unstable();
            return Ok(times);
        }
    }
    bail!("the events of job {id} end")
}
