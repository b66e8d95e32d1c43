//! Every setting: its default, its environment variable, its meaning. Read once, at start.
#![allow(
    clippy::disallowed_methods,
    reason = "the one place that reads the environment and the file"
)]

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_host::OutputCheck;
use toolgate_toolsets::{exec, files};

/// The file's name, in the folder that is served.
pub const FILE_NAME: &str = "toolgate.toml";
const ENV_PREFIX: &str = "TOOLGATE_";
/// Variables of ours that are not settings.
const ENV_OTHER: [&str; 3] = ["TOOLGATE_CONFIG", "TOOLGATE_ROOT", "TOOLGATE_READ_ONLY"];

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
    /// The most a tool may do to be offered: `reads`, `adds`, `changes` or `runs` programs.
    pub effects: EffectsMax,
}

impl Default for Tools {
    fn default() -> Self {
        Self { allow: vec!["*".to_owned()], deny: Vec::new(), effects: EffectsMax::Runs }
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

/// A configuration and where it came from.
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The file, if one was read.
    pub file: Option<PathBuf>,
    /// What is odd about it and does no harm.
    pub warnings: Vec<String>,
}

/// Reads the settings for serving `root`: defaults, then the file, then the environment.
///
/// The file is `explicit`, or `toolgate.toml` in `root` if it is there.
pub fn load(
    root: &Path,
    explicit: Option<&Path>,
    env: &[(OsString, OsString)],
) -> anyhow::Result<Loaded> {
    let env: Vec<_> = env.iter().filter_map(|(k, v)| Some((k.to_str()?, v.to_str()?))).collect();
    let file = match explicit {
        Some(path) => Some(path.to_owned()),
        None => Some(root.join(FILE_NAME)).filter(|path| path.exists()),
    };
    let text = match &file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("the configuration {} cannot be read", path.display()))?,
        None => String::new(),
    };
    let named = |file: &Option<PathBuf>| {
        file.as_ref().map_or_else(String::new, |path| path.display().to_string())
    };
    // Read as settings first: only then do errors carry the line.
    toml::from_str::<Config>(&text).with_context(|| format!("in {}", named(&file)))?;
    let mut table: toml::Table = toml::from_str(&text)?;

    let settings = settings();
    let mut config: Config = table.clone().try_into()?;
    for setting in &settings {
        let Some((_, value)) = env.iter().find(|(name, _)| *name == setting.env) else { continue };
        setting.put(&mut table, value)?;
        config = table.clone().try_into().with_context(|| format!("in {}", setting.env))?;
    }
    let warnings = unknown_variables(&settings, &env);
    check(&config)?;
    Ok(Loaded { config, file, warnings })
}

/// This process's environment.
pub fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// Where this user's programs keep what they must remember.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("toolgate"))
}

/// Refuses to listen where callers would need credentials.
pub fn check_listen(listen: SocketAddr) -> anyhow::Result<()> {
    if !listen.ip().is_loopback() {
        bail!(
            "server.listen is {listen}, which is reached from other machines, and callers there \
             need credentials, which this version does not have. Listen on 127.0.0.1 and put a \
             reverse proxy that authenticates, or an SSH tunnel, before it"
        );
    }
    Ok(())
}

