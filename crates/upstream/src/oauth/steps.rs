//! Reports the steps of authorization as they happen.

use crate::pins::unseen::line;

/// Callback that receives the subject and the outcome of each step.
pub type Told<'a> = dyn FnMut(&str, &Result<String, String>) + Send + 'a;

/// Reporter of authorization steps. It does nothing without a callback.
#[derive(Default)]
pub(crate) struct Steps<'a>(pub(crate) Option<&'a mut Told<'a>>);

impl Steps<'_> {
    /// Reports a step.
    pub(crate) fn done(&mut self, what: &str, outcome: &Result<String, String>) {
        if let Some(told) = &mut self.0 {
            // Parts of the text come from other servers, and it goes to a terminal.
            let outcome = outcome.as_ref().map(|said| line(said)).map_err(|why| line(why));
            told(what, &outcome);
        }
    }
}
