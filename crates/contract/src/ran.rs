//! How the programs of a call were confined, as its record says.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a tool says how the programs were confined that it ran. Clones are one.
#[derive(Clone, Default)]
pub struct Ran(Arc<Mutex<BTreeSet<String>>>);

impl Ran {
    /// Says that a program ran, confined so: a profile's name, and what of it was lacking.
    pub fn confined(&self, how: String) {
        self.all().insert(how);
    }

    /// How they were, each way once; `None` where none ran.
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
