//! What comes to be known of a call on its way through the gate, for its record and for whoever is
//! told of it.

use std::sync::OnceLock;
use std::time::Duration;

use toolgate_contract::{Call, CallError, Ending, Ran};

use crate::Gate;
use crate::audit::{Laid, OpenRecord, outcome};
use crate::pipeline::Stand;
use crate::policy::{Decision, Denied, Permit, RuleName};
use crate::witness::{Begins, Called, Ends, Seen};

/// What comes to be known of a call on its way.
#[derive(Default)]
pub(crate) struct Known {
    /// What was decided about it, and by which rule.
    decided: OnceLock<(Decision, RuleName)>,
    /// How its programs are confined.
    ran: OnceLock<Ran>,
    /// Whoever saw it begin, and has not seen it end.
    seen: Option<Box<dyn Seen>>,
}

impl Known {
    /// Of `call`, which begins, and goes on in a trace of whoever sees it.
    pub(crate) fn of(gate: &Gate, call: &mut Call, called: Called<'_>) -> Self {
        let known = Self::default().seen_by(gate, call, called);
        if let Some(trace) = known.seen.as_ref().and_then(|seen| seen.trace()) {
            call.beside.trace = Some(trace);
        }
        known
    }

    /// The same, where `call` is only now seen to begin.
    pub(crate) fn seen_by(mut self, gate: &Gate, call: &Call, called: Called<'_>) -> Self {
        self.seen = gate.witness.as_ref().map(|witness| {
            let (dialect, beside) = (&call.dialect, &call.beside);
            witness.begins(&Begins { called, dialect, beside, is_job: call.job.is_some() })
        });
        self
    }

    /// Notes what was decided and by which rule, and passes it on.
    pub(crate) fn by(&self, ruled: Result<Permit, Denied>) -> Result<Permit, CallError> {
        let decided = match &ruled {
            Ok(permit) => (permit.decision(), permit.rule().clone()),
            Err(denied) => (Decision::Denied, denied.rule().clone()),
        };
        // Nothing is decided twice.
        let _ = self.decided.set(decided);
        ruled.map_err(CallError::from)
    }

    /// Where a call stands that is let in.
    pub(crate) fn stand(&self, gate: &Gate, allowed: Option<Duration>, call: &Call) -> Stand {
        let stand = Stand::of(gate, allowed, call);
        let _ = self.ran.set(stand.ctx.ran.clone());
        stand
    }

    /// Whether the call was let in.
    pub(crate) fn is_let_in(&self) -> bool {
        self.ran.get().is_some()
    }

    /// Leaves no record of the call, and tells whoever saw it begin that it has ended.
    pub(crate) fn ends_unrecorded(mut self, record: OpenRecord<'_>, why: &CallError) {
        record.forget();
        let seen = self.seen.take();
        self.tell(seen, outcome(Err(why)));
    }

    /// Closes `record`, and tells whoever saw the call begin that it has ended.
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

/// Cut short, it has ended all the same.
impl Drop for Known {
    fn drop(&mut self) {
        let seen = self.seen.take();
        self.tell(seen, "dropped");
    }
}
