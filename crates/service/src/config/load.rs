//! Loads the settings: defaults, then the file, then the environment.
#![allow(
    clippy::disallowed_methods,
    reason = "the one place that reads the environment and the file"
)]

use std::cell::LazyCell;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};

use toolgate_net::HttpUrl;
use toolgate_toolsets::{check_folder, commands, files};

use crate::owned_files::{self, OwnedFileSymlinkPolicy};

use super::setting::{
    ENV_PREFIX, SettingSpec, describe_parse_error, describe_shape_error, settings,
};
use super::{
    Config, RateLimitEntry, SETTINGS_FILE_NAME, ServerSection, contracts, key_file, keys, oauth,
    proxies, trust,
};

/// Largest settings file, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = 8 << 20;

/// Environment variables with the prefix `TOOLGATE_` that are not settings.
const OTHER_VARIABLES: [&str; 5] =
    ["TOOLGATE_CONFIG", "TOOLGATE_ROOT", "TOOLGATE_READ_ONLY", "TOOLGATE_TOOLS", "TOOLGATE_KEY"];

/// Short environment variables of settings, each with the regular variable of its setting, which
/// has precedence.
const SHORT_VARIABLES: [(&str, &str); 1] = [("TOOLGATE_RESULTS", "TOOLGATE_SERVER_RESULTS")];

/// Loaded settings, with their file and warnings.
pub struct LoadedConfig {
    /// Settings that the server uses.
    pub config: Config,
    /// Settings file, if one was read.
    pub file: Option<PathBuf>,
    /// Harmless problems of the settings, such as unknown variables.
    pub warnings: Vec<String>,
}

/// Loads the settings for the workspace `root`: defaults, then the file, then the environment
/// `env`.
///
/// The file is `explicit`, or `toolgate.toml` in `root` if it exists.
///
/// # Errors
/// A setting is invalid, or an untrusted file in the workspace contains settings that only the
/// owner may decide.
pub fn load(
    root: &Path,
    explicit: Option<&Path>,
    env: &[(OsString, OsString)],
) -> anyhow::Result<LoadedConfig> {
    let env: Vec<_> = env.iter().filter_map(|(k, v)| Some((k.to_str()?, v.to_str()?))).collect();
    let file = match explicit {
        Some(path) => Some(path.to_owned()),
        None => Some(root.join(SETTINGS_FILE_NAME)).filter(|path| path.symlink_metadata().is_ok()),
    };
    // A workspace may come from anybody, so its file must not be a link to a trusted file.
    let links = if explicit.is_some() {
        OwnedFileSymlinkPolicy::Followed
    } else {
        OwnedFileSymlinkPolicy::Refused
    };
    let text = match &file {
        Some(path) => owned_files::read_text(path, links, FILE_BYTES_MAX)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?,
        None => String::new(),
    };
    read(text, file, explicit.is_some(), &env)
}

/// Loads the settings from `text`, the content of the settings file, and from the environment
/// `env`. Fails if a setting is invalid. Also fails if the file is not trusted, unless `named` says
/// that the user named it.
fn read(
    text: String,
    file: Option<PathBuf>,
    named: bool,
    env: &[(&str, &str)],
) -> anyhow::Result<LoadedConfig> {
    let place = file.as_ref().map_or_else(String::new, |path| path.display().to_string());
    // Lazy, because building the list takes longer than everything else here.
    let settings = LazyCell::new(settings);
    // Only errors from parsing the text directly carry a line number.
    let mut config: Config = toml::from_str(&text)
        .map_err(|err| describe_error(err, &text, &settings).context(format!("in {place}")))?;
    if let (false, Some(file)) = (named, &file) {
        trust::check(file, &text)?;
    }
    let mut table: toml::Table = toml::from_str(&text)?;

    if let Some(variable) = contracts::put_settings(&mut table, &settings, env)? {
        config = from_table(&table).with_context(|| format!("in {variable}"))?;
    }
    let ours =
        |(name, _): &&(&str, &str)| name.starts_with(ENV_PREFIX) && !OTHER_VARIABLES.contains(name);
    let mut warnings = Vec::new();
    for (name, value) in env.iter().filter(ours) {
        let full = SHORT_VARIABLES.iter().find(|(short, _)| short == name);
        let full = full.map_or(*name, |(_, full)| *full);
        if full != *name && env.iter().any(|(other, _)| *other == full) {
            continue;
        }
        let Some(setting) = settings.iter().find(|setting| setting.env == full) else {
            warnings.push(unknown_variable(&settings, name));
            continue;
        };
        setting.set(&mut table, value)?;
        config = from_table(&table).with_context(|| format!("in {name}"))?;
    }
    warnings.extend(contracts::apply_others(&mut config, env)?);
    config.search.take_secrets(|name| env.iter().find(|(it, _)| *it == name).map(|(_, v)| *v));
    config.fleet.take_secrets(|name| env.iter().find(|(it, _)| *it == name).map(|(_, v)| *v));
    check(&config)?;
    warnings.extend(config.assets.backend_problem());
    config.is_file_named = named;
    config.source = file.clone().map(|file| commands::CommandDeclarationSource { file, text });
    Ok(LoadedConfig { config, file, warnings })
}

