//! The closed list of errors of calls. Each dialect expresses each error in its own form.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{BoxFuture, ClientQuestions, QuestionKind, exact_json};

/// The reason why a call has no output. Each dialect matches every variant.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallError {
    /// No tool with that name is available to the caller.
    #[error("{}", unknown_tool(name, nearest.as_deref(), unavailable.as_deref()))]
    UnknownTool {
        /// The tool's name in the request.
        name: String,
        /// The id of the tool that the caller probably meant.
        nearest: Option<String>,
        /// The reason why the tool is not available, if it exists and the caller may know that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unavailable: Option<String>,
    },
    /// The arguments are invalid, by the tool's schema or by a check of the tool.
    #[error("{}", list(problems))]
    InvalidInput {
        /// The problems of the arguments, each with its position.
        problems: Vec<ValidationProblem>,
    },
    /// Policy, the sandbox or file permissions deny the call.
    #[error("{message}")]
    NotAllowed {
        /// A sentence that names the denied action and an allowed alternative.
        message: String,
    },
    /// The caller's token lacks an OAuth scope.
    #[error("{message}")]
    Scope {
        /// A sentence that names the denied action and the scope that it needs.
        message: String,
        /// All scopes that the token must have.
        needs: Vec<String>,
    },
    /// A limit was reached. The caller may retry.
    #[error("{message}; try again in {}", wait_text(*retry_after))]
    Limited {
        /// A sentence that names the limit that was reached.
        message: String,
        /// The time to wait before a retry.
        retry_after: Duration,
    },
    /// A file, job or other item that the call names does not exist.
    #[error("{message}")]
    NotFound {
        /// A sentence that names the missing item.
        message: String,
    },
    /// The current state of an item differs from the state that the caller expected.
    #[error("{message}")]
    Conflict {
        /// A sentence that names how the current state differs from the expected state.
        message: String,
        /// The expected and the current state, e.g. `{"expected": …, "actual": …}`.
        #[serde(deserialize_with = "exact_json::deserialize")]
        details: Value,
    },
    /// The requested item exceeds a size limit.
    #[error("{message}")]
    TooLarge {
        /// A sentence that names the item, its size and the limit, and explains how to request only
        /// a part of the item.
        message: String,
    },
    /// A service or program that the tool depends on is unavailable.
    #[error("{message}")]
    Unavailable {
        /// Sentence that names the unavailable dependency, for the caller.
        message: String,
    },
    /// The deadline of the call passed.
    #[error("the call took longer than {} ms and was stopped", after.as_millis())]
    TimedOut {
        /// The time limit of the call.
        after: Duration,
    },
    /// The call was cancelled.
    #[error("the call was cancelled")]
    Canceled,
    /// The server stopped while the call ran, and a second run may do harm.
    #[error("the server stopped during the call; check what the call did before you repeat it")]
    Interrupted,
    /// The tool itself failed.
    #[error("{message}")]
    Failed {
        /// A sentence about the failure for the caller.
        message: String,
        /// The cause of the failure, for the log.
        cause: String,
    },
    /// The call asks questions. The caller must call again with the answers. This is not a failure.
    #[error("the tool asks the client a question; answer the question and call the tool again")]
    Asks {
        /// The questions to the caller.
        questions: ClientQuestions,
    },
    /// The call must ask a question that the caller does not support.
    #[error("{}", cannot_ask(*kind, what.as_deref()))]
    CannotAsk {
        /// The kind of the question that the caller does not support.
        kind: QuestionKind,
        /// A sentence about the question and its reason, if the tool gave one.
        what: Option<String>,
    },
    /// The tool runs only as a job, but the call did not start a job.
    #[error("`{tool}` runs only as a job; start a job")]
    NeedsJob {
        /// The id of the tool.
        tool: String,
    },
    /// The tool never runs as a job, but the call asked for a job.
    #[error("`{tool}` does not run as a job; call it directly")]
    NoJob {
        /// The id of the tool.
        tool: String,
    },
    /// The headers of the request contradict its arguments.
    #[error("{message}")]
    Mismatch {
        /// A sentence that names the difference between headers and arguments.
        message: String,
    },
    /// The tool returned a JSON-RPC error, which clients get unchanged.
    #[error("{message}")]
    Refused {
        /// The code of the JSON-RPC error.
        code: i32,
        /// The message of the JSON-RPC error.
        message: String,
        /// The `data` of the JSON-RPC error.
        #[serde(default, deserialize_with = "exact_json::deserialize_option")]
        data: Option<Value>,
    },
    /// The tool's output violates the tool's own schema.
    #[error("the tool's result does not match its own output schema: {}", list(problems))]
    InvalidOutput {
        /// The problems of the output, each with its position.
        problems: Vec<ValidationProblem>,
    },
}

