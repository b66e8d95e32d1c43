//! All settings with their defaults, environment variables and meaning.
mod audit;
mod load;
mod contracts;
mod discovery;
mod fleet;
mod keys;
pub mod key_file;
pub mod oauth;
mod policy;
pub(crate) mod proxies;
pub(crate) mod restart;
pub(crate) mod secrets;
mod setting;
mod telemetry;
pub mod trust;
mod validation;

use std::net::SocketAddr;
use std::path::PathBuf;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toolgate_contract::ToolResultFormat;
use toolgate_host::OutputSchemaCheck;
use toolgate_toolsets::{assets, commands, exec, files, git, prompts, search, skills};
use toolgate_world::sandbox;

pub use audit::{ArgumentRecording, AuditSection};
pub use contracts::ContractEnvVarValues;
pub use discovery::{DiscoverySection, ToolDiscoveryMemory, ToolDiscoveryMode};
pub use fleet::FleetSection;
pub use keys::{ApiKey, check as check_keys, check_caller_name};
pub(crate) use keys::{ApiKeyDigest, digest, parse_digest};
pub(crate) use load::cache_folder;
#[cfg(any(fuzzing, test))]
pub(crate) use load::check_text as fuzz_settings;
pub use load::{LoadedConfig, check_listen, check_reach, environment, load, state_folder};
pub use policy::{PolicyRuleEffect as PolicyEffect, PolicyRuleEntry as PolicyRule, PolicySection};
pub use restart::{SettingsDifference, compare_settings};
pub use secrets::SecretsSection;
pub use setting::{reference, schema};
pub use telemetry::TelemetrySection;
pub use validation::ValidationSection;

/// Name of the settings file in the workspace.
pub const SETTINGS_FILE_NAME: &str = "toolgate.toml";

/// Settings of one toolgate server.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// HTTP server: address, TLS, limits and sessions.
    pub server: ServerSection,
    /// Additional addresses to listen on, with one `[[listen]]` table for each. Each address serves
    /// a single dialect at the root path.
    pub listen: Vec<ListenAddressEntry>,
    /// API keys of callers over HTTP, in addition to the keys in `server.keys_file`, with one
    /// `[[keys]]` table for each.
    ///
    /// As soon as one key exists, every request needs a credential. Without any key or issuer,
    /// anyone who reaches the address may call tools. Create a key with `toolgate key new NAME`.
    #[serde(deserialize_with = "keys::configured_keys")]
    pub keys: Vec<ApiKey>,
    /// OAuth 2.1 issuers whose tokens are accepted from callers over HTTP, with one `[[oauth]]`
    /// table for each.
    ///
    /// As soon as one issuer exists, every request needs a token or an API key.
    pub oauth: Vec<oauth::OAuthIssuerEntry>,
    /// Tools that each scope of a token allows, with one `[[scopes]]` table for each scope.
    ///
    /// If you list a scope, a caller with a token may use only the tools that the scopes of its
    /// token allow. If you list no scope, the scopes of tokens are ignored. toolgate asks clients
    /// without a token to request the first scope in the list.
    pub scopes: Vec<oauth::OAuthScopeEntry>,
    /// Selection of the available tools.
    pub tools: ToolsSection,
    /// Tool lists of MCP clients, and the search that replaces long lists.
    pub discovery: DiscoverySection,
    /// Rules that allow, deny or confirm calls by caller, tool and input.
    pub policy: PolicySection,
    /// Limits for concurrency, message size, call rate and time.
    pub limits: LimitsSection,
    /// Validation of tool output against schemas.
    pub validation: ValidationSection,
    /// Envelopes: the structured result of each call, with its ids and times.
    pub envelope: EnvelopeSection,
    /// Audit log: one record for each call.
    pub audit: AuditSection,
    /// Values that are redacted from all output.
    pub secrets: SecretsSection,
    /// Log on standard error.
    pub log: LogSection,
    /// Metrics and traces of calls.
    pub telemetry: TelemetrySection,
    /// Tools that read and write files.
    pub files: files::FileSettings,
    /// Semantic search of the workspace.
    pub search: search::SearchSettings,
    /// Tools that run programs.
    pub exec: exec::ExecSettings,
    /// Sandbox of programs that tools start: visible files, writable folders and network.
    pub sandbox: sandbox::SandboxSettings,
    /// Tools for git repositories.
    pub git: git::GitSettings,
    /// Packs: files of declared commands. A declared command turns a command line into a tool.
    pub commands: commands::CommandSettings,
    /// Declared commands, with one `[command."stage.name"]` table for each. A declared command
    /// turns a command line into a tool.
    pub command: commands::UnparsedCommandTables,
    /// Upstream MCP servers whose tools this server offers, with one `[upstream.NAME]` table for
    /// each.
    pub upstream: toolgate_upstream::UpstreamSettingsByName,
    /// Approval of upstream tools.
    pub pins: toolgate_upstream::pins::PinSettings,
    /// Jobs: calls whose results clients fetch later.
    pub jobs: JobsSection,
    /// Jobs and used confirmations that servers on several machines share.
    pub fleet: FleetSection,
    /// Resources that clients can read.
    pub resources: ResourcesSection,
    /// Prompts that a user can choose for an agent.
    pub prompts: prompts::PromptSettings,
    /// Skills: folders of instructions for an agent.
    pub skills: skills::SkillSettings,
    /// Asset schemas and examples, and the backend that stores assets.
    pub assets: assets::AssetSettings,
    /// Values of the contracts' environment variables that are not settings.
    #[serde(skip)]
    pub contracts: ContractEnvVarValues,
    /// Path and text of the settings file, so that an error in a declared command can name its
    /// line.
    #[serde(skip)]
    pub source: Option<commands::CommandDeclarationSource>,
    /// True if the user named the settings file, so that it needs no trust.
    #[serde(skip)]
    pub is_file_named: bool,
}

