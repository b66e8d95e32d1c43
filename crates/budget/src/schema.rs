//! JSON Schemas from untrusted sources: their size, their patterns, and the cost of validation.

mod patterns;
mod size;

use jsonschema::{Keyword, PatternOptions, ValidationError, ValidationOptions, Validator};
use serde_json::Value;
use toolgate_contract::has_json_values_at_most;

use crate::memory::{MemoryBudget, MemoryReservation};
use patterns::{BoundedRegexPattern, DFA_BYTES_MAX, NAME_STEPS_MAX, forget_unfinished};
pub use size::SchemaSize;

/// Maximum number of comparisons of a value with parts of a JSON schema in one validation.
const COMPARISONS_MAX: u64 = 1_000_000_000;
/// Maximum number of paths through a schema that are searched for the location of an error.
const SEARCH_PATHS_MAX: u64 = 100_000;
/// Memory that one compiled subschema takes, in bytes.
const SUBSCHEMA_BYTES: u64 = 1 << 10;
/// Memory that one error of a validation takes, in bytes.
const ERROR_BYTES: u64 = 400;
/// Maximum number of backtracks of a pattern with look-around in a match with a property name.
const NAME_BACKTRACKS_MAX: usize = 2_000;
/// Longest property name that is matched against a pattern with look-around, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// Maximum number of matches of property names against patterns with look-around in one validation.
const NAME_MATCHES_MAX: u64 = 4_096;

/// A compiled JSON schema that validates a value only at a bounded cost.
#[derive(Debug)]
pub struct BoundedSchemaValidator {
    validator: Validator,
    size: SchemaSize,
    /// Reservation of the memory that the compiled schema uses.
    _memory: MemoryReservation,
}

/// Size of a JSON value: the number of its values, its depth, and the number and length of its
/// property names.
#[derive(Debug, Clone, Copy, Default)]
struct JsonValueSize {
    values: u64,
    depth: u32,
    names: u64,
    name_bytes: u64,
    longest_name: usize,
}

impl BoundedSchemaValidator {
    /// Compiles the JSON schema `schema` with `options` and with limits for its patterns. `size` is
    /// the measured size of `schema`. Reserves memory in `account`.
    ///
    /// # Errors
    /// Fails if the schema is invalid or no memory is left.
    pub fn compile(
        schema: &Value,
        size: &SchemaSize,
        options: ValidationOptions<'_>,
        account: &MemoryBudget,
    ) -> Result<Self, String> {
        let bytes = size.compiled.saturating_mul(SUBSCHEMA_BYTES) + size.patterns.bytes;
        let memory = account.try_take(bytes).ok_or(
            "the server has no memory left for schemas; remove upstreams or schemas that you do \
             not need",
        )?;
        let limits = PatternOptions::fancy_regex()
            .backtrack_limit(NAME_BACKTRACKS_MAX)
            .size_limit(size.patterns.size_limit())
            .dfa_size_limit(DFA_BYTES_MAX);
        let built = options
            .with_pattern_options(limits)
            .with_keyword("pattern", |_, pattern, _| {
                let pattern = pattern.as_str().unwrap_or_default();
                let compiled =
                    BoundedRegexPattern::compile(pattern).map_err(ValidationError::custom)?;
                Ok(Box::new(compiled) as Box<dyn for<'i> Keyword<'i>>)
            })
            .build(schema);
        let validator = built.map_err(|err| err.to_string())?;
        Ok(Self { validator, size: size.clone(), _memory: memory })
    }

    /// Returns true if `value` matches the schema. A text counts as invalid if its match with a
    /// pattern exceeds a limit, even inside a `not`. Inside a `not`, [`errors`](Self::errors) does
    /// not report it.
    ///
    /// # Errors
    /// Describes why the check would cost too much.
    #[inline]
    pub fn check(&self, value: &Value) -> Result<bool, String> {
        self.check_cost(&JsonValueSize::measure(value))?;
        forget_unfinished();
        let is_valid = self.validator.is_valid(value);
        Ok(is_valid && !forget_unfinished())
    }

