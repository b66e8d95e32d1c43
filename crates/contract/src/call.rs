//! One call: who asks, for what, until when, and what it says on the way.

use std::any::Any;
use std::borrow::Cow;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    Asker, Caller, Choice, ClientRoot, Content, Ending, Fault, JobId, MetaFields, Question,
    Questions, Ran, Sampled, Sampling, Spent, Told, ToolError,
};

/// One tool, its input, its caller and its cancel token.
pub struct Call {
    /// The tool's name as the dialect read it; the catalog knows which tool that is.
    pub tool: String,
    /// The arguments, unchecked.
    pub input: Value,
    /// Who asks.
    pub caller: Caller,
    /// Which dialect it came by, for the record.
    pub dialect: Cow<'static, str>,
    /// Cancelled when nobody wants the result any more.
    pub cancel: CancellationToken,
    /// Where its events go.
    pub events: EventSink,
    /// The job it is, if its outcome is collected later.
    pub job: Option<JobId>,
    /// Who can be asked while it runs.
    pub asker: Asker,
    /// What came beside it.
    pub beside: Beside,
    /// How long its wire lets it take, where that is less than its tool may.
    pub within: Option<Duration>,
    /// What was begun of it already.
    pub ahead: Ahead,
}

/// What comes beside a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beside {
    /// Arguments that were said twice, by the names that the tool's schema gives them: all that
    /// came, where the wire demands them. The gate holds them against the arguments.
    pub mirrored: Option<Vec<(String, Result<String, String>)>>,
    /// Which trace it belongs to.
    pub trace: Option<Trace>,
    /// Which session it was made in, by a name that is no secret.
    pub session: Option<Arc<str>>,
    /// Whether it is to become a job.
    pub as_job: bool,
    /// How its client is connected: `http`, `websocket`, `stdio`; empty where none is.
    pub transport: &'static str,
}

/// Which trace a call belongs to, in the words of W3C Trace Context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// `traceparent`: version, trace, parent, flags.
    pub parent: String,
    /// `tracestate`, if it came.
    pub state: Option<String>,
    /// `baggage`, if it came.
    pub baggage: Option<String>,
}

impl Trace {
    /// The trace of `parent`, if it is well-formed.
    pub fn of(parent: &str, state: Option<&str>, baggage: Option<&str>) -> Option<Self> {
        let hex = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let some = |part: &str| part.bytes().any(|b| b != b'0');
        let parts: Vec<&str> = parent.split('-').collect();
        let [version, trace, span, flags, ..] = parts[..] else { return None };
        let sound = hex(version, 2)
            && version != "ff"
            && (parts.len() == 4 || version != "00")
            && hex(trace, 32)
            && some(trace)
            && hex(span, 16)
            && some(span)
            && hex(flags, 2);
        // It goes into records and into the environment of programs.
        let short = |text: &str, bytes_max: usize| {
            let visible = text.bytes().all(|b| matches!(b, b' '..=b'~'));
            (text.len() <= bytes_max && visible).then(|| text.to_owned())
        };
        Some(Self {
            // A later version may say more; what we know of it is not all.
            parent: short(parent, PARENT_BYTES_MAX).filter(|_| sound)?,
            state: state.and_then(|state| short(state, STATE_BYTES_MAX)),
            baggage: baggage.and_then(|baggage| short(baggage, STATE_BYTES_MAX)),
        })
    }
}

/// How long a `traceparent` may be; those of today have 55 bytes.
const PARENT_BYTES_MAX: usize = 256;
/// How long what comes with it may be.
const STATE_BYTES_MAX: usize = 8192;

/// What looking before a call has begun of it, for its work to go on with: nobody else's, and
/// given up with the call. Clones are one.
#[derive(Clone, Default)]
pub struct Ahead(Option<Arc<Mutex<Option<Begun>>>>);

type Begun = Box<dyn Any + Send>;

impl Ahead {
    /// Room for what is begun.
    pub fn room() -> Self {
        Self(Some(Arc::default()))
    }

    fn held(&self) -> Option<MutexGuard<'_, Option<Begun>>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps `begun`. Where there is no room, it is given up.
    pub fn put(&self, begun: impl Any + Send) {
        if let Some(mut held) = self.held() {
            *held = Some(Box::new(begun));
        }
    }

    /// Takes what is kept.
    pub fn take<T: Any>(&self) -> Option<T> {
        let begun = self.held()?.take()?;
        begun.downcast().ok().map(|begun| *begun)
    }

    /// Whether something is kept.
    pub fn is_begun(&self) -> bool {
        self.held().is_some_and(|held| held.is_some())
    }

    /// Whether what is kept is so.
    pub fn is<T: Any>(&self, so: impl FnOnce(&T) -> bool) -> bool {
        let Some(held) = self.held() else { return false };
        held.as_ref().and_then(|begun| begun.downcast_ref()).is_some_and(so)
    }

