//! Tracks in memory the jobs that run or wait at this server, and its writes with an unknown
//! outcome. The database tables do not contain these facts.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use toolgate_contract::JobId;

/// Maximum number of jobs that ended at this server and that are remembered for a while.
const ENDED_MAX: usize = 20_000;

/// The jobs of this server, shared by its job store and the handling of notifications.
pub(super) type SharedJobRuns = Arc<Mutex<ServerJobRuns>>;

/// A job that was begun at this server and has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ActiveJobRun {
    /// Number of the job's last event.
    last_event: u64,
    /// Number of the job's start, counted from 1.
    pub(super) attempt: u32,
}

/// Job that was begun at this server and ended a short time ago.
#[derive(Debug, Clone, Copy)]
struct RecentlyEndedJobRun {
    id: JobId,
    /// Number of the job's start, counted from 1.
    attempt: u32,
    at: Instant,
}

/// The jobs of this server, and its writes with an unknown outcome.
#[derive(Default)]
pub(super) struct ServerJobRuns {
    /// Jobs that were begun at this server and have not ended.
    begun: HashMap<JobId, ActiveJobRun>,
    /// Jobs that were begun and ended at this server a short time ago, the oldest first.
    ended: VecDeque<RecentlyEndedJobRun>,
    /// Jobs that wait at this server, and that other servers may claim.
    waiting: HashSet<JobId>,
    /// Queued jobs of this server that another server may have claimed.
    suspects: HashSet<JobId>,
    /// Number of events in each job's batch whose append had an unknown outcome.
    uncertain_batches: HashMap<JobId, u64>,
    /// Jobs whose mark as running was written with an unknown outcome.
    pub(super) uncertain_begins: HashSet<JobId>,
    /// Jobs whose acceptance was written with an unknown outcome and reported as failed.
    pub(super) unacknowledged: HashSet<JobId>,
}

/// Events of a running job whose append had an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UncertainEventBatch {
    /// Number of the last event before the batch.
    pub(super) last_before: u64,
    /// Number of events in the uncertain batch.
    pub(super) count: u64,
}

impl ServerJobRuns {
    /// Records that the job is queued at this server.
    pub(super) fn wait(&mut self, id: JobId) {
        self.waiting.insert(id);
    }

    /// Records that the job was begun, with the number of its last event and the number of its
    /// start.
    pub(super) fn begin(&mut self, id: JobId, last_event: u64, attempt: u32) {
        self.end(id);
        self.begun.insert(id, ActiveJobRun { last_event, attempt });
    }

    /// Records that the job neither runs nor waits at this server any more.
    pub(super) fn end(&mut self, id: JobId) {
        self.begun.remove(&id);
        self.waiting.remove(&id);
        self.suspects.remove(&id);
        self.uncertain_batches.remove(&id);
        self.uncertain_begins.remove(&id);
    }

    /// Records that the job has ended, and remembers the end for the time `memory` if the job was
    /// begun at this server.
    pub(super) fn finish(&mut self, id: JobId, now: Instant, memory: Duration) {
        if let Some(ActiveJobRun { attempt, .. }) = self.begun.get(&id) {
            self.ended.push_back(RecentlyEndedJobRun { id, attempt: *attempt, at: now });
        }
        let is_old = |run: &RecentlyEndedJobRun| now.saturating_duration_since(run.at) > memory;
        while self.ended.len() > ENDED_MAX || self.ended.front().is_some_and(is_old) {
            self.ended.pop_front();
        }
        self.end(id);
    }

    /// Returns the jobs that run at this server or ended there a short time ago, each with the
    /// number of its latest start.
    pub(super) fn recent_runs(&self) -> Vec<(JobId, u32)> {
        let ended = self.ended.iter().map(|run| (run.id, run.attempt));
        ended.chain(self.running()).collect()
    }

    /// Returns the number of the job's latest start, if the job runs at this server.
    pub(super) fn attempt(&self, id: JobId) -> Option<u32> {
        self.begun.get(&id).map(|run| run.attempt)
    }

