//! Defines what differs between the types of requests (such as tool calls, resource reads and job
//! starts) that pass the common checks.

use std::future::ready;
use std::time::Duration;

use serde_json::Value;
use toolgate_contract::{
    BoxFuture, CallError, Caller, ToolCall, ToolContext, ToolFuture, ToolRunStatus, ToolSpec,
};

use crate::Gate;
use crate::audit::{AuditedPayload, OpenAuditRecord};
use crate::limits::CallSlot;
use crate::pipeline::call_trace::CallTrace;
use crate::policy::{CallPermit, PolicyDenial, PolicyRequestKind, ToolPolicy};
use crate::secrets::{CallSecrets, Redactable};

/// A request that passes the common checks. Defines its target, its rules and its execution. The
/// order of the steps is in [`pass_gate`](super::pass_gate).
pub(crate) trait GatedRequest: Send {
    /// The tool, resource source or prompt that the request concerns.
    type Target: Send + Sync;
    /// The result of the request.
    type Output: Send;

    /// Returns the target of the request. A target hidden from the caller counts as unknown.
    fn resolve(
        &mut self,
        gate: &Gate,
        call: &ToolCall,
    ) -> impl Future<Output = Result<Self::Target, CallError>> + Send;

    /// Validates the request's arguments, and returns the input for the policy.
    fn validate(
        &mut self,
        target: &Self::Target,
        call: &mut ToolCall,
    ) -> impl Future<Output = Result<Value, CallError>> + Send;

    /// Returns the rules, limits and deadline that apply to the request.
    fn rules<'t>(&mut self, gate: &'t Gate, target: &'t Self::Target) -> GatedRequestRules<'t>;

    /// Refuses features that the target does not support. Policy has allowed the request, so the
    /// error may describe the target.
    fn check_support(&self, _target: &Self::Target) -> Result<(), CallError> {
        Ok(())
    }

    /// Lets the target inspect the request before the request counts against limits.
    fn prepare(
        &self,
        _gate: &Gate,
        _target: &Self::Target,
        _call: &ToolCall,
        _input: &Value,
    ) -> impl Future<Output = Result<(), CallError>> + Send {
        ready(Ok(()))
    }

    /// Executes the request, for example runs the tool.
    fn run<'t>(
        &'t mut self,
        target: &'t Self::Target,
        ctx: &'t ToolContext,
        input: Value,
    ) -> ToolFuture<'t, Self::Output>;

    /// Validates the result of the request, and returns the result to send.
    fn check_output(
        &self,
        _gate: &Gate,
        _target: &Self::Target,
        _ctx: &ToolContext,
        output: Self::Output,
    ) -> impl Future<Output = Result<Self::Output, CallError>> + Send {
        ready(Ok(output))
    }
}

/// A request that passes the common checks and always leaves an audit record.
pub(crate) trait RecordedRequest: GatedRequest<Output: Redactable + AuditedPayload> {
    /// Returns a future that waits for the tool lists of upstreams which may add the target, for a
    /// bounded time. `None` if no such listing is pending.
    fn pending_listing<'a>(
        &self,
        _gate: &'a Gate,
        _call: &'a ToolCall,
    ) -> Option<BoxFuture<'a, ()>> {
        None
    }

    /// Looks up the target of the request once, for its audit record, its observer and its checks.
    /// Does nothing if the request was created with its target.
    fn look_up(&mut self, _gate: &Gate, _call: &ToolCall) {}

    /// Adds facts to the audit record that the call does not contain: the request's input, if it
    /// differs from the call's input, or the subject that only the target knows.
    fn note_input(&self, _gate: &Gate, _call: &ToolCall, _record: &mut OpenAuditRecord<'_>) {}

    /// Returns the secrets in the request's input.
    fn input_secrets(&self, gate: &Gate, call: &ToolCall) -> CallSecrets;

    /// Starts to observe `call`, for tracing and its audit record.
    fn begin_trace(&self, gate: &Gate, call: &mut ToolCall) -> CallTrace;

    /// Returns the status of the executed request: success, or a failed program.
    fn ending(_output: &Self::Output) -> ToolRunStatus {
        ToolRunStatus::Done
    }
}

/// Rules, limits and deadline of one request.
pub(crate) struct GatedRequestRules<'t> {
    /// Tool whose policy rules apply to the request, and whose use a person may have to confirm.
    pub(crate) guard: &'t ToolSpec,
    /// Type of the request for policy rules.
    pub(crate) kind: PolicyRequestKind,
    /// Limits that apply to the request.
    pub(crate) limit: RequestAdmissionKind<'t>,
    /// Deadline of the request, or `None` for the default deadline.
    pub(crate) deadline: Option<Duration>,
}

impl GatedRequestRules<'_> {
    /// Returns the decision of `policy` about a request of `caller` with `input`.
    pub(super) fn authorise(
        &self,
        policy: &ToolPolicy,
        caller: &Caller,
        input: &Value,
    ) -> Result<CallPermit, PolicyDenial> {
        match self.kind {
            PolicyRequestKind::Tool => policy.authorise(caller, self.guard, input),
            PolicyRequestKind::Guarded => policy.authorise_guarded(caller, self.guard, input),
            PolicyRequestKind::TextPrompt => {
                policy.authorise_text_prompt(caller, self.guard, input)
            }
        }
    }
}

/// Way in which limits admit a request: as which kind of call the request counts, and whether it
/// takes a slot.
pub(crate) enum RequestAdmissionKind<'t> {
    /// Call of the tool, which counts against the tool's limits and takes a slot.
    Call(&'t ToolSpec),
    /// A prompt, which counts as a prompt and, if policy rules of a tool apply to it, as a call of
    /// that tool.
    Prompt(Option<&'t ToolSpec>),
    /// The start of a job, which counts as a call of the tool. The job waits for its slot later.
    JobStart(&'t ToolSpec),
    /// The run of a job with its slot. The job was counted against limits when it was accepted.
    JobRun(Box<CallSlot>),
    /// A request without an audit record, which neither counts nor takes a slot.
    Look,
}

/// Proof that the limits admitted a request. Dropping the proof frees the request's slot.
pub(crate) struct RequestAdmission {
    slot: Option<CallSlot>,
}

impl RequestAdmission {
    /// Returns true if the request holds a slot, so that its execution counts as begun.
    pub(super) fn has_slot(&self) -> bool {
        self.slot.is_some()
    }
}

impl RequestAdmissionKind<'_> {
    /// Counts the request against its limits, and waits for its slot for a bounded time.
    ///
    /// # Errors
    /// A limit is exceeded, no slot becomes free in time, or the caller cancels.
    pub(super) async fn admit(
        self,
        gate: &Gate,
        call: &ToolCall,
    ) -> Result<RequestAdmission, CallError> {
        let ToolCall { caller, cancel, .. } = call;
        let limits = &gate.limits;
        let slot = match self {
            Self::Call(spec) => Some(limits.admit(caller, spec, cancel).await?),
            Self::Prompt(guard) => {
                if let Some(guard) = guard {
                    limits.count_call(caller, guard).await?;
                }
                limits.count_call(caller, &gate.prompt_spec).await?;
                // A prompt takes no program slot, but it takes one of its guard's group.
                let group = guard.filter(|guard| guard.group.is_some());
                let slot_of = group.unwrap_or(&gate.prompt_spec);
                Some(limits.admit_counted(caller, slot_of, cancel).await?)
            }
            Self::JobStart(spec) => {
                limits.count_call(caller, spec).await?;
                None
            }
            Self::JobRun(slot) => Some(*slot),
            Self::Look => None,
        };
        Ok(RequestAdmission { slot })
    }
}
