//! What was found so far.

use super::super::report::{Failure, Severity, Summary};

/// How long a message may be.
const MESSAGE_CHARS_MAX: usize = 1000;

/// Failures and counts.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) failures: Vec<Failure>,
    pub(super) left_out: usize,
    pub(super) summary: Summary,
    failures_max: usize,
    /// A compiler says the same of a library and of its tests.
    last: Option<Failure>,
}

impl Found {
    pub(super) fn new(failures_max: usize) -> Self {
        Self { failures_max, ..Self::default() }
    }

    /// Keeps `failure`, unless it is known or there are too many.
    pub(super) fn push(&mut self, mut failure: Failure) {
        let message = failure.message.trim();
        failure.message = match message.char_indices().nth(MESSAGE_CHARS_MAX) {
            Some((end, _)) => format!("{} …", &message[..end]),
            None => message.to_owned(),
        };
        if self.failures.contains(&failure) || self.last.as_ref() == Some(&failure) {
            return;
        }
        match failure.severity {
            Severity::Error => Summary::add(&mut self.summary.errors, 1),
            Severity::Warning => Summary::add(&mut self.summary.warnings, 1),
            Severity::Failure => {}
        }
        self.last = Some(failure.clone());
        if self.failures.len() < self.failures_max {
            self.failures.push(failure);
        } else {
            self.left_out += 1;
        }
    }
}
