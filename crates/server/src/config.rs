//! Every setting: its default, its environment variable, its meaning. Read once, at start.
mod load;
mod setting;

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_host::OutputCheck;
use toolgate_toolsets::{assets, commands, exec, files, prompts, skills};

pub(crate) use load::state_folder;
pub use load::{Loaded, check_listen, environment, load};
pub use setting::{reference, schema};

/// The file's name, in the folder that is served.
pub const FILE_NAME: &str = "toolgate.toml";

/// The settings of one toolgate.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where and how HTTP is served.
    pub server: Server,
    /// Which tools are offered.
    pub tools: Tools,
    /// How much may go on at once, how large and how long.
    pub limits: Limits,
    /// How the output of tools is checked.
    pub validation: Validation,
    /// Where the record of each call goes.
    pub audit: Audit,
    /// What is logged on standard error.
    pub log: Log,
    /// The tools that read and write files.
    pub files: files::Settings,
    /// The tools that run programs.
    pub exec: exec::Settings,
    /// Command lines made tools: where their packs are.
    pub commands: commands::Settings,
    /// Command lines made tools, each a table `[command."stage.name"]`.
    pub command: commands::Tables,
    /// Calls whose outcome is collected later.
    pub jobs: Jobs,
    /// What can be read beside what can be called.
    pub resources: Resources,
    /// Words that a person chooses and an agent starts from.
    pub prompts: prompts::Settings,
    /// Folders that tell an agent how to do something well.
    pub skills: skills::Settings,
    /// JSON schemas and examples that can be read.
    pub assets: assets::Settings,
    /// The file itself, so that what is wrong with a command is told with its line.
    #[serde(skip)]
    pub source: Option<commands::Source>,
}

/// Where and how HTTP is served.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// The address to listen at. Loopback only: callers elsewhere would need credentials.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Further names, as a `Host` header writes them (`tools.example:8443`), under which this server is reached.
    pub allowed_hosts: Vec<String>,
    /// Pages that may call this server, as an `Origin` header writes them (`https://app.example`).
    pub allowed_origins: Vec<String>,
    /// The most connections at once; more wait to be accepted.
    pub connections_max: usize,
    /// The most MCP sessions at once (revisions before 2026-07-28); for one more, the one silent for longest ends.
    pub sessions_max: usize,
    /// How long headers may take to arrive and a connection may idle, in milliseconds.
    pub head_time_ms: u64,
    /// How long a body may take to arrive, in milliseconds.
    pub body_time_ms: u64,
    /// How long a client may take to read the next piece of an answer, in milliseconds.
    pub write_time_ms: u64,
    /// After how long a call that is not answered yet is answered by an event stream, in milliseconds.
    pub stream_after_ms: u64,
    /// How often a quiet event stream says that it lives, in milliseconds.
    pub keep_alive_ms: u64,
    /// How long calls in flight may take to finish once the server is told to stop, in milliseconds.
    pub drain_ms: u64,
    /// Whether clients of 2024-11-05 are served over HTTP too, at `/sse` and `/messages`.
    pub http_sse: bool,
    /// A name all over the world, e.g. `com.example/tools`, under which the server says who it is at `/mcp/server-card` and `/.well-known/ai-catalog.json`; without, it does not.
    pub card: Option<String>,
    /// Where clients reach the endpoint, e.g. `https://tools.example/mcp`, where that is not where their requests arrive.
    pub url: Option<String>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8000)),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            connections_max: 1024,
            sessions_max: 4096,
            head_time_ms: 60_000,
            body_time_ms: 30_000,
            write_time_ms: 30_000,
            stream_after_ms: 2_000,
            keep_alive_ms: 15_000,
            drain_ms: 10_000,
            http_sse: false,
            card: None,
            url: None,
        }
    }
}

/// Which tools are offered.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tools {
    /// Patterns over tools of which one must match, e.g. `files.*` (or `files_*`).
    pub allow: Vec<String>,
    /// Patterns over tools of which none may match, e.g. `exec.*` (or `exec_*`).
    pub deny: Vec<String>,
    /// Patterns over tools that a person must agree to, each time; clients that cannot ask one are refused.
    pub confirm: Vec<String>,
    /// The most a tool may do to be offered: `reads`, `adds`, `changes` or `runs` programs.
    pub effects: EffectsMax,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            allow: vec!["*".to_owned()],
            deny: Vec::new(),
            confirm: Vec::new(),
            effects: EffectsMax::Runs,
        }
    }
}

