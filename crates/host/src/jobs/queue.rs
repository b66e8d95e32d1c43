//! Chooses the next job: by priority, then in turn among callers, then by acceptance time.
//!
//! A job must also fit the limits of its tool, its caller and the server.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use toolgate_contract::{Caller, JobId, ToolId};

/// Queued jobs, and counts of running jobs by caller and tool.
pub(super) struct JobQueue {
    caller_queues: HashMap<Caller, CallerJobQueue>,
    positions: HashMap<JobId, (Caller, JobQueuePosition)>,
    running_by_tool: HashMap<ToolId, usize>,
    running_total: usize,
    running_max: usize,
    running_per_caller: usize,
    /// True if the queue lets no further job start.
    is_paused: bool,
    push_count: u64,
    turn_count: u64,
}

/// Queued jobs and number of running jobs of one caller.
#[derive(Default)]
struct CallerJobQueue {
    waiting: BTreeMap<JobQueuePosition, QueuedJob>,
    running: usize,
    /// Number of the turn at which a job of the caller last started.
    last_turn: u64,
}

/// Position of a job among the queued jobs of its caller. The lowest position is next.
///
/// The parts are the priority, the acceptance time and a sequence number. A job that was taken over
/// from a dead server keeps its acceptance time.
type JobQueuePosition = (Reverse<i32>, Timestamp, u64);

/// Job that waits in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedJob {
    pub(super) id: JobId,
    pub(super) caller: Caller,
    pub(super) tool: ToolId,
    /// Maximum number of calls of the job's tool that run at the same time, if the tool has a
    /// limit.
    pub(super) at_once: Option<usize>,
    /// Size of the job's input in bytes. Zero if another server accepted the job.
    pub(super) input_bytes: u64,
}

impl CallerJobQueue {
    /// Returns the total size of the inputs of the caller's queued jobs in bytes.
    fn input_bytes(&self) -> u64 {
        self.waiting.values().map(|job| job.input_bytes).sum()
    }
}

impl JobQueue {
    /// Creates a queue of jobs that allows `running_max` running jobs in total, and
    /// `running_per_caller` of each caller.
    pub(super) fn new(running_max: usize, running_per_caller: usize) -> Self {
        Self {
            caller_queues: HashMap::new(),
            positions: HashMap::new(),
            running_by_tool: HashMap::new(),
            running_total: 0,
            running_max,
            running_per_caller,
            is_paused: false,
            push_count: 0,
            turn_count: 0,
        }
    }

    /// Returns the number of queued jobs.
    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Returns the number of queued jobs of `caller`.
    pub(super) fn len_for(&self, caller: &Caller) -> usize {
        self.caller_queues.get(caller).map_or(0, |queue| queue.waiting.len())
    }

    /// Returns the size of the inputs of all queued jobs in bytes.
    pub(super) fn input_bytes(&self) -> u64 {
        self.caller_queues.values().map(CallerJobQueue::input_bytes).sum()
    }

    /// Returns the size of the inputs of the queued jobs of `caller` in bytes.
    pub(super) fn input_bytes_for(&self, caller: &Caller) -> u64 {
        self.caller_queues.get(caller).map_or(0, CallerJobQueue::input_bytes)
    }

    /// Changes the limits that were passed to [`JobQueue::new`]. Running jobs continue.
    pub(super) fn limit(&mut self, running_max: usize, running_per_caller: usize) {
        self.running_max = running_max;
        self.running_per_caller = running_per_caller;
    }

    /// Returns the maximum number of running jobs.
    pub(super) fn running_max(&self) -> usize {
        self.running_max
    }

    /// Returns the number of running jobs.
    pub(super) fn running(&self) -> usize {
        self.running_total
    }

    /// Stops starting jobs. Running jobs continue.
    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Returns true if jobs may start at this server, now or later.
    pub(super) fn runs_jobs(&self) -> bool {
        !self.is_paused && self.running_max > 0
    }

    /// Returns the number of further jobs that could start at this server in addition to its
    /// running and queued jobs.
    pub(super) fn room(&self) -> usize {
        if self.is_paused {
            return 0;
        }
        self.running_max.saturating_sub(self.running_total + self.len())
    }

    /// Returns the number of running jobs of the tool `id`.
    fn running_of_tool(&self, id: &ToolId) -> usize {
        self.running_by_tool.get(id).copied().unwrap_or(0)
    }

    /// Returns the number of running and queued jobs of the tool `id`.
    pub(super) fn held_of_tool(&self, id: &ToolId) -> usize {
        let queued = self.caller_queues.values().flat_map(|queue| queue.waiting.values());
        self.running_of_tool(id) + queued.filter(|job| job.tool == *id).count()
    }

    /// Returns the number of further jobs that could start at this server for each caller with
    /// running or queued jobs.
    pub(super) fn caller_places(&self) -> HashMap<Caller, usize> {
        let places = |queue: &CallerJobQueue| {
            self.running_per_caller.saturating_sub(queue.running + queue.waiting.len())
        };
        self.caller_queues.iter().map(|(caller, queue)| (caller.clone(), places(queue))).collect()
    }

