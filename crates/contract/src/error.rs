//! Why a call failed: one closed list, spelled by each dialect in its own terms.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Kind, Questions};

/// Why a call has no output. Each dialect matches it in full.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallError {
    /// No tool of that name is on offer to this caller.
    #[error("no tool is named `{name}`{}", did_you_mean(nearest.as_deref()))]
    UnknownTool {
        /// What was asked for.
        name: String,
        /// The tool that was probably meant, as an id.
        nearest: Option<String>,
    },
    /// The arguments do not satisfy the tool's schema or its meaning.
    #[error("{}", list(problems))]
    InvalidInput {
        /// What is wrong, and where.
        problems: Vec<Problem>,
    },
    /// Policy, confinement or the file system's own permissions refuse it.
    #[error("{message}")]
    NotAllowed {
        /// What is refused and what would be allowed.
        message: String,
    },
    /// The caller's token was not given for it; another could be.
    #[error("{message}")]
    Scope {
        /// What needs which scope.
        message: String,
        /// The scopes that a token for it must have, all of them.
        needs: Vec<String>,
    },
    /// Too much is going on; it can be tried again.
    #[error("{message}; try again in {} ms", retry_after.as_millis())]
    Limited {
        /// Which limit.
        message: String,
        /// How long to wait.
        retry_after: Duration,
    },
    /// What the call names (a file, a job) is not there.
    #[error("{message}")]
    NotFound {
        /// What is not there.
        message: String,
    },
    /// What the call expected to find has changed.
    #[error("{message}")]
    Conflict {
        /// What differs.
        message: String,
        /// Both sides, e.g. `{"expected": …, "actual": …}`.
        details: Value,
    },
    /// What was asked for is larger than it may be.
    #[error("{message}")]
    TooLarge {
        /// What is too large, its size, the limit and how to ask for a part.
        message: String,
    },
    /// Something the tool needs is away.
    #[error("{message}")]
    Unavailable {
        /// What is away.
        message: String,
    },
    /// The deadline passed.
    #[error("it took longer than {} ms and was stopped", after.as_millis())]
    TimedOut {
        /// The deadline.
        after: Duration,
    },
    /// Nobody wants the result any more.
    #[error("the call was cancelled")]
    Canceled,
    /// The server ended while it ran, and running it twice may do harm.
    #[error(
        "the server ended while it ran, and it is not run twice; look at what it did, then call it again"
    )]
    Interrupted,
    /// The tool could not do it.
    #[error("{message}")]
    Failed {
        /// What could not be done.
        message: String,
        /// Why, for the log.
        cause: String,
    },
    /// The caller is to answer these and call again. Not a failure, but there is no output either.
    #[error("it asks something of whoever called, who is to answer and call again")]
    Asks {
        /// What it asks.
        questions: Questions,
    },
    /// It needs to ask something that this caller cannot be asked.
    #[error("{}", cannot_ask(*kind, what.as_deref()))]
    CannotAsk {
        /// What it has to ask.
        kind: Kind,
        /// What is to be asked about and why, in words of its own.
        what: Option<String>,
    },
    /// It runs only as a job, and was called otherwise.
    #[error("`{tool}` runs only as a job; start it as one")]
    NeedsJob {
        /// The tool's id.
        tool: String,
    },
    /// It never runs as a job, and was to.
    #[error("`{tool}` does not run as a job; call it")]
    NoJob {
        /// The tool's id.
        tool: String,
    },
    /// What was said beside the call, in headers, is not what the call says.
    #[error("{message}")]
    Mismatch {
        /// What differs.
        message: String,
    },
    /// The tool refuses in the words of JSON-RPC.
    #[error("{message}")]
    Refused {
        /// The error's code.
        code: i32,
        /// What is refused.
        message: String,
        /// What else there is to know.
        data: Option<Value>,
    },
    /// The tool's output does not satisfy its own schema.
    #[error("the tool's result breaks its own schema: {}", list(problems))]
    InvalidOutput {
        /// What is wrong, and where.
        problems: Vec<Problem>,
    },
}

