//! Threads for validations that may take long.

use std::time::Duration;

use serde_json::Value;
use toolgate_budget::{BlockingWorkPool, WorkPoolError};
use toolgate_contract::{CallError, ValidationProblem, has_json_values_at_most};

use super::ToolSchemaDirection;

/// Maximum number of values that are validated at the same time on the pool's threads.
const VALIDATIONS_MAX: usize = 8;
/// Maximum time for the validation of one value.
const VALIDATION_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of nested values in a value that is validated on the thread that serves the call,
/// if the schema is this server's own.
const SMALL_VALUES_MAX: u64 = 5_000;

/// Creates the pool of threads for validations that take long.
pub(super) fn new_pool() -> BlockingWorkPool {
    BlockingWorkPool::new(VALIDATIONS_MAX, VALIDATION_TIME_MAX)
}

/// Returns true if `value` has so few nested values that validation by a schema of this server
/// takes little time.
pub(super) fn is_small(value: &Value) -> bool {
    has_json_values_at_most(value, &mut { SMALL_VALUES_MAX })
}

/// Returns the error of a call whose input or output was not validated.
pub(super) fn validation_refusal(side: ToolSchemaDirection, refusal: WorkPoolError) -> CallError {
    let seconds = VALIDATION_TIME_MAX.as_secs();
    let message = match refusal {
        WorkPoolError::TimedOut => {
            format!("validating it against its schema takes more than {seconds} s")
        }
        WorkPoolError::Busy => {
            format!("too many other values are being validated for {seconds} s; try again later")
        }
    };
    let problems = vec![ValidationProblem { pointer: String::new(), message }];
    match side {
        ToolSchemaDirection::Input => CallError::InvalidInput { problems },
        ToolSchemaDirection::Output => CallError::InvalidOutput { problems },
    }
}
