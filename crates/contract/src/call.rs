//! Calls of tools: their callers, inputs, deadlines, events and outputs.

use std::any::Any;
use std::borrow::Cow;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::sync::lock_mutex;
use crate::{
    Caller, ClientAnswer, ClientProfile, ClientQuestion, ClientQuestions, ClientRoot, ContentBlock,
    ElicitationAnswer, JobId, MetaFields, QuestionAsker, SamplingAnswer, SamplingRequest,
    SandboxReport, ToolError, ToolErrorKind, ToolRunStatus, TraceContext, WriteBudget, exact_json,
};

/// Call of a tool, before the server has checked it.
pub struct ToolCall {
    /// The tool's name as the dialect read it. The catalog resolves it to a tool.
    pub tool: String,
    /// The arguments of the call, not yet validated.
    pub input: Value,
    /// The caller of the tool.
    pub caller: Caller,
    /// The name of the dialect in which the call arrived, for the audit record.
    pub dialect: Cow<'static, str>,
    /// A token that is cancelled when no client needs the call's result any longer.
    pub cancel: CancellationToken,
    /// The receiver of events that happen during the call.
    pub events: CallEventSink,
    /// The job's id, if the call runs as a job.
    pub job: Option<JobId>,
    /// Channel by which the tool asks the caller questions while the call runs.
    pub asker: QuestionAsker,
    /// Metadata that the client sent with the call.
    pub metadata: CallMetadata,
    /// The longest duration that the dialect allows for the call, if shorter than the deadline.
    pub time_limit: Option<Duration>,
    /// Value that [`Tool::prepare`](crate::Tool::prepare) stored for this call, such as a request
    /// that was already started.
    pub started_work: PreparedCallValue,
}

/// Metadata that a client sends with a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallMetadata {
    /// Arguments of the call that headers repeat, by their names in the tool's schema. `None` if
    /// the dialect does not require such headers. The server compares them with the arguments.
    pub header_params: Option<Vec<(String, Result<String, String>)>>,
    /// The trace (W3C Trace Context) that the call belongs to.
    pub trace: Option<TraceContext>,
    /// The public name of the client's session, which is not a secret.
    pub session: Option<Arc<str>>,
    /// True if the client demands that the call becomes a job.
    pub as_job: bool,
    /// True if the called name must be the tool's exact id. Other spellings are refused.
    pub by_id: bool,
    /// The id of the tool through which the call came, such as `tools.call`. `None` if the client
    /// named the called tool itself.
    pub via: Option<&'static str>,
    /// The client's transport: `http`, `websocket` or `stdio`; empty if there is none.
    pub transport: &'static str,
    /// The profile of the client, if the client sent its name and has a profile.
    pub client: Option<&'static ClientProfile>,
}

/// Slot for a value that [`Tool::prepare`](crate::Tool::prepare) passes to the run of the same
/// call, such as a request that was already started. Clones share the slot. Dropping the last clone
/// drops the value.
#[derive(Clone, Default)]
pub struct PreparedCallValue(Option<Arc<Mutex<Option<TypeErasedCallValue>>>>);

/// Value in the slot of a call, without its static type.
type TypeErasedCallValue = Box<dyn Any + Send>;

impl PreparedCallValue {
    /// Creates an empty slot, in which [`Tool::prepare`](crate::Tool::prepare) can store a value.
    /// The default has no slot.
    pub fn with_slot() -> Self {
        Self(Some(Arc::default()))
    }

    fn lock(&self) -> Option<MutexGuard<'_, Option<TypeErasedCallValue>>> {
        Some(lock_mutex(self.0.as_ref()?))
    }

    /// Stores the value `begun` for the run of the call. Drops `begun` if there is no slot.
    pub fn put(&self, begun: impl Any + Send) {
        if let Some(mut held) = self.lock() {
            *held = Some(Box::new(begun));
        }
    }

    /// Removes and returns the value that was stored for the run of the call. Returns `None` if
    /// there is no value, or if its type is not `T`.
    pub fn take<T: Any>(&self) -> Option<T> {
        let begun = self.lock()?.take()?;
        begun.downcast().ok().map(|begun| *begun)
    }

    /// Returns true if a value is stored for the run of the call.
    pub fn has_work(&self) -> bool {
        self.lock().is_some_and(|held| held.is_some())
    }

    /// Returns true if the value that was stored for the run of the call has the type `T` and `so`
    /// returns true for it.
    pub fn matches<T: Any>(&self, so: impl FnOnce(&T) -> bool) -> bool {
        let Some(held) = self.lock() else { return false };
        held.as_ref().and_then(|begun| begun.downcast_ref()).is_some_and(so)
    }

    /// Drops the value that was stored for the run of the call.
    pub fn discard(&self) {
        let begun = self.lock().and_then(|mut held| held.take());
        drop(begun);
    }
}

