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
    /// Whether programs may write the workspace's `.git`, whose configuration and hooks name what
    /// git runs later, outside. Git's own tools may, whatever is said here.
    pub git: GitFolder,
    /// How much memory each run may take, in bytes; 0 is half of the machine's.
    pub memory_bytes: u64,
    /// How many processes and threads each run may have.
    pub processes: u64,
    /// How much of the processors each run may take: 100 is all of one, 0 is no bound. Where others want them, too, a run comes after the server, whatever is said here.
    pub cpu_percent: u64,
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

/// What programs may do with the workspace's `.git`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GitFolder {
    /// Read it.
    Read,
    /// Write it, too.
    Write,
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

impl Profile {
    /// What a program may do, in a few words.
    pub fn does(self) -> &'static str {
        match self {
            Self::ReadOnly => {
                "reads the workspace and the system's programs, writes nothing that lasts"
            }
            Self::Workspace => "reads and writes the workspace, and reaches no network",
            Self::Network => "reads and writes the workspace, in the machine's own network",
            Self::Off => "does whatever the server may",
        }
    }
}

/// Of a processor, in hundredths, at most: more than any machine has.
const CPU_PERCENT_MAX: u64 = 1_000_000;

impl Settings {
    /// Whether they can be kept.
    ///
    /// # Errors
    /// What is wrong, and what may stand there.
    pub fn check(&self) -> Result<(), String> {
        for (name, paths) in [("read", &self.read), ("write", &self.write)] {
            for path in paths {
                let rest = path.strip_prefix("~/").or(path.strip_prefix('/')).unwrap_or_default();
                let is_plain = rest.split('/').all(|part| part != "..");
                if rest.trim_matches('/').is_empty() || !is_plain {
                    return Err(format!(
                        "sandbox.{name} has `{path}`; it may have absolute paths without `..`, or \
                         ones that begin with `~/`, and not the root of all"
                    ));
                }
            }
        }
        if !(8..=1_000_000).contains(&self.processes) {
            return Err(format!("sandbox.processes is {}; it may be 8 to 1000000", self.processes));
        }
        if self.cpu_percent > CPU_PERCENT_MAX {
            return Err(format!(
                "sandbox.cpu_percent is {}; it may be 0 to {CPU_PERCENT_MAX}",
                self.cpu_percent
            ));
        }
        const LEAST: u64 = 16 << 20;
        if self.memory_bytes != 0 && self.memory_bytes < LEAST {
            return Err(format!(
                "sandbox.memory_bytes is {}; it may be 0, for half of the machine's, or {LEAST} and more",
                self.memory_bytes
            ));
        }
        Ok(())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            profile: Profile::Workspace,
            require: Require::Best,
            read: Vec::new(),
            write: Vec::new(),
            unix_sockets: false,
            git: GitFolder::Read,
            memory_bytes: 0,
            processes: 1024,
            cpu_percent: 0,
            rules: Vec::new(),
        }
    }
}
