//! Remembers the hashes of texts that a parser process failed to parse.

use std::collections::VecDeque;

use blake3::Hash;

/// The maximum number of failed parse requests that are remembered. The oldest is dropped first.
const TEXTS_MAX: usize = 1024;

/// The hashes of parse requests that failed, for example because the parser crashed.
#[derive(Default)]
pub(super) struct FailedParseRequests(VecDeque<Hash>);

impl FailedParseRequests {
    /// Returns true if the parse request `request` has failed before.
    pub(super) fn contains(&self, request: &[u8]) -> bool {
        !self.0.is_empty() && self.0.contains(&blake3::hash(request))
    }

    /// Remembers that the parse request `request` failed. Returns false if it had already failed
    /// before.
    pub(super) fn insert(&mut self, request: &[u8]) -> bool {
        if self.contains(request) {
            return false;
        }
        if self.0.len() >= TEXTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(blake3::hash(request));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_text_is_known_until_many_others_have_failed() {
        let mut failed = FailedParseRequests::default();
        assert!(!failed.contains(b"0"));
        for number in 0..TEXTS_MAX {
            assert!(failed.insert(number.to_string().as_bytes()));
        }
        assert!(failed.contains(b"0") && !failed.insert(b"0"));
        assert!(failed.insert(b"another"));
        assert!(!failed.contains(b"0") && failed.contains(b"1") && failed.contains(b"another"));
        assert_eq!(failed.0.len(), TEXTS_MAX);
    }
}
