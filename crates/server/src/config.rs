//! Every setting: its default, its environment variable, its meaning. Read once, at start.
mod audit;
mod load;
mod contracts;
mod keys;
pub mod key_file;
pub mod oauth;
mod policy;
mod secrets;
mod setting;
mod telemetry;
pub mod trust;
mod validation;

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toolgate_host::OutputCheck;
use toolgate_toolsets::world::sandbox;
use toolgate_toolsets::{assets, ci, commands, docs, exec, files, git, prompts, search, skills};

pub use audit::Audit;
pub use contracts::Contracts;
pub use keys::{Key, check as check_keys};
pub(crate) use keys::{KeyDigest, digest};
#[cfg(any(fuzzing, test))]
pub(crate) use load::check_text as fuzz_settings;
pub use load::{Loaded, check_listen, check_reach, environment, load};
pub(crate) use load::{cache_folder, state_folder};
pub use policy::{Effect as PolicyEffect, Policy, Rule as PolicyRule};
pub use secrets::Secrets;
pub use setting::{reference, schema};
pub use telemetry::Telemetry;
pub use validation::{OutputRule, Validation};

/// The file's name, in the folder that is served.
pub const FILE_NAME: &str = "toolgate.toml";

/// The settings of one toolgate.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where and how HTTP is served.
    pub server: Server,
    /// Further addresses to listen at, each for one dialect alone, at the root: a table
    /// `[[listen]]` each.
    pub listen: Vec<Listen>,
    /// Who may call over HTTP, a table `[[keys]]` for each key, beside those of `server.keys_file`.
    /// With one, every request needs one; without any, nobody is asked. `toolgate key NAME` makes one.
    pub keys: Vec<Key>,
    /// Whose tokens are taken from callers over HTTP (OAuth 2.1), a table `[[oauth]]` for each
    /// issuer. With one, every request needs a token, or a key.
    pub oauth: Vec<oauth::Issuer>,
    /// What the scopes of tokens are for, a table `[[scopes]]` for each. With one, a caller with a
    /// token may use only those tools that a scope of its token is for; without any, scopes do not
    /// matter.
    pub scopes: Vec<oauth::Scope>,
    /// Which tools are offered.
    pub tools: Tools,
    /// Rules over who may call what with which input.
    pub policy: Policy,
    /// How much may go on at once, how large and how long.
    pub limits: Limits,
    /// How the output of tools is checked.
    pub validation: Validation,
    /// What is known of each call once it has ended: its envelope.
    pub envelope: Envelope,
    /// Where the record of each call goes.
    pub audit: Audit,
    /// Values that are taken out of whatever is told.
    pub secrets: Secrets,
    /// What is logged on standard error.
    pub log: Log,
    /// What is told of calls to those who watch many servers.
    pub telemetry: Telemetry,
    /// The tools that read and write files.
    pub files: files::Settings,
    /// Searching the workspace by meaning.
    pub search: search::Settings,
    /// The tools that load, make and find documents.
    pub docs: docs::Settings,
    /// The tools that run programs.
    pub exec: exec::Settings,
    /// What programs that tools start can see, write and reach.
    pub sandbox: sandbox::Settings,
    /// The tools over git repositories.
    pub git: git::Settings,
    /// The tools that build and test projects.
    pub ci: ci::Settings,
    /// Command lines made tools: where their packs are.
    pub commands: commands::Settings,
    /// Command lines made tools, each a table `[command."stage.name"]`.
    pub command: commands::Tables,
    /// Other MCP servers that are served here, each a table `[upstream.NAME]`.
    pub upstream: toolgate_upstream::Tables,
    /// Which of their tools were agreed to.
    pub pins: toolgate_upstream::pins::Pins,
    /// Calls whose outcome is collected later.
    pub jobs: Jobs,
    /// What can be read beside what can be called.
    pub resources: Resources,
    /// Words that a person chooses and an agent starts from.
    pub prompts: prompts::Settings,
    /// Folders that tell an agent how to do something well.
    pub skills: skills::Settings,
    /// JSON schemas and examples, and the backend that takes assets.
    pub assets: assets::Settings,
    /// What the contracts' own environment says that is no setting.
    #[serde(skip)]
    pub contracts: Contracts,
    /// The file itself, so that what is wrong with a command is told with its line.
    #[serde(skip)]
    pub source: Option<commands::Source>,
}

