//! Applies environment variables that other contracts (Synesthetic, RAGX and Zyra) define.
//!
//! A setting's own variable (`TOOLGATE_…`) takes precedence over these variables, and these take
//! precedence over the settings file. An empty variable counts as unset.

use std::ops::Deref;
use std::path::PathBuf;

use anyhow::{Context, bail};
use toolgate_host::OutputSchemaCheck;

use super::setting::SettingSpec;
use super::{ApiKey, Config};

/// Effect of an environment variable that another contract defines, such as Zyra's.
enum ContractEnvVarTarget {
    /// Sets the setting `section.name`. The value is parsed like the setting's own environment
    /// variable.
    Setting(&'static str),
    /// Calls this function, because the value is not a single setting.
    Apply(fn(&mut Config, &str) -> anyhow::Result<()>),
    /// Calls this function, because the value concerns only Zyra's endpoint. If the function fails,
    /// that endpoint is not served.
    ApplyToZyra(fn(&mut Config, &str) -> anyhow::Result<()>),
}

use ContractEnvVarTarget::{Apply, ApplyToZyra, Setting as The};

/// Environment variables that other contracts define, each with its effect.
const VARIABLES: &[(&str, ContractEnvVarTarget)] = &[
    // Synesthetic
    ("MCP_READY_FILE", Apply(ready_file)),
    ("MCP_ENDPOINT", Apply(endpoint)),
    ("SYN_SCHEMAS_DIR", Apply(schemas)),
    ("SYN_EXAMPLES_DIR", Apply(examples)),
    ("SYN_BACKEND_URL", The("assets.backend_url")),
    ("SYN_BACKEND_ASSETS_PATH", Apply(assets_path)),
    // RAGX
    ("RAGX_MCP_ENVELOPE_VALIDATION", Apply(envelope_validation)),
    // Zyra; variables with its former prefix have lower precedence.
    ("DATAVIZHUB_ENABLE_MCP", ApplyToZyra(zyra_served)),
    ("ZYRA_ENABLE_MCP", ApplyToZyra(zyra_served)),
    ("DATAVIZHUB_MCP_MAX_BODY_BYTES", ApplyToZyra(zyra_body_bytes_max)),
    ("ZYRA_MCP_MAX_BODY_BYTES", ApplyToZyra(zyra_body_bytes_max)),
    ("ZYRA_API_KEY", Apply(zyra_key)),
    ("DATAVIZHUB_API_KEY", Apply(zyra_legacy_key)),
    ("API_KEY_HEADER", Apply(key_header)),
    ("ZYRA_API_KEY_HEADER", Apply(key_header)),
    ("DATAVIZHUB_API_KEY_HEADER", Apply(key_header)),
];

/// Values of the environment variables of other contracts, such as Zyra's, that are not settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContractEnvVarValues {
    /// File that exists while a stdio client is served (`MCP_READY_FILE`).
    pub ready_file: Option<PathBuf>,
    /// Endpoint to which Synesthetic's client connects (`MCP_ENDPOINT`).
    pub endpoint: Option<String>,
    /// True if Zyra's dialect is not served over HTTP (`ZYRA_ENABLE_MCP=0`).
    pub zyra_off: bool,
    /// Additional headers that may carry an API key, besides `X-API-Key` and `Authorization:
    /// Bearer` (`ZYRA_API_KEY_HEADER`).
    pub key_headers: Vec<String>,
    /// Largest Zyra request over HTTP, in bytes (`ZYRA_MCP_MAX_BODY_BYTES`).
    pub zyra_body_bytes_max: Option<usize>,
}

fn ready_file(config: &mut Config, path: &str) -> anyhow::Result<()> {
    config.contracts.ready_file = Some(PathBuf::from(path));
    Ok(())
}

fn endpoint(config: &mut Config, endpoint: &str) -> anyhow::Result<()> {
    config.contracts.endpoint = Some(endpoint.to_owned());
    Ok(())
}

fn envelope_validation(config: &mut Config, mode: &str) -> anyhow::Result<()> {
    config.envelope.validation = match mode.trim().to_ascii_lowercase().as_str() {
        "off" => OutputSchemaCheck::Off,
        "shadow" => OutputSchemaCheck::Shadow,
        "enforce" => OutputSchemaCheck::Enforce,
        other => bail!("`{other}` is invalid; write off, shadow or enforce"),
    };
    Ok(())
}

