//! What the owner of the server decides about confining programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What programs that tools start can see, write and reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What programs may do where no `[[sandbox.for]]` says otherwise.
    pub profile: Profile,
    /// Whether a program is run where this system lacks a part of what its profile promises.
    pub require: Require,
    /// Further files and folders that programs may read, by absolute path: a toolchain, a cache.
    pub read: Vec<String>,
    /// Further folders that programs may write, by absolute path.
    pub write: Vec<String>,
    /// Whether programs may use sockets that are files. Those in the workspace and in what `read`
    /// and `write` name may belong to programs that are not confined.
    pub unix_sockets: bool,
    /// How much memory each run may take, in bytes; 0 is half of the machine's.
    pub memory_bytes: u64,
    /// How many processes and threads each run may have.
    pub processes: u64,
    /// Other profiles for some tools, a table `[[sandbox.for]]` each; the first that matches counts.
    #[serde(rename = "for")]
    pub rules: Vec<For>,
}

/// What the programs of some tools may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct For {
    /// Which tools, as a pattern of their ids: `ci.restore`, `git.*`.
    pub tools: String,
    /// What their programs may do.
    pub profile: Profile,
}

/// What a program may do, the least first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// It reads the workspace and the system's programs, writes nothing that lasts, and reaches no
    /// network.
    ReadOnly,
    /// The same, and it writes the workspace.
    Workspace,
    /// The same, in the machine's own network.
    Network,
    /// Whatever the server itself may do.
    Off,
}

/// What to do where a profile cannot be had whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Require {
    /// Programs run with what there is, and results say what is missing.
    Best,
    /// Programs are not run.
    Strict,
}

impl Profile {
    /// Its name, as settings and results have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Workspace => "workspace",
            Self::Network => "network",
            Self::Off => "off",
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            profile: Profile::Off,
            require: Require::Best,
            read: Vec::new(),
            write: Vec::new(),
            unix_sockets: false,
            memory_bytes: 0,
            processes: 1024,
            rules: Vec::new(),
        }
    }
}
