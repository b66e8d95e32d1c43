//! Time that a call spent in each of its steps, such as validation and policy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Time that a call spent in each step of the gate, in microseconds. A failed call ended in the
/// last step that has a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallStepTimes {
    /// Time for finding the tool and validating the input, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validate: Option<u64>,
    /// Time for the policy decision, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorize: Option<u64>,
    /// Time for the confirmation by a person, if the policy requires one, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<u64>,
    /// Time for the tool's own checks before it runs, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare: Option<u64>,
    /// Time for checking limits and waiting for a free slot, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<u64>,
    /// Time for running the tool, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// Time for checking the output, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<u64>,
}

impl CallStepTimes {
    /// Returns the steps of the call in order, each with its name and its time in microseconds.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self { validate, authorize, confirm, prepare, wait, run, check } = *self;
        [
            ("validate", validate),
            ("authorize", authorize),
            ("confirm", confirm),
            ("prepare", prepare),
            ("wait", wait),
            ("run", run),
            ("check", check),
        ]
        .into_iter()
        .filter_map(|(name, time)| Some((name, time?)))
    }
}
