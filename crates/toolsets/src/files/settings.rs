//! Settings of the `files` toolset: size limits and protected names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use toolgate_world::WorkspaceOwnerSettings;

/// The prefix of an entry in the setting `protected` that removes a default name from the list.
pub const RELEASE: char = '!';

/// Limits and protected names of the `files` tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FileSettings {
    /// Names (or paths such as `.github/workflows`) that can be read but not changed, anywhere in
    /// the workspace. The list extends the default names, which are `.git`, the files of
    /// toolgate, and the settings of editors and agents: `.agents`, `.amazonq`, `.claude`,
    /// `.cline`, `.codex`, `.continue`, `.cursor`, `.devcontainer`, `.gemini`, `.idea`, `.junie`,
    /// `.kiro`, `.mcp.json`, `.opencode`, `opencode.json`, `.qwen`, `.roo`, `.toolgate`,
    /// `toolgate.lock`, `toolgate.toml`, `.vs`, `.vscode`, `.windsurf` and `.zed`. Patterns are not
    /// supported. The comparison ignores case, invisible characters, and trailing dots or spaces. A
    /// folder that contains `.git` or a name from this setting cannot be deleted, copied or moved.
    /// A folder that contains only other default names can be deleted, copied or moved with
    /// everything in it.
    ///
    /// An entry such as `!.vscode` removes a default name from this protection, unless the list
    /// also contains that name.
    pub protected: Vec<String>,
    /// Confirmation by a person before `files_delete` deletes a folder and everything in it.
    /// `when_able` asks if the client can ask a person, and otherwise deletes. `always` refuses to
    /// delete if the client cannot ask. `never` deletes without asking.
    pub confirm_folders: FolderDeleteConfirmation,
    /// Paths that are protected even if `protected` removes them from the list. A settings file
    /// cannot change them.
    #[serde(skip)]
    pub always_protected: Vec<String>,
    /// Paths of instructions for agents, such as skills, which are protected at the workspace root.
    /// A settings file cannot change them.
    #[serde(skip)]
    pub instructions: Vec<String>,
    /// Limits of size, which a settings file cannot change.
    #[serde(skip)]
    pub limits: FileToolLimits,
}

/// Size limits of the `files` tools.
///
/// The limits are constants, not settings. They exceed the needs of agents, and prevent one call
/// from delaying all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileToolLimits {
    /// The default maximum size of the file, diff or list of matches in one answer, in bytes. A
    /// call can set `max_bytes` instead. Default: 100 KiB.
    pub answer_bytes: u64,
    /// The highest `max_bytes` that a call may set, in bytes. Also the maximum size of a file that
    /// is read as a resource. Larger answers delay other calls. Default: 10 MiB.
    pub answer_bytes_max: u64,
    /// The maximum size of a file that is written or edited, in bytes. The file is held in memory.
    /// Default: 64 MiB.
    pub write_bytes_max: u64,
    /// The maximum number of bytes that one call may copy. Default: 4 GiB.
    pub copy_bytes_max: u64,
    /// The maximum size of a file whose etag is a hash of its content, in bytes. A larger file gets
    /// a weak etag made from its size and times, because hashing would take too long. Default: 64
    /// MiB.
    pub hashed_bytes_max: u64,
}

impl Default for FileToolLimits {
    fn default() -> Self {
        let WorkspaceOwnerSettings { hashed_bytes_max, .. } = WorkspaceOwnerSettings::default();
        Self {
            answer_bytes: 100 << 10,
            answer_bytes_max: 10 << 20,
            write_bytes_max: 64 << 20,
            copy_bytes_max: 4 << 30,
            hashed_bytes_max,
        }
    }
}

/// Confirmation before a folder is deleted with everything in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FolderDeleteConfirmation {
    /// Asks for confirmation if the client can ask; otherwise deletes without confirmation.
    #[default]
    WhenAble,
    /// Asks for confirmation, and refuses if the client cannot ask.
    Always,
    /// Never asks for confirmation.
    Never,
}

impl FileSettings {
    /// Protects `path`, relative to the workspace root, from changes, even if the setting
    /// `protected` excludes it.
    pub fn protect(&mut self, path: &str) {
        self.always_protected.push(path.to_owned());
    }

    /// Protects the instructions file at `path`, relative to the workspace root, but no files with
    /// its name in other folders. Does nothing if a protected name already covers `path`.
    pub fn protect_instructions(&mut self, path: &str) {
        let covered = self.protected_names();
        let mut parts = path.split('/');
        if !parts.any(|part| covered.iter().any(|name| name == part)) {
            self.instructions.push(path.to_owned());
        }
    }

    /// Returns all protected names: the defaults that the setting `protected` does not remove, the
    /// names that this setting adds, and the paths that are always protected.
    pub fn protected_names(&self) -> Vec<String> {
        self.rules().protected
    }

    /// Returns the rules that [`toolgate_world::Root`] enforces for these settings.
    pub(crate) fn rules(&self) -> WorkspaceOwnerSettings {
        let mut rules = WorkspaceOwnerSettings {
            hashed_bytes_max: self.limits.hashed_bytes_max,
            ..WorkspaceOwnerSettings::default()
        };
        let released = |name: &str| {
            self.protected.iter().any(|entry| entry.strip_prefix(RELEASE) == Some(name))
        };
        rules.protected.retain(|name| !released(name));
        let named = self.protected.iter().filter(|entry| !entry.starts_with(RELEASE));
        rules.protected.extend(named.chain(&self.always_protected).cloned());
        rules.protected_at_root.clone_from(&self.instructions);
        rules
    }
}
