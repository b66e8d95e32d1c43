//! Converts failures of an upstream into tool errors.

use toolgate_contract::{Fault, Kind, ToolError};

use super::Upstream;
use crate::message::RpcError;
use crate::wire::Trouble;

impl Upstream {
    /// Converts `trouble` with `method` into an error for the caller.
    pub(crate) fn failed(&self, method: &str, trouble: Trouble) -> ToolError {
        let name = &self.name;
        let away = |message: String| ToolError::new(Fault::Unavailable, message);
        match trouble {
            Trouble::Refused(error) => refusal(method, error),
            Trouble::SessionGone => {
                away(format!("the upstream `{name}` has begun anew and did nothing; call again"))
            }
            Trouble::NotSent(why) => away(format!("the upstream `{name}` is away: {why}")),
            Trouble::Lost(why) => away(format!(
                "the upstream `{name}` went away while it worked: {why}. What it did meanwhile is \
                 not known, so it is not asked again"
            )),
            Trouble::Unauthorized(why) => ToolError::new(
                Fault::NotAllowed,
                format!("the upstream `{name}` does not let us in: {why}"),
            ),
        }
    }
}

/// Converts a JSON-RPC error of the upstream.
fn refusal(method: &str, error: RpcError) -> ToolError {
    let RpcError { code, message, data } = error;
    // The server names the capability that it needs and we lack.
    if code == -32021 {
        let required = data.as_ref().and_then(|data| data.get("requiredCapabilities"));
        let kinds = [
            ("/elicitation/url", Kind::Visit),
            ("/elicitation", Kind::Form),
            ("/sampling/tools", Kind::SampleWithTools),
            ("/sampling", Kind::Sample),
            ("/roots", Kind::Roots),
        ];
        let lacks = |(at, _): &(&str, Kind)| required.is_some_and(|it| it.pointer(at).is_some());
        if let Some((_, kind)) = kinds.into_iter().find(lacks) {
            return ToolError::cannot_ask(kind);
        }
    }
    let looks = matches!(method, "resources/read" | "resources/directory/read" | "skills/get");
    if looks && matches!(code, -32002 | -32602) {
        return ToolError::new(Fault::NotFound, message);
    }
    let code = i32::try_from(code).unwrap_or(-32603);
    ToolError::new(Fault::Refused { code, data: data.map(Box::new) }, message)
}

/// Returns `trouble` as a sentence.
pub(crate) fn told(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Refused(error) => format!("it refused: {} ({})", error.message, error.code),
        Trouble::SessionGone => "its session is gone".to_owned(),
        Trouble::NotSent(why) | Trouble::Lost(why) | Trouble::Unauthorized(why) => why.clone(),
    }
}
