//! What whoever runs the server decides about its files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::world::Rules;

/// Limits and protected names of the `files` tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many bytes of a file, a diff or matches one answer holds unless the call asks for more.
    pub answer_bytes: u64,
    /// How many bytes of a file a call may ask for at most, with `max_bytes`. Other calls wait
    /// while an answer is written out, the longer the larger it is.
    pub answer_bytes_max: u64,
    /// How large a file can be written or edited.
    pub write_bytes_max: u64,
    /// How many bytes one call copies at most.
    pub copy_bytes_max: u64,
    /// Up to this size a file's etag is a hash of its content; beyond, a weak one of its size and times.
    pub hashed_bytes_max: u64,
    /// Names (or paths such as `.github/workflows`) that can be read and never changed, wherever
    /// in the workspace, besides the default ones: `.git`, `.mcp.json`, `.vscode`, `.idea`, `.claude`,
    /// `.codex`, `.cursor`, `.gemini`, `.toolgate`, `toolgate.toml` and `toolgate.lock`. No patterns. Compared without case, invisible
    /// characters and dots or blanks at the end. A folder that contains a `.git`, or one
    /// of these that is no default name, is not deleted, copied or moved either; the other default
    /// names go along with the folder they are in.
    pub protected: Vec<String>,
    /// Default names that are not protected after all. What `protected` names stays so.
    pub unprotected: Vec<String>,
    /// Whether a person is asked before `files_delete` deletes a folder with all in it.
    pub confirm_folders: ConfirmFolders,
}

/// Whether a person is asked before a folder is deleted with all in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfirmFolders {
    /// They are asked if the client can ask them; else it is deleted without.
    #[default]
    WhenAble,
    /// They are asked; it is not deleted where the client cannot ask them.
    Always,
    /// They are not asked.
    Never,
}

impl Default for Settings {
    fn default() -> Self {
        let Rules { protected: _, hashed_bytes_max } = Rules::default();
        Self {
            answer_bytes: 100 << 10,
            answer_bytes_max: 4 << 20,
            write_bytes_max: 64 << 20,
            copy_bytes_max: 4 << 30,
            hashed_bytes_max,
            protected: Vec::new(),
            unprotected: Vec::new(),
            confirm_folders: ConfirmFolders::default(),
        }
    }
}

impl Settings {
    /// Protects `path`, relative to the workspace root, whatever else these say.
    pub fn protect(&mut self, path: &str) {
        self.protected.push(path.to_owned());
    }

    /// All that is protected.
    pub fn all_protected(&self) -> Vec<String> {
        self.rules().protected
    }

    /// The part of these that the root itself keeps.
    pub(crate) fn rules(&self) -> Rules {
        let mut rules = Rules { hashed_bytes_max: self.hashed_bytes_max, ..Rules::default() };
        rules.protected.retain(|name| !self.unprotected.contains(name));
        rules.protected.extend_from_slice(&self.protected);
        rules
    }
}
