//! Settings of the `exec` toolset.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rules and limits for running programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecSettings {
    /// Programs that may be run, by name or absolute path. An empty list (the default) allows any.
    /// A program is identified by its file, not by its spelling: `/tmp/ls` is not `ls`.
    pub allow: Vec<String>,
    /// Programs that `exec_run` runs only after a person confirms, each time. Give a name or an
    /// absolute path, optionally with first arguments: `rm`, `git push`. Empty by default.
    ///
    /// Symlinks are resolved as well. Only the started program and its first arguments are matched.
    /// For example, `git -C x push` does not match `git push`, and commands inside a script are not
    /// checked. List `git` or `sh` itself to confirm those. If the client cannot ask a person, the
    /// program is not run.
    pub confirm: Vec<String>,
    /// Permission for calls to set `shell: true`. Default: true. If `allow` is set, it must also
    /// contain `sh`. If false, `sh -c` still runs unless `allow` excludes shells.
    pub shell: bool,
    /// Folders in which programs are looked up, in the format of `PATH`. Default: the server's own
    /// `PATH`.
    pub path: Option<String>,
    /// Names of the server's environment variables that are passed to programs. Default: `HOME`,
    /// `LANG`, `TERM`, `TMPDIR` and `USER`.
    pub env_keep: Vec<String>,
    /// Permission for calls to set `PATH` for the program. Default: false.
    pub env_path: bool,
    /// Timeout of a program in milliseconds, if the call does not set one. Default: 60000. Maximum:
    /// 600000.
    pub timeout_ms: u64,
    /// Milliseconds between asking a program to stop and killing it. Default: 500. Maximum: 5000.
    pub grace_ms: u64,
    /// Bytes of each output stream that a result shows, if the call does not set a number. Default:
    /// 32768.
    pub output_bytes: usize,
    /// Most bytes of each output stream that a call may request in a result. Default: 1048576.
    pub output_bytes_max: usize,
    /// Most bytes of each output stream that are stored on disk for `exec_output`. Default:
    /// 67108864 (64 MiB).
    pub spool_bytes_max: u64,
    /// Number of cut outputs that are stored. Default: 16.
    pub kept_runs_max: usize,
    /// Most bytes of all stored outputs on disk together. Default: 536870912 (512 MiB).
    pub kept_bytes_max: u64,
}

impl Default for ExecSettings {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            confirm: Vec::new(),
            shell: true,
            path: None,
            env_keep: ["HOME", "LANG", "TERM", "TMPDIR", "USER"].map(str::to_owned).into(),
            env_path: false,
            timeout_ms: 60_000,
            grace_ms: 500,
            output_bytes: 32 << 10,
            output_bytes_max: 1 << 20,
            spool_bytes_max: 64 << 20,
            kept_runs_max: 16,
            kept_bytes_max: 512 << 20,
        }
    }
}
