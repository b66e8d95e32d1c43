//! Settings of the prompts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::uri_paths;

/// Prompts that the server offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PromptSettings {
    /// Folder of prompts, relative to the workspace, with one `NAME.md` for each prompt. The folder
    /// need not exist. A prompt in this folder replaces the built-in prompt with the same name.
    /// `off` turns off all prompts, including the built-in ones. Default: `.toolgate/prompts`.
    pub folder: String,
    /// Permission for tools and programs to write in the folder of prompts. By default, only git
    /// may write in this folder, when it checks out committed prompts. A folder in `.toolgate`
    /// stays protected until `files.protected` releases that name, too.
    pub writable: bool,
}

impl Default for PromptSettings {
    fn default() -> Self {
        Self { folder: ".toolgate/prompts".to_owned(), writable: false }
    }
}

impl PromptSettings {
    /// Checks the settings of prompts.
    ///
    /// # Errors
    /// Fails if a setting is invalid. The error names the setting and its fix.
    pub fn check(&self) -> Result<(), String> {
        match self.folder() {
            Some(folder) => uri_paths::check_folder("prompts.folder", folder),
            None => Ok(()),
        }
    }

    /// Returns the path of the folder of prompts. Returns `None` if prompts are switched off.
    pub fn folder(&self) -> Option<&str> {
        Some(self.folder.as_str()).filter(|folder| *folder != "off")
    }
}