/// Returns the error `err` of parsing `text`, with a description for people.
fn describe_error(
    err: toml::de::Error,
    text: &str,
    settings: &impl Deref<Target = Vec<SettingSpec>>,
) -> anyhow::Error {
    let description = toml::from_str(text).ok().and_then(|table| {
        describe_shape_error(&table)
            .or_else(|| describe_type_error(&table, settings))
            .or_else(|| describe_missing_profile(err.message()))
            .or_else(|| describe_parse_error(err.message()))
    });
    let Some(description) = description else { return err.into() };
    let shown = err.to_string();
    // After a suggestion, the parser's message says nothing new.
    let is_enough = description.contains("; did you mean ");
    let excerpt = is_enough.then(|| shown.trim_end().strip_suffix(err.message())).flatten();
    let excerpt = excerpt.unwrap_or(&shown).trim_end();
    anyhow!("{excerpt}").context(description)
}

/// Returns the settings in `table`. Fails if a setting is invalid.
fn from_table(table: &toml::Table) -> anyhow::Result<Config> {
    // Through text, so that the compiler creates one deserializer for all settings, and not two.
    let text = toml::to_string(table)?;
    toml::from_str(&text).map_err(|mut err: toml::de::Error| {
        // Without its input, the error names the setting, and no line of a text that nobody wrote.
        err.set_input(None);
        anyhow!("{}", err.to_string().trim_end().replace('\n', " "))
    })
}

/// Fuzz target: panics if valid settings change when they are written and read again.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_text(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (text, env) = text.split_once('\u{1f}').unwrap_or((text, ""));
    let env: Vec<_> = env.lines().filter_map(|line| line.split_once('=')).collect();
    let Ok(LoadedConfig { config, .. }) = read(text.to_owned(), None, true, &env) else { return };
    let written = toml::to_string(&config).expect("parsed settings serialize");
    let again: Config = toml::from_str(&written).expect("serialized settings parse");
    assert_eq!(toml::to_string(&again).expect("parsed settings serialize"), written);
}

/// Returns this process's environment.
pub fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// Returns toolgate's state folder, `$XDG_STATE_HOME/toolgate` or `~/.local/state/toolgate`.
/// Returns `None` if neither `XDG_STATE_HOME` nor `HOME` is an absolute path.
pub fn state_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("toolgate"))
}

/// Returns toolgate's cache folder, `$XDG_CACHE_HOME/toolgate` or `~/.cache/toolgate`. Returns
/// `None` if neither `XDG_CACHE_HOME` nor `HOME` is an absolute path.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("toolgate"))
}

/// Checks that an address which other machines can reach requires a credential and TLS.
///
/// # Errors
/// The address requires no credential or no TLS, or the key file cannot be trusted. The message
/// contains advice.
pub fn check_listen(listen: SocketAddr, config: &Config) -> anyhow::Result<()> {
    check_reach(listen, &config.server, config.requires_credential()?)
}

