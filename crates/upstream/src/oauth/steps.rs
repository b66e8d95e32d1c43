//! What was done to be let in, told as it is done.

use crate::pins::unseen::line;

/// Who is told of each step: what it was about, and how it went.
pub type Told<'a> = dyn FnMut(&str, &Result<String, String>) + Send + 'a;

/// The steps of being let in.
#[derive(Default)]
pub(crate) struct Steps<'a>(pub(crate) Option<&'a mut Told<'a>>);

impl Steps<'_> {
    /// Tells of a step.
    pub(crate) fn done(&mut self, what: &str, outcome: &Result<String, String>) {
        if let Some(told) = &mut self.0 {
            // Others wrote some of it, and it is for a terminal.
            let outcome = outcome.as_ref().map(|said| line(said)).map_err(|why| line(why));
            told(what, &outcome);
        }
    }
}
