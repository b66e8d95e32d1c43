//! One call: who asks, for what, until when, and what it says on the way.

use std::borrow::Cow;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{Ending, JobId};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The name used in policy, limits and the audit log.
    pub name: Arc<str>,
}

impl Caller {
    /// The person at this machine, over stdio or the command line.
    pub fn local() -> Self {
        Self { name: "local".into() }
    }

    /// A caller known as `name`.
    pub fn named(name: &str) -> Self {
        Self { name: name.into() }
    }

    /// Whoever calls over HTTP without saying who they are.
    pub fn http() -> Self {
        Self { name: "http".into() }
    }
}

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
}

/// What a running tool knows of its call.
pub struct Ctx {
    /// Who asks.
    pub caller: Caller,
    /// Cancelled when nobody wants the result, the deadline has passed or the process ends.
    /// A tool that sees it cancelled stops at once and leaves nothing running.
    pub cancel: CancellationToken,
    /// When the gate will cancel the call.
    pub deadline: Instant,
    /// Where events go; use [`Ctx::progress`] and its siblings.
    pub events: EventSink,
}

impl Ctx {
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
        self.events.send(Event::Log { level, message: message.into() });
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
        /// What.
        message: String,
    },
    /// A file that the work left.
    Left(LeftFile),
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
pub struct EventSink(Option<Arc<dyn Fn(Event) + Send + Sync>>);

impl EventSink {
    /// A sink that gives each event to `take`, which must not block.
    pub fn new(take: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(take)))
    }

    /// A sink nobody listens at.
    pub fn none() -> Self {
        Self(None)
    }

    /// Whether anybody listens: a tool may skip work that only makes events.
    pub fn is_watched(&self) -> bool {
        self.0.is_some()
    }

    /// Passes `event` on.
    pub fn send(&self, event: Event) {
        if let Some(take) = &self.0 {
            take(event);
        }
    }
}

/// What a tool gave back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Output {
    /// The structured result.
    pub value: Value,
    /// The same for a reader.
    pub text: Text,
    /// How the work ended.
    pub ending: Ending,
}

impl Output {
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