    /// Returns the jobs that run at this server, each with the number of its latest start.
    pub(super) fn running(&self) -> Vec<(JobId, u32)> {
        self.begun.iter().map(|(id, run)| (*id, run.attempt)).collect()
    }

    /// Records that the job has changed. Returns true if the job waits at this server, so that
    /// another server may have claimed it.
    pub(super) fn suspect(&mut self, id: JobId) -> bool {
        self.waiting.contains(&id) && self.suspects.insert(id)
    }

    /// Records that other servers may have claimed each waiting job.
    pub(super) fn mark_all_possibly_claimed(&mut self) {
        self.suspects.clone_from(&self.waiting);
    }

    /// Removes and returns the waiting jobs of this server that another server may have claimed.
    pub(super) fn take_possibly_claimed(&mut self) -> Vec<JobId> {
        self.suspects.drain().collect()
    }

    /// Records that the job's events up to number `last_event` are stored.
    pub(super) fn note_stored(&mut self, id: JobId, last_event: u64) {
        self.uncertain_batches.remove(&id);
        if let Some(run) = self.begun.get_mut(&id) {
            run.last_event = last_event;
        }
    }

    /// Records that it is unknown whether the next `count` events of the job are stored.
    pub(super) fn note_uncertain(&mut self, id: JobId, count: u64) {
        if self.begun.contains_key(&id) {
            self.uncertain_batches.insert(id, count);
        }
    }

    /// Returns the job's batch of events whose append had an unknown outcome.
    pub(super) fn uncertain_batch(&self, id: JobId) -> Option<UncertainEventBatch> {
        let count = *self.uncertain_batches.get(&id)?;
        Some(UncertainEventBatch { last_before: self.begun.get(&id)?.last_event, count })
    }

    /// Records that the job's batch of events with an unknown outcome was not stored.
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
        let mut runs = ServerJobRuns::default();
        runs.note_uncertain(id, 3);
        assert_eq!(runs.uncertain_batch(id), None, "the job does not run here");
        runs.begin(id, 2, 1);
        runs.note_uncertain(id, 3);
        let batch = UncertainEventBatch { last_before: 2, count: 3 };
        assert_eq!(runs.uncertain_batch(id), Some(batch));
        runs.note_stored(id, 5);
        assert_eq!(runs.uncertain_batch(id), None);
        runs.note_uncertain(id, 1);
        assert_eq!(
            runs.uncertain_batch(id),
            Some(UncertainEventBatch { last_before: 5, count: 1 })
        );
        runs.end(id);
        assert_eq!(runs.uncertain_batch(id), None);
        assert!(runs.running().is_empty());
    }

    #[test]
    fn a_job_is_suspected_once_as_long_as_it_waits() {
        let id = JobId::from_bits(7);
        let mut runs = ServerJobRuns::default();
        assert!(!runs.suspect(id), "it does not wait here");
        runs.wait(id);
        assert!(runs.suspect(id) && !runs.suspect(id));
        assert_eq!(runs.take_possibly_claimed(), [id]);
        assert!(runs.take_possibly_claimed().is_empty());
        runs.mark_all_possibly_claimed();
        runs.begin(id, 2, 1);
        assert!(runs.take_possibly_claimed().is_empty());
        assert_eq!(runs.running(), [(id, 1)]);
    }

    #[test]
    fn an_ended_job_is_remembered_for_a_time_if_it_was_begun() {
        let [first, second] = [7, 8].map(JobId::from_bits);
        let (now, memory) = (Instant::now(), Duration::from_secs(60));
        let mut runs = ServerJobRuns::default();
        runs.wait(first);
        runs.finish(first, now, memory);
        assert!(runs.recent_runs().is_empty());
        runs.begin(first, 2, 1);
        runs.begin(second, 2, 3);
        runs.finish(first, now, memory);
        assert_eq!(runs.recent_runs(), [(first, 1), (second, 3)]);
        runs.finish(second, now + memory + Duration::from_secs(1), memory);
        assert_eq!(runs.recent_runs(), [(second, 3)]);
    }
}
