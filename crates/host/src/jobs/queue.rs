//! Chooses the next job: by priority, then in turn among callers, then by acceptance time.
//!
//! A job must also fit the limits of its tool, its caller and the server.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use toolgate_contract::{Caller, JobId, ToolId};

/// Queued jobs, and counts of running jobs by caller and tool.
pub(super) struct Queue {
    lines: HashMap<Caller, Line>,
    places: HashMap<JobId, (Caller, Place)>,
    running: HashMap<ToolId, usize>,
    running_now: usize,
    running_max: usize,
    running_each: usize,
    came: u64,
    turns: u64,
}

/// Jobs of one caller.
#[derive(Default)]
struct Line {
    waiting: BTreeMap<Place, Waiting>,
    running: usize,
    /// Number of its last turn.
    turn: u64,
}

/// Position of a job in its caller's line; the lowest is next.
///
/// It contains the acceptance time and not the arrival here. So a job taken over from a dead server
/// is not delayed each time.
type Place = (Reverse<i32>, Timestamp, u64);

/// A queued job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) id: JobId,
    pub(super) caller: Caller,
    pub(super) tool: ToolId,
    /// Largest number of running calls of the tool, if it has its own limit.
    pub(super) at_once: Option<usize>,
}

impl Queue {
    /// Creates a queue that allows `running_max` running jobs, and `running_each` of one caller.
    pub(super) fn new(running_max: usize, running_each: usize) -> Self {
        Self {
            lines: HashMap::new(),
            places: HashMap::new(),
            running: HashMap::new(),
            running_now: 0,
            running_max,
            running_each,
            came: 0,
            turns: 0,
        }
    }

    /// Returns the number of queued jobs.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of queued jobs of `caller`.
    pub(super) fn len_of(&self, caller: &Caller) -> usize {
        self.lines.get(caller).map_or(0, |line| line.waiting.len())
    }

    /// Returns the number of running jobs.
    pub(super) fn running(&self) -> usize {
        self.running_now
    }

    pub(super) fn push(&mut self, priority: i32, created: Timestamp, job: Waiting) {
        self.came += 1;
        let place = (Reverse(priority), created, self.came);
        self.places.insert(job.id, (job.caller.clone(), place));
        self.lines.entry(job.caller.clone()).or_default().waiting.insert(place, job);
    }

    /// Removes a queued job. Returns false if it was not queued.
    pub(super) fn remove(&mut self, id: JobId) -> bool {
        let Some((caller, place)) = self.places.remove(&id) else { return false };
        let line = self.lines.get_mut(&caller);
        let was_there = line.and_then(|line| line.waiting.remove(&place)).is_some();
        self.tidy(&caller);
        was_there
    }

    /// Takes the next job that fits all limits and counts it as running.
    pub(super) fn next(&mut self) -> Option<Waiting> {
        if self.running_now >= self.running_max {
            return None;
        }
        let has_room = |job: &Waiting| {
            job.at_once.is_none_or(|max| self.running.get(&job.tool).copied().unwrap_or(0) < max)
        };
        let firsts = self.lines.values().filter(|line| line.running < self.running_each);
        let firsts = firsts.filter_map(|line| {
            let (place, job) = line.waiting.iter().find(|(_, job)| has_room(job))?;
            // Prefer callers with fewer running jobs, then the longest wait for a turn.
            Some(((place.0, line.running, line.turn, *place), job))
        });
        let ((.., place), job) = firsts.min_by_key(|(order, _)| *order)?;
        let caller = job.caller.clone();
        self.turns += 1;
        let line = self.lines.get_mut(&caller)?;
        line.turn = self.turns;
        line.running += 1;
        let job = line.waiting.remove(&place)?;
        self.places.remove(&job.id);
        *self.running.entry(job.tool.clone()).or_default() += 1;
        self.running_now += 1;
        Some(job)
    }

