//! What is known of one call after it ended, and the record that is open until then.

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

/// How much of a tool's name is written down.
const NAME_CHARS_MAX: usize = 200;
/// How long an input may be that is hashed though nobody knows its tool.
const UNKNOWN_BYTES_MAX: u64 = 1 << 20;

/// What is known of one call after it ended.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    /// When it began.
    ts: Timestamp,
    /// Who called.
    pub(super) caller: Arc<str>,
    /// By which dialect.
    dialect: Cow<'static, str>,
    /// Which job it was, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    /// Which trace it belongs to, as `traceparent` says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    /// Which session it was made in, if it was made in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<Arc<str>>,
    /// The tool's name as called.
    pub(super) tool: String,
    /// What policy decided about it, if it came so far: `allow`, `deny` or `confirm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<&'static str>,
    /// Which rule did.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<RuleName>,
    /// `ok`, `program_failed`, or the reason there is no result, in a word.
    outcome: &'static str,
    /// Why it failed, where the caller was told less.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// What it was called with, by its hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Input>,
    /// How long that is, as compact JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_in: Option<u64>,
    /// How much it came to; see [`Measured`].
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_out: Option<u64>,
    /// How the programs were confined that it ran, if it ran any.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<String>,
    /// How long it took.
    duration_us: u64,
}

/// As much of a tool's name as is written down.
fn shortened(name: &str) -> String {
    // A byte is a character at most.
    match name.len() <= NAME_CHARS_MAX {
        true => name.to_owned(),
        false => name.chars().take(NAME_CHARS_MAX).collect(),
    }
}

/// What a call was called with, as its record has it.
#[derive(Debug)]
enum Input {
    /// The BLAKE3 hash of it as compact JSON, its keys in the order in which they came.
    Hashed(Hash),
    /// It is of an unknown tool, and too long to be hashed for that.
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

/// A record whose call has not ended. Dropped, it says so: a call leaves one however it ends.
pub(crate) struct OpenRecord<'a> {
    began: Instant,
    open: Option<(&'a Queue, Record, OwnedSemaphorePermit)>,
}

impl<'a> OpenRecord<'a> {
    /// The record of `call`, to be laid in `queue` where `place` is kept for it; of nobody's
    /// interest without.
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

    /// Notes what it is called with; of a long one only if `is_known` says that its tool is.
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

    /// Leaves none.
    pub(crate) fn forget(mut self) {
        self.open = None;
    }

    /// The same without `secrets`: what is no tool's name may be anything.
    pub(crate) fn without(mut self, secrets: &Secrets) -> Self {
        if let Some((_, record, _)) = &mut self.open
            && let Cow::Owned(clean) = secrets.redacted(&record.tool)
        {
            record.tool = clean;
        }
        self
    }

    /// Notes what was decided about the call, and by which rule.
    pub(crate) fn decided(&mut self, decision: Decision, rule: &RuleName) {
        if let Some((_, record, _)) = &mut self.open {
            (record.decision, record.rule) = (Some(decision.word()), Some(rule.clone()));
        }
    }

    /// Notes how the programs were confined that it ran.
    pub(crate) fn ran(&mut self, ran: &Ran) {
        if let Some((_, record, _)) = &mut self.open {
            record.sandbox = ran.told();
        }
    }

    /// Notes how much it came to.
    pub(crate) fn gives(&mut self, what: &impl Measured) {
        if let Some((_, record, _)) = &mut self.open {
            record.bytes_out = Some(what.bytes());
        }
    }

    /// Lays it down; see [`super::Audit::kept`].
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

/// How a call ended, in a word.
pub(crate) fn outcome(end: Result<Ending, &CallError>) -> &'static str {
    match end {
        Ok(Ending::Done) => "ok",
        Ok(Ending::ProgramFailed) => "program_failed",
        Ok(Ending::ToolFailed) => "tool_failed",
        Err(error) => error.reason(),
    }
}

/// Which record was laid down, counted from 1.
#[must_use]
pub(crate) struct Laid(pub(super) u64);

/// Hashes and counts what is written, up to a bound.
struct Counted {
    /// Of what no longer waits.
    hasher: Option<Box<Hasher>>,
    /// What is written comes in pieces of a few bytes, each of which would take longer to hash than
    /// all of them together.
    waiting: Vec<u8>,
    bytes: u64,
    bytes_max: u64,
}

/// How much waits to be hashed together.
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
