//! The gate: found, checked, authorised, limited, run, checked, recorded.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use futures_util::FutureExt;
use serde_json::Value;
use toolgate_contract::{Call, CallError, Ctx, Output, ToolSpec};

use crate::Gate;
use crate::catalog::Entry;
use crate::limits::Slot;
use crate::policy::Permit;
use crate::validate;

/// Runs `call` to its end and leaves exactly one record, whatever comes of it; a panic too.
///
/// A job brings its slot: it waited for it before it began.
pub(crate) async fn run(gate: &Gate, call: Call, slot: Option<Slot>) -> Result<Output, CallError> {
    let record = loop {
        match gate.audit.begin(&call).await {
            Ok(record) => break record,
            // What was accepted waits for the log, however slow it is.
            Err(_) if call.job.is_some() && !call.cancel.is_cancelled() => {}
            Err(refused) => return Err(refused),
        }
    };
    let outcome = AssertUnwindSafe(pass(gate, call, slot)).catch_unwind().await;
    let outcome = outcome.unwrap_or_else(|panic| Err(broken_off(panic.as_ref())));
    record.close(&outcome);
    outcome
}

async fn pass(gate: &Gate, mut call: Call, slot: Option<Slot>) -> Result<Output, CallError> {
    let entry = gate.find(&call.caller, &call.tool)?;
    let input = entry.tool().normalised(call.input.take());
    validate::input(entry, &input)?;
    let permit = gate.policy.authorise(&call.caller, entry.spec())?;
    let slot = match slot {
        Some(slot) => slot,
        None => gate.limits.admit(entry.spec(), &call.cancel).await?,
    };
    let output = run_bounded(gate, entry, call, input, permit, slot).await?;
    validate::output(gate.settings.output_check, entry, &output)?;
    Ok(output)
}

/// Looks whether a job would pass the gate now. It leaves a record only if it would not: what is
/// accepted leaves its own when it runs.
pub(crate) async fn accept(gate: &Gate, call: Call) -> Result<(&ToolSpec, Call), CallError> {
    let looked = std::panic::catch_unwind(AssertUnwindSafe(|| look(gate, &call)));
    match looked.unwrap_or_else(|panic| Err(broken_off(panic.as_ref()))) {
        Ok(spec) => Ok((spec, call)),
        Err(why) => Err(refuse(gate, &call, why).await),
    }
}

/// Leaves the record of a job that is refused, and gives back `why`.
pub(crate) async fn refuse(gate: &Gate, call: &Call, why: CallError) -> CallError {
    match gate.audit.begin(call).await {
        Ok(record) => {
            record.close(&Err(why.clone()));
            why
        }
        Err(unrecorded) => unrecorded,
    }
}

fn look<'g>(gate: &'g Gate, call: &Call) -> Result<&'g ToolSpec, CallError> {
    let entry = gate.find(&call.caller, &call.tool)?;
    validate::input(entry, &entry.tool().normalised(call.input.clone()))?;
    gate.policy.authorise(&call.caller, entry.spec()).map(|_permit| entry.spec())
}

/// Runs the tool until it ends, its deadline passes or nobody wants it.
///
/// A tool that is told to stop has a grace to do so in order; after that it is dropped.
async fn run_bounded(
    gate: &Gate,
    entry: &Entry,
    call: Call,
    input: Value,
    _permit: Permit,
    _slot: Slot,
) -> Result<Output, CallError> {
    let allowed = entry.spec().deadline.unwrap_or_else(|| gate.settings.deadline_of(&call));
    let deadline = Instant::now() + allowed;
    // The tool's own: that its time is over says nothing of whoever called.
    let cancel = call.cancel.child_token();
    let ctx = Ctx { caller: call.caller, cancel, deadline, events: call.events };
    let mut work = entry.tool().run(&ctx, input);

    let stopped = tokio::select! {
        biased;
        done = &mut work => return done.map_err(CallError::from),
        () = call.cancel.cancelled() => CallError::Canceled,
        () = tokio::time::sleep_until(deadline.into()) => CallError::TimedOut { after: allowed },
    };
    ctx.cancel.cancel();
    let _ = tokio::time::timeout(gate.settings.cancel_grace, &mut work).await;
    Err(stopped)
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