impl Config {
    /// Returns true if HTTP callers need a credential.
    ///
    /// # Errors
    /// The key file exists but cannot be trusted or parsed.
    pub fn requires_credential(&self) -> anyhow::Result<bool> {
        if !self.keys.is_empty() || !self.oauth.is_empty() {
            return Ok(true);
        }
        let Some(file) = key_file::path(&self.server)? else { return Ok(false) };
        Ok(key_file::read(&file)?.is_some())
    }

    /// Returns these settings as a TOML table, which is empty if they cannot be written as TOML.
    pub(crate) fn to_table(&self) -> toml::Table {
        // Through text, so that the compiler creates one serializer for all settings, and not two.
        let text = toml::to_string(self);
        text.ok().and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// Returns the keys that have not expired at `now`: first the keys in the settings, then the
    /// keys in the key file (oldest first).
    ///
    /// # Errors
    /// The key file cannot be read, or other users could have written it.
    pub fn valid_keys(&self, now: Timestamp) -> anyhow::Result<Vec<ApiKey>> {
        let mut keys = self.keys.clone();
        if let Some(file) = key_file::path(&self.server)? {
            keys.extend(key_file::list_keys(&file)?.unwrap_or_default());
        }
        keys.retain(|key| key.expires.is_none_or(|expires| now < expires));
        Ok(keys)
    }
}

/// HTTP server: address, TLS, limits and sessions.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSection {
    /// Address to listen on. If other machines can reach the address, you need a credential (an API
    /// key or `[[oauth]]`), and TLS or `plaintext`.
    #[schemars(with = "String")]
    #[serde(deserialize_with = "written_address")]
    pub listen: SocketAddr,
    /// Additional values of the `Host` header to accept from clients, such as `tools.example:8443`.
    pub allowed_hosts: Vec<String>,
    /// Names of the dialects to serve, or `*` for all. If the list is empty, the server opens only
    /// the addresses of `[[listen]]`.
    pub dialects: Vec<String>,
    /// Key file that `toolgate key new` writes. The server reads the file again when the file
    /// changes.
    ///
    /// Set an absolute path, `off`, or `state` for `toolgate/keys.toml` in the user's state folder.
    pub keys_file: String,
    /// PEM file with the server's TLS certificate and its intermediate certificates. With a
    /// certificate, the server accepts only TLS. The server reads the file again when the file
    /// changes.
    pub tls_certificate: Option<String>,
    /// PEM file with the private key of the TLS certificate. The server reads the file again when
    /// the file changes.
    pub tls_key: Option<String>,
    /// File with a key of at least 32 bytes that protects session ids and request states against
    /// changes. Servers that share the key resume each other's sessions (MCP before 2026-07-28) and
    /// accept the answers to each other's questions (2026-07-28). Without the file, each process
    /// has a random key.
    ///
    /// Give the same key only to servers that have the same settings and serve the same workspace.
    pub session_key: Option<String>,
    /// Allows other machines to connect without TLS. Set `plaintext` only if something else
    /// encrypts the connection, such as a reverse proxy on the same network.
    pub plaintext: bool,
    /// Addresses of your reverse proxies, such as `127.0.0.1` or `10.0.0.0/8`. If an authentication
    /// attempt through a proxy fails, toolgate counts the failure for the client's address in
    /// `forwarded_header`, not for the proxy.
    pub trusted_proxies: Vec<String>,
    /// Header in which trusted proxies send the client's address: `Forwarded`, or a header with
    /// plain addresses such as `X-Forwarded-For` or `X-Real-IP`.
    pub forwarded_header: String,
    /// Restricts the server process to the files that it needs, if the kernel supports Landlock.
    pub confined: bool,
    /// Origins of web pages that may call this server, such as `https://app.example`.
    pub allowed_origins: Vec<String>,
    /// Maximum number of connections. At the limit, a new connection closes the connection that has
    /// been idle longest. If all connections are busy, the new connection waits.
    ///
    /// Event streams and WebSockets may use up to half of the connections. Event streams and
    /// WebSockets of one authenticated caller may use up to a quarter of the connections. The
    /// server keeps up to four times as many MCP sessions (revisions before 2026-07-28).
    pub connections_max: usize,
    /// Time for calls in flight to finish after shutdown starts, in milliseconds.
    pub drain_ms: u64,
    /// Service for clients of MCP 2024-11-05 over HTTP, at `/sse` and `/messages`.
    pub http_sse: bool,
    /// Format of the results of this server's own tools for MCP clients. A request can select
    /// another format with `io.toolgate/results` in `_meta`. The setting does not change results of
    /// upstreams.
    ///
    /// `text` returns a single block of text, written for a model. `structured` returns a
    /// structured value for programs. `both` returns the text and the structured value. With
    /// `structured` and `both`, the list of tools has output schemas.
    pub results: ToolResultFormat,
    /// Public URL of the MCP endpoint, such as `https://tools.example/mcp`. Set `url` if clients
    /// reach the server through a proxy.
    ///
    /// If the URL's host is a domain, the server also publishes a description of itself at
    /// `/mcp/server-card` and `/.well-known/ai-catalog.json`.
    pub url: Option<String>,
    /// Web console at `/` for the person who runs the server: `on` or `off`.
    pub console: ConsoleMode,
}