impl CallError {
    /// Returns the cause of the error for the log, which the caller does not see.
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

    /// Returns the reason of the error as one word, for the audit record and for programs.
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

/// A problem that the validation of a JSON document found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationProblem {
    /// RFC 6901 pointer to the invalid value. Empty for the whole document.
    pub pointer: String,
    /// A description of the problem in words.
    pub message: String,
}

/// The failure of a tool: a sentence for the caller and a cause for the log.
#[derive(Debug, Clone)]
pub struct ToolError {
    /// The kind of the tool's failure.
    pub fault: ToolErrorKind,
    /// A sentence about the failure for the caller: lower case, without a full stop. It names the
    /// item and a fix.
    pub message: String,
    /// The cause of the failure, for the log.
    pub cause: Option<String>,
}

/// A boxed future whose error is a [`ToolError`].
pub type ToolFuture<'a, T> = BoxFuture<'a, Result<T, ToolError>>;

/// The kinds of failure that a tool can report.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolErrorKind {
    /// The input satisfies the schema but is still invalid.
    Invalid {
        /// RFC 6901 pointer to the invalid value in the input.
        pointer: String,
    },
    /// The sandbox, policy or file permissions deny an action of the tool.
    NotAllowed,
    /// An item that the input names does not exist.
    NotFound,
    /// The current state of an item differs from the state that the caller expected. The value
    /// contains both.
    Conflict(Value),
    /// An item that the tool reads or writes exceeds a size limit.
    TooLarge,
    /// The caller exceeded a rate limit. The value is the time to wait.
    Limited(Duration),
    /// A service or program that the tool depends on is unavailable.
    Unavailable,
    /// The tool stopped because its call was cancelled.
    Canceled,
    /// The caller must answer these questions and call again.
    Asks(ClientQuestions),
    /// The tool must ask a question that the caller does not support.
    CannotAsk(QuestionKind),
    /// A JSON-RPC error, which clients get unchanged.
    Refused {
        /// The code of the JSON-RPC error.
        code: i32,
        /// The `data` of the JSON-RPC error.
        data: Option<Box<Value>>,
    },
    /// Any other failure of the tool.
    Failed,
}

impl ToolError {
    /// Creates a tool's failure of kind `fault` with a `message` for the caller.
    pub fn new(fault: ToolErrorKind, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), cause: None }
    }

    /// Creates a tool's failure with a `message` for the caller and a `cause` for the log only.
    pub fn with_cause(message: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        Self {
            fault: ToolErrorKind::Failed,
            message: message.into(),
            cause: Some(cause.to_string()),
        }
    }

    /// Creates a tool's error about invalid input at `pointer`, e.g. `/edits/0/old`.
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ToolErrorKind::Invalid { pointer: pointer.into() }, message)
    }

    /// Returns the failure of a tool with its pointer into the input set to `pointer`. Failures
    /// without a pointer stay as they are.
    pub fn with_pointer(self, pointer: impl Into<String>) -> Self {
        match self.fault {
            ToolErrorKind::Invalid { .. } => {
                Self { fault: ToolErrorKind::Invalid { pointer: pointer.into() }, ..self }
            }
            ToolErrorKind::NotAllowed
            | ToolErrorKind::NotFound
            | ToolErrorKind::Conflict(_)
            | ToolErrorKind::TooLarge
            | ToolErrorKind::Limited(_)
            | ToolErrorKind::Unavailable
            | ToolErrorKind::Canceled
            | ToolErrorKind::Asks(_)
            | ToolErrorKind::CannotAsk(_)
            | ToolErrorKind::Refused { .. }
            | ToolErrorKind::Failed => self,
        }
    }

    /// Creates a tool's error about a missing item.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ToolErrorKind::NotFound, message)
    }

    /// Creates a tool's error about a denied action.
    pub fn not_allowed(message: impl Into<String>) -> Self {
        Self::new(ToolErrorKind::NotAllowed, message)
    }

    /// Creates a tool's failure whose `message` goes to both the caller and the log.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ToolErrorKind::Failed, message)
    }

    /// Creates a JSON-RPC error with `code`, for malformed requests. Use the other kinds for errors
    /// that an agent can fix with different arguments.
    pub fn refused(code: i32, message: impl Into<String>) -> Self {
        Self::new(ToolErrorKind::Refused { code, data: None }, message)
    }

    /// Creates a tool's error about a question that the caller does not support.
    pub fn cannot_ask(kind: QuestionKind) -> Self {
        Self::new(ToolErrorKind::CannotAsk(kind), cannot_ask(kind, None))
    }

    /// Creates a tool's error for a cancelled call.
    pub fn canceled() -> Self {
        Self::new(ToolErrorKind::Canceled, "the call was cancelled")
    }
}

