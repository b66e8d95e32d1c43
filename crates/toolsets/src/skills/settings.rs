//! Settings of the skills.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::uri_paths;

/// Skills that the server offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SkillSettings {
    /// Folders of skills, relative to the workspace. Each skill is a folder with a `SKILL.md`. The
    /// folders need not exist. If two skills have the same path, the first folder in the list wins.
    /// An empty list turns all skills off, also the built-in one, which teaches an agent to use
    /// toolgate. Default: `skills`, `.claude/skills`, `.agents/skills` and `.toolgate/skills`.
    pub folders: Vec<String>,
}

impl Default for SkillSettings {
    fn default() -> Self {
        let folders = ["skills", ".claude/skills", ".agents/skills", ".toolgate/skills"];
        Self { folders: folders.map(str::to_owned).to_vec() }
    }
}

impl SkillSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// Describes the first invalid setting and its fix.
    pub fn check(&self) -> Result<(), String> {
        self.folders.iter().try_for_each(|folder| uri_paths::check_folder("skills.folders", folder))
    }
}
