//! Collects facts about a call while it is checked and run, for its audit record and its observer.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::Duration;

use toolgate_contract::{CallError, SandboxReport, ToolCall, ToolRunStatus, ToolSpec};

use crate::Gate;
use crate::audit::{AuditRecordNumber, OpenAuditRecord, outcome_word};
use crate::pipeline::CallContext;
use crate::pipeline::call_observer::{CallSpan, CallTarget, ObservedCallEnd, ObservedCallStart};
use crate::pipeline::gated_request::RequestAdmission;
use crate::pipeline::step_clock::{CallGateStep, CallStepClock};
use crate::policy::{CallPermit, PolicyDecision, PolicyDenial, PolicyRuleName};
use crate::secrets::SecretSet;

/// Trace of one call: its policy decision, the sandbox of its programs, and its step times.
#[derive(Default)]
pub(crate) struct CallTrace {
    /// Policy decision and the rule that made it.
    decision: OnceLock<(PolicyDecision, PolicyRuleName)>,
    /// Report about the sandbox in which the call's programs ran.
    confinement: OnceLock<SandboxReport>,
    /// Times at which the steps of the call ended.
    steps: CallStepClock,
    /// Observer's span of the call, until it has ended.
    span: Option<Box<dyn CallSpan>>,
}

impl CallTrace {
    /// Starts the trace of `call`, and continues the call in the observer's trace context. Secrets
    /// in the caller's trace context are redacted, because the context is sent to other programs.
    pub(crate) fn begin(gate: &Gate, call: &mut ToolCall, target: CallTarget<'_>) -> Self {
        if let Some(received) = &mut call.metadata.trace {
            for text in [&mut received.state, &mut received.baggage].into_iter().flatten() {
                if let Cow::Owned(redacted) = gate.secrets.redact(text) {
                    *text = redacted;
                }
            }
        }
        let trace = Self::default().observe(gate, call, target);
        if let Some(context) = trace.span.as_ref().and_then(|span| span.trace()) {
            call.metadata.trace = Some(context);
        }
        trace
    }

    /// Reports the start of `call` to the observer of calls, without a new trace context.
    pub(crate) fn observe(mut self, gate: &Gate, call: &ToolCall, target: CallTarget<'_>) -> Self {
        self.span = gate.observer.as_ref().map(|observer| {
            observer.begin_call(&ObservedCallStart {
                caller: &call.caller,
                target,
                dialect: &call.dialect,
                metadata: &call.metadata,
                is_job: call.job.is_some(),
            })
        });
        self
    }

    /// Records the policy decision about the call and the rule that made it. Returns the permit or
    /// the error.
    pub(crate) fn note_decision(
        &self,
        decision: Result<CallPermit, PolicyDenial>,
    ) -> Result<CallPermit, CallError> {
        let noted = match &decision {
            Ok(permit) => (permit.decision(), permit.rule().clone()),
            Err(denial) => (PolicyDecision::Denied, denial.rule().clone()),
        };
        // A call is decided once.
        let _ = self.decision.set(noted);
        decision.map_err(CallError::from)
    }

    /// Records the policy decision about `call`, if its tool exists but the policy hides it from
    /// the caller. The caller learns nothing about this.
    pub(crate) fn note_hidden_tool(&self, gate: &Gate, call: &ToolCall) {
        let Ok(entry) = gate.catalog.snapshot().find(&call.tool, |_| true) else { return };
        let explained = gate.policy.explain(&call.caller, entry.spec(), &call.input);
        if !explained.visible && explained.decision == PolicyDecision::Denied {
            // A call is decided once.
            let _ = self.decision.set((PolicyDecision::Denied, explained.rule.into()));
        }
    }

    /// Records that the `step` of the call ends now.
    pub(crate) fn end_step(&self, step: CallGateStep) {
        self.steps.end(step);
    }

    /// Returns the context of a call to which the policy rules of the tool `guard` apply. If the
    /// call holds a slot, the trace records the sandbox of its programs.
    pub(crate) fn call_context(
        &self,
        gate: &Gate,
        guard: &ToolSpec,
        deadline: Option<Duration>,
        call: &ToolCall,
        admission: &RequestAdmission,
    ) -> CallContext {
        let context = CallContext::new(gate, deadline, call).with_output_access(gate, guard);
        if admission.has_slot() {
            let _ = self.confinement.set(context.ctx.sandbox_report.clone());
        }
        context
    }

    /// Returns true if the call received a slot, so that the tool may begin.
    pub(crate) fn is_admitted(&self) -> bool {
        self.confinement.get().is_some()
    }

    /// Discards the audit record of the call, and reports the end of the call to the observer.
    pub(crate) fn finish_unrecorded(mut self, record: OpenAuditRecord<'_>, error: &CallError) {
        record.discard();
        let span = self.span.take();
        self.end_span(span, outcome_word(Err(error)));
    }

    /// Closes the audit `record`, and reports the end of the call to the observer. Host names that
    /// programs chose are recorded without `secrets`.
    pub(crate) fn finish(
        mut self,
        secrets: &SecretSet,
        mut record: OpenAuditRecord<'_>,
        end: Result<ToolRunStatus, &CallError>,
    ) -> AuditRecordNumber {
        if let Some((decision, rule)) = self.decision.get() {
            record.note_decision(*decision, rule);
        }
        if let Some(report) = self.confinement.get() {
            record.note_confinement(report, secrets);
        }
        record.note_steps(|| self.steps.times());
        let span = self.span.take();
        self.end_span(span, outcome_word(end));
        record.close(end)
    }

    fn end_span(&self, span: Option<Box<dyn CallSpan>>, outcome: &'static str) {
        let Some(span) = span else { return };
        let decision = self.decision.get();
        let decision = decision.map(|(decision, rule)| (decision.word(), rule.as_ref()));
        span.end(&ObservedCallEnd { outcome, decision });
    }
}

/// Reports the outcome `dropped` for a call that was stopped early.
impl Drop for CallTrace {
    fn drop(&mut self) {
        let span = self.span.take();
        self.end_span(span, "dropped");
    }
}