impl Config {
    /// Whether who calls over HTTP must say who they are.
    ///
    /// # Errors
    /// When there is a file of keys that cannot be believed.
    pub fn asks(&self) -> anyhow::Result<bool> {
        if !self.keys.is_empty() || !self.oauth.is_empty() {
            return Ok(true);
        }
        let Some(file) = key_file::path(&self.server)? else { return Ok(false) };
        Ok(key_file::read(&file)?.is_some())
    }
}

/// Where and how HTTP is served.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// The address to listen at. One that other machines reach needs a credential (a key, or
    /// `[[oauth]]`) and TLS, or `plaintext`.
    #[schemars(with = "String")]
    #[serde(deserialize_with = "written_address")]
    pub listen: SocketAddr,
    /// Further names, as a `Host` header writes them (`tools.example:8443`), under which this server is reached.
    pub allowed_hosts: Vec<String>,
    /// The dialects that are spoken there, by name, or `*` for all.
    pub dialects: Vec<String>,
    /// Further headers that a key may stand in, beside `X-API-Key` and `Authorization: Bearer`.
    pub key_headers: Vec<String>,
    /// The file of keys that `toolgate key new` writes, read again when it changes: an absolute path, `off`, or `state` for `toolgate/keys.toml` in the user's state folder.
    pub keys_file: String,
    /// The file of the certificate, with those between it and whom clients trust, by which clients know this server: TLS is spoken with it, and nothing else. PEM, read again when it changes.
    pub tls_certificate: Option<String>,
    /// The file of the certificate's private key. PEM, read again when it changes.
    pub tls_key: Option<String>,
    /// The file of the key, 32 bytes or more, that session ids are sealed with: whichever server has it takes a session up (MCP before 2026-07-28). Without one the key is this process's own.
    pub session_key: Option<String>,
    /// Whether other machines may be answered without TLS, since what is between encrypts: a reverse proxy on the same network.
    pub plaintext: bool,
    /// Whether the server itself is kept from all of the machine's files but those it serves, keeps and was told of, where the kernel has Landlock.
    pub confined: bool,
    /// Pages that may call this server, as an `Origin` header writes them (`https://app.example`).
    pub allowed_origins: Vec<String>,
    /// The most connections at once; for one more, the one that has waited for its client for longest is closed, and while all are being answered it waits.
    pub connections_max: usize,
    /// The most event streams and WebSockets that clients may keep open, at most half of `connections_max`; further ones are refused.
    pub streams_max: usize,
    /// The most of these for one caller with a key.
    pub streams_each: usize,
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
            dialects: vec!["*".to_owned()],
            key_headers: Vec::new(),
            keys_file: "state".to_owned(),
            tls_certificate: None,
            tls_key: None,
            session_key: None,
            plaintext: false,
            confined: true,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            connections_max: 1024,
            streams_max: 512,
            streams_each: 256,
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

/// An address to listen at for one dialect alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// The address, e.g. `127.0.0.1:3001`, or a port alone. What holds for `server.listen` holds for it.
    #[schemars(with = "String")]
    #[serde(deserialize_with = "written_address")]
    pub addr: SocketAddr,
    /// The dialect that is spoken there.
    pub dialect: String,
}

/// An address as people write it: `127.0.0.1:8000`, `localhost:8000`, `:8000` or `8000`.
///
/// # Errors
/// When it is none, with how to write one.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost").unwrap_or(text);
    let port = port.strip_prefix(':').unwrap_or(port).parse::<u16>();
    port.map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .or_else(|_| text.parse())
        .map_err(|_| "write an address and a port such as 127.0.0.1:8000, or a port".to_owned())
}

