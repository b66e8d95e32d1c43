//! The gate: found, checked, authorised, limited, run, checked, recorded.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use futures_util::FutureExt;
use serde_json::Value;
use toolgate_contract::{Call, CallError, Ctx, Output};

use crate::Host;
use crate::catalog::Entry;
use crate::limits::Slot;
use crate::policy::Permit;
use crate::validate;

/// Runs `call` to its end and leaves exactly one record, whatever comes of it; a panic too.
pub(crate) async fn run(host: &Host, call: Call) -> Result<Output, CallError> {
    let record = host.audit.begin(&call).await?;
    let outcome = AssertUnwindSafe(pass(host, call)).catch_unwind().await;
    let outcome = outcome.unwrap_or_else(|panic| Err(broken_off(panic.as_ref())));
    record.close(&outcome);
    outcome
}

async fn pass(host: &Host, mut call: Call) -> Result<Output, CallError> {
    let entry = host.catalog.find(&call.tool, |spec| host.policy.shows(&call.caller, spec))?;
    validate::input(entry, &call.input)?;
    let permit = host.policy.authorise(&call.caller, entry.spec())?;
    let slot = host.limits.admit(entry.spec(), &call.cancel).await?;
    let input = call.input.take();
    let output = run_bounded(host, entry, call, input, permit, slot).await?;
    validate::output(host.settings.output_check, entry, &output)?;
    Ok(output)
}

/// Runs the tool until it ends, its deadline passes or nobody wants it.
///
/// A tool that is told to stop has a grace to do so in order; after that it is dropped.
async fn run_bounded(
    host: &Host,
    entry: &Entry,
    call: Call,
    input: Value,
    _permit: Permit,
    _slot: Slot,
) -> Result<Output, CallError> {
    let allowed = entry.spec().deadline.unwrap_or(host.settings.deadline);
    let deadline = Instant::now() + allowed;
    let ctx =
        Ctx { caller: call.caller, cancel: call.cancel.clone(), deadline, events: call.events };
    let mut work = entry.tool().run(&ctx, input);

    let stopped = tokio::select! {
        biased;
        done = &mut work => return done.map_err(CallError::from),
        () = call.cancel.cancelled() => CallError::Canceled,
        () = tokio::time::sleep_until(deadline.into()) => CallError::TimedOut { after: allowed },
    };
    ctx.cancel.cancel();
    let _ = tokio::time::timeout(host.settings.cancel_grace, &mut work).await;
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
