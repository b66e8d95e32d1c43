//! Collects facts about a call on its way through the gate, for its audit record and its observer.

use std::sync::OnceLock;
use std::time::Duration;

use toolgate_contract::{Call, CallError, Ending, Ran};

use crate::Gate;
use crate::audit::{Laid, OpenRecord, outcome};
use crate::pipeline::Stand;
use crate::policy::{Decision, Denied, Permit, RuleName};
use crate::witness::{Begins, Called, Ends, Seen};

/// Facts about one call, collected while it passes the gate.
#[derive(Default)]
pub(crate) struct Known {
    /// Policy decision and the rule that made it.
    decided: OnceLock<(Decision, RuleName)>,
    /// Confinement of the programs that the call ran.
    ran: OnceLock<Ran>,
    /// Observer's span of the call, until it has ended.
    seen: Option<Box<dyn Seen>>,
}

impl Known {
    /// Starts the trace of `call`, and continues the call in the observer's trace context.
    pub(crate) fn of(gate: &Gate, call: &mut Call, called: Called<'_>) -> Self {
        let known = Self::default().seen_by(gate, call, called);
        if let Some(trace) = known.seen.as_ref().and_then(|seen| seen.trace()) {
            call.beside.trace = Some(trace);
        }
        known
    }

    /// Reports the start of `call` to the observer, without a new trace context.
    pub(crate) fn seen_by(mut self, gate: &Gate, call: &Call, called: Called<'_>) -> Self {
        self.seen = gate.witness.as_ref().map(|witness| {
            let dialect = &call.dialect;
            let beside = &call.beside;
            witness.begins(&Begins { called, dialect, beside, is_job: call.job.is_some() })
        });
        self
    }

    /// Notes the policy decision and its rule, and returns the permit or the error.
    pub(crate) fn by(&self, ruled: Result<Permit, Denied>) -> Result<Permit, CallError> {
        let decided = match &ruled {
            Ok(permit) => (permit.decision(), permit.rule().clone()),
            Err(denied) => (Decision::Denied, denied.rule().clone()),
        };
        // A call is decided once.
        let _ = self.decided.set(decided);
        ruled.map_err(CallError::from)
    }

    /// Returns the context of a call that was let in, and notes its confinement.
    pub(crate) fn stand(&self, gate: &Gate, allowed: Option<Duration>, call: &Call) -> Stand {
        let stand = Stand::of(gate, allowed, call);
        let _ = self.ran.set(stand.ctx.ran.clone());
        stand
    }

    /// Returns true if the call was let in.
    pub(crate) fn is_let_in(&self) -> bool {
        self.ran.get().is_some()
    }

    /// Discards the record of the call, and reports its end to the observer.
    pub(crate) fn ends_unrecorded(mut self, record: OpenRecord<'_>, why: &CallError) {
        record.forget();
        let seen = self.seen.take();
        self.tell(seen, outcome(Err(why)));
    }

    /// Closes `record`, and reports the end of the call to the observer.
    pub(crate) fn ends(
        mut self,
        mut record: OpenRecord<'_>,
        end: Result<Ending, &CallError>,
    ) -> Laid {
        if let Some((decision, rule)) = self.decided.get() {
            record.decided(*decision, rule);
        }
        if let Some(ran) = self.ran.get() {
            record.ran(ran);
        }
        let seen = self.seen.take();
        self.tell(seen, outcome(end));
        record.close(end)
    }

    fn tell(&self, seen: Option<Box<dyn Seen>>, outcome: &'static str) {
        let Some(seen) = seen else { return };
        let decided = self.decided.get();
        let decided = decided.map(|(decision, rule)| (decision.word(), rule.as_ref()));
        seen.ends(&Ends { outcome, decided });
    }
}

/// Reports `dropped` for a call that was cut short.
impl Drop for Known {
    fn drop(&mut self) {
        let seen = self.seen.take();
        self.tell(seen, "dropped");
    }
}
