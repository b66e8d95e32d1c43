//! What is spelled once and said often.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::value::RawValue;

/// What was spelled of something that does not change, under a number of whoever spells it. A copy
/// keeps nothing: it may be changed before it is spelled.
#[derive(Default)]
pub struct Kept(Mutex<Vec<(usize, Arc<RawValue>)>>);

impl Kept {
    /// What is kept `under` a number; the first time that is what `spell` gives.
    pub fn said(&self, under: usize, spell: impl FnOnce() -> Arc<RawValue>) -> Arc<RawValue> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, said)) = kept.iter().find(|(number, _)| *number == under) {
            return said.clone();
        }
        let said = spell();
        kept.push((under, said.clone()));
        said
    }
}

impl Clone for Kept {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Kept {
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
        let said = |kept: &Kept, under, text: &str| {
            let spell = || to_raw_value(text).expect("JSON").into();
            kept.said(under, spell).get().to_owned()
        };
        let kept = Kept::default();
        assert_eq!(said(&kept, 1, "one"), "\"one\"");
        assert_eq!(said(&kept, 1, "other"), "\"one\"");
        assert_eq!(said(&kept, 2, "two"), "\"two\"");
        let copy = kept.clone();
        assert_eq!(said(&copy, 1, "changed"), "\"changed\"");
        assert_eq!(said(&kept, 1, "changed"), "\"one\"");
    }
}
