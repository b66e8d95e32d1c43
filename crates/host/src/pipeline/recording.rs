//! Opens and closes the audit record of a call, and counts its bytes and its refusal.

use toolgate_contract::{CallError, Caller, Effects, ToolCall, ToolRunStatus};

use crate::Gate;
use crate::audit::{AuditRecordNumber, AuditedPayload, OpenAuditRecord};
use crate::pipeline::call_trace::CallTrace;
use crate::pipeline::tool_requests::CalledTool;
use crate::secrets::{CallSecrets, Redactable};

/// Opens the audit record of `call` and records the input of the call.
pub(super) async fn open_record<'g>(
    gate: &'g Gate,
    call: &ToolCall,
) -> Result<OpenAuditRecord<'g>, CallError> {
    loop {
        match gate.audit.begin_record(call).await {
            Ok(record) => return Ok(with_input(gate, record, call)),
            // An accepted job waits for the log, however slow that is.
            Err(_) if call.job.is_some() && !call.cancel.is_cancelled() => {}
            Err(unavailable) => return Err(unavailable),
        }
    }
}

fn with_input<'g>(
    gate: &'g Gate,
    mut record: OpenAuditRecord<'g>,
    call: &ToolCall,
) -> OpenAuditRecord<'g> {
    if !call.input.is_null() {
        let is_kept = gate.settings.keeps_recent_calls;
        record.note_input(&call.input, is_kept, || gate.find(&call.caller, &call.tool).is_ok());
        let recorded = gate.settings.recorded_arguments;
        record.note_arguments(&call.input, recorded, &gate.secrets);
    }
    record
}

/// Records the subject of `call` in its audit record, as far as the tool `called` knows the
/// subject.
pub(super) fn note_tool_subject(
    gate: &Gate,
    record: &mut OpenAuditRecord<'_>,
    call: &ToolCall,
    called: &CalledTool,
) {
    // The log may show the path of a call of a hidden tool.
    if let Some(tool) = &called.named
        && !call.input.is_null()
    {
        let recorded = gate.settings.recorded_arguments;
        record.note_tool_subject(&call.input, recorded, &gate.secrets, tool);
    }
}

/// Keeps the arguments of `call` in memory for the console, if the tool `called` may change
/// something.
pub(super) fn keep_arguments(
    gate: &Gate,
    record: &mut OpenAuditRecord<'_>,
    call: &ToolCall,
    called: &CalledTool,
) {
    if gate.settings.keeps_recent_calls
        && let Some(tool) = &called.named
        && tool.spec().effects != Effects::Reads
    {
        record.keep_arguments(&call.input, tool.spec().effects, &gate.secrets);
    }
}

/// Keeps the result of a call in memory for the console, if the call may have changed something or
/// has failed. `secrets` are the secrets in the call's input.
pub(super) fn keep_result<T: AuditedPayload>(
    gate: &Gate,
    record: &mut OpenAuditRecord<'_>,
    secrets: &CallSecrets,
    outcome: &Result<T, CallError>,
) {
    if !gate.settings.keeps_recent_calls {
        return;
    }
    let text = match outcome {
        Ok(output) if output.has_failed() || record.has_kept_arguments() => output.text(),
        // The client repeats such a call with the answers.
        Ok(_) | Err(CallError::Asks { .. }) => None,
        Err(error) => Some(error.to_string()),
    };
    if let Some(text) = text {
        record.keep_result(&text, &gate.secrets, secrets);
    }
}

/// Account to which the bytes and the refusal of a call are charged.
pub(super) enum CallQuotaAccount {
    /// The caller, and the number of input bytes if bytes are counted.
    Caller(Caller, u64),
    /// An accepted job. The bytes and the refusal of a job do not count, and the job always leaves
    /// an audit record.
    Job,
}

impl CallQuotaAccount {
    pub(super) fn for_call(gate: &Gate, call: &ToolCall) -> Self {
        if call.job.is_some() {
            return Self::Job;
        }
        let input_bytes = if gate.limits.counts_traffic() { call.input.bytes() } else { 0 };
        Self::Caller(call.caller.clone(), input_bytes)
    }