/// Refuses what no type can: a limit of nothing, a bound beyond all use.
fn check(config: &Config) -> anyhow::Result<()> {
    const MANY: u64 = 1_000_000;
    const DAY_MS: u64 = 86_400_000;
    let Config { server, limits, .. } = config;
    let ranges = [
        ("limits.calls", limits.calls as u64, 1, MANY),
        ("limits.programs", limits.programs as u64, 1, MANY),
        ("limits.waiting", limits.waiting as u64, 0, MANY),
        ("limits.in_flight", limits.in_flight as u64, 1, MANY),
        ("limits.page_size", limits.page_size as u64, 1, MANY),
        ("limits.message_bytes", limits.message_bytes as u64, 1024, 1 << 30),
        ("limits.wait_ms", limits.wait_ms, 0, DAY_MS),
        ("limits.deadline_ms", limits.deadline_ms, 1, DAY_MS),
        ("limits.cancel_grace_ms", limits.cancel_grace_ms, 0, DAY_MS),
        ("limits.eof_grace_ms", limits.eof_grace_ms, 0, DAY_MS),
        ("server.connections_max", server.connections_max as u64, 1, MANY),
        ("server.sessions_max", server.sessions_max as u64, 1, MANY),
        ("server.head_time_ms", server.head_time_ms, 1, DAY_MS),
        ("server.body_time_ms", server.body_time_ms, 1, DAY_MS),
        ("server.write_time_ms", server.write_time_ms, 1, DAY_MS),
        ("server.stream_after_ms", server.stream_after_ms, 0, DAY_MS),
        ("server.keep_alive_ms", server.keep_alive_ms, 1, DAY_MS),
        ("server.drain_ms", server.drain_ms, 0, DAY_MS),
        ("exec.timeout_ms", config.exec.timeout_ms, 1, 600_000),
    ];
    for (name, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            bail!("{name} is {value}; it may be {least} to {most}");
        }
    }
    Ok(())
}

fn unknown_variables(settings: &[Setting], env: &[(&str, &str)]) -> Vec<String> {
    let known = |name: &str| ENV_OTHER.contains(&name) || settings.iter().any(|s| s.env == name);
    let strangers = env.iter().filter(|(name, _)| name.starts_with(ENV_PREFIX) && !known(name));
    let told = strangers.map(|(name, _)| {
        let near = |s: &Setting| strsim::normalized_damerau_levenshtein(&s.env, name);
        let close = settings.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
        let close = close.filter(|setting| near(setting) > 0.75);
        let hint = close.map(|s| format!("; did you mean {}?", s.env)).unwrap_or_default();
        format!("the environment variable {name} is not a setting{hint}")
    });
    told.collect()
}

/// One setting, read off the types.
struct Setting {
    /// Its place in the file, e.g. `server.listen`.
    path: [String; 2],
    env: String,
    schema: Value,
    default: Value,
}

/// Every setting in the order of the file.
fn settings() -> Vec<Setting> {
    let schema = schema();
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    let sections = schema["properties"].as_object().cloned().unwrap_or_default();
    let mut settings = Vec::new();
    for (section, body) in &sections {
        for (name, schema) in body["properties"].as_object().into_iter().flatten() {
            settings.push(Setting {
                path: [section.clone(), name.clone()],
                env: format!("{ENV_PREFIX}{section}_{name}").to_uppercase(),
                schema: schema.clone(),
                default: defaults[section][name].clone(),
            });
        }
    }
    settings
}

impl Setting {
    fn put(&self, table: &mut toml::Table, text: &str) -> anyhow::Result<()> {
        let bad = || format!("{} is `{text}`, which is not {}", self.env, self.kind());
        let value = match self.schema["type"].as_str() {
            Some("integer") => toml::Value::Integer(text.trim().parse().with_context(bad)?),
            Some("boolean") => toml::Value::Boolean(text.trim().parse().with_context(bad)?),
            Some("array") => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                toml::Value::Array(items.map(|item| item.to_owned().into()).collect())
            }
            _ => toml::Value::String(text.to_owned()),
        };
        let [section, name] = &self.path;
        let section = table.entry(section.as_str()).or_insert_with(|| toml::Table::new().into());
        if let Some(section) = section.as_table_mut() {
            section.insert(name.clone(), value);
        }
        Ok(())
    }

    fn kind(&self) -> String {
        let choices = self.schema["oneOf"].as_array().or(self.schema["enum"].as_array());
        if let Some(choices) = choices {
            let name = |choice: &Value| choice.get("const").unwrap_or(choice).to_string();
            return choices.iter().map(name).collect::<Vec<_>>().join(" or ");
        }
        match self.schema["type"].as_str() {
            Some("array") => "list of strings; in the environment separated by commas".to_owned(),
            Some(kind) => kind.to_owned(),
            // What may be missing is a string where it is not.
            None => "string".to_owned(),
        }
    }
}

/// The JSON Schema of the file.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".into(), FILE_NAME.into());
    }
    schema
}

