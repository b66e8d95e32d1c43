//! Takes requests through the gate: resolve, validate, authorise, confirm, limit, run, check,
//! record.
//!
//! [`pass_gate`] is the only way to run a tool, read or watch a resource, render a prompt or start
//! a job. The trait [`GatedRequest`] defines what differs between these requests. Lists do not pass
//! the gate: they omit items that their caller may not see.

pub(crate) mod answer_timeout;
pub(crate) mod call_observer;
pub(crate) mod call_trace;
pub(crate) mod confirm;
pub(crate) mod multi_round;
mod operator_action;
mod step_clock;
mod recording;
pub(crate) mod gated_request;
pub(crate) mod tool_requests;
pub(crate) mod validate;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    CallError, OUTPUT_TOOL, SandboxReport, ToolCall, ToolContext, ToolError, ToolFuture,
    ToolOutput, ToolSpec,
};

use crate::Gate;
use crate::catalog::CatalogToolEntry;
use crate::limits::CallSlot;
use crate::pipeline::answer_timeout::AnswerWaitClock;
use crate::pipeline::call_trace::CallTrace;
use crate::pipeline::gated_request::{GatedRequest, RecordedRequest, RequestAdmission};
use crate::pipeline::recording::{
    CallQuotaAccount, close_record, keep_result, open_record, record_refusal, redact_outcome,
};
use crate::pipeline::step_clock::CallGateStep;
use crate::pipeline::tool_requests::{JobStart, ToolRunRequest};
use crate::policy::CallPermit;
use crate::secrets::RedactionGuard;

/// Runs the tool of `call` to its end and leaves exactly one audit record.
///
/// A job passes the `slot` for which it waited before it began.
pub(crate) fn run_call(
    gate: &Gate,
    call: &mut ToolCall,
    slot: Option<CallSlot>,
) -> impl Future<Output = Result<ToolOutput, CallError>> {
    run_recorded(gate, call, ToolRunRequest::new(slot))
}

// region: gate
/// Takes `request` through the gate and leaves exactly one audit record, even if the request
/// panics.
pub(crate) async fn run_recorded<R: RecordedRequest>(
    gate: &Gate,
    call: &mut ToolCall,
    mut request: R,
) -> Result<R::Output, CallError> {
    if let Some(listing) = request.pending_listing(gate, call) {
        listing.await;
    }
    let mut record = open_record(gate, call).await?;
    request.look_up(gate, call);
    request.note_input(gate, call, &mut record);
    let account = CallQuotaAccount::for_call(gate, call);
    let secrets = request.input_secrets(gate, call);
    let trace = request.begin_trace(gate, call);
    let mut outcome = catch_panic(pin!(pass_gate(gate, call, request, &trace))).await;
    if let Err(CallError::UnknownTool { .. }) = &outcome {
        trace.note_hidden_tool(gate, call);
    }
    redact_outcome(gate, &secrets, &mut outcome);
    keep_result(gate, &mut record, &secrets, &outcome);
    if let Some(number) = close_record(gate, record, trace, &account, &mut outcome, R::ending) {
        gate.audit.wait_until_stored(number).await?;
    }
    outcome
}

/// Takes `request` through every step of the gate. A step that is missing here is missing for every
/// request.
async fn pass_gate<R: GatedRequest>(
    gate: &Gate,
    call: &mut ToolCall,
    mut request: R,
    trace: &CallTrace,
) -> Result<R::Output, CallError> {
    let target = request.resolve(gate, call).await?;
    let input = request.validate(&target, call).await?;
    trace.end_step(CallGateStep::Validate);
    let rules = request.rules(gate, &target);
    let decision = rules.authorise(&gate.policy, &call.caller, &input);
    let permit = trace.note_decision(decision)?;
    request.check_support(&target)?;
    trace.end_step(CallGateStep::Authorize);
    confirm::confirm_if_required(gate, rules.guard, call, &input, &permit).await?;
    trace.end_step(CallGateStep::Confirm);
    request.prepare(gate, &target, call, &input).await?;
    trace.end_step(CallGateStep::Prepare);
    let admission = rules.limit.admit(gate, call).await?;
    let context = trace.call_context(gate, rules.guard, rules.deadline, call, &admission);
    trace.end_step(CallGateStep::Wait);
    let work = request.run(&target, &context.ctx, input);
    let output = run_bounded(gate, &context, work, permit, admission).await?;
    trace.end_step(CallGateStep::Run);
    request.check_output(gate, &target, &context.ctx, output).await
}
// endregion

/// Checks and runs `request`, which leaves no audit record, such as a request for the list of a
/// folder.
pub(crate) async fn look<R: GatedRequest>(
    gate: &Gate,
    call: &mut ToolCall,
    request: R,
) -> Result<R::Output, CallError> {
    let trace = CallTrace::default();
    catch_panic(pin!(pass_gate(gate, call, request, &trace))).await
}