fn zyra_served(config: &mut Config, served: &str) -> anyhow::Result<()> {
    config.contracts.zyra_off = match served.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => false,
        "0" | "false" | "no" | "off" => true,
        other => bail!("`{other}` is invalid; write 1 or 0"),
    };
    Ok(())
}

fn zyra_body_bytes_max(config: &mut Config, bytes: &str) -> anyhow::Result<()> {
    let bytes = bytes.trim().parse::<usize>();
    let bytes = bytes.ok().context("write a whole number of bytes; 0 means no limit")?;
    config.contracts.zyra_body_bytes_max = Some(bytes).filter(|bytes| *bytes > 0);
    Ok(())
}

fn zyra_key(config: &mut Config, key: &str) -> anyhow::Result<()> {
    let key = ApiKey::from_secret("zyra", key);
    // The settings file may already contain this key.
    if !config.keys.contains(&key) {
        config.keys.push(key);
    }
    Ok(())
}

fn zyra_legacy_key(config: &mut Config, key: &str) -> anyhow::Result<()> {
    // A key from the newer variable takes precedence.
    if config.keys.iter().any(|key| key.name == "zyra") { Ok(()) } else { zyra_key(config, key) }
}

fn key_header(config: &mut Config, header: &str) -> anyhow::Result<()> {
    config.contracts.key_headers.push(header.to_owned());
    Ok(())
}

fn schemas(config: &mut Config, folder: &str) -> anyhow::Result<()> {
    config.assets.owner.schemas = Some(folder.to_owned());
    Ok(())
}

fn examples(config: &mut Config, folder: &str) -> anyhow::Result<()> {
    config.assets.owner.examples = Some(folder.to_owned());
    Ok(())
}

fn assets_path(config: &mut Config, path: &str) -> anyhow::Result<()> {
    config.assets.owner.backend_assets_path = Some(path.to_owned());
    Ok(())
}

/// Writes the values of the contracts' environment variables that correspond to settings into
/// `table`, the content of the settings file. Returns the last of these variables, if there is one.
/// Fails if a value is invalid.
pub(super) fn put_settings(
    table: &mut toml::Table,
    settings: &impl Deref<Target = Vec<SettingSpec>>,
    env: &[(&str, &str)],
) -> anyhow::Result<Option<&'static str>> {
    let mut last = None;
    for (variable, target, value) in set_variables(env) {
        let The(path) = target else { continue };
        let setting = settings.iter().find(|setting| setting.path.join(".") == *path);
        let setting =
            setting.with_context(|| format!("{variable} sets {path}, which is not a setting"))?;
        setting.set(table, value).with_context(|| format!("in {variable}"))?;
        last = Some(variable);
    }
    Ok(last)
}

/// Applies the contracts' environment variables that do not correspond to settings to `config`. If
/// a variable for Zyra's endpoint is invalid, returns a warning and switches that endpoint off.
/// Fails if any other variable is invalid.
pub(super) fn apply_others(
    config: &mut Config,
    env: &[(&str, &str)],
) -> anyhow::Result<Vec<String>> {
    let mut warnings = Vec::new();
    for (variable, target, value) in set_variables(env) {
        match target {
            The(_) => {}
            Apply(set) => set(config, value).with_context(|| format!("in {variable}"))?,
            ApplyToZyra(set) => {
                if let Err(err) = set(config, value) {
                    warnings.push(format!("Zyra is not served over HTTP: in {variable}: {err:#}"));
                }
            }
        }
    }
    // Another variable may have switched it on.
    config.contracts.zyra_off |= !warnings.is_empty();
    Ok(warnings)
}

/// Returns the environment variables of other contracts that are set: the name, the effect and the
/// value of each.
fn set_variables<'a>(
    env: &'a [(&str, &str)],
) -> impl Iterator<Item = (&'static str, &'static ContractEnvVarTarget, &'a str)> {
    VARIABLES.iter().filter_map(|(variable, target)| {
        let (_, value) = env.iter().find(|(name, value)| name == variable && !value.is_empty())?;
        Some((*variable, target, *value))
    })
}