    /// Gives up what is kept.
    pub fn give_up(&self) {
        let begun = self.held().and_then(|mut held| held.take());
        drop(begun);
    }
}

/// What a running tool knows of its call.
pub struct Ctx {
    /// Who asks.
    pub caller: Caller,
    /// Cancelled when nobody wants the result, the deadline has passed or the process ends.
    /// A tool that sees it cancelled stops at once and leaves nothing running.
    pub cancel: CancellationToken,
    /// When the gate will cancel the call; later, by as long as it waits for answers.
    pub deadline: Instant,
    /// Where events go; use [`Ctx::progress`] and its siblings.
    pub events: EventSink,
    /// Who can be asked; use [`Ctx::ask`] and its siblings.
    pub asker: Asker,
    /// Which trace the call belongs to.
    pub trace: Option<Trace>,
    /// Which session it was made in, by a name that is no secret.
    pub session: Option<Arc<str>>,
    /// Whether it is a job, or is to become one.
    pub as_job: bool,
    /// What was begun of it already.
    pub ahead: Ahead,
    /// What it takes of what its caller may take in bulk.
    pub spent: Spent,
    /// How the programs that it runs are confined, for its record.
    pub ran: Ran,
}

impl Ctx {
    /// A context of nobody's, cancelled by nobody, that nobody listens to and nobody answers: for
    /// tests and for what is run on one's own behalf.
    pub fn alone(caller: Caller, deadline: Instant) -> Self {
        let cancel = CancellationToken::new();
        let (events, asker) = (EventSink::none(), Asker::nobody());
        let (spent, ran, ahead) = (Spent::none(), Ran::default(), Ahead::default());
        let (trace, session, as_job) = (None, None, false);
        Self { caller, cancel, deadline, events, asker, trace, session, as_job, ahead, spent, ran }
    }

    /// Asks whoever called. `key` names the question in this call: whoever calls again with the
    /// answer gives it by that name, so ask by the same key each time, and before doing anything.
    ///
    /// # Errors
    /// Those of [`Asker::ask`], to be passed on with `?`.
    pub async fn ask(&self, key: &str, question: Question) -> Result<Told, ToolError> {
        let mut given = self.asker.ask(Questions::from([(key.to_owned(), question)])).await?;
        given.remove(key).ok_or_else(|| no_answer(key))
    }

    /// Has a person fill in a form of `schema`: JSON Schema of a flat object. Never for secrets.
    pub async fn form(
        &self,
        key: &str,
        message: impl Into<String>,
        schema: Value,
    ) -> Result<Choice, ToolError> {
        match self.ask(key, Question::Form { message: message.into(), schema }).await? {
            Told::Choice(choice) => Ok(choice),
            Told::Sampled(_) | Told::Roots(_) => Err(no_answer(key)),
        }
    }

    /// Has the client's model answer.
    pub async fn sample(&self, key: &str, sampling: Sampling) -> Result<Sampled, ToolError> {
        match self.ask(key, Question::Sample(Box::new(sampling))).await? {
            Told::Sampled(sampled) => Ok(sampled),
            Told::Choice(_) | Told::Roots(_) => Err(no_answer(key)),
        }
    }

    /// Which folders the client works in.
    pub async fn roots(&self, key: &str) -> Result<Vec<ClientRoot>, ToolError> {
        match self.ask(key, Question::Roots).await? {
            Told::Roots(roots) => Ok(roots),
            Told::Choice(_) | Told::Sampled(_) => Err(no_answer(key)),
        }
    }

    /// Lets the connection go while the work goes on, where the wire can take the conversation up
    /// again: whoever called comes back for the answer. For work that takes long.
    pub fn let_go(&self) {
        self.events.send(Event::LetGo);
    }

    /// Says how far the work is; `done` must grow from one to the next.
    pub fn progress(&self, done: f64, total: Option<f64>, message: Option<String>) {
        self.events.send(Event::Progress { done, total, message });
    }

    /// Passes on what a running program printed.
    pub fn chunk(&self, stream: Stream, text: String) {
        self.events.send(Event::Chunk { stream, text });
    }

    /// Hands over a file that the work left.
    pub fn left(&self, file: LeftFile) {
        self.events.send(Event::Left(file));
    }

    /// Says something to whoever watches the call.
    pub fn log(&self, level: Level, message: impl Into<String>) {
        self.events.send(Event::log(level, message));
    }
}

/// Something said while a call runs.
#[derive(Debug, Clone)]
pub enum Event {
    /// How far it is.
    Progress {
        /// How much is done; it only grows.
        done: f64,
        /// How much there is, if known, in the same unit.
        total: Option<f64>,
        /// What is being done.
        message: Option<String>,
    },
    /// A piece of what a program prints.
    Chunk {
        /// Where it printed it.
        stream: Stream,
        /// What it printed, with what is not UTF-8 replaced.
        text: String,
    },
    /// A line for whoever watches.
    Log {
        /// How serious.
        level: Level,
        /// Which part of a server says so, where another than this one does.
        logger: Option<String>,
        /// What: a text, mostly.
        data: Value,
    },
    /// Somebody has done what they were sent to a page for.
    Visited {
        /// What the visit is known by.
        id: String,
    },
    /// A file that the work left.
    Left(LeftFile),
    /// The connection may go; whoever called comes back for the answer.
    LetGo,
}

