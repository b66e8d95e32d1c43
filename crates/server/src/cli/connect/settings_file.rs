//! Reads and replaces the settings file of a client.
#![allow(clippy::disallowed_methods, reason = "the user's own files, outside of what is served")]

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use rustix::fs::OFlags;

/// Maximum size of a client's settings file, in bytes. Larger files are not read.
const BYTES_MAX: u64 = 32 << 20;
/// Permissions of a new settings file that contains a key.
const PRIVATE_MODE: u32 = 0o600;
/// Permissions of a new settings file without a key, before the user's umask is applied.
const PUBLIC_MODE: u32 = 0o666;
/// Permission bits that let other users read a file.
const READABLE_BY_OTHERS: u32 = 0o044;

/// A client's settings file, with its content at the time of reading.
pub(super) struct SettingsFile {
    /// Path of the settings file without symbolic links.
    pub(super) path: PathBuf,
    /// Content of the settings file, or `None` if it does not exist.
    pub(super) text: Option<String>,
    metadata: Option<Metadata>,
}

impl SettingsFile {
    /// Reads the settings file at `path`, and follows links. If `project` is set, the file and the
    /// targets of its links must be in that folder, because a stranger may have written the
    /// project.
    ///
    /// # Errors
    /// The file cannot be read, belongs to another user, or is outside of the project.
    pub(super) fn read(path: &Path, project: Option<&Path>) -> anyhow::Result<Self> {
        let shown = path.display();
        let resolved = resolve(path)?;
        if let Some(project) = project {
            let project = fs::canonicalize(project)
                .with_context(|| format!("cannot find the folder {}", project.display()))?;
            ensure!(
                resolved.starts_with(&project),
                "{shown} is a link that leads out of the project, to {}, and is not changed; \
                 connect with --scope user, or replace the link with a file",
                resolved.display()
            );
        }
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW).bits());
        let opened =
            OpenOptions::new().read(true).custom_flags(flags.unwrap_or_default()).open(&resolved);
        let file = match opened {
            Ok(file) => file,
            Err(err) if err.kind() == ErrorKind::NotFound => {
                return Ok(Self { path: resolved, text: None, metadata: None });
            }
            Err(err) => return Err(err).with_context(|| format!("cannot read {shown}")),
        };
        let metadata = file.metadata().with_context(|| format!("cannot examine {shown}"))?;
        ensure!(metadata.is_file(), "{shown} is not a regular file");
        let user = rustix::process::geteuid();
        ensure!(
            user.is_root() || metadata.uid() == user.as_raw(),
            "{shown} belongs to another user ({}), and is not changed",
            metadata.uid()
        );
        let mut bytes = Vec::new();
        let read = file.take(BYTES_MAX + 1).read_to_end(&mut bytes);
        read.with_context(|| format!("cannot read {shown}"))?;
        ensure!(bytes.len() as u64 <= BYTES_MAX, "{shown} is larger than {BYTES_MAX} bytes");
        let text = String::from_utf8(bytes).map_err(|_| anyhow!("{shown} is not UTF-8"))?;
        Ok(Self { path: resolved, text: Some(text), metadata: Some(metadata) })
    }

    /// Returns the missing folders above the settings file, outermost first.
    pub(super) fn missing_folders(&self) -> Vec<PathBuf> {
        let above = self.path.ancestors().skip(1);
        let mut missing: Vec<_> =
            above.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        missing.reverse();
        missing
    }

    /// Returns true if the settings file exists and other users can read it.
    pub(super) fn is_readable_by_others(&self) -> bool {
        self.metadata.as_ref().is_some_and(|it| it.mode() & READABLE_BY_OTHERS != 0)
    }

    /// Replaces the settings file by a new file that contains `text`, with the same owner and
    /// permissions. Creates the file if it did not exist. If `is_private` is true, only the user
    /// can read the file.
    ///
    /// # Errors
    /// The file has changed since it was read, or cannot be written.
    pub(super) fn replace(&self, text: &str, is_private: bool) -> anyhow::Result<()> {
        let shown = self.path.display();
        let failed = || format!("cannot write {shown}");
        let folder = self.path.parent().with_context(failed)?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
        if self.metadata.is_some() {
            // A file that the user has made read-only must stay as it is.
            OpenOptions::new().write(true).open(&self.path).with_context(failed)?;
        }
        let mode = if is_private { PRIVATE_MODE } else { PUBLIC_MODE };
        let mut file = tempfile::Builder::new()
            .prefix(".toolgate-")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder)
            .with_context(failed)?;
        file.write_all(text.as_bytes()).with_context(failed)?;
        if let Some(old) = &self.metadata {
            let new = file.as_file().metadata().with_context(failed)?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                fchown(file.as_file(), Some(old.uid()), Some(old.gid())).with_context(failed)?;
            }
            let permissions = Permissions::from_mode(old.mode() & 0o7777);
            file.as_file().set_permissions(permissions).with_context(failed)?;
        }
        file.as_file().sync_all().with_context(failed)?;
        self.check_unchanged()?;
        file.persist(&self.path).with_context(failed)?;
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }

    /// Deletes the settings file, and then each folder in `folders` that is empty. `folders` begins
    /// with the outermost folder.
    ///
    /// # Errors
    /// The file has changed since it was read, or cannot be deleted.
    pub(super) fn delete(&self, folders: &[PathBuf]) -> anyhow::Result<()> {
        self.check_unchanged()?;
        fs::remove_file(&self.path)
            .with_context(|| format!("cannot delete {}", self.path.display()))?;
        // A folder that has another file by now is kept.
        let _ = folders.iter().rev().try_for_each(fs::remove_dir);
        Ok(())
    }

    fn check_unchanged(&self) -> anyhow::Result<()> {
        let now = match fs::read_to_string(&self.path) {
            Ok(text) => Some(text),
            Err(err) if err.kind() == ErrorKind::NotFound => None,
            Err(err) => {
                return Err(err).with_context(|| format!("cannot read {}", self.path.display()));
            }
        };
        ensure!(
            now == self.text,
            "{} was changed by another program, and was not written; run the command again",
            self.path.display()
        );
        Ok(())
    }
}

/// Resolves the symbolic links in `path`, whose last components may not exist yet. Fails if a link
/// is broken.
fn resolve(path: &Path) -> anyhow::Result<PathBuf> {
    let shown = path.display();
    let mut missing: Vec<OsString> = Vec::new();
    let mut existing = path;
    loop {
        match existing.symlink_metadata() {
            Ok(_) => break,
            Err(err) if err.kind() == ErrorKind::NotFound => {}
            Err(err) => return Err(err).with_context(|| format!("cannot examine {shown}")),
        }
        let (Some(parent), Some(name)) = (existing.parent(), existing.file_name()) else {
            bail!("cannot find a folder for {shown}");
        };
        missing.push(name.to_owned());
        existing = parent;
    }
    let resolved = fs::canonicalize(existing).map_err(|err| {
        anyhow!("{} is a broken link ({err}); remove it first", existing.display())
    })?;
    Ok(missing.into_iter().rev().fold(resolved, |path, name| path.join(name)))
}