/// Availability of the web console.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConsoleMode {
    /// The web console is served at `/`.
    #[default]
    On,
    /// The web console is not served.
    Off,
}

impl Default for ServerSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8000)),
            dialects: vec!["*".to_owned()],
            keys_file: "state".to_owned(),
            tls_certificate: None,
            tls_key: None,
            session_key: None,
            plaintext: false,
            trusted_proxies: Vec::new(),
            forwarded_header: "X-Forwarded-For".to_owned(),
            confined: true,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            connections_max: 1024,
            drain_ms: 10_000,
            http_sse: false,
            results: ToolResultFormat::Text,
            url: None,
            console: ConsoleMode::default(),
        }
    }
}

/// Additional address to listen on, for a single dialect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenAddressEntry {
    /// Address such as `127.0.0.1:3001`, or a port. The rules of `server.listen` apply.
    #[schemars(with = "String")]
    #[serde(deserialize_with = "written_address")]
    pub addr: SocketAddr,
    /// Name of the dialect to serve at this address.
    pub dialect: String,
}

/// Parses an address such as `127.0.0.1:8000`, `localhost:8000`, `:8000` or `8000`.
///
/// # Errors
/// `text` is not an address. The message shows a valid address.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost").unwrap_or(text);
    let port = port.strip_prefix(':').unwrap_or(port).parse::<u16>();
    port.map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .or_else(|_| text.parse())
        .map_err(|_| "write an address with a port such as 127.0.0.1:8000, or a port".to_owned())
}

