//! The audit record of one call, from its start to its end.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use blake3::{Hash, Hasher};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use toolgate_contract::{CallError, Effects, SandboxReport, ToolCall, ToolRunStatus, printable};

use super::arguments::AuditArgumentDetail;
use super::byte_size::AuditedPayload;
use super::chain::encode_hex;
use super::queue::AuditRecordQueue;
use super::recent_calls::RecentCallDetails;
use super::step_times::CallStepTimes;
use crate::catalog::CatalogToolEntry;
use crate::policy::{PolicyDecision, PolicyRuleName};
use crate::secrets::{CallSecrets, SecretSet};

/// Maximum number of characters of a tool's name that are recorded.
const NAME_CHARS_MAX: usize = 200;
/// Maximum number of characters of an error message that are recorded.
const ERROR_CHARS_MAX: usize = 200;
/// Largest input of an unknown tool that is hashed, in bytes.
const UNKNOWN_BYTES_MAX: u64 = 1 << 20;

/// Audit record of one call.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AuditRecord {
    /// Time at which the call started.
    #[schemars(with = "String")]
    ts: Timestamp,
    /// Name of the caller.
    #[schemars(with = "String")]
    pub(super) caller: Arc<str>,
    /// Name of the dialect in which the call was made, such as `mcp`.
    dialect: Cow<'static, str>,
    /// Id of the job, if the call ran as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    /// Trace context in the format of `traceparent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    /// Id of the client session that made the call, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    session: Option<Arc<str>>,
    /// Name of the called tool, as the client wrote it.
    pub(super) tool: String,
    /// Tool through which the call came, such as `tools.call`. Absent if the client called the tool
    /// itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<&'static str>,
    /// Policy decision, if the call reached the policy: `allow`, `deny` or `confirm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<&'static str>,
    /// Name of the policy rule that made the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    rule: Option<PolicyRuleName>,
    /// Outcome: `ok`, `program_failed`, or the reason for the failure as one word.
    outcome: &'static str,
    /// First line of the error message that the caller got, without secrets, if `audit.arguments`
    /// is not `none`. For a failed program, the error is its exit code and the last line of its
    /// standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Cause of a failure, which toolgate hides from the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Path, command line, repository or URI that the call acts on. Secrets are redacted.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// Arguments, with secrets redacted and long texts cut, if `audit.arguments` is `redacted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<Value>,
    /// BLAKE3 hash of the call's input as compact JSON. `large` if the tool is unknown and the
    /// input exceeds 1 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    input: Option<AuditRecordInput>,
    /// Length of the call's input as compact JSON, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_in: Option<u64>,
    /// Approximate size of the call's output in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_out: Option<u64>,
    /// Sandbox of the programs that the call ran, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<String>,
    /// Refused hosts that the call's programs tried to reach, one line for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused_hosts: Vec<String>,
    /// Duration of the call in microseconds.
    duration_us: u64,
    /// Time that the call spent in each step, in microseconds, if its input was valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps_us: Option<Box<CallStepTimes>>,
}

/// Returns a tool's name for its audit record, cut after 200 characters.
fn truncate_name(name: &str) -> String {
    // A character has at least one byte, so this test suffices.
    match name.len() <= NAME_CHARS_MAX {
        true => name.to_owned(),
        false => name.chars().take(NAME_CHARS_MAX).collect(),
    }
}

/// Input of a call as its audit record shows it.
#[derive(Debug)]
enum AuditRecordInput {
    /// BLAKE3 hash of the compact JSON, with keys in their original order.
    Hashed(Hash),
    /// Input of an unknown tool that is too long to be hashed.
    Large,
}

impl Serialize for AuditRecordInput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Hashed(hash) => {
                let hex = encode_hex(hash);
                serializer.serialize_str(str::from_utf8(&hex).map_err(S::Error::custom)?)
            }
            Self::Large => serializer.serialize_str("large"),
        }
    }
}

/// Audit record of a call that has not ended. When dropped, it is written with the outcome
/// `dropped`.
pub(crate) struct OpenAuditRecord<'a> {
    started: Instant,
    open: Option<(&'a AuditRecordQueue, AuditRecord, OwnedSemaphorePermit)>,
    /// Arguments and result of the call for the console. `None` for a call that only reads, unless
    /// the call has failed.
    details: Option<Box<RecentCallDetails>>,
    /// Input as compact JSON, if the input is short and may stay in memory until the call ends.
    short_input: Vec<u8>,
}

