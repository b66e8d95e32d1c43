//! Reads the settings: defaults, then the file, then the environment.
#![allow(
    clippy::disallowed_methods,
    reason = "the one place that reads the environment and the file"
)]

use std::cell::LazyCell;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use http::Uri;

use toolgate_toolsets::{check_folder, commands};

use crate::trusted::{self, Links};

use super::setting::{ENV_PREFIX, Setting, settings};
use super::{Config, FILE_NAME, Rate, Server, contracts, key_file, keys, oauth, trust};

/// How large a configuration may be.
pub(crate) const FILE_BYTES_MAX: u64 = 8 << 20;

/// Variables of ours that are not settings.
const ENV_OTHER: [&str; 4] =
    ["TOOLGATE_CONFIG", "TOOLGATE_ROOT", "TOOLGATE_READ_ONLY", "TOOLGATE_KEY"];

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
///
/// # Errors
/// When a setting cannot be, or one in the file of the folder is only the owner's to decide and
/// nobody has vouched for it.
pub fn load(
    root: &Path,
    explicit: Option<&Path>,
    env: &[(OsString, OsString)],
) -> anyhow::Result<Loaded> {
    let env: Vec<_> = env.iter().filter_map(|(k, v)| Some((k.to_str()?, v.to_str()?))).collect();
    let file = match explicit {
        Some(path) => Some(path.to_owned()),
        None => Some(root.join(FILE_NAME)).filter(|path| path.symlink_metadata().is_ok()),
    };
    // What lies in a folder may be a link to what is believed somewhere else, or no file at all.
    let links = if explicit.is_some() { Links::Followed } else { Links::Refused };
    let text = match &file {
        Some(path) => trusted::text(path, links, FILE_BYTES_MAX)
            .with_context(|| format!("the configuration {} cannot be read", path.display()))?,
        None => String::new(),
    };
    read(text, file, explicit.is_some(), &env)
}

/// Reads the settings that `text` says, which is the file's, and then the environment. A file that
/// nobody `named` was only lying there.
fn read(
    text: String,
    file: Option<PathBuf>,
    named: bool,
    env: &[(&str, &str)],
) -> anyhow::Result<Loaded> {
    let place = file.as_ref().map_or_else(String::new, |path| path.display().to_string());
    // To make them takes longer than all else here, and mostly nobody asks.
    let settings = LazyCell::new(settings);
    // Read as settings first: only then do errors carry the line.
    if let Err(err) = toml::from_str::<Config>(&text) {
        let told = toml::from_str(&text).ok().and_then(|table| misfit(&table, &settings));
        let err = anyhow::Error::from(err);
        let err = told.into_iter().fold(err, anyhow::Error::context);
        return Err(err.context(format!("in {place}")));
    }
    if let (false, Some(file)) = (named, &file) {
        trust::check(file, &text)?;
    }
    let mut table: toml::Table = toml::from_str(&text)?;

    contracts::put(&mut table, &settings, env)?;

    let mut config: Config = table.clone().try_into().context("in the contracts' environment")?;
    let ours =
        |(name, _): &&(&str, &str)| name.starts_with(ENV_PREFIX) && !ENV_OTHER.contains(name);
    let mut warnings = Vec::new();
    for (name, value) in env.iter().filter(ours) {
        let Some(setting) = settings.iter().find(|setting| setting.env == *name) else {
            warnings.push(unknown_variable(&settings, name));
            continue;
        };
        setting.put(&mut table, value)?;
        config = table.clone().try_into().with_context(|| format!("in {name}"))?;
    }
    contracts::put_beside(&mut config, env)?;
    config.search.take_secrets(|name| env.iter().find(|(it, _)| *it == name).map(|(_, v)| *v));
    check(&config)?;
    config.source = file.clone().map(|file| commands::Source { file, text });
    Ok(Loaded { config, file, warnings })
}

/// Reads settings, and after the byte 0x1f an environment, a variable a line: what is sound is
/// written as what reads the same.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_text(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (text, env) = text.split_once('\u{1f}').unwrap_or((text, ""));
    let env: Vec<_> = env.lines().filter_map(|line| line.split_once('=')).collect();
    let Ok(Loaded { config, .. }) = read(text.to_owned(), None, true, &env) else { return };
    let written = toml::to_string(&config).expect("it was read");
    let again: Config = toml::from_str(&written).expect("it was written here");
    assert_eq!(toml::to_string(&again).expect("it was read"), written);
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

/// Where this user's programs keep what they can make again.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("toolgate"))
}

/// Refuses to listen at `listen` where other machines reach it and `config` asks nobody who they
/// are, or has what they say come unencrypted.
///
/// # Errors
/// When it does, with what to configure; or when the file of keys cannot be believed.
pub fn check_listen(listen: SocketAddr, config: &Config) -> anyhow::Result<()> {
    check_reach(listen, &config.server, config.asks()?)
}

