//! Runs calls through the gate: find, validate, authorise, limit, run, check, record.

pub(crate) mod answer_timeout;
pub(crate) mod call_observer;
pub(crate) mod call_trace;
pub(crate) mod confirm;
pub(crate) mod multi_round;
pub(crate) mod validate;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    AnyPrompt, BoxFuture, CallEnding, CallError, Caller, JobSupport, PromptArguments, PromptText,
    ResourceContents, ResourceSource, SandboxReport, ToolCall, ToolContext, ToolError, ToolOutput,
};

use crate::Gate;
use crate::audit::{ByteSize, OpenRecord};
use crate::catalog::CatalogEntry;
use crate::limits::CallSlot;
use crate::pipeline::answer_timeout::AnswerClock;
use crate::pipeline::call_observer::CallTarget;
use crate::pipeline::call_trace::CallTrace;
use crate::policy::CallPermit;
use crate::secrets::{CallSecrets, Redactable, RedactionGuard};

/// Runs `call` to its end and leaves exactly one record, even if the tool panics.
///
/// A job passes the `slot` that it waited for before it began.
pub(crate) async fn run_call(
    gate: &Gate,
    call: &mut ToolCall,
    slot: Option<CallSlot>,
) -> Result<ToolOutput, CallError> {
    if !gate.catalog.is_settled(&call.tool) {
        // Boxed to keep the future of every call small.
        Box::pin(gate.catalog.wait_for_listings(Some(&call.tool))).await;
    }
    let record = begin_record(gate, call).await?;
    let by = CallAccount::for_call(gate, call);
    let secrets = gate.secrets.call_secrets(&call.input);
    let known = begin_trace(gate, call);
    let outcome = catch_panic(pass_gate(gate, call, slot, &known)).await;
    finish_record(gate, record, (&by, &secrets), known, outcome, |output| output.ending).await
}

/// Reads the resource `uri` through the gate. `found` is the source that owns the URI.
pub(crate) async fn read_resource(
    gate: &Gate,
    found: Result<&dyn ResourceSource, CallError>,
    mut call: ToolCall,
    uri: &str,
) -> Result<Vec<ResourceContents>, CallError> {
    let mut record = begin_record(gate, &call).await?;
    record.note_input(&ResourceRecordInput { uri }, || found.is_ok());
    let by = CallAccount::for_call(gate, &call);
    let called = found
        .as_ref()
        .map_or(CallTarget::UnknownResource, |it| CallTarget::Resource(&it.guard().id));
    let known = CallTrace::begin(gate, &mut call, called);
    let pass = async {
        let source = found?;
        let spec = source.guard();
        let input = source.policy_input(uri);
        let permit =
            known.note_decision(gate.policy.authorise_guarded(&call.caller, spec, &input))?;
        confirm::confirm_if_required(gate, spec, &call, &input, &permit).await?;
        let slot = gate.limits.admit(&call.caller, spec, &call.cancel).await?;
        let stand = known.call_context(gate, spec.deadline, &call);
        run_bounded(gate, &stand, source.read(&stand.ctx, uri), permit, slot).await
    };
    let outcome = catch_panic(pass).await;
    finish_record(gate, record, (&by, &CallSecrets::default()), known, outcome, |_| {
        CallEnding::Done
    })
    .await
}

/// Makes the prompt called `name` through the gate. `found` looks the prompt up.
pub(crate) async fn make_prompt(
    gate: &Gate,
    name: &str,
    found: impl Future<Output = Result<Arc<dyn AnyPrompt>, CallError>>,
    mut call: ToolCall,
    arguments: PromptArguments,
) -> Result<PromptText, CallError> {
    let mut record = begin_record(gate, &call).await?;
    record.note_input(&PromptRecordInput { name, arguments: &arguments }, || true);
    let by = CallAccount::for_call(gate, &call);
    let secrets = gate.secrets.argument_secrets(&arguments);
    let known = CallTrace::begin(gate, &mut call, CallTarget::Prompt(name));
    let pass = async {
        let prompt = found.await?;
        validate::check_prompt_arguments(prompt.spec(), &arguments)?;
        let asked = json!({ "prompt": prompt.spec().name, "arguments": arguments });
        let guard = prompt.guard().unwrap_or(&gate.prompt_spec);
        let permit = known.note_decision(match prompt.guard() {
            Some(guard) => gate.policy.authorise_guarded(&call.caller, guard, &asked),
            None => gate.policy.authorise_text_prompt(&call.caller, guard, &asked),
        })?;
        confirm::confirm_if_required(gate, guard, &call, &asked, &permit).await?;
        // Included files count as calls of the guard tool, yet the prompt takes no program slot.
        if let Some(guard) = prompt.guard() {
            gate.limits.count_call(&call.caller, guard)?;
        }
        gate.limits.count_call(&call.caller, &gate.prompt_spec)?;
        let holds = prompt.guard().filter(|guard| guard.group.is_some());
        let holds = holds.unwrap_or(&gate.prompt_spec);
        let slot = gate.limits.admit_counted(&call.caller, holds, &call.cancel).await?;
        let stand = known.call_context(gate, None, &call);
        run_bounded(gate, &stand, prompt.make(&stand.ctx, arguments), permit, slot).await
    };
    let outcome = catch_panic(pass).await;
    finish_record(gate, record, (&by, &secrets), known, outcome, |_| CallEnding::Done).await
}

