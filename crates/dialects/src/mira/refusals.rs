//! Errors with the contract's codes, fields and reasons.

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolgate_contract::{CallError, Problem, Reply, ToolId};

use super::calls::{Called, Written};
use super::message::Id;
use super::methods::{Contracted, name_of};
use super::ticket::Asked;
use crate::rpc::{self, written};

/// The most characters of a name that an error repeats.
const NAME_CHARS_MAX: usize = 100;

/// The error codes of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    ParseError,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    Internal,
    NotFound,
    PermissionDenied,
    Validation,
    RateLimited,
    Conflict,
    ToolUnavailable,
    ContentTooLarge,
    VectorDbUnavailable,
}

impl Code {
    fn number(self) -> i32 {
        match self {
            Self::ParseError => rpc::PARSE_ERROR,
            Self::InvalidRequest => rpc::INVALID_REQUEST,
            Self::MethodNotFound => rpc::METHOD_NOT_FOUND,
            Self::InvalidParams => rpc::INVALID_PARAMS,
            Self::Internal => rpc::INTERNAL_ERROR,
            Self::NotFound => 1001,
            Self::PermissionDenied => 1002,
            Self::Validation => 1003,
            Self::RateLimited => 1004,
            Self::Conflict => 1005,
            Self::ToolUnavailable => 1006,
            Self::ContentTooLarge => 1007,
            Self::VectorDbUnavailable => 1010,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::ParseError => "Parse error",
            Self::InvalidRequest => "Invalid Request",
            Self::MethodNotFound => "Method not found",
            Self::InvalidParams => "Invalid params",
            Self::Internal => "Internal error",
            Self::NotFound => "Not found",
            Self::PermissionDenied => "Permission denied",
            Self::Validation => "Validation failed",
            Self::RateLimited => "Rate limited",
            Self::Conflict => "Conflict",
            Self::ToolUnavailable => "Tool unavailable",
            Self::ContentTooLarge => "Content too large",
            Self::VectorDbUnavailable => "Vector database unavailable",
        }
    }

    /// Returns true for codes of JSON-RPC itself. The contract adds a `detail` to them.
    fn is_standard(self) -> bool {
        self.number() < 0
    }
}

/// An error of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    code: Code,
    field: Option<String>,
    reason: String,
    more: Vec<(String, Value)>,
}

impl Refusal {
    pub(super) fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, field: None, reason: reason.into(), more: Vec::new() }
    }

    /// Returns the error with `field` as the parameter that it concerns.
    pub(super) fn about(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// Returns the error with an additional member of `data`.
    pub(super) fn with(mut self, name: &str, value: Value) -> Self {
        self.more.push((name.to_owned(), value));
        self
    }

    pub(super) fn unknown_method(name: &str) -> Self {
        let name: String = name.chars().take(NAME_CHARS_MAX).collect();
        let why = format!("no method is named `{name}` here; tools/list lists those there are");
        Self::new(Code::MethodNotFound, why)
    }

    /// Converts the host's `error` for the request `asked`.
    pub(super) fn of(error: &CallError, asked: &Asked) -> Self {
        let contracted = match asked {
            Asked::Contracted(called) => Some(called.method()),
            Asked::List(_) | Asked::Tool { .. } | Asked::Misshapen => None,
        };
        let plain = |code| Self::new(code, error.to_string());
        match error {
            CallError::UnknownTool { nearest, .. } => unknown(asked, nearest.as_deref()),
            CallError::InvalidInput { problems } => invalid(asked, problems),
            CallError::NotAllowed { .. } => about_path(asked, plain(Code::PermissionDenied)),
            CallError::Scope { needs, .. } => {
                plain(Code::PermissionDenied).with("scopes", json!(needs))
            }
            CallError::Limited { retry_after, .. } => {
                let ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
                plain(Code::RateLimited).with("retry_after_ms", json!(ms))
            }
            CallError::NotFound { .. } => match asked {
                // The parameters forbid creating a missing folder, so they are invalid together.
                Asked::Contracted(Called::Write(Written {
                    create: true, mkdirs: false, ..
                })) => {
                    let why = format!("{error}, and `mkdirs` is false");
                    Self::new(Code::Validation, why).about("path")
                }
                Asked::Contracted(_) | Asked::List(_) | Asked::Tool { .. } | Asked::Misshapen => {
                    about_path(asked, plain(Code::NotFound))
                }
            },
            CallError::Conflict { details, .. } => conflict(asked, error, details),
            CallError::TooLarge { .. } => plain(Code::ContentTooLarge),
            CallError::Unavailable { .. } => plain(unavailable(contracted)),
            CallError::TimedOut { .. } => plain(Code::Internal).with("timed_out", json!(true)),
            // The tool needs a person or a model, and this dialect has no questions.
            CallError::CannotAsk { .. } | CallError::Asks { .. } => plain(Code::ToolUnavailable),
            CallError::NeedsJob { tool } => {
                let tool = spelled(tool);
                let why = format!("{tool} runs only as a job; call jobs/start with it");
                Self::new(Code::ToolUnavailable, why)
            }
            CallError::NoJob { tool } => {
                let why = format!("{} does not run as a job; call it", spelled(tool));
                Self::new(Code::Validation, why).about("tool")
            }
            CallError::Refused { code: rpc::INVALID_PARAMS, .. } => plain(Code::InvalidParams),
            CallError::Refused { .. }
            | CallError::Mismatch { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Failed { .. }
            | CallError::InvalidOutput { .. } => plain(Code::Internal),
        }
    }

    /// Serializes the error for the request `id`.
    pub(super) fn reply(&self, id: Option<&Id>) -> Reply {
        #[derive(Serialize)]
        struct Message<'a> {
            jsonrpc: &'static str,
            id: Option<&'a Id>,
            error: Error,
        }
        #[derive(Serialize)]
        struct Error {
            code: i32,
            message: &'static str,
            data: Map<String, Value>,
        }
        let Self { code, field, reason, more } = self;
        let mut data = Map::new();
        data.extend(field.iter().map(|field| ("field".to_owned(), json!(field))));
        data.insert("reason".to_owned(), json!(reason));
        if code.is_standard() {
            data.insert("detail".to_owned(), json!(reason));
        }
        data.extend(more.iter().cloned());
        let error = Error { code: code.number(), message: code.message(), data };
        Reply::json(written(&Message { jsonrpc: "2.0", id, error }))
    }
}

