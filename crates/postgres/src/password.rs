//! Password of a database, which is never printed.

use std::fmt;

/// A database password that `Debug` does not print, or `None` for no password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct DatabasePassword(Option<String>);

impl DatabasePassword {
    /// Returns the password for logging in to the database, if there is one.
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
