//! Keeps what the tables do not contain about a server's jobs: the jobs that it runs, and its writes
//! with an unknown outcome.

use std::collections::{HashMap, HashSet};

use toolgate_contract::JobId;

/// The runs of this server, and its writes with an unknown outcome.
#[derive(Default)]
pub(super) struct KnownRuns {
    /// Number of the last event of each job that was begun and has not ended here.
    begun: HashMap<JobId, u64>,
    /// Numbers of events in batches whose append had an unknown outcome.
    uncertain_batches: HashMap<JobId, u64>,
    /// Jobs whose begin had an unknown outcome.
    pub(super) uncertain_begins: HashSet<JobId>,
    /// Jobs whose acceptance had an unknown outcome and was reported as failed.
    pub(super) unacknowledged: HashSet<JobId>,
}

/// Events of a running job whose append had an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UncertainBatch {
    /// Number of the last event before the batch.
    pub(super) last_before: u64,
    /// Number of events in the batch.
    pub(super) count: u64,
}

impl KnownRuns {
    /// Records that the job was begun, with its last event.
    pub(super) fn begin(&mut self, id: JobId, last_event: u64) {
        self.uncertain_begins.remove(&id);
        self.uncertain_batches.remove(&id);
        self.begun.insert(id, last_event);
    }

    /// Records that the job does not run here any more.
    pub(super) fn end(&mut self, id: JobId) {
        self.begun.remove(&id);
        self.uncertain_batches.remove(&id);
        self.uncertain_begins.remove(&id);
    }

    /// Returns the jobs that run here.
    pub(super) fn running(&self) -> Vec<JobId> {
        self.begun.keys().copied().collect()
    }

    /// Records that events up to number `last_event` are stored.
    pub(super) fn note_stored(&mut self, id: JobId, last_event: u64) {
        self.uncertain_batches.remove(&id);
        if let Some(last) = self.begun.get_mut(&id) {
            *last = last_event;
        }
    }

    /// Records that it is unknown whether the next `count` events of the job are stored.
    pub(super) fn note_uncertain(&mut self, id: JobId, count: u64) {
        if self.begun.contains_key(&id) {
            self.uncertain_batches.insert(id, count);
        }
    }

    /// Returns the batch of the job whose append had an unknown outcome.
    pub(super) fn uncertain_batch(&self, id: JobId) -> Option<UncertainBatch> {
        let count = *self.uncertain_batches.get(&id)?;
        Some(UncertainBatch { last_before: *self.begun.get(&id)?, count })
    }

    /// Records that the batch of the job was not stored.
    pub(super) fn forget_batch(&mut self, id: JobId) {
        self.uncertain_batches.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_uncertain_until_it_is_stored_or_its_run_ends() {
        let id = JobId::from_bits(7);
        let mut runs = KnownRuns::default();
        runs.note_uncertain(id, 3);
        assert_eq!(runs.uncertain_batch(id), None, "the job does not run here");
        runs.begin(id, 2);
        runs.note_uncertain(id, 3);
        let batch = UncertainBatch { last_before: 2, count: 3 };
        assert_eq!(runs.uncertain_batch(id), Some(batch));
        runs.note_stored(id, 5);
        assert_eq!(runs.uncertain_batch(id), None);
        runs.note_uncertain(id, 1);
        assert_eq!(runs.uncertain_batch(id), Some(UncertainBatch { last_before: 5, count: 1 }));
        runs.end(id);
        assert_eq!(runs.uncertain_batch(id), None);
        assert!(runs.running().is_empty());
    }
}