/// Input of a resource read, as its audit record shows it.
#[derive(Serialize)]
struct ResourceRecordInput<'a> {
    uri: &'a str,
}

/// Input of a prompt request, as its audit record shows it.
#[derive(Serialize)]
struct PromptRecordInput<'a> {
    name: &'a str,
    arguments: &'a PromptArguments,
}

async fn begin_record<'g>(gate: &'g Gate, call: &ToolCall) -> Result<OpenRecord<'g>, CallError> {
    loop {
        match gate.audit.begin_record(call).await {
            Ok(mut record) => {
                if !call.input.is_null() {
                    record.note_input(&call.input, || gate.find(&call.caller, &call.tool).is_ok());
                }
                return Ok(record);
            }
            // An accepted job waits for the log, however slow that is.
            Err(_) if call.job.is_some() && !call.cancel.is_cancelled() => {}
            Err(refused) => return Err(refused),
        }
    }
}

/// Starts observing `call`, a call of a tool.
fn begin_trace(gate: &Gate, call: &mut ToolCall) -> CallTrace {
    if gate.observer.is_none() {
        return CallTrace::default();
    }
    let found = gate.find(&call.caller, &call.tool);
    let called =
        found.as_ref().map_or(CallTarget::UnknownTool, |entry| CallTarget::Tool(&entry.spec().id));
    CallTrace::begin(gate, call, called)
}

/// Returns the outcome of `work`, with a panic turned into an error.
///
/// This is no `async fn`, because that would reserve space for `work` twice.
fn catch_panic<T>(
    work: impl Future<Output = Result<T, CallError>>,
) -> impl Future<Output = Result<T, CallError>> {
    let outcome = AssertUnwindSafe(work).catch_unwind();
    outcome.map(|outcome| outcome.unwrap_or_else(|panic| Err(panic_error(panic.as_ref()))))
}

/// Account that the bytes and refusals of a call are counted for.
enum CallAccount {
    /// The caller, and the bytes of its input if bytes are counted.
    Caller(Caller, u64),
    /// An accepted job, which is not counted and always has a record.
    Job,
}

impl CallAccount {
    fn for_call(gate: &Gate, call: &ToolCall) -> Self {
        if call.job.is_some() {
            return Self::Job;
        }
        let asked = if gate.limits.counts_traffic() { call.input.bytes() } else { 0 };
        Self::Caller(call.caller.clone(), asked)
    }

    /// Counts the bytes of the input and of the output `told`.
    fn count_bytes(&self, gate: &Gate, told: Option<&impl ByteSize>) {
        if let Self::Caller(caller, asked) = self
            && gate.limits.counts_traffic()
        {
            gate.limits
                .count_traffic(caller, asked.saturating_add(told.map_or(0, ByteSize::bytes)));
        }
    }

    /// Counts a call that was refused because of `why`.
    ///
    /// # Errors
    /// The error to send instead of `why`, if this refusal must leave no record.
    fn count_refusal(&self, gate: &Gate, why: &CallError) -> Result<(), CallError> {
        let Self::Caller(caller, _) = self else { return Ok(()) };
        gate.limits.count_refusal(caller).map_err(|limited| match why {
            // This error already contains a retry time.
            CallError::Limited { .. } => why.clone(),
            _ => limited,
        })
    }
}

