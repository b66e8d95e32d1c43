//! Errors with the contract's codes, fields and reasons.

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolgate_contract::{CallError, Reply, ToolId, ValidationProblem, fold_name};

use super::calls::{MiraCallParams, MiraWriteParams};
use super::encoder::MiraRequest;
use super::message::MiraRequestId;
use super::methods::{LIST, MiraContractMethod, method_name};
use crate::rpc::{self, to_json};
use crate::tool_mentions::own_tool_id;

/// The maximum number of characters of a tool's name that an error repeats.
const NAME_CHARS_MAX: usize = 100;

/// The error codes of Mira's contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MiraErrorCode {
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

impl MiraErrorCode {
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

    /// Returns true if the code is an error code of JSON-RPC itself. Mira's contract adds a
    /// `detail` to errors with such a code.
    fn is_standard(self) -> bool {
        self.number() < 0
    }
}

/// An error of a request, as Mira's contract defines it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MiraRequestError {
    code: MiraErrorCode,
    field: Option<String>,
    reason: String,
    data: Vec<(String, Value)>,
}

impl MiraRequestError {
    pub(super) fn new(code: MiraErrorCode, reason: impl Into<String>) -> Self {
        Self { code, field: None, reason: reason.into(), data: Vec::new() }
    }

    /// Returns the error with `field` as the parameter to which it belongs.
    pub(super) fn with_field(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// Returns the error with an additional member of its `data`.
    pub(super) fn with_data(mut self, name: &str, value: Value) -> Self {
        self.data.push((name.to_owned(), value));
        self
    }

    pub(super) fn unknown_method(name: &str) -> Self {
        let name: String = name.chars().take(NAME_CHARS_MAX).collect();
        let why = match own_method(&name) {
            Some(near) => format!("no method is named `{name}`; did you mean `{near}`?"),
            None => format!("no method is named `{name}`; `tools/list` lists the methods"),
        };
        Self::new(MiraErrorCode::MethodNotFound, why)
    }

    /// Converts the host's `error` for `request` to an error of Mira's contract.
    pub(super) fn from_error(error: &CallError, request: &MiraRequest) -> Self {
        let refusal = Self::from_error_with_ids(error, request);
        Self { reason: request.rename_tools(&refusal.reason), ..refusal }
    }

    /// Converts the host's `error` for `request` to an error of Mira's contract. The error's reason
    /// may contain tool names of other dialects.
    fn from_error_with_ids(error: &CallError, request: &MiraRequest) -> Self {
        let method = match request {
            MiraRequest::Contracted(call) => Some(call.method()),
            MiraRequest::List(_) | MiraRequest::Tool { .. } | MiraRequest::Invalid => None,
        };
        let plain = |code| Self::new(code, error.to_string());
        match error {
            CallError::UnknownTool { nearest, unavailable, .. } => {
                unknown_tool(request, nearest.as_deref(), unavailable.as_deref())
            }
            CallError::InvalidInput { problems } => invalid_params(request, problems),
            CallError::NotAllowed { .. } => {
                about_path(request, plain(MiraErrorCode::PermissionDenied))
            }
            CallError::Scope { needs, .. } => {
                plain(MiraErrorCode::PermissionDenied).with_data("scopes", json!(needs))
            }
            CallError::Limited { retry_after, .. } => {
                let ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
                plain(MiraErrorCode::RateLimited).with_data("retry_after_ms", json!(ms))
            }
            CallError::NotFound { .. } => match request {
                // The parameters forbid creating a missing folder, so they are invalid together.
                MiraRequest::Contracted(MiraCallParams::Write(MiraWriteParams {
                    create: true,
                    mkdirs: false,
                    ..
                })) => {
                    let why = format!(
                        "{error}, and `mkdirs` is false; set it to true to create missing folders"
                    );
                    Self::new(MiraErrorCode::Validation, why).with_field("path")
                }
                MiraRequest::Contracted(_)
                | MiraRequest::List(_)
                | MiraRequest::Tool { .. }
                | MiraRequest::Invalid => about_path(request, plain(MiraErrorCode::NotFound)),
            },
            CallError::Conflict { details, .. } => conflict(request, error, details),
            CallError::TooLarge { .. } => plain(MiraErrorCode::ContentTooLarge),
            CallError::Unavailable { .. } => plain(unavailable_code(method)),
            CallError::TimedOut { .. } => {
                plain(MiraErrorCode::Internal).with_data("timed_out", json!(true))
            }
            // The tool needs a person or a model, and this dialect has no questions.
            CallError::CannotAsk { .. } | CallError::Asks { .. } => {
                plain(MiraErrorCode::ToolUnavailable)
            }
            CallError::NeedsJob { tool } => {
                let tool = quoted_name(tool);
                let why = format!("{tool} runs only as a job; start it with `jobs/start`");
                Self::new(MiraErrorCode::ToolUnavailable, why)
            }
            CallError::NoJob { tool } => {
                let why = format!("{} does not run as a job; call it directly", quoted_name(tool));
                Self::new(MiraErrorCode::Validation, why).with_field("tool")
            }
            CallError::Refused { code: rpc::INVALID_PARAMS, .. } => {
                plain(MiraErrorCode::InvalidParams)
            }
            CallError::Refused { .. }
            | CallError::Mismatch { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Failed { .. }
            | CallError::InvalidOutput { .. } => plain(MiraErrorCode::Internal),
        }
    }

    /// Serializes the error as the reply to the request `id`.
    pub(super) fn reply(&self, id: Option<&MiraRequestId>) -> Reply {
        /// JSON-RPC message that contains an error of Mira's dialect.
        #[derive(Serialize)]
        struct MiraErrorFrame<'a> {
            jsonrpc: &'static str,
            id: Option<&'a MiraRequestId>,
            error: MiraErrorBody,
        }
        /// Member `error` of an error message of Mira's dialect.
        #[derive(Serialize)]
        struct MiraErrorBody {
            code: i32,
            message: &'static str,
            data: Map<String, Value>,
        }
        let Self { code, field, reason, data: more } = self;
        let mut data = Map::new();
        data.extend(field.iter().map(|field| ("field".to_owned(), json!(field))));
        data.insert("reason".to_owned(), json!(reason));
        if code.is_standard() {
            data.insert("detail".to_owned(), json!(reason));
        }
        data.extend(more.iter().cloned());
        let error = MiraErrorBody { code: code.number(), message: code.message(), data };
        Reply::json(to_json(&MiraErrorFrame { jsonrpc: "2.0", id, error }))
    }
}

/// Creates the error for a tool that is missing or hidden from the caller.
fn unknown_tool(
    request: &MiraRequest,
    nearest: Option<&str>,
    unavailable: Option<&str>,
) -> MiraRequestError {
    match request {
        MiraRequest::Contracted(called) => {
            let method = called.method();
            let why = unavailable.map(|why| format!(": {why}")).unwrap_or_default();
            let why = format!("`{}` is not available{why}", method.name());
            MiraRequestError::new(unavailable_code(Some(method)), why)
        }
        MiraRequest::Tool { name } => {
            let refusal = MiraRequestError::unknown_method(name);
            if let Some(why) = unavailable {
                let reason = format!("`{name}` is not available: {why}");
                return MiraRequestError { reason, ..refusal };
            }
            let Some(nearest) = nearest.map(quoted_name) else { return refusal };
            MiraRequestError {
                reason: format!("no method is named `{name}`; did you mean {nearest}?"),
                ..refusal
            }
        }
        MiraRequest::List(_) | MiraRequest::Invalid => {
            MiraRequestError::new(MiraErrorCode::Internal, "no tool was called")
        }
    }
}

/// Returns `refusal` with the field `path` if `request` reads or writes a file. Otherwise, returns
/// `refusal` unchanged.
fn about_path(request: &MiraRequest, refusal: MiraRequestError) -> MiraRequestError {
    match request {
        MiraRequest::Contracted(MiraCallParams::Read(_) | MiraCallParams::Write(_)) => {
            refusal.with_field("path")
        }
        MiraRequest::Contracted(MiraCallParams::Run { .. } | MiraCallParams::Search)
        | MiraRequest::List(_)
        | MiraRequest::Tool { .. }
        | MiraRequest::Invalid => refusal,
    }
}

/// Creates the error for a file or other state that differs from the expected state. The error
/// contains both states.
fn conflict(request: &MiraRequest, error: &CallError, details: &Value) -> MiraRequestError {
    let sentence = match request {
        // The sentence uses this dialect's parameter names. It omits the path, which the gate has
        // not redacted.
        MiraRequest::Contracted(MiraCallParams::Write(_)) => {
            match (details.get("expected"), details.get("actual")) {
                (Some(Value::Null), _) => Some(
                    "the file exists; to replace it, set `overwrite` to true or pass the `etag` \
                     that it was read with",
                ),
                (_, Some(Value::Null)) => {
                    Some("the file no longer exists; omit `etag` to create it")
                }
                (Some(_), Some(_)) => Some("the file has changed since it was read; read it again"),
                (None, _) | (_, None) => None,
            }
        }
        MiraRequest::Contracted(
            MiraCallParams::Read(_) | MiraCallParams::Run { .. } | MiraCallParams::Search,
        )
        | MiraRequest::List(_)
        | MiraRequest::Tool { .. }
        | MiraRequest::Invalid => None,
    };
    let why = sentence.map_or_else(|| error.to_string(), str::to_owned);
    let details = details.as_object().into_iter().flatten();
    let more = details.filter(|(name, _)| !["field", "reason", "detail"].contains(&name.as_str()));
    more.fold(MiraRequestError::new(MiraErrorCode::Conflict, why), |refusal, (name, value)| {
        refusal.with_data(name, value.clone())
    })
}

/// Returns the error code for an unavailable dependency of `method`.
fn unavailable_code(method: Option<MiraContractMethod>) -> MiraErrorCode {
    match method {
        Some(MiraContractMethod::Search) => MiraErrorCode::VectorDbUnavailable,
        Some(MiraContractMethod::Read | MiraContractMethod::Write | MiraContractMethod::Run)
        | None => MiraErrorCode::ToolUnavailable,
    }
}

/// Creates the error for parameters that violate a schema or are invalid for the tool.
fn invalid_params(request: &MiraRequest, problems: &[ValidationProblem]) -> MiraRequestError {
    let field = |pointer: &str| match request {
        MiraRequest::Contracted(call) => call.field(pointer),
        MiraRequest::List(_) | MiraRequest::Tool { .. } | MiraRequest::Invalid => {
            dotted_path(pointer)
        }
    };
    let (code, main_field) = match request {
        MiraRequest::Contracted(call) => (MiraErrorCode::Validation, call.method().main_field()),
        MiraRequest::List(_) | MiraRequest::Tool { .. } | MiraRequest::Invalid => {
            (MiraErrorCode::InvalidParams, "params")
        }
    };
    let about = |problem: &ValidationProblem| match field(&problem.pointer) {
        field if field.is_empty() => main_field.to_owned(),
        field => field,
    };
    let Some((first, others)) = problems.split_first() else {
        return MiraRequestError::new(code, "the parameters are invalid").with_field(main_field);
    };
    let refusal = MiraRequestError::new(code, first.message.as_str()).with_field(about(first));
    if others.is_empty() {
        return refusal;
    }
    let list = problems
        .iter()
        .map(|one| json!({ "field": about(one), "reason": request.rename_tools(&one.message) }));
    refusal.with_data("problems", list.collect())
}

/// Converts a JSON pointer to a dotted path: `/env/A` becomes `env.A`.
pub(super) fn dotted_path(pointer: &str) -> String {
    let parts = pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~"));
    parts.collect::<Vec<_>>().join(".")
}

/// Returns the method of Mira's dialect that `name` probably means, if `name` is spelled with other
/// separators, as in `files.read`.
fn own_method(name: &str) -> Option<String> {
    let id = own_tool_id(name).and_then(ToolId::foreign);
    let method = id.map(|id| method_name(&id));
    let method = method.or_else(|| (fold_name(name) == "tools_list").then(|| LIST.to_owned()))?;
    (method != name).then_some(method)
}

/// Returns the name of the tool `id` in Mira's dialect, in backquotes.
fn quoted_name(id: &str) -> String {
    match ToolId::foreign(id) {
        Some(id) => format!("`{}`", method_name(&id)),
        None => format!("`{id}`"),
    }
}