/// The same where `asks` says whether callers must say who they are.
///
/// # Errors
/// The same.
pub fn check_reach(listen: SocketAddr, server: &Server, asks: bool) -> anyhow::Result<()> {
    if listen.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    if !asks {
        bail!(
            "it is to listen at {listen}, which other machines reach, and nobody who calls there \
             would be asked who they are: no credential is configured. Make a key with `toolgate \
             key new NAME`, or configure [[oauth]]; or listen at 127.0.0.1 (server.listen, --listen)"
        );
    }
    if server.tls_certificate.is_none() && !server.plaintext {
        bail!(
            "it is to listen at {listen}, which other machines reach, and what they send would come \
             unencrypted, credentials too. Set server.tls_certificate and server.tls_key; or \
             server.plaintext, where a reverse proxy before it speaks TLS"
        );
    }
    Ok(())
}

/// Refuses what no type can: a limit of nothing, a bound beyond all use.
fn check(config: &Config) -> anyhow::Result<()> {
    const MANY: u64 = 1_000_000;
    const DAY_MS: u64 = 86_400_000;
    let Config { server, limits, jobs, .. } = config;
    let ranges = [
        ("limits.calls", limits.calls as u64, 1, MANY),
        ("limits.programs", limits.programs as u64, 1, MANY),
        ("limits.calls_each", limits.calls_each as u64, 0, MANY),
        ("limits.programs_each", limits.programs_each as u64, 0, MANY),
        ("limits.refused", limits.refused.into(), 0, MANY),
        ("limits.refused_per_s", limits.refused_per_s.into(), 1, MANY),
        ("limits.waiting", limits.waiting as u64, 0, MANY),
        ("limits.in_flight", limits.in_flight as u64, 1, MANY),
        ("limits.page_size", limits.page_size as u64, 1, MANY),
        ("limits.message_bytes", limits.message_bytes as u64, 1024, 1 << 30),
        ("limits.wait_ms", limits.wait_ms, 0, DAY_MS),
        ("limits.deadline_ms", limits.deadline_ms, 1, DAY_MS),
        ("limits.answer_ms", limits.answer_ms, 0, DAY_MS),
        ("limits.cancel_grace_ms", limits.cancel_grace_ms, 0, DAY_MS),
        ("limits.eof_grace_ms", limits.eof_grace_ms, 0, DAY_MS),
        ("server.connections_max", server.connections_max as u64, 1, MANY),
        ("server.streams_max", server.streams_max as u64, 1, MANY),
        ("server.streams_each", server.streams_each as u64, 1, MANY),
        ("server.sessions_max", server.sessions_max as u64, 1, MANY),
        ("server.head_time_ms", server.head_time_ms, 1, DAY_MS),
        ("server.body_time_ms", server.body_time_ms, 1, DAY_MS),
        ("server.write_time_ms", server.write_time_ms, 1, DAY_MS),
        ("server.stream_after_ms", server.stream_after_ms, 0, DAY_MS),
        ("server.keep_alive_ms", server.keep_alive_ms, 1, DAY_MS),
        ("server.drain_ms", server.drain_ms, 0, DAY_MS),
        ("exec.timeout_ms", config.exec.timeout_ms, 1, 600_000),
        ("git.timeout_ms", config.git.timeout_ms, 1, 600_000),
        ("ci.timeout_ms", config.ci.timeout_ms, 1, 600_000),
        ("ci.output_bytes", config.ci.output_bytes as u64, 1, 1 << 20),
        ("ci.failures_max", config.ci.failures_max as u64, 1, 10_000),
        ("search.files_max", config.search.files_max as u64, 1, MANY),
        ("search.text_bytes_max", config.search.text_bytes_max, 1, 1 << 40),
        ("search.documents_max", config.search.documents_max as u64, 1, MANY),
        ("docs.bytes_max", config.docs.bytes_max, 1, 1 << 30),
        ("jobs.running", jobs.running as u64, 1, MANY),
        ("jobs.queued", jobs.queued as u64, 1, MANY),
        ("jobs.deadline_ms", jobs.deadline_ms, 1, 365 * DAY_MS),
        ("jobs.keep_ms", jobs.keep_ms, 0, 3650 * DAY_MS),
        ("jobs.keep_max_ms", jobs.keep_max_ms, 0, 3650 * DAY_MS),
        ("jobs.ended", jobs.ended as u64, 0, 100 * MANY),
        ("audit.file_bytes", config.audit.file_bytes, 1 << 16, 1 << 30),
        ("audit.keep", config.audit.keep.into(), 1, 1000),
        ("jobs.output_bytes", jobs.output_bytes as u64, 0, 1 << 30),
    ];
    for (name, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            bail!("{name} is {value}; it may be {least} to {most}");
        }
    }
    for (setting, names) in
        [("protected", &config.files.protected), ("unprotected", &config.files.unprotected)]
    {
        let is_odd = |name: &&String| {
            name.contains(['*', '?'])
                || name.split('/').any(|part| part == "..")
                || name.trim_matches('/').is_empty()
        };
        if let Some(odd) = names.iter().find(is_odd) {
            bail!(
                "files.{setting} has `{odd}`; it may have names and paths of files and folders in \
                 the folder that is served, such as `infra` or `docs/keys`, and no patterns"
            );
        }
    }
    keys::check(config)?;
    key_file::path(server)?;
    oauth::check(config)?;
    check_tls(server)?;
    for Rate { tools, calls, in_ms, burst } in &limits.rate {
        let ranges = [
            ("calls", u64::from(*calls), MANY),
            ("in_ms", *in_ms, DAY_MS),
            ("burst", u64::from(burst.unwrap_or(*calls)), MANY),
        ];
        if let Some((name, value, most)) =
            ranges.iter().find(|(_, value, most)| !(1..=*most).contains(value))
        {
            bail!(
                "{name} of the rule over `{tools}` in limits.rate is {value}; it may be 1 to {most}"
            );
        }
    }
    if let Some(name) = server.card.as_deref().filter(|name| !is_worldwide(name)) {
        bail!(
            "server.card is `{name}`; it may be a domain of yours, reversed, and a name, such as \
             `com.example/tools`"
        );
    }
    if let Some(url) = server.url.as_deref().filter(|url| !is_endpoint(url)) {
        bail!(
            "server.url is `{url}`; it may be where clients reach the endpoint, such as \
             `https://tools.example/mcp`"
        );
    }
    if let Some(program) = config.exec.confirm.iter().find(|program| !is_program(program)) {
        bail!(
            "exec.confirm has `{program}`; it may have programs by name or by absolute path, and \
             the arguments they begin with, such as `rm` or `git push`"
        );
    }
    let (prompts, skills, assets) = (&config.prompts, &config.skills, &config.assets);
    let checked = prompts.check().and_then(|()| skills.check()).and_then(|()| assets.check());
    let checked = checked.and_then(|()| config.search.check()).and_then(|()| {
        let mut folders = config.envelope.schemas.iter();
        folders.try_for_each(|folder| check_folder("envelope.schemas", folder))
    });
    checked.map_err(|why| anyhow!(why))
}