impl CallError {
    /// What the log learns and the caller does not.
    pub fn cause(&self) -> Option<&str> {
        match self {
            Self::Failed { cause, .. } if !cause.is_empty() => Some(cause),
            Self::Failed { .. }
            | Self::UnknownTool { .. }
            | Self::InvalidInput { .. }
            | Self::NotAllowed { .. }
            | Self::Scope { .. }
            | Self::Limited { .. }
            | Self::NotFound { .. }
            | Self::Conflict { .. }
            | Self::TooLarge { .. }
            | Self::Unavailable { .. }
            | Self::TimedOut { .. }
            | Self::Canceled
            | Self::Interrupted
            | Self::Asks { .. }
            | Self::CannotAsk { .. }
            | Self::NeedsJob { .. }
            | Self::NoJob { .. }
            | Self::Mismatch { .. }
            | Self::Refused { .. }
            | Self::InvalidOutput { .. } => None,
        }
    }

    /// The reason in one word, for the record and for machines.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownTool { .. } => "unknown_tool",
            Self::InvalidInput { .. } => "invalid_input",
            Self::NotAllowed { .. } => "not_allowed",
            Self::Scope { .. } => "scope",
            Self::Limited { .. } => "limited",
            Self::NotFound { .. } => "not_found",
            Self::Conflict { .. } => "conflict",
            Self::TooLarge { .. } => "too_large",
            Self::Unavailable { .. } => "unavailable",
            Self::TimedOut { .. } => "timed_out",
            Self::Canceled => "canceled",
            Self::Interrupted => "interrupted",
            Self::Failed { .. } => "failed",
            Self::Asks { .. } => "asks",
            Self::CannotAsk { .. } => "cannot_ask",
            Self::NeedsJob { .. } => "needs_job",
            Self::NoJob { .. } => "no_job",
            Self::Mismatch { .. } => "mismatch",
            Self::Refused { .. } => "refused",
            Self::InvalidOutput { .. } => "invalid_output",
        }
    }
}

/// One thing wrong with a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// RFC 6901 pointer to the value; empty for the whole.
    pub pointer: String,
    /// What is wrong with it.
    pub message: String,
}

/// Why a tool could not do its work: a sentence for the caller, a cause for the log.
#[derive(Debug, Clone)]
pub struct ToolError {
    /// Which kind of failure.
    pub fault: Fault,
    /// For the caller: lower-case, no full stop, naming the thing and the way out.
    pub message: String,
    /// For the log.
    pub cause: Option<String>,
}

/// The kinds of failure a tool can report.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The input satisfies the schema and still cannot be meant; the pointer says where.
    Invalid {
        /// RFC 6901 pointer into the input.
        pointer: String,
    },
    /// Confinement, policy or permissions refuse it.
    NotAllowed,
    /// What the input names is not there.
    NotFound,
    /// It is there, and not as the caller expects; both sides in the value.
    Conflict(Value),
    /// It is larger than it may be.
    TooLarge,
    /// Its caller took too much of late; there is room again after this long.
    Limited(Duration),
    /// Something it needs is away.
    Unavailable,
    /// The call's cancel token was cancelled and the tool stopped.
    Canceled,
    /// Whoever called is to answer these and call again.
    Asks(Questions),
    /// It has to ask something that whoever called cannot be asked.
    CannotAsk(Kind),
    /// Refused in the words of JSON-RPC.
    Refused {
        /// The error's code.
        code: i32,
        /// What else there is to know.
        data: Option<Box<Value>>,
    },
    /// Anything else.
    Failed,
}