impl<'a> OpenAuditRecord<'a> {
    /// Opens the audit record of `call` with the queue and the reserved slot in `at`. Without `at`,
    /// nothing is recorded.
    pub(super) fn open(
        call: &ToolCall,
        at: Option<(&'a AuditRecordQueue, OwnedSemaphorePermit)>,
    ) -> Self {
        let started = Instant::now();
        let open = at.map(|(queue, place)| {
            let record = AuditRecord {
                ts: Timestamp::now(),
                caller: call.caller.name.clone(),
                dialect: call.dialect.clone(),
                job: call.job.map(|id| id.to_string()),
                trace: call.metadata.trace.as_ref().map(|trace| trace.parent.clone()),
                session: call.metadata.session.clone(),
                tool: truncate_name(&call.tool),
                via: call.metadata.via,
                decision: None,
                rule: None,
                outcome: "dropped",
                error: None,
                cause: None,
                subject: None,
                arguments: None,
                input: None,
                bytes_in: None,
                bytes_out: None,
                sandbox: None,
                refused_hosts: Vec::new(),
                duration_us: 0,
                steps_us: None,
            };
            (queue, record, place)
        });
        Self { started, open, details: None, short_input: Vec::new() }
    }

    /// Records the hash and the length of the call's input. A long input is hashed only if
    /// `is_known` returns true, which means that the called tool exists. With `is_kept`, a short
    /// input stays in memory until the call has ended.
    pub(crate) fn note_input(
        &mut self,
        input: &impl Serialize,
        is_kept: bool,
        is_known: impl FnOnce() -> bool,
    ) {
        let Some((_, record, _)) = &mut self.open else { return };
        let mut short = InputHasher::with_limit(UNKNOWN_BYTES_MAX);
        let counted = match serde_json::to_writer(&mut short, input) {
            Ok(()) => Some(short),
            Err(_) if is_known() => {
                let mut whole = InputHasher::with_limit(u64::MAX);
                serde_json::to_writer(&mut whole, input).ok().map(|()| whole)
            }
            Err(_) => None,
        };
        record.bytes_in = counted.as_ref().map(|counted| counted.bytes);
        record.input = Some(match counted {
            Some(mut counted) => {
                let hash = counted.hash();
                if is_kept && counted.hasher.is_none() {
                    self.short_input = counted.buffer;
                }
                AuditRecordInput::Hashed(hash)
            }
            None => AuditRecordInput::Large,
        });
    }

    /// Keeps the arguments in `input` for the console, without `secrets`, if a tool with these
    /// `effects` may change something.
    pub(crate) fn keep_arguments(&mut self, input: &Value, effects: Effects, secrets: &SecretSet) {
        if self.open.is_some() {
            let details = RecentCallDetails::with_arguments(input, effects, secrets);
            self.details = Some(Box::new(details));
        }
    }

    /// Returns true if the arguments of the call are held in memory for the console.
    pub(crate) fn has_kept_arguments(&self) -> bool {
        self.details.is_some()
    }

    /// Keeps `text`, the result or the error message of the call, in memory for the console.
    /// Redacts `secrets` and the secrets `of_call` in the call's input. Also keeps the arguments if
    /// they are short.
    pub(crate) fn keep_result(&mut self, text: &str, secrets: &SecretSet, of_call: &CallSecrets) {
        if self.open.is_none() {
            return;
        }
        let input = &self.short_input;
        let details = self.details.get_or_insert_with(|| {
            let input = serde_json::from_slice(input).ok();
            Box::new(input.map_or_else(RecentCallDetails::default, |input: Value| {
                RecentCallDetails::with_arguments(&input, Effects::Reads, secrets)
            }))
        });
        details.set_result(text, secrets, of_call);
    }

    /// Records the arguments in `input` that the detail level `recorded` selects, without
    /// `secrets`.
    pub(crate) fn note_arguments(
        &mut self,
        input: &Value,
        recorded: AuditArgumentDetail,
        secrets: &SecretSet,
    ) {
        if let Some((_, record, _)) = &mut self.open {
            record.subject = recorded.subject(input, secrets);
            record.arguments = recorded.arguments(input, secrets);
        }
    }

    /// Records the first path argument in `input`, or the command line of the call, as the subject
    /// of a call of `tool`, if the record has no subject yet.
    pub(crate) fn note_tool_subject(
        &mut self,
        input: &Value,
        recorded: AuditArgumentDetail,
        secrets: &SecretSet,
        tool: &CatalogToolEntry,
    ) {
        if let Some((_, record, _)) = &mut self.open
            && record.subject.is_none()
            && recorded != AuditArgumentDetail::None
        {
            let path = recorded.path_subject(input, &tool.spec().paths, secrets);
            record.subject = path.or_else(|| {
                let words = tool.tool().command_line(input)?;
                recorded.line_subject(input, &words, secrets)
            });
        }
    }

    /// Discards the audit record, so that it is not written.
    pub(crate) fn discard(mut self) {
        self.open = None;
    }

    /// Redacts `secrets` from the recorded name of the tool, which the caller chose freely.
    pub(crate) fn redact_tool(mut self, secrets: &SecretSet) -> Self {
        if let Some((_, record, _)) = &mut self.open
            && let Cow::Owned(clean) = secrets.redact(&record.tool)
        {
            record.tool = clean;
        }
        self
    }

    /// Records the policy decision about the call, and the rule that made the decision.
    pub(crate) fn note_decision(&mut self, decision: PolicyDecision, rule: &PolicyRuleName) {
        if let Some((_, record, _)) = &mut self.open {
            (record.decision, record.rule) = (Some(decision.word()), Some(rule.clone()));
        }
    }

    /// Records the sandbox in which the call's programs ran and the hosts that were refused to
    /// them, without `secrets`.
    pub(crate) fn note_confinement(&mut self, ran: &SandboxReport, secrets: &SecretSet) {
        if let Some((_, record, _)) = &mut self.open
            && !ran.is_empty()
        {
            record.sandbox = ran.summary();
            let hosts = ran.refused_hosts().into_iter();
            record.refused_hosts = hosts.map(|host| secrets.redact(&host).into_owned()).collect();
        }
    }

    /// Records the time that the call spent in each step, if the call passed the first step.
    pub(crate) fn note_steps(&mut self, steps: impl FnOnce() -> Option<CallStepTimes>) {
        if let Some((_, record, _)) = &mut self.open {
            record.steps_us = steps().map(Box::new);
        }
    }

    /// Records the first line of the error message that the caller got.
    pub(crate) fn note_error(&mut self, message: &str) {
        if let Some((_, record, _)) = &mut self.open {
            let line = message.lines().find(|line| !line.trim().is_empty());
            record.error = line.map(|line| printable::shorten(line, ERROR_CHARS_MAX).into_owned());
        }
    }

    /// Records the approximate size of the call's output.
    pub(crate) fn note_output(&mut self, output: &impl AuditedPayload) {
        if let Some((_, record, _)) = &mut self.open {
            record.bytes_out = Some(output.bytes());
        }
    }

    /// Closes the audit record and queues it for writing. To wait until the record is on disk, call
    /// [`super::AuditLog::wait_until_stored`].
    pub(crate) fn close(mut self, end: Result<ToolRunStatus, &CallError>) -> AuditRecordNumber {
        if let Some((_, record, _)) = &mut self.open {
            record.outcome = outcome_word(end);
            record.cause = end.err().and_then(CallError::cause).map(str::to_owned);
        }
        self.push()
    }

    fn push(&mut self) -> AuditRecordNumber {
        let Some((queue, mut record, place)) = self.open.take() else {
            return AuditRecordNumber(0);
        };
        record.duration_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        if let Some(details) = self.details.take() {
            queue.recent_calls.add((record.ts, record.duration_us), *details);
        }
        AuditRecordNumber(queue.push(record, place))
    }
}

impl Drop for OpenAuditRecord<'_> {
    fn drop(&mut self) {
        let AuditRecordNumber(_) = self.push();
    }
}