/// Refuses half of what TLS needs, and files that tools could write.
fn check_tls(server: &Server) -> anyhow::Result<()> {
    let files = [("tls_certificate", &server.tls_certificate), ("tls_key", &server.tls_key)];
    let sessions = [("session_key", &server.session_key)];
    for (name, file) in files.into_iter().chain(sessions) {
        if let Some(path) = file.as_deref().filter(|path| !Path::new(path).is_absolute()) {
            bail!(
                "server.{name} is `{path}`; give an absolute path (a relative one would lie among \
                 the files that tools can read)"
            );
        }
    }
    match files {
        [(_, Some(_)), (missing, None)] | [(missing, None), (_, Some(_))] => bail!(
            "server.{missing} is missing: TLS needs a certificate and its key, \
             server.tls_certificate and server.tls_key"
        ),
        [(_, Some(_)), (_, Some(_))] | [(_, None), (_, None)] => Ok(()),
    }
}

/// What is wrong with the first setting that is of another type than its own.
fn misfit(table: &toml::Table, settings: &[Setting]) -> Option<String> {
    settings.iter().find_map(|setting| {
        let [section, name] = &setting.path;
        let value = match table.get(section)? {
            toml::Value::Table(section) => section.get(name)?,
            _ => return Some(format!("`{section}` must be a table, `[{section}]`")),
        };
        (!setting.fits(value)).then(|| format!("{section}.{name} must be {}", setting.meant()))
    })
}

/// Whether `url` reads `https://tools.example/mcp`.
fn is_endpoint(url: &str) -> bool {
    url.parse::<Uri>().is_ok_and(|uri| {
        let host = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        scheme
            && host
            && uri.query().is_none()
            && uri.path().trim_end_matches('/').ends_with("/mcp")
    })
}

/// Whether `pattern` begins with a program by its name or by an absolute path.
fn is_program(pattern: &str) -> bool {
    let program = pattern.split_whitespace().next();
    program.is_some_and(|program| !program.contains('/') || program.starts_with('/'))
}

/// Whether `name` reads `com.example/tools`.
fn is_worldwide(name: &str) -> bool {
    let sound = |part: &str, also: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || also.contains(c);
        !part.is_empty() && part.chars().all(fits)
    };
    name.len() <= 200
        && name
            .split_once('/')
            .is_some_and(|(domain, name)| sound(domain, ".-") && sound(name, "._-"))
}

fn unknown_variable(settings: &[Setting], name: &str) -> String {
    let near = |s: &Setting| strsim::normalized_damerau_levenshtein(&s.env, name);
    let close = settings.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
    let close = close.filter(|setting| near(setting) > 0.75);
    let hint = close.map(|s| format!("; did you mean {}?", s.env)).unwrap_or_default();
    format!("the environment variable {name} is not a setting{hint}")
}
