//! Measures the time that a call spends in each of its steps, such as validation and policy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::audit::CallStepTimes;

/// Number of steps of a call, from validation to the check of its output.
const STEPS: usize = 7;
/// Marker for the end time of a step that has not ended.
const NOT_ENDED: u64 = u64::MAX;

/// Step of a call. The variants are in the order in which a call passes the steps.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallGateStep {
    Validate,
    Authorize,
    Confirm,
    Prepare,
    Wait,
    Run,
    Check,
}

/// Times at which the steps of one call ended.
pub(crate) struct CallStepClock {
    began: Instant,
    /// Time at which each step ended, in microseconds after the call began.
    ends: [AtomicU64; STEPS],
}

impl Default for CallStepClock {
    fn default() -> Self {
        Self { began: Instant::now(), ends: [const { AtomicU64::new(NOT_ENDED) }; STEPS] }
    }
}

impl CallStepClock {
    /// Records that the `step` of the call ends now, and that the next step begins.
    pub(crate) fn end(&self, step: CallGateStep) {
        self.ends[step as usize].store(self.now_us(), Ordering::Relaxed);
    }

    /// Returns the times of all steps of a call that ends now. The step that has not ended gets the
    /// rest of the time. Returns `None` if no step has ended.
    pub(crate) fn times(&self) -> Option<CallStepTimes> {
        let has_passed = self.ends[0].load(Ordering::Relaxed) != NOT_ENDED;
        has_passed.then(|| self.times_until(self.now_us()))
    }

    fn times_until(&self, now_us: u64) -> CallStepTimes {
        let mut before_us = 0;
        let mut is_over = false;
        let mut time_of = |step: CallGateStep| {
            if is_over {
                return None;
            }
            let mut end_us = self.ends[step as usize].load(Ordering::Relaxed);
            if end_us == NOT_ENDED {
                is_over = true;
                end_us = now_us;
            }
            let time = end_us.saturating_sub(before_us);
            before_us = end_us;
            Some(time)
        };
        CallStepTimes {
            validate: time_of(CallGateStep::Validate),
            authorize: time_of(CallGateStep::Authorize),
            confirm: time_of(CallGateStep::Confirm),
            prepare: time_of(CallGateStep::Prepare),
            wait: time_of(CallGateStep::Wait),
            run: time_of(CallGateStep::Run),
            check: time_of(CallGateStep::Check),
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(NOT_ENDED - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(ends: &[u64]) -> CallStepClock {
        let clock = CallStepClock::default();
        for (end, slot) in ends.iter().zip(&clock.ends) {
            slot.store(*end, Ordering::Relaxed);
        }
        clock
    }

    #[test]
    fn the_times_of_the_steps_of_a_finished_call_add_up_to_its_duration() {
        let times = clock(&[10, 12, 12, 12, 40, 100]).times_until(101);
        assert_eq!(
            times.each().collect::<Vec<_>>(),
            [
                ("validate", 10),
                ("authorize", 2),
                ("confirm", 0),
                ("prepare", 0),
                ("wait", 28),
                ("run", 60),
                ("check", 1),
            ]
        );
    }

    #[test]
    fn the_step_that_fails_is_the_last_with_a_time() {
        let times = clock(&[10]).times_until(15);
        assert_eq!(times.each().collect::<Vec<_>>(), [("validate", 10), ("authorize", 5)]);
    }
}