    /// Counts `job` as no longer running.
    pub(super) fn ended(&mut self, job: &Waiting) {
        self.running_now -= 1;
        if let Some(count) = self.running.get_mut(&job.tool) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&job.tool);
            }
        }
        if let Some(line) = self.lines.get_mut(&job.caller) {
            line.running -= 1;
        }
        self.tidy(&job.caller);
    }

    /// Removes callers without jobs.
    fn tidy(&mut self, caller: &Caller) {
        if self.lines.get(caller).is_some_and(|line| line.running == 0 && line.waiting.is_empty()) {
            self.lines.remove(caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn job(id: u128, tool: &str, at_once: Option<usize>) -> Waiting {
        of("ada", id, tool, at_once)
    }

    fn of(caller: &str, id: u128, tool: &str, at_once: Option<usize>) -> Waiting {
        let caller = Caller::named(caller);
        let tool = ToolId::new(tool).expect("an id");
        Waiting { id: JobId::of(id), caller, tool, at_once }
    }

    fn next(queue: &mut Queue) -> Option<u128> {
        queue.next().map(|job| job.id.bits())
    }

    #[test]
    fn the_higher_priority_goes_first_and_equals_in_the_order_they_came() {
        let mut queue = Queue::new(9, 9);
        for (priority, id) in [(0, 1), (5, 2), (0, 3), (5, 4), (-1, 5)] {
            queue.push(priority, NOW, job(id, "a.b", None));
        }
        let order: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [2, 4, 1, 3, 5]);
    }

    #[test]
    fn what_was_accepted_first_goes_first_though_it_came_last() {
        let mut queue = Queue::new(9, 9);
        for (created, id) in [(3, 3), (4, 4), (1, 1), (2, 2)] {
            let created = Timestamp::new(created, 0).expect("a time");
            queue.push(0, created, job(id, "a.b", None));
        }
        let order: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    #[test]
    fn a_tool_at_its_limit_keeps_no_other_waiting() {
        let mut queue = Queue::new(9, 9);
        for (id, tool) in [(1, "a.b"), (2, "a.b"), (3, "c.d")] {
            queue.push(0, NOW, job(id, tool, Some(1)));
        }
        assert_eq!(
            [next(&mut queue), next(&mut queue), next(&mut queue)],
            [Some(1), Some(3), None]
        );
        queue.ended(&job(1, "a.b", None));
        assert_eq!(next(&mut queue), Some(2));
    }

    #[test]
    fn no_more_run_than_may_and_what_was_taken_out_does_not() {
        let mut queue = Queue::new(1, 1);
        for id in [1, 2, 3] {
            queue.push(0, NOW, job(id, "a.b", None));
        }
        assert!(queue.remove(JobId::of(2)) && !queue.remove(JobId::of(2)));
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(1), None]);
        queue.ended(&job(1, "a.b", None));
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(3), None]);
    }

    #[test]
    fn callers_take_turns_and_none_has_all_the_places() {
        let mut queue = Queue::new(4, 3);
        for id in 1..=9 {
            queue.push(0, NOW, of("ada", id, "a.b", None));
        }
        let hers: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(hers, [1, 2, 3], "the fourth place is kept for another");
        for id in 11..=13 {
            queue.push(0, NOW, of("bob", id, "a.b", None));
        }
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(11), None]);
        assert_eq!((queue.len_of(&Caller::named("ada")), queue.len()), (6, 8));
        // A place that gets free is of whoever has fewer, then of whoever had one longer ago.
        queue.ended(&of("ada", 1, "a.b", None));
        assert_eq!(next(&mut queue), Some(12));
        queue.ended(&of("bob", 11, "a.b", None));
        assert_eq!(next(&mut queue), Some(13));
        queue.ended(&of("bob", 12, "a.b", None));
        queue.ended(&of("bob", 13, "a.b", None));
        assert!(!queue.lines.contains_key(&Caller::named("bob")));
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(4), None]);
    }

    #[test]
    fn where_one_runs_at_a_time_callers_take_turns() {
        let mut queue = Queue::new(1, 1);
        for (caller, id) in [("ada", 1), ("ada", 2), ("ada", 3), ("bob", 11), ("bob", 12)] {
            queue.push(0, NOW, of(caller, id, "a.b", None));
        }
        let mut order = Vec::new();
        while let Some(job) = queue.next() {
            order.push(job.id.bits());
            queue.ended(&job);
        }
        assert_eq!(order, [1, 11, 2, 12, 3]);
    }
}
