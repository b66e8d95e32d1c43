//! Outputs that were too long for a result, kept for a while to be read on.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolgate_contract::{Caller, ToolError};

use crate::world::processes::Captured;

/// The last few cut outputs; the oldest go first, of the caller that holds most.
pub(super) struct Kept {
    runs: Mutex<VecDeque<Run>>,
    runs_max: usize,
    bytes_max: u64,
}

/// What one program printed.
pub(super) struct Streams {
    pub(super) stdout: Captured,
    pub(super) stderr: Captured,
}

struct Run {
    id: String,
    caller: Caller,
    streams: Arc<Streams>,
}

impl Kept {
    pub(super) fn new(runs_max: usize, bytes_max: u64) -> Self {
        Self { runs: Mutex::default(), runs_max, bytes_max }
    }

    /// Keeps `streams` for `caller`, under an id nobody can guess; `None` if there is no room.
    pub(super) fn keep(&self, caller: &Caller, streams: Arc<Streams>) -> Option<String> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).ok()?;
        let id = format!("{:032x}", u128::from_be_bytes(random));
        let mut runs = self.runs();
        runs.push_back(Run { id: id.clone(), caller: caller.clone(), streams });
        loop {
            let largest = if bytes(runs.iter()) > self.bytes_max {
                oldest_of_most(&runs, |of| bytes(of))
            } else if runs.len() > self.runs_max {
                oldest_of_most(&runs, |of| of.count() as u64)
            } else {
                break;
            };
            runs.remove(largest);
        }
        runs.iter().any(|run| run.id == id).then_some(id)
    }

    /// What `caller` was given `id` for.
    pub(super) fn find(&self, caller: &Caller, id: &str) -> Result<Arc<Streams>, ToolError> {
        let runs = self.runs();
        let run = runs.iter().find(|run| run.id == id && run.caller == *caller);
        run.map(|run| run.streams.clone()).ok_or_else(|| {
            ToolError::not_found(format!(
                "no output is kept under `{}`; only the last {} that were cut are, so run the \
                 program again",
                id.escape_debug(),
                self.runs_max
            ))
        })
    }

    fn runs(&self) -> MutexGuard<'_, VecDeque<Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the oldest stands of the caller that holds most, by what `held` finds in its runs.
fn oldest_of_most<'r>(
    runs: &'r VecDeque<Run>,
    held: impl Fn(&mut dyn Iterator<Item = &'r Run>) -> u64,
) -> usize {
    let of = |caller: &Caller| held(&mut runs.iter().filter(|run| run.caller == *caller));
    // Of callers that hold alike the oldest: the first of the least.
    let places = 0..runs.len();
    places.min_by_key(|place| Reverse(of(&runs[*place].caller))).unwrap_or_default()
}

fn bytes<'r>(runs: impl Iterator<Item = &'r Run>) -> u64 {
    runs.map(|run| run.streams.stdout.spooled_bytes() + run.streams.stderr.spooled_bytes()).sum()
}