/// The id of the tool that reads the part of a program's output that a result leaves out.
pub const OUTPUT_TOOL: &str = "exec.output";

/// The context of a running tool: its caller, deadline, events and questions.
pub struct ToolContext {
    /// The caller of the running tool.
    pub caller: Caller,
    /// A token that is cancelled when nobody needs the call's result, the deadline has passed or
    /// the process ends. The tool must then stop at once and leave nothing running.
    pub cancel: CancellationToken,
    /// The time at which the server cancels the call. Time spent waiting for answers does not
    /// count.
    pub deadline: Instant,
    /// The receiver of the call's events. Use methods such as [`ToolContext::report_progress`].
    pub events: CallEventSink,
    /// Channel by which the tool asks the caller questions. Use [`ToolContext::ask`] and similar
    /// methods instead.
    pub asker: QuestionAsker,
    /// The trace (W3C Trace Context) that the call belongs to.
    pub trace: Option<TraceContext>,
    /// The public name of the client's session, which is not a secret.
    pub session: Option<Arc<str>>,
    /// The id of the tool through which the call came, such as `tools.call`. `None` if the client
    /// named the called tool itself.
    pub via: Option<&'static str>,
    /// True if the call is a job or will become one.
    pub as_job: bool,
    /// Value that [`Tool::prepare`](crate::Tool::prepare) stored for this call, such as a request
    /// that was already started.
    pub started_work: PreparedCallValue,
    /// The number of bytes that the caller may still write.
    pub write_budget: WriteBudget,
    /// True if the caller may call [`OUTPUT_TOOL`], so that a result may refer to it. Always false
    /// for a tool that stores no output.
    pub may_read_output: bool,
    /// The sandbox profiles of the programs that the call ran, for its audit record.
    pub sandbox_report: SandboxReport,
}

impl ToolContext {
    /// Creates a context for tests and the server's own calls, without events and questions.
    pub fn detached(caller: Caller, deadline: Instant) -> Self {
        let cancel = CancellationToken::new();
        let events = CallEventSink::none();
        let asker = QuestionAsker::none();
        let write_budget = WriteBudget::unlimited();
        let sandbox_report = SandboxReport::default();
        let started_work = PreparedCallValue::default();
        let trace = None;
        let session = None;
        let via = None;
        let as_job = false;
        let may_read_output = true;
        Self {
            caller,
            cancel,
            deadline,
            events,
            asker,
            trace,
            session,
            via,
            as_job,
            started_work,
            write_budget,
            may_read_output,
            sandbox_report,
        }
    }

    /// Runs `work` until it ends or the call is cancelled.
    ///
    /// # Errors
    /// Fails if the call was cancelled.
    pub async fn run_unless_canceled<F: Future>(&self, work: F) -> Result<F::Output, ToolError> {
        self.cancel.run_until_cancelled(work).await.ok_or_else(ToolError::canceled)
    }

    /// Asks the caller one question. `key` names the question within this call. Use the same key in
    /// each run, and ask before you change anything.
    ///
    /// # Errors
    /// The errors of [`QuestionAsker::ask`]. Pass them on with `?`.
    pub async fn ask(
        &self,
        key: &str,
        question: ClientQuestion,
    ) -> Result<ClientAnswer, ToolError> {
        let mut given = self.asker.ask(ClientQuestions::from([(key.to_owned(), question)])).await?;
        given.remove(key).ok_or_else(|| no_answer(key))
    }

    /// Asks a person to fill in a form. `schema` is the JSON Schema of a flat object. Never ask for
    /// secrets.
    pub async fn ask_form(
        &self,
        key: &str,
        message: impl Into<String>,
        schema: Value,
    ) -> Result<ElicitationAnswer, ToolError> {
        match self.ask(key, ClientQuestion::Form { message: message.into(), schema }).await? {
            ClientAnswer::Choice(choice) => Ok(choice),
            ClientAnswer::Sampled(_) | ClientAnswer::Roots(_) => Err(no_answer(key)),
        }
    }

    /// Asks the client's model for an answer.
    pub async fn ask_model(
        &self,
        key: &str,
        sampling: SamplingRequest,
    ) -> Result<SamplingAnswer, ToolError> {
        match self.ask(key, ClientQuestion::Sample(Box::new(sampling))).await? {
            ClientAnswer::Sampled(sampled) => Ok(sampled),
            ClientAnswer::Choice(_) | ClientAnswer::Roots(_) => Err(no_answer(key)),
        }
    }

    /// Asks the client for the folders in which it works.
    pub async fn ask_roots(&self, key: &str) -> Result<Vec<ClientRoot>, ToolError> {
        match self.ask(key, ClientQuestion::Roots).await? {
            ClientAnswer::Roots(roots) => Ok(roots),
            ClientAnswer::Choice(_) | ClientAnswer::Sampled(_) => Err(no_answer(key)),
        }
    }

