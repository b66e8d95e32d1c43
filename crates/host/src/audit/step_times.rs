//! Time that a call spent in each step of the gate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Time that a call spent in each step, in microseconds. A call that failed ended in the last step
/// with a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepTimes {
    /// Finding the tool and validating the input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validate: Option<u64>,
    /// Policy decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorize: Option<u64>,
    /// Confirmation by a person, if the policy requires one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<u64>,
    /// Checks of the tool itself before it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare: Option<u64>,
    /// Limits, and the wait for a free slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<u64>,
    /// Run of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// Check of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<u64>,
}

impl StepTimes {
    /// Returns the steps in order, each with its name and its time in microseconds.
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
