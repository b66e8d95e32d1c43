//! Cache for the serialized forms of an immutable value.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::sync::lock_mutex;

use serde_json::value::RawValue;

/// A cache for several JSON encodings of one immutable value, each under a number that the caller
/// of the cache chooses. A clone starts empty, because the cloned value may be changed.
#[derive(Default)]
pub struct EncodedJsonCache(Mutex<Vec<(usize, Arc<RawValue>)>>);

impl EncodedJsonCache {
    /// Returns the cached JSON for the number `under`. On the first call with this number, `spell`
    /// creates the JSON.
    pub fn get_or_create(
        &self,
        under: usize,
        spell: impl FnOnce() -> Arc<RawValue>,
    ) -> Arc<RawValue> {
        let mut entries = lock_mutex(&self.0);
        if let Some((_, json)) = entries.iter().find(|(number, _)| *number == under) {
            return json.clone();
        }
        let json = spell();
        entries.push((under, json.clone()));
        json
    }
}

impl Clone for EncodedJsonCache {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for EncodedJsonCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncodedJsonCache")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    #[test]
    fn an_entry_is_reused_under_its_number_but_not_by_a_clone() {
        let json_of = |cache: &EncodedJsonCache, under, text: &str| {
            let spell = || to_raw_value(text).expect("JSON").into();
            cache.get_or_create(under, spell).get().to_owned()
        };
        let cache = EncodedJsonCache::default();
        assert_eq!(json_of(&cache, 1, "one"), "\"one\"");
        assert_eq!(json_of(&cache, 1, "other"), "\"one\"");
        assert_eq!(json_of(&cache, 2, "two"), "\"two\"");
        let copy = cache.clone();
        assert_eq!(json_of(&copy, 1, "changed"), "\"changed\"");
        assert_eq!(json_of(&cache, 1, "changed"), "\"one\"");
    }
}
