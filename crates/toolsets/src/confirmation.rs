//! Asks the caller's user to confirm an action before a tool performs the action.

use serde_json::json;
use toolgate_contract::{ElicitationAnswer, ToolContext, ToolError, ToolErrorKind};

/// A question that asks a person to confirm an action.
pub(crate) struct ConfirmationRequest<'a> {
    /// The key that identifies the question among all questions of the call.
    pub(crate) key: &'a str,
    /// The full text of the question.
    pub(crate) question: String,
    /// A short description of the action, used in the error if the action is refused.
    pub(crate) action: &'a str,
    /// The name of the setting that requires the confirmation.
    pub(crate) setting: &'a str,
}

/// Asks a person to confirm `request`.
///
/// # Errors
/// Fails if the person declines, if nobody can be asked, or if [`ToolContext::ask_form`] fails.
pub(crate) async fn ask_confirmation(
    ctx: &ToolContext,
    request: ConfirmationRequest<'_>,
) -> Result<(), ToolError> {
    let ConfirmationRequest { key, question, action, setting } = request;
    match ask_person(ctx, key, question).await {
        Ok(ElicitationAnswer::Accepted(_)) => Ok(()),
        Ok(ElicitationAnswer::Declined | ElicitationAnswer::Canceled) => {
            Err(not_agreed(action, setting))
        }
        Err(err) if matches!(err.fault, ToolErrorKind::CannotAsk(_)) => {
            let message = format!(
                "{action} must be confirmed by a person each time (`{setting}`), and this client \
                 cannot ask anyone"
            );
            match ctx.asker.repeats_calls() {
                true => Err(ToolError { message, ..err }),
                false => Err(ToolError::not_allowed(message)),
            }
        }
        Err(err) => Err(err),
    }
}

/// The outcome of asking a person for consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConsentOutcome {
    /// The person agreed.
    Given,
    /// The person refused.
    Refused,
    /// Nobody could be asked, because the caller's client has no way to show a question.
    NobodyAsked,
}

/// Asks a person to confirm `request`. Returns [`ConsentOutcome::NobodyAsked`] if nobody can be
/// asked.
///
/// # Errors
/// Fails if the person declines, or if [`ToolContext::ask_form`] fails for another reason.
pub(crate) async fn confirm_if_possible(
    ctx: &ToolContext,
    request: ConfirmationRequest<'_>,
) -> Result<ConsentOutcome, ToolError> {
    let ConfirmationRequest { key, question, action, setting } = request;
    match ask_if_possible(ctx, key, question).await? {
        ConsentOutcome::Refused => Err(not_agreed(action, setting)),
        consent => Ok(consent),
    }
}

/// Asks a person `question` if possible. `key` identifies the question within the call.
///
/// # Errors
/// Fails if [`ToolContext::ask_form`] fails, unless the reason is that nobody can be asked.
pub(crate) async fn ask_if_possible(
    ctx: &ToolContext,
    key: &str,
    question: String,
) -> Result<ConsentOutcome, ToolError> {
    match ask_person(ctx, key, question).await {
        Ok(ElicitationAnswer::Accepted(_)) => Ok(ConsentOutcome::Given),
        Ok(ElicitationAnswer::Declined | ElicitationAnswer::Canceled) => {
            Ok(ConsentOutcome::Refused)
        }
        Err(err) if matches!(err.fault, ToolErrorKind::CannotAsk(_)) => {
            Ok(ConsentOutcome::NobodyAsked)
        }
        Err(err) => Err(err),
    }
}

/// Asks a person to accept or decline `question`, without form fields. Fails early if the call is
/// cancelled.
async fn ask_person(
    ctx: &ToolContext,
    key: &str,
    question: String,
) -> Result<ElicitationAnswer, ToolError> {
    let form = ctx.ask_form(key, question, json!({ "type": "object", "properties": {} }));
    ctx.run_unless_canceled(form).await?
}

fn not_agreed(action: &str, setting: &str) -> ToolError {
    let message = format!("a person was asked about {action} (`{setting}`) and did not agree");
    ToolError::not_allowed(message)
}
