//! Password of a database, which is never printed.

use std::fmt;

/// A password that `Debug` does not print, or none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct DatabasePassword(Option<String>);

impl DatabasePassword {
    /// Returns the password for logging in to the database.
    pub fn expose(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl From<&str> for DatabasePassword {
    fn from(text: &str) -> Self {
        Self(Some(text.to_owned()).filter(|it| !it.is_empty()))
    }
}

impl fmt::Debug for DatabasePassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "[redacted]" } else { "none" })
    }
}
