//! Holds the audit record of one call, from its start to its end.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use blake3::{Hash, Hasher};
use jiff::Timestamp;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use tokio::sync::OwnedSemaphorePermit;
use toolgate_contract::{Call, CallError, Ending, Ran};

use super::chain::hex;
use super::measured::Measured;
use super::queue::Queue;
use crate::policy::{Decision, RuleName};
use crate::secrets::Secrets;

/// Most characters of a tool's name that are recorded.
const NAME_CHARS_MAX: usize = 200;
/// Largest input of an unknown tool that is hashed, in bytes.
const UNKNOWN_BYTES_MAX: u64 = 1 << 20;

/// Audit record of one call.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    /// Start of the call.
    ts: Timestamp,
    /// Name of the caller.
    pub(super) caller: Arc<str>,
    /// Name of the dialect.
    dialect: Cow<'static, str>,
    /// Id of the job, if the call ran as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    /// Trace context in the form of `traceparent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    /// Session of the call, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<Arc<str>>,
    /// Name of the tool as called.
    pub(super) tool: String,
    /// Policy decision, if the call came that far: `allow`, `deny` or `confirm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<&'static str>,
    /// Rule that made the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<RuleName>,
    /// Outcome: `ok`, `program_failed`, or the reason of the failure in one word.
    outcome: &'static str,
    /// Cause of a failure, which the caller may not see.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Hash of the input.
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Input>,
    /// Length of the input as compact JSON, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_in: Option<u64>,
    /// Size of the output in bytes; see [`Measured`].
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_out: Option<u64>,
    /// Confinement of the programs that the call ran, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<String>,
    /// Duration of the call in microseconds.
    duration_us: u64,
}

/// Returns as much of a tool's name as is recorded.
fn shortened(name: &str) -> String {
    // A character has at least one byte, so this test suffices.
    match name.len() <= NAME_CHARS_MAX {
        true => name.to_owned(),
        false => name.chars().take(NAME_CHARS_MAX).collect(),
    }
}

/// Input of a call as its record shows it.
#[derive(Debug)]
enum Input {
    /// BLAKE3 hash of the compact JSON, with keys in their original order.
    Hashed(Hash),
    /// Input of an unknown tool that is too long to be hashed.
    Large,
}

impl Serialize for Input {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Hashed(hash) => {
                let hex = hex(hash);
                serializer.serialize_str(str::from_utf8(&hex).map_err(S::Error::custom)?)
            }
            Self::Large => serializer.serialize_str("large"),
        }
    }
}

/// Record of a call that has not ended. Dropping it writes it with the outcome `dropped`.
pub(crate) struct OpenRecord<'a> {
    began: Instant,
    open: Option<(&'a Queue, Record, OwnedSemaphorePermit)>,
}