    /// Allows the server to close the client's connection while the tool continues. The client
    /// reconnects for the answer, if its protocol supports that. Call this before long work.
    pub fn release_connection(&self) {
        self.events.send(CallEvent::ReleaseConnection);
    }

    /// Reports progress of the tool. `done` must grow with each report.
    pub fn report_progress(&self, done: f64, total: Option<f64>, message: Option<String>) {
        self.events.send(CallEvent::Progress { done, total, message });
    }

    /// Forwards a piece of a running program's output.
    pub fn send_output(&self, stream: OutputStreamKind, text: String) {
        self.events.send(CallEvent::ProgramOutput { stream, text });
    }

    /// Reports a file that the tool or its program produced.
    pub fn report_file(&self, file: ProducedFile) {
        self.events.send(CallEvent::FileProduced(file));
    }

    /// Sends a log line to the observers of the call.
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        self.events.send(CallEvent::log(level, message));
    }
}

/// Event during a call, such as progress, program output or a log line.
#[derive(Debug, Clone)]
pub enum CallEvent {
    /// Progress of the call's work.
    Progress {
        /// The amount of work that the call has done, in a unit that the tool chooses. The amount
        /// only grows.
        done: f64,
        /// The total amount of work in the same unit as `done`, if it is known.
        total: Option<f64>,
        /// Description of the step that the call is working on.
        message: Option<String>,
    },
    /// A piece of a program's output.
    ProgramOutput {
        /// Output stream to which the program printed: standard output or standard error.
        stream: OutputStreamKind,
        /// The printed text, with invalid UTF-8 replaced.
        text: String,
    },
    /// A log line for the observers of the call.
    Log {
        /// The severity of the log line.
        level: LogLevel,
        /// The component that logs the line, if it is not this server.
        logger: Option<String>,
        /// Content of the log line as JSON, usually a string.
        data: Value,
    },
    /// A person has finished with a page that the call asked the person to visit, such as a sign-in
    /// page.
    VisitFinished {
        /// Id of the page visit that was completed.
        id: String,
    },
    /// A file that the call's work produced.
    FileProduced(ProducedFile),
    /// The client's connection may close. The client reconnects for the answer.
    ReleaseConnection,
}

impl CallEvent {
    /// Creates a log line of this server.
    pub fn log(level: LogLevel, message: impl Into<String>) -> Self {
        Self::Log { level, logger: None, data: Value::String(message.into()) }
    }
}

/// Returns the `data` of a log event as text.
pub fn log_text(data: &Value) -> Cow<'_, str> {
    match data {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

fn no_answer(key: &str) -> ToolError {
    ToolError::new(
        ToolErrorKind::Failed,
        format!("the answer to `{key}` does not match its question"),
    )
}

/// An open file that a call produced. Renaming or removing the file does not affect the handle.
#[derive(Debug, Clone)]
pub struct ProducedFile {
    /// The path of the file relative to the workspace, with `/` between its parts.
    pub path: String,
    /// The open file, to be read from its start by offset.
    pub handle: Arc<File>,
}

/// An output stream of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputStreamKind {
    /// The standard output of the program.
    Stdout,
    /// The standard error of the program.
    Stderr,
}

/// The severity of a log line: the levels of RFC 5424, least severe first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "RFC 5424 says what each is")]
pub enum LogLevel {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

/// The receiver of a call's events. Sending never waits. A slow receiver misses events, but never
/// the result.
#[derive(Clone, Default)]
pub struct CallEventSink {
    receiver: Option<Arc<dyn Fn(CallEvent) + Send + Sync>>,
    log_level: Option<LogLevel>,
}

impl CallEventSink {
    /// Creates a sink that passes each event of a call to `take`, which must not block.
    pub fn new(take: impl Fn(CallEvent) + Send + Sync + 'static) -> Self {
        Self { receiver: Some(Arc::new(take)), log_level: None }
    }

    /// Returns the sink for a receiver that needs log lines of the level `least` and above. With
    /// `None`, the receiver needs no log lines.
    pub fn with_log_level(self, least: Option<LogLevel>) -> Self {
        Self { log_level: least, ..self }
    }

    /// Creates a sink that drops all events of a call.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns the lowest log level that the receiver needs. `None` if it needs no log lines.
    pub fn log_level(&self) -> Option<LogLevel> {
        self.log_level
    }

    /// Returns true if the sink has a receiver. Without a receiver, a tool may skip work that only
    /// produces events.
    pub fn has_receiver(&self) -> bool {
        self.receiver.is_some()
    }

