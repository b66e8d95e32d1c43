//! Reads and changes the key file, which running servers may read at any time.
#![allow(
    clippy::disallowed_methods,
    reason = "the owner's own file, named in the configuration, outside the workspace"
)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use toolgate_world::root::EntryFingerprint;

use super::keys::check_all;
use super::{ApiKey, ServerSection, state_folder};
use crate::owned_files::{self, OwnedFileSymlinkPolicy};

/// Comment that toolgate writes at the top of the key file.
const HEADING: &str = "\
# API keys of callers over HTTP. `toolgate key new`, `rotate` and `revoke` write this file, and
# servers read it again when it changes. While it exists, every request over HTTP needs a credential.
";

/// Maximum number of revoked keys that are stored. Beyond this number, the oldest are deleted.
const REVOKED_MAX: usize = 1000;

/// Content of the key file, which lists API keys.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyFileContent {
    /// Digests of revoked keys, oldest first. A client that still sends such a key is not counted
    /// as guessing keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) revoked: Vec<String>,
    #[serde(default)]
    pub(crate) keys: Vec<ApiKey>,
}

/// Returns the path of the key file that `server` configures. Returns `None` if the setting is
/// `off`, or if this user has no state folder.
///
/// # Errors
/// The configured path is not absolute.
pub fn path(server: &ServerSection) -> anyhow::Result<Option<PathBuf>> {
    Ok(match server.keys_file.as_str() {
        "off" => None,
        "state" => state_folder().map(|folder| folder.join("keys.toml")),
        path if Path::new(path).is_absolute() => Some(PathBuf::from(path)),
        path => bail!(
            "server.keys_file is `{path}`; write an absolute path (a relative path would be in the \
             workspace, where tools can write), `state` or `off`"
        ),
    })
}

/// Reads the key file at `path`. Returns its content, and the fingerprint by which a later change
/// is recognized. Returns `None` if the file does not exist.
///
/// # Errors
/// The file cannot be read or parsed, or other users could have written it.
pub(crate) fn read(path: &Path) -> anyhow::Result<Option<(KeyFileContent, EntryFingerprint)>> {
    let (text, stamp) = match owned_files::read_owned(path, OwnedFileSymlinkPolicy::Refused) {
        Ok(read) => read,
        Err(err) if is_missing(&err) => return Ok(None),
        Err(err) => return Err(err.context("cannot read the keys of server.keys_file")),
    };
    let shown = path.display();
    let text = String::from_utf8(text).with_context(|| format!("{shown} is not UTF-8"))?;
    // The error text of toml quotes the line, which may contain a key by mistake.
    let content: KeyFileContent = toml::from_str(&text).map_err(|err| {
        let line = err.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        anyhow::anyhow!("{shown} is invalid in line {line}: {}", err.message())
    })?;
    check_all(&content.keys, &shown.to_string())?;
    Ok(Some((content, stamp)))
}

/// Returns the keys in the key file at `path`, or `None` if it does not exist.
///
/// # Errors
/// The file cannot be read or parsed, or other users could have written it.
pub fn list_keys(path: &Path) -> anyhow::Result<Option<Vec<ApiKey>>> {
    Ok(read(path)?.map(|(content, _)| content.keys))
}

fn is_missing(err: &anyhow::Error) -> bool {
    let io = err.downcast_ref::<std::io::Error>();
    io.is_some_and(|err| err.kind() == std::io::ErrorKind::NotFound)
}

/// Applies `change` to the keys in the key file at `path`, and returns the result of `change`.
/// Creates the file if it is missing. Keys that `change` removes are listed as revoked.
///
/// A lock serializes writers, and readers see either the old or the new file.
///
/// # Errors
/// `change` fails, or the file cannot be read, checked or written.
pub fn change_keys<T>(
    path: &Path,
    change: impl FnOnce(&mut Vec<ApiKey>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let shown = path.display();
    let folder = path.parent().context("the key file has no folder")?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let lock = open_private(&helper_path(path, "lock"), true)?;
    flock(&lock, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {shown}"))?;
    let KeyFileContent { mut revoked, mut keys } =
        read(path)?.map(|(content, _)| content).unwrap_or_default();
    let before: Vec<String> = keys.iter().map(|key| key.sha256.clone()).collect();
    let done = change(&mut keys)?;
    check_all(&keys, &shown.to_string())?;
    revoked.extend(before.into_iter().filter(|old| keys.iter().all(|key| key.sha256 != *old)));
    revoked.drain(..revoked.len().saturating_sub(REVOKED_MAX));
    let text = format!("{HEADING}\n{}", toml::to_string(&KeyFileContent { revoked, keys })?);
    let next = helper_path(path, "next");
    // Left by an interrupted writer.
    let _ = fs::remove_file(&next);
    let mut file = open_private(&next, false).with_context(|| format!("cannot write {shown}"))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&next, path).with_context(|| format!("cannot write {shown}"))?;
    File::open(folder)?.sync_all()?;
    Ok(done)
}

/// Returns the path of a hidden file beside the key file at `path`, such as its lock. `what` is the
/// extension of the hidden file.
fn helper_path(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{what}"))
}

/// Opens the file at `path` for writing, and creates it so that only the user can read it. Fails if
/// the path is a symbolic link, or if the file exists although `reused` is false.
fn open_private(path: &Path, reused: bool) -> std::io::Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(flags);
    if reused {
        options.create(true)
    } else {
        options.create_new(true)
    };
    options.open(path)
}

/// Fuzz target: panics if a valid key file changes when it is written and read again.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_key_file(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(keys) = toml::from_str::<KeyFileContent>(text) else { return };
    let is_valid = check_all(&keys.keys, "a file").is_ok();
    let written = toml::to_string(&keys).expect("parsed keys serialize");
    let again: KeyFileContent = toml::from_str(&written).expect("serialized keys parse");
    assert_eq!(toml::to_string(&again).expect("parsed keys serialize"), written);
    assert_eq!(check_all(&again.keys, "a file").is_ok(), is_valid);
}
