//! Measures the additional time of parsing code in separate processes, compared with a parse in the
//! process that builds the index.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use toolgate_chunks::chunks;
use toolgate_toolsets::grammars;
use toolgate_world::ProcessRunner;

use super::corpus;

/// Number of measurements. The shortest of them is the result.
const ROUNDS: usize = 3;

/// File of the corpus: its path and its text.
type CorpusFileText = (String, String);

/// Returns how much longer separate processes take to parse all files of `folder`, whose total size
/// is `bytes`. Measures only the first `sample_bytes` bytes and scales the difference up.
pub(super) fn additional_time(
    folder: &Path,
    bytes: u64,
    sample_bytes: u64,
) -> anyhow::Result<Duration> {
    let mut sample: Vec<CorpusFileText> = Vec::new();
    let mut sampled = 0;
    for file in corpus::files(folder)? {
        if sampled >= sample_bytes {
            break;
        }
        let text = std::fs::read_to_string(&file)?;
        sampled += text.len() as u64;
        sample.push((file.display().to_string(), text));
    }
    // Once workers parse, this process never parses again.
    let here = shortest_time(&sample);
    let processes = ProcessRunner::new(std::env::vars_os())?;
    grammars::parse_in_workers(&processes);
    let there = shortest_time(&sample);
    grammars::end_workers();
    let additional = there.saturating_sub(here).as_secs_f64();
    Ok(Duration::from_secs_f64(additional * bytes as f64 / sampled.max(1) as f64))
}

/// Returns the shortest time in which two threads cut all texts of `sample` into chunks. An index
/// is built by two threads.
fn shortest_time(sample: &[CorpusFileText]) -> Duration {
    let next = AtomicUsize::new(0);
    let cut_some = || {
        let texts = std::iter::from_fn(|| sample.get(next.fetch_add(1, Ordering::Relaxed)));
        texts.map(|(path, text)| chunks(path, text).len()).sum::<usize>()
    };
    let once = || {
        next.store(0, Ordering::Relaxed);
        let started = Instant::now();
        let count = thread::scope(|scope| {
            let other = scope.spawn(cut_some);
            cut_some() + other.join().expect("a thread cuts its texts")
        });
        assert!(count > 0, "the sample has no chunks");
        started.elapsed()
    };
    (0..ROUNDS).map(|_| once()).min().unwrap_or_default()
}
