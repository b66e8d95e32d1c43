//! Settings of secrets to redact, and functions that read these secrets.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{strip_byte_order_mark, variable_names};
use toolgate_upstream::{UpstreamSettings, UpstreamSettingsByName};
use toolgate_world::sandbox::SandboxSettings;

/// Shortest value of a configured secret, in bytes. Shorter values could occur in ordinary text.
const VALUE_BYTES_MIN: usize = 8;
/// Fewest letters and digits in an additional name of secrets.
const NAME_LETTERS_MIN: usize = 3;
/// Longest additional name of secrets, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Largest file of secrets, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Values that are redacted from all output: results, progress, job output, refusals, audit
/// records, envelopes and the log.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SecretsSection {
    /// Environment variables of the server whose values are secret, such as `DATABASE_PASSWORD`.
    pub values_from: Vec<String>,
    /// Absolute paths of files with one secret per line, such as `/run/secrets/deploy`.
    pub files: Vec<String>,
    /// Additional names of secrets, such as `pin` or `session_id`. toolgate redacts values with
    /// these names from refusals, audit records, envelopes and the log, as it does for `token` or
    /// `password`. The comparison of names ignores case and separators.
    pub names: Vec<String>,
}

impl SecretsSection {
    /// Reads the secret values from variables and files.
    ///
    /// # Errors
    /// A secret is missing, or shorter than 8 bytes.
    pub(crate) fn read_values(&self, env: &[(OsString, OsString)]) -> anyhow::Result<Vec<String>> {
        for name in &self.names {
            let letters = name.bytes().filter(u8::is_ascii_alphanumeric).count();
            if letters < NAME_LETTERS_MIN || name.len() > NAME_BYTES_MAX {
                bail!(
                    "`{name}` in secrets.names has {letters} letters and digits; a name needs at least \
                     {NAME_LETTERS_MIN}, and has at most {NAME_BYTES_MAX} bytes"
                );
            }
        }
        let mut values = Vec::new();
        for name in &self.values_from {
            let found = env.iter().find(|(it, _)| it.to_str() == Some(name));
            let Some((_, value)) = found else {
                bail!("the variable `{name}` of secrets.values_from is not set");
            };
            let value = value.to_str().with_context(|| {
                format!("the variable `{name}` of secrets.values_from is not UTF-8")
            })?;
            values.push(value.trim().to_owned());
            check_length(values.last(), || {
                format!("the variable `{name}` of secrets.values_from")
            })?;
        }
        for file in &self.files {
            let text = read(Path::new(file))
                .with_context(|| format!("cannot read the file `{file}` of secrets.files"))?;
            for (line, number) in text.lines().map(str::trim).zip(1..) {
                if !line.is_empty() {
                    values.push(line.to_owned());
                    check_length(values.last(), || {
                        format!("line {number} of the file `{file}` of secrets.files")
                    })?;
                }
            }
        }
        Ok(values)
    }
}

fn check_length(value: Option<&String>, source: impl Fn() -> String) -> anyhow::Result<()> {
    let length = value.map_or(0, String::len);
    if length < VALUE_BYTES_MIN {
        bail!(
            "{} has {length} bytes; a secret needs at least {VALUE_BYTES_MIN} bytes, because a \
             shorter one occurs in ordinary text",
            source()
        );
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "the user's own files, before anything is served")]
fn read(path: &Path) -> anyhow::Result<String> {
    if !path.is_absolute() {
        bail!("the path is not absolute");
    }
    if std::fs::metadata(path)?.len() > FILE_BYTES_MAX {
        bail!("the file is larger than {FILE_BYTES_MAX} bytes");
    }
    Ok(strip_byte_order_mark(&std::fs::read_to_string(path)?).to_owned())
}

/// Returns the secrets of the setting `sandbox.credentials`: the values of the environment
/// `variables` that it names. Programs use these credentials without seeing them. `env_keep` lists
/// the variables that programs can see.
///
/// # Errors
/// A secret is missing, is shorter than 8 bytes, or is in a variable that programs can see.
pub(crate) fn credential_secrets(
    sandbox: &SandboxSettings,
    env_keep: &[String],
    variables: &[(OsString, OsString)],
) -> anyhow::Result<Vec<String>> {
    let mut values = Vec::new();
    for credential in &sandbox.credentials {
        for name in variable_names(&credential.value) {
            let source = || format!("the variable `{name}` of sandbox.credentials");
            let found = variables.iter().find(|(it, _)| it.to_str() == Some(name));
            let Some((_, value)) = found else { bail!("{} is not set", source()) };
            let value = value.to_str().with_context(|| format!("{} is not UTF-8", source()))?;
            if env_keep.iter().any(|kept| kept == name) {
                bail!("programs could read {}; remove it from exec.env_keep", source());
            }
            values.push(value.trim().to_owned());
            check_length(values.last(), source)?;
        }
    }
    Ok(values)
}