/// Checks that an address which other machines can reach requires a credential and TLS.
///
/// `needs_credential` is true if callers need one.
///
/// # Errors
/// The credential or TLS is missing. The message contains advice.
pub fn check_reach(
    listen: SocketAddr,
    server: &ServerSection,
    needs_credential: bool,
) -> anyhow::Result<()> {
    if listen.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    if !needs_credential {
        bail!(
            "other machines can reach {listen}, and no credential is configured, so anyone could call \
             tools. Create a key with `toolgate key new NAME`, configure [[oauth]], or listen at \
             127.0.0.1 (server.listen, --listen)"
        );
    }
    if server.tls_certificate.is_none() && !server.plaintext {
        bail!(
            "other machines can reach {listen}, and their requests and credentials would be \
             unencrypted. Set server.tls_certificate and server.tls_key, or server.plaintext if a \
             reverse proxy encrypts the connections"
        );
    }
    Ok(())
}

/// Checks the ranges and combinations of settings that the types cannot express. Fails at the first
/// invalid setting.
fn check(config: &Config) -> anyhow::Result<()> {
    const MANY: u64 = 1_000_000;
    const DAY_MS: u64 = 86_400_000;
    let Config { server, limits, .. } = config;
    let ranges = [
        ("limits.calls", limits.calls as u64, 1, MANY),
        ("limits.programs", limits.programs as u64, 1, MANY),
        ("limits.message_bytes", limits.message_bytes as u64, 1024, 1 << 30),
        ("limits.wait_ms", limits.wait_ms, 0, DAY_MS),
        ("limits.deadline_ms", limits.deadline_ms, 1, DAY_MS),
        ("discovery.budget_tokens", config.discovery.budget_tokens.into(), 0, 10 * MANY),
        ("server.connections_max", server.connections_max as u64, 1, MANY),
        ("server.drain_ms", server.drain_ms, 0, DAY_MS),
        ("jobs.drain_ms", config.jobs.drain_ms, 0, DAY_MS),
        ("audit.keep", config.audit.keep.into(), 1, 1000),
    ];
    for (name, value, min, max) in ranges {
        if !(min..=max).contains(&value) {
            bail!("{name} is {value}; it must be {min} to {max}");
        }
    }
    let is_invalid = |entry: &&String| {
        let name = entry.strip_prefix(files::RELEASE).unwrap_or(entry);
        name.contains(['*', '?'])
            || name.split('/').any(|part| part == "..")
            || name.trim_matches('/').is_empty()
    };
    if let Some(invalid) = config.files.protected.iter().find(is_invalid) {
        bail!(
            "`{invalid}` in files.protected is invalid; write names and paths of files and folders \
             in the workspace, such as `infra`, `docs/keys` or `!.vscode`, and no patterns"
        );
    }
    check_distinct_listeners(config)?;
    keys::check(config)?;
    key_file::path(server)?;
    proxies::check(server)?;
    oauth::check(config)?;
    check_tls(server)?;
    for RateLimitEntry { tools, calls, in_ms } in &limits.rate {
        let ranges = [("calls", u64::from(*calls), MANY), ("in_ms", *in_ms, DAY_MS)];
        if let Some((name, value, max)) =
            ranges.iter().find(|(_, value, max)| !(1..=*max).contains(value))
        {
            bail!(
                "{name} of the rule for `{tools}` in limits.rate is {value}; it must be 1 to {max}"
            );
        }
    }
    if let Some(url) = server.url.as_deref().filter(|url| !is_endpoint(url)) {
        bail!(
            "server.url is `{url}`; write the public URL of the MCP endpoint, such as \
             `https://tools.example/mcp`"
        );
    }
    if let Some(program) = config.exec.confirm.iter().find(|program| !is_program(program)) {
        bail!(
            "`{program}` in exec.confirm is invalid; write the name or absolute path of a program, \
             with its first arguments if needed, such as `rm` or `git push`"
        );
    }
    let prompts = &config.prompts;
    let skills = &config.skills;
    let assets = &config.assets;
    let checked = prompts.check().and_then(|()| skills.check()).and_then(|()| assets.check());
    let checked = checked.and_then(|()| config.fleet.check());
    let checked = checked.and_then(|()| config.search.check()).and_then(|()| {
        let mut folders = config.envelope.schemas.iter();
        folders.try_for_each(|folder| check_folder("envelope.schemas", folder))
    });
    checked.map_err(|why| anyhow!(why))
}