/// Redacts secrets from `outcome`, closes the record and returns the outcome. `by` and `secrets`
/// belong to the call.
async fn finish_record<T: Redactable + ByteSize>(
    gate: &Gate,
    mut record: OpenRecord<'_>,
    (by, secrets): (&CallAccount, &CallSecrets),
    known: CallTrace,
    outcome: Result<T, CallError>,
    ending: impl Fn(&T) -> CallEnding,
) -> Result<T, CallError> {
    let mut outcome = outcome.map_err(|why| gate.secrets.redact_error(secrets, why));
    if let Ok(told) = &mut outcome {
        gate.secrets.redact_value(told);
        record.note_output(told);
    }
    by.count_bytes(gate, outcome.as_ref().ok());
    if let Err(why) = &outcome
        && !known.is_admitted()
        && let Err(limited) = by.count_refusal(gate, why)
    {
        known.finish_unrecorded(record, &limited);
        return Err(limited);
    }
    let record = if outcome.is_err() { record.redact_tool(&gate.secrets) } else { record };
    let laid = known.finish(record, outcome.as_ref().map(ending));
    gate.audit.wait_until_stored(laid).await?;
    outcome
}

async fn pass_gate(
    gate: &Gate,
    call: &mut ToolCall,
    slot: Option<CallSlot>,
    known: &CallTrace,
) -> Result<ToolOutput, CallError> {
    let entry = gate.find(&call.caller, &call.tool)?;
    if entry.spec().job == JobSupport::Required && call.job.is_none() {
        return Err(CallError::NeedsJob { tool: entry.spec().id.to_string() });
    }
    let input = entry.tool().normalize_input(call.input.take());
    validate::check_header_params(&entry, &input, call.metadata.header_params.as_deref())?;
    validate::check_input(&entry, &input)?;
    let permit = known.note_decision(gate.policy.authorise(&call.caller, entry.spec(), &input))?;
    confirm::ask_before_call(gate, &entry, call, &input, &permit).await?;
    let slot = match slot {
        Some(slot) => slot,
        None => gate.limits.admit(&call.caller, entry.spec(), &call.cancel).await?,
    };
    let stand = known.call_context(gate, entry.spec().deadline, call);
    let work = entry.tool().run(&stand.ctx, input);
    let mut output = run_bounded(gate, &stand, work, permit, slot).await?;
    validate::check_output(&gate.settings.output_checks, &entry, &output)?;
    if entry.tool().is_too_long(&output) {
        // A secret cut in two would match in neither part, so redact before cutting.
        gate.secrets.redact_value(&mut output);
        output = entry.tool().shorten(&stand.ctx, output)?;
    }
    Ok(output)
}

/// Checks that a job would pass the gate now, and asks the questions due before it starts.
///
/// Only a refused job leaves a record here. An accepted one leaves its record when it runs.
pub(crate) async fn accept_job(
    gate: &Gate,
    call: ToolCall,
) -> Result<(Arc<CatalogEntry>, ToolCall), CallError> {
    let known = CallTrace::default();
    match catch_panic(check_job(gate, &call, &known)).await {
        Ok(entry) => Ok((entry, call)),
        Err(why) => Err(record_refusal(gate, &call, known, why).await),
    }
}

/// Records the refusal of a request and returns the error to send.
pub(crate) async fn refuse_call(gate: &Gate, call: &ToolCall, why: CallError) -> CallError {
    record_refusal(gate, call, CallTrace::default(), why).await
}

async fn record_refusal(
    gate: &Gate,
    call: &ToolCall,
    known: CallTrace,
    why: CallError,
) -> CallError {
    let why = gate.secrets.redact_error(&gate.secrets.call_secrets(&call.input), why);
    match gate.audit.begin_record(call).await {
        Ok(mut record) => {
            if !call.input.is_null() {
                record.note_input(&call.input, || gate.find(&call.caller, &call.tool).is_ok());
            }
            let found = gate.find(&call.caller, &call.tool);
            let called = found
                .as_ref()
                .map_or(CallTarget::UnknownTool, |entry| CallTarget::Tool(&entry.spec().id));
            let known = known.observe(gate, call, called);
            if let Err(limited) = CallAccount::for_call(gate, call).count_refusal(gate, &why) {
                known.finish_unrecorded(record, &limited);
                return limited;
            }
            let laid = known.finish(record.redact_tool(&gate.secrets), Err(&why));
            gate.audit.wait_until_stored(laid).await.err().unwrap_or(why)
        }
        Err(unrecorded) => unrecorded,
    }
}

