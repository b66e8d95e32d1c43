//! Runs calls through the gate: find, validate, authorise, limit, run, check, record.

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
    AnyPrompt, Arguments, AsJob, BoxFuture, Call, CallError, Caller, Contents, Ctx, Ending, Output,
    PromptText, Ran, Resources, ToolError,
};

use crate::audit::{Measured, OpenRecord};
use crate::catalog::Entry;
use crate::known::Known;
use crate::limits::Slot;
use crate::patience::Patience;
use crate::policy::Permit;
use crate::secrets::{CallSecrets, Told, Veiled};
use crate::witness::Called;
use crate::{Gate, confirm, validate};

/// Runs `call` to its end and leaves exactly one record, even if the tool panics.
///
/// A job passes the `slot` that it waited for before it began.
pub(crate) async fn run(
    gate: &Gate,
    call: &mut Call,
    slot: Option<Slot>,
) -> Result<Output, CallError> {
    if !gate.catalog.knows(&call.tool) {
        // Boxed to keep the future of every call small.
        Box::pin(gate.catalog.listed(Some(&call.tool))).await;
    }
    let record = begin_record(gate, call).await?;
    let by = By::of(gate, call);
    let secrets = gate.secrets.of_call(&call.input);
    let known = seen_to_begin(gate, call);
    let outcome = caught(pass(gate, call, slot, &known)).await;
    recorded(gate, record, (&by, &secrets), known, outcome, |output| output.ending).await
}

/// Reads the resource `uri` through the gate. `found` is the source that owns the URI.
pub(crate) async fn read(
    gate: &Gate,
    found: Result<&dyn Resources, CallError>,
    mut call: Call,
    uri: &str,
) -> Result<Vec<Contents>, CallError> {
    let mut record = begin_record(gate, &call).await?;
    record.takes(&OfResource { uri }, || found.is_ok());
    let by = By::of(gate, &call);
    let called = found.as_ref().map_or(Called::NoResource, |it| Called::Resource(&it.guard().id));
    let known = Known::of(gate, &mut call, called);
    let pass = async {
        let source = found?;
        let spec = source.guard();
        let input = source.asked(uri);
        let permit = known.by(gate.policy.authorise_beside(&call.caller, spec, &input))?;
        confirm::agreed(gate, spec, &call, &input, &permit).await?;
        let slot = gate.limits.admit(&call.caller, spec, &call.cancel).await?;
        let stand = known.stand(gate, spec.deadline, &call);
        run_bounded(gate, &stand, source.read(&stand.ctx, uri), permit, slot).await
    };
    let outcome = caught(pass).await;
    recorded(gate, record, (&by, &CallSecrets::default()), known, outcome, |_| Ending::Done).await
}

/// Makes the prompt called `name` through the gate. `found` looks the prompt up.
pub(crate) async fn make(
    gate: &Gate,
    name: &str,
    found: impl Future<Output = Result<Arc<dyn AnyPrompt>, CallError>>,
    mut call: Call,
    arguments: Arguments,
) -> Result<PromptText, CallError> {
    let mut record = begin_record(gate, &call).await?;
    record.takes(&OfPrompt { name, arguments: &arguments }, || true);
    let by = By::of(gate, &call);
    let secrets = gate.secrets.of_arguments(&arguments);
    let known = Known::of(gate, &mut call, Called::Prompt(name));
    let pass = async {
        let prompt = found.await?;
        validate::arguments(prompt.spec(), &arguments)?;
        let asked = json!({ "prompt": prompt.spec().name, "arguments": arguments });
        let guard = prompt.guard().unwrap_or(&gate.prompting);
        let permit = known.by(match prompt.guard() {
            Some(guard) => gate.policy.authorise_beside(&call.caller, guard, &asked),
            None => gate.policy.authorise_words(&call.caller, guard, &asked),
        })?;
        confirm::agreed(gate, guard, &call, &asked, &permit).await?;
        // Included files count as calls of the guard tool, yet the prompt takes no program slot.
        if let Some(guard) = prompt.guard() {
            gate.limits.take(&call.caller, guard)?;
        }
        gate.limits.take(&call.caller, &gate.prompting)?;
        let holds = prompt.guard().filter(|guard| guard.among.is_some());
        let holds = holds.unwrap_or(&gate.prompting);
        let slot = gate.limits.admit_taken(&call.caller, holds, &call.cancel).await?;
        let stand = known.stand(gate, None, &call);
        run_bounded(gate, &stand, prompt.make(&stand.ctx, arguments), permit, slot).await
    };
    let outcome = caught(pass).await;
    recorded(gate, record, (&by, &secrets), known, outcome, |_| Ending::Done).await
}

