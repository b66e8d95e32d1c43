//! Sandbox profiles of the programs that a call ran, for its audit record.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sandbox profiles of the programs that a call ran. Clones share the list.
#[derive(Clone, Default)]
pub struct SandboxReport(Arc<Mutex<BTreeSet<String>>>);

impl SandboxReport {
    /// Adds the profile of a program: its name and the layers that were missing.
    pub fn add_profile(&self, how: String) {
        self.lock().insert(how);
    }

    /// Returns all profiles, each once, joined by `; `. Returns `None` if no program ran.
    pub fn summary(&self) -> Option<String> {
        let all = self.lock();
        let words: Vec<_> = all.iter().map(String::as_str).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SandboxReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ran")
    }
}
