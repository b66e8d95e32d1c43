//! Stores outputs that were cut in results, so that callers can read the rest.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use toolgate_contract::{Caller, ToolError, lock_mutex};

use super::settings::StoredOutputLimits;
use crate::counted::counted;
use toolgate_world::processes::CapturedOutput;

/// Store of the most recent outputs that results do not show completely. If there are too many,
/// drops the oldest output of the caller that has the most.
pub(super) struct ProgramOutputStore {
    runs: Mutex<VecDeque<StoredRunOutput>>,
    runs_max: usize,
    bytes_max: u64,
}

/// The captured standard output and standard error of one program.
pub(super) struct CapturedProgramOutput {
    pub(super) stdout: CapturedOutput,
    pub(super) stderr: CapturedOutput,
}

struct StoredRunOutput {
    id: String,
    caller: Caller,
    streams: Arc<CapturedProgramOutput>,
}

impl ProgramOutputStore {
    pub(super) fn new(limits: &StoredOutputLimits) -> Self {
        let StoredOutputLimits { stream_bytes_max: _, runs_max, bytes_max } = *limits;
        Self { runs: Mutex::default(), runs_max, bytes_max }
    }

    /// Stores `streams` for `caller` under a random id, and returns the id. Drops older outputs if
    /// necessary. Returns `None` if `streams` alone exceed the limits.
    pub(super) fn store(
        &self,
        caller: &Caller,
        streams: Arc<CapturedProgramOutput>,
    ) -> Option<String> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).ok()?;
        let id = format!("{:032x}", u128::from_be_bytes(random));
        let mut runs = lock_mutex(&self.runs);
        runs.push_back(StoredRunOutput { id: id.clone(), caller: caller.clone(), streams });
        loop {
            let largest = if stored_bytes(runs.iter()) > self.bytes_max {
                oldest_of_top_caller(&runs, |runs| stored_bytes(runs))
            } else if runs.len() > self.runs_max {
                oldest_of_top_caller(&runs, |runs| runs.count() as u64)
            } else {
                break;
            };
            runs.remove(largest);
        }
        runs.iter().any(|run| run.id == id).then_some(id)
    }

    /// Returns the streams that are stored under `id` for `caller`. Fails if `caller` has stored
    /// none under this id.
    pub(super) fn find(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<Arc<CapturedProgramOutput>, ToolError> {
        let runs = lock_mutex(&self.runs);
        let run = runs.iter().find(|run| run.id == id && run.caller == *caller);
        run.map(|run| run.streams.clone()).ok_or_else(|| {
            ToolError::not_found(format!(
                "no output has the id `{}`; only the last {} are kept, so run the program \
                 again",
                id.escape_debug(),
                counted(self.runs_max as u64, "cut output", "cut outputs")
            ))
        })
    }
}

/// Returns the index of the oldest output in `runs` of the caller whose outputs have the highest
/// `measure`.
fn oldest_of_top_caller<'r>(
    runs: &'r VecDeque<StoredRunOutput>,
    measure: impl Fn(&mut dyn Iterator<Item = &'r StoredRunOutput>) -> u64,
) -> usize {
    let usage = |caller: &Caller| measure(&mut runs.iter().filter(|run| run.caller == *caller));
    // `min_by_key` returns the first minimum, so the oldest run goes if callers use the same
    // amount.
    let indexes = 0..runs.len();
    indexes.min_by_key(|index| Reverse(usage(&runs[*index].caller))).unwrap_or_default()
}

fn stored_bytes<'r>(runs: impl Iterator<Item = &'r StoredRunOutput>) -> u64 {
    runs.map(|run| run.streams.stdout.spooled_bytes() + run.streams.stderr.spooled_bytes()).sum()
}