/// Shortest value that counts as an upstream's secret, in bytes. Shorter values could occur in
/// ordinary text.
const SECRET_BYTES_MIN: usize = 8;

/// Returns the values of the environment `variables` that the upstreams in `tables` get as
/// credentials.
pub(crate) fn upstream_secrets(
    tables: &UpstreamSettingsByName,
    variables: &[(OsString, OsString)],
) -> Vec<String> {
    let texts = tables.values().flat_map(UpstreamSettings::private_values);
    let names = texts.flat_map(|text| variable_names(text).collect::<Vec<_>>());
    let value = |name: &str| {
        let found = variables.iter().find(|(it, _)| it.to_str() == Some(name));
        found.and_then(|(_, value)| value.to_str()).map(str::to_owned)
    };
    // A path or a lower-case word occurs in ordinary text, so it is not treated as a secret.
    let is_secret = |value: &String| {
        value.len() >= SECRET_BYTES_MIN
            && !value.starts_with('/')
            && value.bytes().any(|byte| !byte.is_ascii_lowercase())
    };
    names.filter_map(value).filter(is_secret).collect()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes the file that is read")]
mod tests {
    use super::*;

    #[test]
    fn a_credential_of_programs_needs_a_variable_with_a_long_secret() {
        let variables = [("TOKEN", "long-enough"), ("SHORT", "abc1234"), ("KEPT", "long-enough")];
        let variables =
            variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let read = |value: &str| {
            let text = format!("credentials = [{{ host = \"a.example\", value = \"{value}\" }}]");
            let sandbox: SandboxSettings = toml::from_str(&text).expect("valid settings");
            let kept = ["KEPT".to_owned()];
            credential_secrets(&sandbox, &kept, &variables).map_err(|err| err.to_string())
        };
        assert_eq!(read("Bearer ${TOKEN}"), Ok(vec!["long-enough".to_owned()]));
        for (value, why) in
            [("${NONE}", "`NONE` of"), ("${SHORT}", "`SHORT` of"), ("${KEPT}", "exec.env_keep")]
        {
            let refusal = read(value).expect_err("refused");
            assert!(refusal.contains(why) && !refusal.contains("abc1234"), "{refusal}");
        }
    }

    #[test]
    fn a_missing_or_short_secret_is_refused_and_not_printed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("secrets");
        std::fs::write(&file, "long-enough-1\n\n  long-enough-2  \n").expect("written");
        let short = folder.path().join("short");
        std::fs::write(&short, "long-enough-1\nabc1234\n").expect("written");
        let env = [("GOOD", "long-enough-3"), ("SHORT", "abc1234")];
        let env = env.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let read = |names: &[&str], files: &[&Path]| {
            let values_from = names.iter().map(|name| (*name).to_owned()).collect();
            let files = files.iter().map(|file| file.display().to_string()).collect();
            SecretsSection { values_from, files, names: Vec::new() }.read_values(&env)
        };
        let all = read(&["GOOD"], &[&file]).expect("the secrets are set");
        assert_eq!(all, ["long-enough-3", "long-enough-1", "long-enough-2"]);
        let names = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            SecretsSection { names, ..SecretsSection::default() }.read_values(&env)
        };
        names(&["pin", "Session ID"]).expect("the names are valid");
        for (result, expected) in [
            (names(&["pin", "-x-"]), "`-x-` in secrets.names"),
            (read(&["NONE"], &[]), "`NONE` of secrets.values_from is not set"),
            (read(&["SHORT"], &[]), "`SHORT` of secrets.values_from has 7 bytes"),
            (read(&[], &[&short]), "line 2 of the file"),
            (read(&[], &[Path::new("none")]), "cannot read"),
            (read(&[], &[&folder.path().join("none")]), "cannot read"),
        ] {
            let message = format!("{:#}", result.expect_err("refused"));
            assert!(message.contains(expected) && !message.contains("abc1234"), "{message}");
        }
    }
}