impl ToolError {
    /// A failure of kind `fault`, said to the caller as `message`.
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), cause: None }
    }

    /// A failure whose `cause` only the log learns.
    pub fn because(message: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        Self { fault: Fault::Failed, message: message.into(), cause: Some(cause.to_string()) }
    }

    /// Input that cannot be meant; `pointer` says where, e.g. `/edits/0/old`.
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Fault::Invalid { pointer: pointer.into() }, message)
    }

    /// The same failure; if it is about the input, about what is at `pointer` there.
    pub fn at(self, pointer: impl Into<String>) -> Self {
        match self.fault {
            Fault::Invalid { .. } => {
                Self { fault: Fault::Invalid { pointer: pointer.into() }, ..self }
            }
            Fault::NotAllowed
            | Fault::NotFound
            | Fault::Conflict(_)
            | Fault::TooLarge
            | Fault::Limited(_)
            | Fault::Unavailable
            | Fault::Canceled
            | Fault::Asks(_)
            | Fault::CannotAsk(_)
            | Fault::Refused { .. }
            | Fault::Failed => self,
        }
    }

    /// What the input names is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Fault::NotFound, message)
    }

    /// Refused.
    pub fn not_allowed(message: impl Into<String>) -> Self {
        Self::new(Fault::NotAllowed, message)
    }

    /// The tool could not do it; both the caller and the log learn `message` alone.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Fault::Failed, message)
    }

    /// Refused with an error of the wire's own, `code`. For what the request itself must not be;
    /// what an agent can mend by calling otherwise is better told by the other kinds.
    pub fn refused(code: i32, message: impl Into<String>) -> Self {
        Self::new(Fault::Refused { code, data: None }, message)
    }

    /// It has to ask something that whoever called cannot be asked.
    pub fn cannot_ask(kind: Kind) -> Self {
        Self::new(Fault::CannotAsk(kind), cannot_ask(kind, None))
    }

    /// The call was cancelled and the tool stopped.
    pub fn canceled() -> Self {
        Self::new(Fault::Canceled, "the call was cancelled")
    }
}

impl From<ToolError> for CallError {
    fn from(err: ToolError) -> Self {
        let ToolError { fault, message, cause } = err;
        match fault {
            Fault::Invalid { pointer } => {
                Self::InvalidInput { problems: vec![Problem { pointer, message }] }
            }
            Fault::NotAllowed => Self::NotAllowed { message },
            Fault::NotFound => Self::NotFound { message },
            Fault::Conflict(details) => Self::Conflict { message, details },
            Fault::TooLarge => Self::TooLarge { message },
            Fault::Limited(retry_after) => Self::Limited { message, retry_after },
            Fault::Unavailable => Self::Unavailable { message },
            Fault::Canceled => Self::Canceled,
            Fault::Asks(questions) => Self::Asks { questions },
            Fault::CannotAsk(kind) => {
                let plain = cannot_ask(kind, None);
                Self::CannotAsk { kind, what: (message != plain).then_some(message) }
            }
            Fault::Refused { code, data } => {
                Self::Refused { code, message, data: data.map(|data| *data) }
            }
            Fault::Failed => Self::Failed { message, cause: cause.unwrap_or_default() },
        }
    }
}

fn cannot_ask(kind: Kind, what: Option<&str>) -> String {
    match what {
        Some(what) => what.to_owned(),
        None => format!("it has to ask {}, which this client does not offer", in_words(kind)),
    }
}

fn in_words(kind: Kind) -> &'static str {
    match kind {
        Kind::Form => "a person to fill in a form",
        Kind::Visit => "a person to visit a page",
        Kind::Sample => "the client's model",
        Kind::SampleWithTools => "the client's model with tools",
        Kind::Roots => "for the client's folders",
    }
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

fn list(problems: &[Problem]) -> String {
    let mut lines = Vec::with_capacity(problems.len());
    for Problem { pointer, message } in problems {
        lines.push(if pointer.is_empty() {
            message.clone()
        } else {
            format!("{pointer}: {message}")
        });
    }
    lines.join("; ")
}