impl<'a> OpenRecord<'a> {
    /// Opens the record of `call`, with the queue and the reserved place. Without these nothing is
    /// recorded.
    pub(super) fn of(call: &Call, at: Option<(&'a Queue, OwnedSemaphorePermit)>) -> Self {
        let began = Instant::now();
        let open = at.map(|(queue, place)| {
            let record = Record {
                ts: Timestamp::now(),
                caller: call.caller.name.clone(),
                dialect: call.dialect.clone(),
                job: call.job.map(|id| id.to_string()),
                trace: call.beside.trace.as_ref().map(|trace| trace.parent.clone()),
                session: call.beside.session.clone(),
                tool: shortened(&call.tool),
                decision: None,
                rule: None,
                outcome: "dropped",
                cause: None,
                input: None,
                bytes_in: None,
                bytes_out: None,
                sandbox: None,
                duration_us: 0,
            };
            (queue, record, place)
        });
        Self { began, open }
    }

    /// Notes the input. A long input is hashed only if `is_known` confirms its tool.
    pub(crate) fn takes(&mut self, input: &impl Serialize, is_known: impl FnOnce() -> bool) {
        let Some((_, record, _)) = &mut self.open else { return };
        let mut short = Counted::up_to(UNKNOWN_BYTES_MAX);
        let counted = match serde_json::to_writer(&mut short, input) {
            Ok(()) => Some(short),
            Err(_) if is_known() => {
                let mut whole = Counted::up_to(u64::MAX);
                serde_json::to_writer(&mut whole, input).ok().map(|()| whole)
            }
            Err(_) => None,
        };
        record.bytes_in = counted.as_ref().map(|counted| counted.bytes);
        record.input = Some(counted.map_or(Input::Large, |counted| Input::Hashed(counted.hash())));
    }

    /// Discards the record.
    pub(crate) fn forget(mut self) {
        self.open = None;
    }

    /// Redacts `secrets` from the tool's name, which the caller chose freely.
    pub(crate) fn without(mut self, secrets: &Secrets) -> Self {
        if let Some((_, record, _)) = &mut self.open
            && let Cow::Owned(clean) = secrets.redacted(&record.tool)
        {
            record.tool = clean;
        }
        self
    }

    /// Notes the policy decision and its rule.
    pub(crate) fn decided(&mut self, decision: Decision, rule: &RuleName) {
        if let Some((_, record, _)) = &mut self.open {
            (record.decision, record.rule) = (Some(decision.word()), Some(rule.clone()));
        }
    }

    /// Notes the confinement of the programs that the call ran.
    pub(crate) fn ran(&mut self, ran: &Ran) {
        if let Some((_, record, _)) = &mut self.open {
            record.sandbox = ran.told();
        }
    }

    /// Notes the size of the output.
    pub(crate) fn gives(&mut self, what: &impl Measured) {
        if let Some((_, record, _)) = &mut self.open {
            record.bytes_out = Some(what.bytes());
        }
    }

    /// Closes and queues the record; see [`super::Audit::kept`].
    pub(crate) fn close(mut self, end: Result<Ending, &CallError>) -> Laid {
        if let Some((_, record, _)) = &mut self.open {
            record.outcome = outcome(end);
            record.cause = end.err().and_then(CallError::cause).map(str::to_owned);
        }
        self.lay()
    }

    fn lay(&mut self) -> Laid {
        let Some((queue, mut record, place)) = self.open.take() else { return Laid(0) };
        record.duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        Laid(queue.lay(record, place))
    }
}

impl Drop for OpenRecord<'_> {
    fn drop(&mut self) {
        let Laid(_) = self.lay();
    }
}

/// Returns the outcome of a call in one word.
pub(crate) fn outcome(end: Result<Ending, &CallError>) -> &'static str {
    match end {
        Ok(Ending::Done) => "ok",
        Ok(Ending::ProgramFailed) => "program_failed",
        Ok(Ending::ToolFailed) => "tool_failed",
        Err(error) => error.reason(),
    }
}

/// Number of a queued record, counted from 1; 0 if nothing was recorded.
#[must_use]
pub(crate) struct Laid(pub(super) u64);

/// Writer that hashes and counts bytes, up to a limit.
struct Counted {
    /// Hasher of the bytes before `waiting`; created when needed.
    hasher: Option<Box<Hasher>>,
    /// Buffer for small writes, because hashing them one by one is slower.
    waiting: Vec<u8>,
    bytes: u64,
    bytes_max: u64,
}

/// Size of the buffer in bytes.
const WAITING: usize = 4 << 10;

impl Counted {
    fn up_to(bytes_max: u64) -> Self {
        Self { hasher: None, waiting: Vec::with_capacity(256), bytes: 0, bytes_max }
    }

    fn hash(self) -> Hash {
        match self.hasher {
            Some(mut hasher) => hasher.update(&self.waiting).finalize(),
            None => blake3::hash(&self.waiting),
        }
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if self.waiting.len() + bytes.len() > WAITING {
            let hasher = self.hasher.get_or_insert_default();
            hasher.update(&self.waiting).update(bytes);
            self.waiting.clear();
        } else {
            self.waiting.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
