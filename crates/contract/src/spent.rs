//! The write budget of a caller.

use std::fmt;
use std::sync::Arc;

use crate::ToolError;

/// The write budget that a call draws from.
#[derive(Clone, Default)]
pub struct Spent(Option<Arc<dyn Purse>>);

/// A caller's remaining budget.
pub trait Purse: Send + Sync {
    /// Reserves `bytes` for a write.
    ///
    /// # Errors
    /// Fails if the caller has exceeded its rate. The error holds the time to wait.
    fn written(&self, bytes: u64) -> Result<(), ToolError>;
    /// Charges `bytes` that were already written, even beyond the budget.
    fn wrote(&self, bytes: u64);
}

impl Spent {
    /// Creates a budget that draws from `purse`.
    pub fn from(purse: Arc<dyn Purse>) -> Self {
        Self(Some(purse))
    }

    /// Creates an unlimited budget.
    pub fn none() -> Self {
        Self(None)
    }

    /// Reserves `bytes` for a write.
    ///
    /// # Errors
    /// Fails if the caller has exceeded its rate. Pass the error on with `?`.
    pub fn written(&self, bytes: u64) -> Result<(), ToolError> {
        self.0.as_ref().map_or(Ok(()), |purse| purse.written(bytes))
    }

    /// Charges `bytes` that were already written. If the size is unknown in advance, reserve 0
    /// bytes first.
    pub fn wrote(&self, bytes: u64) {
        if let Some(purse) = &self.0 {
            purse.wrote(bytes);
        }
    }
}

impl fmt::Debug for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spent")
    }
}
