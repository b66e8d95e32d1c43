//! What the owner of the server decides about running programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How programs are run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The programs that may be run, by name or by absolute path; empty allows any. A
    /// program is told by its file, not by its spelling: `/tmp/ls` is not `ls`.
    pub allow: Vec<String>,
    /// The programs that `exec_run` runs only once a person has agreed, each time: by name or by
    /// absolute path, perhaps with the arguments they must begin with: `rm`, `git push`. A symlink
    /// counts as what it leads to, too. Only the program that is started and its first arguments
    /// are looked at: `git -C x push` is no `git push`, and what a script runs is not seen; name
    /// `git` or `sh` itself to be asked about those. Where the client cannot ask a person such a
    /// program is not run.
    pub confirm: Vec<String>,
    /// Whether a call may set `shell: true`. With `allow`, `sh` must be in it too. Where it is
    /// false only that is refused: `sh -c` still runs, unless `allow` leaves shells out.
    pub shell: bool,
    /// Where programs are sought, as in `PATH`; by default in the server's own.
    pub path: Option<String>,
    /// The variables of the server's own environment that programs get.
    pub env_keep: Vec<String>,
    /// Whether a call may set `PATH` for the program it runs.
    pub env_path: bool,
    /// How long a program may run when the call does not say, at most 600000.
    pub timeout_ms: u64,
    /// How long a program that is asked to stop may go on before it is killed, at most 5000.
    pub grace_ms: u64,
    /// How much of each stream a result shows when the call does not say.
    pub output_bytes: usize,
    /// How much of each stream a result can show.
    pub output_bytes_max: usize,
    /// How much of each stream is kept on disk to be read with `exec_output`.
    pub spool_bytes_max: u64,
    /// How many cut outputs are kept.
    pub kept_runs_max: usize,
    /// How much of them is kept on disk together.
    pub kept_bytes_max: u64,
}

impl Default for Settings {
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
