//! Which job is next: by priority, then in the order they were accepted, as far as there is room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use toolgate_contract::{JobId, ToolId};

/// Jobs that wait, and how many of each tool run.
pub(super) struct Queue {
    waiting: BTreeMap<Place, Waiting>,
    places: HashMap<JobId, Place>,
    running: HashMap<ToolId, usize>,
    running_now: usize,
    running_max: usize,
    came: u64,
}

/// Where a job stands: the lowest is next.
///
/// By when it was accepted, not by when it came here: what another server left comes after what
/// was accepted meanwhile, and must not wait for ever where servers keep dying.
type Place = (Reverse<i32>, Timestamp, u64);

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) id: JobId,
    pub(super) tool: ToolId,
    /// How many calls of the tool may run at once, if fewer than of any.
    pub(super) at_once: Option<usize>,
}

impl Queue {
    pub(super) fn new(running_max: usize) -> Self {
        Self {
            waiting: BTreeMap::new(),
            places: HashMap::new(),
            running: HashMap::new(),
            running_now: 0,
            running_max,
            came: 0,
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many run.
    pub(super) fn running(&self) -> usize {
        self.running_now
    }

    pub(super) fn push(&mut self, priority: i32, created: Timestamp, job: Waiting) {
        self.came += 1;
        let place = (Reverse(priority), created, self.came);
        self.places.insert(job.id, place);
        self.waiting.insert(place, job);
    }

    /// Takes a job out that waits; whether it did.
    pub(super) fn remove(&mut self, id: JobId) -> bool {
        let place = self.places.remove(&id);
        place.and_then(|place| self.waiting.remove(&place)).is_some()
    }

    /// The next job there is room for, which counts as running from now on.
    pub(super) fn next(&mut self) -> Option<Waiting> {
        if self.running_now >= self.running_max {
            return None;
        }
        let has_room = |job: &Waiting| {
            job.at_once.is_none_or(|max| self.running.get(&job.tool).copied().unwrap_or(0) < max)
        };
        let place = *self.waiting.iter().find(|(_, job)| has_room(job))?.0;
        let job = self.waiting.remove(&place)?;
        self.places.remove(&job.id);
        *self.running.entry(job.tool.clone()).or_default() += 1;
        self.running_now += 1;
        Some(job)
    }

    /// Says that a job of `tool` runs no more.
    pub(super) fn ended(&mut self, tool: &ToolId) {
        self.running_now -= 1;
        if let Some(count) = self.running.get_mut(tool) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(tool);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn job(id: u128, tool: &str, at_once: Option<usize>) -> Waiting {
        Waiting { id: JobId::of(id), tool: ToolId::new(tool).expect("an id"), at_once }
    }

    fn next(queue: &mut Queue) -> Option<u128> {
        queue.next().map(|job| job.id.bits())
    }

    #[test]
    fn the_higher_priority_goes_first_and_equals_in_the_order_they_came() {
        let mut queue = Queue::new(9);
        for (priority, id) in [(0, 1), (5, 2), (0, 3), (5, 4), (-1, 5)] {
            queue.push(priority, NOW, job(id, "a.b", None));
        }
        let order: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [2, 4, 1, 3, 5]);
    }

    #[test]
    fn what_was_accepted_first_goes_first_though_it_came_last() {
        let mut queue = Queue::new(9);
        for (created, id) in [(3, 3), (4, 4), (1, 1), (2, 2)] {
            let created = Timestamp::new(created, 0).expect("a time");
            queue.push(0, created, job(id, "a.b", None));
        }
        let order: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    #[test]
    fn a_tool_at_its_limit_keeps_no_other_waiting() {
        let mut queue = Queue::new(9);
        for (id, tool) in [(1, "a.b"), (2, "a.b"), (3, "c.d")] {
            queue.push(0, NOW, job(id, tool, Some(1)));
        }
        assert_eq!(
            [next(&mut queue), next(&mut queue), next(&mut queue)],
            [Some(1), Some(3), None]
        );
        queue.ended(&ToolId::new("a.b").expect("an id"));
        assert_eq!(next(&mut queue), Some(2));
    }

    #[test]
    fn no_more_run_than_may_and_what_was_taken_out_does_not() {
        let mut queue = Queue::new(1);
        for id in [1, 2, 3] {
            queue.push(0, NOW, job(id, "a.b", None));
        }
        assert!(queue.remove(JobId::of(2)) && !queue.remove(JobId::of(2)));
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(1), None]);
        queue.ended(&ToolId::new("a.b").expect("an id"));
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(3), None]);
    }
}
