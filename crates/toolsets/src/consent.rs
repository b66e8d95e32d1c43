//! Asks a person to confirm an action before a tool does it.

use serde_json::json;
use toolgate_contract::{Choice, Ctx, Fault, ToolError};

/// An action that needs a person's confirmation.
pub(crate) struct Deed<'a> {
    /// The key of the question in its form.
    pub(crate) key: &'a str,
    /// The full text of the question.
    pub(crate) question: String,
    /// A short description of the action, used in the refusal.
    pub(crate) what: &'a str,
    /// The name of the setting that requires the confirmation.
    pub(crate) setting: &'a str,
}

/// Asks the caller to confirm `deed`.
///
/// # Errors
/// Fails if the caller declines or cannot be asked, or if [`Ctx::form`] fails.
pub(crate) async fn agreed(ctx: &Ctx, deed: Deed<'_>) -> Result<(), ToolError> {
    let Deed { key, question, what, setting } = deed;
    let form = ctx.form(key, question, json!({ "type": "object", "properties": {} }));
    let asked = tokio::select! {
        asked = form => asked,
        () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
    };
    match asked {
        Ok(Choice::Accepted(_)) => Ok(()),
        Ok(Choice::Declined | Choice::Canceled) => Err(ToolError::not_allowed(format!(
            "a person was asked about {what} (`{setting}`) and did not agree"
        ))),
        Err(err) if matches!(err.fault, Fault::CannotAsk(_)) => {
            let message = format!(
                "{what} is to be confirmed by a person each time (`{setting}`), and this client \
                 offers no way to ask one"
            );
            match ctx.asker.calls_again() {
                true => Err(ToolError { message, ..err }),
                false => Err(ToolError::not_allowed(message)),
            }
        }
        Err(err) => Err(err),
    }
}
