//! Settings of the `exec` toolset.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rules and limits for running programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecSettings {
    /// Programs that may be run, by name or absolute path. An empty list (the default) allows any
    /// program. A program is identified by its file, not by its spelling: `/tmp/ls` is not `ls`.
    /// Calls can run shell scripts only if the list is empty or contains `sh`.
    pub allow: Vec<String>,
    /// Programs that `exec_run` runs only after a person has confirmed the call. Give a name or an
    /// absolute path, optionally with first arguments: `rm`, `git push`. The list is empty by
    /// default.
    ///
    /// toolgate treats a symlink as the program that the symlink leads to. toolgate compares only
    /// the started program and its first arguments. For example, `git -C x push` does not match
    /// `git push`, and commands inside a script are not checked. To confirm all commands of git or
    /// all scripts, list `git` or `sh` itself. If the client cannot ask a person, the program is
    /// not run.
    pub confirm: Vec<String>,
    /// Names of the server's environment variables that are passed to programs. Default: `HOME`,
    /// `LANG`, `TERM`, `TMPDIR` and `USER`.
    pub env_keep: Vec<String>,
    /// Limits of stored output, which a settings file cannot change.
    #[serde(skip)]
    pub stored_output: StoredOutputLimits,
}

/// Limits for program output that is stored on disk for `exec_output`.
///
/// The limits are constants, not settings. Agents read stored output soon or never, and more stored
/// output could fill a small disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOutputLimits {
    /// The maximum number of bytes that are stored of each output stream. Default: 64 MiB.
    pub stream_bytes_max: u64,
    /// The maximum number of programs whose cut output is stored. Default: 16.
    pub runs_max: usize,
    /// The maximum number of bytes of all stored outputs together. Default: 512 MiB.
    pub bytes_max: u64,
}

impl Default for StoredOutputLimits {
    fn default() -> Self {
        Self { stream_bytes_max: 64 << 20, runs_max: 16, bytes_max: 512 << 20 }
    }
}

impl Default for ExecSettings {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            confirm: Vec::new(),
            env_keep: ["HOME", "LANG", "TERM", "TMPDIR", "USER"].map(str::to_owned).into(),
            stored_output: StoredOutputLimits::default(),
        }
    }
}
