//! A cache for serialized values.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::value::RawValue;

/// A cache of the JSON of an immutable value, one entry per number. A clone starts empty, because
/// the cloned value may be changed.
#[derive(Default)]
pub struct JsonCache(Mutex<Vec<(usize, Arc<RawValue>)>>);

impl JsonCache {
    /// Returns the entry for the number `under`. Calls `spell` to create it the first time.
    pub fn get_or_create(
        &self,
        under: usize,
        spell: impl FnOnce() -> Arc<RawValue>,
    ) -> Arc<RawValue> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, said)) = kept.iter().find(|(number, _)| *number == under) {
            return said.clone();
        }
        let said = spell();
        kept.push((under, said.clone()));
        said
    }
}

impl Clone for JsonCache {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for JsonCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    #[test]
    fn what_was_spelled_is_said_again_under_its_number_and_not_by_a_copy() {
        let said = |kept: &JsonCache, under, text: &str| {
            let spell = || to_raw_value(text).expect("JSON").into();
            kept.get_or_create(under, spell).get().to_owned()
        };
        let kept = JsonCache::default();
        assert_eq!(said(&kept, 1, "one"), "\"one\"");
        assert_eq!(said(&kept, 1, "other"), "\"one\"");
        assert_eq!(said(&kept, 2, "two"), "\"two\"");
        let copy = kept.clone();
        assert_eq!(said(&copy, 1, "changed"), "\"changed\"");
        assert_eq!(said(&kept, 1, "changed"), "\"one\"");
    }
}
