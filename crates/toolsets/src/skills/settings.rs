//! Settings of the skills.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::uri_paths;

/// Skills that the server offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SkillSettings {
    /// Folders of skills, relative to the workspace. Each skill is a folder with a `SKILL.md`. The
    /// folders need not exist. If two skills have the same path, toolgate uses the one in the first
    /// folder of the list. An empty list turns off all skills, including the built-in one, which
    /// teaches an agent to use toolgate. Default: `skills`, `.claude/skills`, `.agents/skills` and
    /// `.toolgate/skills`.
    pub folders: Vec<String>,
    /// Permission for tools and programs to write in the folders of skills at the top of the
    /// workspace. By default, only git may write in these folders, when it checks out committed
    /// skills, because agents of all callers follow skills. The folders in `.claude`, `.agents` and
    /// `.toolgate` stay protected until `files.protected` releases those names, too.
    pub writable: bool,
}

impl Default for SkillSettings {
    fn default() -> Self {
        let folders = ["skills", ".claude/skills", ".agents/skills", ".toolgate/skills"];
        Self { folders: folders.map(str::to_owned).to_vec(), writable: false }
    }
}

impl SkillSettings {
    /// Checks the settings of skills.
    ///
    /// # Errors
    /// Fails if a setting is invalid. The error names the first such setting and its fix.
    pub fn check(&self) -> Result<(), String> {
        self.folders.iter().try_for_each(|folder| uri_paths::check_folder("skills.folders", folder))
    }
}