/// Checks that the call of a job is allowed now, and asks the questions that must be answered
/// before the job starts.
///
/// Only a refused job leaves an audit record now. An accepted job leaves its record when it runs.
pub(crate) async fn accept_job(
    gate: &Gate,
    mut call: ToolCall,
) -> Result<(Arc<CatalogToolEntry>, ToolCall), CallError> {
    let trace = CallTrace::default();
    let accepted = catch_panic(pin!(pass_gate(gate, &mut call, JobStart, &trace))).await;
    match accepted {
        Ok(entry) => Ok((entry, call)),
        Err(error) => Err(record_refusal(gate, &call, trace, error).await),
    }
}

/// Records the refusal of a request in the audit log and returns the error to send.
pub(crate) async fn refuse_call(gate: &Gate, call: &ToolCall, error: CallError) -> CallError {
    record_refusal(gate, call, CallTrace::default(), error).await
}

/// Returns the outcome of `work`. Turns a panic into an error.
///
/// The caller pins `work`, because the future of a call is large and would be moved several times.
async fn catch_panic<T>(
    work: Pin<&mut impl Future<Output = Result<T, CallError>>>,
) -> Result<T, CallError> {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    outcome.unwrap_or_else(|panic| Err(panic_error(panic.as_ref())))
}

/// Context of a call that is about to run: its tool context, deadline and cancellation.
pub(crate) struct CallContext {
    pub(crate) ctx: ToolContext,
    /// Token with which the caller cancels the call.
    cancel: CancellationToken,
    time_limit: Duration,
    answer_clock: Arc<AnswerWaitClock>,
    /// Guard that keeps the redaction of secrets from events active.
    _redaction: RedactionGuard,
}

impl CallContext {
    pub(crate) fn new(gate: &Gate, deadline: Option<Duration>, call: &ToolCall) -> Self {
        let deadline = deadline.unwrap_or_else(|| gate.settings.default_deadline(call));
        let time_limit = call.time_limit.map_or(deadline, |limit| limit.min(deadline));
        let answer_clock = AnswerWaitClock::new(gate.settings.answer_wait_for(call));
        let (events, redaction) = gate.secrets.redact_events(&call.events);
        let ctx = ToolContext {
            caller: call.caller.clone(),
            // The tool's own token: a passed deadline does not cancel the caller.
            cancel: call.cancel.child_token(),
            // Deadlines use tokio's clock, which tests can pause.
            deadline: Instant::now().into_std() + time_limit,
            events,
            asker: answer_clock.time_asker(&call.asker),
            write_budget: gate.limits.write_budget(&call.caller),
            may_read_output: false,
            trace: call.metadata.trace.clone(),
            session: call.metadata.session.clone(),
            via: call.metadata.via,
            as_job: call.job.is_some() || call.metadata.as_job,
            started_work: call.started_work.clone(),
            sandbox_report: SandboxReport::default(),
        };
        Self { ctx, cancel: call.cancel.clone(), time_limit, answer_clock, _redaction: redaction }
    }

    /// Allows the result of the tool `spec` to refer to stored output, if the tool stores any and
    /// the caller can read it.
    pub(crate) fn with_output_access(mut self, gate: &Gate, spec: &ToolSpec) -> Self {
        self.ctx.may_read_output =
            spec.stores_output && gate.shows_tool(&self.ctx.caller, OUTPUT_TOOL);
        self
    }

    /// Waits until the caller cancels the call or its time is over, and returns the matching error.
    pub(crate) async fn wait_until_over(&self) -> CallError {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => CallError::Canceled,
            extension = self.answer_clock.wait_until_over(self.ctx.deadline.into()) => {
                CallError::TimedOut { after: self.time_limit + extension }
            }
        }
    }
}

/// Runs the future `work` of a call until it ends, its deadline passes or its caller cancels.
///
/// A stopped tool has the cancel grace period to finish. After that, `work` is dropped.
async fn run_bounded<T>(
    gate: &Gate,
    context: &CallContext,
    work: ToolFuture<'_, T>,
    _permit: CallPermit,
    _admission: RequestAdmission,
) -> Result<T, CallError> {
    run_with_deadline(gate, context, work).await
}

/// Runs the future `work` of a request that needs no slot, until it ends, its deadline passes or
/// its caller cancels.
pub(crate) async fn run_with_deadline<T>(
    gate: &Gate,
    context: &CallContext,
    mut work: impl Future<Output = Result<T, ToolError>> + Unpin,
) -> Result<T, CallError> {
    let reason = tokio::select! {
        biased;
        result = &mut work => return result.map_err(CallError::from),
        reason = context.wait_until_over() => reason,
    };
    context.ctx.cancel.cancel();
    let _ = tokio::time::timeout(gate.settings.cancel_grace, &mut work).await;
    Err(reason)
}

/// Runs the future `work`, which leaves no audit record, such as a list request. Returns a panic as
/// an error.
pub(crate) async fn run_unrecorded<T>(
    gate: &Gate,
    context: &CallContext,
    work: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, CallError> {
    let work = pin!(work);
    catch_panic(pin!(run_with_deadline(gate, context, work))).await
}

fn panic_error(panic: &(dyn Any + Send)) -> CallError {
    CallError::Failed {
        message: "the tool crashed; this is a bug in the tool, not in the call".to_owned(),
        cause: format!("panic: {}", panic_message(panic)),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