/// Creates the error for a tool that is missing or hidden from the caller.
fn unknown(asked: &Asked, nearest: Option<&str>) -> Refusal {
    match asked {
        Asked::Contracted(called) => {
            let method = called.method();
            let why = format!("`{}` is not on offer here", method.name());
            Refusal::new(unavailable(Some(method)), why)
        }
        Asked::Tool { name } => {
            let refusal = Refusal::unknown_method(name);
            let Some(nearest) = nearest.map(spelled) else { return refusal };
            Refusal {
                reason: format!("no method is named `{name}`; did you mean {nearest}?"),
                ..refusal
            }
        }
        Asked::List(_) | Asked::Misshapen => Refusal::new(Code::Internal, "no tool was called"),
    }
}

/// Sets the field to `path` if the path is the call's only subject.
fn about_path(asked: &Asked, refusal: Refusal) -> Refusal {
    match asked {
        Asked::Contracted(Called::Read(_) | Called::Write(_)) => refusal.about("path"),
        Asked::Contracted(Called::Run { .. } | Called::Search)
        | Asked::List(_)
        | Asked::Tool { .. }
        | Asked::Misshapen => refusal,
    }
}

/// Creates the error for a state that differs from the expected one, with both sides.
fn conflict(asked: &Asked, error: &CallError, details: &Value) -> Refusal {
    let told = match asked {
        // The sentence uses this dialect's parameter names. It omits the path, which the gate has
        // not redacted.
        Asked::Contracted(Called::Write(_)) => {
            match (details.get("expected"), details.get("actual")) {
                (Some(Value::Null), _) => Some(
                    "the file exists; to replace it set `overwrite` to true, or give the `etag` \
                     that it was read with",
                ),
                (_, Some(Value::Null)) => {
                    Some("the file does not exist any more; leave `etag` out to create it")
                }
                (Some(_), Some(_)) => Some("the file has another etag by now; read it again"),
                (None, _) | (_, None) => None,
            }
        }
        Asked::Contracted(Called::Read(_) | Called::Run { .. } | Called::Search)
        | Asked::List(_)
        | Asked::Tool { .. }
        | Asked::Misshapen => None,
    };
    let why = told.map_or_else(|| error.to_string(), str::to_owned);
    let details = details.as_object().into_iter().flatten();
    let more = details.filter(|(name, _)| !["field", "reason", "detail"].contains(&name.as_str()));
    more.fold(Refusal::new(Code::Conflict, why), |refusal, (name, value)| {
        refusal.with(name, value.clone())
    })
}

/// Returns the code for an unavailable dependency of `method`.
fn unavailable(method: Option<Contracted>) -> Code {
    match method {
        Some(Contracted::Search) => Code::VectorDbUnavailable,
        Some(Contracted::Read | Contracted::Write | Contracted::Run) | None => {
            Code::ToolUnavailable
        }
    }
}

/// Creates the error for parameters that break a schema or are invalid for the tool.
fn invalid(asked: &Asked, problems: &[Problem]) -> Refusal {
    let field = |pointer: &str| match asked {
        Asked::Contracted(called) => called.field(pointer),
        Asked::List(_) | Asked::Tool { .. } | Asked::Misshapen => dotted(pointer),
    };
    let (code, none) = match asked {
        Asked::Contracted(called) => (Code::Validation, called.method().main_field()),
        Asked::List(_) | Asked::Tool { .. } | Asked::Misshapen => (Code::InvalidParams, "params"),
    };
    let about = |problem: &Problem| match field(&problem.pointer) {
        field if field.is_empty() => none.to_owned(),
        field => field,
    };
    let Some((first, others)) = problems.split_first() else {
        return Refusal::new(code, "the parameters cannot be meant").about(none);
    };
    let refusal = Refusal::new(code, first.message.as_str()).about(about(first));
    if others.is_empty() {
        return refusal;
    }
    let told = problems.iter().map(|one| json!({ "field": about(one), "reason": one.message }));
    refusal.with("problems", told.collect())
}

/// Converts a JSON pointer to a dotted path: `/env/A` becomes `env.A`.
pub(super) fn dotted(pointer: &str) -> String {
    let parts = pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~"));
    parts.collect::<Vec<_>>().join(".")
}

/// Returns the name of the tool `id` in this dialect, in backquotes.
fn spelled(id: &str) -> String {
    match ToolId::foreign(id) {
        Some(id) => format!("`{}`", name_of(&id)),
        None => format!("`{id}`"),
    }
}
