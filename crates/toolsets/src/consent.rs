//! Whether a person agrees to what is about to be done.

use serde_json::json;
use toolgate_contract::{Choice, Ctx, Fault, ToolError};

/// Something that is done only if a person agrees.
pub(crate) struct Deed<'a> {
    /// What the question is known by.
    pub(crate) key: &'a str,
    /// What is asked, all of it.
    pub(crate) question: String,
    /// What would be done, for a refusal.
    pub(crate) what: &'a str,
    /// The setting that has it asked.
    pub(crate) setting: &'a str,
}

/// Asks whoever called whether `deed` should be done.
///
/// # Errors
/// When they do not agree or cannot be asked, and those of [`Ctx::form`].
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
