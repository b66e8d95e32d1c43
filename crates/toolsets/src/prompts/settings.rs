//! What whoever runs the server decides about prompts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::places;

/// Which prompts are offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether any are offered.
    pub enabled: bool,
    /// Whether those that come with toolgate are offered. One in the folder that has the name of
    /// one of them takes its place.
    pub shipped: bool,
    /// The folder of the workspace that holds prompts, one `NAME.md` each; it need not be there.
    pub folder: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { enabled: true, shipped: true, folder: ".toolgate/prompts".to_owned() }
    }
}

impl Settings {
    /// What is wrong with these, and what to do.
    pub fn check(&self) -> Result<(), String> {
        places::check_folder("prompts.folder", &self.folder)
    }
}