/// Returns the outcome of a call in one word for its audit record.
pub(crate) fn outcome_word(end: Result<ToolRunStatus, &CallError>) -> &'static str {
    match end {
        Ok(ToolRunStatus::Done) => "ok",
        Ok(ToolRunStatus::ProgramFailed) => "program_failed",
        Ok(ToolRunStatus::ToolFailed) => "tool_failed",
        Err(error) => error.reason(),
    }
}

/// Number of a queued audit record, counted from 1. Zero if nothing was recorded.
#[must_use]
pub(crate) struct AuditRecordNumber(pub(super) u64);

/// Writer that hashes and counts the bytes of a call's input, up to a limit.
struct InputHasher {
    /// Hasher of the bytes before those in `buffer`, created when it is needed.
    hasher: Option<Box<Hasher>>,
    /// Buffer for small writes, because hashing them one by one is slower.
    buffer: Vec<u8>,
    bytes: u64,
    bytes_max: u64,
}

/// Size of the hasher's buffer in bytes.
const BUFFER_BYTES: usize = 4 << 10;

impl InputHasher {
    fn with_limit(bytes_max: u64) -> Self {
        Self { hasher: None, buffer: Vec::with_capacity(256), bytes: 0, bytes_max }
    }

    fn hash(&mut self) -> Hash {
        match &mut self.hasher {
            Some(hasher) => hasher.update(&self.buffer).finalize(),
            None => blake3::hash(&self.buffer),
        }
    }
}

impl Write for InputHasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            let hasher = self.hasher.get_or_insert_default();
            hasher.update(&self.buffer).update(bytes);
            self.buffer.clear();
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
