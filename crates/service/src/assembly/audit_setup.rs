//! Settings of the audit log: where the server writes the log, and where the key that seals it is.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use toolgate_host::{AuditDestination, AuditFileSettings, AuditLog};

use crate::assembly::environment;
use crate::config::{self, Config, key_file, state_folder};

/// Size in bytes at which the audit log file is rotated. A file of this size opens in any editor.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Extensions of the files beside the audit log: `head`, which seals the end of the log, and the
/// SQLite index with its write-ahead files.
const BESIDE: [&str; 4] = ["head", "index", "index-wal", "index-shm"];

/// Returns the file settings of the audit log, or `None` if the log is not written to a file. Fails
/// if a configured path is not absolute.
pub fn audit_file(config: &config::AuditSection) -> anyhow::Result<Option<AuditFileSettings>> {
    Ok(match audit_destination(config)? {
        AuditDestination::File(file) => Some(file),
        AuditDestination::Off | AuditDestination::Stderr => None,
    })
}

/// Returns the paths of the audit log that tools must not write: the log, its rotated files, its
/// index and its key. Returns an empty list if the log is not written to a file.
pub(crate) fn audit_paths(config: &config::AuditSection) -> anyhow::Result<Vec<PathBuf>> {
    let Some(AuditFileSettings { path, key, keep, .. }) = audit_file(config)? else {
        return Ok(Vec::new());
    };
    let suffixes = (1..=keep).map(|number| number.to_string()).chain(BESIDE.map(str::to_owned));
    let rotated = suffixes.map(|suffix| PathBuf::from(format!("{}.{suffix}", path.display())));
    Ok(rotated.chain([path.clone(), key]).collect())
}

/// Returns the paths that no tool may read: the state folder, the folder for large files of a
/// fleet, and the keys of the audit log, callers, TLS and session ids. Fails if a configured path
/// is invalid.
pub(crate) fn secret_paths(config: &Config) -> anyhow::Result<Vec<PathBuf>> {
    let key = audit_file(&config.audit)?.map(|file| file.key);
    let keys = key_file::path(&config.server)?;
    let tls = config.server.tls_key.as_ref().map(PathBuf::from);
    let sessions = config.server.session_key.as_ref().map(PathBuf::from);
    // It has files of all callers' jobs.
    let shared = config.fleet.files_folder().map(Path::to_owned);
    Ok([state_folder(), key, keys, tls, sessions, shared].into_iter().flatten().collect())
}

/// Returns the destination of the audit log: a file, standard error, or no destination if the log
/// is off. Fails if a configured path is not absolute.
pub(crate) fn audit_destination(config: &config::AuditSection) -> anyhow::Result<AuditDestination> {
    let path = match config.to.as_str() {
        "off" => return Ok(AuditDestination::Off),
        "stderr" => return Ok(AuditDestination::Stderr),
        "state" => match state_folder() {
            Some(folder) => folder.join("audit.jsonl"),
            None => return Ok(AuditDestination::Stderr),
        },
        path if Path::new(path).is_absolute() => path.into(),
        path => bail!(
            "audit.to is `{path}`; write an absolute path (a relative path would be in the workspace, \
             where tools can write), `state`, `stderr` or `off`"
        ),
    };
    let (key, keep, bytes_max) = (key_path(config, &path)?, config.keep, FILE_BYTES_MAX);
    Ok(AuditDestination::File(AuditFileSettings { key, path, keep, bytes_max }))
}

/// Returns the path of the key that seals the audit log at `path`. Fails if the setting `audit.key`
/// is neither `state` nor an absolute path.
fn key_path(config: &config::AuditSection, path: &Path) -> anyhow::Result<PathBuf> {
    match config.key.as_str() {
        "state" => Ok(state_folder().map_or_else(
            // A key beside its log proves less, but a user without a home has no better place.
            || PathBuf::from(format!("{}.key", path.display())),
            |folder| folder.join("audit.key"),
        )),
        key if Path::new(key).is_absolute() => Ok(key.into()),
        key => bail!(
            "audit.key is `{key}`; write an absolute path (a relative path would be in the workspace, \
             where tools can read) or `state`"
        ),
    }
}

/// Opens the audit log.
///
/// If the default state folder is not writable, records go to standard error instead. An explicitly
/// configured file must be writable.
pub(crate) fn open_audit(config: &config::AuditSection) -> anyhow::Result<AuditLog> {
    match AuditLog::open(&audit_destination(config)?, config.strict) {
        Ok(audit) => Ok(audit),
        Err(err) if config.to == "state" => {
            // The server reports an unusable state folder with everything that it affects.
            if environment::state_problem().is_none() {
                tracing::warn!(
                    "audit records go to standard error, because the state folder cannot be written: \
                     {err}"
                );
            }
            AuditLog::open(&AuditDestination::Stderr, config.strict)
                .context("cannot open the audit log on standard error")
        }
        Err(err) => Err(err).with_context(|| format!("cannot open the audit log {}", config.to)),
    }
}
