//! Reads the settings: defaults, then the file, then the environment.
#![allow(
    clippy::disallowed_methods,
    reason = "the one place that reads the environment and the file"
)]

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use toolgate_toolsets::commands;

use super::setting::{ENV_PREFIX, Setting, settings};
use super::{Config, FILE_NAME};

/// Variables of ours that are not settings.
const ENV_OTHER: [&str; 3] = ["TOOLGATE_CONFIG", "TOOLGATE_ROOT", "TOOLGATE_READ_ONLY"];

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
    config.source = file.clone().map(|file| commands::Source { file, text });
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
    let Config { server, limits, jobs, .. } = config;
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
        ("jobs.running", jobs.running as u64, 1, MANY),
        ("jobs.queued", jobs.queued as u64, 1, MANY),
        ("jobs.deadline_ms", jobs.deadline_ms, 1, 365 * DAY_MS),
        ("jobs.keep_ms", jobs.keep_ms, 0, 3650 * DAY_MS),
        ("jobs.keep_max_ms", jobs.keep_max_ms, 0, 3650 * DAY_MS),
        ("jobs.ended", jobs.ended as u64, 0, 100 * MANY),
        ("jobs.output_bytes", jobs.output_bytes as u64, 0, 1 << 30),
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
