//! Location of one server's entry in the text of a client's settings.

use std::path::Path;

use anyhow::ensure;
use serde_json::{Map, Value};

use super::{json_text, toml_text};

/// Byte order mark, which some editors write at the start of a file.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Location of one server's entry in a client's settings file.
#[derive(Clone, Copy)]
pub(super) struct ServerEntryLocation<'a> {
    pub(super) format: SettingsFormat,
    /// Key of the table of servers in the settings.
    pub(super) table: &'a str,
    /// Name of the server in the table of servers.
    pub(super) name: &'a str,
}

/// Format of a client's settings file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingsFormat {
    /// JSON with comments and trailing commas, as most clients write their settings.
    Json,
    Toml,
}

impl SettingsFormat {
    /// Returns the format of the settings file at `path`, which its extension determines.
    pub(super) fn of_file(path: &Path) -> Self {
        match path.extension().is_some_and(|it| it.eq_ignore_ascii_case("toml")) {
            true => Self::Toml,
            false => Self::Json,
        }
    }

    /// Parses the settings `text`, which must have no byte order mark. Fails if the text is
    /// invalid.
    fn parse(self, text: &str) -> anyhow::Result<Value> {
        match self {
            Self::Json => json_text::parse(text),
            Self::Toml => toml_text::parse(text),
        }
    }
}

impl ServerEntryLocation<'_> {
    /// Returns the server's entry in the settings `text`, if there is one.
    ///
    /// # Errors
    /// The text is invalid. The error names the line and the column.
    pub(super) fn entry(&self, text: &str) -> anyhow::Result<Option<Value>> {
        Ok(self.servers(text)?.remove(self.name))
    }

    /// Returns the entries of all servers in the settings `text`, by the server's name.
    ///
    /// # Errors
    /// The text is invalid. The error names the line and the column.
    pub(super) fn servers(&self, text: &str) -> anyhow::Result<Map<String, Value>> {
        let (_, text) = split_mark(text);
        Ok(match self.format.parse(text)?.get_mut(self.table).map(Value::take) {
            Some(Value::Object(servers)) => servers,
            Some(_) | None => Map::new(),
        })
    }

    /// Returns the settings `text` with `entry` as the server's entry.
    ///
    /// # Errors
    /// The text is invalid, the server's entry or its table has a value of another type, or the
    /// edit would also change other settings.
    pub(super) fn with_entry(&self, text: &str, entry: &Value) -> anyhow::Result<String> {
        let (mark, rest) = split_mark(text);
        let edited = match self.format {
            SettingsFormat::Json => json_text::set(rest, self.table, self.name, entry),
            SettingsFormat::Toml => toml_text::set(rest, self.table, self.name, entry),
        };
        let edited = format!("{mark}{}", edited?);
        let is_set = self.entry(&edited)?.as_ref() == Some(entry);
        ensure!(is_set && self.is_same_otherwise(text, &edited)?, OTHER_CHANGE);
        Ok(edited)
    }

    /// Returns the settings `text` without the server's entry.
    ///
    /// # Errors
    /// The text is invalid, or the edit would also change other settings.
    pub(super) fn without_entry(&self, text: &str) -> anyhow::Result<String> {
        if self.entry(text)?.is_none() {
            return Ok(text.to_owned());
        }
        let (mark, rest) = split_mark(text);
        let edited = match self.format {
            SettingsFormat::Json => json_text::remove(rest, self.table, self.name),
            SettingsFormat::Toml => toml_text::remove(rest, self.table, self.name),
        };
        let edited = format!("{mark}{}", edited?);
        let is_removed = self.entry(&edited)?.is_none();
        ensure!(is_removed && self.is_same_otherwise(text, &edited)?, OTHER_CHANGE);
        Ok(edited)
    }

    /// Returns true if the texts `one` and `other` contain the same settings apart from the
    /// server's entry.
    ///
    /// # Errors
    /// One of the texts is invalid.
    pub(super) fn is_same_otherwise(&self, one: &str, other: &str) -> anyhow::Result<bool> {
        Ok(self.settings_otherwise(one)? == self.settings_otherwise(other)?)
    }

    /// Returns true if `text` contains no settings except the server's entry.
    ///
    /// # Errors
    /// The text is invalid.
    pub(super) fn is_empty_otherwise(&self, text: &str) -> anyhow::Result<bool> {
        Ok(self.settings_otherwise(text)? == Value::Object(Map::new()))
    }

    /// Returns the settings in `text` without the server's entry, and without the table of servers
    /// if that entry was the only one. Fails if the text is invalid.
    fn settings_otherwise(&self, text: &str) -> anyhow::Result<Value> {
        let (_, text) = split_mark(text);
        let mut value = self.format.parse(text)?;
        if value.is_null() {
            value = Value::Object(Map::new());
        }
        if let Some(Value::Object(servers)) = value.get_mut(self.table) {
            servers.remove(self.name);
            if servers.is_empty()
                && let Some(settings) = value.as_object_mut()
            {
                settings.remove(self.table);
            }
        }
        Ok(value)
    }
}

/// Reason for refusing an edit that would change more than the server's entry.
const OTHER_CHANGE: &str = "the file cannot be edited without changing other parts of it";

/// Splits `text` into its byte order mark, which is empty if there is none, and the rest of the
/// text.
fn split_mark(text: &str) -> (&str, &str) {
    match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => (BYTE_ORDER_MARK, rest),
        None => ("", text),
    }
}

#[cfg(test)]
mod tests;
