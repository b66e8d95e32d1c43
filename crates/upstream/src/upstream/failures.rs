//! Converts failures of an upstream into tool errors.

use toolgate_contract::{QuestionKind, ToolError, ToolFault};

use super::Upstream;
use crate::message::RpcError;
use crate::transport::RequestFailure;

impl Upstream {
    /// Converts `trouble` with `method` into an error for the caller.
    pub(crate) fn tool_error(&self, method: &str, trouble: RequestFailure) -> ToolError {
        let name = &self.name;
        let away = |message: String| ToolError::new(ToolFault::Unavailable, message);
        match trouble {
            RequestFailure::Refused(error) => error_from_refusal(method, error),
            RequestFailure::SessionGone => {
                away(format!("the upstream `{name}` has begun anew and did nothing; call again"))
            }
            RequestFailure::NotSent(why) => away(format!("the upstream `{name}` is away: {why}")),
            RequestFailure::Lost(why) => away(format!(
                "the upstream `{name}` went away while it worked: {why}. What it did meanwhile is \
                 not known, so it is not asked again"
            )),
            RequestFailure::Unauthorized(why) => ToolError::new(
                ToolFault::NotAllowed,
                format!("the upstream `{name}` does not let us in: {why}"),
            ),
        }
    }
}

/// Converts a JSON-RPC error of the upstream.
fn error_from_refusal(method: &str, error: RpcError) -> ToolError {
    let RpcError { code, message, data } = error;
    // The server names the capability that it needs and we lack.
    if code == -32021 {
        let required = data.as_ref().and_then(|data| data.get("requiredCapabilities"));
        let kinds = [
            ("/elicitation/url", QuestionKind::Visit),
            ("/elicitation", QuestionKind::Form),
            ("/sampling/tools", QuestionKind::SampleWithTools),
            ("/sampling", QuestionKind::Sample),
            ("/roots", QuestionKind::Roots),
        ];
        let lacks =
            |(at, _): &(&str, QuestionKind)| required.is_some_and(|it| it.pointer(at).is_some());
        if let Some((_, kind)) = kinds.into_iter().find(lacks) {
            return ToolError::cannot_ask(kind);
        }
    }
    let looks = matches!(method, "resources/read" | "resources/directory/read" | "skills/get");
    if looks && matches!(code, -32002 | -32602) {
        return ToolError::new(ToolFault::NotFound, message);
    }
    let code = i32::try_from(code).unwrap_or(-32603);
    ToolError::new(ToolFault::Refused { code, data: data.map(Box::new) }, message)
}
