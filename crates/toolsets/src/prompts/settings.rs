//! Settings of the prompts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::uri_paths;

/// Prompts that the server offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PromptSettings {
    /// Switch for all prompts. Default: true.
    pub enabled: bool,
    /// Switch for the built-in prompts. Default: true. A prompt in `folder` replaces the built-in
    /// one of the same name.
    pub shipped: bool,
    /// Folder of prompts, relative to the workspace, with one `NAME.md` each. It need not exist.
    /// Default: `.toolgate/prompts`.
    pub folder: String,
}

impl Default for PromptSettings {
    fn default() -> Self {
        Self { enabled: true, shipped: true, folder: ".toolgate/prompts".to_owned() }
    }
}

impl PromptSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// Describes the invalid setting and its fix.
    pub fn check(&self) -> Result<(), String> {
        uri_paths::check_folder("prompts.folder", &self.folder)
    }
}