/// Checks that no two dialects listen at the same address. Port 0 is ignored, because the system
/// then selects a different port for each listener.
fn check_distinct_listeners(config: &Config) -> anyhow::Result<()> {
    let is_off = |dialect: &str| config.contracts.zyra_off && dialect == "zyra";
    let open = |at: usize| {
        let entry = config.listen.get(at)?;
        (entry.addr.port() != 0 && !is_off(&entry.dialect)).then_some(entry)
    };
    for later in 0..config.listen.len() {
        let Some(entry) = open(later) else { continue };
        if let Some(first) = (0..later).filter_map(open).find(|first| first.addr == entry.addr) {
            bail!(
                "the [[listen]] tables of {1} and {2} have the same address, {0}; write another \
                 `addr` in one of them",
                entry.addr,
                first.dialect,
                entry.dialect
            );
        }
    }
    Ok(())
}

/// Checks that `server` names both the TLS certificate and its key or neither, and that the paths
/// of these files and of the session key are absolute.
fn check_tls(server: &ServerSection) -> anyhow::Result<()> {
    let files = [("tls_certificate", &server.tls_certificate), ("tls_key", &server.tls_key)];
    let sessions = [("session_key", &server.session_key)];
    for (name, file) in files.into_iter().chain(sessions) {
        if let Some(path) = file.as_deref().filter(|path| !Path::new(path).is_absolute()) {
            bail!(
                "server.{name} is `{path}`; write an absolute path (a relative path would be in the \
                 workspace, where tools can read)"
            );
        }
    }
    match files {
        [(_, Some(_)), (missing, None)] | [(missing, None), (_, Some(_))] => bail!(
            "server.{missing} is missing: TLS needs server.tls_certificate and server.tls_key"
        ),
        [(_, Some(_)), (_, Some(_))] | [(_, None), (_, None)] => Ok(()),
    }
}

/// Returns an error message about the first setting in `table` whose value has the wrong type, or
/// `None` if all types are right.
fn describe_type_error(table: &toml::Table, settings: &[SettingSpec]) -> Option<String> {
    settings.iter().find_map(|setting| {
        let [section, name] = &setting.path;
        let value = match table.get(section)? {
            toml::Value::Table(section) => section.get(name)?,
            _ => return Some(format!("`{section}` must be a table, `[{section}]`")),
        };
        (!setting.accepts(value))
            .then(|| format!("{section}.{name} must be {}", setting.expected()))
    })
}

/// Returns an explanation of the parser's error `message` if it says that a `[[sandbox.for]]` table
/// has no profile, or `None` for other messages.
fn describe_missing_profile(message: &str) -> Option<String> {
    (message == "missing field `profile`").then(|| {
        "`profile` is missing in a `[[sandbox.for]]` table; write `read-only`, `workspace`, \
         `network` or `off`"
            .to_owned()
    })
}

/// Returns true if `url` has the form of an MCP endpoint, such as `https://tools.example/mcp`.
fn is_endpoint(url: &str) -> bool {
    HttpUrl::parse(url).is_ok_and(|url| !url.has_query() && url.trimmed_path().ends_with("/mcp"))
}

/// Returns true if `pattern`, a pattern of command lines, starts with a program name or an absolute
/// path.
fn is_program(pattern: &str) -> bool {
    let program = pattern.split_whitespace().next();
    program.is_some_and(|program| !program.contains('/') || program.starts_with('/'))
}

fn unknown_variable(settings: &[SettingSpec], name: &str) -> String {
    let near = |s: &SettingSpec| strsim::normalized_damerau_levenshtein(&s.env, name);
    let close = settings.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
    let close = close.filter(|setting| near(setting) > 0.75);
    let hint = close.map(|s| format!("; did you mean {}?", s.env)).unwrap_or_default();
    format!("the environment variable {name} is not a setting{hint}")
}
