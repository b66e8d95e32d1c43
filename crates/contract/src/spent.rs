//! What a call takes of what its caller may take in bulk.

use std::fmt;
use std::sync::Arc;

use crate::ToolError;

/// Where a tool says what it takes, before it takes it.
#[derive(Clone, Default)]
pub struct Spent(Option<Arc<dyn Purse>>);

/// What a caller has left.
pub trait Purse: Send + Sync {
    /// Takes room for `bytes` that are about to be written.
    ///
    /// # Errors
    /// When the caller has written too much of late, with how long to wait.
    fn written(&self, bytes: u64) -> Result<(), ToolError>;
    /// Takes `bytes` that were written already, be there room or not.
    fn wrote(&self, bytes: u64);
}

impl Spent {
    /// Takes from `purse`.
    pub fn from(purse: Arc<dyn Purse>) -> Self {
        Self(Some(purse))
    }

    /// Takes from nobody, and is never refused.
    pub fn none() -> Self {
        Self(None)
    }

    /// Says that `bytes` are about to be written.
    ///
    /// # Errors
    /// When the caller has written too much of late; to be passed on with `?`.
    pub fn written(&self, bytes: u64) -> Result<(), ToolError> {
        self.0.as_ref().map_or(Ok(()), |purse| purse.written(bytes))
    }

    /// Says that `bytes` were written, for what is not known before: ask for room for none first.
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
