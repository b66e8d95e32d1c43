//! Collects the failures and counts found in a program's output.

use super::super::report::{CiFailure, CiTestCounts, FailureSeverity};

/// The maximum length of a failure's message, in characters.
const MESSAGE_CHARS_MAX: usize = 1000;

/// The failures and counts found so far in a program's output.
#[derive(Debug, Default)]
pub(super) struct OutputParserFindings {
    pub(super) failures: Vec<CiFailure>,
    pub(super) dropped: usize,
    pub(super) summary: CiTestCounts,
    failures_max: usize,
    /// The failure that was added last. A compiler reports an equal failure for a library and for
    /// its tests, so duplicates are dropped.
    last: Option<CiFailure>,
}

impl OutputParserFindings {
    pub(super) fn new(failures_max: usize) -> Self {
        Self { failures_max, ..Self::default() }
    }

    /// Adds `failure`, or only counts it if the list is full. Ignores a duplicate of an earlier
    /// failure.
    pub(super) fn push(&mut self, failure: CiFailure) {
        let failure = with_short_message(failure);
        if !self.failures.contains(&failure) && self.last.as_ref() != Some(&failure) {
            self.add(failure);
        }
    }

    /// Adds the `failure` of a test, or only counts it if the list is full. Keeps duplicates,
    /// because tests with equal names in two programs may fail in the same way.
    pub(super) fn push_test(&mut self, failure: CiFailure) {
        self.add(with_short_message(failure));
    }

    fn add(&mut self, failure: CiFailure) {
        match failure.severity {
            FailureSeverity::Error => CiTestCounts::increase(&mut self.summary.errors, 1),
            FailureSeverity::Warning => CiTestCounts::increase(&mut self.summary.warnings, 1),
            FailureSeverity::Failure => {}
        }
        self.last = Some(failure.clone());
        if self.failures.len() < self.failures_max {
            self.failures.push(failure);
        } else {
            self.dropped += 1;
        }
    }
}

/// Returns `failure` with its message shortened to the maximum length.
fn with_short_message(mut failure: CiFailure) -> CiFailure {
    let message = failure.message.trim();
    failure.message = match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{} …", &message[..end]),
        None => message.to_owned(),
    };
    failure
}