fn written_address<'de, D: Deserializer<'de>>(text: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(text)?;
    parse_address(&text)
        .map_err(|why| D::Error::custom(format!("`{text}` is not an address; {why}")))
}

/// Selection of the available tools.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsSection {
    /// Tools to allow. An entry is a pattern (`files.*` or `files_*`), the name of a toolset
    /// (`files`), `core` for the most important tools, or `all`. A tool is available only if an
    /// entry matches it.
    pub allow: Vec<String>,
    /// Patterns of tools to deny, such as `exec.*` (or `exec_*`). `deny` overrides `allow`.
    pub deny: Vec<String>,
    /// Patterns of tools. A person must confirm each call of a matching tool. If the client cannot
    /// ask a person, toolgate refuses the call.
    pub confirm: Vec<String>,
    /// Strongest effect that a tool may have to be available. From weakest to strongest: `reads`,
    /// `adds`, `changes`, `runs` (runs programs).
    pub effects: ToolEffectLimit,
}

impl Default for ToolsSection {
    fn default() -> Self {
        Self {
            allow: vec!["*".to_owned()],
            deny: Vec::new(),
            confirm: Vec::new(),
            effects: ToolEffectLimit::Runs,
        }
    }
}

/// Highest effect that a tool may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolEffectLimit {
    /// Tools that change nothing.
    Reads,
    /// Tools that `reads` allows, and tools that only add something.
    Adds,
    /// Tools that `adds` allows, and tools that overwrite or remove something.
    Changes,
    /// All tools, including tools that run programs.
    Runs,
}

/// Limits for concurrency, message size, call rate and time.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsSection {
    /// Maximum size of a message, in bytes. A larger message is refused before it is parsed.
    pub message_bytes: usize,
    /// Maximum number of concurrent calls. Calls that run programs are not counted. If callers need
    /// a credential, one caller may use at most three quarters of this number at once. Further calls
    /// wait, in a separate queue for each caller.
    pub calls: usize,
    /// Maximum number of concurrent calls that run programs. The maximum number of running jobs is
    /// half of `programs`. If callers need a credential, one caller may use at most three
    /// quarters of these numbers at once.
    pub programs: usize,
    /// Time for which a call waits for a slot, in milliseconds.
    pub wait_ms: u64,
    /// Time limit for calls, in milliseconds, if the tool has no time limit of its own.
    pub deadline_ms: u64,
    /// Handling of calls with a rate limit while the database of `fleet.url` does not answer. With
    /// `share`, each server admits the rate divided by the number of servers. With `refuse`, each
    /// server refuses the calls.
    pub away: FleetOutagePolicy,
    /// Rate limits for calls per caller and tool, with one `[[limits.rate]]` table for each. The
    /// first rule that matches a tool applies. A tool that no rule matches has no limit.
    ///
    /// Your rules replace the default rule, which only stops runaway callers: 1000000 calls of any
    /// tool in 20 seconds. With `fleet.url`, your rules count for all servers of the workspace
    /// together.
    pub rate: Vec<RateLimitEntry>,
}

/// Reaction of a server of a fleet to calls with a rate limit while the database of the fleet does
/// not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FleetOutagePolicy {
    /// Each server admits the rate divided by the number of servers.
    #[default]
    Share,
    /// Each server refuses calls that have a rate limit.
    Refuse,
}

/// Rate limit of some tools, per caller and tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimitEntry {
    /// Pattern of tools, such as `exec.*` (or `exec_*`).
    pub tools: String,
    /// Average number of calls per `in_ms`. After a pause, a caller may make this number of calls
    /// at once.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub calls: u32,
    /// Length of the interval, in milliseconds. The default is 60000.
    #[serde(default = "one_minute")]
    #[schemars(range(min = 1, max = 86_400_000))]
    pub in_ms: u64,
}

fn one_minute() -> u64 {
    60_000
}

impl Default for LimitsSection {
    fn default() -> Self {
        Self {
            message_bytes: 32 << 20,
            calls: 64,
            programs: 16,
            wait_ms: 30_000,
            deadline_ms: 60_000,
            away: FleetOutagePolicy::Share,
            rate: vec![RateLimitEntry { tools: "*".to_owned(), calls: 1_000_000, in_ms: 20_000 }],
        }
    }
}