impl Event {
    /// A line of this server's.
    pub fn log(level: Level, message: impl Into<String>) -> Self {
        Self::Log { level, logger: None, data: Value::String(message.into()) }
    }
}

/// The `data` of a line for whoever watches, as a line.
pub fn line_of(data: &Value) -> Cow<'_, str> {
    match data {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

fn no_answer(key: &str) -> ToolError {
    ToolError::new(Fault::Failed, format!("the answer to `{key}` is not what was asked for"))
}

/// A file that work left, open: what is read is what was found, whatever becomes of its name.
#[derive(Debug, Clone)]
pub struct LeftFile {
    /// Where it was found, relative to the workspace, with `/`.
    pub path: String,
    /// It, to be read from its start by offset.
    pub handle: Arc<File>,
}

/// Which of a program's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How serious a line is: the levels of RFC 5424, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "RFC 5424 says what each is")]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

/// Where a call's events go. It never waits: who cannot keep up misses events, not results.
#[derive(Clone, Default)]
pub struct EventSink {
    take: Option<Arc<dyn Fn(Event) + Send + Sync>>,
    lines: Option<Level>,
}

impl EventSink {
    /// A sink that gives each event to `take`, which must not block.
    pub fn new(take: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self { take: Some(Arc::new(take)), lines: None }
    }

    /// The same, to which lines of the level `least` and graver are of use.
    pub fn for_lines(self, least: Option<Level>) -> Self {
        Self { lines: least, ..self }
    }

    /// A sink nobody listens at.
    pub fn none() -> Self {
        Self::default()
    }

    /// The least level of a line that is of use to whoever listens; none where no line is.
    pub fn lines(&self) -> Option<Level> {
        self.lines
    }

    /// Whether anybody listens: a tool may skip work that only makes events.
    pub fn is_watched(&self) -> bool {
        self.take.is_some()
    }

    /// Passes `event` on.
    pub fn send(&self, event: Event) {
        if let Some(take) = &self.take {
            take(event);
        }
    }
}

/// What a tool gave back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Output {
    /// The structured result; null where there is none.
    pub value: Value,
    /// Whether there is a structured result.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub structured: bool,
    /// The same for a reader.
    pub text: Text,
    /// What is shown beside the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Content>,
    /// What is no part of it, for whoever shows it.
    #[serde(default, skip_serializing_if = "MetaFields::is_empty")]
    pub meta: MetaFields,
    /// How the work ended.
    pub ending: Ending,
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_yes(is: &bool) -> bool {
    *is
}

impl Output {
    /// A structured result and its text.
    pub fn new(value: Value, text: Text, ending: Ending) -> Self {
        Self { value, structured: true, text, content: Vec::new(), meta: MetaFields::new(), ending }
    }

    /// All that is shown, as text.
    pub fn read(&self) -> String {
        let text = [Some(self.text.body.as_str()), self.text.note.as_deref()];
        let text = text.into_iter().flatten().filter(|text| !text.is_empty()).map(str::to_owned);
        text.chain(self.content.iter().map(Content::as_text)).collect::<Vec<_>>().join("\n")
    }

    /// What a program printed to `stream`, as text whatever it is; `None` where no program ran.
    pub fn printed(&self, stream: Stream) -> Option<Cow<'_, str>> {
        let name = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
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

/// A result as a person or a model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Text {
    /// The thing itself: a file's text, a diff, what a program printed.
    pub body: String,
    /// What to know about it, in a line: its etag, where it was cut and how to go on.
    pub note: Option<String>,
}

impl Text {
    /// A body and nothing to add.
    pub fn body(body: impl Into<String>) -> Self {
        Self { body: body.into(), note: None }
    }

    /// The same with a note.
    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// The JSON of `value`.
    pub fn json(value: &impl Serialize) -> Self {
        Self::body(serde_json::to_string(value).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_short_and_visible_whatever_a_later_version_says() {
        let known = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let later = known.replacen("00", "01", 1);
        for parent in [known.to_owned(), later.clone(), format!("{later}-more")] {
            assert_eq!(Trace::of(&parent, None, None).expect("a trace").parent, parent);
        }
        let long = "x".repeat(PARENT_BYTES_MAX);
        for end in ["-a\0b", "-a\nLD_PRELOAD=x", "-\u{202e}", &format!("-{long}")] {
            assert_eq!(Trace::of(&format!("{later}{end}"), None, None), None, "{end:?}");
        }
        assert_eq!(Trace::of(&format!("{known}-more"), None, None), None);
    }
}