fn written_address<'de, D: Deserializer<'de>>(text: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(text)?;
    address(&text).map_err(|why| D::Error::custom(format!("`{text}` is no address; {why}")))
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
    /// The most calls at once of one caller, that run no programs; further ones wait in its own
    /// queue. 0 is three quarters of `calls` where there are keys, and else no bound.
    pub calls_each: usize,
    /// The same for calls that run programs.
    pub programs_each: usize,
    /// How much each caller may write by the tools of files, in bytes, before it is to wait; 0 is no bound.
    pub written_bytes: u64,
    /// How much more each caller may write each second, in bytes.
    pub written_per_s_bytes: u64,
    /// How much each caller may ask and be answered, in bytes, before it is to wait, where there are keys or tokens; 0 is no bound.
    pub carried_bytes: u64,
    /// How much more each second, in bytes.
    pub carried_per_s_bytes: u64,
    /// How many calls of each caller may be refused one after the other, of one that had none refused for long; further ones are told to come back later, and leave no record. 0 is no bound.
    pub refused: u32,
    /// How many more each second.
    pub refused_per_s: u32,
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
    /// How often each caller may call each tool, a table `[[limits.rate]]` for each rule. The first
    /// rule that matches a tool counts for it; a tool that none matches is called as often as one
    /// likes. These take the place of the default rule, which no caller meets in earnest: any tool
    /// 1000000 times at once, then 50000 times a second.
    pub rate: Vec<Rate>,
}

/// How often each caller may call each of some tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// A pattern over tools, e.g. `exec.*` (or `exec_*`).
    pub tools: String,
    /// How many calls in `in_ms`, in the long run.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub calls: u32,
    /// In how long, in milliseconds.
    #[serde(default = "one_minute")]
    #[schemars(range(min = 1, max = 86_400_000))]
    pub in_ms: u64,
    /// How many calls one after the other, by a caller that made none for long; as many as `calls` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst: Option<u32>,
}

fn one_minute() -> u64 {
    60_000
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 32 << 20,
            calls: 64,
            programs: 16,
            calls_each: 0,
            programs_each: 0,
            written_bytes: 1 << 30,
            written_per_s_bytes: 16 << 20,
            carried_bytes: 4 << 30,
            carried_per_s_bytes: 64 << 20,
            refused: 1_000,
            refused_per_s: 20,
            waiting: 8192,
            wait_ms: 30_000,
            deadline_ms: 60_000,
            answer_ms: 600_000,
            cancel_grace_ms: 2_000,
            in_flight: 1024,
            eof_grace_ms: 1_000,
            page_size: 200,
            rate: vec![Rate {
                tools: "*".to_owned(),
                calls: 50_000,
                in_ms: 1_000,
                burst: Some(1_000_000),
            }],
        }
    }
}

/// What is known of each call once it has ended: its envelope.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Envelope {
    /// What happens to an envelope that breaks its schema: `off`, `shadow` (logged) or `enforce` (refused).
    pub validation: OutputCheck,
    /// Whether the same request always has the same envelope: its ids are reckoned from it, and no time passes.
    pub deterministic_ids: bool,
    /// Where envelopes of all calls, whatever their wire, are logged: a folder, or `off`.
    pub log_dir: String,
    /// Folders beneath the one that is served, whose `*.schema.json` are read at start: those of the envelopes and of tool IO stand for what comes along, those of tools are asked for beside the tools' own.
    pub schemas: Vec<String>,
}

impl Default for Envelope {
    fn default() -> Self {
        let schemas =
            ["codex/specs/schemas", "apps/mcp_server/schemas", "apps/mcp_server/schemas/tools"];
        Self {
            validation: OutputCheck::Shadow,
            deterministic_ids: false,
            log_dir: "off".to_owned(),
            schemas: schemas.map(str::to_owned).to_vec(),
        }
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
