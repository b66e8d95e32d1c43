//! Converts failures of an upstream into tool errors.

use std::time::Duration;

use toolgate_contract::{QuestionKind, ToolError, ToolErrorKind};

use super::Upstream;
use crate::message::UpstreamRpcError;
use crate::transport::UpstreamRequestFailure;

impl Upstream {
    /// Converts the `failure` of a request of `method` into an error for the caller.
    pub(crate) fn tool_error(&self, method: &str, failure: UpstreamRequestFailure) -> ToolError {
        let name = &self.name;
        let unavailable = |message: String| ToolError::new(ToolErrorKind::Unavailable, message);
        match failure {
            UpstreamRequestFailure::Refused(error) => error_from_refusal(method, error),
            UpstreamRequestFailure::SessionGone(why) => unavailable(format!(
                "the upstream `{name}` ended the session and did nothing: {why}; call again"
            )),
            UpstreamRequestFailure::NotSent(why) => {
                unavailable(format!("the upstream `{name}` is unavailable: {why}"))
            }
            UpstreamRequestFailure::Lost(why) => unavailable(format!(
                "the upstream `{name}` became unavailable during the call: {why}; the call may \
                 have had effects, so it was not repeated"
            )),
            UpstreamRequestFailure::Unauthorized(why) => ToolError::new(
                ToolErrorKind::NotAllowed,
                format!("the upstream `{name}` denied access: {why}"),
            ),
        }
    }
}

/// Returns `duration` in seconds, or in milliseconds if it is not a whole number of seconds.
pub(super) fn duration_text(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{} s", duration.as_secs()),
        _ => format!("{} ms", duration.as_millis()),
    }
}

/// Converts a JSON-RPC error of the upstream into an error for the caller.
fn error_from_refusal(method: &str, error: UpstreamRpcError) -> ToolError {
    let UpstreamRpcError { code, message, data } = error;
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
        let is_required =
            |(at, _): &(&str, QuestionKind)| required.is_some_and(|it| it.pointer(at).is_some());
        if let Some((_, kind)) = kinds.into_iter().find(is_required) {
            return ToolError::cannot_ask(kind);
        }
    }
    let is_lookup = matches!(method, "resources/read" | "resources/directory/read" | "skills/get");
    if is_lookup && matches!(code, -32002 | -32602) {
        return ToolError::new(ToolErrorKind::NotFound, message);
    }
    let code = i32::try_from(code).unwrap_or(-32603);
    ToolError::new(ToolErrorKind::Refused { code, data: data.map(Box::new) }, message)
}
