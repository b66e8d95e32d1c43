//! What whoever runs the server decides about skills.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::places;

/// Which skills are offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether any are offered.
    pub enabled: bool,
    /// Whether the one that comes with toolgate, and tells an agent how to use it, is offered.
    pub shipped: bool,
    /// Folders of the workspace that hold skills, each a folder with a `SKILL.md`. They need not be
    /// there. Of two skills at the same path the one in the folder named first counts.
    pub folders: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let folders = ["skills", ".claude/skills", ".agents/skills", ".toolgate/skills"];
        Self { enabled: true, shipped: true, folders: folders.map(str::to_owned).to_vec() }
    }
}

impl Settings {
    /// What is wrong with these, and what to do.
    pub fn check(&self) -> Result<(), String> {
        self.folders.iter().try_for_each(|folder| places::check_folder("skills.folders", folder))
    }
}
