//! Converts failures of an upstream into tool errors.

use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::{Effects, QuestionKind, ToolError, ToolErrorKind, ToolSpec, fold_name};

use super::{Upstream, UpstreamHealth};
use crate::connection::UpstreamConnection;
use crate::message::UpstreamRpcError;
use crate::names;
use crate::start_report::split_error_output;
use crate::transport::UpstreamRequestFailure;

impl Upstream {
    /// Returns the current connection for a call, and connects if there is none. The error names
    /// the time since which the upstream is unavailable, and the command that tests it.
    pub(crate) async fn connection_for_call(&self) -> Result<Arc<UpstreamConnection>, ToolError> {
        self.connection().await.map_err(|error| match self.outage() {
            Some((since, _)) => {
                let message =
                    format!("{} (unavailable{since}; {})", error.message, self.test_advice());
                ToolError { message, ..error }
            }
            None => error,
        })
    }

    /// Returns the reason why the upstream cannot be reached, the time of the failure, and the
    /// command that tests the upstream. Returns `None` if the last attempt succeeded or there was
    /// none.
    pub(crate) fn unavailable_reason(&self) -> Option<String> {
        let (since, why) = self.outage()?;
        let (why, _) = split_error_output(&why);
        let (name, advice) = (&self.name, self.test_advice());
        Some(format!("its upstream `{name}` is unavailable{since}: {why}; {advice}"))
    }

    /// Returns the reason why the tool `name` is missing, if it may belong to this upstream, which
    /// cannot be reached and has not listed its tools. The spec is a stand-in for the tool, by
    /// which policy decides who may know the reason.
    pub(crate) fn unreachable_tool(&self, name: &str) -> Option<(ToolSpec, String)> {
        if self.prefix().is_empty() || self.known_listing().is_some() {
            return None;
        }
        let folded = fold_name(name);
        let own = folded.strip_prefix(&*fold_name(self.prefix()))?.strip_prefix('_')?;
        if own.is_empty() || !self.serves(own) {
            return None;
        }
        let spec = ToolSpec {
            tags: self.tags(),
            group: Some(self.limit_group()),
            ruled_as: self.ruled_as(own),
            ..ToolSpec::new(names::tool_id(self.prefix(), own), own, "", Effects::Reads)
        };
        Some((spec, self.unavailable_reason()?))
    }

    /// Returns the time since which the upstream is unavailable, as ` since TIME`, and the reason.
    /// `None` if the last attempt to reach the upstream succeeded or there was none.
    fn outage(&self) -> Option<(String, String)> {
        let UpstreamHealth { is_failing, since, last_error } = self.health();
        let why = last_error.filter(|_| is_failing == Some(true))?;
        let since = since.map(|at| format!(" since {}", at.strftime("%Y-%m-%dT%H:%M:%SZ")));
        Some((since.unwrap_or_default(), why))
    }

    fn test_advice(&self) -> String {
        format!("the operator can test it with `toolgate doctor upstreams {}`", self.name)
    }

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
