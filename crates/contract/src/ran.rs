//! Sandbox profiles of the programs that a call ran, for its audit record.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sandbox profiles of the programs that a call ran. Clones share the list.
#[derive(Clone, Default)]
pub struct Ran(Arc<Mutex<BTreeSet<String>>>);

impl Ran {
    /// Adds the profile of a program: its name and the layers that were missing.
    pub fn confined(&self, how: String) {
        self.all().insert(how);
    }

    /// Returns all profiles, each once, joined by `; `. Returns `None` if no program ran.
    pub fn told(&self) -> Option<String> {
        let all = self.all();
        let words: Vec<_> = all.iter().map(String::as_str).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    fn all(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ran")
    }
}