    /// Returns the limit on the number of running jobs of one caller.
    pub(super) fn running_per_caller(&self) -> usize {
        self.running_per_caller
    }

    /// Returns true if the job `id` is queued.
    pub(super) fn is_waiting(&self, id: JobId) -> bool {
        self.positions.contains_key(&id)
    }

    /// Returns the ids of the queued jobs.
    pub(super) fn waiting(&self) -> HashSet<JobId> {
        self.positions.keys().copied().collect()
    }

    pub(super) fn push(&mut self, priority: i32, created: Timestamp, job: QueuedJob) {
        self.push_count += 1;
        let place = (Reverse(priority), created, self.push_count);
        self.positions.insert(job.id, (job.caller.clone(), place));
        self.caller_queues.entry(job.caller.clone()).or_default().waiting.insert(place, job);
    }

    /// Removes a queued job. Returns false if the job was not queued.
    pub(super) fn remove(&mut self, id: JobId) -> bool {
        let Some((caller, place)) = self.positions.remove(&id) else { return false };
        let queue = self.caller_queues.get_mut(&caller);
        let was_there = queue.and_then(|queue| queue.waiting.remove(&place)).is_some();
        self.remove_idle(&caller);
        was_there
    }

    /// Removes the next job that fits all limits from the queue, counts the job as running, and
    /// returns it.
    pub(super) fn take_next(&mut self) -> Option<QueuedJob> {
        if self.is_paused || self.running_total >= self.running_max {
            return None;
        }
        let has_room =
            |job: &QueuedJob| job.at_once.is_none_or(|max| self.running_of_tool(&job.tool) < max);
        let firsts =
            self.caller_queues.values().filter(|queue| queue.running < self.running_per_caller);
        let firsts = firsts.filter_map(|queue| {
            let (place, job) = queue.waiting.iter().find(|(_, job)| has_room(job))?;
            // Prefer callers with fewer running jobs, then the longest wait for a turn.
            Some(((place.0, queue.running, queue.last_turn, *place), job))
        });
        let ((.., place), job) = firsts.min_by_key(|(order, _)| *order)?;
        let caller = job.caller.clone();
        self.turn_count += 1;
        let queue = self.caller_queues.get_mut(&caller)?;
        queue.last_turn = self.turn_count;
        queue.running += 1;
        let job = queue.waiting.remove(&place)?;
        self.positions.remove(&job.id);
        *self.running_by_tool.entry(job.tool.clone()).or_default() += 1;
        self.running_total += 1;
        Some(job)
    }

    /// Counts `job` as no longer running.
    pub(super) fn finish(&mut self, job: &QueuedJob) {
        self.running_total -= 1;
        if let Some(count) = self.running_by_tool.get_mut(&job.tool) {
            *count -= 1;
            if *count == 0 {
                self.running_by_tool.remove(&job.tool);
            }
        }
        if let Some(queue) = self.caller_queues.get_mut(&job.caller) {
            queue.running -= 1;
        }
        self.remove_idle(&job.caller);
    }