impl From<ToolError> for CallError {
    fn from(err: ToolError) -> Self {
        let ToolError { fault, message, cause } = err;
        match fault {
            ToolErrorKind::Invalid { pointer } => {
                Self::InvalidInput { problems: vec![ValidationProblem { pointer, message }] }
            }
            ToolErrorKind::NotAllowed => Self::NotAllowed { message },
            ToolErrorKind::NotFound => Self::NotFound { message },
            ToolErrorKind::Conflict(details) => Self::Conflict { message, details },
            ToolErrorKind::TooLarge => Self::TooLarge { message },
            ToolErrorKind::Limited(retry_after) => Self::Limited { message, retry_after },
            ToolErrorKind::Unavailable => Self::Unavailable { message },
            ToolErrorKind::Canceled => Self::Canceled,
            ToolErrorKind::Asks(questions) => Self::Asks { questions },
            ToolErrorKind::CannotAsk(kind) => {
                let plain = cannot_ask(kind, None);
                Self::CannotAsk { kind, what: (message != plain).then_some(message) }
            }
            ToolErrorKind::Refused { code, data } => {
                Self::Refused { code, message, data: data.map(|data| *data) }
            }
            ToolErrorKind::Failed => Self::Failed { message, cause: cause.unwrap_or_default() },
        }
    }
}

fn cannot_ask(kind: QuestionKind, what: Option<&str>) -> String {
    match what {
        Some(what) => what.to_owned(),
        None => format!(
            "the tool must ask {}, but this client does not support that",
            kind_phrase(kind)
        ),
    }
}

fn kind_phrase(kind: QuestionKind) -> &'static str {
    match kind {
        QuestionKind::Form => "a person to fill in a form",
        QuestionKind::Visit => "a person to open a page",
        QuestionKind::Sample => "the client's model",
        QuestionKind::SampleWithTools => "the client's model with tools",
        QuestionKind::Roots => "for the client's folders",
    }
}

fn unknown_tool(name: &str, nearest: Option<&str>, unavailable: Option<&str>) -> String {
    match (unavailable, nearest) {
        (Some(why), _) => format!("`{name}` is not available: {why}"),
        (None, Some(nearest)) => format!("no tool is named `{name}`; did you mean `{nearest}`?"),
        (None, None) => format!("no tool is named `{name}`"),
    }
}

/// Returns the duration `wait` as text: in milliseconds up to two seconds, otherwise in whole
/// seconds.
fn wait_text(wait: Duration) -> String {
    match wait.as_millis() {
        ms @ ..=2000 => format!("{ms} ms"),
        ms => format!("{} s", ms.div_ceil(1000)),
    }
}

fn list(problems: &[ValidationProblem]) -> String {
    let mut lines = Vec::with_capacity(problems.len());
    for ValidationProblem { pointer, message } in problems {
        lines.push(if pointer.is_empty() {
            message.clone()
        } else {
            format!("{pointer}: {message}")
        });
    }
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_given_in_whole_seconds() {
        for (wait_ms, text) in [(0, "0 ms"), (1000, "1000 ms"), (2001, "3 s"), (29_788, "30 s")] {
            assert_eq!(wait_text(Duration::from_millis(wait_ms)), text);
        }
        let message = "too many calls".to_owned();
        let limited = CallError::Limited { message, retry_after: Duration::from_secs(30) };
        assert_eq!(limited.to_string(), "too many calls; try again in 30 s");
    }
}
