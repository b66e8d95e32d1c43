//! Reports the steps of authorization as they happen.

use toolgate_contract::printable::escape_hidden;

/// Callback that receives the subject and the outcome of each step of an authorization.
pub type AuthorizationStepCallback<'a> = dyn FnMut(&str, &Result<String, String>) + Send + 'a;

/// Reporter of authorization steps. It does nothing without a callback.
#[derive(Default)]
pub(crate) struct AuthorizationStepReporter<'a>(
    pub(crate) Option<&'a mut AuthorizationStepCallback<'a>>,
);

impl AuthorizationStepReporter<'_> {
    /// Reports a step of the authorization and its outcome to the callback.
    pub(crate) fn report(&mut self, step: &str, outcome: &Result<String, String>) {
        if let Some(callback) = &mut self.0 {
            // Parts of the text come from other servers, and it goes to a terminal.
            let outcome =
                outcome.as_ref().map(|text| escape_hidden(text)).map_err(|why| escape_hidden(why));
            callback(step, &outcome);
        }
    }
}