    /// Removes the caller from the queue if the caller has no jobs.
    fn remove_idle(&mut self, caller: &Caller) {
        if self
            .caller_queues
            .get(caller)
            .is_some_and(|queue| queue.running == 0 && queue.waiting.is_empty())
        {
            self.caller_queues.remove(caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn job(id: u128, tool: &str, at_once: Option<usize>) -> QueuedJob {
        job_from("ada", id, tool, at_once)
    }

    fn job_from(caller: &str, id: u128, tool: &str, at_once: Option<usize>) -> QueuedJob {
        let caller = Caller::with_key(caller);
        let tool = ToolId::new(tool).expect("an id");
        QueuedJob { id: JobId::from_bits(id), caller, tool, at_once, input_bytes: 0 }
    }

    #[test]
    fn the_inputs_of_queued_jobs_count_until_a_job_runs_or_is_removed() {
        let mut queue = JobQueue::new(1, 1);
        for (caller, id, input_bytes) in [("ada", 1, 10), ("ada", 2, 20), ("bob", 3, 40)] {
            queue.push(0, NOW, QueuedJob { input_bytes, ..job_from(caller, id, "t.x", None) });
        }
        let ada = Caller::with_key("ada");
        assert_eq!((queue.input_bytes(), queue.input_bytes_for(&ada)), (70, 30));
        assert!(queue.remove(JobId::from_bits(2)));
        assert_eq!((queue.input_bytes(), queue.input_bytes_for(&ada)), (50, 10));
        assert!(queue.take_next().is_some());
        assert!(queue.remove(JobId::from_bits(3)) || queue.remove(JobId::from_bits(1)));
        assert_eq!(queue.input_bytes(), 0);
    }

    fn next(queue: &mut JobQueue) -> Option<u128> {
        queue.take_next().map(|job| job.id.bits())
    }

    #[test]
    fn jobs_run_by_priority_and_then_in_order_of_arrival() {
        let mut queue = JobQueue::new(9, 9);
        for (priority, id) in [(0, 1), (5, 2), (0, 3), (5, 4), (-1, 5)] {
            queue.push(priority, NOW, job(id, "a.b", None));
        }
        let order: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [2, 4, 1, 3, 5]);
    }

    #[test]
    fn the_job_accepted_first_runs_first_even_if_it_is_queued_last() {
        let mut queue = JobQueue::new(9, 9);
        for (created, id) in [(3, 3), (4, 4), (1, 1), (2, 2)] {
            let created = Timestamp::new(created, 0).expect("a time");
            queue.push(0, created, job(id, "a.b", None));
        }
        let order: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    #[test]
    fn a_tool_at_its_limit_does_not_delay_other_tools() {
        let mut queue = JobQueue::new(9, 9);
        for (id, tool) in [(1, "a.b"), (2, "a.b"), (3, "c.d")] {
            queue.push(0, NOW, job(id, tool, Some(1)));
        }
        assert_eq!(
            [next(&mut queue), next(&mut queue), next(&mut queue)],
            [Some(1), Some(3), None]
        );
        queue.finish(&job(1, "a.b", None));
        assert_eq!(next(&mut queue), Some(2));
    }

    #[test]
    fn no_more_jobs_run_than_allowed_and_removed_ones_never_run() {
        let mut queue = JobQueue::new(1, 1);
        for id in [1, 2, 3] {
            queue.push(0, NOW, job(id, "a.b", None));
        }
        assert!(queue.remove(JobId::from_bits(2)) && !queue.remove(JobId::from_bits(2)));
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(1), None]);
        queue.finish(&job(1, "a.b", None));
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(3), None]);
    }

    #[test]
    fn a_server_has_room_for_jobs_beyond_those_that_run_or_wait_until_it_is_paused() {
        let mut queue = JobQueue::new(4, 2);
        for (caller, id) in [("ada", 1), ("ada", 2), ("bob", 3)] {
            queue.push(0, NOW, job_from(caller, id, "t.x", None));
        }
        assert!(queue.take_next().is_some());
        let places = [("ada", 0), ("bob", 1)].map(|(name, left)| (Caller::with_key(name), left));
        assert_eq!((queue.room(), queue.caller_places()), (1, HashMap::from(places)));
        assert_eq!(queue.held_of_tool(&ToolId::new("t.x").expect("an id")), 3);
        assert!(queue.is_waiting(JobId::from_bits(3)) && queue.runs_jobs());
        queue.pause();
        assert_eq!((queue.room(), next(&mut queue)), (0, None));
        assert!(!queue.runs_jobs() && !JobQueue::new(0, 0).runs_jobs());
    }

    #[test]
    fn changed_limits_apply_to_the_next_job() {
        let mut queue = JobQueue::new(1, 1);
        for id in [1, 2, 3, 4] {
            queue.push(0, NOW, job(id, "a.b", None));
        }
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(1), None]);
        queue.limit(4, 3);
        assert_eq!(queue.running_max(), 4);
        assert_eq!(
            [next(&mut queue), next(&mut queue), next(&mut queue)],
            [Some(2), Some(3), None]
        );
        queue.limit(1, 1);
        queue.finish(&job(1, "a.b", None));
        assert_eq!(next(&mut queue), None, "two still run");
    }

    #[test]
    fn callers_take_turns_and_none_takes_all_slots() {
        let mut queue = JobQueue::new(4, 3);
        for id in 1..=9 {
            queue.push(0, NOW, job_from("ada", id, "a.b", None));
        }
        let ada_jobs: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(ada_jobs, [1, 2, 3], "the fourth slot is kept for another caller");
        for id in 11..=13 {
            queue.push(0, NOW, job_from("bob", id, "a.b", None));
        }
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(11), None]);
        assert_eq!((queue.len_for(&Caller::with_key("ada")), queue.len()), (6, 8));
        // A free slot goes to the caller with fewer running jobs, then to the longest waiting.
        queue.finish(&job_from("ada", 1, "a.b", None));
        assert_eq!(next(&mut queue), Some(12));
        queue.finish(&job_from("bob", 11, "a.b", None));
        assert_eq!(next(&mut queue), Some(13));
        queue.finish(&job_from("bob", 12, "a.b", None));
        queue.finish(&job_from("bob", 13, "a.b", None));
        assert!(!queue.caller_queues.contains_key(&Caller::with_key("bob")));
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(4), None]);
    }

    #[test]
    fn callers_take_turns_if_one_job_runs_at_a_time() {
        let mut queue = JobQueue::new(1, 1);
        for (caller, id) in [("ada", 1), ("ada", 2), ("ada", 3), ("bob", 11), ("bob", 12)] {
            queue.push(0, NOW, job_from(caller, id, "a.b", None));
        }
        let mut order = Vec::new();
        while let Some(job) = queue.take_next() {
            order.push(job.id.bits());
            queue.finish(&job);
        }
        assert_eq!(order, [1, 11, 2, 12, 3]);
    }
}