    /// Sends `event` to the receiver of the call's events.
    pub fn send(&self, event: CallEvent) {
        if let Some(take) = &self.receiver {
            take(event);
        }
    }
}

/// Output of a tool: a JSON value, text and content blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolOutput {
    /// The structured result of the tool. Null if there is none.
    #[serde(deserialize_with = "exact_json::deserialize")]
    pub value: Value,
    /// True if the output has a structured result.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub structured: bool,
    /// The result of the tool as text.
    pub text: ResultText,
    /// Further content of the result, to show with the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<ContentBlock>,
    /// Metadata for the client that shows the output. It is separate from the result.
    #[serde(
        default,
        skip_serializing_if = "MetaFields::is_empty",
        deserialize_with = "exact_json::deserialize_object"
    )]
    pub meta: MetaFields,
    /// Status of the tool's work: success or failure.
    pub ending: ToolRunStatus,
    /// True if an upstream returned the result. Clients then get the result as the upstream encoded
    /// it.
    #[serde(default, skip_serializing_if = "is_no")]
    pub from_upstream: bool,
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_yes(is: &bool) -> bool {
    *is
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_no(is: &bool) -> bool {
    !*is
}

impl ToolOutput {
    /// Creates a tool's output with a structured result and its text.
    pub fn new(value: Value, text: ResultText, ending: ToolRunStatus) -> Self {
        let content = Vec::new();
        let meta = MetaFields::new();
        let from_upstream = false;
        Self { value, structured: true, text, content, meta, ending, from_upstream }
    }

    /// Returns the text of the output, its note and all content as one string.
    pub fn full_text(&self) -> String {
        let text = [Some(self.text.body.as_str()), self.text.note.as_deref()];
        let text = text.into_iter().flatten().filter(|text| !text.is_empty()).map(str::to_owned);
        text.chain(self.content.iter().map(ContentBlock::as_text)).collect::<Vec<_>>().join("\n")
    }

    /// Returns the text of the output and all content as one string, without the note.
    pub fn body_text(&self) -> Cow<'_, str> {
        if self.content.is_empty() {
            return self.text.body.as_str().into();
        }
        let body = Some(self.text.body.clone()).filter(|body| !body.is_empty());
        let content = self.content.iter().map(ContentBlock::as_text);
        body.into_iter().chain(content).collect::<Vec<_>>().join("\n").into()
    }

    /// Returns true if a program wrote files in addition to its output, even if the files could not
    /// be stored.
    pub fn has_written_files(&self) -> bool {
        let is_filled = |name: &str| {
            self.value.get(name).and_then(Value::as_array).is_some_and(|files| !files.is_empty())
        };
        self.value.get("exit_code").is_some() && (is_filled("artefacts") || is_filled("left_out"))
    }

    /// Returns the output of a program on `stream` as text. `None` if no program ran.
    pub fn program_output(&self, stream: OutputStreamKind) -> Option<Cow<'_, str>> {
        let name = match stream {
            OutputStreamKind::Stdout => "stdout",
            OutputStreamKind::Stderr => "stderr",
        };
        let text = self.value.get(name)?.as_str()?;
        let extent = self.value.get(format!("{name}_extent"));
        if extent.and_then(|extent| extent.get("encoding")?.as_str()) != Some("base64") {
            return Some(text.into());
        }
        let bytes = STANDARD.decode(text).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned().into())
    }
}

/// Result of a call as text, written for a person or a model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResultText {
    /// The main text of a result: a file's content, a diff, a program's output.
    pub body: String,
    /// Note of one line about the main text, such as an etag, or how to get a part that was cut
    /// off.
    pub note: Option<String>,
}

impl ResultText {
    /// Creates the text of a result without a note.
    pub fn from_body(body: impl Into<String>) -> Self {
        Self { body: body.into(), note: None }
    }

    /// Returns the text of the result with `note`.
    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// Returns the main text and the note as one text, with the note in brackets at the end.
    pub fn joined(&self) -> Cow<'_, str> {
        match self.joined_parts() {
            (start, end) if end.is_empty() => Cow::Borrowed(start),
            (start, end) => Cow::Owned(format!("{start}{end}")),
        }
    }

    /// Returns the start and the end of the text that [`ResultText::joined`] returns. A long body
    /// is the start and is not copied. Without a note, the end is empty.
    pub fn joined_parts(&self) -> (&str, String) {
        match (&self.note, self.body.is_empty()) {
            (None, _) => (self.body.as_str(), String::new()),
            (Some(note), true) => (note.as_str(), String::new()),
            (Some(note), false) => {
                let newline = if self.body.ends_with('\n') { "" } else { "\n" };
                (self.body.as_str(), [newline, "[", note, "]"].concat())
            }
        }
    }

    /// Creates the text of a result from the JSON of `value`.
    pub fn from_json(value: &impl Serialize) -> Self {
        Self::from_body(serde_json::to_string(value).unwrap_or_default())
    }
}