/// The most a tool may do to be offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EffectsMax {
    /// Tools that change nothing.
    Reads,
    /// And tools that add without taking away.
    Adds,
    /// And tools that overwrite or remove.
    Changes,
    /// And tools that run programs: all of them.
    Runs,
}

/// How much may go on at once, how large and how long.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The largest message, in bytes; a larger one is refused before it is parsed.
    pub message_bytes: usize,
    /// The most calls at once.
    pub calls: usize,
    /// The most calls at once that run programs; they do not count among the others.
    pub programs: usize,
    /// The most calls that wait for one to end; more are refused.
    pub waiting: usize,
    /// How long a call waits for another to end, in milliseconds.
    pub wait_ms: u64,
    /// How long a call may take where its tool does not say, in milliseconds.
    pub deadline_ms: u64,
    /// How long a call may wait, beyond that, for answers to what it asks of whoever called, in
    /// milliseconds. A job may for as long as jobs may run.
    pub answer_ms: u64,
    /// How long a cancelled call may take to stop in order, in milliseconds.
    pub cancel_grace_ms: u64,
    /// The most requests in flight from one client over stdio; beyond, it is not read.
    pub in_flight: usize,
    /// How long calls in flight may take to finish once a stdio client has closed its end, in milliseconds.
    pub eof_grace_ms: u64,
    /// The most tools in one page of a list.
    pub page_size: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 32 << 20,
            calls: 64,
            programs: 16,
            waiting: 8192,
            wait_ms: 30_000,
            deadline_ms: 60_000,
            answer_ms: 600_000,
            cancel_grace_ms: 2_000,
            in_flight: 1024,
            eof_grace_ms: 1_000,
            page_size: 200,
        }
    }
}

/// How the output of tools is checked.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Validation {
    /// What happens to output that breaks its tool's schema: `off`, `shadow` (logged) or `enforce` (refused).
    pub output: OutputCheck,
}

impl Default for Validation {
    fn default() -> Self {
        Self { output: OutputCheck::Enforce }
    }
}

/// Where the record of each call goes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Audit {
    /// An absolute path, `stderr`, `off`, or `state` for `toolgate/audit.jsonl` in the user's state folder.
    pub to: String,
}

impl Default for Audit {
    fn default() -> Self {
        Self { to: "state".to_owned() }
    }
}

/// Calls whose outcome is collected later.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Jobs {
    /// Where they are kept, in a folder of each workspace's own: an absolute folder, `off`, or `state` for the user's state folder.
    pub to: String,
    /// How many run at once.
    pub running: usize,
    /// How many wait for their turn; more are refused.
    pub queued: usize,
    /// How long one may run where its tool does not say, in milliseconds.
    pub deadline_ms: u64,
    /// How long one is kept once it has ended, where whoever starts it does not say, in milliseconds.
    pub keep_ms: u64,
    /// How long one is kept at most, whatever whoever starts it says, in milliseconds.
    pub keep_max_ms: u64,
    /// How many are kept that have ended; beyond, the oldest are forgotten.
    pub ended: usize,
    /// How much of what one job's program prints is kept, in bytes.
    pub output_bytes: usize,
    /// How much of the files that one job leaves is kept, in bytes.
    pub files_bytes: u64,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            to: "state".to_owned(),
            running: 8,
            queued: 10_000,
            deadline_ms: 24 * 3_600_000,
            keep_ms: 24 * 3_600_000,
            keep_max_ms: 7 * 24 * 3_600_000,
            ended: 100_000,
            output_bytes: 8 << 20,
            files_bytes: 1 << 30,
        }
    }
}

/// What can be read beside what can be called. Whoever may not use a tool does not see what it reads either.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// Whether the workspace's files are resources (`file://`), as `files.read` reads them.
    pub files: bool,
    /// Whether a caller's jobs, what they printed and what they left are resources (`job://`).
    pub jobs: bool,
    /// Whether the newest records of a caller's own calls are a resource (`audit://tail`).
    pub audit: bool,
}

impl Default for Resources {
    fn default() -> Self {
        Self { files: true, jobs: true, audit: true }
    }
}

/// What is logged on standard error.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Least level (`error`, `warn`, `info`, `debug`, `trace`), or a filter such as `info,toolgate_host=debug`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned() }
    }
}

#[cfg(test)]
mod tests;
