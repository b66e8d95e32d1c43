//! The form of results, for protocols that have several.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The form in which MCP clients get the results of this server's own tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolResultFormat {
    /// A single block of text, written for a model.
    #[default]
    Text,
    /// The structured value, for programs. A result without a structured value is text.
    Structured,
    /// The text and the structured value. Notes about the text, such as its etag, are in a separate
    /// text block.
    Both,
}

impl ToolResultFormat {
    /// Returns the result format with the name `name`, or `None` if no format has this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "structured" => Some(Self::Structured),
            "both" => Some(Self::Both),
            _ => None,
        }
    }

    /// Returns true if results in this format contain their structured value.
    pub fn has_structure(self) -> bool {
        matches!(self, Self::Structured | Self::Both)
    }
}