/// Input of a resource read, as its audit record shows it.
#[derive(Serialize)]
struct OfResource<'a> {
    uri: &'a str,
}

/// Input of a prompt request, as its audit record shows it.
#[derive(Serialize)]
struct OfPrompt<'a> {
    name: &'a str,
    arguments: &'a Arguments,
}

async fn begin_record<'g>(gate: &'g Gate, call: &Call) -> Result<OpenRecord<'g>, CallError> {
    loop {
        match gate.audit.begin(call).await {
            Ok(mut record) => {
                if !call.input.is_null() {
                    record.takes(&call.input, || gate.find(&call.caller, &call.tool).is_ok());
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
fn seen_to_begin(gate: &Gate, call: &mut Call) -> Known {
    if gate.witness.is_none() {
        return Known::default();
    }
    let found = gate.find(&call.caller, &call.tool);
    let called = found.as_ref().map_or(Called::NoTool, |entry| Called::Tool(&entry.spec().id));
    Known::of(gate, call, called)
}

/// Returns the outcome of `work`, with a panic turned into an error.
///
/// This is no `async fn`, because that would reserve space for `work` twice.
fn caught<T>(
    work: impl Future<Output = Result<T, CallError>>,
) -> impl Future<Output = Result<T, CallError>> {
    let outcome = AssertUnwindSafe(work).catch_unwind();
    outcome.map(|outcome| outcome.unwrap_or_else(|panic| Err(broken_off(panic.as_ref()))))
}

/// Account that the bytes and refusals of a call are counted for.
enum By {
    /// The caller, and the bytes of its input if bytes are counted.
    Caller(Caller, u64),
    /// An accepted job, which is not counted and always has a record.
    Job,
}

impl By {
    fn of(gate: &Gate, call: &Call) -> Self {
        if call.job.is_some() {
            return Self::Job;
        }
        let asked = if gate.limits.counts_carried() { call.input.bytes() } else { 0 };
        Self::Caller(call.caller.clone(), asked)
    }

    /// Counts the bytes of the input and of the output `told`.
    fn carried(&self, gate: &Gate, told: Option<&impl Measured>) {
        if let Self::Caller(caller, asked) = self
            && gate.limits.counts_carried()
        {
            gate.limits.carried(caller, asked.saturating_add(told.map_or(0, Measured::bytes)));
        }
    }

    /// Counts a call that was refused because of `why`.
    ///
    /// # Errors
    /// The error to send instead of `why`, if this refusal must leave no record.
    fn counted(&self, gate: &Gate, why: &CallError) -> Result<(), CallError> {
        let Self::Caller(caller, _) = self else { return Ok(()) };
        gate.limits.refused(caller).map_err(|limited| match why {
            // This error already contains a retry time.
            CallError::Limited { .. } => why.clone(),
            _ => limited,
        })
    }
}

/// Redacts secrets from `outcome`, closes the record and returns the outcome. `by` and `secrets`
/// belong to the call.
async fn recorded<T: Told + Measured>(
    gate: &Gate,
    mut record: OpenRecord<'_>,
    (by, secrets): (&By, &CallSecrets),
    known: Known,
    outcome: Result<T, CallError>,
    ending: impl Fn(&T) -> Ending,
) -> Result<T, CallError> {
    let mut outcome = outcome.map_err(|why| gate.secrets.without(secrets, why));
    if let Ok(told) = &mut outcome {
        gate.secrets.clear(told);
        record.gives(told);
    }
    by.carried(gate, outcome.as_ref().ok());
    if let Err(why) = &outcome
        && !known.is_let_in()
        && let Err(limited) = by.counted(gate, why)
    {
        known.ends_unrecorded(record, &limited);
        return Err(limited);
    }
    let record = if outcome.is_err() { record.without(&gate.secrets) } else { record };
    let laid = known.ends(record, outcome.as_ref().map(ending));
    gate.audit.kept(laid).await?;
    outcome
}

async fn pass(
    gate: &Gate,
    call: &mut Call,
    slot: Option<Slot>,
    known: &Known,
) -> Result<Output, CallError> {
    let entry = gate.find(&call.caller, &call.tool)?;
    if entry.spec().job == AsJob::Must && call.job.is_none() {
        return Err(CallError::NeedsJob { tool: entry.spec().id.to_string() });
    }
    let input = entry.tool().normalised(call.input.take());
    validate::mirrored(&entry, &input, call.beside.mirrored.as_deref())?;
    validate::input(&entry, &input)?;
    let permit = known.by(gate.policy.authorise(&call.caller, entry.spec(), &input))?;
    confirm::before(gate, &entry, call, &input, &permit).await?;
    let slot = match slot {
        Some(slot) => slot,
        None => gate.limits.admit(&call.caller, entry.spec(), &call.cancel).await?,
    };
    let stand = known.stand(gate, entry.spec().deadline, call);
    let work = entry.tool().run(&stand.ctx, input);
    let mut output = run_bounded(gate, &stand, work, permit, slot).await?;
    validate::output(&gate.settings.output_checks, &entry, &output)?;
    if entry.tool().is_too_long(&output) {
        // A secret cut in two would match in neither part, so redact before cutting.
        gate.secrets.clear(&mut output);
        output = entry.tool().given(&stand.ctx, output)?;
    }
    Ok(output)
}

/// Checks that a job would pass the gate now, and asks the questions due before it starts.
///
/// Only a refused job leaves a record here. An accepted one leaves its record when it runs.
pub(crate) async fn accept(gate: &Gate, call: Call) -> Result<(Arc<Entry>, Call), CallError> {
    let known = Known::default();
    match caught(look(gate, &call, &known)).await {
        Ok(entry) => Ok((entry, call)),
        Err(why) => Err(refused(gate, &call, known, why).await),
    }
}

/// Records the refusal of a request and returns the error to send.
pub(crate) async fn refuse(gate: &Gate, call: &Call, why: CallError) -> CallError {
    refused(gate, call, Known::default(), why).await
}

async fn refused(gate: &Gate, call: &Call, known: Known, why: CallError) -> CallError {
    let why = gate.secrets.without(&gate.secrets.of_call(&call.input), why);
    match gate.audit.begin(call).await {
        Ok(mut record) => {
            if !call.input.is_null() {
                record.takes(&call.input, || gate.find(&call.caller, &call.tool).is_ok());
            }
            let found = gate.find(&call.caller, &call.tool);
            let called =
                found.as_ref().map_or(Called::NoTool, |entry| Called::Tool(&entry.spec().id));
            let known = known.seen_by(gate, call, called);
            if let Err(limited) = By::of(gate, call).counted(gate, &why) {
                known.ends_unrecorded(record, &limited);
                return limited;
            }
            let laid = known.ends(record.without(&gate.secrets), Err(&why));
            gate.audit.kept(laid).await.err().unwrap_or(why)
        }
        Err(unrecorded) => unrecorded,
    }
}

async fn look(gate: &Gate, call: &Call, known: &Known) -> Result<Arc<Entry>, CallError> {
    let entry = gate.find(&call.caller, &call.tool)?;
    let input = entry.tool().normalised(call.input.clone());
    validate::mirrored(&entry, &input, call.beside.mirrored.as_deref())?;
    validate::input(&entry, &input)?;
    let permit = known.by(gate.policy.authorise(&call.caller, entry.spec(), &input))?;
    if entry.spec().job == AsJob::Never {
        return Err(CallError::NoJob { tool: entry.spec().id.to_string() });
    }
    confirm::agreed(gate, entry.spec(), call, &input, &permit).await?;
    // Counted before the tool looks, because some calls begin with looking.
    gate.limits.take(&call.caller, entry.spec())?;
    confirm::looked(gate, &entry, call, &input).await?;
    Ok(entry)
}

/// Context of a call that was let in: its tool context, deadline and cancellation.
pub(crate) struct Stand {
    pub(crate) ctx: Ctx,
    /// Cancelled by the caller.
    cancel: CancellationToken,
    allowed: Duration,
    patience: Arc<Patience>,
    /// Guard that keeps the redaction of events active.
    _veil: Veiled,
}

impl Stand {
    pub(crate) fn of(gate: &Gate, allowed: Option<Duration>, call: &Call) -> Self {
        let allowed = allowed.unwrap_or_else(|| gate.settings.deadline_of(call));
        let allowed = call.within.map_or(allowed, |within| within.min(allowed));
        let patience = Patience::of(gate.settings.patience_of(call));
        let (events, veil) = gate.secrets.veiled(&call.events);
        let ctx = Ctx {
            caller: call.caller.clone(),
            // The tool's own token: a passed deadline does not cancel the caller.
            cancel: call.cancel.child_token(),
            // Deadlines use tokio's clock, which tests can pause.
            deadline: Instant::now().into_std() + allowed,
            events,
            asker: patience.counted(&call.asker),
            spent: gate.limits.spent(&call.caller),
            trace: call.beside.trace.clone(),
            session: call.beside.session.clone(),
            as_job: call.job.is_some() || call.beside.as_job,
            ahead: call.ahead.clone(),
            ran: Ran::default(),
        };
        Self { ctx, cancel: call.cancel.clone(), allowed, patience, _veil: veil }
    }

    /// Waits until the caller cancels or the time is over, and returns the matching error.
    pub(crate) async fn over(&self) -> CallError {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => CallError::Canceled,
            more = self.patience.over(self.ctx.deadline.into()) => {
                CallError::TimedOut { after: self.allowed + more }
            }
        }
    }
}

/// Runs the work until it ends, its deadline passes or its caller cancels.
///
/// A stopped tool has the cancel grace period to finish in order. After that it is dropped.
async fn run_bounded<T>(
    gate: &Gate,
    stand: &Stand,
    work: BoxFuture<'_, Result<T, ToolError>>,
    _permit: Permit,
    _slot: Slot,
) -> Result<T, CallError> {
    bounded(gate, stand, work).await
}

/// Runs work that needs no slot until it ends, its deadline passes or its caller cancels.
pub(crate) async fn bounded<T>(
    gate: &Gate,
    stand: &Stand,
    mut work: impl Future<Output = Result<T, ToolError>> + Unpin,
) -> Result<T, CallError> {
    let stopped = tokio::select! {
        biased;
        done = &mut work => return done.map_err(CallError::from),
        stopped = stand.over() => stopped,
    };
    stand.ctx.cancel.cancel();
    let _ = tokio::time::timeout(gate.settings.cancel_grace, &mut work).await;
    Err(stopped)
}

/// Runs work that leaves no record, such as listing. A panic becomes an error.
pub(crate) async fn looked<T>(
    gate: &Gate,
    stand: &Stand,
    work: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, CallError> {
    let looked = AssertUnwindSafe(bounded(gate, stand, pin!(work))).catch_unwind().await;
    looked.unwrap_or_else(|panic| Err(broken_off(panic.as_ref())))
}

fn broken_off(panic: &(dyn Any + Send)) -> CallError {
    CallError::Failed {
        message: "the tool broke off; this is a fault in it, not in the call".to_owned(),
        cause: format!("panic: {}", said(panic)),
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