async fn check_job(
    gate: &Gate,
    call: &ToolCall,
    known: &CallTrace,
) -> Result<Arc<CatalogEntry>, CallError> {
    let entry = gate.find(&call.caller, &call.tool)?;
    let input = entry.tool().normalize_input(call.input.clone());
    validate::check_header_params(&entry, &input, call.metadata.header_params.as_deref())?;
    validate::check_input(&entry, &input)?;
    let permit = known.note_decision(gate.policy.authorise(&call.caller, entry.spec(), &input))?;
    if entry.spec().job == JobSupport::Never {
        return Err(CallError::NoJob { tool: entry.spec().id.to_string() });
    }
    confirm::confirm_if_required(gate, entry.spec(), call, &input, &permit).await?;
    // Counted before the tool looks, because some calls begin with looking.
    gate.limits.count_call(&call.caller, entry.spec())?;
    confirm::run_precheck(gate, &entry, call, &input).await?;
    Ok(entry)
}

/// Context of a call that was let in: its tool context, deadline and cancellation.
pub(crate) struct CallContext {
    pub(crate) ctx: ToolContext,
    /// Cancelled by the caller.
    cancel: CancellationToken,
    time_limit: Duration,
    answer_clock: Arc<AnswerClock>,
    /// Guard that keeps the redaction of events active.
    _veil: RedactionGuard,
}

impl CallContext {
    pub(crate) fn new(gate: &Gate, allowed: Option<Duration>, call: &ToolCall) -> Self {
        let allowed = allowed.unwrap_or_else(|| gate.settings.default_deadline(call));
        let time_limit = call.time_limit.map_or(allowed, |within| within.min(allowed));
        let answer_clock = AnswerClock::new(gate.settings.answer_wait_for(call));
        let (events, veil) = gate.secrets.redact_events(&call.events);
        let ctx = ToolContext {
            caller: call.caller.clone(),
            // The tool's own token: a passed deadline does not cancel the caller.
            cancel: call.cancel.child_token(),
            // Deadlines use tokio's clock, which tests can pause.
            deadline: Instant::now().into_std() + time_limit,
            events,
            asker: answer_clock.time_asker(&call.asker),
            write_budget: gate.limits.write_budget(&call.caller),
            trace: call.metadata.trace.clone(),
            session: call.metadata.session.clone(),
            as_job: call.job.is_some() || call.metadata.as_job,
            started_work: call.started_work.clone(),
            sandbox_report: SandboxReport::default(),
        };
        Self { ctx, cancel: call.cancel.clone(), time_limit, answer_clock, _veil: veil }
    }

    /// Waits until the caller cancels or the time is over, and returns the matching error.
    pub(crate) async fn wait_until_over(&self) -> CallError {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => CallError::Canceled,
            more = self.answer_clock.wait_until_over(self.ctx.deadline.into()) => {
                CallError::TimedOut { after: self.time_limit + more }
            }
        }
    }
}

/// Runs the work until it ends, its deadline passes or its caller cancels.
///
/// A stopped tool has the cancel grace period to finish in order. After that it is dropped.
async fn run_bounded<T>(
    gate: &Gate,
    stand: &CallContext,
    work: BoxFuture<'_, Result<T, ToolError>>,
    _permit: CallPermit,
    _slot: CallSlot,
) -> Result<T, CallError> {
    run_with_deadline(gate, stand, work).await
}

/// Runs work that needs no slot until it ends, its deadline passes or its caller cancels.
pub(crate) async fn run_with_deadline<T>(
    gate: &Gate,
    stand: &CallContext,
    mut work: impl Future<Output = Result<T, ToolError>> + Unpin,
) -> Result<T, CallError> {
    let stopped = tokio::select! {
        biased;
        done = &mut work => return done.map_err(CallError::from),
        stopped = stand.wait_until_over() => stopped,
    };
    stand.ctx.cancel.cancel();
    let _ = tokio::time::timeout(gate.settings.cancel_grace, &mut work).await;
    Err(stopped)
}

/// Runs work that leaves no record, such as listing. A panic becomes an error.
pub(crate) async fn run_unrecorded<T>(
    gate: &Gate,
    stand: &CallContext,
    work: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, CallError> {
    let looked = AssertUnwindSafe(run_with_deadline(gate, stand, pin!(work))).catch_unwind().await;
    looked.unwrap_or_else(|panic| Err(panic_error(panic.as_ref())))
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