    /// Returns true if [`check`](Self::check) of `value` needs no patterns and at most
    /// `comparisons_max` comparisons.
    #[inline]
    pub fn is_cheap_for(&self, value: &Value, comparisons_max: u64) -> bool {
        let values_max = comparisons_max / self.size.weight.max(1);
        self.size.patterns.count == 0 && has_json_values_at_most(value, &mut { values_max })
    }

    /// Returns true if a pattern (regular expression) of the schema has look-around or
    /// back-references, so that a match may take many steps.
    #[inline]
    pub fn may_backtrack(&self) -> bool {
        self.size.patterns.backtracks
    }

    /// Returns the violations of the schema by `value`. Returns only the first violation if
    /// `account` has no memory for all that are possible, and `None` if a search for them would
    /// cost too much.
    ///
    /// All errors are in memory at once, about 400 bytes each. The iterator keeps this memory
    /// reserved.
    pub fn errors<'v>(
        &'v self,
        value: &'v Value,
        account: &MemoryBudget,
    ) -> Option<Box<dyn Iterator<Item = ValidationError<'v>> + 'v>> {
        let size = JsonValueSize::measure(value);
        self.check_cost(&size).ok()?;
        let paths = self.size.back_references.checked_pow(size.depth);
        if paths.is_none_or(|paths| paths > SEARCH_PATHS_MAX) {
            return None;
        }
        let bytes = size.values.saturating_mul(self.size.weight).saturating_mul(ERROR_BYTES);
        if let Some(memory) = account.try_take(bytes) {
            let errors = self.validator.iter_errors(value);
            return Some(Box::new(errors.inspect(move |_| {
                let _ = &memory;
            })));
        }
        // An error of a choice contains the errors of all its branches.
        if self.size.has_choices {
            return None;
        }
        Some(Box::new(self.validator.validate(value).err().into_iter()))
    }

    /// Returns the validator. Use it only for values that passed [`check`](Self::check).
    pub fn validator(&self) -> &Validator {
        &self.validator
    }

    #[inline]
    fn check_cost(&self, value: &JsonValueSize) -> Result<(), String> {
        let comparisons = value.values.saturating_mul(self.size.weight);
        if comparisons > COMPARISONS_MAX {
            return Err(format!(
                "it has too many parts to be validated ({} values, each against up to {} parts of \
                 the schema); send less at once",
                value.values, self.size.weight
            ));
        }
        let patterns = &self.size.patterns;
        let matches = value.names.saturating_mul(patterns.backtracking_names);
        if patterns.backtracking_names > 0
            && (value.longest_name > NAME_BYTES_MAX || matches > NAME_MATCHES_MAX)
        {
            return Err(format!(
                "the value has too many or too long property names to be matched against patterns \
                 with \
                 look-around; a name may have {NAME_BYTES_MAX} bytes"
            ));
        }
        if value.name_bytes.saturating_mul(patterns.name_states) > NAME_STEPS_MAX {
            return Err(
                "the value has property names that are too long to be matched against the \
                 patterns of \
                        the schema"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

impl JsonValueSize {
    /// Measures the JSON `value`, whose depth the parser has limited.
    #[inline]
    fn measure(value: &Value) -> Self {
        let mut size = Self::default();
        size.add(value, 0);
        size
    }

    #[inline]
    fn add(&mut self, value: &Value, depth: u32) {
        self.values += 1;
        match value {
            Value::Array(items) => {
                self.depth = self.depth.max(depth + 1);
                items.iter().for_each(|item| self.add(item, depth + 1));
            }
            Value::Object(fields) => {
                self.depth = self.depth.max(depth + 1);
                for (name, field) in fields {
                    self.names += 1;
                    self.name_bytes += name.len() as u64;
                    self.longest_name = self.longest_name.max(name.len());
                    self.add(field, depth + 1);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