/// The reference of the file, in Markdown.
pub fn reference() -> String {
    let mut page = String::from(
        "# toolgate.toml\n\n\
         <!-- Written by `cargo xtask codegen` from crates/server/src/config.rs; edit that. -->\n\n\
         Every setting is optional. A value is taken from the command line, else from the \
         environment, else from the file, else it is the default. The file is `--config FILE`, \
         else `toolgate.toml` in the folder that is served; the tools cannot write it. \
         [config.schema.json](config.schema.json) is its JSON Schema. `toolgate check-config` says \
         whether a file is sound and prints the settings in force.\n",
    );
    let mut section = String::new();
    let about = schema();
    for setting in settings() {
        let [head, name] = &setting.path;
        if *head != section {
            section.clone_from(head);
            let text = about["properties"][head]["description"].as_str().unwrap_or_default();
            let _ = write!(page, "\n## [{head}]\n\n{text}\n");
        }
        let text = setting.schema["description"].as_str().unwrap_or_default();
        let _ = write!(
            page,
            "\n### `{name}`\n\n{text}\n\n- type: {}\n- default: {}\n- environment: `{}`\n",
            setting.kind(),
            if setting.default.is_null() {
                "none".to_owned()
            } else {
                format!("`{}`", setting.default)
            },
            setting.env
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str, env: &[(&str, &str)]) -> anyhow::Result<Loaded> {
        let folder = std::env::temp_dir().join(format!("toolgate-config-{:x}", rand()));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(FILE_NAME), text)?;
        let env: Vec<_> = env.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect();
        let loaded = load(&folder, None, &env);
        std::fs::remove_dir_all(&folder)?;
        loaded
    }

    fn rand() -> u64 {
        let mut bits = [0; 8];
        getrandom::fill(&mut bits).expect("randomness");
        u64::from_le_bytes(bits)
    }

    #[test]
    fn the_environment_overrides_the_file_and_the_file_the_default() {
        let file = "[limits]\ncalls = 3\nprograms = 4\n";
        let loaded = from(file, &[("TOOLGATE_LIMITS_CALLS", "9")]).expect("sound");
        assert_eq!(loaded.config.limits.calls, 9);
        assert_eq!(loaded.config.limits.programs, 4);
        assert_eq!(loaded.config.limits.page_size, 200);
    }

    #[test]
    fn a_misspelled_setting_is_refused_with_its_line() {
        let err = format!("{:#}", from("[server]\nlisten_at = 1\n", &[]).err().expect("refused"));
        assert!(err.contains("listen_at") && err.contains("line 2"), "{err}");
    }

    #[test]
    fn a_misspelled_variable_is_told_with_the_nearest() {
        let loaded = from("", &[("TOOLGATE_LIMIT_CALLS", "9")]).expect("sound");
        assert!(loaded.warnings[0].contains("TOOLGATE_LIMITS_CALLS"), "{:?}", loaded.warnings);
    }

    #[test]
    fn a_variable_of_the_wrong_type_is_named() {
        let err = from("", &[("TOOLGATE_LIMITS_CALLS", "many")]).err().expect("refused");
        assert!(format!("{err:#}").contains("TOOLGATE_LIMITS_CALLS is `many`"), "{err:#}");
    }

    #[test]
    fn an_address_beyond_loopback_is_refused() {
        let err = check_listen(([0, 0, 0, 0], 8000).into()).expect_err("refused");
        assert!(format!("{err:#}").contains("credentials"), "{err:#}");
    }

    #[test]
    fn a_bound_of_nothing_or_beyond_all_use_is_refused_by_name() {
        for text in ["[server]\nkeep_alive_ms = 0\n", "[limits]\ncalls = 9223372036854775807\n"] {
            let err = format!("{:#}", from(text, &[]).err().expect("refused"));
            assert!(err.contains("it may be 1 to"), "{err}");
        }
    }

    #[test]
    fn every_setting_has_a_meaning() {
        for setting in settings() {
            assert!(setting.schema["description"].is_string(), "{:?}", setting.path);
        }
    }
}
