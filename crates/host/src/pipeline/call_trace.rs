//! Collects facts about a call on its way through the gate, for its audit record and its observer.

use std::sync::OnceLock;
use std::time::Duration;

use toolgate_contract::{CallEnding, CallError, SandboxReport, ToolCall};

use crate::Gate;
use crate::audit::{OpenRecord, RecordNumber, outcome_word};
use crate::pipeline::CallContext;
use crate::pipeline::call_observer::{CallEnd, CallSpan, CallStart, CallTarget};
use crate::policy::{CallPermit, PolicyDecision, PolicyDenial, RuleName};

/// Facts about one call, collected while it passes the gate.
#[derive(Default)]
pub(crate) struct CallTrace {
    /// Policy decision and the rule that made it.
    decision: OnceLock<(PolicyDecision, RuleName)>,
    /// Confinement of the programs that the call ran.
    confinement: OnceLock<SandboxReport>,
    /// Observer's span of the call, until it has ended.
    span: Option<Box<dyn CallSpan>>,
}

impl CallTrace {
    /// Starts the trace of `call`, and continues the call in the observer's trace context.
    pub(crate) fn begin(gate: &Gate, call: &mut ToolCall, called: CallTarget<'_>) -> Self {
        let known = Self::default().observe(gate, call, called);
        if let Some(trace) = known.span.as_ref().and_then(|seen| seen.trace()) {
            call.metadata.trace = Some(trace);
        }
        known
    }

    /// Reports the start of `call` to the observer, without a new trace context.
    pub(crate) fn observe(mut self, gate: &Gate, call: &ToolCall, called: CallTarget<'_>) -> Self {
        self.span = gate.observer.as_ref().map(|witness| {
            let dialect = &call.dialect;
            let beside = &call.metadata;
            witness.begin_call(&CallStart {
                target: called,
                dialect,
                metadata: beside,
                is_job: call.job.is_some(),
            })
        });
        self
    }

    /// Notes the policy decision and its rule, and returns the permit or the error.
    pub(crate) fn note_decision(
        &self,
        ruled: Result<CallPermit, PolicyDenial>,
    ) -> Result<CallPermit, CallError> {
        let decided = match &ruled {
            Ok(permit) => (permit.decision(), permit.rule().clone()),
            Err(denied) => (PolicyDecision::Denied, denied.rule().clone()),
        };
        // A call is decided once.
        let _ = self.decision.set(decided);
        ruled.map_err(CallError::from)
    }

    /// Returns the context of a call that was let in, and notes its confinement.
    pub(crate) fn call_context(
        &self,
        gate: &Gate,
        allowed: Option<Duration>,
        call: &ToolCall,
    ) -> CallContext {
        let stand = CallContext::new(gate, allowed, call);
        let _ = self.confinement.set(stand.ctx.sandbox_report.clone());
        stand
    }

    /// Returns true if the call was let in.
    pub(crate) fn is_admitted(&self) -> bool {
        self.confinement.get().is_some()
    }

    /// Discards the record of the call, and reports its end to the observer.
    pub(crate) fn finish_unrecorded(mut self, record: OpenRecord<'_>, why: &CallError) {
        record.discard();
        let seen = self.span.take();
        self.end_span(seen, outcome_word(Err(why)));
    }

    /// Closes `record`, and reports the end of the call to the observer.
    pub(crate) fn finish(
        mut self,
        mut record: OpenRecord<'_>,
        end: Result<CallEnding, &CallError>,
    ) -> RecordNumber {
        if let Some((decision, rule)) = self.decision.get() {
            record.note_decision(*decision, rule);
        }
        if let Some(ran) = self.confinement.get() {
            record.note_confinement(ran);
        }
        let seen = self.span.take();
        self.end_span(seen, outcome_word(end));
        record.close(end)
    }

    fn end_span(&self, seen: Option<Box<dyn CallSpan>>, outcome: &'static str) {
        let Some(seen) = seen else { return };
        let decided = self.decision.get();
        let decided = decided.map(|(decision, rule)| (decision.word(), rule.as_ref()));
        seen.end(&CallEnd { outcome, decision: decided });
    }
}

/// Reports `dropped` for a call that was cut short.
impl Drop for CallTrace {
    fn drop(&mut self) {
        let seen = self.span.take();
        self.end_span(seen, "dropped");
    }
}