    /// Charges the bytes of the call's input and of `output` to the account.
    fn count_bytes(&self, gate: &Gate, output: Option<&impl AuditedPayload>) {
        if let Self::Caller(caller, input_bytes) = self
            && gate.limits.counts_traffic()
        {
            let output_bytes = output.map_or(0, AuditedPayload::bytes);
            gate.limits.count_traffic(caller, input_bytes.saturating_add(output_bytes));
        }
    }

    /// Charges the refusal of a call with `error` to the account.
    ///
    /// # Errors
    /// The error to send instead of `error`, if this refusal must leave no record.
    fn count_refusal(&self, gate: &Gate, error: &CallError) -> Result<(), CallError> {
        let Self::Caller(caller, _) = self else { return Ok(()) };
        gate.limits.count_refusal(caller).map_err(|limited| match error {
            // This error already contains a retry time.
            CallError::Limited { .. } => error.clone(),
            _ => limited,
        })
    }
}

/// Redacts secrets from the `outcome` of a call. `secrets` are the secrets in the call's input.
pub(super) fn redact_outcome<T: Redactable>(
    gate: &Gate,
    secrets: &CallSecrets,
    outcome: &mut Result<T, CallError>,
) {
    match outcome {
        Ok(output) => gate.secrets.redact_value(output),
        Err(error) => *error = gate.secrets.redact_error(secrets, error.clone()),
    }
}

/// Closes the audit record of a call, and counts its bytes and its refusal.
///
/// Returns the number of the record. If the refusal must leave no record, `outcome` becomes the
/// error to send, and the result is `None`.
pub(super) fn close_record<T: AuditedPayload>(
    gate: &Gate,
    mut record: OpenAuditRecord<'_>,
    trace: CallTrace,
    account: &CallQuotaAccount,
    outcome: &mut Result<T, CallError>,
    ending: impl Fn(&T) -> ToolRunStatus,
) -> Option<AuditRecordNumber> {
    if let Ok(output) = outcome {
        record.note_output(output);
    }
    account.count_bytes(gate, outcome.as_ref().ok());
    if let Err(error) = outcome
        && !trace.is_admitted()
        && let Err(limited) = account.count_refusal(gate, error)
    {
        trace.finish_unrecorded(record, &limited);
        *error = limited;
        return None;
    }
    if gate.settings.recorded_arguments.includes_errors() {
        let message = match &*outcome {
            Ok(output) => output.failure(),
            Err(error) => Some(error.to_string()),
        };
        if let Some(message) = message {
            record.note_error(&message);
        }
    }
    let record = if outcome.is_err() { record.redact_tool(&gate.secrets) } else { record };
    Some(trace.finish(&gate.secrets, record, outcome.as_ref().map(ending)))
}

/// Writes the refusal of `call` with `error` to the audit log, and returns the error to send.
pub(super) async fn record_refusal(
    gate: &Gate,
    call: &ToolCall,
    trace: CallTrace,
    error: CallError,
) -> CallError {
    let secrets = gate.secrets.call_secrets(&call.input);
    let error = gate.secrets.redact_error(&secrets, error);
    let mut record = match gate.audit.begin_record(call).await {
        Ok(record) => with_input(gate, record, call),
        Err(unavailable) => return unavailable,
    };
    let called = gate.look_up(call);
    note_tool_subject(gate, &mut record, call, &called);
    if let CallError::UnknownTool { .. } = &error {
        trace.note_hidden_tool(gate, call);
    }
    let trace = trace.observe(gate, call, called.target());
    if let Err(limited) = CallQuotaAccount::for_call(gate, call).count_refusal(gate, &error) {
        trace.finish_unrecorded(record, &limited);
        return limited;
    }
    if gate.settings.recorded_arguments.includes_errors() {
        record.note_error(&error.to_string());
    }
    if gate.settings.keeps_recent_calls {
        record.keep_result(&error.to_string(), &gate.secrets, &secrets);
    }
    let number = trace.finish(&gate.secrets, record.redact_tool(&gate.secrets), Err(&error));
    gate.audit.wait_until_stored(number).await.err().unwrap_or(error)
}