impl LimitsSection {
    /// Returns the highest number of jobs that run at once: half of the setting `limits.programs`,
    /// so that jobs leave slots for direct calls. The default is 8.
    pub(crate) fn jobs(&self) -> usize {
        self.programs.div_ceil(2)
    }
}

/// Envelopes: the structured result of each call, with its ids and times.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvelopeSection {
    /// Reaction to an envelope that does not match its schema: `off`, `shadow` (log it) or
    /// `enforce` (refuse it). Set the reaction with `RAGX_MCP_ENVELOPE_VALIDATION`.
    #[serde(skip)]
    pub validation: OutputSchemaCheck,
    /// Gives equal requests equal envelopes: the ids are derived from the request, and the duration
    /// is zero (`--deterministic-ids`).
    #[serde(skip)]
    pub deterministic_ids: bool,
    /// Folder for a log of the envelopes of all calls (`--log-dir`).
    #[serde(skip)]
    pub log_dir: Option<PathBuf>,
    /// Workspace folders whose `*.schema.json` files the server reads at start. The schemas in
    /// these folders apply in addition to the built-in schemas of envelopes, and to the tools' own
    /// schemas. Files in the default folders apply only after `toolgate trust`.
    pub schemas: Vec<String>,
}

impl Default for EnvelopeSection {
    fn default() -> Self {
        let schemas =
            ["codex/specs/schemas", "apps/mcp_server/schemas", "apps/mcp_server/schemas/tools"];
        Self {
            validation: OutputSchemaCheck::Shadow,
            deterministic_ids: false,
            log_dir: None,
            schemas: schemas.map(str::to_owned).to_vec(),
        }
    }
}

/// Jobs: calls whose results clients fetch later.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JobsSection {
    /// Folder in which jobs are stored, with a subfolder for each workspace: an absolute path,
    /// `off`, or `state` for the user's state folder. With `fleet.url`, this folder contains only
    /// the files of jobs.
    pub to: String,
    /// Time in milliseconds for which running jobs may continue when a server of a fleet drains:
    /// after `toolgate fleet drain`, or after the signal that stops `toolgate work`. When the time
    /// is over, toolgate stops the jobs. Jobs of idempotent tools run again at another server, and
    /// other jobs fail as interrupted.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub drain_ms: u64,
}

impl Default for JobsSection {
    fn default() -> Self {
        Self { to: "state".to_owned(), drain_ms: 25_000 }
    }
}

/// Resources that clients can read. A caller sees a resource only if it may use the tool that reads
/// the same data.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ResourcesSection {
    /// Kinds of resources to offer: `files` (the workspace's files, `file://`), `jobs` (a caller's
    /// jobs with their output and files, `job://`) and `audit` (the newest audit records of a
    /// caller's own calls, `audit://tail`).
    pub kinds: Vec<ResourceKind>,
}

/// Kind of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResourceKind {
    /// The workspace's files.
    Files,
    /// Jobs with their output and files.
    Jobs,
    /// Audit records of the caller's own calls.
    Audit,
}

impl ResourcesSection {
    /// Returns true if the settings offer resources of this `kind`.
    pub fn offers(&self, kind: ResourceKind) -> bool {
        self.kinds.contains(&kind)
    }
}

impl Default for ResourcesSection {
    fn default() -> Self {
        Self { kinds: vec![ResourceKind::Files, ResourceKind::Jobs, ResourceKind::Audit] }
    }
}

/// Log on standard error.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogSection {
    /// Minimum level (`error`, `warn`, `info`, `debug`, `trace`, `off`), or a filter such as
    /// `info,toolgate_host=debug`.
    pub level: String,
    /// Lines about calls that `toolgate serve` prints: `calls` (one line for each call), `json`
    /// (the audit record of each call) or `quiet` (no lines). toolgate prints at most 100 lines per
    /// second.
    pub calls: CallLogLineFormat,
}

/// Lines about calls that a server prints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CallLogLineFormat {
    /// Log one line for each call.
    #[default]
    Calls,
    /// Do not log calls.
    Quiet,
    /// Log the audit record of each call.
    Json,
}

impl Default for LogSection {
    fn default() -> Self {
        Self { level: "info".to_owned(), calls: CallLogLineFormat::default() }
    }
}

#[cfg(test)]
mod tests;
