//! Number of bytes that a caller may still write.

use std::fmt;
use std::sync::Arc;

use crate::ToolError;

/// The number of bytes that a call's caller may still write. Each write is deducted.
#[derive(Clone, Default)]
pub struct WriteBudget(Option<Arc<dyn WriteRateBudget>>);

/// A budget of bytes that a caller may still write. It refills over time.
pub trait WriteRateBudget: Send + Sync {
    /// Reserves `bytes` of the budget for a write.
    ///
    /// # Errors
    /// Fails if the caller has exceeded its rate. The error holds the time to wait.
    fn reserve(&self, bytes: u64) -> Result<(), ToolError>;
    /// Deducts `bytes` that were already written, even beyond the budget.
    fn charge(&self, bytes: u64);
}

impl WriteBudget {
    /// Creates a write budget for one call that draws from `budget`.
    pub fn new(budget: Arc<dyn WriteRateBudget>) -> Self {
        Self(Some(budget))
    }

    /// Creates a write budget without a limit.
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// Reserves `bytes` of the caller's budget for a write.
    ///
    /// # Errors
    /// Fails if the caller has exceeded its rate. Pass the error on with `?`.
    pub fn reserve(&self, bytes: u64) -> Result<(), ToolError> {
        self.0.as_ref().map_or(Ok(()), |budget| budget.reserve(bytes))
    }

    /// Deducts `bytes` that were already written. If the size is unknown in advance, reserve 0
    /// bytes first.
    pub fn charge(&self, bytes: u64) {
        if let Some(budget) = &self.0 {
            budget.charge(bytes);
        }
    }
}

impl fmt::Debug for WriteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spent")
    }
}
